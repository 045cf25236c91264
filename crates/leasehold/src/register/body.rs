//! The value that a register stores under a key: bytes and metadata.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Version;

/// The metadata of an object: the headers that it is served with, and the user's own pairs.
///
/// Empty metadata (`Metadata::default()`) marks an object as one of leasehold's records. The store then sets the
/// headers that suit a record. Metadata that is not empty is written exactly as it is.
///
/// ```
/// # use leasehold::register::{Body, Metadata, Precondition, Register, Write};
/// # use leasehold::{env::Env, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let metadata = Metadata {
///     content_type: Some("application/json".to_owned()),
///     user: [("reviewer".to_owned(), "alice".to_owned())].into(),
///     ..Metadata::default()
/// };
/// let body = Body { bytes: "{}".into(), metadata };
/// let written = register.write("limits.json", Precondition::Absent, body).await?;
/// assert!(matches!(written, Write::Committed(_)));
///
/// let head = register.head("limits.json").await?.expect("it was written");
/// assert_eq!(head.metadata.user["reviewer"], "alice");
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
    /// `Content-Encoding`. The bytes are stored as they are: leasehold neither compresses nor decompresses them.
    pub content_encoding: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// The user's own pairs. Names are in lower case, as S3 returns them.
    pub user: BTreeMap<String, String>,
}

impl Metadata {
    /// Returns whether there is no metadata at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The bytes of an object and its metadata.
///
/// ```
/// use leasehold::register::{Body, Metadata};
///
/// let record = Body::from("{}"); // without metadata
/// assert!(record.metadata.is_empty());
///
/// let content_type = Some("application/json".to_owned());
/// let object = Body { metadata: Metadata { content_type, ..Metadata::default() }, ..record.clone() };
/// assert_eq!(object.bytes, record.bytes);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The bytes.
    pub bytes: Bytes,
    /// The metadata of the bytes.
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

/// The information that a register has about a key, without the bytes.
///
/// ```
/// # use leasehold::{env::Env, register::{Precondition, Register, Write}, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let created = register.write("limit", Precondition::Absent, "10".into()).await?;
/// let Write::Committed(version) = created else { panic!("the key exists") };
///
/// // Has it changed since?
/// let head = register.head("limit").await?.expect("it was written");
/// assert_eq!((head.version, head.size), (version, 2));
/// assert!(head.metadata.is_empty());
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The version of the key, as the store identifies it.
    pub version: Version,
    /// The metadata of the bytes.
    pub metadata: Metadata,
    /// The number of bytes.
    pub size: u64,
}
