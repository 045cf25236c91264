//! NATS: the server that `./test` starts, with a prefix for each test, and servers that a test starts itself.

mod cluster;
mod scripted;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold::LockName;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream, split};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::watch;

pub use self::cluster::Cluster;
pub use self::scripted::Scripted;
#[cfg(feature = "chaos")]
use crate::chaos::{plan::Kind as Fault, scenario::Scenario, servers::Wired};
use crate::conformance::Harness;
use crate::harness::Fresh;
use crate::launch::{Launch, Launched, Measured, Protocol, STORE, options, program};
use crate::servers::{Server, parsed, through, unique, with_option};
use crate::test_store::{Bench, Kind, Storage, TestStore};

impl Server {
    /// NATS.
    pub const NATS: Self = Self { variable: "LEASEHOLD_TEST_NATS" };
}

/// NATS.
#[derive(Debug)]
pub struct Nats;

#[async_trait]
impl TestStore for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn storages(&self) -> &'static [Storage] {
        const { &[Storage::at("nats", Server::NATS, Kind::Shared)] }
    }

    fn fresh_url(&self, storage: &Storage, _folder: &Path) -> String {
        let server = storage.server.expect("storage on a server").url();
        with_option(&server, &format!("prefix={}", unique()))
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        let stored = ask(url, &subject(url, name.as_str()), "KV-Operation: DEL\r\n", "").await;
        assert!(stored.contains("\"seq\""), "{stored}");
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        value(url, &subject(url, name.as_str())).await
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const ALL: &[Scenario] = &[Scenario::store(
            "nats",
            |folder, workers| Wired::start(&NatsServer, folder, workers),
            &[Fault::StopServer, Fault::KillServer],
        )];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "NATS (one server)",
            scenarios: "abcdefij",
            server: Some(|folder: &Path| {
                Box::pin(async move {
                    let server = Launched::start(&NatsServer, folder).await?;
                    let traffic = Traffic::of(server.url()).await;
                    Ok(Box::new(Direct { server, traffic }) as _)
                })
            }),
        }
    }
}

/// Returns the subject of the record of a lock with a plain name in the store at `url`.
pub fn subject(url: &str, name: &str) -> String {
    let url = parsed(url);
    let prefix = url.option("prefix").map(|prefix| format!("{prefix}.")).unwrap_or_default();
    format!("$KV.{}.{prefix}{name}.lock", bucket(&url))
}

fn bucket(url: &leasehold::url::StoreUrl) -> String {
    url.path().trim_matches('/').to_owned()
}

/// Returns the last value with this subject, as text.
///
/// # Panics
/// When there is none.
pub async fn value(url: &str, subject: &str) -> String {
    let question = format!(r#"{{"last_by_subj":"{subject}"}}"#);
    let answer = api(url, "STREAM.MSG.GET", &question).await;
    let data = answer["message"]["data"].as_str().unwrap_or_else(|| panic!("{subject}: {answer}"));
    String::from_utf8(from_base64(data)).expect("text")
}

/// Decodes base64, for what is not worth a dependency.
pub fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte)) {
        bits = bits << 6 | u32::try_from(digit).unwrap_or(0);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).unwrap_or(0));
        }
    }
    bytes
}

/// Sends a request about the stream of the bucket to JetStream's API. Returns the response.
///
/// # Panics
/// When the server does not respond.
pub async fn api(url: &str, operation: &str, question: &str) -> serde_json::Value {
    let subject = format!("$JS.API.{operation}.KV_{}", bucket(&parsed(url)));
    serde_json::from_str(&ask(url, &subject, "", question).await).expect("JSON")
}

/// Creates the bucket of `url` with these settings, and what its name requires. Returns the response.
///
/// # Panics
/// When the server does not respond.
pub async fn create(url: &str, settings: serde_json::Value) -> serde_json::Value {
    let mut settings = settings;
    let bucket = bucket(&parsed(url));
    settings["name"] = format!("KV_{bucket}").into();
    if settings["mirror"].is_null() && settings["subjects"].is_null() {
        settings["subjects"] = serde_json::json!([format!("$KV.{bucket}.>")]);
    }
    api(url, "STREAM.CREATE", &settings.to_string()).await
}

/// Sends one message to the server of `url` in its own protocol, as its user or without one. Returns the response, or
/// the server's error.
///
/// # Panics
/// When the server does not respond.
pub async fn ask(url: &str, subject: &str, headers: &str, payload: &str) -> String {
    try_ask(url, subject, headers, payload).await.unwrap()
}

async fn try_ask(url: &str, subject: &str, headers: &str, payload: &str) -> io::Result<String> {
    let mut stream = connect(url).await?;
    let headers = format!("NATS/1.0\r\n{headers}\r\n");
    let (count, total) = (headers.len(), headers.len() + payload.len());
    let message = format!("SUB answer 1\r\nHPUB {subject} answer {count} {total}\r\n{headers}{payload}\r\n");
    stream.write_all(message.as_bytes()).await?;
    stream.flush().await?;
    loop {
        match next(&mut stream).await {
            Some(Line::Message(_, text)) => return Ok(text),
            Some(Line::Other(text)) if text.starts_with("-ERR") => return Ok(text),
            Some(_) => {}
            None => return Err(io::Error::other(format!("no response to {subject}"))),
        }
    }
}

