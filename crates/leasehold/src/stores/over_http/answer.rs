//! Interprets responses of the HTTP stores (S3, DynamoDB, GCS, Azure, Kubernetes), and missing responses. This module
//! has the part that is the same for all of them. Each store's `errors` module interprets its own codes.

use std::fmt::Display;
use std::time::Duration;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::certificates;
use crate::types::printable;

/// An unsuccessful response. Fields that a store does not provide keep their default values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::stores) struct Answer {
    pub(in crate::stores) status: u16,
    /// The store's error code, like `SlowDown` (S3) or `rateLimitExceeded` (GCS). `None` if the body is not an error
    /// document of the store.
    pub(in crate::stores) code: Option<String>,
    /// The store's message, or the text of the body.
    pub(in crate::stores) message: Option<String>,
    pub(in crate::stores) retry_after: Option<Duration>,
    /// The region that the bucket is actually in (S3 only).
    pub(in crate::stores) region: Option<String>,
    /// Whether this machine's wall clock differs from the response's `Date` so much that the store refuses signatures.
    pub(in crate::stores) clock_is_off: bool,
    /// Whether the store accepted credentials earlier.
    pub(in crate::stores) signed_before: bool,
    /// What responded instead of the store, if it is recognised.
    pub(in crate::stores) impostor: Option<Impostor>,
}

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Failure {
    /// The store returned an error.
    Answered(Answer),
    /// The credentials could not be loaded. `before` is true if they worked before or are still being loaded.
    Credentials { detail: String, before: bool },
    /// The request could not be built.
    NotMade { detail: String },
    /// There was no connection, so nothing was sent.
    NotConnected { detail: String },
    /// The request may have been sent, but no complete response arrived.
    NoAnswer { detail: String },
}

/// A description of a request, for messages and to interpret a missing response.
#[derive(Clone, Copy)]
pub(in crate::stores) struct Asked<'a> {
    /// What failed, like `cannot read s3://bucket/key`.
    pub(in crate::stores) what: &'a dyn Display,
    pub(in crate::stores) endpoint: &'a str,
    /// Whether the request can have an effect.
    pub(in crate::stores) changes: bool,
    /// The help for missing credentials.
    pub(in crate::stores) sign_in: SignIn,
}

/// Help for credentials that cannot be loaded.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct SignIn {
    /// Shown if there are no credentials.
    pub(in crate::stores) missing: &'static str,
    /// Shown if there were credentials, but they cannot be refreshed.
    pub(in crate::stores) refresh: &'static str,
}

impl Asked<'_> {
    /// Returns the response in `failure`, or the error for a request without a response.
    pub(in crate::stores) fn answer(&self, failure: Failure) -> Result<Answer, StoreError> {
        let Self { what, endpoint, .. } = self;
        Err(match failure {
            Failure::Answered(answer) => return Ok(answer),
            // The next attempt to load them often succeeds, and a lease leaves time for it.
            Failure::Credentials { detail, before: true } => {
                Fault::unavailable(format!("{what}: the credentials could not be refreshed: {detail}"))
                    .with_help(self.sign_in.refresh)
                    .not_applied()
            }
            Failure::Credentials { detail, before: false } => {
                Fault::new(ErrorKind::Denied, format!("{what}: no credentials: {detail}"))
                    .with_help(format!("no credentials found: {}", self.sign_in.missing))
                    .not_applied()
            }
            Failure::NotMade { detail } => {
                let message = format!("{what}: the request could not be built: {detail}");
                Fault::new(ErrorKind::Invalid, message).not_applied()
            }
            Failure::NotConnected { detail } => {
                Fault::unavailable(format!("no connection to {endpoint}: {detail}"))
                    .with_help(help_to_connect(endpoint, &detail))
                    .not_applied()
            }
            Failure::NoAnswer { detail } => {
                let may_be_tls = may_be_tls(&detail);
                let fault = Fault::unavailable(format!("{what}: no response from {endpoint}: {detail}"));
                self.unknown(match endpoint.strip_prefix("http://") {
                    Some(host) if may_be_tls => fault.with_help(format!(
                        "the server does not respond in plain HTTP: if it expects TLS, write endpoint=https://{host}"
                    )),
                    _ => fault,
                })
            }
        })
    }

    /// Returns the error for a request whose outcome is unknown. A request that changes nothing counts as not applied.
    fn unknown(&self, fault: Fault) -> StoreError {
        if self.changes { fault.maybe_applied() } else { fault.not_applied() }
    }

    /// Returns `error`, the error for `answer`, with the help for what responded instead of the store.
    pub(in crate::stores) fn explained(&self, answer: &Answer, error: StoreError) -> StoreError {
        let Some(impostor) = &answer.impostor else { return error };
        let explain = |mut fault: Fault| {
            let (what, help) = impostor.explained("the endpoint of the store URL");
            fault.message =
                format!("{}: {} responded with {}: {what}", self.what, self.endpoint, answer.status);
            fault.with_help(help)
        };
        match error {
            StoreError::NotApplied(fault) => explain(fault).not_applied(),
            StoreError::MaybeApplied(fault) => explain(fault).maybe_applied(),
        }
    }

    /// Returns a fault of `kind` that quotes `answer`.
    fn fault(&self, kind: ErrorKind, answer: &Answer) -> Fault {
        let mut message = format!("{}: {} responded with {}", self.what, self.endpoint, answer.status);
        for part in [&answer.code, &answer.message].into_iter().flatten() {
            // The text comes from another machine, so only its first line is quoted, truncated and without control
            // characters. In the message about a refused signature, later lines repeat the request's headers, which
            // include a session token.
            let line = part.trim_start().lines().next().unwrap_or_default();
            let part: String = line.chars().filter(|c| !crate::types::is_unprintable(*c)).take(200).collect();
            message.push_str(": ");
            message.push_str(&part);
        }
        let fault = Fault::new(kind, message);
        match answer.retry_after {
            Some(wait) => fault.with_retry_after(wait),
            None => fault,
        }
    }
}

