//! Exports the spans of `leasehold serve` by OTLP over HTTP (feature `otlp`).
//!
//! The OpenTelemetry crates read the usual environment variables. A separate thread sends the spans. Its queue is
//! bounded, and a full queue drops spans, so that a slow or unreachable collector delays no lock.

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::exit::Failure;
use crate::log::LogLayer;

/// How long the shutdown of the server may wait until the last spans are sent. Together with the 20 s in which the
/// server finishes its requests, and a second for its threads, this is less than the 30 s after which supervisors kill a
/// process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// The variables that turn the export on. The first one that is set is used.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The variables with the protocol. The first one that is set is used.
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
/// The only protocol that is compiled in.
const PROTOCOL: &str = "http/protobuf";

/// The export of spans.
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts to export spans, if the environment names an endpoint.
    pub(crate) fn start() -> Result<Option<Self>, Failure> {
        let Some((endpoint, url)) = first_of(ENDPOINTS).filter(|_| !is_off()) else { return Ok(None) };
        if let Some((name, protocol)) = first_of(PROTOCOLS)
            && protocol != PROTOCOL
        {
            let message = format!("{name} is {protocol:?}, but leasehold exports traces by {PROTOCOL} only");
            return Err(Failure::usage(message).with_help(format!(
                "set {}={PROTOCOL} and an endpoint that accepts HTTP (usually port 4318)",
                PROTOCOLS[0]
            )));
        }
        if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
            let message = format!("{endpoint} is not a URL that begins with http:// or https://");
            return Err(Failure::usage(message).with_help("for example http://localhost:4318"));
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_http().build().map_err(|error| {
            // A URL may contain a password.
            let text = ENDPOINTS
                .iter()
                .filter_map(|name| variable(name))
                .fold(error.to_string(), |text, url| text.replace(&url, "..."));
            Failure::usage(format!("cannot export traces: {text}"))
                .with_help("docs/observability.md lists the variables")
        })?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_batch_exporter(LoggingExporter { exporter, failures: AtomicU64::new(0) })
            .build();
        Ok(Some(Self(provider)))
    }

    /// Returns the layer that exports the spans of leasehold, but not those of its dependencies.
    pub(crate) fn layer(&self) -> LogLayer {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("leasehold"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            // This prefix also matches `leasehold_serve`.
            .with_filter(Targets::new().with_target("leasehold", LevelFilter::DEBUG))
            .boxed()
    }

    /// Sends the last spans, within a limit.
    pub(crate) fn end(self) {
        if let Err(error) = self.0.shutdown_with_timeout(FLUSH_TIMEOUT) {
            tracing::warn!(%error, "the last traces could not be exported");
        }
    }
}

/// Returns the value of a variable. An empty value counts as not set.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the first variable that is set, with its value.
fn first_of<const N: usize>(names: [&'static str; N]) -> Option<(&'static str, String)> {
    names.into_iter().find_map(|name| Some((name, variable(name)?)))
}

fn is_off() -> bool {
    variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || variable("OTEL_TRACES_EXPORTER").is_some_and(|exporter| exporter != "otlp")
}

/// Returns the attributes of this process from the environment. Its name is `leasehold` if the environment sets none.
fn resource() -> Resource {
    let builder =
        || Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let resource = builder().build();
    let name = resource.get(&Key::from_static_str("service.name"));
    if name.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        return resource;
    }
    builder().with_service_name("leasehold").build()
}

/// An exporter that logs its first, second, fourth, eighth failure, and so on. It does not log every failure, because
/// an exporter tries again every few seconds.
#[derive(Debug)]
struct LoggingExporter<E> {
    exporter: E,
    failures: AtomicU64,
}

impl<E: SpanExporter> SpanExporter for LoggingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let outcome = self.exporter.export(batch).await;
        if let Err(error) = &outcome {
            let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
            if failures.is_power_of_two() {
                tracing::warn!(%error, failures, "traces could not be exported and are lost");
            }
        }
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
