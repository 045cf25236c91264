//! Updates and fenced writes of objects on real servers, which `./test` starts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::env::Env;
use leasehold::error::Error;
use leasehold::register::{Body, Metadata, Precondition, Register};
use leasehold::stores::{azure::AzureRegister, gcs::GcsRegister, s3::S3Register};
use leasehold::url::StoreUrl;
use leasehold::{ErrorKind, Object, Token};
use leasehold_testkit::process::Process;
use leasehold_testkit::proxy::{Harm, Proxy};
use leasehold_testkit::servers::{Server, below, through};
use leasehold_testkit::stores;

const SERVERS: [Server; 4] = [Server::MOTO, Server::MINIO, Server::FAKE_GCS, Server::AZURITE];

/// How many processes add to one number, and how many times each: 800 additions.
const PROCESSES: usize = 32;
const TIMES: usize = 25;

const OBJECT: &str = "numbers and so on.json";

/// Returns the URL of a unique folder that needs no examination.
async fn fresh_folder(server: Server) -> String {
    let folder = server.fresh_url();
    vouch(server, &folder).await;
    folder
}

/// Returns the URL of an object in such a folder.
async fn fresh(server: Server) -> String {
    below(&fresh_folder(server).await, OBJECT)
}

/// Returns a proxy, and the URL of such an object through it. The proxy counts as a separate server.
async fn fresh_through(server: Server) -> (Proxy, String) {
    let proxy = Proxy::start(server.address()).await;
    let folder = through(&server.fresh_url(), proxy.address());
    vouch(server, &folder).await;
    proxy.reset();
    let url = below(&folder, OBJECT);
    (proxy, url)
}

async fn vouch(server: Server, folder: &str) {
    let name = match server {
        Server::FAKE_GCS => "gcs",
        Server::AZURITE => "azure",
        _ => "s3",
    };
    stores::named(name).unwrap().vouch_for(folder).await;
}

async fn register(server: Server, folder: &str) -> Arc<dyn Register> {
    let url = StoreUrl::parse(folder).unwrap();
    match server {
        Server::FAKE_GCS => Arc::new(GcsRegister::open(url, Env::system()).unwrap()),
        Server::AZURITE => Arc::new(AzureRegister::open(url, Env::system()).unwrap()),
        _ => Arc::new(S3Register::open(url, Env::system()).await.unwrap()),
    }
}

/// Returns the HTTP method of a write.
fn writes(server: Server) -> &'static str {
    if server == Server::FAKE_GCS { "POST" } else { "PUT" }
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

async fn text(object: &Object) -> String {
    String::from_utf8(object.read().await.unwrap().unwrap().value.to_vec()).unwrap()
}

async fn append(object: &Object, word: &str) -> Result<(), Error> {
    let make = async |content: Option<_>| Ok::<_, Error>(Some(with(content, word)));
    object.update(make).await.map(|_| ())
}

fn with(content: Option<bytes::Bytes>, word: &str) -> bytes::Bytes {
    let text = content.map_or_else(String::new, |bytes| String::from_utf8(bytes.to_vec()).unwrap());
    format!("{text}{word} ").into()
}

#[tokio::test]
async fn metadata_of_other_clients_is_read_and_kept() {
    for server in SERVERS {
        let folder = fresh_folder(server).await;
        let register = register(server, &folder).await;
        let said = |text: &str| Some(text.to_owned());
        let mut metadata = Metadata {
            content_type: said("text/html; charset=utf-8"),
            cache_control: said("max-age=60"),
            content_encoding: said("gzip"),
            content_disposition: said("attachment; filename=\"x.html\""),
            content_language: said("de"),
            ..Metadata::default()
        };
        metadata.user.insert("owner".into(), "ann, of 3 = 4".into());
        let body = Body { bytes: "stored as it is ".into(), metadata: metadata.clone() };
        register.write("x.html", Precondition::Absent, body).await.unwrap();
        let cell = register.read("x.html").await.unwrap().unwrap();
        let head = register.head("x.html").await.unwrap().unwrap();
        assert_eq!((&cell.metadata, &head.metadata, head.size), (&metadata, &metadata, 16), "{server:?}");
        assert_eq!(cell.version, head.version);
        assert_eq!(register.head("y.html").await.unwrap(), None);

        let object = Object::open(&below(&folder, "x.html")).await.unwrap();
        append(&object, "a").await.unwrap();
        object.write_fenced(token(7), "b").await.unwrap();
        let cell = object.read().await.unwrap().unwrap();
        let mut now = cell.metadata;
        assert_eq!(now.user.remove("leasehold-token").as_deref(), Some("7"));
        assert!(now.user.remove("leasehold-log").unwrap().len() > 32);
        now.user.remove("leasehold-seen");
        assert_eq!((now, &cell.value[..]), (metadata, &b"b"[..]), "{server:?}");
    }
}