/// A request that failed. Each store's `errors` module implements this trait, to interpret the response.
pub(in crate::stores) trait FailedRequest {
    /// Describes the request.
    fn asked(&self) -> Asked<'_>;

    /// Returns a fault of `kind` that quotes `answer`.
    fn fault(&self, kind: ErrorKind, answer: &Answer) -> Fault {
        self.asked().fault(kind, answer)
    }

    /// Returns the fault of a store that could not serve the request at the moment.
    fn busy(&self, answer: &Answer) -> Fault {
        self.fault(ErrorKind::Unavailable, answer)
    }

    /// Returns the error for a request that had no effect.
    fn refused(&self, fault: Fault) -> StoreError {
        fault.not_applied()
    }

    /// Returns the error for a request whose outcome is unknown. A request that changes nothing counts as not applied.
    fn unknown(&self, fault: Fault) -> StoreError {
        self.asked().unknown(fault)
    }
}

/// Returns the help for a connection that could not be made. rustls's messages reveal a wrong scheme and bad
/// certificates.
fn help_to_connect(endpoint: &str, detail: &str) -> String {
    if let Some(host) = endpoint.strip_prefix("https://")
        && is_plain(detail)
    {
        return format!(
            "the server does not use TLS: if it expects plain HTTP, write endpoint=http://{host}"
        );
    }
    if let Some(help) = certificates::help(detail) {
        return help.to_owned();
    }
    let tls = if endpoint.starts_with("https://") { " and that it uses TLS" } else { "" };
    format!("check the endpoint{tls}, the proxy if there is one, the name resolution and the network")
}

/// Returns whether a connection failed because the server does not use TLS. The words are from rustls's messages.
pub(in crate::stores) fn is_plain(detail: &str) -> bool {
    detail.contains("InvalidContentType")
}

/// Returns whether a plain request got no response because the server expects TLS, or may expect it.
pub(in crate::stores) fn may_be_tls(detail: &str) -> bool {
    // hyper's error for a response that does not begin with HTTP/1.1, such as a TLS alert, and its error for a server
    // that closes the connection.
    ["invalid HTTP", "connection closed", "Connection reset"].iter().any(|words| detail.contains(words))
}

/// What responded instead of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Impostor {
    /// A web page.
    Page,
    /// A redirect to this address. The store's own redirects name a region.
    Redirect(String),
    /// A server that expects TLS.
    Tls,
}

impl Impostor {
    /// Recognises a response that does not come from the store: by its status, two of its headers, and its body.
    pub(in crate::stores) fn of(
        status: u16,
        kind: Option<&str>,
        location: Option<&str>,
        body: &[u8],
    ) -> Option<Self> {
        let start = String::from_utf8_lossy(&body[..body.len().min(1_024)]).trim_start().to_ascii_lowercase();
        let says = |words: &str| start.contains(words);
        if says("http request to an https server") || says("plain http request was sent to https port") {
            return Some(Self::Tls);
        }
        if let Some(location) = location.filter(|_| (300..=399).contains(&status)) {
            // The query may contain a secret.
            let shown = location.split(['?', '#']).next().unwrap_or_default();
            return Some(Self::Redirect(printable(shown, 200)));
        }
        let is_page = kind.is_some_and(|kind| kind.to_ascii_lowercase().contains("html"))
            || start.starts_with("<!doctype html")
            || start.starts_with("<html");
        // A gateway of the store reports its failures with pages.
        (is_page && status < 500).then_some(Self::Page)
    }

