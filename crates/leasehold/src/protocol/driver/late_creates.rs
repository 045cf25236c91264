//! Deletes the objects that late creates leave. On a store where a release deletes the object, a late create finds no
//! object, as it expects, and leaves a lock that no process uses. leasehold's own contenders wait for that lock to
//! lapse. Other clients would wait forever. So the sender of such a create looks for the object and deletes it.

use std::time::Duration;

use tokio::runtime::Handle;

use super::super::record::Content;
use super::super::records::{Found, Written};
use super::super::rules::{self, Attempt};
use super::hold::Memo;
use super::{Passing, RegisterLeases};
use crate::error::StoreError;
use crate::lease::{AcquireOutcome, End, Id};
use crate::register::Precondition;
use crate::types::LockName;

/// The first pause. All pauses together take about a minute, because no request is under way for longer.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 6;

impl RegisterLeases {
    /// Handles the writes of an acquisition that got no response. They may be applied when the lock is next free. If
    /// the outcome is a grant, this is not before its release, so the grant keeps the list of these writes. Otherwise
    /// the search starts at once.
    pub(super) fn follow_late_creates(
        &self,
        name: &LockName,
        attempts: &[Attempt],
        outcome: &mut Result<AcquireOutcome, StoreError>,
    ) {
        if !self.records.deletes() {
            return;
        }
        let mut late_creates: Vec<Id> =
            attempts.iter().filter(|attempt| attempt.unknown).map(|attempt| attempt.nonce).collect();
        match outcome {
            Ok(AcquireOutcome::Granted(grant)) => {
                if let Some(memo) = grant.memo.as_mut().and_then(|memo| memo.downcast_mut::<Memo>()) {
                    // One of them may be the grant itself.
                    late_creates.retain(|nonce| *nonce != memo.record.nonce);
                    memo.late_creates = late_creates;
                }
            }
            _ => self.delete_late_creates(name, late_creates),
        }
    }

    /// Looks for records with these nonces for a while, in the background, and deletes them.
    pub(super) fn delete_late_creates(&self, name: &LockName, late_creates: Vec<Id>) {
        // There is no current runtime if a request is dropped while its runtime shuts down.
        if let (false, Ok(runtime)) = (late_creates.is_empty(), Handle::try_current()) {
            runtime.spawn(delete_repeatedly(self.clone(), name.clone(), late_creates));
        }
    }
}

async fn delete_repeatedly(leases: RegisterLeases, name: LockName, late_creates: Vec<Id>) {
    let mut pause = FIRST_PAUSE;
    for _ in 0..ATTEMPTS {
        leases.records.env().sleep(pause).await;
        pause *= 2;
        match delete(&leases, &name, &late_creates).await {
            Ok(true) => tracing::debug!(lock = %name, "deleted the record that a late request left"),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(lock = %name, %error, "cannot check whether a late request left a record")
            }
        }
    }
}

/// Deletes the record of `name` if its nonce is one of `late_creates`. A claim that was granted after all, or that
/// continues, has replaced the nonce, so its record stays.
async fn delete(leases: &RegisterLeases, name: &LockName, late_creates: &[Id]) -> Result<bool, StoreError> {
    let records = &leases.records;
    let Some(Found { content: Content::Record(record), version, .. }) = records.read(name).await? else {
        return Ok(false);
    };
    if !late_creates.contains(&record.nonce) {
        return Ok(false);
    }
    let nonce = Id::random(&records.env().random);
    let freed = rules::freed(&record, End::Released, None, records.store_time(), nonce);
    leases.tap(Passing::Deleted, name, &record);
    let written = records.write(name, Precondition::Version(&version), Some(&record), &freed).await?;
    Ok(matches!(written, Written::Committed { .. }))
}
