//! The driver of updates and fenced writes. It reads the object, lets the caller make the new content, and writes it
//! under the condition that nothing has changed. The rules in [`write_log`](super::write_log) determine what happened
//! to the write.

use std::time::Duration;

use bytes::Bytes;

use super::write_log::{Nonce, ObjectState, Verdict, verdict};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::Token;
use crate::proof::trust::within;
use crate::proof::{LIMIT, probe, probe_metadata};
use crate::register::{Body, Head, MAX_OBJECT_BYTES, Precondition, Register, RegisterCapabilities, Write};
use crate::retry::RetryBudget;
use crate::types::set_span;

/// The time limit of a request with a small body, and how many bytes of a large one add a second to it.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
const SLOWEST_BYTES_PER_SECOND: usize = 256 << 10;

/// The maximum age of the read that a fenced write depends on if versions recur. An older read is repeated. So a write
/// can find an old version only if it is delayed in transit, and not if its caller takes a long time.
const MAX_READ_AGE: Duration = Duration::from_secs(10);

/// The pause after a conflict is drawn at random, up to a bound. The bound is the duration of an attempt, doubled for
/// each conflict, at most this many times.
const MAX_DOUBLINGS: u32 = 6;
/// The longest pause after a conflict.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const SHORTEST_TRY: Duration = Duration::from_millis(1);

/// The limits of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The number of attempts on new content.
    pub(crate) attempts: u32,
    /// The total time, without the time in which the caller makes the new content.
    pub(crate) within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { attempts: 256, within: Duration::from_secs(60) }
    }
}

/// What the caller needs to see to make the new content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// The content.
    Content,
    /// Nothing, because it overwrites any content.
    Nothing,
}

/// One change of one object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) register: &'a dyn Register,
    pub(crate) key: &'a str,
    pub(crate) limits: Limits,
    pub(crate) needs: Needs,
    /// The token to write with. `None` leaves the stored token as it is.
    pub(crate) token: Option<Token>,
    /// The content type to write, instead of the current one.
    pub(crate) content_type: Option<&'a str>,
    /// Whether to write even unchanged content if that raises the token.
    pub(crate) raises: bool,
}

/// The result of a change.
#[derive(Debug)]
pub(crate) struct Changed {
    /// The content of the object after the change.
    pub(crate) content: Option<Bytes>,
    pub(crate) written: bool,
    pub(crate) attempts: u32,
}

/// Checks that `register` enforces its preconditions, and that it keeps metadata if it claims to.
pub(crate) async fn trust(register: &dyn Register) -> Result<(), StoreError> {
    if register.capabilities().trusted {
        return Ok(());
    }
    let checks = async {
        probe(register).await?;
        if register.capabilities().metadata.is_some() { probe_metadata(register).await } else { Ok(()) }
    };
    within(register.env(), LIMIT, checks).await
}

impl<'a> Change<'a> {
    /// Creates a change of the object `key`, with the default limits and without a token.
    pub(crate) fn of(register: &'a dyn Register, key: &'a str, needs: Needs) -> Self {
        let limits = Limits::default();
        Self { register, key, limits, needs, token: None, content_type: None, raises: false }
    }

