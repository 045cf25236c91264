//! Fenced writes: an object that refuses writes of a holder that has lost its lock.
//!
//! A process that was paused may continue to write after another process was granted the lock. Every grant has a
//! [`Token`] that is higher than all earlier ones. The functions in this module write an object only if no higher token
//! has written it before. The object's metadata holds the highest token as `leasehold-token`, and each write expects
//! the version that was read.
//!
//! ```
//! # use std::sync::Arc;
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use leasehold::{env::Env, fence, stores::memory::MemoryRegister, ErrorKind, Token};
//!
//! let register = MemoryRegister::new(Env::system());
//! let (earlier, later) = (Token::new(7).unwrap(), Token::new(8).unwrap()); // guard.token()?
//! fence::write(&register, "state.json", earlier, "{\"step\":1}".into()).await?;
//! fence::write(&register, "state.json", later, "{\"step\":2}".into()).await?;
//!
//! let refused = fence::write(&register, "state.json", earlier, "{\"step\":3}".into()).await.unwrap_err();
//! assert_eq!((refused.kind(), refused.refused_by()), (ErrorKind::Lost, Some(later)));
//! # Ok::<_, leasehold::Error>(())
//! # }).unwrap();
//! ```
//!
//! A write with an equal token is accepted, so a holder may write any number of times. An object without a token
//! accepts every token. A client that writes or deletes the object without leasehold removes the token.
//!
//! On a store where a version depends only on the content (S3), a fenced write of a content that the object had under a
//! lower token is refused ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)), because a delayed write could
//! mistake it for the old content. Include something in the content that changes, such as the token.

use bytes::Bytes;

use super::cas_loop::{Change, Needs, trust};
use super::update::Updated;
use crate::error::Error;
use crate::lease::Token;
use crate::register::Register;

/// Writes `bytes` to the object `key`, unless a token higher than `token` has written it before. Costs one read of the
/// metadata and one conditional write. The object's own metadata stays as it is.
///
/// Lost responses, limits and metadata are as in [`update`](super::update).
///
/// ```
/// # use leasehold::{Locker, env::Env, fence, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let lock = Locker::open("mem:").await?.lock("deploy");
/// let guard = lock.acquire().await?;
/// let token = guard.token()?;
/// fence::write(&register, "state.json", token, "{\"step\":1}".into()).await?;
/// guard.release().await?;
///
/// let next = lock.acquire().await?;
/// fence::write(&register, "state.json", next.token()?, "{\"step\":2}".into()).await?;
/// let late = fence::write(&register, "state.json", token, "{\"step\":3}".into()).await.unwrap_err();
/// assert_eq!(late.refused_by(), Some(next.token()?));
/// # next.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// Not cancel safe: if the future is dropped, the outcome is unknown.
///
/// # Errors
/// - [`ErrorKind::Lost`](crate::ErrorKind::Lost): a higher token has written the object ([`Error::refused_by`]).
///   Nothing was written.
/// - Otherwise the same as [`update`](super::update).
pub async fn write(register: &dyn Register, key: &str, token: Token, bytes: Bytes) -> Result<(), Error> {
    trust(register).await.map_err(Error::from)?;
    let change = Change { token: Some(token), ..Change::of(register, key, Needs::Nothing) };
    change.run(async |_| Ok::<_, Error>(Some(bytes.clone()))).await.map(|_| ())
}

/// Replaces the content of the object `key` with the result of `make`, unless a token higher than `token` has written
/// it before.
///
/// Two holders never lose each other's change: the change of the earlier holder is either visible to the later one or
/// refused.
///
/// `make` works as in [`update`](super::update). If it changes nothing, nothing is written, and the stored token stays
/// as it was.
///
/// ```
/// # use leasehold::{Token, env::Env, fence, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let (earlier, later) = (Token::new(7).unwrap(), Token::new(8).unwrap()); // guard.token()?
/// fence::write(&register, "hits", earlier, "4".into()).await?;
/// let updated = fence::update(&register, "hits", later, async |content| {
///     let hits: u64 = content.map_or(0, |text| String::from_utf8_lossy(&text).parse().unwrap_or(0));
///     Ok::<_, leasehold::Error>(Some(format!("{}", hits + 1).into()))
/// })
/// .await?;
/// assert_eq!(updated.content.unwrap(), "5");
/// let refused = fence::update(&register, "hits", earlier, async |_| Ok::<_, leasehold::Error>(None)).await;
/// assert_eq!(refused.unwrap_err().refused_by(), Some(later));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// Not cancel safe: if the future is dropped, the outcome is unknown.
///
/// # Errors
/// Returns the same errors as [`write`](fn@write), and the error of `make`.
pub async fn update<E: From<Error>, F: Future<Output = Result<Option<Bytes>, E>>>(
    register: &dyn Register,
    key: &str,
    token: Token,
    make: impl FnMut(Option<Bytes>) -> F,
) -> Result<Updated, E> {
    trust(register).await.map_err(Error::from)?;
    let change = Change { token: Some(token), ..Change::of(register, key, Needs::Content) };
    change.run(make).await.map(Updated::from)
}

/// Reads the object `key`, and makes sure that no lower token writes it from then on. A new holder calls this before it
/// acts on the content.
///
/// Returns `None` if there is no object. Nothing is written then, and a lower token may still create the object.
///
/// This writes the object, unless `token` has written it before.
///
/// ```
/// # use leasehold::{Token, env::Env, fence, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let (earlier, later) = (Token::new(7).unwrap(), Token::new(8).unwrap()); // guard.token()?
/// fence::write(&register, "state.json", earlier, "{\"step\":1}".into()).await?;
///
/// // A new holder continues where the earlier one stopped. The earlier one can no longer write.
/// let state = fence::read(&register, "state.json", later).await?;
/// assert_eq!(state.unwrap(), "{\"step\":1}");
/// assert!(fence::write(&register, "state.json", earlier, "{\"step\":2}".into()).await.is_err());
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// Not cancel safe: if the future is dropped, the outcome is unknown. The call may be repeated.
///
/// # Errors
/// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): on this store, versions depend only on the content
///   (S3). Writing the same content again excludes no other writer there. Use [`update`](fn@update).
/// - Otherwise the same as [`write`](fn@write).
pub async fn read(register: &dyn Register, key: &str, token: Token) -> Result<Option<Bytes>, Error> {
    trust(register).await.map_err(Error::from)?;
    Change { token: Some(token), ..Change::of(register, key, Needs::Content) }.raise().await
}
