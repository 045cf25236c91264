//! Sends requests to the server and interprets the responses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderMap, HeaderName};
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::answers::{Described, Problem};
use super::config::Config;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::Status;
use crate::stores::over_http::answer::{Failure, Impostor, help_if_tls, help_with_tls};
use crate::stores::over_http::https;
use crate::types::{LockName, printable};
use crate::view::LockDetail;

/// The characters to encode in a path. `/` separates the segments of a name and is not encoded.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b'/');
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b'.');

/// The longest response: a page of a listing, with the waiters of each lock.
const MAX_ANSWER: usize = 16 << 20;

/// The longest pause that the server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);

/// How much of a problem's text is shown in an error, in characters.
const MAX_DETAIL: usize = 300;

/// A server and the connections to it.
pub(super) struct Client {
    pub(super) config: Config,
    pub(super) env: Env,
    http: https::Client,
    /// Whether the server has accepted the token before.
    accepted: AtomicBool,
}

/// A request.
pub(super) struct Request {
    method: Method,
    /// The path and the query, encoded.
    target: String,
    headers: Vec<(HeaderName, String)>,
    body: Option<Value>,
    /// The beginning of error messages, such as `cannot acquire deploy/prod`.
    what: String,
    /// Whether the request can have an effect.
    changes: bool,
}

impl Request {
    pub(super) fn get(target: String, what: String) -> Self {
        Self { method: Method::GET, target, headers: Vec::new(), body: None, what, changes: false }
    }

