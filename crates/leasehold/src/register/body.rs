//! What a register keeps under a key: bytes, and what is said about them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Version;

/// What is said about an object's bytes: the headers that it is served with, and pairs of the user's own.
///
/// Written without any (`Metadata::default()`), an object is one of leasehold's records: a store gives it the headers that
/// suit those. With anything in it, exactly this is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
    /// `Content-Encoding`. The bytes are those that are stored: nothing is compressed or decompressed.
    pub content_encoding: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// The user's own pairs; names in lower case, as S3 gives them back.
    pub user: BTreeMap<String, String>,
}

impl Metadata {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The bytes of an object and its metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The bytes.
    pub bytes: Bytes,
    /// What is said about them.
    pub metadata: Metadata,
}

/// Bytes without metadata: a record.
impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, metadata: Metadata::default() }
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

/// What a register tells about a key without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What the store calls this state of the key.
    pub version: Version,
    /// What is said about the bytes.
    pub metadata: Metadata,
    /// How many bytes there are.
    pub size: u64,
}