    /// Writes the result of `make` for the current content. Writes nothing if the result is `None`.
    pub(crate) async fn run<E: From<Error>, F: Future<Output = Result<Option<Bytes>, E>>>(
        self,
        mut make: impl FnMut(Option<Bytes>) -> F,
    ) -> Result<Changed, E> {
        let env = self.register.env();
        let mut driver = Driver {
            change: self,
            capabilities: self.register.capabilities(),
            budget: RetryBudget::new(env, self.limits.within, self.limits.within),
            nonces: Vec::new(),
            size: None,
        };
        self.check_content_type()?;
        if self.token.is_some() && driver.capabilities.metadata.is_none() {
            return Err(no_metadata(&driver.capabilities).into());
        }
        let mut seen = driver.read(self.needs).await.map_err(|error| self.failed(error))?;
        self.check_fence(&seen.state)?;
        for attempts in 1..=self.limits.attempts.max(1) {
            let began = env.now();
            let made = make(seen.content.clone()).await?;
            let took = env.now().longest_since(began);
            driver.budget.extend(took);
            let Some(bytes) = made.filter(|bytes| !self.changes_nothing(&seen, bytes)) else {
                return Ok(Changed { content: seen.content, written: false, attempts });
            };
            let started = env.now();
            match driver.write(&seen, bytes.clone()).await? {
                None => return Ok(Changed { content: Some(bytes), written: true, attempts }),
                Some(now) => seen = now,
            }
            // Also after the last attempt: a holder that was superseded must not be told to try again.
            self.check_fence(&seen.state)?;
            driver.pause(attempts, env.now().longest_since(started)).await?;
        }
        Err(self.contended(format!("{} attempts", self.limits.attempts)).into())
    }

    /// Writes the current content with a higher token, and returns it.
    pub(crate) async fn raise(self) -> Result<Option<Bytes>, Error> {
        let change = Self { raises: true, ..self };
        change.run(async |content| Ok::<_, Error>(content)).await.map(|changed| changed.content)
    }

    /// Returns whether a write of `bytes` would change nothing.
    fn changes_nothing(&self, seen: &Snapshot, bytes: &Bytes) -> bool {
        let raises = self.token > seen.state.token;
        let retyped =
            self.content_type.is_some_and(|kind| seen.state.metadata.content_type.as_deref() != Some(kind));
        if retyped {
            return false;
        }
        match self.needs {
            Needs::Content => seen.content.as_ref() == Some(bytes) && !(self.raises && raises),
            Needs::Nothing => {
                let version = self.register.version_of(bytes);
                version.is_some() && version == seen.state.version && !raises
            }
        }
    }

    fn check_content_type(&self) -> Result<(), Error> {
        match self.content_type {
            // The content type becomes a header.
            Some(kind) if kind.is_empty() || !kind.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
                Err(Error::invalid(format!("{kind:?} is not a content type"))
                    .with_help("a content type is like application/json or text/plain; charset=utf-8"))
            }
            _ => Ok(()),
        }
    }

    fn check_fence(&self, now: &ObjectState) -> Result<(), Error> {
        let (Some(by), Some(token)) = (now.refuses(self.token), self.token) else { return Ok(()) };
        let message = format!("{:?} was written with token {by}, which is higher than {token}", self.key);
        Err(Error::refused(message, by)
            .with_help("another process holds the lock now, with a higher token: stop this work"))
    }

    fn failed(&self, mut error: StoreError) -> Error {
        let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) = &mut error;
        fault.message = format!("{:?} was not written: {}", self.key, fault.message);
        error.into()
    }

    fn contended(&self, limit: String) -> Error {
        Error::new(
            ErrorKind::Conflict,
            format!("{:?} was not updated: other clients changed it before every attempt, within {limit}", self.key),
        )
        .with_help(
            "try again, with more attempts or a longer time limit; if many clients write at once, protect the \
             object with a lock",
        )
    }

    /// Returns the error for a write whose outcome is unknown.
    fn unknown_outcome(&self, why: &str) -> Error {
        Error::new(
            ErrorKind::Unavailable,
            format!("{:?} may or may not have been written, now or later: {why}", self.key),
        )
        .with_help("check the object before you try again; the change was not applied twice")
        .after_maybe_applied()
    }
}

/// The object as it was read.
#[derive(Debug)]
struct Snapshot {
    state: ObjectState,
    content: Option<Bytes>,
    /// A time before the read.
    at: Moment,
}

struct Driver<'a> {
    change: Change<'a>,
    capabilities: RegisterCapabilities,
    budget: RetryBudget<'a>,
    /// The nonces of all writes so far.
    nonces: Vec<Nonce>,
    /// The size of the object in bytes when it was last read; `None` before the first read.
    size: Option<usize>,
}

