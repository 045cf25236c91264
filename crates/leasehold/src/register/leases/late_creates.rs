//! Where a release deletes, a create that comes late finds nothing, as it expects to, and leaves a lock that nobody
//! believes in. Leasehold's own contenders wait for it to lapse; other clients would wait for ever. So whoever sent
//! such a create looks for what it left, and deletes it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::super::Precondition;
use super::super::protocol::{self, Attempt};
use super::super::record::Content;
use super::super::records::{Found, Records, Written};
use super::{Memo, RegisterLeases};
use crate::error::StoreError;
use crate::lease::{AcquireOutcome, End, Id};
use crate::types::LockName;

/// The pauses before each look, about a minute in all: a request is not on its way for longer.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LOOKS: u32 = 6;

impl RegisterLeases {
    /// After an acquisition that sent `attempts`: those that were not answered may land when the lock is next free. Not
    /// before the release of what was granted; at once when nothing was.
    pub(super) fn leave_no_ghosts(
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
                    // One of them may be what was granted.
                    late_creates.retain(|nonce| *nonce != memo.record.nonce);
                    memo.late_creates = late_creates;
                }
            }
            _ => self.look_for_ghosts(name, late_creates),
        }
    }

    /// Looks for records with these nonces for a while, in the background, and deletes them.
    pub(super) fn look_for_ghosts(&self, name: &LockName, late_creates: Vec<Id>) {
        // None when the runtime shuts down, with a request that is dropped.
        if let (false, Ok(runtime)) = (late_creates.is_empty(), Handle::try_current()) {
            runtime.spawn(look(self.records.clone(), name.clone(), late_creates));
        }
    }
}

async fn look(records: Arc<dyn Records>, name: LockName, late_creates: Vec<Id>) {
    let mut pause = FIRST_PAUSE;
    for _ in 0..LOOKS {
        records.env().sleep(pause).await;
        pause *= 2;
        match delete(&*records, &name, &late_creates).await {
            Ok(true) => tracing::debug!(lock = %name, "deleted what a late request left"),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(lock = %name, %error, "what a late request may have left was not found out")
            }
        }
    }
}

/// By the nonce, which a claim that was granted after all, or goes on, has replaced: such a record stays.
async fn delete(records: &dyn Records, name: &LockName, late_creates: &[Id]) -> Result<bool, StoreError> {
    let Some(Found { content: Content::Record(record), version }) = records.read(name).await? else {
        return Ok(false);
    };
    if !late_creates.contains(&record.nonce) {
        return Ok(false);
    }
    let nonce = Id::random(&records.env().random);
    let freed = protocol::freed(&record, End::Released, None, records.store_time(), nonce);
    let written = records.write(name, Precondition::Version(&version), Some(&record), &freed).await?;
    Ok(matches!(written, Written::Committed { .. }))
}
