//! Locks that are Azure's own leases of blobs (`?protocol=lease`), like those of other programs.
//!
//! Azure identifies a lease by its id alone. The client proposes the id, and leasehold proposes the id of the claim. So
//! a request to acquire may be repeated. Three rules follow:
//!
//! - **Only the local deadline limits a grant.** Azure also renews a lease that has expired, if no other client has
//!   taken it since.
//! - **An id whose lease was released is not used again**, whatever the response to the release was. The release may
//!   arrive late, and would then end a lease that was acquired again under the same id.
//! - **A lease without our id is never ended**, and the contents of a blob are never overwritten. Only the blobs of an
//!   examination are deleted. A blob may contain the state of another program.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use reqwest::header::HeaderMap;

use super::errors::Requested;
use super::signature::{Signature, lease_id, number};
use super::wire::{self, Lease, lease_state};
use super::{AzureRegister, POLL_INTERVAL};
use crate::diagnosis::{CheckStatus, Diagnose, Examination, Examined, Finding};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Eviction, Grant, HolderInfo, Id, LeaseStore, Loss,
    LossReason, ReleaseRequest, Released, Renewal, State, Status, Token, Ttl, Watch, attempt_limit, deadline,
};
use crate::register::{Body, Deleted, Metadata, Precondition, Register, Write};
use crate::retry::{RetryBudget, repeated};
use crate::runtime::pacing::Pacing;
use crate::stores::over_http::{Meaning, Operation, failed};
use crate::types::LockName;

/// The shortest and the longest duration of Azure's leases.
const SHORTEST: Duration = Duration::from_secs(15);
const LONGEST: Duration = Duration::from_secs(60);

/// The time limit of operations whose caller sets none.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The encoded form of a backslash in the name of a blob.
const BACKSLASH: &str = "%5C";

/// The leases of the blobs below one prefix.
#[derive(Debug)]
pub(super) struct AzureLeases {
    blobs: AzureRegister,
}

/// The response to a request about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// The blob has another lease or none.
    NotOurs,
    NoBlob,
}

/// The properties of a blob that were read.
struct Properties {
    is_leased: bool,
    has_end: bool,
    is_empty: bool,
    metadata: Metadata,
    /// May belong to an earlier lease.
    signature: Option<Signature>,
}

impl AzureLeases {
    pub(super) fn new(blobs: AzureRegister) -> Self {
        Self { blobs }
    }

    fn blob(&self, name: &LockName) -> String {
        self.blobs.keys.object(&key(name.as_str()))
    }

