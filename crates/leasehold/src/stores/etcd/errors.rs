//! The meaning of etcd's errors: whether the request may have had an effect, and how to react.
//!
//! etcd distinguishes its errors only by their text: gRPC has 16 codes, and `Unavailable` alone stands for ten errors.
//! The texts are constants of `api/v3rpc/rpctypes/error.go` and have not changed since 3.0. If the text is unknown, the
//! code decides. No code counts as "not applied" for a write that may have been applied.

use tonic::{Code, Status};

use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::certificates;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The request changes nothing, or nothing that matters: reads, watches, keep-alives, logins.
    None,
    /// The request writes.
    Writes,
}

/// The meaning of an error response.
#[derive(Debug)]
pub(super) enum EtcdError {
    /// The lease does not exist, or has ended. Nothing was written.
    NoLease,
    /// A lease with that id already exists, because an earlier attempt created it.
    LeaseExists,
    /// The login token has expired, or the cluster's users have changed. The client must log in again. Nothing was
    /// written.
    LogInAgain,
    /// The cluster has no users, so no login is needed.
    NoLogin,
    /// The cluster has users, and the request named none. Nothing was written.
    NoUser,
    /// Nothing was sent to this member. Another one may be asked at once.
    NotSent(Fault),
    /// This member cannot serve the request now. Nothing was written. Another one may be asked at once.
    NotHere(Fault),
    /// Any other error.
    Failed(StoreError),
}

impl EtcdError {
    /// Converts this to a [`StoreError`], for callers without special handling.
    pub(super) fn into_store_error(self) -> StoreError {
        match self {
            Self::NoLease => Fault::unavailable("etcd: the lease is gone").not_applied(),
            Self::LeaseExists => Fault::unavailable("etcd: the lease exists already").not_applied(),
            Self::LogInAgain => {
                denied("etcd does not accept the token that it issued for this login").not_applied()
            }
            Self::NoLogin => denied("etcd has no users").not_applied(),
            Self::NoUser => denied("etcd requires a user")
                .with_help("name the user: etcd://user:password@host:2379/prefix/")
                .not_applied(),
            Self::NotSent(fault) | Self::NotHere(fault) => fault.not_applied(),
            Self::Failed(error) => error,
        }
    }
}

