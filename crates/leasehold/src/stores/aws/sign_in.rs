//! The help for AWS credentials that are missing or refused.

use crate::error::ErrorKind;
use crate::stores::over_http::answer::{Answer, Row, SignIn};

pub(in crate::stores) const SIGN_IN: SignIn = SignIn {
    missing: "set AWS_PROFILE (or ?profile= in the store URL), or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or sign in \
              (aws sso login), or give this machine a role",
    refresh: "sign in again if the session has ended (for example: aws sso login)",
};

/// Returns the help if the store refused the credentials themselves. Returns `None` for other refusals, such as a
/// missing permission.
pub(in crate::stores) fn credentials_help(answer: &Answer) -> Option<&'static str> {
    Some(match answer.code.as_deref()? {
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => {
            "the session's credentials have expired: sign in again (for example: aws sso login)"
        }
        "InvalidAccessKeyId"
        | "InvalidToken"
        | "InvalidTokenId"
        | "InvalidClientTokenId"
        | "UnrecognizedClientException"
        | "MissingAuthenticationTokenException" => {
            "these credentials are unknown to the store: check AWS_PROFILE, AWS_ACCESS_KEY_ID and \
             AWS_SESSION_TOKEN, and that they belong to this endpoint"
        }
        "SignatureDoesNotMatch" | "InvalidSignatureException" | "IncompleteSignatureException" => {
            "the secret key does not match the access key, or a proxy changes requests: check \
             AWS_SECRET_ACCESS_KEY"
        }
        _ => return None,
    })
}

/// Returns the row of credentials that the store refused. It is transient if the store has accepted credentials before:
/// they are read again for the next attempt, and may have been replaced by then.
pub(in crate::stores) fn credentials_refused(answer: &Answer) -> Row {
    let kind = if answer.signed_before { ErrorKind::Unavailable } else { ErrorKind::Denied };
    Row::Refused(kind, credentials_help(answer).map(Into::into))
}
