//! Tests endpoints whose name has several addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::AsyncReadExt;

use super::*;

/// Returns 127.0.0.1 twice, 127.0.0.2, and 127.0.0.3, where no server listens.
fn three(name: String, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
    assert_eq!(name, "localhost");
    let addresses = [2, 1, 3, 1].map(|n| SocketAddr::from((Ipv4Addr::new(127, 0, 0, n), port)));
    async move { Ok(addresses.to_vec()) }.boxed()
}

/// Starts an S3 server that checks preconditions and has two front ends: the same port at two addresses.
async fn two_fronts() -> [Server; 2] {
    let objects: Arc<Mutex<HashMap<String, (String, String)>>> = Arc::default();
    let script = move |seen: &Seen| {
        let mut objects = objects.lock().unwrap();
        let (method, target) = seen.line.split_once(' ').unwrap();
        let key = target.split('?').next().unwrap().to_owned();
        let etag = objects.get(&key).map(|(etag, _)| etag.clone());
        let expected = seen.head.lines().find_map(|line| line.strip_prefix("if-match: "));
        let holds = match seen.has("if-none-match: *") {
            true => etag.is_none(),
            false => expected.is_none() || expected == etag.as_deref(),
        };
        Reply::Answer(match method {
            _ if !holds && (method == "DELETE" || etag.is_some()) => {
                refused("412 Precondition Failed", "", "PreconditionFailed")
            }
            "PUT" if holds => {
                // Each body has a different nonce, so each ETag is different too.
                let body = String::from_utf8(seen.body.clone()).unwrap();
                let etag = bodies::etag_of(body.as_bytes()).as_str().to_owned();
                objects.insert(key, (etag.clone(), body));
                answer("200 OK", &format!("ETag: {etag}\r\n"), "")
            }
            "DELETE" => {
                objects.remove(&key);
                "HTTP/1.1 204 No Content\r\n\r\n".to_owned()
            }
            _ => match objects.get(&key) {
                Some((etag, body)) => answer("200 OK", &format!("ETag: {etag}\r\n"), body),
                None => refused("404 Not Found", "", "NoSuchKey"),
            },
        })
    };
    let first = Server::start(script.clone()).await;
    let port = first.url.rsplit_once(':').unwrap().1;
    let second = Server::start_at(&format!("127.0.0.2:{port}"), script).await;
    [first, second]
}

fn named(server: &Server, lookup: Lookup) -> S3Register {
    let mut register = register(&server.url.replace("127.0.0.1", "localhost"), test_credentials());
    register.lookup = lookup;
    register
}

/// Returns how many racing creates, and how many racing replaces, each server received.
fn races(servers: &[Server; 2]) -> [(usize, usize); 2] {
    servers.each_ref().map(|server| {
        let seen = server.requests();
        let racers = seen.iter().filter(|seen| seen.line.contains("leasehold-probe-race-"));
        let racers: Vec<_> = racers.filter(|seen| seen.line.starts_with("PUT")).collect();
        let creates = racers.iter().filter(|seen| seen.has("if-none-match: *")).count();
        (creates, racers.len() - creates)
    })
}

#[tokio::test]
async fn each_address_of_the_name_sees_its_share_of_every_race() {
    let servers = two_fronts().await;
    let register = named(&servers[0], three);
    probe(&register).await.unwrap();
    // The probe runs 44 races of 8 requests.
    for (creates, replaces) in races(&servers) {
        assert!(creates > 120 && replaces > 120, "{creates}, {replaces}");
    }
    let identity = register.identity();
    for (address, front) in register.fronts().await.unwrap().answering {
        assert_eq!(front.identity(), identity, "the verdict is the name's");
        front.read("x.lock").await.unwrap();
        let [first, second] = servers.each_ref().map(Server::requests);
        let (seen, other) = if address == Ipv4Addr::LOCALHOST { (first, second) } else { (second, first) };
        assert!(other.is_empty());
        let [read] = &seen[..] else { panic!() };
        assert!(read.has(&format!("host: {}", identity.split('/').nth(2).unwrap())), "{read:?}");
        assert!(read.head.contains("authorization: aws4-hmac-sha256"), "{read:?}");
        assert!(front.fronts().await.unwrap().answering.is_empty(), "an address is not a name");
    }
}

