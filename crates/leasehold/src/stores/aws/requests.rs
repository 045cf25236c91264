//! Observes the requests of one client. Reads the store's clock from the responses, and classifies a failure by how far
//! the request got.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
#[cfg(feature = "s3")]
use aws_sdk_s3::operation::create_session::CreateSessionError;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_runtime_api::http::Response;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;

use super::credentials::StoreCredentials;
use super::http::{Authorities, Network};
use super::sign_in::credentials_help;
use super::watch::{Reached, Watch, date_us};
use crate::clock::{Moment, StoreClock, StoreTime};
use crate::env::Env;
use crate::stores::certificates::is_untrusted;
use crate::stores::over_http::answer::{Answer, Failure, Impostor};
use crate::stores::over_http::causes::{causes, chain};

/// The clock difference above which the clock counts as the cause of a refused signature. Signatures are valid for 5 to
/// 15 minutes, depending on the service.
const SIGNATURES_LAST: Duration = Duration::from_secs(4 * 60);

/// Observes every request of one client.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Requests {
    env: Env,
    clock: Arc<StoreClock>,
    credentials: StoreCredentials,
    /// Whether credentials were ever loaded. If so, a later failure may be transient.
    signed_once: Arc<AtomicBool>,
    /// The client that sends the requests, if it is not the SDK's own.
    network: Option<Network>,
}

impl Requests {
    pub(in crate::stores) fn new(env: Env, credentials: StoreCredentials, network: Option<Network>) -> Self {
        Self { env, clock: Arc::default(), credentials, signed_once: Arc::default(), network }
    }

    pub(in crate::stores) fn env(&self) -> &Env {
        &self.env
    }

    /// Returns the only certificates to trust, if a setting names any.
    pub(in crate::stores) fn authorities(&self) -> Option<&Authorities> {
        self.network.as_ref()?.authorities()
    }

    /// Returns bounds on the store's clock now, from the `Date` of its latest response.
    pub(in crate::stores) fn store_time(&self) -> Option<StoreTime> {
        self.clock.bounds(self.env.now())
    }

    /// Returns an observer for one request, to be passed to it as an interceptor.
    pub(in crate::stores) fn watch(&self) -> Watch {
        Watch::new(self.env.clone(), self.credentials.load())
    }

    /// Returns the result of the request that `watch` observed, with every failure classified.
    pub(in crate::stores) fn settle<T, E>(
        &self,
        watch: &Watch,
        result: Result<T, SdkError<E, Response>>,
    ) -> Result<T, Failure>
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let signed_before = match watch.reached() {
            Reached::Nothing => self.signed_once.load(Ordering::Relaxed),
            Reached::Signed | Reached::Sent => self.signed_once.swap(true, Ordering::Relaxed),
        };
        let code = result.as_ref().err().and_then(SdkError::as_service_error).and_then(|error| error.code());
        watch.tell(&self.clock, code);
        let answer = match result {
            Ok(answer) => match watch.page() {
                None => {
                    self.credentials.accepted();
                    return Ok(answer);
                }
                Some(status) => {
                    Failure::Answered(Answer { status, impostor: Some(Impostor::Page), ..Answer::default() })
                }
            },
            Err(error) => failure(&error, watch.reached(), signed_before, self.env.now()),
        };
        Err(match answer {
            Failure::NotConnected { detail } => {
                if let Some(network) = &self.network
                    && detail.contains("certificate")
                {
                    network.renew();
                }
                Failure::NotConnected { detail: self.naming_ca(detail) }
            }
            Failure::Answered(answer) => Failure::Answered(self.judged(answer, watch)),
            other => other,
        })
    }

    /// Notes whether the store accepted the credentials of a request that it refused.
    fn judged(&self, answer: Answer, watch: &Watch) -> Answer {
        let signed_before = if credentials_help(&answer).is_some() {
            self.credentials.refused(watch.load)
        } else {
            // The store checked the signature before it refused the request for another reason.
            if answer.code.is_some() && answer.status < 500 {
                self.credentials.accepted();
            }
            true
        };
        Answer { signed_before, ..answer }
    }

    /// Adds the name of the CA file to `detail` if the connection failed because the server's certificate is not
    /// trusted.
    fn naming_ca(&self, detail: String) -> String {
        match self.authorities() {
            Some(Authorities { file, .. }) if is_untrusted(&detail) => {
                format!("{detail} (only the certificates in {file:?} are trusted)")
            }
            _ => detail,
        }
    }
}

