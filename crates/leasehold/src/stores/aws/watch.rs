//! Observes one request in the SDK: how far it got, and what the store's clock read.
//!
//! The SDK's errors do not show whether a request may have reached the store. The observed progress does, and so
//! decides between "not applied" and "maybe applied".

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::connection::CaptureSmithyConnection;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::http::Headers;
use aws_smithy_types::DateTime;
use aws_smithy_types::config_bag::ConfigBag;
use aws_smithy_types::date_time::Format;

use crate::clock::{Moment, StoreClock};
use crate::env::Env;

/// A `Date` header is rounded down to whole seconds.
const DATE_RESOLUTION: Duration = Duration::from_secs(1);

/// The statuses with which a gateway reports a failure of the store behind it. The store itself never sends them.
const OF_GATEWAYS: [u16; 2] = [502, 504];

/// How far a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// It was not signed.
    Nothing,
    /// It was signed, but there never was a connection to send it on.
    Signed,
    /// It may have reached the store.
    Sent,
}

/// The observer of one request. A clone observes the same request.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Watch {
    env: Env,
    /// The number of the load of the credentials that the request uses.
    pub(super) load: u64,
    progress: Arc<Mutex<Progress>>,
}

#[derive(Debug, Default)]
struct Progress {
    signing: bool,
    sent: Option<Moment>,
    connection: Option<CaptureSmithyConnection>,
    answer: Option<Answered>,
    /// The status of the response, if it is a web page without any header of Amazon's services.
    page: Option<u16>,
}

/// The head of a response.
#[derive(Clone, Copy, Debug)]
struct Answered {
    date_us: u64,
    sent: Moment,
    received: Moment,
    from: From,
    status: u16,
}

/// The likely sender of a response, by its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// The response has headers that only Amazon's services and servers that speak their protocols send.
    Store,
    /// The response is an XML document. If that is an error of S3, the response comes from the store.
    Xml,
    Anyone,
}

impl Watch {
    pub(super) fn new(env: Env, load: u64) -> Self {
        Self { env, load, progress: Arc::default() }
    }

    /// Passes the response's `Date` to `clock`, if the response certainly comes from the store. An intermediary has
    /// another clock. `error_code` is the service's error code, if the body of an error could be parsed.
    ///
    /// A successful response must have a header of the service, because a proxy's page can have status 200. An error
    /// must have the form of the service's errors.
    pub(super) fn tell(&self, clock: &StoreClock, error_code: Option<&str>) {
        let answer = self.progress.lock().unwrap_or_else(PoisonError::into_inner).answer;
        let Some(Answered { date_us, sent, received, from, status }) = answer else { return };
        let is_the_stores = match status {
            200..300 => from == From::Store,
            _ => from != From::Anyone && error_code.is_some() && !OF_GATEWAYS.contains(&status),
        };
        if is_the_stores {
            clock.observe(date_us, DATE_RESOLUTION, sent, received);
        }
    }

    /// Returns the status of the response, if it is a web page that does not come from the store.
    pub(super) fn page(&self) -> Option<u16> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).page
    }

    /// Returns how far the request got. Valid once the request has ended.
    pub(super) fn reached(&self) -> Reached {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match (&progress.sent, &progress.connection) {
            (None, _) if progress.signing => Reached::Signed,
            (None, _) => Reached::Nothing,
            (Some(_), Some(connection)) if connection.get().is_none() => Reached::Signed,
            (Some(_), _) => Reached::Sent,
        }
    }

    fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Intercept for Watch {
    fn name(&self) -> &'static str {
        "leasehold::Watch"
    }

    fn read_before_signing(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.update(|progress| progress.signing = true);
        Ok(())
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let sent = self.env.now();
        self.update(|progress| {
            progress.sent = Some(sent);
            // An interceptor of the SDK adds the connection to `config`, to be able to close it after an error.
            progress.connection = config.load::<CaptureSmithyConnection>().cloned();
        });
        Ok(())
    }

    /// Runs for every response, whatever its status.
    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let received = self.env.now();
        let response = context.response();
        let (headers, status) = (response.headers(), response.status().as_u16());
        let (date_us, from) = (date_us(headers), from(headers));
        let is_page = headers.get("content-type").is_some_and(|kind| kind.contains("html"))
            && !headers.iter().any(|(name, _)| name.to_ascii_lowercase().starts_with("x-amz"));
        self.update(|progress| {
            progress.page = is_page.then_some(status);
            let dated = date_us.zip(progress.sent);
            progress.answer = dated.map(|(date_us, sent)| Answered { date_us, sent, received, from, status });
        });
        Ok(())
    }
}

/// Returns the likely sender of a response. The headers with Amazon's request ids and checksums start with `x-amz`. A
/// few S3-compatible stores send only ETags.
fn from(headers: &Headers) -> From {
    let kind = headers.get("content-type").unwrap_or_default();
    let is_store = |name: &str| name.starts_with("x-amz") || name == "etag";
    if headers.iter().any(|(name, _)| is_store(&name.to_ascii_lowercase()))
        || kind.starts_with("application/x-amz-json")
    {
        From::Store
    } else if kind.contains("xml") && !kind.contains("html") {
        From::Xml
    } else {
        From::Anyone
    }
}

/// Returns the `Date` of a response in microseconds since the Unix epoch. Returns `None` if the headers do not show the
/// store's current time.
pub(super) fn date_us(headers: &Headers) -> Option<u64> {
    // A response with `Age` comes from a cache, so its date is in the past.
    if headers.get("age").is_some() {
        return None;
    }
    let date = DateTime::from_str(headers.get("date")?, Format::HttpDate).ok()?;
    u64::try_from(date.secs()).ok()?.checked_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_show_the_origin_of_a_response() {
        for (pair, origin) in [
            (("x-amz-request-id", "4A"), From::Store),
            (("x-amzn-RequestId", "4A"), From::Store),
            (("ETag", "\"a\""), From::Store),
            (("content-type", "application/x-amz-json-1.0"), From::Store),
            (("content-type", "application/xml;charset=utf-8"), From::Xml),
            (("content-type", "application/xhtml+xml"), From::Anyone),
            (("content-type", "text/html"), From::Anyone),
            (("server", "x-amz"), From::Anyone),
        ] {
            assert_eq!(from(&headers(&[pair])), origin, "{pair:?}");
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.insert(*name, *value);
        }
        headers
    }

    #[test]
    fn a_date_is_read_unless_the_response_is_from_a_cache() {
        let date = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date_us(&headers(&[date])), Some(784_111_777_000_000));
        assert_eq!(date_us(&headers(&[date, ("Age", "0")])), None);
        assert_eq!(date_us(&headers(&[])), None);
        for bad in ["", "yesterday", "1994-11-06T08:49:37Z", "Sun, 06 Nov 1894 08:49:37 GMT"] {
            assert_eq!(date_us(&headers(&[("Date", bad)])), None, "{bad}");
        }
    }
}
