//! Tests how the options of a store URL change requests.

use std::path::Path;

use super::*;

const OPTIONS: &str = "sse=aws:kms&kms_key=alias/locks&expected_bucket_owner=111122223333&requester_pays=on";

/// Opens the bucket of `url` at `endpoint`, with a client that is created as usual. With `amazons`, the endpoint is
/// treated as Amazon's own.
fn opened(url: &str, endpoint: Option<&str>, amazons: bool) -> S3Register {
    let location = Location::from_url(StoreUrl::parse(url).unwrap(), &mut StoreOptions::default()).unwrap();
    let env = Env::system();
    let credentials = test_credentials();
    let (sdk, network) = location.access.applied(&careful(&machine(), &credentials), None).unwrap();
    let mut config = location.client_config(&sdk, endpoint.filter(|_| !amazons));
    if let Some(endpoint) = endpoint.filter(|_| amazons) {
        config = config.endpoint_url(endpoint).force_path_style(true);
    }
    let endpoint = endpoint.filter(|_| !amazons).map(str::to_owned);
    let target =
        Target { bucket: location.bucket.clone(), region: "eu-west-1".into(), endpoint, address: None };
    let requests = Requests::new(env, credentials, network);
    S3Register::new(Client::from_conf(config.build()), requests, target, &location, Contents::Records)
}

async fn good() -> Server {
    Server::start(|seen| {
        Reply::Answer(match seen.line.split(' ').next() {
            Some("GET") if seen.line.contains("list-type") => {
                answer("200 OK", "", "<ListBucketResult></ListBucketResult>")
            }
            Some("DELETE") => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            Some("HEAD") => "HTTP/1.1 200 OK\r\nETag: \"a\"\r\n\r\n".to_owned(),
            _ => answer("200 OK", "ETag: \"a\"\r\n", "{\"a\":1}"),
        })
    })
    .await
}

/// Returns the requests for a write, a read, a head, a delete and a listing.
async fn each_operation(server: &Server, register: &S3Register) -> Vec<Seen> {
    register.write("x.lock", Precondition::Absent, value().into()).await.unwrap();
    register.read("x.lock").await.unwrap();
    register.head("x.lock").await.unwrap();
    register.delete("x.lock", &v1()).await.unwrap();
    register.list("").try_collect::<Vec<_>>().await.unwrap();
    server.requests()
}

#[tokio::test]
async fn every_request_names_owner_and_payer() {
    let server = good().await;
    let register = opened(&format!("s3://bucket/p?{OPTIONS}"), Some(&server.url), false);
    let requests = each_operation(&server, &register).await;
    assert_eq!(requests.len(), 5);
    for seen in &requests {
        assert!(seen.has("x-amz-expected-bucket-owner: 111122223333"), "{seen:?}");
        assert!(seen.has("x-amz-request-payer: requester"), "{seen:?}");
    }
    let register = opened("s3://bucket/p", Some(&server.url), false);
    for seen in each_operation(&server, &register).await {
        assert!(!seen.head.contains("owner") && !seen.head.contains("payer"), "{seen:?}");
    }
}

#[tokio::test]
async fn only_writes_set_encryption() {
    let server = good().await;
    for (options, sse, key) in [
        ("sse=AES256", "aes256", None),
        ("sse=aws:kms", "aws:kms", None),
        ("sse=aws:kms:dsse&kms_key=alias/locks", "aws:kms:dsse", Some("alias/locks")),
        ("kms_key=alias/locks", "aws:kms", Some("alias/locks")),
    ] {
        let register = opened(&format!("s3://bucket/p?{options}"), Some(&server.url), false);
        let requests = each_operation(&server, &register).await;
        let [put, others @ ..] = &requests[..] else { panic!() };
        assert!(put.has(&format!("x-amz-server-side-encryption: {sse}")), "{options}: {put:?}");
        let sent = put
            .head
            .lines()
            .find_map(|line| line.strip_prefix("x-amz-server-side-encryption-aws-kms-key-id: "));
        assert_eq!(sent, key, "{options}");
        assert!(others.iter().all(|seen| !seen.head.contains("server-side")), "{options}: {others:?}");
    }
    let kms = opened("s3://bucket/p?sse=aws:kms", Some(&server.url), false);
    assert_eq!(kms.version_of(b"x"), None, "the ETag of what KMS encrypts is not the MD5 of the bytes");
}

