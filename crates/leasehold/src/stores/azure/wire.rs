//! Builds requests and parses responses of Azure's REST API. Does not interpret the responses.

use std::collections::BTreeMap;

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use reqwest::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, ETAG, HeaderMap,
    HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH,
};
use serde::Deserialize;

use super::config::Target;
use crate::error::{ErrorKind, Fault};
use crate::register::{Body, Metadata, Precondition};
use crate::stores::over_http::https::Explanation;

/// The version of the REST API. Azure supports all versions. Emulators have supported this one since 2023.
pub(super) const API: &str = "2023-11-03";

/// The characters that are percent-encoded in a path.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The characters that are percent-encoded in a query. They include the slash.
const QUERY: &AsciiSet = &PATH.add(b'/');

/// The prefix of the headers with a blob's user metadata.
const META: &str = "x-ms-meta-";

/// A request without credentials.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// The percent-encoded path of the container or of a blob, below the account's base URL.
    pub(super) path: String,
    /// The query parameters, not encoded.
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) headers: HeaderMap,
    pub(super) content: Option<Bytes>,
}

impl Request {
    fn of(method: Method, path: String) -> Self {
        Self { method, path, query: Vec::new(), headers: HeaderMap::new(), content: None }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    /// Returns the URL at `base`. Appends `extra`, which is already encoded, to the query.
    pub(super) fn url(&self, base: &str, extra: &str) -> String {
        let encoded =
            |(name, value): &(&str, String)| format!("{name}={}", utf8_percent_encode(value, QUERY));
        let mut query: Vec<String> = self.query.iter().map(encoded).collect();
        if !extra.is_empty() {
            query.push(extra.to_owned());
        }
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{base}{}{mark}{}", self.path, query.join("&"))
    }
}

fn container_path(target: &Target) -> String {
    format!("/{}", target.container)
}

fn blob_path(target: &Target, blob: &str) -> String {
    format!("/{}/{}", target.container, utf8_percent_encode(blob, PATH))
}

/// Reads the content, the version and the metadata of a blob.
pub(super) fn read(target: &Target, blob: &str) -> Request {
    Request::of(Method::GET, blob_path(target, blob))
}

/// Reads the version, the size and the metadata of a blob.
pub(super) fn head(target: &Target, blob: &str) -> Request {
    Request::of(Method::HEAD, blob_path(target, blob))
}

/// Writes `body` as a block blob, if the blob meets `expect`.
pub(super) fn write(
    target: &Target,
    blob: &str,
    expect: Precondition<'_>,
    body: Body,
) -> Result<Request, Fault> {
    let mut request = Request::of(Method::PUT, blob_path(target, blob));
    let headers = &mut request.headers;
    headers.insert("x-ms-blob-type", HeaderValue::from_static("BlockBlob"));
    match expect {
        Precondition::Absent => headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*")),
        Precondition::Version(version) => headers.insert(IF_MATCH, etag_value(version.as_str())?),
    };
    write_metadata(headers, body.metadata)?;
    request.content = Some(body.bytes);
    Ok(request)
}

/// Deletes the blob if its version is still `version`.
pub(super) fn delete(target: &Target, blob: &str, version: &str) -> Result<Request, Fault> {
    let mut request = Request::of(Method::DELETE, blob_path(target, blob));
    request.headers.insert(IF_MATCH, etag_value(version)?);
    Ok(request)
}

/// An action on the lease of a blob.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lease {
    /// Acquires the lease, or renews it if it has the same id.
    Acquire {
        seconds: u64,
    },
    Renew,
    Release,
}

const LEASE_ID: &str = "x-ms-lease-id";

