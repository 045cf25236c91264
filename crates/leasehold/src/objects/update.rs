//! Optimistic updates: read, change, and write if nothing has changed in the meantime; otherwise start over.

use bytes::Bytes;

use super::cas_loop::{Change, Changed, Needs, trust};
use crate::error::Error;
use crate::register::Register;

/// The result of an update.
///
/// ```
/// # use leasehold::{env::Env, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let first = leasehold::update(&register, "limit", async |content| {
///     Ok::<_, leasehold::Error>(Some(content.unwrap_or("10".into()))) // only if there is none
/// })
/// .await?;
/// assert!(first.written);
/// assert_eq!(first.content.as_deref(), Some(&b"10"[..]));
///
/// let again = leasehold::update(&register, "limit", async |content| Ok::<_, leasehold::Error>(content)).await?;
/// assert!(!again.written);
/// assert_eq!((again.content, again.attempts), (first.content, 1));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// Whether something was written. `false` if the closure returned `None` or the content that was already there.
    pub written: bool,
    /// The content of the object after the update; `None` if there is no object.
    pub content: Option<Bytes>,
    /// How often the closure ran.
    pub attempts: u32,
}

impl From<Changed> for Updated {
    fn from(changed: Changed) -> Self {
        let Changed { content, written, attempts } = changed;
        Self { written, content, attempts }
    }
}

/// Replaces the content of the object `key` with the result of `make`. Creates the object if there is none.
///
/// `make` gets the content, or `None` if there is no object. It returns the new content, or `None` to leave everything
/// as it is. No change by another writer is lost. If another client wrote in the meantime, `make` runs again with the
/// new content, after a pause with full jitter. So `make` must not have side effects. (An async closure with `move`
/// does not compile here. Let it borrow.)
///
/// An update makes at most 256 attempts, within a minute. [`Object`](crate::Object) has settings for both limits. It
/// also checks an unknown store only once instead of before each update.
///
/// If a response is lost, the update reads the object to find out whether the write was applied. It never applies a
/// write twice. For this purpose, the object's metadata holds the nonces of the latest writes. The object's own
/// metadata stays as it is. `docs/updates.md` has the rules and the limits.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{env::Env, stores::memory::MemoryRegister};
///
/// let register = MemoryRegister::new(Env::system());
/// for _ in 0..3 {
///     leasehold::update(&register, "hits", async |content| {
///         let hits: u64 = content.map_or(0, |text| String::from_utf8_lossy(&text).parse().unwrap_or(0));
///         Ok::<_, leasehold::Error>(Some(format!("{}", hits + 1).into()))
///     })
///     .await?;
/// }
/// # use leasehold::Register;
/// assert_eq!(&register.read("hits").await.unwrap().unwrap().value[..], b"3");
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// Not cancel safe: if the future is dropped, the outcome is unknown.
///
/// # Errors
/// - The error of `make`.
/// - [`ErrorKind::Conflict`](crate::ErrorKind::Conflict): other writers changed the object during each attempt.
/// - [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): it is unknown whether the update was applied
///   ([`Error::maybe_applied`]), or the store did not respond.
/// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the store ignores preconditions, the object is too
///   large, or its metadata has no room for the nonces.
/// - Other errors of the store.
pub async fn update<E: From<Error>, F: Future<Output = Result<Option<Bytes>, E>>>(
    register: &dyn Register,
    key: &str,
    make: impl FnMut(Option<Bytes>) -> F,
) -> Result<Updated, E> {
    trust(register).await.map_err(Error::from)?;
    Change::of(register, key, Needs::Content).run(make).await.map(Updated::from)
}