/// A bucket with Object Lock refuses a body without a checksum. Many compatible stores support none of these headers.
#[tokio::test]
async fn a_checksum_is_sent_to_amazon_and_on_request() {
    let crc32 = "x-amz-checksum-crc32: ";
    let server = good().await;
    for (options, amazons, header) in [
        ("", true, Some(crc32)),
        ("", false, None),
        ("?checksum=none", true, None),
        ("?checksum=crc32", false, Some(crc32)),
        ("?checksum=crc32c", false, Some("x-amz-checksum-crc32c: ")),
        ("?checksum=sha256", true, Some("x-amz-checksum-sha256: ")),
        ("?checksum=md5", false, Some("content-md5: ")),
        ("?checksum=md5", true, Some("content-md5: ")),
    ] {
        let register = opened(&format!("s3://bucket/p{options}"), Some(&server.url), amazons);
        let requests = each_operation(&server, &register).await;
        let [put, others @ ..] = &requests[..] else { panic!() };
        let sent: Vec<_> = put
            .head
            .lines()
            .filter(|line| line.starts_with("x-amz-checksum-") || line.starts_with("content-md5"))
            .collect();
        assert_eq!(sent.len(), header.iter().len(), "{options} {amazons}: {sent:?}");
        assert!(header.is_none_or(|header| sent[0].starts_with(header)), "{options} {amazons}: {sent:?}");
        // The checksum is in a header, and not in a trailer after a chunked body.
        assert_eq!(put.body, value(), "{options} {amazons}");
        assert!(!put.head.contains("aws-chunked") && !put.head.contains("trailer"), "{put:?}");
        assert!(others.iter().all(|seen| !seen.head.contains("x-amz-checksum-")), "{options}: {others:?}");
    }
    // The checksum of `{"a":1}`, as zlib computes it. The scripted server converts all headers to lower case.
    let register = opened("s3://bucket/p", Some(&server.url), true);
    let [put, ..] = &each_operation(&server, &register).await[..] else { panic!() };
    assert!(put.has("x-amz-checksum-crc32: vhusrw=="), "{put:?}");
}

/// Returns the host of Amazon's own endpoint that a client connects to, as its proxy sees it.
async fn host_of(url: &str) -> String {
    let proxy = Server::always(answer("403 Forbidden", "", "")).await;
    let mark = if url.contains('?') { '&' } else { '?' };
    let register = opened(&format!("{url}{mark}proxy={}", proxy.url), None, true);
    let error = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)), "there was no connection: {error:?}");
    let [connect, ..] = &proxy.requests()[..] else { panic!("{error:?}") };
    connect.line.strip_prefix("CONNECT ").unwrap().trim_end_matches(":443").to_owned()
}

#[tokio::test]
async fn the_options_choose_among_amazons_endpoints() {
    for (url, host) in [
        ("s3://bkt", "bkt.s3.eu-west-1.amazonaws.com"),
        ("s3://bkt?fips=on", "bkt.s3-fips.eu-west-1.amazonaws.com"),
        ("s3://bkt?dualstack=on", "bkt.s3.dualstack.eu-west-1.amazonaws.com"),
        ("s3://bkt?fips=on&dualstack=on", "bkt.s3-fips.dualstack.eu-west-1.amazonaws.com"),
        (
            "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/team-locks/p",
            "team-locks-123456789012.s3-accesspoint.eu-west-1.amazonaws.com",
        ),
    ] {
        assert_eq!(host_of(url).await, host, "{url}");
    }
}

#[tokio::test]
async fn every_request_goes_through_the_proxy() {
    let proxy = good().await;
    let endpoint = "http://s3.example.test";
    let url = format!("s3://bucket/p?proxy={}", proxy.url);
    let requests = each_operation(&proxy, &opened(&url, Some(endpoint), false)).await;
    assert_eq!(requests.len(), 5);
    for seen in requests {
        let (_, target) = seen.line.split_once(' ').unwrap();
        assert!(target.starts_with(endpoint), "{seen:?}");
        assert!(seen.has("host: s3.example.test"), "{seen:?}");
    }
}

#[tokio::test]
async fn unencrypted_requests_to_loopback_use_no_proxy() {
    let (server, proxy) = (good().await, good().await);
    let register = opened(&format!("s3://bucket/p?proxy={}", proxy.url), Some(&server.url), false);
    assert_eq!(each_operation(&server, &register).await.len(), 5);
    assert!(proxy.requests().is_empty());
}