    fn budget(&self, limit: Duration, ttl: Ttl) -> RetryBudget<'_> {
        RetryBudget::new(&self.blobs.env, limit, attempt_limit(ttl))
    }

    /// Sends one request about the lease `id`.
    async fn lease(&self, name: &LockName, action: Lease, id: Id) -> Result<Answer, StoreError> {
        let (blob, id) = (self.blob(name), lease_id(id));
        let requested = match action {
            Lease::Acquire { .. } => Requested::Lease,
            Lease::Renew | Lease::Release => Requested::KeepLease,
        };
        let request = wire::lease(&self.blobs.target, &blob, action, &id);
        match self.blobs.ask(requested, &blob, request).await {
            Ok((headers, _)) if matches!(action, Lease::Release) || wire::is_lease(&headers, &id) => {
                Ok(Answer::Done)
            }
            // A server that does not support leases may have ignored the query parameter.
            Ok(_) => {
                Err(Fault::new(ErrorKind::Unsupported, "the store responded without the id of the lease")
                    .with_help(format!(
                        "check that {} is an endpoint of Azure Blob Storage",
                        self.blobs.target.base
                    ))
                    .maybe_applied())
            }
            Err(Meaning::Absent) => Ok(Answer::NoBlob),
            Err(Meaning::Conflict) => Ok(Answer::NotOurs),
            Err(other) => Err(failed(other)),
        }
    }

    /// Reads the properties of the blob of `name`. With an `id`, reads them only if the blob is leased with this id.
    /// Returns `None` if there is no such blob.
    async fn head(&self, name: &LockName, id: Option<Id>) -> Result<Option<Properties>, StoreError> {
        let (blob, target) = (self.blob(name), &self.blobs.target);
        let request = match id {
            Some(id) => wire::head_leased(target, &blob, &lease_id(id)),
            None => wire::head(target, &blob),
        };
        match self.blobs.ask(Operation::Head, &blob, request).await {
            Ok((headers, _)) => Ok(Some(Properties::of(&headers))),
            Err(Meaning::Absent | Meaning::Conflict) => Ok(None),
            Err(other) => Err(failed(other)),
        }
    }

    /// Reads the state of the lock.
    async fn state(&self, name: &LockName, budget: &mut RetryBudget<'_>) -> Result<State, StoreError> {
        let mut refused = None;
        loop {
            let seen = repeated(budget, || self.head(name, None)).await?;
            let Some(seen) = seen.filter(|seen| seen.is_leased) else { return Ok(State::Free) };
            let id = seen.signature.as_ref().map(|signature| signature.id);
            // Only Azure can decide whether the signature belongs to the lease. If it does not, the lease may have ended
            // between the two reads.
            if let Some(id) = id
                && refused != Some(id)
            {
                let ours =
                    repeated(budget, || self.head(name, Some(id))).await?.and_then(|ours| ours.signature);
                if let Some(ours) = ours.filter(|ours| ours.id == id) {
                    return Ok(State::Held(ours.shown()));
                }
                refused = Some(id);
                continue;
            }
            let end = if seen.has_end { "" } else { " without an end" };
            let foreign = Some(format!("a lease of Azure{end}, by another program"));
            return Ok(State::Held(HolderInfo { foreign, ..HolderInfo::default() }));
        }
    }

    /// Creates the blob of `name` unless it exists.
    async fn create(&self, name: &LockName) -> Result<(), StoreError> {
        let body = Body { bytes: Bytes::new(), metadata: Metadata::default() };
        match self.blobs.write(&key(name.as_str()), Precondition::Absent, body).await? {
            Write::Committed(_) | Write::Conflict => Ok(()),
        }
    }

    /// Writes the holder into the metadata of its leased blob, unless the blob has contents. Returns whether the lease
    /// is still in force.
    async fn sign(&self, claim: &Claim) -> Result<bool, StoreError> {
        let Some(seen) = self.head(&claim.name, Some(claim.id)).await? else { return Ok(false) };
        if !seen.is_empty {
            return Ok(true);
        }
        // No other client can write to the blob while it is leased.
        let mut metadata = seen.metadata;
        Signature::new(claim.id, &claim.holder).write(&mut metadata);
        let (blob, id) = (self.blob(&claim.name), lease_id(claim.id));
        let request =
            wire::sign(&self.blobs.target, &blob, &id, metadata.user).map_err(Fault::not_applied)?;
        match self.blobs.ask(Requested::KeepLease, &blob, request).await {
            Ok(_) => Ok(true),
            Err(Meaning::Absent | Meaning::Conflict) => Ok(false),
            Err(other) => Err(failed(other)),
        }
    }

    /// Returns the grant, unless its lease has ended or its deadline has passed. If the deadline has passed, ends the
    /// lease.
    async fn granted(&self, claim: &Claim, mut grant: Grant) -> AcquireOutcome {
        let mut budget = self.budget(attempt_limit(claim.ttl), claim.ttl);
        match repeated(&mut budget, || self.sign(claim)).await {
            Ok(true) => {}
            Ok(false) => return AcquireOutcome::Lost(Loss::new(grant.name, grant.token, LossReason::Ended)),
            // Other processes then see an unknown holder.
            Err(error) => tracing::debug!(lock = %claim.name, %error, "the holder could not be recorded"),
        }
        if !grant.deadline.passed(self.blobs.env.now()) {
            return AcquireOutcome::Granted(grant);
        }
        let loss = grant.came_too_late();
        if let Err(error) = self.end(&mut grant).await {
            tracing::debug!(lock = %claim.name, %error, "a late grant could not be released; it will lapse");
        }
        // The claim is lost whatever the response was, because a release that arrives late must not end another grant
        // of the same claim.
        AcquireOutcome::Lost(loss)
    }

    /// Ends the lease of `grant`.
    async fn end(&self, grant: &mut Grant) -> Result<Released, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, grant.ttl);
        loop {
            match budget.request(self.lease(&grant.name, Lease::Release, grant.id)).await {
                Ok(Answer::Done) => return Ok(Released::Released),
                // An earlier request released it, and the response was lost.
                Ok(_) if grant.memo.is_some() => return Ok(Released::Released),
                Ok(_) => return Ok(Released::AlreadyLost),
                Err(error) => {
                    if matches!(error, StoreError::MaybeApplied(_)) {
                        grant.memo = Some(Box::new(ReleaseRequest));
                    }
                    let applied = grant.memo.is_some();
                    budget.pause_after(error).await.map_err(|error| error.if_maybe(applied))?;
                }
            }
        }
    }

    /// Returns why the lease of the grant with `token` was lost.
    async fn reason(&self, name: &LockName, token: Token) -> LossReason {
        let mut budget = self.budget(attempt_limit(Ttl::DEFAULT), Ttl::DEFAULT);
        let state = self.state(name, &mut budget).await.unwrap_or(State::Free);
        // A lease that another program is breaking has its id until it ends.
        state.held_with(token).err().map_or(LossReason::Ended, |reason| *reason)
    }
}

