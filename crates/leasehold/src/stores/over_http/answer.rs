//! Interprets responses of the HTTP stores (S3, DynamoDB, GCS, Azure, Kubernetes), and missing responses. This module
//! has the part that is the same for all of them. Each store's `errors` module has the rows of its own codes.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::certificates;
use crate::stores::over_http::Meaning;
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
    /// The name of the store's product, like `GCS`.
    pub(in crate::stores) product: &'static str,
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
    fn answer(&self, failure: Failure) -> Result<Answer, StoreError> {
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
                let fault = Fault::unavailable(format!("{what}: no response from {endpoint}: {detail}"));
                self.unknown(match help_if_tls("endpoint=", endpoint, &detail) {
                    Some(help) => fault.with_help(help),
                    None => fault,
                })
            }
        })
    }

    /// Returns the error for a request whose outcome is unknown. A request that changes nothing counts as not applied.
    fn unknown(&self, fault: Fault) -> StoreError {
        if self.changes { fault.maybe_applied() } else { fault.not_applied() }
    }

    /// Returns the meaning of `failure`. `row` is the row of the store's table for a response.
    pub(in crate::stores) fn meaning(&self, failure: Failure, row: impl FnOnce(&Answer) -> Row) -> Meaning {
        let answer = match self.answer(failure) {
            Ok(answer) => answer,
            Err(error) => return Meaning::Failed(error),
        };
        let fault = |kind, help: Option<Cow<'static, str>>| {
            let mut fault = self.fault(kind, &answer);
            if let Some(help) = help {
                fault = fault.with_help(help);
            }
            if let Some(impostor) = &answer.impostor {
                let (what, help) = impostor.explained("the endpoint of the store URL");
                let Self { what: failed, endpoint, .. } = self;
                fault.message = format!("{failed}: {endpoint} responded with {}: {what}", answer.status);
                fault = fault.with_help(help);
            }
            fault
        };
        match row(&answer) {
            Row::Absent => Meaning::Absent,
            Row::Conflict => Meaning::Conflict,
            Row::Refused(kind, help) => Meaning::Failed(fault(kind, help).not_applied()),
            Row::InDoubt(help) => Meaning::Failed(self.unknown(fault(ErrorKind::Unavailable, help))),
        }
    }

    /// Returns the row of a response that means the same on all stores.
    pub(in crate::stores) fn usual(&self, answer: &Answer) -> Row {
        let Self { endpoint, product, .. } = self;
        match answer.status {
            // A limit refused the request before it began.
            429 => Row::BUSY,
            // The stores ask clients to retry these requests, but do not promise that they had no effect. A front end
            // or a proxy may give up waiting for a back end that continues.
            408 | 500 | 502..=599 => Row::InDoubt(None),
            501 => Row::unsupported("this store does not implement a request that leasehold needs"),
            401 => self.signed_out(answer.signed_before),
            200..=299 => Row::InDoubt(Some(
                format!("the response is not one of {product}'s: check the endpoint").into(),
            )),
            _ => Row::invalid(format!(
                "if the response gives no reason: check that {endpoint} is an endpoint of {product}"
            )),
        }
    }

    /// Returns the row of refused credentials. `signed_before` is whether the store accepted them earlier.
    pub(in crate::stores) fn signed_out(&self, signed_before: bool) -> Row {
        let Self { product, sign_in, .. } = self;
        match signed_before {
            true => Row::unavailable(format!(
                "{product} accepted these credentials before: they have expired or were replaced, and are loaded again"
            )),
            false => Row::denied(format!("{product} does not accept these credentials: {}", sign_in.missing)),
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

/// A row of a store's table of responses: the meaning of a status and a code.
#[derive(Debug)]
pub(in crate::stores) enum Row {
    /// There is no object at that key.
    Absent,
    /// The precondition does not hold.
    Conflict,
    /// The request had no effect. The help says what to do.
    Refused(ErrorKind, Option<Cow<'static, str>>),
    /// The store is unavailable, and the request may have had an effect.
    InDoubt(Option<Cow<'static, str>>),
}

impl Row {
    /// The store could not serve the request at the moment.
    pub(in crate::stores) const BUSY: Self = Self::Refused(ErrorKind::Unavailable, None);

    pub(in crate::stores) fn unavailable(help: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(ErrorKind::Unavailable, Some(help.into()))
    }

    pub(in crate::stores) fn denied(help: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(ErrorKind::Denied, Some(help.into()))
    }

    pub(in crate::stores) fn invalid(help: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(ErrorKind::Invalid, Some(help.into()))
    }

    pub(in crate::stores) fn unsupported(help: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(ErrorKind::Unsupported, Some(help.into()))
    }
}

/// Returns the help for a connection that could not be made. rustls's messages reveal a wrong scheme and bad
/// certificates.
fn help_to_connect(endpoint: &str, detail: &str) -> String {
    if let Some(help) = help_with_tls("endpoint=", endpoint, detail) {
        return help;
    }
    let tls = if endpoint.starts_with("https://") { " and that it uses TLS" } else { "" };
    format!("check the endpoint{tls}, the proxy if there is one, the name resolution and the network")
}

/// Returns the help for a connection to `url` that was not made because of TLS: the server does not use it, or its
/// certificate is bad. The user wrote the URL after `option`. The words are from rustls's messages.
pub(in crate::stores) fn help_with_tls(option: &str, url: &str, detail: &str) -> Option<String> {
    match url.strip_prefix("https://") {
        Some(host) if detail.contains("InvalidContentType") => Some(format!(
            "the server does not use TLS: if it expects plain HTTP, write {option}http://{host}"
        )),
        _ => certificates::help(detail).map(str::to_owned),
    }
}

/// Returns the help for a request to `url` that got no response, if it was plain and the server may expect TLS. The user
/// wrote the URL after `option`.
pub(in crate::stores) fn help_if_tls(option: &str, url: &str, detail: &str) -> Option<String> {
    let host = url.strip_prefix("http://")?;
    // hyper's error for a response that does not begin with HTTP/1.1, such as a TLS alert, and its error for a server
    // that closes the connection.
    let may_be_tls = ["invalid HTTP", "connection closed", "Connection reset"];
    may_be_tls.iter().any(|words| detail.contains(words)).then(|| {
        format!("the server does not respond in plain HTTP: if it expects TLS, write {option}https://{host}")
    })
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
        Asked { what: &"cannot write x", endpoint, product: "X", changes, sign_in: SIGN_IN }
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