#[tokio::test]
async fn updates_and_fenced_writes_cost_what_the_documentation_says() {
    for server in SERVERS {
        let (proxy, url) = fresh_through(server).await;
        let object = Object::open(&url).await.unwrap();
        append(&object, "a").await.unwrap();
        let (read, head): (&[&str], &[&str]) =
            if server == Server::FAKE_GCS { (&["GET", "GET"], &["GET"]) } else { (&["GET"], &["HEAD"]) };
        let write = [writes(server)];
        for word in ["b", "c"] {
            proxy.reset();
            append(&object, word).await.unwrap();
            assert_eq!(proxy.methods(""), [read, &write].concat(), "{server:?}: an update");
        }
        proxy.reset();
        object.write_fenced(token(3), "d").await.unwrap();
        assert_eq!(proxy.methods(""), [head, &write].concat(), "{server:?}: a fenced write");
        proxy.reset();
        object.write_fenced(token(2), "e").await.unwrap_err();
        assert_eq!(proxy.methods(""), head, "{server:?}: refused");
    }
}

#[tokio::test]
async fn a_lost_or_repeated_write_is_applied_once() {
    for server in SERVERS {
        let (proxy, url) = fresh_through(server).await;
        let object = Object::open(&url).await.unwrap();
        append(&object, "a").await.unwrap();
        for (word, harm) in [
            ("b", Harm::AnswerLost),
            ("c", Harm::Cut),
            ("d", Harm::TwiceSecondAnswer),
            ("e", Harm::Twice),
            ("f", Harm::Status(503)),
        ] {
            proxy.next(writes(server), harm);
            append(&object, word).await.unwrap();
        }
        assert_eq!(text(&object).await, "a b c d e f ", "{server:?}");
    }
}

#[tokio::test]
async fn a_write_delayed_past_a_takeover_is_refused() {
    for server in SERVERS {
        let (proxy, url) = fresh_through(server).await;
        let (late, next) = (Object::open(&url).await.unwrap(), Object::open(&url).await.unwrap());
        next.write_fenced(token(4), "of 4").await.unwrap();
        late.write_fenced(token(5), "of 5").await.unwrap();
        proxy.reset();
        proxy.next(writes(server), Harm::Delayed(Duration::from_secs(3)));
        let writing = tokio::spawn(async move { late.write_fenced(token(5), "late").await });
        proxy.until(|log| log.iter().any(|seen| seen.method == writes(server))).await;
        next.write_fenced(token(6), "of 6").await.unwrap();
        let error = writing.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.refused_by()), (ErrorKind::Lost, Some(token(6))), "{server:?}");
        assert_eq!(text(&next).await, "of 6", "{server:?}");
    }
}