#[tokio::test]
async fn without_a_session_a_write_is_not_applied() {
    for (status, code, kind) in [
        ("503 Slow Down", "SlowDown", ErrorKind::Unavailable),
        ("500 Internal Server Error", "InternalError", ErrorKind::Unavailable),
        ("400 Bad Request", "RequestTimeout", ErrorKind::Unavailable),
        ("412 Precondition Failed", "PreconditionFailed", ErrorKind::Unavailable),
        ("403 Forbidden", "AccessDenied", ErrorKind::Denied),
        ("404 Not Found", "NoSuchBucket", ErrorKind::Invalid),
    ] {
        let server = Server::always(refused(status, "", code)).await;
        let register = opened("s3://bkt--euw1-az1--x-s3/p", Some(&server.url), true);
        let error = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
        assert!(matches!(error, StoreError::NotApplied(_)), "{code}: {error:?}");
        assert_eq!(error.fault().kind, kind, "{code}: {error:?}");
        assert!(server.requests().iter().all(|seen| seen.line.contains("?session")), "{code}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let register = opened("s3://bkt--euw1-az1--x-s3/p", Some(&format!("http://{closed}")), true);
    let error = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn a_directory_bucket_is_listed_by_whole_folders() {
    let session = "<CreateSessionResult><Credentials><SessionToken>t</SessionToken><SecretAccessKey>s</SecretAccessKey>\
                   <AccessKeyId>a</AccessKeyId><Expiration>2199-01-01T00:00:00Z</Expiration></Credentials></CreateSessionResult>";
    let keys = "<Contents><Key>p/team/a.lock</Key></Contents><Contents><Key>p/team/b.lock</Key></Contents>\
                <Contents><Key>other.lock</Key></Contents>";
    let server = Server::start(move |seen| {
        Reply::Answer(match seen.line.contains("?session") {
            true => answer("200 OK", "", session),
            false => answer("200 OK", "", &format!("<ListBucketResult>{keys}</ListBucketResult>")),
        })
    })
    .await;
    for (url, prefix, asked, found) in [
        ("/p", "team/b", "&prefix=p%2Fteam%2F", &["team/b.lock"][..]),
        ("/p", "te", "&prefix=p%2F", &["team/a.lock", "team/b.lock"]),
        ("", "oth", "", &["other.lock"]),
    ] {
        let register = opened(&format!("s3://bkt--euw1-az1--x-s3{url}"), Some(&server.url), true);
        assert!(!register.capabilities().trusted);
        assert_eq!(register.list(prefix).try_collect::<Vec<_>>().await.unwrap(), found, "{url} {prefix}");
        let requests = server.requests();
        let [.., list] = &requests[..] else { panic!() };
        assert!(list.line.ends_with(&format!("?list-type=2{asked}")), "{}", list.line);
    }
}

/// Opens a bucket at `endpoint`, and trusts only the certificates in `authority`.
fn trusting(authority: &Path, endpoint: &str) -> S3Register {
    opened(&format!("s3://bucket/p?ca={}", authority.display()), Some(endpoint), false)
}

#[tokio::test]
async fn a_private_authority_is_trusted_only_with_its_ca_file() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [authority, wrong] = [&folder, &other].map(|folder| folder.path().join("ca.pem"));
    let script = |_: &Seen| Reply::Answer(answer("200 OK", "ETag: \"a\"\r\n", "{}"));
    let server = Server::start_tls(folder.path(), script).await;
    let _other = Server::start_tls(other.path(), script).await;
    trusting(&authority, &server.url).read("x.lock").await.unwrap().unwrap();
    assert_eq!(server.requests().len(), 1);

    let write = async |register: S3Register| {
        let error = register.write("x.lock", Precondition::Absent, value().into()).await.unwrap_err();
        assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
        assert!(error.fault().help.as_ref().unwrap().contains("ca=FILE"), "{error:?}");
        error.to_string()
    };
    let said = write(trusting(&wrong, &server.url)).await;
    assert!(said.contains(&format!("{wrong:?}")) && said.contains(&server.url), "{said}");
    // The machine trusts neither authority.
    write(opened("s3://bucket/p", Some(&server.url), false)).await;
    assert!(server.requests().is_empty(), "nothing is sent to an untrusted server");
}

/// An examination uses a separate client for each address.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_authority_of_a_file_is_trusted_at_each_address() {
    let folder = tempfile::tempdir().unwrap();
    let script = |_: &Seen| Reply::Answer(answer("200 OK", "ETag: \"a\"\r\n", "{}"));
    let server = Server::start_tls(folder.path(), script).await;
    let port = server.url.rsplit_once(':').unwrap().1;
    let _second = TcpListener::bind(format!("127.0.0.2:{port}")).await.unwrap();
    let endpoint = format!("https://localhost:{port}");
    let mut register = trusting(&folder.path().join("ca.pem"), &endpoint);
    register.lookup = |_, port| {
        let addresses = [1, 2].map(|n| std::net::SocketAddr::from(([127, 0, 0, n], port))).to_vec();
        Box::pin(async move { Ok(addresses) })
    };
    let fronts = register.fronts().await.unwrap().answering;
    fronts[0].1.read("x.lock").await.unwrap().unwrap();
    let [read] = &server.requests()[..] else { panic!() };
    assert!(read.has(&format!("host: localhost:{port}")), "{read:?}");
}