/// The meaning of one text or code.
enum Verdict {
    NoLease,
    LeaseExists,
    LogInAgain,
    NoLogin,
    NoUser,
    NotHere,
    /// The request certainly had no effect.
    Not(ErrorKind, Option<&'static str>),
    /// A write may have taken effect, or may take effect later.
    Maybe(ErrorKind, Option<&'static str>),
}

/// The state of the connection to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Without TLS. The member has never responded.
    Plain,
    /// With TLS. The member has never responded.
    Tls,
    /// The member has responded before.
    Proven,
}

/// Returns the meaning of `status`, which `member` (host and port) returned for a request with `effect`, or which
/// stands for a missing response.
pub(super) fn of_status(member: &str, link: Link, effect: Effect, status: &Status) -> EtcdError {
    let why = innermost(status);
    if let Some((why, true)) = &why {
        let fault = Fault::unavailable(format!("etcd at {member} cannot be reached: {why}"));
        return EtcdError::NotSent(
            fault.with_help(
                tls_help(why, link)
                    .unwrap_or("is etcd running there, and are the host and port in the store URL right?"),
            ),
        );
    }
    let fault = |kind, help: Option<&str>| {
        // The error that broke the connection is more precise than the status.
        let said = why.as_ref().map_or_else(|| words(status), |(why, _)| why.clone());
        let fault = Fault::new(kind, format!("etcd at {member}: {said}"));
        match help.or_else(|| tls_help(&why.as_ref()?.0, link)) {
            Some(help) => fault.with_help(help),
            None => fault,
        }
    };
    match by_text(status.message()).unwrap_or_else(|| by_code(status.code())) {
        Verdict::NoLease => EtcdError::NoLease,
        Verdict::LeaseExists => EtcdError::LeaseExists,
        Verdict::LogInAgain => EtcdError::LogInAgain,
        Verdict::NoLogin => EtcdError::NoLogin,
        Verdict::NoUser => EtcdError::NoUser,
        Verdict::NotHere => EtcdError::NotHere(fault(ErrorKind::Unavailable, None)),
        Verdict::Not(kind, help) => EtcdError::Failed(fault(kind, help).not_applied()),
        Verdict::Maybe(kind, help) if effect == Effect::Writes => {
            EtcdError::Failed(fault(kind, help).maybe_applied())
        }
        Verdict::Maybe(kind, help) => EtcdError::Failed(fault(kind, help).not_applied()),
    }
}

const LEARNER: &str = "name the voting members in the store URL";
const PERMISSION: &str = "grant a role with read and write permission on the prefix: etcdctl role grant-permission ROLE readwrite PREFIX --prefix=true";
const SPACE: &str =
    "compact and defragment etcd, then clear the alarm: etcdctl compact, defrag, alarm disarm";

/// Looks up the meaning of etcd's text. Ignores the prefix `etcdserver: `.
fn by_text(text: &str) -> Option<Verdict> {
    use ErrorKind::{Corrupt, Denied, Invalid, Unavailable};
    let text = text.strip_prefix("etcdserver: ").unwrap_or(text);
    Some(match text {
        "requested lease not found" => Verdict::NoLease,
        "lease already exists" => Verdict::LeaseExists,
        "invalid auth token" | "revision of auth store is old" => Verdict::LogInAgain,
        "authentication is not enabled" => Verdict::NoLogin,
        // The member refuses the request before it proposes anything to the other members.
        "no leader" => Verdict::NotHere,
        "rpc not supported for learner" => Verdict::Not(Unavailable, Some(LEARNER)),
        "too many requests" => Verdict::Not(Unavailable, None),
        "mvcc: database space exceeded" => Verdict::Not(Unavailable, Some(SPACE)),
        "mvcc: required revision has been compacted" | "mvcc: required revision is a future revision" => {
            Verdict::Not(Unavailable, None)
        }
        "request is too large"
        | "key is not provided"
        | "too many operations in txn request"
        | "duplicate key given in txn request"
        | "too large lease TTL" => Verdict::Not(Invalid, None),
        "permission denied" => Verdict::Not(Denied, Some(PERMISSION)),
        "user name is empty" => Verdict::NoUser,
        "authentication failed, invalid user ID or password" => {
            Verdict::Not(Denied, Some("check the user and the (percent-encoded) password in the store URL"))
        }
        "corrupt cluster" | "corrupt alarm" => {
            Verdict::Maybe(Corrupt, Some("the data of etcd's members differs: restore it"))
        }
        // A proposal that timed out may still be executed.
        "request timed out"
        | "request timed out, possibly due to previous leader failure"
        | "request timed out, possibly due to connection lost"
        | "request timed out, waiting for the applied index took too long"
        | "leader changed"
        | "server stopped"
        | "raft proposal dropped"
        | "unhealthy cluster" => Verdict::Maybe(Unavailable, None),
        _ => return None,
    })
}

fn by_code(code: Code) -> Verdict {
    use ErrorKind::{Corrupt, Denied, Invalid, Unavailable, Unsupported};
    match code {
        Code::PermissionDenied => Verdict::Not(Denied, Some(PERMISSION)),
        Code::Unauthenticated => Verdict::Not(Denied, None),
        Code::Unimplemented => Verdict::Not(Unsupported, Some("leasehold needs etcd 3.4 or later")),
        Code::InvalidArgument | Code::OutOfRange => Verdict::Not(Invalid, None),
        Code::ResourceExhausted => Verdict::Maybe(Unavailable, None),
        Code::DataLoss => Verdict::Maybe(Corrupt, None),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable => Verdict::Maybe(Unavailable, None),
    }
}

fn denied(message: &str) -> Fault {
    Fault::new(ErrorKind::Denied, message)
}

/// Returns the message of the innermost cause of a connection error, and whether no connection could be made. In that
/// case nothing was sent.
fn innermost(status: &Status) -> Option<(String, bool)> {
    let mut source = std::error::Error::source(status);
    let (mut why, mut connecting) = (None, false);
    while let Some(error) = source {
        connecting |= error.is::<tonic::ConnectError>();
        // The innermost cause is the most precise: connection refused, invalid certificate.
        why = Some(error.to_string());
        source = error.source();
    }
    why.map(|why| (one_line(&why), connecting))
}

/// Returns how to change the store URL if the two ends of a connection do not agree about TLS.
fn tls_help(why: &str, link: Link) -> Option<&'static str> {
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    let is_for_name = says(&["NotValidForName", "not valid for name"]);
    if let Some(help) = certificates::help_for_both(why).filter(|_| !is_for_name) {
        return Some(help);
    }
    Some(match link {
        _ if is_for_name => {
            "the member's certificate is not for the host in the store URL: give the name in the certificate with \
             server_name=NAME"
        }
        // The TLS alert may be lost with the connection.
        Link::Tls if says(&["connection closed", "roken pipe"]) => {
            "the member closed the connection: if the members require a client certificate, name it with cert=FILE&key=FILE"
        }
        Link::Plain if !says(&["refused", "lookup", "unreachable", "timed out"]) => {
            "if the cluster uses TLS, add tls=on to the store URL (and ca=FILE, for a private authority)"
        }
        Link::Tls if says(&["InvalidContentType", "orrupt message", "eof", "EOF", "reset"]) => {
            "the member does not seem to use TLS: remove tls=on, ca, cert, key and server_name from the store URL"
        }
        _ => return None,
    })
}