/// Converts the SDK's error to a type that does not depend on the SDK.
fn failure<E>(error: &SdkError<E, Response>, reached: Reached, signed_before: bool, now: Moment) -> Failure
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    if let Some(response) = error.raw_response() {
        return Failure::Answered(answer(error, response, now));
    }
    let detail = chain(error);
    match reached {
        Reached::Sent => Failure::NoAnswer { detail },
        Reached::Signed => Failure::NotConnected { detail },
        Reached::Nothing if matches!(error, SdkError::TimeoutError(_)) => {
            // The credentials continue to load in the background, so they may be ready for the next request.
            Failure::Credentials { detail: "they are still being loaded".to_owned(), before: true }
        }
        Reached::Nothing => match about_credentials(error) {
            Some(detail) => Failure::Credentials { detail, before: signed_before },
            None => about_session(error, now).unwrap_or(Failure::NotMade { detail }),
        },
    }
}

/// Returns why the SDK has no session for a directory bucket. It requests one before it signs the request itself.
/// Returns `None` if a session is not the cause of `error`.
///
/// The request itself was not sent. So a response after which it might have been applied is not returned as an answer.
#[cfg(feature = "s3")]
fn about_session(error: &(dyn StdError + 'static), now: Moment) -> Option<Failure> {
    let session =
        causes(error).find_map(|cause| cause.downcast_ref::<SdkError<CreateSessionError, Response>>())?;
    let detail = chain(session);
    let Some(response) = session.raw_response() else {
        return Some(Failure::NotConnected { detail });
    };
    let answer = answer(session, response, now);
    let is_refused =
        matches!(answer.status, 300..=404 | 501) && answer.code.as_deref() != Some("RequestTimeout");
    Some(match is_refused {
        true => Failure::Answered(answer),
        false => {
            Failure::Credentials { detail: format!("no session for the bucket: {detail}"), before: true }
        }
    })
}

#[cfg(not(feature = "s3"))]
fn about_session(_error: &(dyn StdError + 'static), _now: Moment) -> Option<Failure> {
    None
}

fn answer<E>(error: &SdkError<E, Response>, response: &Response, now: Moment) -> Answer
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let header = |name| response.headers().get(name);
    let service = error.as_service_error();
    let status = response.status().as_u16();
    let code = service.and_then(|error| error.code()).map(str::to_owned);
    let (kind, location, body) = (header("content-type"), header("location"), response.body().bytes());
    let impostor = Impostor::of(status, kind, location, body.unwrap_or_default());
    Answer {
        status,
        impostor: impostor.filter(|_| code.is_none() && header("x-amz-bucket-region").is_none()),
        code,
        message: service.and_then(|error| error.message()).map(str::to_owned),
        // The form with a date is not parsed. It is used for pages under maintenance, and no store throttles with it.
        retry_after: header("retry-after").and_then(|text| text.trim().parse().ok()).map(Duration::from_secs),
        region: header("x-amz-bucket-region").map(str::to_owned),
        clock_is_off: date_us(response.headers())
            .is_some_and(|us| Duration::from_micros(us.abs_diff(now.wall_us())) > SIGNATURES_LAST),
        ..Answer::default()
    }
}

/// Returns why the credentials could not be loaded. Returns `None` if credentials are not the cause of `error`.
fn about_credentials(error: &(dyn StdError + 'static)) -> Option<String> {
    let blamed = causes(error).find(|cause| cause.is::<CredentialsError>())?;
    // The text of a `CredentialsError` only says that credentials were not enabled or not loaded. Its source has the
    // details.
    let below =
        causes(blamed).find(|cause| !cause.is::<CredentialsError>() && !cause.is::<Arc<CredentialsError>>());
    Some(chain(below.unwrap_or(blamed)))
}
