//! The meaning of the response of an HTTP store (S3, DynamoDB, GCS, Azure, Kubernetes), or of a missing response: the
//! part that is the same for all of them. Each store's `errors` interprets its own codes.

use std::fmt::Display;
use std::time::Duration;

use crate::error::{ErrorKind, Fault, StoreError};

/// A response other than success. Fields that a store does not have keep their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The store's error code, like `SlowDown` (S3) or `rateLimitExceeded` (GCS). `None` if the body was not the
    /// store's.
    pub(super) code: Option<String>,
    /// The store's message, or the text of the body.
    pub(super) message: Option<String>,
    pub(super) retry_after: Option<Duration>,
    /// S3: the region that the bucket is really in.
    pub(super) region: Option<String>,
    /// Whether the response's `Date` shows that this machine's wall clock is so far off that signatures are refused.
    pub(super) clock_is_off: bool,
    /// Whether the store accepted the same credentials earlier.
    pub(super) signed_before: bool,
}

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The store returned an error.
    Answered(Answer),
    /// The credentials could not be loaded. `before`: they could earlier.
    Credentials { detail: String, before: bool },
    /// The request could not be built.
    NotMade { detail: String },
    /// There was no connection, so nothing was sent.
    NotConnected { detail: String },
    /// The request may have been sent, and no complete response arrived.
    NoAnswer { detail: String },
}

/// A request, for messages and for what a missing response means.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    /// What the request was to do, like `cannot read s3://bucket/key`.
    pub(super) what: &'a dyn Display,
    pub(super) endpoint: &'a str,
    /// Whether the request can have an effect.
    pub(super) changes: bool,
    /// How to get credentials.
    pub(super) sign_in: SignIn,
}

/// Help for credentials that cannot be loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignIn {
    /// There are none.
    pub(super) missing: &'static str,
    /// There were some, and they cannot be refreshed.
    pub(super) refresh: &'static str,
}

