//! [`Object`]: one object of a store, with several writers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::thread::wait;
use crate::error::Error;
use crate::lease::Token;
use crate::objects::Updated;
use crate::register::{Register, VersionedValue};
use crate::url::StoreUrl;

/// One object of a store, with the settings for writing it. See [`crate::Object`]. Cheap to clone.
///
/// ```no_run
/// use leasehold::{Error, blocking::Object};
///
/// let counter = Object::open("s3://my-bucket/stats/hits.txt?region=eu-west-1")?;
/// counter.update(|content| {
///     let hits: u64 = content.map_or(0, |text| String::from_utf8_lossy(&text).parse().unwrap_or(0));
///     Ok::<_, Error>(Some(format!("{}", hits + 1).into()))
/// })?;
/// # Ok::<_, Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Object(crate::Object);

impl Object {
    /// Opens the object that `url` names. See [`crate::Object::open`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Object::open`].
    pub fn open(url: &str) -> Result<Self, Error> {
        wait(crate::Object::open(url)).map(Self)
    }

    /// Opens the object that `url` names, like [`open`](Self::open).
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    pub fn at(url: StoreUrl) -> Result<Self, Error> {
        wait(crate::Object::at(url)).map(Self)
    }

    /// Returns the object `key` in `register`.
    pub fn new(register: Arc<dyn Register>, key: impl Into<Arc<str>>) -> Self {
        Self(crate::Object::new(register, key))
    }

    /// Sets the maximum number of attempts of an update, each on new content. Defaults to 256.
    #[must_use]
    pub fn attempts(self, attempts: u32) -> Self {
        Self(self.0.attempts(attempts))
    }

    /// Sets how long an update or a fenced write may take. Defaults to one minute. See [`crate::Object::within`].
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self(self.0.within(limit))
    }

    /// Sets the content type to write. See [`crate::Object::content_type`].
    #[must_use]
    pub fn content_type(self, content_type: impl Into<String>) -> Self {
        Self(self.0.content_type(content_type))
    }

    /// Returns the key within its folder, which is the last part of the path.
    pub fn key(&self) -> &str {
        self.0.key()
    }

    /// Reads the content, version and metadata. Returns `None` if the object does not exist.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Object::read`].
    pub fn read(&self) -> Result<Option<VersionedValue>, Error> {
        wait(self.0.read())
    }

    /// Updates the object to the content that `make` returns for its current content. See [`update`](crate::update).
    /// `make` runs on the calling thread, once for each attempt. It must not update the same handle.
    ///
    /// # Errors
    /// Returns the same errors as [`update`](crate::update).
    pub fn update<E: From<Error>>(
        &self,
        mut make: impl FnMut(Option<Bytes>) -> Result<Option<Bytes>, E>,
    ) -> Result<Updated, E> {
        nested(async { Ok(self.0.update(|content| std::future::ready(make(content))).await) })
    }

    /// Updates the object to the content that `make` returns for its current content, unless a token higher than
    /// `token` has written it before. See [`fence::update`](crate::fence::update).
    ///
    /// # Errors
    /// Returns the same errors as [`fence::update`](crate::fence::update).
    pub fn update_fenced<E: From<Error>>(
        &self,
        token: Token,
        mut make: impl FnMut(Option<Bytes>) -> Result<Option<Bytes>, E>,
    ) -> Result<Updated, E> {
        nested(async { Ok(self.0.update_fenced(token, |content| std::future::ready(make(content))).await) })
    }

    /// Writes the object, unless a token higher than `token` has written it before. See
    /// [`fence::write`](crate::fence::write).
    ///
    /// # Errors
    /// Returns the same errors as [`fence::write`](crate::fence::write).
    pub fn write_fenced(&self, token: Token, bytes: impl Into<Bytes>) -> Result<(), Error> {
        wait(self.0.write_fenced(token, bytes))
    }

    /// Reads the object, and ensures that lower tokens can no longer write it. See [`fence::read`](crate::fence::read).
    ///
    /// # Errors
    /// Returns the same errors as [`fence::read`](crate::fence::read).
    pub fn read_fenced(&self, token: Token) -> Result<Option<Bytes>, Error> {
        wait(self.0.read_fenced(token))
    }
}

/// Waits for a future whose output is a result with the caller's own error type.
fn nested<T, E: From<Error>>(future: impl Future<Output = Result<Result<T, E>, Error>>) -> Result<T, E> {
    wait(future)?
}
