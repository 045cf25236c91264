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
use reqwest::header::HeaderMap;

use super::errors::Requested;
use super::signature::{Signature, lease_id, number};
use super::wire::{self, Lease, lease_state};
use super::{AzureRegister, POLL_INTERVAL};
use crate::diagnosis::{CheckStatus, Diagnose, Examination, Examined, Finding};
use crate::env::Env;
use crate::error::{ErrorKind, Fault};
use crate::lease::pacing::Pacing;
use crate::lease::{
    Capabilities, Claim, Eviction, Grant, HolderInfo, Id, Loss, LossReason, State, Status, Token, Watch,
    attempt_limit,
};
use crate::native::{self, Ask, Claimed, Ended, NativeLeases, Outcome, Renewed};
use crate::register::{Body, Deleted, Metadata, Precondition, Register, Write};
use crate::retry::repeated;
use crate::stores::over_http::{Meaning, Operation, failed};
use crate::types::LockName;

/// The shortest and the longest duration of Azure's leases.
const SHORTEST: Duration = Duration::from_secs(15);
const LONGEST: Duration = Duration::from_secs(60);

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

    /// Sends one request about the lease `id`.
    async fn lease(&self, name: &LockName, action: Lease, id: Id) -> Outcome<Answer> {
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
    async fn head(&self, name: &LockName, id: Option<Id>) -> Outcome<Option<Properties>> {
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
    async fn state(&self, name: &LockName, ask: &mut Ask<'_>) -> Outcome<State> {
        let mut refused = None;
        loop {
            let seen = ask.read(|| self.head(name, None)).await?;
            let Some(seen) = seen.filter(|seen| seen.is_leased) else { return Ok(State::Free) };
            let id = seen.signature.as_ref().map(|signature| signature.id);
            // Only Azure can decide whether the signature belongs to the lease. If it does not, the lease may have ended
            // between the two reads.
            if let Some(id) = id
                && refused != Some(id)
            {
                let ours = ask.read(|| self.head(name, Some(id))).await?.and_then(|ours| ours.signature);
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

    /// Ends the lease `id`.
    async fn release(&self, name: &LockName, id: Id, ask: &Ask<'_>) -> Outcome<Ended> {
        let answer = ask.request(self.lease(name, Lease::Release, id)).await?;
        Ok(if answer == Answer::Done { Ended::Now } else { Ended::Gone })
    }

    /// Creates the blob of `name` unless it exists.
    async fn create(&self, name: &LockName) -> Outcome<()> {
        let body = Body { bytes: Bytes::new(), metadata: Metadata::default() };
        match self.blobs.write(&key(name.as_str()), Precondition::Absent, body).await? {
            Write::Committed(_) | Write::Conflict => Ok(()),
        }
    }

    /// Returns the grant, unless its lease has ended.
    async fn signed(&self, claim: &Claim) -> Claimed {
        let limit = attempt_limit(claim.ttl);
        let mut ask = Ask::within(&self.blobs.env, limit, limit);
        match repeated(&mut ask, || self.sign(claim)).await {
            Ok(false) => {
                return Claimed::Lost(Loss::new(claim.name.clone(), number(claim.id), LossReason::Ended));
            }
            Ok(true) => {}
            // Other processes then see an unknown holder.
            Err(error) => tracing::debug!(lock = %claim.name, %error, "the holder could not be recorded"),
        }
        Claimed::Granted(number(claim.id), native::Lease::default())
    }

    /// Writes the holder into the metadata of its leased blob, unless the blob has contents. Returns whether the lease
    /// is still in force.
    async fn sign(&self, claim: &Claim) -> Outcome<bool> {
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
fn seconds(claim: &Claim) -> Outcome<u64> {
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
impl NativeLeases for AzureLeases {
    type Position = String;

    fn env(&self) -> &Env {
        &self.blobs.env
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tokens: false,
            cooldowns: false,
            history: false,
            ..Capabilities::new("Azure Blob Storage", POLL_INTERVAL)
        }
    }

    async fn claim(&self, claim: &Claim, ask: &mut Ask<'_>) -> Outcome<Claimed> {
        let action = Lease::Acquire { seconds: seconds(claim)? };
        // The second request is for a lease that has the id of this claim although the first one was refused: an earlier
        // request was granted after that, or another program is breaking the lease.
        for _ in 0..2 {
            match ask.request(self.lease(&claim.name, action, claim.id)).await? {
                Answer::Done => return Ok(self.signed(claim).await),
                // The next request shows whether the blob was created.
                Answer::NoBlob => {
                    return ask.request(self.create(&claim.name)).await.map(|()| Claimed::Again);
                }
                Answer::NotOurs => match self.state(&claim.name, ask).await? {
                    State::Held(held) if held.token == Some(number(claim.id)) => {}
                    State::Held(held) => return Ok(Claimed::Held(held)),
                    // The lock was released in the meantime.
                    State::Free | State::Lapsed(_) => return Ok(Claimed::Again),
                },
            }
        }
        Ok(Claimed::Lost(Loss::new(claim.name.clone(), number(claim.id), LossReason::Ended)))
    }

    async fn renew(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Renewed> {
        Ok(match ask.request(self.lease(&grant.name, Lease::Renew, grant.id)).await? {
            Answer::Done => Renewed::Until(native::Lease::default()),
            Answer::NotOurs => Renewed::Gone,
            Answer::NoBlob => Renewed::Lost(LossReason::Deleted),
        })
    }

    async fn loss(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<LossReason> {
        // A lease that another program is breaking has its id until it ends.
        let held = self.state(&grant.name, ask).await?.held_with(grant.token);
        Ok(held.err().map_or(LossReason::Ended, |reason| *reason))
    }

    async fn end(&self, grant: &Grant, cooldown: Option<Duration>, ask: &mut Ask<'_>) -> Outcome<Ended> {
        if cooldown.is_some() {
            return Err(Fault::new(
                ErrorKind::Unsupported,
                "a lock that is a lease of Azure (protocol=lease) has no cooldown",
            )
            .with_help("release it without a cooldown, or use the default protocol")
            .not_applied());
        }
        self.release(&grant.name, grant.id, ask).await
    }

    /// Ends the lease by its id, which the holder has written into the metadata. So it never ends the lease of a
    /// successor.
    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        _: Option<&Eviction>,
        ask: &mut Ask<'_>,
    ) -> Outcome<Ended> {
        let seen = ask.read(|| self.head(name, None)).await?;
        let signature = seen.filter(|seen| seen.is_leased).and_then(|seen| seen.signature);
        match signature.filter(|signature| signature.number() == token) {
            Some(signature) => self.release(name, signature.id, ask).await,
            None => Ok(Ended::Gone),
        }
    }

    async fn status(&self, name: &LockName, ask: &mut Ask<'_>) -> Outcome<Status> {
        Ok(Status::new(name.clone(), self.state(name, ask).await?))
    }

    async fn names(
        &self,
        prefix: &str,
        from: Option<String>,
        ask: &mut Ask<'_>,
    ) -> Outcome<(Vec<LockName>, Option<String>)> {
        let prefix = self.blobs.keys.object(&key(prefix));
        let page = ask.read(|| self.blobs.page(&prefix, from.clone())).await?;
        // The names of other programs' blobs may not be lock names.
        let keys = page.items.iter().filter_map(|blob| self.blobs.keys.register(blob));
        let names = keys.filter_map(|key| LockName::new(key.replace(BACKSLASH, "\\")).ok());
        Ok((names.collect(), page.next))
    }
}

#[async_trait]
impl Watch for AzureLeases {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Outcome<()> {
        let env = &self.blobs.env;
        let mut pacing = Pacing::new(POLL_INTERVAL, env.now());
        loop {
            env.sleep(pacing.pause(env.now(), seen.token, Duration::ZERO, None, &env.random)).await;
            let mut ask = Ask::new(env);
            let found = ask.read(|| self.head(name, None)).await?;
            pacing.polled(ask.had_trouble());
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

    async fn discard(&self, name: &LockName) -> Outcome<bool> {
        let key = key(name.as_str());
        let Some(head) = self.blobs.head(&key).await? else { return Ok(true) };
        Ok(self.blobs.delete(&key, &head.version).await? == Deleted::Deleted)
    }
}
