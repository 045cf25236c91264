//! Builds requests and parses responses of the JSON API. Does not interpret the responses.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Method, Response, StatusCode};
use serde::{Deserialize, Serialize};

use super::config::Target;
use crate::clock::Moment;
use crate::lease::Id;
use crate::register::{Body, Metadata};
use crate::stores::over_http::https::{Explanation, date_us};

/// The characters that are percent-encoded in a path or a query. They include the slash, because an object's name is
/// one segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A request without credentials.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) url: String,
    pub(super) content: Option<(String, Bytes)>,
    /// Whether to request the bytes as they are stored. Otherwise GCS decompresses objects that are stored as gzip.
    pub(super) as_stored: bool,
}

impl Request {
    /// Returns the request with the project of `target` that pays for it, if there is one.
    pub(super) fn paid(mut self, target: &Target) -> Self {
        if let Some(project) = &target.user_project {
            let _ = write!(self.url, "&userProject={}", encoded(project));
        }
        self
    }
}

/// Reads the generation, the size and the metadata of an object.
pub(super) fn head(target: &Target, object: &str) -> Request {
    let fields = "generation%2Csize%2CcontentType%2CcacheControl%2CcontentEncoding%2CcontentDisposition%2C\
                  contentLanguage%2Cmetadata";
    Request {
        method: Method::GET,
        url: format!("{}?fields={fields}", object_url(target, object)),
        content: None,
        as_stored: false,
    }
}

/// Reads the bucket's settings that affect its objects.
pub(super) fn bucket(target: &Target) -> Request {
    let fields = "versioning%2CretentionPolicy%2CsoftDeletePolicy%2Clifecycle";
    Request {
        method: Method::GET,
        url: format!("{}/storage/v1/b/{}?fields={fields}", target.endpoint, encoded(&target.bucket)),
        content: None,
        as_stored: false,
    }
}

/// Reads the content and the generation of an object.
pub(super) fn read(target: &Target, object: &str) -> Request {
    let url = format!("{}?alt=media", object_url(target, object));
    Request { method: Method::GET, url, content: None, as_stored: false }
}

/// Writes `body` if the object's current generation is `generation`. Generation 0 stands for no object.
///
/// This is a multipart upload, because only such an upload includes metadata. Without `no-store`, Google's caches keep
/// a publicly readable record for an hour. GCS checks the precondition once, for the content and the metadata, when the
/// upload is complete.
pub(super) fn write(target: &Target, object: &str, generation: &str, body: Body, boundary: Id) -> Request {
    let resource = Resource { name: Some(object.to_owned()), ..Resource::new(body.metadata) };
    let value_type = resource.content_type.as_deref().unwrap_or("application/octet-stream");
    // A struct of strings always serializes.
    let metadata = serde_json::to_string(&resource).unwrap_or_default();
    let mut content = BytesMut::with_capacity(body.bytes.len() + metadata.len() + 300);
    for (kind, part) in [("application/json; charset=UTF-8", metadata.as_bytes()), (value_type, &body.bytes)]
    {
        content.extend_from_slice(format!("--{boundary}\r\nContent-Type: {kind}\r\n\r\n").as_bytes());
        content.extend_from_slice(part);
        content.extend_from_slice(b"\r\n");
    }
    content.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let mut url = format!(
        "{}/upload/storage/v1/b/{}/o?uploadType=multipart&ifGenerationMatch={}&fields=generation",
        target.endpoint,
        encoded(&target.bucket),
        encoded(generation),
    );
    if let Some(key) = &target.kms_key {
        let _ = write!(url, "&kmsKeyName={}", encoded(key));
    }
    Request {
        method: Method::POST,
        url,
        content: Some((format!("multipart/related; boundary={boundary}"), content.freeze())),
        as_stored: false,
    }
}

/// Deletes the object if its current generation is `generation`.
///
/// Requests to Google's own endpoints contain only the precondition. A generation in the URL would select that version
/// of the object. In a bucket with versioning, an overwritten version still exists, and Google does not document that
/// the precondition then refers to the current version. If it did not, the request would delete an old version, and a
/// lock that is still held would count as released. The emulator fake-gcs-server needs the generation, because it
/// ignores the precondition.
pub(super) fn delete(target: &Target, object: &str, generation: &str) -> Request {
    let generation = encoded(generation);
    let version = if target.is_trusted() { String::new() } else { format!("generation={generation}&") };
    Request {
        method: Method::DELETE,
        url: format!("{}?{version}ifGenerationMatch={generation}", object_url(target, object)),
        content: None,
        as_stored: false,
    }
}

/// Lists a page of the names that start with `prefix`.
pub(super) fn list(target: &Target, prefix: &str, page: Option<&str>) -> Request {
    let mut url = format!(
        "{}/storage/v1/b/{}/o?prefix={}&fields=items(name)%2CnextPageToken",
        target.endpoint,
        encoded(&target.bucket),
        encoded(prefix)
    );
    if let Some(page) = page {
        // Writing to a string does not fail.
        let _ = write!(url, "&pageToken={}", encoded(page));
    }
    Request { method: Method::GET, url, content: None, as_stored: false }
}

fn object_url(target: &Target, object: &str) -> String {
    format!("{}/storage/v1/b/{}/o/{}", target.endpoint, encoded(&target.bucket), encoded(object))
}

fn encoded(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, SEGMENT)
}

/// An object's metadata, with the field names of the JSON API.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resource {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_disposition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_language: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    #[serde(skip_serializing)]
    pub(super) generation: Option<String>,
    #[serde(skip_serializing)]
    pub(super) size: Option<String>,
}