impl Asked<'_> {
    /// Returns the response, or the error of a request that has none.
    pub(super) fn answer(&self, trouble: Trouble) -> Result<Answer, StoreError> {
        let Self { what, endpoint, .. } = self;
        Err(match trouble {
            Trouble::Answered(answer) => return Ok(answer),
            // They often load at the next try, and a lease has time for that.
            Trouble::Credentials { detail, before: true } => {
                Fault::unavailable(format!("{what}: the credentials could not be refreshed: {detail}"))
                    .with_help(self.sign_in.refresh)
                    .not_applied()
            }
            Trouble::Credentials { detail, before: false } => {
                Fault::new(ErrorKind::Denied, format!("{what}: no credentials: {detail}"))
                    .with_help(format!("no credentials found: {}", self.sign_in.missing))
                    .not_applied()
            }
            Trouble::NotMade { detail } => {
                let message = format!("{what}: the request could not be made: {detail}");
                Fault::new(ErrorKind::Invalid, message).not_applied()
            }
            Trouble::NotConnected { detail } => {
                Fault::unavailable(format!("no connection to {endpoint}: {detail}"))
                    .with_help(help_to_connect(endpoint, &detail))
                    .not_applied()
            }
            Trouble::NoAnswer { detail } => {
                // hyper's error for a response that does not begin with HTTP/1.1, such as one in TLS.
                let is_no_http = detail.contains("invalid HTTP");
                let fault = Fault::unavailable(format!("{what}: no response from {endpoint}: {detail}"));
                self.unknown(match endpoint.strip_prefix("http://") {
                    Some(host) if is_no_http => fault.with_help(format!(
                        "the server does not respond in plain HTTP: if it expects TLS, write endpoint=https://{host}"
                    )),
                    _ => fault,
                })
            }
        })
    }

    /// The error of a request that may have had its effect, if it can have one.
    pub(super) fn unknown(&self, fault: Fault) -> StoreError {
        if self.changes { fault.maybe_applied() } else { fault.not_applied() }
    }

    /// A fault of `kind` that quotes `answer`.
    pub(super) fn fault(&self, kind: ErrorKind, answer: &Answer) -> Fault {
        let mut message = format!("{}: {} responded with {}", self.what, self.endpoint, answer.status);
        for part in [&answer.code, &answer.message].into_iter().flatten() {
            // Text of another machine: on one line, without control characters, truncated. The text of a refused
            // signature continues with the request's headers, which include a session token.
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

/// The help for a missing connection. rustls's messages show problems with the scheme and the certificates.
fn help_to_connect(endpoint: &str, detail: &str) -> String {
    match endpoint.strip_prefix("https://") {
        Some(host) if detail.contains("InvalidContentType") => {
            format!("the server does not use TLS: if it expects plain HTTP, write endpoint=http://{host}")
        }
        _ if is_untrusted(detail) => {
            "the server's certificate was signed by an authority that is not trusted: name the file of that \
             authority with ?ca=/path/to/ca.pem"
                .to_owned()
        }
        Some(_) => {
            "check the endpoint and that it uses TLS, the proxy if there is one, the name resolution and the \
                    network"
                .to_owned()
        }
        None => {
            "check the endpoint, the proxy if there is one, the name resolution and the network".to_owned()
        }
    }
}

/// Whether a connection failed because the server's certificate is by an unknown authority, in rustls's words. The
/// second is that of another authority of the same name.
pub(super) fn is_untrusted(detail: &str) -> bool {
    ["UnknownIssuer", "BadSignature"].iter().any(|word| detail.contains(word))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A response with this status and code.
    pub(in crate::stores) fn answered(status: u16, code: &str) -> Trouble {
        let code = (!code.is_empty()).then(|| code.to_owned());
        Trouble::Answered(Answer { status, code, ..Answer::default() })
    }

    /// `not` or `maybe` applied, and the kind of the fault.
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
        for (trouble, read, write) in [
            (Trouble::NotConnected { detail: detail() }, "not unavailable", "not unavailable"),
            (Trouble::NoAnswer { detail: detail() }, "not unavailable", "maybe unavailable"),
            (Trouble::NotMade { detail: detail() }, "not invalid", "not invalid"),
            (Trouble::Credentials { detail: detail(), before: false }, "not denied", "not denied"),
            (Trouble::Credentials { detail: detail(), before: true }, "not unavailable", "not unavailable"),
        ] {
            for (changes, expected) in [(false, read), (true, write)] {
                let error = asked("http://here:9", changes).answer(trouble.clone()).unwrap_err();
                assert_eq!(short(&error), expected, "{trouble:?} {changes}");
                assert!(error.to_string().contains('x'), "{error}");
            }
        }
        let answer = Answer { status: 418, ..Answer::default() };
        assert_eq!(asked("http://here:9", true).answer(Trouble::Answered(answer.clone())).unwrap(), answer);
    }

    #[test]
    fn the_help_matches_the_cause_of_a_missing_response() {
        let not_connected = |detail: &str| Trouble::NotConnected { detail: detail.to_owned() };
        let no_answer = |detail: &str| Trouble::NoAnswer { detail: detail.to_owned() };
        for (endpoint, trouble, help) in [
            ("https://h:1", not_connected("InvalidContentType"), "write endpoint=http://h:1"),
            ("https://h:1", not_connected("UnknownIssuer"), "?ca=/path/to/ca.pem"),
            (
                "Amazon S3 in x",
                not_connected("invalid peer certificate: BadSignature"),
                "?ca=/path/to/ca.pem",
            ),
            ("https://h:1", not_connected("refused"), "uses TLS"),
            ("http://h:1", not_connected("refused"), "the name resolution and the network"),
            ("http://h:1", no_answer("invalid HTTP version parsed"), "write endpoint=https://h:1"),
            ("http://h:1", Trouble::Credentials { detail: String::new(), before: false }, "found: log in"),
            ("http://h:1", Trouble::Credentials { detail: String::new(), before: true }, "log in again"),
        ] {
            let error = asked(endpoint, true).answer(trouble.clone()).unwrap_err();
            let told = error.fault().help.as_deref().unwrap();
            assert!(told.contains(help), "{trouble:?}: {told}");
        }
        let error = asked("https://h:1", true).answer(no_answer("invalid HTTP version parsed")).unwrap_err();
        assert_eq!(error.fault().help, None);
    }

    /// Amazon's message about a signature continues with the request that should have been signed, and its headers.
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
