//! Watches one request on its way through the SDK: what the store's clock said, and how far the request got.
//!
//! The SDK's errors do not tell whether a request can have reached the store. How far it got does, and decides between
//! "not applied" and "may be applied".

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

/// How far a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// It was not even signed.
    Nothing,
    /// It was signed, and there never was a connection to send it on.
    Signed,
    /// It may have reached the store.
    Sent,
}

/// One request's observer. Cloning gives another handle on the same request.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Watch {
    env: Env,
    clock: Arc<StoreClock>,
    progress: Arc<Mutex<Progress>>,
}

#[derive(Debug, Default)]
struct Progress {
    signing: bool,
    sent: Option<Moment>,
    connection: Option<CaptureSmithyConnection>,
}

impl Watch {
    pub(super) fn new(env: Env, clock: Arc<StoreClock>) -> Self {
        Self { env, clock, progress: Arc::default() }
    }

    /// How far the request got. To be asked when it is over.
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
            // The SDK's own interceptor has put it there, to be able to close the connection after an error.
            progress.connection = config.load::<CaptureSmithyConnection>().cloned();
        });
        Ok(())
    }

    /// Runs for every answer, whatever its status.
    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let received = self.env.now();
        let sent = self.progress.lock().unwrap_or_else(PoisonError::into_inner).sent;
        if let (Some(sent), Some(date_us)) = (sent, date_us(context.response().headers())) {
            self.clock.observe(date_us, DATE_RESOLUTION, sent, received);
        }
        Ok(())
    }
}

/// The `Date` of an answer in microseconds since the Unix epoch; `None` if it has none that tells the store's time now.
pub(super) fn date_us(headers: &Headers) -> Option<u64> {
    // With `Age` the answer comes from a cache, and its date from the past.
    if headers.get("age").is_some() {
        return None;
    }
    let date = DateTime::from_str(headers.get("date")?, Format::HttpDate).ok()?;
    u64::try_from(date.secs()).ok()?.checked_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.insert(*name, *value);
        }
        headers
    }

    #[test]
    fn a_date_is_read_unless_the_answer_is_from_a_cache() {
        let date = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date_us(&headers(&[date])), Some(784_111_777_000_000));
        assert_eq!(date_us(&headers(&[date, ("Age", "0")])), None);
        assert_eq!(date_us(&headers(&[])), None);
        for bad in ["", "yesterday", "1994-11-06T08:49:37Z", "Sun, 06 Nov 1894 08:49:37 GMT"] {
            assert_eq!(date_us(&headers(&[("Date", bad)])), None, "{bad}");
        }
    }
}