    pub(super) fn post(target: &str, body: Value, what: String) -> Self {
        let (method, target) = (Method::POST, target.to_owned());
        Self { method, target, headers: Vec::new(), body: Some(body), what, changes: true }
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// A response that is not an error.
pub(super) enum Answer {
    /// Success, with a body.
    Done(HeaderMap, Vec<u8>),
    /// The lock is still at the version that the request named.
    Same,
    /// The key of the acquisition is spent.
    Spent(Problem),
    /// The lock was lost.
    Lost(Problem),
    /// The lock has another token.
    Changed,
    /// The lock is held.
    Held(Problem),
}

impl Client {
    pub(super) fn new(config: Config, env: Env) -> Result<Self, Error> {
        let http = https::Client::of(&config.transport)?;
        Ok(Self { config, env, http, accepted: AtomicBool::new(false) })
    }

    /// Sends `request` once. The caller must apply a time limit.
    pub(super) async fn send(&self, request: &Request) -> Result<Answer, StoreError> {
        let url = format!("{}{}", self.config.base, request.target);
        let mut builder = self.http.request(request.method.clone(), url);
        if let Some(token) = &self.config.token {
            builder = builder.header(AUTHORIZATION, token.header(&*self.env.clock).await);
        }
        for (name, value) in &request.headers {
            builder = builder.header(name, value);
        }
        if let Some(body) = &request.body {
            builder = builder.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        let response = self.http.send(builder).await.map_err(|failure| self.unanswered(request, failure))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = https::body(response, MAX_ANSWER)
            .await
            .map_err(|error| self.unanswered(request, self.http.failure(error)))?;
        let Some(body) = body else {
            return Err(self.incomprehensible(request, "the response does not end"));
        };
        let is_done = matches!(status, StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT);
        if is_done && !https::is_page(&headers) {
            self.accepted.store(true, Ordering::Relaxed);
            return Ok(Answer::Done(headers, body.to_vec()));
        }
        // A proxy may respond with its own error page.
        let problem: Option<Problem> = serde_json::from_slice(&body).ok();
        if problem.is_none()
            && let Some(impostor) = https::impostor(status.as_u16(), &headers, &body)
        {
            return Err(self.not_from_server(request, status, &impostor));
        }
        let problem = problem.unwrap_or_default();
        match (status.as_u16(), problem.word()) {
            (304, _) => Ok(Answer::Same),
            (409, "key-spent") => Ok(Answer::Spent(problem)),
            (410, "lost") => Ok(Answer::Lost(problem)),
            (412, "changed") => Ok(Answer::Changed),
            (423, "held") => Ok(Answer::Held(problem)),
            _ => Err(self.refusal(request, status, &headers, problem)),
        }
    }

    /// Reads the body of a success.
    pub(super) fn read<T: DeserializeOwned>(&self, request: &Request, body: &[u8]) -> Result<T, StoreError> {
        // serde's messages quote values, and the body may contain a ticket.
        serde_json::from_slice(body).map_err(|error| {
            let place = format!("the body cannot be read (line {}, column {})", error.line(), error.column());
            self.incomprehensible(request, &place)
        })
    }

    /// Sends `request` and reads the body. Any response but a success is an error.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        request: &Request,
    ) -> Result<(HeaderMap, T), StoreError> {
        match self.send(request).await? {
            Answer::Done(headers, body) => Ok((headers, self.read(request, &body)?)),
            _ => Err(self.unexpected(request)),
        }
    }

    /// Sends `request` and returns the headers, without reading the body. Any response but a success is an error.
    pub(super) async fn done(&self, request: &Request) -> Result<HeaderMap, StoreError> {
        match self.send(request).await? {
            Answer::Done(headers, _) => Ok(headers),
            _ => Err(self.unexpected(request)),
        }
    }

    /// Returns the capabilities of the server's store, and the caller's rights.
    pub(super) async fn described(&self) -> Result<Described, StoreError> {
        let request =
            Request::get("/v1/store".to_owned(), "cannot read the capabilities of the store".to_owned());
        Ok(self.ask(&request).await?.1)
    }

    /// Returns the status of a lock, and its version.
    pub(super) async fn shown(&self, name: &LockName) -> Result<(Status, Option<String>), StoreError> {
        let request = Request::get(lock_path(name), format!("cannot inspect {name}"));
        let (headers, shown): (_, LockDetail) = self.ask(&request).await?;
        let status = shown.status(name);
        let status = status.ok_or_else(|| self.incomprehensible(&request, "it is about another lock"))?;
        let tag = headers.get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        Ok((status, tag))
    }

    /// Returns the error for a response that does not match its request.
    pub(super) fn incomprehensible(&self, request: &Request, why: &str) -> StoreError {
        let message =
            format!("{}: the response of {} cannot be trusted: {why}", request.what, self.config.base);
        let help =
            "check that the URL is that of a `leasehold serve`, and that no proxy changes its responses";
        request.unknown(Fault::new(ErrorKind::Corrupt, message).with_help(help))
    }

    /// Returns the error for a response of something other than a `leasehold serve`.
    fn not_from_server(&self, request: &Request, status: StatusCode, impostor: &Impostor) -> StoreError {
        let (what, help) = impostor.explained("the store URL");
        let message =
            format!("{}: {} responded with {}: {what}", request.what, self.config.base, status.as_u16());
        let fault = Fault::new(ErrorKind::Unsupported, message).with_help(help);
        // A redirect and a refusal have no effect.
        if status.is_success() { request.unknown(fault) } else { fault.not_applied() }
    }

    /// Returns the error for a kind of response that the request cannot have.
    pub(super) fn unexpected(&self, request: &Request) -> StoreError {
        self.incomprehensible(request, "the response does not match the request")
    }

    /// Returns the error for a request without a response.
    fn unanswered(&self, request: &Request, failure: Failure) -> StoreError {
        let (what, base) = (&request.what, &self.config.base);
        match failure {
            Failure::NotConnected { detail } => {
                let help = help_with_tls("", base, &detail).unwrap_or_else(|| {
                    "check that `leasehold serve` runs there, and the proxy, the name resolution and the network"
                        .to_owned()
                });
                Fault::unavailable(format!("no connection to {base}: {detail}")).with_help(help).not_applied()
            }
            Failure::NoAnswer { detail } => {
                let fault = Fault::unavailable(format!("{what}: no response from {base}: {detail}"));
                request.unknown(match help_if_tls("", base, &detail) {
                    Some(help) => fault.with_help(help),
                    None => fault,
                })
            }
            _ => {
                Fault::new(ErrorKind::Invalid, format!("{what}: the request could not be made")).not_applied()
            }
        }
    }

    /// Returns the error for a response that refuses a request.
    fn refusal(
        &self,
        request: &Request,
        status: StatusCode,
        headers: &HeaderMap,
        problem: Problem,
    ) -> StoreError {
        let base = &self.config.base;
        let mut message = format!("{}: {base} responded with {}", request.what, status.as_u16());
        if let Some(detail) = &problem.detail {
            message.push_str(": ");
            message.push_str(&printable(detail, MAX_DETAIL));
        }
        let fault = |kind| match problem.help.first() {
            Some(help) => Fault::new(kind, &message).with_help(printable(help, MAX_DETAIL)),
            None => Fault::new(kind, &message),
        };
        match (status.as_u16(), problem.word()) {
            // The file of the token may get a new one only after the old one has expired.
            (401, _) => Fault::new(
                if self.accepted.load(Ordering::Relaxed) { ErrorKind::Unavailable } else { ErrorKind::Denied },
                &message,
            )
                .with_help("set LEASEHOLD_HTTP_TOKEN to a token that the server accepts, or name its file with ?token_file=/path; a token that expires belongs in a file, which is read for each request")
                .not_applied(),
            (403, _) => fault(ErrorKind::Denied).not_applied(),
            (_, "store-denied") => request.unknown(fault(ErrorKind::Denied)),
            (_, "corrupt") => request.unknown(fault(ErrorKind::Corrupt)),
            (501, "unsupported") => fault(ErrorKind::Unsupported).not_applied(),
            (404 | 405, _) => fault(ErrorKind::Unsupported)
                .with_help("the URL is not that of a `leasehold serve`, or the server is older")
                .not_applied(),
            (400 | 413 | 415 | 421 | 428, _) => fault(ErrorKind::Invalid).not_applied(),
            (429, _) => paced(fault(ErrorKind::Unavailable), headers).not_applied(),
            (408 | 500..=599, _) => request.unknown(paced(fault(ErrorKind::Unavailable), headers)),
            _ => request.unknown(
                fault(ErrorKind::Corrupt).with_help("check that the URL is that of a `leasehold serve`"),
            ),
        }
    }
}

impl Request {
    /// Returns the error for a request that may have taken effect, if it can have an effect.
    fn unknown(&self, fault: Fault) -> StoreError {
        if self.changes { fault.maybe_applied() } else { fault.not_applied() }
    }
}

/// Adds the pause that the server asks for to `fault`.
fn paced(fault: Fault, headers: &HeaderMap) -> Fault {
    match https::retry_after(headers) {
        Some(pause) => fault.with_retry_after(pause.min(MAX_RETRY_AFTER)),
        None => fault,
    }
}

/// Returns the path of a lock.
pub(super) fn lock_path(name: &LockName) -> String {
    format!("/v1/locks/{}", utf8_percent_encode(name.as_str(), PATH))
}

/// Encodes a value for a query.
pub(super) fn query(value: &str) -> String {
    utf8_percent_encode(value, QUERY).to_string()
}

/// Formats a duration for the server.
pub(super) fn duration(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}