/// Otherwise, a difference between their clocks would not be noticed.
#[tokio::test]
async fn front_ends_share_the_clock_of_their_store() {
    let missing = |_: &Seen| {
        Reply::Answer(refused("404 Not Found", &format!("{DATE}x-amz-request-id: 1\r\n"), "NoSuchKey"))
    };
    let server = Server::start(missing).await;
    let _other = Server::start_at(&server.url.replace("http://127.0.0.1", "127.0.0.2"), missing).await;
    let register = named(&server, |_, port| {
        let addresses = [1, 2].map(|n| SocketAddr::from((Ipv4Addr::new(127, 0, 0, n), port)));
        async move { Ok(addresses.to_vec()) }.boxed()
    });
    let fronts = register.fronts().await.unwrap().answering;
    assert_eq!((fronts.len(), register.store_time()), (2, None));
    assert!(fronts[0].1.read("x.lock").await.unwrap().is_none());
    assert!(register.store_time().is_some());
}

/// Returns the addresses that accept no connection, as the doctor reports them.
fn silent(ends: &FrontEnds) -> Vec<String> {
    ends.silent.iter().map(|(address, why)| format!("{address}: {why}")).collect()
}

#[tokio::test]
async fn a_name_without_several_reachable_addresses_has_no_fronts() {
    let servers = two_fronts().await;
    let one: Lookup = |_, port| {
        let addresses = [3, 1].map(|n| SocketAddr::from((Ipv4Addr::new(127, 0, 0, n), port)));
        async move { Ok(addresses.to_vec()) }.boxed()
    };
    let none: Lookup = |_, port| {
        let addresses = [3, 4].map(|n| SocketAddr::from((Ipv4Addr::new(127, 0, 0, n), port)));
        async move { Ok(addresses.to_vec()) }.boxed()
    };
    let localhost: Lookup = |_, port| {
        let addresses = [IpAddr::from(Ipv6Addr::LOCALHOST), IpAddr::from(Ipv4Addr::LOCALHOST)];
        async move { Ok(addresses.map(|address| SocketAddr::from((address, port))).to_vec()) }.boxed()
    };
    let unknown: Lookup = |_, _| async { Err(io::ErrorKind::NotFound.into()) }.boxed();
    for (lookup, told) in [(one, 1), (none, 0), (localhost, 0), (unknown, 0)] {
        let ends = named(&servers[0], lookup).fronts().await.unwrap();
        assert!(ends.answering.is_empty() && ends.silent.len() == told, "{ends:?}");
    }
    probe(&named(&servers[0], one)).await.unwrap();
    assert!(servers[1].requests().is_empty());
}

#[tokio::test]
async fn an_address_without_a_connection_is_named_with_the_cause() {
    let servers = two_fronts().await;
    let ends = named(&servers[0], three).fronts().await.unwrap();
    assert_eq!((ends.answering.len(), ends.more), (2, 0));
    let [told] = &silent(&ends)[..] else { panic!("{ends:?}") };
    assert!(told.starts_with("127.0.0.3: Connection refused"), "{told}");
}

#[tokio::test]
async fn addresses_are_looked_up_for_the_host_of_the_requests() {
    let servers = two_fronts().await;
    let mut register =
        named(&servers[0], |name, port| three(name.strip_prefix("bucket.").unwrap().to_owned(), port));
    register.path_style = false;
    assert_eq!(register.fronts().await.unwrap().answering.len(), 2);
    // A proxy resolves the name itself.
    register.access.proxy = Some("http://proxy:3128".to_owned());
    assert!(register.fronts().await.unwrap().answering.is_empty());
}

#[tokio::test]
async fn no_more_addresses_are_asked_than_there_are_racers() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let endpoint = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    let mut register = register(&endpoint, test_credentials());
    register.lookup = |_, port| {
        let addresses = (1..20).map(|n| SocketAddr::from((Ipv4Addr::new(127, 0, 0, n), port))).collect();
        async move { Ok(addresses) }.boxed()
    };
    let ends = register.fronts().await.unwrap();
    assert_eq!((ends.answering.len(), ends.more, ends.silent.len()), (8, 11, 0));
}

/// The first TLS message contains the name for which the client requests a certificate.
#[tokio::test]
async fn tls_asks_for_the_name_even_when_connecting_by_address() {
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let _other = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let mut register = register(&format!("https://localhost:{port}"), test_credentials());
    register.lookup = three;
    let fronts = register.fronts().await.unwrap().answering;
    // Discards the connection by which `fronts` tested the address.
    drop(listener.accept().await.unwrap());
    let greeting = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut greeting = Vec::new();
        while !greeting.windows(9).any(|text| text == b"localhost") {
            assert!(stream.read_buf(&mut greeting).await.unwrap() > 0, "not named in {greeting:?}");
        }
    };
    tokio::select! {
        () = greeting => {}
        read = fronts[1].1.read("x.lock") => panic!("not there: {read:?}"),
    }
}