    /// Returns what the response is, and what to do about it. `server` is how the store URL names the server.
    pub(in crate::stores) fn explained(&self, server: &str) -> (String, String) {
        const PORTAL: &str = "a proxy or a login page seems to respond instead of the store";
        match self {
            Self::Page => (
                "it is a web page".to_owned(),
                format!("{PORTAL}: check {server}, and sign in to the network or name its proxy"),
            ),
            Self::Redirect(location) => (
                format!("it redirects to {location}"),
                format!("{PORTAL}: check {server}, and sign in to the network or name its proxy"),
            ),
            Self::Tls => {
                ("the server expects TLS".to_owned(), format!("write https:// and not http:// in {server}"))
            }
        }
    }
}

#[cfg(test)]
pub(in crate::stores) mod tests {
    use super::*;

    /// Returns a response with this status and code.
    pub(in crate::stores) fn answered(status: u16, code: &str) -> Failure {
        let code = (!code.is_empty()).then(|| code.to_owned());
        Failure::Answered(Answer { status, code, ..Answer::default() })
    }

    /// Returns `not` or `maybe` (applied), and the kind of the fault.
    pub(in crate::stores) fn short(error: &StoreError) -> String {
        match error {
            StoreError::NotApplied(fault) => format!("not {}", fault.kind),
            StoreError::MaybeApplied(fault) => format!("maybe {}", fault.kind),
        }
    }

    const SIGN_IN: SignIn = SignIn { missing: "log in", refresh: "log in again" };

    fn asked(endpoint: &str, changes: bool) -> Asked<'_> {
        Asked { what: &"cannot write x", endpoint, changes, sign_in: SIGN_IN }
    }

    #[test]
    fn without_a_response_a_sent_request_is_in_doubt() {
        let detail = || "x".to_owned();
        for (failure, read, write) in [
            (Failure::NotConnected { detail: detail() }, "not unavailable", "not unavailable"),
            (Failure::NoAnswer { detail: detail() }, "not unavailable", "maybe unavailable"),
            (Failure::NotMade { detail: detail() }, "not invalid", "not invalid"),
            (Failure::Credentials { detail: detail(), before: false }, "not denied", "not denied"),
            (Failure::Credentials { detail: detail(), before: true }, "not unavailable", "not unavailable"),
        ] {
            for (changes, expected) in [(false, read), (true, write)] {
                let error = asked("http://here:9", changes).answer(failure.clone()).unwrap_err();
                assert_eq!(short(&error), expected, "{failure:?} {changes}");
                assert!(error.to_string().contains('x'), "{error}");
            }
        }
        let answer = Answer { status: 418, ..Answer::default() };
        assert_eq!(asked("http://here:9", true).answer(Failure::Answered(answer.clone())).unwrap(), answer);
    }

    #[test]
    fn the_help_matches_the_cause_of_a_missing_response() {
        let not_connected = |detail: &str| Failure::NotConnected { detail: detail.to_owned() };
        let no_answer = |detail: &str| Failure::NoAnswer { detail: detail.to_owned() };
        for (endpoint, failure, help) in [
            ("https://h:1", not_connected("InvalidContentType"), "write endpoint=http://h:1"),
            ("https://h:1", not_connected("UnknownIssuer"), "ca=FILE"),
            ("Amazon S3 in x", not_connected("invalid peer certificate: BadSignature"), "ca=FILE"),
            ("https://h:1", not_connected("refused"), "uses TLS"),
            ("http://h:1", not_connected("refused"), "the name resolution and the network"),
            ("http://h:1", no_answer("invalid HTTP version parsed"), "write endpoint=https://h:1"),
            ("http://h:1", Failure::Credentials { detail: String::new(), before: false }, "found: log in"),
            ("http://h:1", Failure::Credentials { detail: String::new(), before: true }, "log in again"),
        ] {
            let error = asked(endpoint, true).answer(failure.clone()).unwrap_err();
            let told = error.fault().help.as_deref().unwrap();
            assert!(told.contains(help), "{failure:?}: {told}");
        }
        let error = asked("https://h:1", true).answer(no_answer("invalid HTTP version parsed")).unwrap_err();
        assert_eq!(error.fault().help, None);
    }

    /// Amazon's message about a refused signature also contains the request that should have been signed, with its
    /// headers.
    #[test]
    fn a_quoted_response_is_one_short_line() {
        let message = format!(
            "The signature does not match.\u{1b}[31m{}\nx-amz-security-token:hunter2\n",
            "x".repeat(999)
        );
        let wait = Some(Duration::from_secs(7));
        let answer = Answer {
            status: 418,
            code: Some("Teapot".to_owned()),
            message: Some(message),
            retry_after: wait,
            ..Answer::default()
        };
        let fault = asked("http://here:9", true).fault(ErrorKind::Denied, &answer);
        let start =
            "cannot write x: http://here:9 responded with 418: Teapot: The signature does not match.[31mxxx";
        assert!(fault.message.starts_with(start), "{}", fault.message);
        assert!(fault.message.len() < 300 && !fault.message.contains("hunter2"), "{}", fault.message);
        assert_eq!((fault.kind, fault.retry_after), (ErrorKind::Denied, wait));
    }
}
