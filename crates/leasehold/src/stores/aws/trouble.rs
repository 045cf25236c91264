//! Why a request to one of Amazon's services did not succeed, and the meaning that all of them share.

use std::fmt::Display;
use std::time::Duration;

use crate::error::{ErrorKind, Fault};

/// A response other than success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::stores) struct Answer {
    pub(in crate::stores) status: u16,
    /// The service's error code. `None` if the body was not the service's.
    pub(in crate::stores) code: Option<String>,
    /// The service's message.
    pub(in crate::stores) message: Option<String>,
    pub(in crate::stores) retry_after: Option<Duration>,
    /// The region that the bucket is really in. Only S3 returns it.
    pub(in crate::stores) region: Option<String>,
    /// Whether the response's `Date` shows that this machine's wall clock is so far off that signatures are refused.
    pub(in crate::stores) clock_is_off: bool,
}

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Trouble {
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

/// A request that got no response.
#[derive(Debug)]
pub(in crate::stores) enum Unanswered {
    /// It certainly had no effect.
    NotSent(Fault),
    /// It may have had its effect.
    MaybeSent(Fault),
}

impl Trouble {
    /// Returns the response, or the meaning of a missing one, for a request to do `what` at `endpoint`.
    pub(in crate::stores) fn answer(self, what: &dyn Display, endpoint: &str) -> Result<Answer, Unanswered> {
        Err(match self {
            Self::Answered(answer) => return Ok(answer),
            Self::Credentials { detail, before } => {
                Unanswered::NotSent(no_credentials(what, &detail, before))
            }
            Self::NotMade { detail } => Unanswered::NotSent(Fault::new(
                ErrorKind::Invalid,
                format!("{what}: the request could not be made: {detail}"),
            )),
            Self::NotConnected { detail } => {
                let help = match is_untrusted(&detail) {
                    true => {
                        "the server's certificate is by an authority that is not trusted: name the file of that authority \
                         with ?ca=/path/to/ca.pem"
                    }
                    false => "check the endpoint, the name resolution and the network",
                };
                let fault = Fault::unavailable(format!("no connection to {endpoint}: {detail}"));
                Unanswered::NotSent(fault.with_help(help))
            }
            Self::NoAnswer { detail } => Unanswered::MaybeSent(Fault::unavailable(format!(
                "{what}: {endpoint} gave no answer: {detail}"
            ))),
        })
    }
}

/// Whether a connection failed because the server's certificate is not trusted, by rustls' error names. The second one
/// is used for another authority of the same name.
pub(in crate::stores) fn is_untrusted(detail: &str) -> bool {
    ["UnknownIssuer", "BadSignature"].iter().any(|word| detail.contains(word))
}

impl Answer {
    /// Returns a fault of `kind` that quotes this response of `endpoint` to a request to do `what`.
    pub(in crate::stores) fn fault(&self, kind: ErrorKind, what: &dyn Display, endpoint: &str) -> Fault {
        let mut message = format!("{what}: {endpoint} answered {}", self.status);
        for part in [&self.code, &self.message].into_iter().flatten() {
            // Text of another machine: on one line, without control characters, truncated. The text of a refused
            // signature continues with the request's headers, which include a session token.
            let line = part.trim_start().lines().next().unwrap_or_default();
            let part: String = line.chars().filter(|c| !crate::types::is_unprintable(*c)).take(200).collect();
            message.push_str(": ");
            message.push_str(&part);
        }
        let fault = Fault::new(kind, message);
        match self.retry_after {
            Some(wait) => fault.with_retry_after(wait),
            None => fault,
        }
    }

    /// Returns what to do if the credentials are refused. `None` if they are good and a permission is missing.
    pub(in crate::stores) fn credentials_help(&self) -> Option<&'static str> {
        Some(match self.code.as_deref()? {
            "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => {
                "the session's credentials have expired: sign in again (for example: aws sso login)"
            }
            "InvalidAccessKeyId"
            | "InvalidToken"
            | "InvalidClientTokenId"
            | "UnrecognizedClientException"
            | "MissingAuthenticationTokenException" => {
                "the store does not know these credentials: check AWS_PROFILE, AWS_ACCESS_KEY_ID and \
                 AWS_SESSION_TOKEN, and that they belong to this endpoint"
            }
            "SignatureDoesNotMatch" | "InvalidSignatureException" | "IncompleteSignatureException" => {
                "the secret key does not fit the access key, or a proxy changes requests: check \
                 AWS_SECRET_ACCESS_KEY"
            }
            _ => return None,
        })
    }
}

fn no_credentials(what: &dyn Display, detail: &str, before: bool) -> Fault {
    if before {
        // They often load at the next try, and a lease has time for that.
        return Fault::unavailable(format!("{what}: the credentials could not be refreshed: {detail}"))
            .with_help("sign in again if the session is over (for example: aws sso login)");
    }
    Fault::new(ErrorKind::Denied, format!("{what}: no credentials: {detail}")).with_help(
        "no credentials found: set AWS_PROFILE (or ?profile= in the store URL), or AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY, or sign in (aws sso login), or give this machine a role",
    )
}
