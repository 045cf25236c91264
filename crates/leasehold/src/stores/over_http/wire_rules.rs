//! What every store over HTTP must do with its requests and their responses. The `wire_tests` of each store call these
//! functions with a request of a new client to the server at a URL.
#![allow(clippy::unwrap_used, reason = "only tests use it")]

use std::time::Duration;

use tokio::net::TcpListener;

use super::scripted::{Reply, Seen, Server};
use crate::clock::StoreTime;
use crate::error::{ErrorKind, StoreError};

/// Sunday, 06 Nov 1994 08:49:37 GMT.
const DATE_US: u64 = 784_111_777_000_000;

/// Status, headers and code of a refusal; whether the write may be applied, the kind of the error, and the pause that it
/// asks for, in seconds.
pub(in crate::stores) type Row = (&'static str, &'static str, &'static str, bool, ErrorKind, Option<u64>);

pub(in crate::stores) async fn no_error_is_retried_inside_the_client(
    refused: fn(&str, &str, &str) -> String,
    rows: &[Row],
    write: impl AsyncFn(&str) -> StoreError,
) {
    for (status, headers, code, maybe, kind, wait) in rows {
        let server = Server::always(refused(status, headers, code)).await;
        let error = write(&server.url).await;
        assert_eq!(matches!(error, StoreError::MaybeApplied(_)), *maybe, "{error:?}");
        assert_eq!((error.fault().kind, error.fault().retry_after), (*kind, wait.map(Duration::from_secs)));
        assert!(error.to_string().contains(code), "{error:?}");
        assert_eq!(server.requests().len(), 1, "{status} {code}");
    }
}

pub(in crate::stores) async fn only_a_write_that_was_sent_can_have_an_unknown_effect(
    write: impl AsyncFn(&str) -> StoreError,
    read: impl AsyncFn(&str) -> StoreError,
) {
    for script in [(|_| Reply::Hang) as fn(&Seen) -> Reply, |_| Reply::Silence] {
        let server = Server::start(script).await;
        let error = write(&server.url).await;
        assert!(matches!(error, StoreError::MaybeApplied(_)) && error.is_transient(), "{error:?}");
        assert_eq!(server.requests().len(), 1, "neither the client nor its connections send it again");
    }
    let error = read(&Server::start(|_| Reply::Hang).await.url).await;
    assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    for host in [closed.as_str(), "no-such-host.invalid"] {
        let error = write(&format!("http://{host}")).await;
        assert!(matches!(error, StoreError::NotApplied(_)) && error.is_transient(), "{error:?}");
        assert!(error.to_string().contains(host), "{error:?}");
    }
}

/// `times` sends a request, and returns the store's time before and after it. The rows say whether a response shows it.
pub(in crate::stores) async fn only_responses_of_the_store_show_its_time(
    rows: impl IntoIterator<Item = (String, bool)>,
    times: impl AsyncFn(&str) -> [Option<StoreTime>; 2],
) {
    for (reply, dated) in rows {
        let [before, time] = times(&Server::always(reply.clone()).await.url).await;
        assert_eq!((before, time.is_some()), (None, dated), "{reply}");
        if let Some(time) = time {
            assert!(time.lo_us >= DATE_US && time.hi_us >= time.lo_us + 1_000_000, "{time:?}");
        }
    }
}

/// A listing of `pages` is `names`, also if the server refuses each request once. It fails if a page names itself as the
/// next one.
pub(in crate::stores) async fn listings_are_read_page_by_page(
    pages: [String; 2],
    asks_for_the_second: fn(&Seen) -> bool,
    refusal: String,
    names: [&str; 2],
    list: impl AsyncFn(&str) -> Result<Vec<String>, StoreError>,
) {
    let [first, last] = pages;
    let endless = Server::always(first.clone()).await;
    let script = move |seen: &Seen| {
        Reply::Answer(if asks_for_the_second(seen) { last.clone() } else { first.clone() })
    };
    let unsteady = Server::unsteady(refusal, script.clone()).await;
    for (server, requests) in [(Server::start(script).await, 2), (unsteady, 4)] {
        assert_eq!(list(&server.url).await.unwrap(), names);
        assert_eq!(server.requests().len(), requests);
    }
    let error = list(&endless.url).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{error:?}");
    assert_eq!(endless.requests().len(), 2);
}