/// An ETag depends only on the content, so a delayed write must not find its expected content again.
#[tokio::test]
async fn on_s3_the_content_of_a_lower_token_does_not_come_back() {
    for server in [Server::MOTO, Server::MINIO] {
        let url = fresh(server).await;
        let object = Object::open(&url).await.unwrap();
        object.write_fenced(token(3), "idle").await.unwrap();
        let refused = object.write_fenced(token(6), "idle").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{server:?}: {refused:?}");
        object.write_fenced(token(6), "busy").await.unwrap();
        object.write_fenced(token(6), "idle").await.unwrap_err();
        object.write_fenced(token(6), "busy").await.unwrap();
        assert_eq!(object.read_fenced(token(7)).await.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[tokio::test]
async fn on_gcs_a_read_raises_the_fence() {
    let url = fresh(Server::FAKE_GCS).await;
    let object = Object::open(&url).await.unwrap();
    object.write_fenced(token(3), "idle").await.unwrap();
    assert_eq!(object.read_fenced(token(6)).await.unwrap().as_deref(), Some(&b"idle"[..]));
    assert_eq!(object.write_fenced(token(5), "x").await.unwrap_err().refused_by(), Some(token(6)));
    object.write_fenced(token(6), "idle").await.unwrap();
}

/// Holders with rising tokens append their token to one list. The tokens in the list rise, and each accepted addition
/// is in it once.
#[tokio::test]
async fn accepted_tokens_never_go_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut urls = vec![in_directory(folder.path())];
    for server in SERVERS {
        urls.push(fresh(server).await);
    }
    for url in urls {
        let holders: Vec<_> = (1..=12).map(|number| tokio::spawn(additions(url.clone(), number))).collect();
        let mut accepted = Vec::new();
        for holder in holders {
            accepted.extend(holder.await.unwrap());
        }
        let text = text(&Object::open(&url).await.unwrap()).await;
        let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        let tokens = words.iter().map(|word| word.split_once('.').unwrap().0.parse::<u64>().unwrap());
        assert!(tokens.is_sorted(), "{url}: {text}");
        accepted.sort();
        words.sort();
        assert_eq!(words, accepted, "{url}");
    }
}

/// Prepares `folder`. Returns the URL of an object in it.
fn in_directory(folder: &Path) -> String {
    std::fs::create_dir(folder.join(".leasehold")).unwrap();
    format!("dir:{}/of a/{OBJECT}", folder.display())
}

/// Makes additions as the holder with token `number`. Returns those that were accepted.
async fn additions(url: String, number: u64) -> Vec<String> {
    let object = Object::open(&url).await.unwrap();
    let mut accepted = Vec::new();
    for n in 0..6 {
        let word = format!("{number}.{n}");
        let make = async |content: Option<_>| Ok::<_, Error>(Some(with(content, &word)));
        match object.update_fenced(token(number), make).await {
            Ok(_) => accepted.push(word),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
                break;
            }
        }
    }
    accepted
}

async fn count_exactly(url: String) {
    let times = TIMES.to_string();
    let worker = || {
        let arguments = ["add", "--object", &url, "--times", &times];
        Process::start(env!("CARGO_BIN_EXE_leasehold-testkit-worker"), arguments)
    };
    let workers: Vec<_> = (0..PROCESSES).map(|_| worker()).collect();
    let mut attempts = 0;
    for worker in workers {
        let (said, code) = worker.end().await;
        assert_eq!((code, said.len()), (Some(0), TIMES), "{said:?}");
        attempts += said.iter().map(|line| line.parse::<usize>().unwrap()).sum::<usize>();
    }
    println!("{url}: {} additions took {attempts} attempts", PROCESSES * TIMES);
    let object = Object::open(&url).await.unwrap();
    assert_eq!(text(&object).await, format!("{{\"n\":{}}}", PROCESSES * TIMES));
}

#[tokio::test]
async fn thirty_two_processes_count_exactly_on_moto() {
    count_exactly(fresh(Server::MOTO).await).await;
}

#[tokio::test]
async fn thirty_two_processes_count_exactly_on_minio() {
    count_exactly(fresh(Server::MINIO).await).await;
}

#[tokio::test]
async fn thirty_two_processes_count_exactly_on_fake_gcs_server() {
    count_exactly(fresh(Server::FAKE_GCS).await).await;
}

#[tokio::test]
async fn thirty_two_processes_count_exactly_in_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    count_exactly(in_directory(folder.path())).await;
}
