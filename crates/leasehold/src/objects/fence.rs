//! Fenced writes: an object that refuses whoever lost the lock.
//!
//! A paused process goes on writing when its lock is another's. So every grant has a [`Token`] that is higher than those
//! before, and these functions write an object only if no higher token wrote it before: the object's metadata keeps the
//! highest in `leasehold-token`, and the write expects the version that was looked at.
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
//! An equal token is not refused: a holder writes as often as it likes. An object that was never fenced refuses nobody.
//! Whoever writes the object without leasehold, or deletes it, takes the token away with it.
//!
//! Where a version depends on the content alone (S3), a content that the object had under a lower token is refused
//! ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)), since a delayed write would take it for the old one. Put
//! something into the content that changes, such as the token.

use bytes::Bytes;

use super::cas_loop::{Change, Look, trust};
use super::update::Updated;
use crate::error::Error;
use crate::lease::Token;
use crate::register::Register;

/// Writes `bytes` to the object `key`, unless a higher token than `token` wrote it before: one look and one conditional
/// write. Its own metadata stays as it is.
///
/// Lost answers, limits and metadata are as in [`update`](super::update).
///
/// Dropping the future leaves the outcome unknown.
///
/// # Errors
/// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when a higher token wrote ([`Error::refused_by`]): nothing was written.
/// Otherwise as [`update`](super::update).
pub async fn write(register: &dyn Register, key: &str, token: Token, bytes: Bytes) -> Result<(), Error> {
    trust(register).await.map_err(Error::from)?;
    let change = Change { token: Some(token), ..Change::of(register, key, Look::Nothing) };
    change.run(async |_| Ok::<_, Error>(Some(bytes.clone()))).await.map(|_| ())
}

/// Changes the object `key` to what `make` makes of its content, unless a higher token than `token` wrote it before. Two
/// holders never lose one another's change: the earlier one's is either seen by the later one, or refused.
///
/// `make` is as in [`update`](super::update). When it changes nothing, nothing is written, and the token stays as it was.
///
/// Dropping the future leaves the outcome unknown.
///
/// # Errors
/// As [`write`](fn@write), and what `make` fails with.
pub async fn update<E: From<Error>, F: Future<Output = Result<Option<Bytes>, E>>>(
    register: &dyn Register,
    key: &str,
    token: Token,
    make: impl FnMut(Option<Bytes>) -> F,
) -> Result<Updated, E> {
    trust(register).await.map_err(Error::from)?;
    let change = Change { token: Some(token), ..Change::of(register, key, Look::Content) };
    change.run(make).await.map(Updated::from)
}

/// Reads the object `key` and makes sure that no lower token writes it from then on: for a new holder, before it acts on
/// what it reads. `None` when there is no object; then nothing is written, and a lower token may still create it.
///
/// A write, unless `token` wrote the object already.
///
/// # Errors
/// As [`write`](fn@write). [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on a store where versions depend on the
/// content alone (S3): writing the same again shuts nobody out there. Use [`update`](fn@update).
pub async fn read(register: &dyn Register, key: &str, token: Token) -> Result<Option<Bytes>, Error> {
    trust(register).await.map_err(Error::from)?;
    Change { token: Some(token), ..Change::of(register, key, Look::Content) }.raise().await
}
