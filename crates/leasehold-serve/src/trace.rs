//! The span of a request, a child of the span of its caller.

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, info_span};

use crate::app::{Arrival, PROBES};

/// Handles a request that was admitted in a span with the fields of OpenTelemetry's conventions for HTTP. The span ends
/// when the head of the response is known. Its parent is the span that `traceparent` names, if the caller has any rights.
/// Otherwise everyone who can reach the server could decide what is sampled.
///
/// The span contains the route, but not the path, which can be anything. Probes have no span, because there are many
/// and they are all alike.
pub(crate) async fn trace(request: Request, next: Next) -> Response {
    if PROBES.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let method = method(request.method());
    let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    let span = info_span!(
        "leasehold.http",
        otel.name = name,
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty
    );
    if is_trusted(&request) {
        remote::set_parent(&span, request.headers());
    }
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    response
}

fn is_trusted(request: &Request) -> bool {
    request.extensions().get::<Arrival>().is_some_and(|arrival| !arrival.caller.has_no_rights())
}

/// Returns the method as the conventions name it, so that a client cannot invent names.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "_OTHER",
    }
}

/// Returns a span for an acquisition that may outlast the request that began it. A span of `tracing` ends only after
/// its children. So the span of the request is the parent of this span in the exported trace, but not in `tracing`.
pub(crate) fn waiting() -> Span {
    let span = info_span!(parent: None, "leasehold.waiting");
    remote::set_parent_to_current(&span);
    span
}

/// Parents that are not spans of `tracing`.
#[cfg(feature = "otlp")]
mod remote {
    use axum::http::HeaderMap;
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    /// Makes the span that `headers` name the parent of `span`, if it is exported and the header is valid.
    pub(super) fn set_parent(span: &Span, headers: &HeaderMap) {
        if let Some(parent) = parent(headers) {
            // An error means that spans are not exported.
            let _ = span.set_parent(Context::new().with_remote_span_context(parent));
        }
    }

    pub(super) fn set_parent_to_current(span: &Span) {
        let _ = span.set_parent(Span::current().context());
    }

    /// Returns the span that the header `traceparent` names. `tracestate` is not read, because the server does not pass
    /// it on.
    fn parent(headers: &HeaderMap) -> Option<SpanContext> {
        let mut values = headers.get_all("traceparent").iter();
        match (values.next(), values.next()) {
            (Some(value), None) => parse(value.to_str().ok()?),
            _ => None,
        }
    }

    /// Parses a `traceparent`: <https://www.w3.org/TR/trace-context/#traceparent-header>. `TraceContextPropagator` of
    /// opentelemetry_sdk accepts values that the specification calls invalid: short ids, signs, spaces.
    fn parse(value: &str) -> Option<SpanContext> {
        let mut parts = value.splitn(5, '-');
        let mut hex = |digits: usize| {
            let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            parts.next().filter(|part| part.len() == digits && part.bytes().all(is_hex))
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        // Later versions may have more fields.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let context = SpanContext::new(trace, span, flags, true, TraceState::NONE);
        context.is_valid().then_some(context)
    }

    #[cfg(test)]
    mod tests {
        use axum::http::HeaderValue;

        use super::*;

        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        const SPAN: &str = "00f067aa0ba902b7";

        #[test]
        fn a_valid_traceparent_names_the_parent() {
            for (value, is_sampled) in [
                (format!("00-{TRACE}-{SPAN}-01"), true),
                (format!("00-{TRACE}-{SPAN}-00"), false),
                (format!("00-{TRACE}-{SPAN}-ff"), true),
                // A later version with more fields.
                (format!("cc-{TRACE}-{SPAN}-01-what-the-future-brings"), true),
            ] {
                let parent = parse(&value).unwrap();
                assert_eq!(parent.trace_id().to_string(), TRACE);
                assert_eq!(parent.span_id().to_string(), SPAN);
                assert!(parent.is_remote() && parent.is_sampled() == is_sampled, "{value}");
            }
        }

        #[test]
        fn a_malformed_traceparent_is_ignored() {
            for value in [
                String::new(),
                "00".to_owned(),
                format!("ff-{TRACE}-{SPAN}-01"),
                format!("00-{TRACE}-{SPAN}-01-"),
                format!("00-{TRACE}-{SPAN}-01-more"),
                format!("cc-{TRACE}-{SPAN}-01.more"),
                format!("00-{TRACE}-{SPAN}-1"),
                format!("00-{TRACE}-{SPAN}"),
                format!("0-{TRACE}-{SPAN}-01"),
                format!("+0-{TRACE}-{SPAN}-01"),
                format!(" 00-{TRACE}-{SPAN}-01"),
                format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
                format!("00-{}-{SPAN}-01", &TRACE[1..]),
                format!("00-{TRACE}-0{SPAN}-01"),
                format!("00-{TRACE}-{SPAN}-0g"),
                format!("00-{}-{SPAN}-01", "0".repeat(32)),
                format!("00-{TRACE}-{}-01", "0".repeat(16)),
                format!("00-{TRACE}-+0f067aa0ba902b7-01"),
                format!("00-{}-{SPAN}-01", "é".repeat(16)),
                "-".repeat(100_000),
            ] {
                assert!(parse(&value).is_none(), "{value}");
            }
        }

        #[test]
        fn two_traceparents_are_ignored() {
            let mut headers = HeaderMap::new();
            let value = HeaderValue::from_str(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
            headers.append("traceparent", value.clone());
            assert!(parent(&headers).is_some());
            headers.append("traceparent", value);
            assert!(parent(&headers).is_none());
        }
    }
}

/// Without the feature `otlp`, spans are not exported and have no such parents.
#[cfg(not(feature = "otlp"))]
mod remote {
    use axum::http::HeaderMap;
    use tracing::Span;

    pub(super) const fn set_parent(_: &Span, _: &HeaderMap) {}

    pub(super) const fn set_parent_to_current(_: &Span) {}
}
