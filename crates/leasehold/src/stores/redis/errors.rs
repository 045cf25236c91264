//! Maps Redis's errors: whether the script may have taken effect, and what the user can do.

use redis::RedisError;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::printable;

/// How much of a server's message is shown, in characters.
const MAX_SHOWN: usize = 300;

/// The codes of errors with which the server refuses a script before the script has written anything.
const REFUSED: &[&str] = &[
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
        ["LOADING", "MASTERDOWN", "MISCONF", "NOAUTH", "NOREPLICAS", "READONLY"].contains(&code)
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
            Fault::unavailable(format!("no connection to Redis at {host}: {why}"))
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
        "MOVED" | "CROSSSLOT" | "CLUSTERDOWN" => return cluster(),
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
    Fault::new(
        ErrorKind::Unsupported,
        "the Redis server is part of a cluster, which leasehold does not support",
    )
    .with_help("use a primary with replicas, with Sentinel if it must fail over automatically")
}
