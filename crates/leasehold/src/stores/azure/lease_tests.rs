//! Tests leases against a scripted server: the requests that are sent, and the meaning of each response.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::TryStreamExt;

use super::config::Source;
use super::signature::lease_id;
use super::wire_tests::{HEADERS, refused, register_in};
use super::*;
use crate::clock::TestClock;
use crate::diagnosis::{Diagnose, Examination};
use crate::lease::{
    AcquireOutcome, Claim, Evicted, Grant, Holder, Id, LossReason, Released, Renewal, State, Ttl, Watch,
    deadline,
};
use crate::stores::over_http::scripted::{Reply, Seen, Server, answer};
use crate::types::LockName;

const ID: &str = "0123456789abcdef0123456789abcdef";
const GUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

type Store = NativeStore<AzureLeases>;

fn store(server: &Server) -> Store {
    let env = Env::seeded(Arc::new(TestClock::default()), 1);
    let mut blobs = register_in(server, Source::Anonymous, env);
    blobs.keys = Keys::verbatim("pre/fix");
    NativeStore::new(AzureLeases::new(blobs))
}

fn claim(store: &Store, seconds: u64) -> Claim {
    let ttl = Ttl::new(Duration::from_secs(seconds)).unwrap();
    let holder = Holder { name: "ann".into(), host: "h".into(), pid: 7, ..Holder::default() };
    let mut claim = Claim::new(store.env(), LockName::new("x").unwrap(), ttl, holder);
    claim.id = ID.parse().unwrap();
    claim
}

fn grant(store: &Store) -> Grant {
    let Claim { name, id, ttl, .. } = claim(store, 30);
    let deadline = deadline(ttl, store.env().now());
    Grant {
        name,
        token: signature::number(id),
        after: None,
        id,
        ttl,
        deadline,
        at_limit: false,
        size: None,
        memo: None,
    }
}

/// Returns the kind of a request.
fn step(seen: &Seen) -> &'static str {
    let action = |name: &str| seen.has(&format!("x-ms-lease-action: {name}"));
    match seen.line.split(' ').next() {
        Some("PUT") if action("acquire") => "acquire",
        Some("PUT") if action("renew") => "renew",
        Some("PUT") if action("release") => "release",
        Some("PUT") if seen.line.ends_with("?comp=metadata") => "sign",
        Some("PUT") => "create",
        Some("HEAD") if seen.head.contains("x-ms-lease-id") => "verify",
        Some("HEAD") => "head",
        _ => "other",
    }
}

fn steps(server: &Server) -> Vec<&'static str> {
    server.requests().iter().map(step).collect()
}

fn leased(id: &str) -> String {
    answer("201 Created", &format!("{HEADERS}x-ms-lease-id: {id}\r\n"), "")
}

/// Returns a response to a HEAD request. Its `Content-Length` is the length of the blob.
fn blob(state: &str, more: &str) -> String {
    answer("200 OK", &format!("{HEADERS}x-ms-lease-state: {state}\r\n{more}"), "")
}