async fn connect(url: &str) -> io::Result<BufStream<TcpStream>> {
    let url = parsed(url);
    let login = match (url.user(), url.password()) {
        (Some(user), Some(password)) => format!(r#","user":"{user}","pass":"{password}""#),
        _ => String::new(),
    };
    let host = url.authority().and_then(|hosts| hosts.split(',').next()).expect("a host");
    let mut stream = BufStream::new(TcpStream::connect(host).await?);
    let hello = format!("CONNECT {{\"verbose\":false,\"headers\":true,\"no_responders\":true{login}}}\r\n");
    stream.write_all(hello.as_bytes()).await?;
    Ok(stream)
}

/// What a server sends.
enum Line {
    /// A message: its subject and its payload.
    Message(String, String),
    Other(String),
}

async fn next(stream: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Line> {
    let mut line = String::new();
    if stream.read_line(&mut line).await.ok()? == 0 {
        return None;
    }
    let words: Vec<_> = line.split_whitespace().collect();
    let size = |word: Option<&&str>| word.and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
    let (headers, total) = match words.first() {
        Some(&"MSG") => (0, size(words.last())),
        Some(&"HMSG") => (size(words.get(words.len() - 2)), size(words.last())),
        _ => return Some(Line::Other(line)),
    };
    let mut bytes = vec![0; total + 2];
    stream.read_exact(&mut bytes).await.ok()?;
    let text = String::from_utf8_lossy(&bytes[headers..total]).into_owned();
    Some(Line::Message(words[1].to_owned(), text))
}

/// Counts the requests that clients send to a server.
#[derive(Debug)]
pub struct Traffic {
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
    pings: tokio::sync::Mutex<tokio::io::WriteHalf<BufStream<TcpStream>>>,
    pongs: watch::Receiver<u64>,
}

impl Traffic {
    /// Counts the requests to the server of `url` from now on.
    ///
    /// # Panics
    /// When the server does not respond.
    pub async fn of(url: &str) -> Self {
        let mut stream = connect(url).await.unwrap();
        // A server without a cluster passes each request on to its subscribers too.
        stream.write_all(b"SUB $JS.API.> 1\r\nSUB $KV.> 2\r\n").await.unwrap();
        let (from, pings) = split(stream);
        let counts = Arc::<Mutex<BTreeMap<String, u64>>>::default();
        let (ponged, pongs) = watch::channel(0);
        let counted = counts.clone();
        tokio::spawn(async move {
            let mut from = tokio::io::BufReader::new(from);
            loop {
                match next(&mut from).await {
                    Some(Line::Message(subject, _)) => {
                        *counted.lock().unwrap().entry(kind(&subject)).or_default() += 1;
                    }
                    Some(Line::Other(text)) if text.starts_with("PONG") => {
                        ponged.send_modify(|pongs| *pongs += 1)
                    }
                    Some(Line::Other(_)) => {}
                    None => return,
                }
            }
        });
        let traffic = Self { counts, pings: tokio::sync::Mutex::new(pings), pongs };
        traffic.counts().await;
        traffic
    }

    /// Returns how many requests of each kind the server has received so far.
    ///
    /// # Panics
    /// When the server does not respond.
    pub async fn counts(&self) -> BTreeMap<String, u64> {
        let mut pings = self.pings.lock().await;
        let mut pongs = self.pongs.clone();
        let before = *pongs.borrow();
        pings.write_all(b"PING\r\n").await.unwrap();
        pings.flush().await.unwrap();
        pongs.wait_for(|pongs| *pongs > before).await.expect("a response");
        self.counts.lock().unwrap().clone()
    }
}

/// Returns the kind of a request.
fn kind(subject: &str) -> String {
    match subject.strip_prefix("$JS.API.STREAM.") {
        Some(api) => api.rsplit_once('.').map_or(api, |(operation, _)| operation).to_owned(),
        None => "write".to_owned(),
    }
}

/// A server that a test starts itself. It keeps what it has confirmed, as `docs/stores/nats.md` recommends.
#[derive(Debug)]
pub struct NatsServer;

#[async_trait]
impl Launch for NatsServer {
    fn command(&self, address: &str, folder: &Path) -> Command {
        let (host, port) = address.rsplit_once(':').expect("a host and a port");
        // There is no option for this setting.
        let config = folder.join("nats.conf");
        std::fs::write(&config, "jetstream { sync_interval: always }").expect("a folder for the server");
        let mut command = Command::new(program("LEASEHOLD_TEST_NATS_SERVER"));
        command.args(["-a", host, "-p", port, "-js", "-sd"]).arg(folder).arg("-c").arg(config);
        command
    }

    async fn make_store(&self, address: &str) -> io::Result<String> {
        let url = format!("nats://{address}/{STORE}");
        let republish =
            serde_json::json!({ "src": format!("$KV.{STORE}.>"), "dest": format!("leasehold.{STORE}.>") });
        let settings =
            serde_json::json!({ "max_msgs_per_subject": 1, "storage": "file", "republish": republish });
        let made = create(&url, settings).await;
        match made["error"].as_object() {
            None => Ok(url),
            Some(error) => Err(io::Error::other(format!("NATS is not ready: {error:?}"))),
        }
    }

    fn options(&self, address: &str) -> Vec<String> {
        options(&[("--address", address)])
    }
}

/// A server that does not speak HTTP.
struct Direct {
    server: Launched,
    traffic: Traffic,
}

#[async_trait]
impl Measured for Direct {
    fn address(&self) -> &str {
        self.server.address()
    }

    fn url(&self, proxy: &str) -> String {
        through(self.server.url(), proxy)
    }

    fn options(&self, proxy: &str) -> Vec<String> {
        options(&[("--address", proxy)])
    }

    fn protocol(&self) -> Protocol {
        Protocol::Other
    }

    async fn messages(&self) -> BTreeMap<String, u64> {
        self.traffic.counts().await
    }
}