/// Acquires, renews or ends the lease `id`.
pub(super) fn lease(target: &Target, blob: &str, action: Lease, id: &HeaderValue) -> Request {
    let mut request = Request::of(Method::PUT, blob_path(target, blob)).with("comp", "lease");
    let headers = &mut request.headers;
    let (name, id_header) = match action {
        Lease::Acquire { seconds } => {
            headers.insert("x-ms-lease-duration", HeaderValue::from(seconds));
            ("acquire", "x-ms-proposed-lease-id")
        }
        Lease::Renew => ("renew", LEASE_ID),
        Lease::Release => ("release", LEASE_ID),
    };
    headers.insert("x-ms-lease-action", HeaderValue::from_static(name));
    headers.insert(id_header, id.clone());
    request.content = Some(Bytes::new());
    request
}

/// Like [`head`], but only if the blob is leased with `id`.
pub(super) fn head_leased(target: &Target, blob: &str, id: &HeaderValue) -> Request {
    let mut request = head(target, blob);
    request.headers.insert(LEASE_ID, id.clone());
    request
}

/// Replaces the metadata of a blob that is leased with `id`.
pub(super) fn sign(
    target: &Target,
    blob: &str,
    id: &HeaderValue,
    user: BTreeMap<String, String>,
) -> Result<Request, Fault> {
    let mut request = Request::of(Method::PUT, blob_path(target, blob)).with("comp", "metadata");
    request.headers.insert(LEASE_ID, id.clone());
    write_user_metadata(&mut request.headers, user)?;
    request.content = Some(Bytes::new());
    Ok(request)
}

/// Whether a response names the lease `id`.
pub(super) fn is_lease(headers: &HeaderMap, id: &HeaderValue) -> bool {
    headers.get(LEASE_ID).is_some_and(|answered| answered.as_bytes().eq_ignore_ascii_case(id.as_bytes()))
}

/// Returns the state of the blob's lease, like `leased`, and its kind, like `infinite`.
pub(super) fn lease_state(headers: &HeaderMap) -> (Option<&str>, Option<&str>) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    (text("x-ms-lease-state"), text("x-ms-lease-duration"))
}

/// Lists a page of the names that start with `prefix`.
pub(super) fn list(target: &Target, prefix: &str, page: Option<&str>) -> Request {
    let request = Request::of(Method::GET, container_path(target)).with("restype", "container");
    let request = request.with("comp", "list").with("prefix", prefix);
    match page {
        Some(page) => request.with("marker", page),
        None => request,
    }
}

/// Reads the settings of the container that affect its blobs.
pub(super) fn container(target: &Target) -> Request {
    Request::of(Method::HEAD, container_path(target)).with("restype", "container")
}

/// Reads the settings of the account that affect its blobs.
pub(super) fn service() -> Request {
    Request::of(Method::GET, "/".to_owned()).with("restype", "service").with("comp", "properties")
}

/// Returns `version` as the value of a precondition. Accepts only the entity tag of one stored state, and not `*`,
/// which matches every state.
fn etag_value(version: &str) -> Result<HeaderValue, Fault> {
    let value = is_etag(version).then(|| HeaderValue::from_str(version).ok()).flatten();
    value.ok_or_else(|| {
        Fault::new(ErrorKind::Invalid, format!("{version:?} is not the version of an Azure blob"))
    })
}

