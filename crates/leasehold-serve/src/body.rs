//! The parts of a request that routes read: the body as JSON, durations, names, preconditions.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold::clock::timeout;
use leasehold::{LockName, Ticket, Token};
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::connections::Arriving;
use crate::problem::{Problem, ProblemType};

/// Maximum length of a request body, in bytes, except for those with tickets or the names of several locks.
pub(crate) const MAX_BODY: usize = 16 * 1024;
/// Maximum length of a request body with tickets or the names of several locks, in bytes: that of the longest ticket, and
/// of the fields around it. 64 names of 256 bytes are shorter, even if JSON escapes all their characters.
pub(crate) const MAX_LONG_BODY: usize = Ticket::MAX_BYTES + 1024;
/// How long a request body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A part `T` of a request that includes the body, with a time limit for its arrival.
pub(crate) struct Timely<T>(pub(crate) T);

impl<T: FromRequest<Arc<App>>> FromRequest<Arc<App>> for Timely<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Response> {
        let read = in_time::<T>(request, app).await.map_err(IntoResponse::into_response)?;
        read.map(Self).map_err(IntoResponse::into_response)
    }
}

/// The body of a request, as JSON of the type `T`.
pub(crate) struct Payload<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Payload<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            let detail = "the body must be JSON";
            return Err(Problem::invalid(detail)
                .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
                .with_help("send the header `Content-Type: application/json`"));
        }
        let body = in_time::<Bytes>(request, app).await?.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Problem::invalid("the body is longer than this route accepts")
            .with_status(StatusCode::PAYLOAD_TOO_LARGE)
            .with_help(format!(
                "the limit is {MAX_LONG_BODY} bytes to acquire, renew, release and check holds, else {MAX_BODY} bytes"
            )),
            _ => Problem::invalid("the body could not be read"),
        })?;
        // The body may contain a ticket. Messages of serde quote field names and values of a wrong type, so repeat only
        // the position.
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            let what = match error.classify() {
                serde_json::error::Category::Data => {
                    "the body has a field that is missing, unknown or of the wrong type"
                }
                _ => "the body is not JSON",
            };
            Problem::invalid(format!("{what} (line {}, column {})", error.line(), error.column()))
                .with_help("/openapi.json describes every field")
        })
    }
}

/// Reads `T`, which includes the body, from `request`, with a time limit.
async fn in_time<T: FromRequest<Arc<App>>>(
    request: Request,
    app: &Arc<App>,
) -> Result<Result<T, T::Rejection>, Problem> {
    let (clock, arriving) =
        (app.locker.store().env().clock.clone(), request.extensions().get::<Arriving>().cloned());
    let read = timeout(&*clock, BODY_TIMEOUT, T::from_request(request, app)).await.ok_or_else(|| {
        let detail = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
        Problem::invalid(detail).with_status(StatusCode::REQUEST_TIMEOUT)
    })?;
    if let Some(arriving) = arriving {
        arriving.arrived();
    }
    Ok(read)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// The lock name in a path.
pub(crate) struct PathName(pub(crate) LockName);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => lock_name(&name).map(Self),
            Err(_) => Err(Problem::invalid("the path has a name that is not UTF-8")),
        }
    }
}

/// The query parameters of a request.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(parameters)) => Ok(Self(parameters)),
            Err(rejection) => {
                Err(Problem::invalid(rejection.body_text())
                    .with_help("/openapi.json describes every parameter"))
            }
        }
    }
}

/// Parses a lock name from a request.
pub(crate) fn lock_name(text: &str) -> Result<LockName, Problem> {
    Ok(LockName::new(text).map_err(leasehold::Error::from)?)
}

/// Parses a duration such as `30s`, of at most `most`.
pub(crate) fn duration(field: &str, text: &str, most: Duration) -> Result<Duration, Problem> {
    let found = humantime::parse_duration(text.trim()).map_err(|error| {
        Problem::invalid(format!("`{field}`: {error}"))
            .with_help("a duration is a number with a unit, such as 30s or 10m")
    })?;
    if found > most {
        let most = humantime::format_duration(most);
        return Err(Problem::invalid(format!("`{field}` is longer than {most}"))
            .with_help(format!("the maximum is {most}; to wait longer, repeat the request")));
    }
    Ok(found)
}

/// Returns the token in `If-Match: "17"`.
pub(crate) fn token_to_match(headers: &HeaderMap) -> Result<Token, Problem> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        let detail = "the header `If-Match` with the token of the grant is missing";
        return Err(Problem::new(ProblemType::TokenRequired, detail)
            .with_help("read the lock first, and send its token: If-Match: \"17\""));
    };
    let text = value.to_str().unwrap_or_default().trim();
    let digits = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    number(digits).ok_or_else(|| {
        Problem::invalid("the header `If-Match` has no token")
            .with_help("a token is a number below 2^53: If-Match: \"17\"")
    })
}

/// Parses a token, which consists only of digits.
pub(crate) fn number(digits: &str) -> Option<Token> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number).and_then(Token::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_a_token() {
        assert_eq!(number("17").map(Token::get), Some(17));
        for bad in ["", "+17", "-1", "1e3", " 1", "9007199254740992", "99999999999999999999"] {
            assert!(number(bad).is_none(), "{bad}");
        }
    }
}
