//! [`Object`]: one object of a store, with several writers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::{Mutex, MutexGuard};

use super::cas_loop::{Change, Limits, Needs, trust};
use super::update::Updated;
use crate::clock::timeout;
use crate::env::Env;
use crate::error::Error;
use crate::lease::Token;
use crate::proof::LIMIT;
use crate::proof::trust::Trust;
use crate::register::{Register, VersionedValue};
use crate::stores;
use crate::url::StoreUrl;
use crate::worker::callers_runtime;

/// How long an update waits for the updates of other clones.
const TURN: Duration = Duration::from_secs(2);

/// One object of a store, and the settings for writing it. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// let counter = leasehold::Object::open("s3://my-bucket/stats/hits.txt?region=eu-west-1").await?;
/// counter
///     .update(async |content| {
///         let hits: u64 = content.map_or(0, |text| String::from_utf8_lossy(&text).parse().unwrap_or(0));
///         Ok::<_, leasehold::Error>(Some(format!("{}", hits + 1).into()))
///     })
///     .await?;
/// # Ok(()) }
/// ```
///
/// Clones update one after the other, so that the tasks of one process do not conflict with each other. A store that is
/// not known to honour preconditions is checked before the first write, as for locks. The check uses the object
/// `.leasehold-probe` in the folder of this object.
#[derive(Clone)]
pub struct Object {
    register: Arc<dyn Register>,
    key: Arc<str>,
    trusted: Arc<Trust>,
    turn: Arc<Mutex<()>>,
    limits: Limits,
    content_type: Option<String>,
}

impl Object {
    /// Opens the object that `url` names: `s3://bucket/path/name?region=...`, `gs://bucket/path/name`,
    /// `azblob://account/container/path/name` or `dir:/directory/path/name`, with the options of the store. The path is
    /// the object's key. Percent-encoding is decoded, and nothing is appended.
    ///
    /// Sends no request, except to the machine's metadata service if it has to ask for the region. In a directory,
    /// looks for the one that was prepared, and tries out hard links.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the URL is malformed.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the store has no objects, or this build does not
    ///   include it.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::at(StoreUrl::parse(url)?).await
    }

    /// Opens the object that `url` names, like [`open`](Self::open).
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    pub async fn at(url: StoreUrl) -> Result<Self, Error> {
        let (register, key) = stores::open_object(url, Env::system()).await?;
        Ok(Self::new(register, key))
    }

    /// Creates a handle to the object `key` in `register`.
    pub fn new(register: Arc<dyn Register>, key: impl Into<Arc<str>>) -> Self {
        Self {
            register,
            key: key.into(),
            trusted: Arc::default(),
            turn: Arc::default(),
            limits: Limits::default(),
            content_type: None,
        }
    }

    /// Sets how many attempts on new content an update makes before it gives up. 256 by default.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.limits.attempts = attempts;
        self
    }

    /// Sets how long an update or a fenced write may take, without the time in which the closure runs. One minute by
    /// default.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limits.within = limit;
        self
    }

    /// Sets the content type to write. By default, an update leaves the content type as it is, and creates objects with
    /// `application/octet-stream`.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Returns the key within its folder: the last part of the path.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Reads the content, the version and the metadata. Returns `None` if there is no object.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the object is too large.
    /// - Other errors of the store.
    pub async fn read(&self) -> Result<Option<VersionedValue>, Error> {
        callers_runtime()?;
        Ok(self.register.read(&self.key).await?)
    }

    /// Replaces the content of the object with the result of `make`: see [`update`](crate::update).
    ///
    /// `make` must not update the same handle. Clones update one after the other, so it would wait for itself.
    ///
    /// Not cancel safe: if the future is dropped, the outcome is unknown.
    ///
    /// # Errors
    /// Returns the same errors as [`update`](crate::update).
    pub async fn update<E: From<Error>, F: Future<Output = Result<Option<Bytes>, E>>>(
        &self,
        make: impl FnMut(Option<Bytes>) -> F,
    ) -> Result<Updated, E> {
        self.changed(Needs::Content, None, make).await
    }

    /// Replaces the content of the object with the result of `make`, unless a token higher than `token` has written it
    /// before: see [`fence::update`](crate::fence::update).
    ///
    /// Not cancel safe: if the future is dropped, the outcome is unknown.
    ///
    /// # Errors
    /// Returns the same errors as [`fence::update`](crate::fence::update).
    pub async fn update_fenced<E: From<Error>, F: Future<Output = Result<Option<Bytes>, E>>>(
        &self,
        token: Token,
        make: impl FnMut(Option<Bytes>) -> F,
    ) -> Result<Updated, E> {
        self.changed(Needs::Content, Some(token), make).await
    }

    /// Writes the object, unless a token higher than `token` has written it before: see
    /// [`fence::write`](crate::fence::write).
    ///
    /// Not cancel safe: if the future is dropped, the outcome is unknown.
    ///
    /// # Errors
    /// Returns the same errors as [`fence::write`](crate::fence::write).
    pub async fn write_fenced(&self, token: Token, bytes: impl Into<Bytes>) -> Result<(), Error> {
        let bytes = bytes.into();
        let make = async |_| Ok::<_, Error>(Some(bytes.clone()));
        self.changed(Needs::Nothing, Some(token), make).await.map(|_| ())
    }

    /// Reads the object, and makes sure that lower tokens can no longer write it: see
    /// [`fence::read`](crate::fence::read).
    ///
    /// # Errors
    /// Returns the same errors as [`fence::read`](crate::fence::read).
    pub async fn read_fenced(&self, token: Token) -> Result<Option<Bytes>, Error> {
        let _turn = self.turn().await;
        self.trust().await?;
        self.change(Needs::Content, Some(token)).raise().await
    }

    async fn changed<E: From<Error>, F: Future<Output = Result<Option<Bytes>, E>>>(
        &self,
        needs: Needs,
        token: Option<Token>,
        make: impl FnMut(Option<Bytes>) -> F,
    ) -> Result<Updated, E> {
        let _turn = self.turn().await;
        self.trust().await?;
        self.change(needs, token).run(make).await.map(Updated::from)
    }

    /// Waits for the turn among clones, which only avoids conflicts. The wait is limited, because the turn may belong
    /// to a future that is kept and not polled.
    async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        timeout(&*self.register.env().clock, TURN, self.turn.lock()).await
    }

    fn change(&self, needs: Needs, token: Option<Token>) -> Change<'_> {
        Change {
            limits: self.limits,
            token,
            content_type: self.content_type.as_deref(),
            ..Change::of(&*self.register, &self.key, needs)
        }
    }

    async fn trust(&self) -> Result<(), Error> {
        callers_runtime()?;
        if self.register.capabilities().trusted {
            return Ok(());
        }
        let register = self.register.clone();
        let probe = || async move { trust(&*register).await }.boxed();
        Ok(self.trusted.settle(self.register.env(), LIMIT, probe).await?)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { register, key, limits, content_type, .. } = self;
        f.debug_struct("Object")
            .field("register", register)
            .field("key", key)
            .field("limits", limits)
            .field("content_type", content_type)
            .finish()
    }
}
