//! Builds requests and parses responses of the API.

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::lease::Lease;
use crate::error::{ErrorKind, Fault};
use crate::stores::over_http::https::Explanation;

const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The number of names in a page of a listing.
const PAGE: usize = 500;

/// How long the server keeps a watch open, in seconds. Some networks close idle connections after a few minutes.
const WATCH_S: u32 = 240;

const GROUP: &str = "coordination.k8s.io";

/// A request without credentials.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// The path and the query, encoded.
    pub(super) path_and_query: String,
    pub(super) accept: &'static str,
    /// The media type of the body, and the body.
    pub(super) content: Option<(&'static str, Bytes)>,
}

impl Request {
    fn of(method: Method, path_and_query: String) -> Self {
        Self { method, path_and_query, accept: JSON, content: None }
    }

    fn with(self, media_type: &'static str, content: &Value) -> Self {
        Self { content: Some((media_type, content.to_string().into())), ..self }
    }
}

const JSON: &str = "application/json";
/// Changes the named fields and keeps all others. Never creates an object.
const MERGE_PATCH: &str = "application/merge-patch+json";
/// Returns only the metadata of objects.
const NAMES: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

fn leases(namespace: &str) -> String {
    format!("/apis/{GROUP}/v1/namespaces/{namespace}/leases")
}

/// Reads the Lease `name`. The request has no resourceVersion, so the response is not older than the request.
pub(super) fn read(namespace: &str, name: &str) -> Request {
    Request::of(Method::GET, format!("{}/{name}", leases(namespace)))
}

/// Creates the Lease `name`.
pub(super) fn create(namespace: &str, name: &str, annotations: Value, spec: Value) -> Request {
    let path_and_query = format!("{}?fieldManager=leasehold", leases(namespace));
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "Lease",
        "metadata": { "name": name, "namespace": namespace, "annotations": annotations },
        "spec": spec,
    });
    Request::of(Method::POST, path_and_query).with(JSON, &object)
}

/// Changes the annotations of the Lease `name`, and its `spec` unless that is `None`, if the Lease is still at
/// `resource_version`.
///
/// Sends a patch, because a PUT would have to repeat the labels and annotations of other clients, and would create a
/// deleted Lease again.
pub(super) fn patch(
    namespace: &str,
    name: &str,
    resource_version: &str,
    annotations: Value,
    spec: Option<Value>,
) -> Request {
    let path_and_query = format!("{}/{name}?fieldManager=leasehold", leases(namespace));
    let metadata = json!({ "resourceVersion": resource_version, "annotations": annotations });
    let mut change = json!({ "metadata": metadata });
    if let (Some(spec), Some(change)) = (spec, change.as_object_mut()) {
        change.insert("spec".to_owned(), spec);
    }
    Request::of(Method::PATCH, path_and_query).with(MERGE_PATCH, &change)
}

/// Deletes the Lease `name` if it is still at `resource_version`.
pub(super) fn delete(namespace: &str, name: &str, resource_version: &str) -> Request {
    let options = json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "resourceVersion": resource_version },
    });
    Request::of(Method::DELETE, format!("{}/{name}", leases(namespace))).with(JSON, &options)
}

/// Lists a page of the Leases.
pub(super) fn list(namespace: &str, page: Option<&str>) -> Request {
    let mut path_and_query = format!("{}?limit={PAGE}", leases(namespace));
    if let Some(page) = page {
        path_and_query.push_str(&format!("&continue={}", utf8_percent_encode(page, QUERY)));
    }
    Request { accept: NAMES, ..Request::of(Method::GET, path_and_query) }
}

/// Watches the Lease `name`. The first event is its current state.
pub(super) fn watch(namespace: &str, name: &str) -> Request {
    let query = format!("watch=1&timeoutSeconds={WATCH_S}&fieldSelector=metadata.name%3D{name}");
    Request::of(Method::GET, format!("{}?{query}", leases(namespace)))
}

/// An event of a [`watch`]: a line of its response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The lock is held.
    Held,
    /// The lock may be free, or the watch has ended. The client must read the Lease.
    ReadAgain,
}

impl Event {
    pub(super) fn of(line: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Line {
            r#type: String,
            object: Lease,
        }
        let event: Option<Line> = serde_json::from_slice(line).ok();
        match event {
            Some(Line { r#type, object }) if matches!(r#type.as_str(), "ADDED" | "MODIFIED") => {
                if object.is_held() { Self::Held } else { Self::ReadAgain }
            }
            // The Lease was deleted, or the event is an error, such as 410 for a watch that is too far behind.
            _ => Self::ReadAgain,
        }
    }
}

/// Asks whether this user may do `verb` with Leases.
pub(super) fn may(namespace: &str, verb: &str) -> Request {
    let resource = json!({ "namespace": namespace, "verb": verb, "group": GROUP, "resource": "leases" });
    let kind = "SelfSubjectAccessReview";
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": { "resourceAttributes": resource },
    });
    let path_and_query = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned();
    Request::of(Method::POST, path_and_query).with(JSON, &review)
}

