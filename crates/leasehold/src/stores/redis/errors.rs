//! Maps Redis's errors: whether the script may have taken effect, and what the user can do.

use redis::RedisError;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::printable;
use crate::stores::certificates;
use crate::stores::hosts::MAX_SHOWN;

/// The help for slots without a server.
pub(super) const FIX: &str =
    "start their servers, or assign the slots to others: see redis-cli --cluster check HOST:PORT";

/// The codes of errors with which the server refuses a script before the script has written anything. In a cluster, a
/// server with MOVED, ASK, TRYAGAIN or CLUSTERDOWN has not run the script at all.
const REFUSED: &[&str] = &[
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
];

/// Returns the error of a request that was sent.
pub(super) fn of_request(error: &RedisError) -> StoreError {
    match error.code() {
        Some(code) => {
            let fault = of_answer(code, error.detail().unwrap_or(""));
            // If the server refuses a later command of a script, the earlier writes remain.
            if REFUSED.contains(&code) { fault.not_applied() } else { fault.maybe_applied() }
        }
        // The connection broke. The script may still be running.
        None => {
            let why = printable(&error.to_string(), MAX_SHOWN);
            Fault::unavailable(format!("the connection to Redis was lost: {why}")).maybe_applied()
        }
    }
}

/// Returns whether another connection may accept the request, because this server is no longer the primary or cannot
/// write, or because this connection is no longer logged in.
pub(super) fn is_of_this_server(error: &RedisError) -> bool {
    error.code().is_none_or(|code| {
        ["CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOAUTH", "NOREPLICAS", "READONLY"]
            .contains(&code)
            || error.detail().is_some_and(|detail| detail.contains("READONLY"))
    })
}

/// Returns the error of a connection that could not be opened. No script was sent.
pub(super) fn of_connection(error: &RedisError, host: &str) -> Fault {
    match error.code() {
        Some(code) => {
            let mut fault = of_answer(code, error.detail().unwrap_or(""));
            fault.message = format!("{host}: {}", fault.message);
            fault
        }
        None if error.kind() == redis::ErrorKind::AuthenticationFailed => {
            Fault::new(ErrorKind::Denied, format!("{host}: {}", printable(&error.to_string(), MAX_SHOWN)))
                .with_help("check the user and the password in the store URL")
        }
        None => {
            let why = printable(&error.to_string(), MAX_SHOWN);
            let message = format!("no connection to Redis at {host}: {why}");
            // TLS 1.3 reports this only after the handshake.
            match certificates::help_for_both(&why) {
                Some(help) => Fault::new(ErrorKind::Invalid, message).with_help(help),
                None => Fault::unavailable(message),
            }
        }
    }
}

/// Returns the fault for an error response of the server.
fn of_answer(code: &str, detail: &str) -> Fault {
    let message = format!("Redis reports: {} {}", printable(code, 20), printable(detail, MAX_SHOWN));
    let says = |words: &str| detail.contains(words);
    let (kind, help) = match code {
        "READONLY" => return not_primary(&message),
        "NOAUTH" => (
            ErrorKind::Denied,
            "name the password in the store URL: password_env=NAME or password_file=/PATH",
        ),
        "WRONGPASS" => (ErrorKind::Denied, "check the user and the password in the store URL"),
        "NOPERM" => (
            ErrorKind::Denied,
            "the user needs more permissions: `leasehold doctor` lists those that leasehold needs",
        ),
        _ if says("ACLs rules")
            || says("NOPERM")
            || says("no permissions")
            || says("user executing the script") =>
        {
            (
                ErrorKind::Denied,
                "the user needs more permissions: `leasehold doctor` lists those that leasehold needs",
            )
        }
        _ if code == "OOM" || says("-OOM") => {
            return Fault::unavailable(message)
                .with_help("Redis has reached maxmemory: raise it, or delete keys");
        }
        _ if code == "NOREPLICAS" || says("-NOREPLICAS") => {
            return Fault::unavailable(message)
                .with_help("fewer replicas are connected than min-replicas-to-write requires");
        }
        _ if code == "MISCONF" || says("-MISCONF") => {
            return Fault::unavailable(message)
                .with_help("Redis cannot write to its disk, and refuses writes");
        }
        "WRONGTYPE" => (
            ErrorKind::Corrupt,
            "a key of leasehold has another type: another program uses the same keys; use another prefix=... in the store URL",
        ),
        "CROSSSLOT" => return cluster(),
        "CLUSTERDOWN" => return without_server(&message),
        _ if says("cluster support disabled") => {
            (ErrorKind::Unsupported, "the server is not part of a cluster: leave out cluster=on")
        }
        _ if says("READONLY") => return not_primary(&message),
        _ if says("DB index is out of range") => {
            (ErrorKind::Invalid, "the path of the store URL is the number of a database that the server has")
        }
        _ if says("WRONGTYPE") => (
            ErrorKind::Corrupt,
            "a key of leasehold has another type: another program uses the same keys; use another prefix=... in the store URL",
        ),
        _ if says("attempt to ") => (
            ErrorKind::Corrupt,
            "the record was edited by hand: delete it while the lock is free; tokens keep rising",
        ),
        _ => return Fault::unavailable(message),
    };
    Fault::new(kind, message).with_help(help)
}

/// Returns a transient error, because clients also see it during a failover.
pub(super) fn not_primary(what: &str) -> Fault {
    Fault::unavailable(format!("the Redis server is not the primary: {what}"))
        .with_help("name the primary or all servers in the store URL (redis://host1,host2), or the Sentinels with master=NAME")
}

pub(super) fn cluster() -> Fault {
    Fault::new(ErrorKind::Unsupported, "the Redis server is part of a cluster")
        .with_help("add cluster=on to the store URL: redis://host1,host2/?cluster=on&prefix=locks/")
}

pub(super) fn no_cluster(host: &str) -> Fault {
    Fault::new(ErrorKind::Unsupported, format!("{host}: the Redis server is not part of a cluster"))
        .with_help("leave out cluster=on, or name the servers of a cluster")
}

/// Returns the error for a slot without a server.
pub(super) fn without_server(what: &str) -> Fault {
    Fault::unavailable(format!("slots of the Redis Cluster have no server: {what}")).with_help(FIX)
}

/// Returns the error for a lock whose name has braces that mislead.
pub(super) fn braces(key: &str) -> Fault {
    let message = format!(
        "the key {key:?} cannot be a lock in a cluster (`cluster=on`): its braces are no hash tag, or all of it is one"
    );
    Fault::new(ErrorKind::Invalid, message)
        .with_help("use a lock name and a prefix without braces, or with a hash tag such as {locks}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_was_not_applied_and_may_be_repeated() {
        for (answer, of_server) in [
            ("-MOVED 7 h:1", false),
            ("-ASK 7 h:1", false),
            ("-TRYAGAIN Multiple keys request during rehashing of slot", false),
            ("-CLUSTERDOWN Hash slot not served", true),
            ("-LOADING Redis is loading the dataset in memory", true),
        ] {
            let answer = redis::parse_redis_value(format!("{answer}\r\n").as_bytes()).unwrap();
            let error = answer.extract_error().unwrap_err();
            assert!(matches!(of_request(&error), StoreError::NotApplied(_)), "{error}");
            assert!(of_request(&error).is_transient(), "{error}");
            assert_eq!(is_of_this_server(&error), of_server, "{error}");
        }
    }
}
