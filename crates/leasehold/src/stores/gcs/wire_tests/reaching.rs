//! Tests the paying project, the encryption key, and the connection to the server.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

fn opened(url: &str) -> GcsRegister {
    GcsRegister::open(StoreUrl::parse(url).unwrap(), Env::system()).unwrap()
}

const KEY: &str = "projects/p/locations/eu/keyRings/r/cryptoKeys/k";

#[tokio::test]
async fn every_request_names_who_pays_and_every_upload_its_key() {
    let server = Server::start(|seen| {
        Reply::Answer(match seen.line.split(' ').next() {
            Some("GET") if seen.line.contains("prefix=") => answer("200 OK", "", "{}"),
            Some("GET") if seen.line.contains("alt=media") => answer("200 OK", GENERATION, "{}"),
            Some("DELETE") => answer("200 OK", "", ""),
            _ => written(),
        })
    })
    .await;
    let url = format!(
        "gs://bucket/p?credentials=anonymous&endpoint={}&user_project=payer-1&kms_key={KEY}",
        server.url
    );
    let register = opened(&url);
    register.write("x", Precondition::Absent, value().into()).await.unwrap();
    register.write("x", Precondition::Version(&v1()), value().into()).await.unwrap();
    register.read("x").await.unwrap();
    register.head("x").await.unwrap();
    register.delete("x", &v1()).await.unwrap();
    register.list("").try_collect::<Vec<_>>().await.unwrap();
    drop(register.examine().await);
    let requests = server.requests();
    assert_eq!(requests.len(), 8, "{requests:?}");
    for request in requests {
        assert_eq!(request.line.matches("&userProject=payer-1").count(), 1, "{request:?}");
        assert!(!request.head.contains("x-goog-user-project"), "{request:?}");
        let key = "&kmsKeyName=projects%2Fp%2Flocations%2Feu%2FkeyRings%2Fr%2FcryptoKeys%2Fk";
        assert_eq!(request.line.contains(key), request.line.starts_with("POST"), "{request:?}");
    }
}

#[tokio::test]
async fn a_proxy_is_asked_instead_of_the_endpoint() {
    let proxy = Server::always(written()).await;
    let endpoint = "http://storage.invalid:4443";
    let url = |credentials: &str, endpoint: &str| {
        format!("gs://bucket?credentials={credentials}&endpoint={endpoint}&proxy={}", proxy.url)
    };
    let register = opened(&url("anonymous", endpoint));
    register.write("x", Precondition::Absent, value().into()).await.unwrap();
    let [write] = &proxy.requests()[..] else { panic!() };
    assert!(write.line.starts_with(&format!("POST {endpoint}/upload/storage/v1/b/bucket/o?")), "{write:?}");

    // Encrypted requests go through a tunnel, which this proxy refuses.
    let refusing = Server::always(answer("403 Forbidden", "", "")).await;
    let url =
        format!("gs://bucket?credentials=anonymous&endpoint=https://storage.invalid&proxy={}", refusing.url);
    let error = opened(&url).write("x", Precondition::Absent, value().into()).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)), "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("the proxy"), "{error:?}");
    let [tunnel] = &refusing.requests()[..] else { panic!() };
    assert_eq!(tunnel.line, "CONNECT storage.invalid:443");

    // The first proxy received no request of the second register.
    assert!(proxy.requests().is_empty());
}

/// Starts a server that sends `text` to every client and closes the connection. Returns its address.
async fn saying(text: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut seen = vec![0; 4_096];
            drop(stream.read(&mut seen).await);
            drop(stream.write_all(text).await);
        }
    });
    address
}

#[tokio::test]
async fn the_wrong_scheme_is_named() {
    const ALERT: &[u8] = b"\x15\x03\x03\0\x02\x02\x16";
    for (scheme, other, said, named) in [
        ("https", "http", &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "does not use TLS"),
        ("http", "https", ALERT, "does not respond in plain HTTP"),
    ] {
        let address = saying(said).await;
        let endpoint = format!("{scheme}://{address}");
        let error = register_at(&endpoint, Source::Anonymous).read("x").await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains(&endpoint), "{error:?}");
        let help = error.fault().help.as_ref().unwrap_or_else(|| panic!("{error:?}"));
        assert!(help.contains(named) && help.contains(&format!("endpoint={other}://{address}")), "{error:?}");
    }
}

#[tokio::test]
async fn a_private_authority_is_trusted_only_with_its_ca_file() {
    let folder = tempfile::tempdir().unwrap();
    let script = |_: &Seen| Reply::Answer(answer("200 OK", GENERATION, "{}"));
    let server = Server::start_tls(folder.path(), script).await;
    let url = format!("gs://bucket?credentials=anonymous&endpoint={}", server.url);
    let read = async |url: &str| {
        let register = opened(url);
        register.content_of("x", None).await
    };
    let error = read(&url).await.unwrap_err();
    assert!(error.fault().help.as_ref().unwrap().contains("ca=FILE"), "{error:?}");
    assert!(server.requests().is_empty());
    let authority = folder.path().join("ca.pem");
    read(&format!("{url}&ca={}", authority.display())).await.unwrap().unwrap();
    assert_eq!(server.requests().len(), 1);

    std::fs::write(folder.path().join("none.pem"), "hunter2").unwrap();
    for (file, said) in
        [("none.pem", "no certificate"), ("missing.pem", "cannot be read"), ("s.key", "no certificate")]
    {
        let url = format!("{url}&ca={}", folder.path().join(file).display());
        let error = GcsRegister::open(StoreUrl::parse(&url).unwrap(), Env::system()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.to_string().contains(file) && error.to_string().contains(said), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2") && !error.help().is_empty(), "{error:?}");
    }
}