/// Returns the answer in the response to [`may`], or `None` if the response has another form.
pub(super) fn is_allowed(body: &[u8]) -> Option<bool> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    answer.pointer("/status/allowed")?.as_bool()
}

/// A page of a listing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Listing {
    metadata: ListMetadata,
    // An empty list is `null`.
    items: Option<Vec<Lease>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

impl Listing {
    /// Parses the body of a response.
    pub(super) fn of(body: &[u8]) -> Result<Self, Fault> {
        serde_json::from_slice(body).map_err(|_| {
            Fault::new(ErrorKind::Corrupt, "the server's listing cannot be read")
                .with_help("check that the endpoint is a Kubernetes API server")
        })
    }

    /// Returns the Leases of the page, and the token of the next page.
    pub(super) fn into_page(self) -> (Vec<Lease>, Option<String>) {
        (self.items.unwrap_or_default(), self.metadata.next.filter(|next| !next.is_empty()))
    }
}

/// Parses the code and the message in an error's body. The code is the reason, followed by the object's kind if the
/// reason is `NotFound`.
pub(super) fn explanation(body: &[u8]) -> Option<Explanation> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        reason: Option<String>,
        message: Option<String>,
        details: Option<Details>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Details {
        kind: Option<String>,
    }
    let Status { reason, message, details } = serde_json::from_slice(body).ok()?;
    let kind = details.and_then(|details| details.kind).unwrap_or_default();
    let code = match reason.as_deref() {
        Some("NotFound") => Some(format!("NotFound {kind}").trim_end().to_owned()),
        _ => reason,
    };
    Some((code, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_names_the_version_that_it_expects() {
        let request = patch("jobs", "x", "7", json!({ "a": "b" }), None);
        assert_eq!(
            request.path_and_query,
            "/apis/coordination.k8s.io/v1/namespaces/jobs/leases/x?fieldManager=leasehold"
        );
        let (media_type, body) = request.content.unwrap();
        assert_eq!(media_type, MERGE_PATCH);
        assert_eq!(body, r#"{"metadata":{"annotations":{"a":"b"},"resourceVersion":"7"}}"#);
        let (_, body) = delete("jobs", "x", "7").content.unwrap();
        assert!(String::from_utf8_lossy(&body).contains(r#""preconditions":{"resourceVersion":"7"}"#));
        assert!(list("jobs", Some("a=&b")).path_and_query.ends_with("?limit=500&continue=a%3D%26b"));
    }

    #[test]
    fn only_an_event_of_a_held_lock_needs_no_look() {
        let of = |r#type: &str, holder: &str| {
            let object = json!({ "metadata": {}, "spec": { "holderIdentity": holder } });
            Event::of(json!({ "type": r#type, "object": object }).to_string().as_bytes())
        };
        assert_eq!(of("ADDED", "x"), Event::Held);
        assert_eq!(of("MODIFIED", "x"), Event::Held);
        for (r#type, holder) in [("MODIFIED", ""), ("DELETED", "x"), ("ERROR", ""), ("ERROR", "x")] {
            assert_eq!(of(r#type, holder), Event::ReadAgain, "{type} {holder:?}");
        }
        assert_eq!(Event::of(b"<html>"), Event::ReadAgain);
        let path_and_query = watch("jobs", "x").path_and_query;
        assert!(
            path_and_query
                .ends_with("/jobs/leases?watch=1&timeoutSeconds=240&fieldSelector=metadata.name%3Dx"),
            "{path_and_query}"
        );
    }

    #[test]
    fn listings_are_read() {
        let page = |text: &str| {
            let (leases, next) = Listing::of(text.as_bytes()).unwrap().into_page();
            (leases.into_iter().map(|lease| lease.metadata.name).collect::<Vec<_>>(), next)
        };
        let text = r#"{"metadata":{"continue":"n"},"items":[{"metadata":{"name":"a","annotations":null}}]}"#;
        assert_eq!(page(text), (vec!["a".to_owned()], Some("n".to_owned())));
        assert_eq!(page(r#"{"metadata":{"continue":""},"items":null}"#), (vec![], None));
        assert!(Listing::of(b"<html>").is_err());
    }
}