fn signed_by(id: &str, name: &str) -> String {
    let json = format!(r#"{{"id":"{id}","holder":{{"name":"{name}","host":"h","pid":7}}}}"#);
    format!("x-ms-meta-leasehold_holder: {json}\r\n")
}

/// Responds as Azure does for a blob that only we lease.
fn ours(seen: &Seen) -> Reply {
    Reply::Answer(match step(seen) {
        "acquire" | "renew" => leased(GUID),
        "release" | "sign" => answer("200 OK", HEADERS, ""),
        "create" => answer("201 Created", HEADERS, ""),
        _ => blob("leased", &signed_by(ID, "ann")),
    })
}

#[tokio::test]
async fn a_lock_is_a_lease_of_the_blob_with_its_name() {
    let exists = AtomicUsize::new(0);
    let server = Server::start(move |seen| match step(seen) {
        "acquire" if exists.load(Ordering::Relaxed) == 0 => Reply::Answer(refused("404 X", "BlobNotFound")),
        "create" => {
            exists.store(1, Ordering::Relaxed);
            ours(seen)
        }
        "verify" => Reply::Answer(blob("leased", "x-ms-meta-other: kept\r\n")),
        _ => ours(seen),
    })
    .await;
    let store = store(&server);
    let mut asked = claim(&store, 20);
    asked.ttl = Ttl::new(Duration::from_millis(19_001)).unwrap();
    asked.lock_delay = Duration::from_secs(5);
    let AcquireOutcome::Granted(mut grant) = store.try_acquire(&asked).await.unwrap() else { panic!() };
    let requests = server.requests();
    let [first, create, again, _, sign] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!(
        requests.iter().map(step).collect::<Vec<_>>(),
        ["acquire", "create", "acquire", "verify", "sign"]
    );
    assert_eq!(first.line, "PUT /acct1/locks/pre/fix/x?comp=lease");
    for header in [&format!("x-ms-proposed-lease-id: {GUID}"), "x-ms-lease-duration: 25", "content-length: 0"]
    {
        assert!(first.has(header) && again.has(header), "{header}: {first:?} {again:?}");
    }
    assert!(create.has("if-none-match: *") && create.body.is_empty(), "{create:?}");
    assert!(sign.has(&format!("x-ms-lease-id: {GUID}")) && sign.has("x-ms-meta-other: kept"), "{sign:?}");
    let holder =
        r#"x-ms-meta-leasehold_holder: {"id":"0123456789abcdef0123456789abcdef","holder":{"name":"ann""#;
    assert!(sign.head.contains(holder), "{sign:?}");
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
    let [renew, release] = &server.requests()[..] else { panic!() };
    for (seen, action) in [(renew, "renew"), (release, "release")] {
        assert_eq!((step(seen), seen.has(&format!("x-ms-lease-id: {GUID}"))), (action, true), "{seen:?}");
    }
}

#[tokio::test]
async fn azure_has_leases_of_15_to_60_seconds_only() {
    let server = Server::start(ours).await;
    let store = store(&server);
    for (ttl, delay) in [(14, 0), (61, 0), (30, 31), (10, 5)] {
        let mut claim = claim(&store, ttl);
        claim.lock_delay = Duration::from_secs(delay);
        let error = store.try_acquire(&claim).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Invalid, "{ttl} {delay}: {error:?}");
        assert!(error.to_string().contains("15 s to 60 s"), "{error}");
    }
    assert_eq!(steps(&server), [""; 0]);
    for ttl in [15, 60] {
        assert!(matches!(store.try_acquire(&claim(&store, ttl)).await.unwrap(), AcquireOutcome::Granted(_)));
    }
}