impl Driver<'_> {
    /// Writes `bytes` over the object as it was `seen`. If the write was certainly not applied, returns the object as
    /// it is now.
    async fn write(&mut self, seen: &Snapshot, bytes: Bytes) -> Result<Option<Snapshot>, Error> {
        let change = self.change;
        let body = self.body(&seen.state, bytes)?;
        let expect = seen.state.version.as_ref().map_or(Precondition::Absent, Precondition::Version);
        let limit = request_limit(body.bytes.len());
        let mut read_at = seen.at;
        let mut unknown = false;
        loop {
            let mut trouble = None;
            let sent = !self.is_stale(read_at);
            if sent {
                let write = change.register.write(change.key, expect, body.clone());
                match self.budget.request_within(limit, write).await {
                    Ok(Write::Committed(version)) => {
                        self.check_version(&seen.state, &version)?;
                        return Ok(None);
                    }
                    Ok(Write::Conflict) => {}
                    Err(error @ StoreError::NotApplied(_)) => {
                        let paused = self.budget.pause_after(error).await;
                        paused.map_err(|error| self.gave_up(unknown, error))?;
                        continue;
                    }
                    Err(error @ StoreError::MaybeApplied(_)) => {
                        unknown = true;
                        trouble = Some(error);
                    }
                }
            }
            // Reading the metadata is enough to refresh an old read. Reading the content may take longer than the read
            // stays fresh.
            let what = if sent { change.needs } else { Needs::Nothing };
            // A conflict alone does not show whether an earlier copy of the same write was applied.
            let now = self.read(what).await.map_err(|error| self.gave_up(unknown || sent, error))?;
            match verdict(&seen.state, &self.nonces, unknown, &now.state, &self.capabilities) {
                Verdict::Applied => return Ok(None),
                Verdict::Never if what == change.needs => return Ok(Some(now)),
                Verdict::Never => {
                    let now = self.read(change.needs).await.map_err(|error| self.gave_up(unknown, error));
                    return now.map(Some);
                }
                Verdict::Unknown => {
                    return Err(
                        change.unknown_outcome("the response was lost, and other clients have written since")
                    );
                }
                Verdict::Again if !sent => read_at = now.at,
                Verdict::Again => {
                    read_at = now.at;
                    let trouble = trouble.unwrap_or_else(refused_without_reason);
                    let paused = self.budget.pause_after(trouble).await;
                    paused.map_err(|error| self.gave_up(unknown, error))?;
                }
            }
        }
    }

    /// Returns the body to write over `base`.
    fn body(&mut self, base: &ObjectState, bytes: Bytes) -> Result<Body, Error> {
        let change = self.change;
        if bytes.len() > MAX_OBJECT_BYTES {
            return Err(Error::unsupported(format!(
                "{} bytes are too many for {:?}: the limit is {MAX_OBJECT_BYTES}",
                bytes.len(),
                change.key
            )));
        }
        if let Some(version) = change.register.version_of(&bytes)
            && !self.capabilities.generations
            && base.lets_through(change.token, &version)
        {
            return Err(repeats(&self.capabilities, change.key));
        }
        let nonce = Nonce::random(&change.register.env().random);
        let mut metadata = base.followed_by(nonce, change.token, &self.capabilities)?;
        self.nonces.push(nonce);
        if let Some(kind) = change.content_type {
            metadata.content_type = Some(kind.to_owned());
        } else if base.version.is_none() {
            metadata.content_type = Some("application/octet-stream".to_owned());
        }
        Ok(Body { bytes, metadata })
    }

    /// Returns whether the read at `read_at` is too old for a fenced write.
    fn is_stale(&self, read_at: Moment) -> bool {
        let age = self.change.register.env().now().longest_since(read_at);
        self.change.token.is_some() && !self.capabilities.generations && age > MAX_READ_AGE
    }

    /// Fails if the store has given the object a version that would admit delayed writes with lower tokens.
    fn check_version(&self, base: &ObjectState, version: &crate::register::Version) -> Result<(), Error> {
        if !self.capabilities.generations && base.lets_through(self.change.token, version) {
            let error = repeats(&self.capabilities, self.change.key);
            return Err(error.with_help("the object was written anyway").after_maybe_applied());
        }
        Ok(())
    }

    async fn read(&mut self, what: Needs) -> Result<Snapshot, StoreError> {
        let Change { register, key, .. } = self.change;
        loop {
            // The total time limits the attempts. A read gets at least `REQUEST_LIMIT`, so that the outcome of a write
            // does not remain unknown because the time ran out before the read.
            let limit = match (what, self.size) {
                (_, None) => self.budget.left().max(REQUEST_LIMIT),
                (Needs::Nothing, _) => REQUEST_LIMIT,
                // The object may have grown in the meantime.
                (Needs::Content, Some(size)) => request_limit(2 * size),
            };
            let at = register.env().now();
            let found = match what {
                Needs::Content => self
                    .budget
                    .request_within(limit, register.read(key))
                    .await
                    .map(|cell| cell.map(|cell| (cell.version, cell.metadata, Some(cell.value)))),
                Needs::Nothing => self
                    .budget
                    .request_within(limit, register.head(key))
                    .await
                    .map(|head| head.map(|Head { version, metadata, .. }| (version, metadata, None))),
            };
            match found {
                Ok(None) => return Ok(Snapshot { state: ObjectState::default(), content: None, at }),
                Ok(Some((version, metadata, content))) => {
                    self.size = content.as_ref().map(Bytes::len).or(self.size).or(Some(0));
                    let state = ObjectState::new(version, metadata).map_err(Fault::not_applied)?;
                    return Ok(Snapshot { state, content, at });
                }
                Err(error) => self.budget.pause_after(error).await?,
            }
        }
    }

    /// Pauses after a conflict. `took` is the duration of the attempt.
    async fn pause(&mut self, conflicts: u32, took: Duration) -> Result<(), Error> {
        let env = self.change.register.env();
        // The client that wrote may write again at once. A pause as long as an attempt lets that write finish.
        let bound = took.max(SHORTEST_TRY) * 2_u32.pow(conflicts.min(MAX_DOUBLINGS));
        let pause = bound.min(LONGEST_PAUSE).mul_f64(env.random.fraction());
        if pause >= self.budget.left() {
            return Err(self.change.contended(set_span(self.change.limits.within)));
        }
        tracing::debug!(key = self.change.key, conflicts, ?pause, "changed by another client; trying again");
        env.sleep(pause).await;
        Ok(())
    }

    /// Returns the final error, caused by `error`.
    fn gave_up(&self, unknown: bool, error: StoreError) -> Error {
        if unknown { self.change.unknown_outcome(&error.to_string()) } else { self.change.failed(error) }
    }
}

fn request_limit(bytes: usize) -> Duration {
    REQUEST_LIMIT + Duration::from_secs((bytes / SLOWEST_BYTES_PER_SECOND) as u64)
}

fn refused_without_reason() -> StoreError {
    Fault::unavailable("the store reports that the object has changed, but it has not").not_applied()
}

fn no_metadata(capabilities: &RegisterCapabilities) -> Error {
    Error::unsupported(format!(
        "{} stores no metadata with an object, but a fence needs metadata",
        capabilities.store
    ))
    .with_help("objects of s3://, gs://, azblob:// and dir: can be fenced")
}

fn repeats(capabilities: &RegisterCapabilities, key: &str) -> Error {
    Error::unsupported(format!(
        "{key:?} already had this content under a lower token, and {} distinguishes contents, not writes: a delayed \
         write with that token would mistake the new version for the old one",
        capabilities.store
    ))
    .with_help("include something in the content that changes, such as the token")
}