fn words(status: &Status) -> String {
    match status.message() {
        "" => status.code().description().to_owned(),
        message => one_line(message),
    }
}

/// Returns text from another machine on one line, without control characters and truncated.
fn one_line(text: &str) -> String {
    let clean = text.chars().map(|c| if crate::types::is_unprintable(c) { ' ' } else { c });
    clean.take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(error: &EtcdError) -> String {
        match error {
            EtcdError::NoLease => "no lease".into(),
            EtcdError::LeaseExists => "lease exists".into(),
            EtcdError::LogInAgain => "log in".into(),
            EtcdError::NoLogin => "no login".into(),
            EtcdError::NoUser => "no user".into(),
            EtcdError::NotSent(_) => "not sent".into(),
            EtcdError::NotHere(_) => "not here".into(),
            EtcdError::Failed(StoreError::NotApplied(fault)) => format!("not {}", fault.kind),
            EtcdError::Failed(StoreError::MaybeApplied(fault)) => format!("maybe {}", fault.kind),
        }
    }

    /// The texts and codes that etcd 3.4 to 3.6 sends, and every code with an unknown text.
    const ANSWERS: &[(Code, &str, &str, &str)] = &[
        // code, text, its meaning for a read, its meaning for a write
        (Code::NotFound, "etcdserver: requested lease not found", "no lease", "no lease"),
        (Code::FailedPrecondition, "etcdserver: lease already exists", "lease exists", "lease exists"),
        (Code::Unauthenticated, "etcdserver: invalid auth token", "log in", "log in"),
        (Code::InvalidArgument, "etcdserver: revision of auth store is old", "log in", "log in"),
        (Code::FailedPrecondition, "etcdserver: authentication is not enabled", "no login", "no login"),
        (Code::Unavailable, "etcdserver: no leader", "not here", "not here"),
        (
            Code::Unavailable,
            "etcdserver: rpc not supported for learner",
            "not unavailable",
            "not unavailable",
        ),
        (Code::ResourceExhausted, "etcdserver: too many requests", "not unavailable", "not unavailable"),
        (
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
            "not unavailable",
            "not unavailable",
        ),
        (
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
            "not unavailable",
            "not unavailable",
        ),
        (
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
            "not unavailable",
            "not unavailable",
        ),
        (Code::InvalidArgument, "etcdserver: request is too large", "not invalid", "not invalid"),
        (Code::InvalidArgument, "etcdserver: key is not provided", "not invalid", "not invalid"),
        (
            Code::InvalidArgument,
            "etcdserver: too many operations in txn request",
            "not invalid",
            "not invalid",
        ),
        (
            Code::InvalidArgument,
            "etcdserver: duplicate key given in txn request",
            "not invalid",
            "not invalid",
        ),
        (Code::OutOfRange, "etcdserver: too large lease TTL", "not invalid", "not invalid"),
        (Code::PermissionDenied, "etcdserver: permission denied", "not denied", "not denied"),
        (Code::InvalidArgument, "etcdserver: user name is empty", "no user", "no user"),
        (
            Code::InvalidArgument,
            "etcdserver: authentication failed, invalid user ID or password",
            "not denied",
            "not denied",
        ),
        (Code::DataLoss, "etcdserver: corrupt cluster", "not corrupt", "maybe corrupt"),
        (Code::Unavailable, "etcdserver: leader changed", "not unavailable", "maybe unavailable"),
        (Code::Unavailable, "etcdserver: request timed out", "not unavailable", "maybe unavailable"),
        (
            Code::Unavailable,
            "etcdserver: request timed out, possibly due to previous leader failure",
            "not unavailable",
            "maybe unavailable",
        ),
        (
            Code::Unavailable,
            "etcdserver: request timed out, possibly due to connection lost",
            "not unavailable",
            "maybe unavailable",
        ),
        (Code::Unavailable, "etcdserver: server stopped", "not unavailable", "maybe unavailable"),
        (Code::Unavailable, "etcdserver: unhealthy cluster", "not unavailable", "maybe unavailable"),
        (Code::Unknown, "raft proposal dropped", "not unavailable", "maybe unavailable"),
        (Code::Ok, "", "not unavailable", "maybe unavailable"),
        (Code::Cancelled, "context canceled", "not unavailable", "maybe unavailable"),
        (
            Code::Unknown,
            "h2 protocol error: error reading a body from connection",
            "not unavailable",
            "maybe unavailable",
        ),
        (Code::InvalidArgument, "another", "not invalid", "not invalid"),
        (Code::DeadlineExceeded, "context deadline exceeded", "not unavailable", "maybe unavailable"),
        (Code::NotFound, "another", "not unavailable", "maybe unavailable"),
        (Code::AlreadyExists, "another", "not unavailable", "maybe unavailable"),
        (Code::PermissionDenied, "another", "not denied", "not denied"),
        (Code::ResourceExhausted, "another", "not unavailable", "maybe unavailable"),
        (Code::FailedPrecondition, "another", "not unavailable", "maybe unavailable"),
        (Code::Aborted, "another", "not unavailable", "maybe unavailable"),
        (Code::OutOfRange, "another", "not invalid", "not invalid"),
        (Code::Unimplemented, "unknown service etcdserverpb.KV", "not unsupported", "not unsupported"),
        (Code::Internal, "stream terminated", "not unavailable", "maybe unavailable"),
        (Code::Unavailable, "error reading server preface", "not unavailable", "maybe unavailable"),
        (Code::DataLoss, "another", "not corrupt", "maybe corrupt"),
        (Code::Unauthenticated, "another", "not denied", "not denied"),
    ];

    #[test]
    fn every_response_has_its_meaning() {
        for (code, text, read, write) in ANSWERS {
            let status = Status::new(*code, *text);
            assert_eq!(
                short(&of_status("h:1", Link::Plain, Effect::None, &status)),
                *read,
                "{code:?} {text}"
            );
            assert_eq!(
                short(&of_status("h:1", Link::Plain, Effect::Writes, &status)),
                *write,
                "{code:?} {text}"
            );
        }
        for code in 0..=16 {
            let known = ANSWERS.iter().any(|(known, ..)| *known == Code::from_i32(code));
            assert!(known, "no response with {:?} is in the table", Code::from_i32(code));
        }
    }

    #[test]
    fn errors_say_what_to_do_and_what_etcd_said_on_one_line() {
        for (text, help) in [
            ("etcdserver: permission denied", "grant-permission"),
            ("etcdserver: user name is empty", "etcd://user:password@"),
            ("etcdserver: mvcc: database space exceeded", "defrag"),
        ] {
            let error = of_status("h:1", Link::Plain, Effect::Writes, &Status::new(Code::Unknown, text))
                .into_store_error();
            let told = error.fault().help.clone().unwrap_or_default();
            assert!(told.contains(help), "{text}: {told}");
        }
        let status = Status::new(Code::Unknown, format!("a\n\u{1b}[31m{}", "x".repeat(999)));
        let message = of_status("h:1", Link::Plain, Effect::None, &status).into_store_error().to_string();
        assert!(!message.contains(['\n', '\u{1b}']) && message.len() < 400, "{message}");
    }
}