/// Whether the text is a single strong entity tag.
pub(super) fn is_etag(text: &str) -> bool {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.is_some_and(|inner| !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// Returns the entity tag in the headers of a response. Returns `None` if there is none.
pub(super) fn etag(headers: &HeaderMap) -> Option<String> {
    headers.get(ETAG)?.to_str().ok().filter(|tag| is_etag(tag)).map(str::to_owned)
}

/// The content headers of responses, each with the request header that sets it.
const CONTENT: [(HeaderName, &str); 5] = [
    (CONTENT_TYPE, "x-ms-blob-content-type"),
    (CACHE_CONTROL, "x-ms-blob-cache-control"),
    (CONTENT_ENCODING, "x-ms-blob-content-encoding"),
    (CONTENT_DISPOSITION, "x-ms-blob-content-disposition"),
    (CONTENT_LANGUAGE, "x-ms-blob-content-language"),
];

fn write_metadata(headers: &mut HeaderMap, metadata: Metadata) -> Result<(), Fault> {
    let said = |text: &str| Some(text.to_owned());
    let metadata = if metadata.is_empty() {
        // A cache must not keep a publicly readable record.
        Metadata { content_type: said("application/json"), cache_control: said("no-store"), ..metadata }
    } else {
        metadata
    };
    let values = [
        metadata.content_type,
        metadata.cache_control,
        metadata.content_encoding,
        metadata.content_disposition,
        metadata.content_language,
    ];
    for ((_, name), value) in CONTENT.iter().zip(values) {
        if let Some(value) = value {
            headers.insert(*name, header_value(name, &value)?);
        }
    }
    write_user_metadata(headers, metadata.user)
}

fn write_user_metadata(headers: &mut HeaderMap, user: BTreeMap<String, String>) -> Result<(), Fault> {
    for (name, value) in user {
        let header = HeaderName::try_from(format!("{META}{}", stored_name(&name)));
        let header = header.map_err(|_| {
            Fault::new(ErrorKind::Invalid, format!("{name:?} is not a name for a blob's metadata"))
        })?;
        let value = header_value(&name, &value)?;
        headers.insert(header, value);
    }
    Ok(())
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, Fault> {
    HeaderValue::from_str(value).map_err(|_| {
        Fault::new(
            ErrorKind::Unsupported,
            format!("the metadata {name:?} has a character that Azure's headers cannot carry"),
        )
        .with_help("use printable ASCII characters in a blob's metadata")
    })
}

/// Returns the stored form of a metadata name. Azure accepts only identifiers as names, so hyphens in leasehold's own
/// names are stored as underscores.
fn stored_name(name: &str) -> String {
    if name.starts_with("leasehold-") { name.replace('-', "_") } else { name.to_owned() }
}

fn read_name(name: &str) -> String {
    if name.starts_with("leasehold_") { name.replace('_', "-") } else { name.to_owned() }
}

/// Returns the metadata in the headers of a response.
pub(super) fn metadata(headers: &HeaderMap) -> Result<Metadata, Fault> {
    let text = |name: &str, value: &HeaderValue| {
        value.to_str().map(str::to_owned).map_err(|_| {
            Fault::new(ErrorKind::Unsupported, format!("the blob's metadata {name:?} cannot be read"))
                .with_help("leasehold keeps metadata of printable ASCII characters only")
        })
    };
    let mut content = CONTENT.iter().map(|(name, _)| {
        let value = headers.get(name).filter(|value| !value.is_empty());
        value.map(|value| text(name.as_str(), value)).transpose()
    });
    let mut next = || content.next().transpose().map(Option::flatten);
    let mut metadata = Metadata {
        content_type: next()?,
        cache_control: next()?,
        content_encoding: next()?,
        content_disposition: next()?,
        content_language: next()?,
        ..Metadata::default()
    };
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix(META) {
            metadata.user.insert(read_name(name), text(name, value)?);
        }
    }
    Ok(metadata)
}

/// The response to a listing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Listing {
    #[serde(default)]
    blobs: Blobs,
    #[serde(default)]
    next_marker: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Blobs {
    #[serde(rename = "Blob", default)]
    blobs: Vec<Blob>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blob {
    name: String,
}

impl Listing {
    /// Parses the body of a response. Returns `None` if it is not a listing.
    pub(super) fn of(body: &[u8]) -> Option<Self> {
        quick_xml::de::from_str(xml(body)?).ok()
    }

    /// Returns the names, and the token for the next page.
    pub(super) fn into_page(self) -> (Vec<String>, Option<String>) {
        let names = self.blobs.blobs.into_iter().map(|blob| blob.name).collect();
        (names, self.next_marker.filter(|marker| !marker.is_empty()))
    }
}

/// The settings of an account.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Service {
    pub(super) delete_retention_policy: Retention,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Retention {
    pub(super) enabled: bool,
}

impl Service {
    /// Parses the body of a response. Returns `None` if it has no settings.
    pub(super) fn of(body: &[u8]) -> Option<Self> {
        quick_xml::de::from_str(xml(body)?).ok()
    }
}

/// Returns the text of an XML document, without the byte order mark with which Azure's documents begin.
fn xml(body: &[u8]) -> Option<&str> {
    std::str::from_utf8(body).ok().map(|text| text.trim_start_matches('\u{feff}'))
}

/// Parses the code and the message in an error's body. `headers` also have the code, which is the only one for a HEAD.
pub(super) fn explanation(headers: &HeaderMap, body: &[u8]) -> Option<Explanation> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Refusal {
        code: Option<String>,
        message: Option<String>,
    }
    let named = headers.get("x-ms-error-code").and_then(|code| code.to_str().ok()).map(str::to_owned);
    match xml(body).and_then(|text| quick_xml::de::from_str(text).ok()) {
        Some(Refusal { code, message }) => Some((named.or(code), message)),
        None => named.map(|named| (Some(named), None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target { account: "acct1".into(), container: "locks".into(), base: "http://h/acct1".into() }
    }

    #[test]
    fn paths_and_queries_are_encoded() {
        let url = read(&target(), "p/a%20ü?.lock").url("http://h/acct1", "sv=1");
        assert_eq!(url, "http://h/acct1/locks/p/a%2520%C3%BC%3F.lock?sv=1");
        let url = list(&target(), "p/ü", Some("a+b=")).url("http://h", "");
        assert_eq!(url, "http://h/locks?restype=container&comp=list&prefix=p%2F%C3%BC&marker=a%2Bb%3D");
    }

    #[test]
    fn only_an_entity_tag_is_a_version() {
        for tag in ["\"0x8DB\"", "\"a\""] {
            assert!(is_etag(tag), "{tag}");
        }
        for other in ["", "*", "\"*\"", "0x8DB", "W/\"a\"", "\"a\", \"b\"", "\"\"", "\"a\r\n\""] {
            assert!(!is_etag(other), "{other}");
            assert!(delete(&target(), "x", other).is_err(), "{other}");
        }
    }

    #[test]
    fn metadata_goes_into_headers_and_comes_back() {
        let said = |text: &str| Some(text.to_owned());
        let mut metadata = Metadata { content_type: said("text/html"), ..Metadata::default() };
        metadata.content_language = said("de");
        metadata.user.insert("leasehold-token".into(), "7".into());
        metadata.user.insert("owner".into(), "ann".into());
        let mut headers = HeaderMap::new();
        write_metadata(&mut headers, metadata.clone()).unwrap();
        assert_eq!(headers["x-ms-meta-leasehold_token"], "7");
        assert_eq!(headers["x-ms-blob-content-type"], "text/html");
        for (name, sent) in CONTENT {
            if let Some(value) = headers.remove(sent) {
                headers.insert(name, value);
            }
        }
        assert_eq!(super::metadata(&headers).unwrap(), metadata);
        metadata.user.insert("bad".into(), "a\nb".into());
        assert!(write_metadata(&mut HeaderMap::new(), metadata).is_err());
    }

    #[test]
    fn listings_are_read() {
        let read = |text: &str| Listing::of(text.as_bytes()).map(Listing::into_page);
        let page = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ContainerName=\"c\"><Prefix>p</Prefix>\
                    <Blobs><Blob><Name>a.lock</Name><Properties><Etag>0x1</Etag></Properties></Blob>\
                    <Blob><Name>b &amp; c</Name></Blob></Blobs><NextMarker>m</NextMarker></EnumerationResults>";
        assert_eq!(read(page), Some((vec!["a.lock".into(), "b & c".into()], Some("m".into()))));
        let empty = "<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>";
        assert_eq!(read(empty), Some((vec![], None)));
        for other in ["", "{}", "<html>", "\u{0}"] {
            assert!(
                Listing::of(other.as_bytes()).is_none_or(|page| page.into_page().0.is_empty()),
                "{other}"
            );
        }
        assert!(Listing::of(&[0xff]).is_none());
    }
}