impl Resource {
    fn new(metadata: Metadata) -> Self {
        if metadata.is_empty() {
            let said = |text: &str| Some(text.to_owned());
            return Self {
                content_type: said("application/json"),
                cache_control: said("no-store"),
                ..Self::default()
            };
        }
        Self {
            content_type: metadata.content_type,
            cache_control: metadata.cache_control,
            content_encoding: metadata.content_encoding,
            content_disposition: metadata.content_disposition,
            content_language: metadata.content_language,
            metadata: metadata.user,
            ..Self::default()
        }
    }

    /// Converts the resource to the metadata of an object.
    pub(super) fn into_metadata(self) -> Metadata {
        // Emulators return an empty text for a header that the object does not have.
        let said = |header: Option<String>| header.filter(|text| !text.is_empty());
        Metadata {
            content_type: said(self.content_type),
            cache_control: said(self.cache_control),
            content_encoding: said(self.content_encoding),
            content_disposition: said(self.content_disposition),
            content_language: said(self.content_language),
            user: self.metadata,
        }
    }
}

/// The response to a write.
#[derive(Debug, Deserialize)]
pub(super) struct Written {
    pub(super) generation: Option<String>,
}

/// The response to a listing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listing {
    #[serde(default)]
    pub(super) items: Vec<Item>,
    pub(super) next_page_token: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Item {
    pub(super) name: String,
}

/// Returns the generation in the headers of a response. Returns `None` if there is none.
pub(super) fn generation(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-goog-generation")?.to_str().ok()
}

/// The store's time in the headers of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dated {
    pub(super) us: u64,
    pub(super) sent: Moment,
    pub(super) received: Moment,
    status: StatusCode,
    /// Whether the response has headers that only GCS and servers that speak its protocol send.
    by_headers: bool,
    is_json: bool,
}

impl Dated {
    /// Reads the time in the headers of a response. Returns `None` if it is missing.
    pub(super) fn of(response: &Response, sent: Moment, received: Moment) -> Option<Self> {
        let headers = response.headers();
        let is_gcs = |name: &str| name.starts_with("x-goog-") || name == "x-guploader-uploadid";
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        Some(Self {
            us: date_us(headers)?,
            sent,
            received,
            status: response.status(),
            by_headers: headers.keys().any(|name| is_gcs(name.as_str())),
            is_json: kind.starts_with("application/json"),
        })
    }

    /// Whether the response, and so its date, certainly comes from the store. An intermediary has another clock.
    /// `reason` is the reason of an error in GCS's JSON. The status of a gateway's own response shows that it comes
    /// from a gateway.
    pub(super) fn is_the_stores(&self, reason: Option<&str>, is_emulator: bool) -> bool {
        let is_gateways = matches!(self.status, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT);
        let in_its_form = if self.status.is_success() { self.is_json } else { reason.is_some() };
        // Emulators respond to a read of a missing object in a form that any server could use.
        let is_nothing = is_emulator && self.status == StatusCode::NOT_FOUND;
        !is_gateways && (self.by_headers || in_its_form || is_nothing)
    }
}

/// Parses the reason and the message in an error's body. Returns `None` for plain text, which is the body for a download.
pub(super) fn explanation(text: &[u8]) -> Option<Explanation> {
    #[derive(Deserialize)]
    struct Body {
        error: Details,
    }
    #[derive(Deserialize)]
    struct Details {
        #[serde(default)]
        message: Option<String>,
        #[serde(default)]
        errors: Vec<Reason>,
    }
    #[derive(Deserialize)]
    struct Reason {
        reason: Option<String>,
    }
    let Body { error } = serde_json::from_slice(text).ok()?;
    Some((error.errors.into_iter().next().and_then(|first| first.reason), error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_segment_each() {
        let target = Target { bucket: "b".into(), endpoint: "http://h".into(), ..Target::default() };
        assert_eq!(
            read(&target, "p/a%20ü?.lock").url,
            "http://h/storage/v1/b/b/o/p%2Fa%2520%C3%BC%3F.lock?alt=media"
        );
        assert_eq!(
            list(&target, "p/ü", Some("a+b=")).url,
            "http://h/storage/v1/b/b/o?prefix=p%2F%C3%BC&fields=items(name)%2CnextPageToken&pageToken=a%2Bb%3D"
        );
        let request =
            write(&target, "p/\"x\"", "7", "{}".into(), Id::random(&crate::random::Random::seeded(1)));
        let body = String::from_utf8(request.content.unwrap().1.to_vec()).unwrap();
        assert!(body.contains("{\"name\":\"p/\\\"x\\\"\",\"contentType\""), "{body}");
    }

    #[test]
    fn a_delete_at_google_targets_the_live_object() {
        let target =
            |endpoint: &str| Target { bucket: "b".into(), endpoint: endpoint.into(), ..Target::default() };
        assert_eq!(
            delete(&target("https://storage.googleapis.com"), "x", "7").url,
            "https://storage.googleapis.com/storage/v1/b/b/o/x?ifGenerationMatch=7"
        );
        assert_eq!(
            delete(&target("http://h"), "x", "7").url,
            "http://h/storage/v1/b/b/o/x?generation=7&ifGenerationMatch=7"
        );
    }

    #[test]
    fn errors_are_read_in_every_form() {
        let json = br#"{"error":{"code":412,"message":"m","errors":[{"domain":"global","reason":"conditionNotMet"}]}}"#;
        assert_eq!(explanation(json), Some((Some("conditionNotMet".into()), Some("m".into()))));
        assert_eq!(explanation(b"{\"error\":{\"code\":412}}"), Some((None, None)));
        for other in [&b"No such object: b/x\n"[..], b"", b"{\"error\":\"invalid\"}", &[0xff; 10]] {
            assert_eq!(explanation(other), None);
        }
    }
}