/// A server that ignores the parameters of a lease would report success to every client.
#[tokio::test]
async fn a_response_without_the_id_of_the_lease_grants_nothing() {
    for headers in [HEADERS.to_owned(), format!("{HEADERS}x-ms-lease-id: {}\r\n", GUID.replace('0', "f"))] {
        let server = Server::always(answer("201 Created", &headers, "")).await;
        let store = store(&server);
        let error = store.try_acquire(&claim(&store, 30)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
        let error = store.renew(&mut grant(&store)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
    }
}

/// Tests what other processes see of the holder of a leased blob.
#[tokio::test]
async fn the_holder_is_shown_only_while_the_lease_has_its_id() {
    let theirs = "f".repeat(32);
    for (state, verified, holder) in [
        ("leased", blob("leased", &signed_by(&theirs, "bob")), Some("bob")),
        ("leased", refused("412 X", "LeaseIdMismatchWithBlobOperation"), None),
        ("breaking", refused("412 X", "LeaseNotPresentWithBlobOperation"), None),
    ] {
        let server = Server::start(move |seen| {
            Reply::Answer(match step(seen) {
                "acquire" => refused("409 X", "LeaseAlreadyPresent"),
                "verify" => verified.clone(),
                _ => blob(state, &signed_by(&"f".repeat(32), "bob")),
            })
        })
        .await;
        let store = store(&server);
        let AcquireOutcome::Held(held) = store.try_acquire(&claim(&store, 30)).await.unwrap() else {
            panic!()
        };
        assert_eq!(held.holder.as_ref().map(|holder| holder.name.as_str()), holder);
        assert_eq!(held.foreign.is_none(), holder.is_some());
        let sent = ["acquire", "head", "verify", "head"];
        assert_eq!(steps(&server), sent[..if holder.is_some() { 3 } else { 4 }]);
    }
}

#[tokio::test]
async fn a_lease_that_ends_between_two_reads_is_not_foreign() {
    let heads = AtomicUsize::new(0);
    let server = Server::start(move |seen| {
        Reply::Answer(match step(seen) {
            "verify" => refused("412 X", "LeaseNotPresentWithBlobOperation"),
            _ if heads.fetch_add(1, Ordering::Relaxed) == 0 => blob("leased", &signed_by(ID, "ann")),
            _ => blob("expired", &signed_by(ID, "ann")),
        })
    })
    .await;
    let store = store(&server);
    assert_eq!(store.inspect(&LockName::new("x").unwrap()).await.unwrap().state, State::Free);
    assert_eq!(steps(&server), ["head", "verify", "head"]);
}

#[tokio::test]
async fn a_lease_of_another_program_is_held_and_never_ended() {
    for kind in ["fixed", "infinite"] {
        let server = Server::start(move |seen| {
            Reply::Answer(match step(seen) {
                "acquire" => refused("409 X", "LeaseAlreadyPresent"),
                _ => blob("leased", &format!("x-ms-lease-duration: {kind}\r\n")),
            })
        })
        .await;
        let store = store(&server);
        let claim = claim(&store, 30);
        let AcquireOutcome::Held(held) = store.try_acquire(&claim).await.unwrap() else { panic!() };
        assert_eq!(held.to_string().contains("without an end"), kind == "infinite", "{held}");
        assert_eq!(
            store.evict(&claim.name, signature::number(claim.id), None).await.unwrap(),
            Evicted::Changed
        );
        assert_eq!(steps(&server), ["acquire", "head", "head"]);
    }
}

/// The blob may be the state of another program, so not even its metadata is changed.
#[tokio::test]
async fn a_blob_with_contents_is_leased_and_not_written() {
    let server = Server::start(|seen| {
        Reply::Answer(match step(seen) {
            "acquire" => leased(GUID),
            _ => blob("leased", "").replace("Content-Length: 0", "Content-Length: 7"),
        })
    })
    .await;
    let store = store(&server);
    assert!(matches!(store.try_acquire(&claim(&store, 30)).await.unwrap(), AcquireOutcome::Granted(_)));
    assert_eq!(steps(&server), ["acquire", "verify"]);
}

#[tokio::test]
async fn a_lease_that_has_ended_is_lost() {
    for (status, code, reason) in [
        ("409 X", "LeaseIdMismatchWithLeaseOperation", LossReason::Ended),
        ("409 X", "LeaseNotPresentWithLeaseOperation", LossReason::Ended),
        ("409 X", "LeaseIsBrokenAndCannotBeRenewed", LossReason::Ended),
        ("412 X", "LeaseLost", LossReason::Ended),
        ("404 X", "BlobNotFound", LossReason::Deleted),
        ("404 X", "ContainerNotFound", LossReason::Deleted),
    ] {
        let server = Server::start(move |seen| {
            Reply::Answer(match step(seen) {
                "renew" | "release" => refused(status, code),
                _ => blob("available", ""),
            })
        })
        .await;
        let store = store(&server);
        let Renewal::Lost(loss) = store.renew(&mut grant(&store)).await.unwrap() else { panic!("{code}") };
        assert_eq!(loss.reason, reason, "{code}");
        assert_eq!(store.release(&mut grant(&store), None).await.unwrap(), Released::AlreadyLost, "{code}");
    }
}

/// A lease that another program is breaking has its id until it ends, but is neither renewed nor acquired again.
#[tokio::test]
async fn a_lease_that_is_being_broken_is_not_held_by_another() {
    let server = Server::start(|seen| {
        Reply::Answer(match step(seen) {
            "renew" => refused("409 X", "LeaseIsBrokenAndCannotBeRenewed"),
            "acquire" => refused("409 X", "LeaseIsBreakingAndCannotBeAcquired"),
            _ => blob("breaking", &signed_by(ID, "ann")),
        })
    })
    .await;
    let store = store(&server);
    let Renewal::Lost(loss) = store.renew(&mut grant(&store)).await.unwrap() else { panic!("renewed") };
    assert_eq!(loss.reason, LossReason::Ended, "{loss}");
    let outcome = store.try_acquire(&claim(&store, 30)).await.unwrap();
    assert!(
        matches!(&outcome, AcquireOutcome::Lost(loss) if loss.reason == LossReason::Ended),
        "not held by itself: {outcome:?}"
    );
}

#[tokio::test]
async fn a_lease_that_another_client_has_by_now_was_taken_over() {
    let server = Server::start(|seen| {
        Reply::Answer(match step(seen) {
            "renew" => refused("409 X", "LeaseIdMismatchWithLeaseOperation"),
            _ => blob("leased", &signed_by(&"f".repeat(32), "bob")),
        })
    })
    .await;
    let store = store(&server);
    let Renewal::Lost(loss) = store.renew(&mut grant(&store)).await.unwrap() else { panic!() };
    let LossReason::TakenOver { by } = loss.reason else { panic!("{loss:?}") };
    assert_eq!(by.holder.unwrap().name, "bob");
}

/// The eviction ends the lease of the given holder, by its id, and not the lease of a successor.
#[tokio::test]
async fn an_eviction_ends_the_lease_of_that_holder_only() {
    for (answered, expected) in
        [(None, Evicted::Evicted), (Some("LeaseIdMismatchWithLeaseOperation"), Evicted::Changed)]
    {
        let server = Server::start(move |seen| match (step(seen), answered) {
            ("release", Some(code)) => Reply::Answer(refused("409 X", code)),
            _ => ours(seen),
        })
        .await;
        let store = store(&server);
        let (name, id) = (LockName::new("x").unwrap(), ID.parse::<Id>().unwrap());
        let token = signature::number(id);
        assert_eq!(store.evict(&name, token, None).await.unwrap(), expected);
        let [_, release] = &server.requests()[..] else { panic!() };
        let header = format!("x-ms-lease-id: {}", lease_id(id).to_str().unwrap());
        assert!(step(release) == "release" && release.has(&header), "{release:?}");
        let other = crate::lease::Token::new(token.get() + 1).unwrap();
        assert_eq!(store.evict(&name, other, None).await.unwrap(), Evicted::Changed);
        assert_eq!(steps(&server), ["head"]);
    }
}

#[tokio::test]
async fn a_waiter_returns_when_the_lease_is_gone_or_changes_hands() {
    for (first, then) in [
        ("leased", blob("expired", "")),
        ("leased", blob("leased", &signed_by(&"e".repeat(32), "eve"))),
        ("breaking", blob("evicted", "")),
    ] {
        let turns = AtomicUsize::new(0);
        let server = Server::start(move |seen| {
            Reply::Answer(match (step(seen), turns.fetch_add(1, Ordering::Relaxed)) {
                ("acquire", _) => refused("409 X", "LeaseIsBreakingAndCannotBeAcquired"),
                (_, 0..4) => blob(first, &signed_by(&"f".repeat(32), "bob")),
                _ => then.clone(),
            })
        })
        .await;
        let store = store(&server);
        let claim = claim(&store, 30);
        let AcquireOutcome::Held(held) = store.try_acquire(&claim).await.unwrap() else { panic!() };
        store.turn(&claim, &held).await.unwrap();
        assert_eq!(steps(&server), ["acquire", "head", "verify", "head", "head"]);
    }
}

#[tokio::test]
async fn a_blob_without_a_lock_name_does_not_break_a_listing() {
    let names = ["pre/fix/a", "pre/fix/", "pre/fix/b//c", "pre/fix/\u{202e}", "pre/fix/d%5Ce"];
    let blobs: String = names.iter().map(|name| format!("<Blob><Name>{name}</Name></Blob>")).collect();
    let listing = format!("<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>");
    let server = Server::always(answer("200 OK", HEADERS, &listing)).await;
    let store = store(&server);
    let names: Vec<LockName> = store.list("").try_collect().await.unwrap();
    assert_eq!(names.iter().map(LockName::as_str).collect::<Vec<_>>(), ["a", "d\\e"]);
    store.inspect(&names[1]).await.ok();
    assert_eq!(server.requests()[1].line, "HEAD /acct1/locks/pre/fix/d%255Ce");
}

#[tokio::test]
async fn what_a_lease_cannot_do_is_refused() {
    let server = Server::start(ours).await;
    let store = store(&server);
    let error = store.release(&mut grant(&store), Some(Duration::from_secs(1))).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported);
    assert_eq!(store.capabilities().to_string(), "");
    assert_eq!(steps(&server), [""; 0], "nothing was released");
    let mut examination = Examination::default();
    let of = async |examination: &Examination| {
        let examined = store.examine(examination).await;
        examined.findings.iter().find(|finding| finding.check == "lease-duration").unwrap().verdict
    };
    assert_eq!(of(&examination).await, crate::diagnosis::CheckStatus::Passed);
    examination.ttl = Ttl::new(Duration::from_secs(120)).unwrap();
    assert_eq!(of(&examination).await, crate::diagnosis::CheckStatus::Failed);
}

#[tokio::test]
async fn a_lock_without_a_lease_is_free() {
    for free in
        [blob("available", &signed_by(ID, "ann")), blob("expired", ""), refused("404 X", "BlobNotFound")]
    {
        let server = Server::always(free).await;
        let store = store(&server);
        let status = store.inspect(&LockName::new("x").unwrap()).await.unwrap();
        assert_eq!((status.state, status.token), (State::Free, None));
    }
}
