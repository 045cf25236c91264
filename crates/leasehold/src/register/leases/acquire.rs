//! Acquiring: from the first look at a record to a grant that may be used.

use std::time::Duration;

use super::super::Version;
use super::super::effort::Effort;
use super::super::known::Sighting;
use super::super::protocol::{self, Attempt, Availability, Claimed};
use super::super::record::{Content, Record};
use super::{Memo, RegisterLeases, Sent, Sight, key};
use crate::clock::StoreTime;
use crate::error::{Fault, StoreError};
use crate::lease::{Claim, Grant, LeaseStore, Verdict, deadline};
use crate::name::LockName;

/// A `Date` is true to a second, and its answer took some time.
const LONGEST_FLOOR_WAIT: Duration = Duration::from_secs(8);
const FLOOR_TRIES: usize = 5;

impl RegisterLeases {
    /// The acquisition itself; what it sent stays in `attempts` also when it fails.
    pub(super) async fn contend(
        &self,
        claim: &Claim,
        attempts: &mut Vec<Attempt>,
    ) -> Result<Verdict, StoreError> {
        let mut effort = self.effort(claim.patience, claim.ttl);
        let mut sight = self.first_sight(claim, &mut effort).await?;
        loop {
            let (store, quiet) = (self.register.store_time(), sight.quiet(self.now()));
            match protocol::judge(claim, attempts, sight.found.as_ref(), quiet, store, self.rules) {
                Claimed::Taken(held) => return Ok(Verdict::Held(held)),
                Claimed::Lost(loss) => return Ok(Verdict::Lost(loss)),
                Claimed::Ours(attempt) => {
                    if let Some(Sighting { record, version, .. }) = sight.sighting.take() {
                        let grant = self.granted(claim, attempt, record, version);
                        if let Some(grant) = self.in_time(grant).await? {
                            return Ok(Verdict::Granted(grant));
                        }
                    }
                }
                Claimed::Grantable { over, floor_from_clock } => {
                    self.trust().await?;
                    let floor_us = match floor_from_clock {
                        true => self.wait_for_floor(&claim.name, store, &mut effort).await?,
                        false => None,
                    };
                    let sent = self.now();
                    let store = self.register.store_time();
                    let record = protocol::grant(claim, over, store, floor_us, self.nonce())
                        .map_err(Fault::not_applied)?;
                    let expect = sight.sighting.as_ref().map(|sighting| sighting.version.clone());
                    match self
                        .send(&claim.name, expect.as_ref(), &record, sent, attempts, &mut effort)
                        .await?
                    {
                        Sent::Committed(version) => {
                            if let Some(grant) = self.committed(claim, attempts, record, version).await? {
                                return Ok(Verdict::Granted(grant));
                            }
                        }
                        Sent::Unclear => {}
                        Sent::Again => continue,
                    }
                }
            }
            sight = self.look(&claim.name, &mut effort).await?;
        }
    }

    /// What is known already when that allows a write at once (the warm path), else what a read finds.
    async fn first_sight(&self, claim: &Claim, effort: &mut Effort<'_>) -> Result<Sight, StoreError> {
        let now = self.now();
        if let Some(sighting) = self.known.recall(&claim.name) {
            let free = protocol::availability(
                &sighting.record,
                sighting.quiet(now),
                self.register.store_time(),
                self.rules,
            ) == Availability::Grantable;
            // A newborn record's token comes from the store's clock, which is known best after an answer.
            if free && sighting.record.grant != claim.id && !sighting.record.newborn {
                let found = Some(Content::Record(Box::new(sighting.record.clone())));
                return Ok(Sight { found, sighting: Some(sighting), at: now });
            }
        }
        self.look(&claim.name, effort).await
    }

    /// After a commit: the grant, unless it came too late to be used, or its token may be too low.
    async fn committed(
        &self,
        claim: &Claim,
        attempts: &[Attempt],
        record: Record,
        version: Version,
    ) -> Result<Option<Grant>, StoreError> {
        let Some(&attempt) = attempts.last() else { return Ok(None) };
        if protocol::too_slow_for_create(&attempt, self.now()) {
            // Read back and written once more, with a token from the clock as it reads then.
            return Ok(None);
        }
        self.in_time(self.granted(claim, attempt, record, version)).await
    }

    /// `grant`, unless its deadline passed while its answer was on the way. Then it is released.
    async fn in_time(&self, mut grant: Grant) -> Result<Option<Grant>, StoreError> {
        if !grant.deadline.passed(self.now()) {
            return Ok(Some(grant));
        }
        tracing::debug!(lock = %grant.name, token = %grant.token, "granted too late; releasing");
        match self.release(&mut grant, None).await {
            Ok(_) => Ok(None),
            // The grant stands, whatever became of its release.
            Err(StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) => {
                Err(fault.maybe_applied())
            }
        }
    }

    /// Waits until the store's clock certainly reads later than it could at `since`, which is now, and gives that reading:
    /// a token that is not below it is above those of all records that were there before and were deleted by hand.
    async fn wait_for_floor(
        &self,
        name: &LockName,
        since: Option<StoreTime>,
        effort: &mut Effort<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let Some(mut since) = since else { return Ok(None) };
        for _ in 0..FLOOR_TRIES {
            // Later by a microsecond, since the clock of some stores is read exactly.
            let floor_us = since.hi_us.saturating_add(1);
            let wait = protocol::until_store_reads(floor_us, since);
            if wait <= LONGEST_FLOOR_WAIT {
                self.pass(wait, effort).await;
                return Ok(Some(floor_us));
            }
            // More than a `Date` explains: it is old, or a clock was set. A new answer tells the time anew.
            effort.request(self.register.read(&key(name))).await?;
            let Some(now) = self.register.store_time() else { return Ok(None) };
            since = now;
        }
        Err(Fault::unavailable("the store's time cannot be told: a clock is being set").not_applied())
    }

    /// Lets `wait` pass on both clocks. Nobody's patience is meant for that, so the effort gets the time back.
    async fn pass(&self, wait: Duration, effort: &mut Effort<'_>) {
        let began = self.now();
        let (mut passed, mut last) = (Duration::ZERO, began);
        // Piece by piece: a wall clock that is set back costs one piece.
        while passed < wait {
            self.register.env().sleep(wait - passed).await;
            let now = self.now();
            passed += now.shortest_since(last);
            last = now;
        }
        effort.extend(last.longest_since(began));
    }

    /// A grant that was committed, unless its time is over already.
    fn granted(&self, claim: &Claim, attempt: Attempt, record: Record, version: Version) -> Grant {
        Grant {
            name: claim.name.clone(),
            token: attempt.token,
            id: claim.id,
            ttl: claim.ttl,
            deadline: deadline(claim.ttl, attempt.sent),
            memo: Some(Box::new(Memo { version, record, confirmed: true, attempts: Vec::new() })),
        }
    }
}