impl Properties {
    fn of(headers: &HeaderMap) -> Self {
        let (state, kind) = lease_state(headers);
        let metadata = wire::metadata(headers);
        let length = headers.get("content-length").and_then(|length| length.to_str().ok());
        Self {
            // A lease that is being broken is still in force.
            is_leased: matches!(state, Some("leased" | "breaking")),
            has_end: kind != Some("infinite"),
            // Metadata that cannot be read could not be written back, so such a blob counts as not empty.
            is_empty: length == Some("0") && metadata.is_ok(),
            signature: metadata.as_ref().ok().and_then(Signature::of),
            metadata: metadata.unwrap_or_default(),
        }
    }
}

/// Returns the key of a lock's blob. For a prefix of names, returns the prefix of their keys. Azure would treat a
/// backslash as a slash.
fn key(name: &str) -> String {
    name.replace('\\', BACKSLASH)
}

/// Returns the duration of the lease of `claim`, in seconds.
fn seconds(claim: &Claim) -> Result<u64, StoreError> {
    let (ttl, delay) = (claim.ttl.get(), claim.lock_delay);
    let wanted = ttl.saturating_add(delay);
    if ttl >= SHORTEST && wanted <= LONGEST {
        return Ok(wanted.as_secs() + u64::from(wanted.subsec_nanos() > 0));
    }
    let delayed = if delay.is_zero() { String::new() } else { format!(" and the lock delay {delay:?}") };
    Err(Fault::new(
        ErrorKind::Invalid,
        format!(
            "lock `{}`: the ttl is {ttl:?}{delayed}, but a lease of Azure lasts 15 s to 60 s (protocol=lease)",
            claim.name
        ),
    )
    .with_help("use a ttl of 15 s to 60 s, together with the lock delay if there is one")
    .not_applied())
}

