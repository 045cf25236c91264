//! One request to a store that keeps objects on HTTPS, and its response.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use reqwest::header::HeaderMap;

use super::answer::Failure;
use super::https::{body, failure};
use super::{Meaning, request_limit};
use crate::clock;
use crate::env::Env;
use crate::error::{ErrorKind, Fault};
use crate::stores::contents::Contents;

/// The resolution of a `Date` header, which is rounded down to whole seconds.
pub(in crate::stores) const DATE_RESOLUTION: Duration = Duration::from_secs(1);

/// The time limit of one request with a small body. Several requests fit into the shortest usual lease. The layers
/// above reduce the limit further.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Awaits `answer`, the response to a request with a body of `uploaded` bytes, and reads its body. The time limits
/// depend on the sizes of the two bodies. `explain` returns the meaning of a failure.
pub(in crate::stores) async fn exchange(
    env: &Env,
    uploaded: usize,
    answer: impl Future<Output = Result<Response, Meaning>>,
    expected: Expected<'_>,
    explain: impl Fn(Failure) -> Meaning,
) -> Result<(HeaderMap, Bytes), Meaning> {
    let late = |limit| explain(Failure::NoAnswer { detail: format!("within {limit:?}") });
    let limit = request_limit(REQUEST_LIMIT, uploaded);
    let sent = env.now();
    let response = clock::timeout(&*env.clock, limit, answer).await.ok_or_else(|| late(limit))??;
    let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
    let limit = limit.max(request_limit(REQUEST_LIMIT, announced.unwrap_or(0)));
    let left = limit.saturating_sub(env.now().longest_since(sent));
    let headers = response.headers().clone();
    let body = clock::timeout(&*env.clock, left, expected.read(response, announced, &explain)).await;
    Ok((headers, body.ok_or_else(|| late(limit))??))
}

/// The expected body of a response.
pub(in crate::stores) enum Expected<'a> {
    /// The contents of this object.
    Contents(Contents, &'a str),
    /// Another document of the store, of at most this many bytes.
    Answer(usize),
}

impl Expected<'_> {
    async fn read(
        &self,
        response: Response,
        announced: Option<usize>,
        explain: impl Fn(Failure) -> Meaning,
    ) -> Result<Bytes, Meaning> {
        let most = match self {
            Self::Contents(contents, _) => contents.most_bytes(),
            Self::Answer(most) => *most,
        };
        if let Self::Contents(contents, object) = self
            && announced.is_some_and(|length| length > most)
        {
            return Err(Meaning::Failed(contents.too_large(object, announced)));
        }
        let read = body(response, most).await.map_err(|error| explain(failure(error)))?;
        read.ok_or_else(|| {
            Meaning::Failed(match self {
                Self::Contents(contents, object) => contents.too_large(object, None),
                Self::Answer(_) => {
                    Fault::new(ErrorKind::Corrupt, "the store's response does not end").maybe_applied()
                }
            })
        })
    }
}