#[async_trait]
impl LeaseStore for AzureLeases {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let action = Lease::Acquire { seconds: seconds(claim)? };
        let mut budget = self.budget(claim.store_timeout, claim.ttl).noting(&claim.last_error);
        // Whether an earlier request may have been granted although its response was lost.
        let mut unknown = false;
        // Whether a request was refused although the lease has the id of this claim.
        let mut refused = false;
        loop {
            let sent = self.blobs.env.now();
            let error = match budget.request(self.lease(&claim.name, action, claim.id)).await {
                Ok(Answer::Done) => {
                    let grant = Grant {
                        name: claim.name.clone(),
                        token: number(claim.id),
                        after: None,
                        id: claim.id,
                        ttl: claim.ttl,
                        deadline: deadline(claim.ttl, sent),
                        memo: None,
                    };
                    return Ok(self.granted(claim, grant).await);
                }
                Ok(Answer::NotOurs) => match self.state(&claim.name, &mut budget).await {
                    // The lease of this claim: an earlier request was granted after this one was refused, or another
                    // program is breaking the lease.
                    Ok(State::Held(held)) if held.token == Some(number(claim.id)) && !refused => {
                        refused = true;
                        None
                    }
                    Ok(State::Held(held)) if held.token == Some(number(claim.id)) => {
                        let loss = Loss::new(claim.name.clone(), number(claim.id), LossReason::Ended);
                        return Ok(AcquireOutcome::Lost(loss));
                    }
                    Ok(State::Held(held)) => return Ok(AcquireOutcome::Held(held)),
                    // The lock was released in the meantime.
                    Ok(State::Free | State::Lapsed(_)) => None,
                    Err(error) => Some(error),
                },
                // The next request shows whether the blob was created.
                Ok(Answer::NoBlob) => budget.request(self.create(&claim.name)).await.err(),
                Err(error) => {
                    unknown |= matches!(error, StoreError::MaybeApplied(_));
                    Some(error)
                }
            };
            let paused = match error {
                Some(error) => budget.pause_after(error).await,
                None => budget.pause_after_conflict().await,
            };
            // Whatever the latest error is, an earlier request may have been granted.
            paused.map_err(|error| error.if_maybe(unknown))?;
        }
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let env = &self.blobs.env;
        let left = grant.deadline.remaining(env.now());
        if left.is_zero() {
            return Ok(grant.lost(LossReason::EXPIRED));
        }
        // The budget ends before the deadline, because the renewal task must learn of errors in time. That task repeats
        // the renewal at its own pace.
        let mut budget = self.budget(left.min(2 * attempt_limit(grant.ttl)), grant.ttl);
        loop {
            let sent = env.now();
            match budget.request(self.lease(&grant.name, Lease::Renew, grant.id)).await {
                Ok(Answer::Done) => {
                    let (now, prolonged) = (env.now(), deadline(grant.ttl, sent));
                    // Azure also renews a lease that has expired.
                    if grant.deadline.passed(now) || prolonged.passed(now) {
                        return Ok(grant.lost(LossReason::EXPIRED));
                    }
                    grant.deadline = prolonged;
                    return Ok(Renewal::Renewed);
                }
                Ok(Answer::NotOurs) => return Ok(grant.lost(self.reason(&grant.name, grant.token).await)),
                Ok(Answer::NoBlob) => return Ok(grant.lost(LossReason::Deleted)),
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        if cooldown.is_some_and(|cooldown| !cooldown.is_zero()) {
            return Err(Fault::new(
                ErrorKind::Unsupported,
                "a lock that is a lease of Azure (protocol=lease) has no cooldown",
            )
            .with_help("release it without a cooldown, or use the default protocol")
            .not_applied());
        }
        self.end(grant).await
    }

    /// Ends the lease by its id, which the holder has written into the metadata. So it never ends the lease of a
    /// successor.
    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        _: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        let seen = repeated(&mut budget, || self.head(name, None)).await?;
        let signature = seen.filter(|seen| seen.is_leased).and_then(|seen| seen.signature);
        let Some(signature) = signature.filter(|signature| signature.number() == token) else {
            return Ok(Evicted::Changed);
        };
        let mut unknown = false;
        loop {
            match budget.request(self.lease(name, Lease::Release, signature.id)).await {
                Ok(Answer::Done) => return Ok(Evicted::Evicted),
                Ok(_) if unknown => return Ok(Evicted::Evicted),
                Ok(_) => return Ok(Evicted::Changed),
                Err(error) => {
                    unknown |= matches!(error, StoreError::MaybeApplied(_));
                    budget.pause_after(error).await.map_err(|error| error.if_maybe(unknown))?;
                }
            }
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let state = self.state(name, &mut self.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await?;
        let token = match &state {
            State::Held(held) => held.token,
            State::Free | State::Lapsed(_) => None,
        };
        Ok(Status { token, ..Status::new(name.clone(), state) })
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        // The names of other programs' blobs may not be lock names.
        let names = self.blobs.list(&key(prefix)).filter_map(async |key| match key {
            Ok(key) => LockName::new(key.replace(BACKSLASH, "\\")).ok().map(Ok),
            Err(error) => Some(Err(error)),
        });
        names.boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tokens: false,
            cooldowns: false,
            history: false,
            ..Capabilities::new("Azure Blob Storage", POLL_INTERVAL)
        }
    }

    fn env(&self) -> &Env {
        &self.blobs.env
    }
}

#[async_trait]
impl Watch for AzureLeases {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let env = &self.blobs.env;
        let mut pacing = Pacing::new(POLL_INTERVAL, env.now());
        loop {
            env.sleep(pacing.pause(env.now(), seen.token, Duration::ZERO, None, &env.random)).await;
            let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
            let found = repeated(&mut budget, || self.head(name, None)).await?;
            pacing.polled(budget.had_trouble());
            let is_same = |found: &Properties| {
                let number = found.signature.as_ref().map(Signature::number);
                found.is_leased && (seen.token.is_none() || seen.token == number)
            };
            if !found.is_some_and(|found| is_same(&found)) {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl Diagnose for AzureLeases {
    async fn examine(&self, examination: &Examination) -> Examined {
        const CHECK: &str = "lease-duration";
        let least = "the minimum that leasehold needs, on the container: with Entra ID, the role \"Storage Blob Data \
                     Contributor\"; with a shared access signature, sp=rwl";
        let least_ttl = Some((SHORTEST, "the shortest lease of Azure"));
        let mut examined =
            Examined { least_permissions: vec![least.to_owned()], least_ttl, ..Examined::default() };
        examined.push(self.blobs.container().await);
        let ttl = examination.ttl.get();
        examined.push(if (SHORTEST..=LONGEST).contains(&ttl) {
            Finding::passed(CHECK, format!("Azure has leases of {ttl:?}"))
        } else {
            Finding::new(CHECK, CheckStatus::Failed, format!("Azure has no leases of {ttl:?}"))
                .with_help("use a ttl of 15 s to 60 s")
        });
        examined
    }

    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let key = key(name.as_str());
        let Some(head) = self.blobs.head(&key).await? else { return Ok(true) };
        Ok(self.blobs.delete(&key, &head.version).await? == Deleted::Deleted)
    }
}
