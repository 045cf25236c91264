//! The line of waiters: joining it, leaving it, and deciding whose turn it is.
//!
//! No error here ends an acquisition, because the line only delays grants.

use std::time::Duration;

use super::super::line::{Line, Waiter};
use super::super::record::{Record, RecordState};
use super::super::record_cache::Observation;
use super::super::records::Written;
use super::super::rules;
use super::{Reading, RegisterLeases, STORE_TIMEOUT};
use crate::error::{Fault, StoreError};
use crate::lease::{
    self, Claim, HolderInfo, Id, MAX_WAITERS, PermitQueue, Standing, Ttl, pause, reservation,
};
use crate::register::{Precondition, Version};
use crate::retry::{RetryBudget, repeated};
use crate::types::LockName;

/// How often the probability of an attempt to join is halved at most. This is enough for the 64 processes that fit into
/// a line.
const MAX_HALVINGS: u32 = 6;

/// The fields of the lock's record that a grant to the first in line sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Front {
    /// See [`Record::served`].
    pub(super) served: u64,
    /// See [`Record::awaited`].
    pub(super) awaited: bool,
}

impl Front {
    /// Returns the fields as they are in `record`.
    pub(super) fn of(record: &Record) -> Self {
        Self { served: record.served, awaited: record.awaited }
    }
}

impl RegisterLeases {
    /// Returns whether `claim` takes a place in the line while it waits.
    pub(super) fn joins(&self, claim: &Claim) -> bool {
        self.records.has_lines() && claim.waits && !claim.barges && claim.permit_queue.is_none()
    }

    /// Adds the place of `claim` in the line to `held`, the refusal of the claim. `seen` is the lock's record as it was
    /// read.
    pub(super) fn add_place(&self, claim: &Claim, seen: Option<&Observation>, held: &mut HolderInfo) {
        let Some(seen) = seen else { return };
        self.note_place(claim, seen);
        let served = seen.record.served;
        if claim.place.is_taken(claim.id, served) {
            held.ahead = Some(claim.place.before(claim.id, served).0);
            held.waiter_ahead = claim.place.waiter_ahead(claim.id, served);
        }
    }

    /// Records the place of `claim`, if it may have one, in the line that was read with the record.
    pub(super) fn note_place(&self, claim: &Claim, seen: &Observation) {
        if let Some(line) = seen.line.as_ref().filter(|_| claim.place.may_be_taken(claim.id)) {
            note(claim, line, &seen.record);
        }
    }

    /// Decides whether the line lets `claim` take the lock. According to `record`, which has been seen unchanged for
    /// `unchanged_for`, the lock may be granted. `is_old` tells whether the lock may have been taken since the record was
    /// read, and `line` is the line if it came with it. Returns an error if the lock is reserved for other waiters.
    pub(super) async fn front(
        &self,
        claim: &Claim,
        record: &Record,
        line: Option<&Line>,
        unchanged_for: Duration,
        is_old: bool,
    ) -> Result<Front, HolderInfo> {
        let as_it_was = Front::of(record);
        let is_ours = record.grant == claim.id && record.state == RecordState::Held;
        // Without the store's clock, a process that only tries cannot know for how long the lock has been free.
        let cannot_tell = !claim.waits && !rules::knows_age(record, self.store_time(), self.rules);
        let is_first = claim.permit_queue.as_ref().is_some_and(PermitQueue::is_first);
        let is_empty = !record.awaited
            && !claim.reads_line
            && !is_first
            && !claim.place.is_taken(claim.id, record.served);
        if is_empty || claim.barges || is_ours || cannot_tell || !self.records.has_lines() {
            return Ok(as_it_was);
        }
        match &claim.permit_queue {
            None => self.front_of_line(claim, &claim.name, record, line, unchanged_for, is_old).await,
            Some(PermitQueue { name, first_since: Some(_) }) => {
                let others_wait = self.cache.recall(name).is_some_and(|queue| queue.record.awaited);
                Ok(Front { awaited: record.awaited || others_wait, ..as_it_was })
            }
            Some(PermitQueue { name, .. }) => {
                // An error leaves the permit marked as awaited, because only the first in the queue takes it.
                self.front_of_queue(claim, name).await.map(|()| Front { awaited: false, ..as_it_was })
            }
        }
    }

    /// Decides whether the queue for several permits lets `claim` take a permit. It does if no process holds the lock
    /// `queue` and `claim` could take that lock.
    async fn front_of_queue(&self, claim: &Claim, queue: &LockName) -> Result<(), HolderInfo> {
        let reading = match self.read(queue, &mut self.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await {
            Ok(reading) => reading,
            Err(error) => {
                tracing::debug!(lock = %queue, %error, "the queue for permits cannot be read");
                return Ok(());
            }
        };
        let unchanged_for = reading.unchanged_for(reading.at);
        match (self.state_of(&reading), &reading.observation) {
            (lease::State::Held(first), _) => Err(HolderInfo { reserved: true, held_for: None, ..first }),
            (_, Some(Observation { record, .. })) if record.awaited => {
                let line = reading.line();
                self.front_of_line(claim, queue, record, line, unchanged_for, false).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Decides whether the line of `name` lets `claim` take the lock, which may be granted according to its `record`.
    async fn front_of_line(
        &self,
        claim: &Claim,
        name: &LockName,
        record: &Record,
        line: Option<&Line>,
        unchanged_for: Duration,
        is_old: bool,
    ) -> Result<Front, HolderInfo> {
        let as_it_was = Front::of(record);
        let line = match line {
            Some(line) => Ok(Some(line.clone())),
            None => self.line(name).await.map(|found| found.map(|(line, _)| line)),
        };
        let line = match line {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(Front { awaited: false, ..as_it_was }),
            Err(error) => {
                tracing::debug!(lock = %name, %error, "the line of waiters cannot be read");
                return Ok(as_it_was);
            }
        };
        let Standing { number, before, waiter_ahead } = note(claim, &line, record);
        let reservation = reservation(before.iter().map(|before| before.polls));
        let available_for = rules::available_for(record, unchanged_for, self.store_time(), self.rules);
        let first = line.waiting(record).next();
        let kept = match first {
            Some(first) if !is_old => {
                claim.place.kept(claim.id, first.claim, record.nonce.bits(), available_for)
            }
            _ => available_for,
        };
        match first {
            Some(first) if kept < reservation => Err(HolderInfo {
                holder: Some(first.holder.clone()),
                token: Some(record.token),
                free_for: Some(available_for),
                lapses_within: Some(reservation - kept),
                reserved: true,
                ahead: number.map(|_| before.len()),
                waiter_ahead: number.and(waiter_ahead),
                ..HolderInfo::default()
            }),
            _ => {
                // The waiters before it are passed over.
                let served = number.or(before.last().map(|before| before.number)).unwrap_or(record.served);
                Ok(Front { served, awaited: line.waiting(record).any(|waiter| waiter.number > served) })
            }
        }
    }

    /// Makes sure that the waiting `claim` is in the line, and that the lock's record is marked as awaited. Returns
    /// whether the claim has just joined.
    pub(super) async fn keep_place(&self, claim: &Claim, reading: &Reading) -> bool {
        let Some(Observation { record, version, .. }) = &reading.observation else { return false };
        if record.state == RecordState::Free || self.claims_in_turn() {
            return false;
        }
        let is_new = self.joins(claim) && !claim.place.is_taken(claim.id, record.served);
        let kept = async {
            if is_new {
                self.join(claim, record).await?;
            }
            let has_place = claim.place.is_taken(claim.id, record.served) || self.is_passed_over(claim);
            if has_place && !record.awaited && self.records.marks_awaited() {
                self.mark_awaited(&claim.name, record, version).await?;
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = kept.await {
            if is_new && !claim.place.is_taken(claim.id, record.served) {
                // GCS refuses more than about one write per second, so the claim also tries less often after an error.
                claim.place.conflicted(claim.id);
            }
            tracing::debug!(lock = %claim.name, %error, "the line of waiters was not updated");
        }
        is_new && claim.place.is_taken(claim.id, record.served)
    }

    /// Returns whether `claim`, which is first in the queue for several permits, has waited for so long that processes
    /// that do not wait must notice it in the permits' records. Most waits are shorter and cost no writes to these
    /// records.
    fn is_passed_over(&self, claim: &Claim) -> bool {
        let first_since = claim.permit_queue.as_ref().and_then(|queue| queue.first_since);
        let longest = self.records.capabilities().poll_interval.max;
        first_since.is_some_and(|since| self.now().longest_since(since) >= longest)
    }

    /// Adds `claim` to the end of the line. If other waiters write the line at the same time, the claim tries again
    /// after later polls. Each conflict halves the probability of an attempt, up to a limit, so that any number of
    /// waiters eventually join.
    async fn join(&self, claim: &Claim, record: &Record) -> Result<(), StoreError> {
        let chance = 0.5_f64.powi(claim.place.conflicts(claim.id).min(MAX_HALVINGS) as i32);
        if self.records.env().random.fraction() >= chance {
            return Ok(());
        }
        let mut budget = self.budget(STORE_TIMEOUT, claim.ttl);
        self.probed(self.records.trust(), &mut budget).await?;
        let (line, version) = match budget.request(self.records.read_line(&claim.name)).await? {
            // A line that cannot be parsed is replaced by a new one.
            Some((bytes, version)) => (Line::parse(&bytes).ok(), Some(version)),
            None => (None, None),
        };
        // An earlier request to join may have been applied without a response.
        if line.as_ref().is_some_and(|line| note(claim, line, record).number.is_some()) {
            return Ok(());
        }
        let longest = self.records.capabilities().poll_interval.max;
        let pause = |ahead| pause(longest, ahead, claim.ttl);
        let Some(line) = Line::joined(line, self.waiter(claim), record, pause) else { return Ok(()) };
        claim.place.tries_to_join(claim.id);
        let expect = version.as_ref().map_or(Precondition::Absent, Precondition::Version);
        let bytes = line.to_bytes().map_err(Fault::not_applied)?;
        if budget.request(self.records.write_line(&claim.name, expect, bytes)).await? {
            note(claim, &line, record);
        } else {
            claim.place.conflicted(claim.id);
        }
        Ok(())
    }

    /// Adds `claim` to the line of a store that claims in turn, and returns what the store answers.
    pub(super) async fn join_in_turn(
        &self,
        claim: &Claim,
        budget: &RetryBudget<'_>,
    ) -> Result<Reading, StoreError> {
        let in_ms = |pause: Duration| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        let pause = |ahead| in_ms(pause(self.records.capabilities().poll_interval.max, ahead, claim.ttl));
        let waiter = Waiter { polls_ms: pause(0), ..self.waiter(claim) };
        claim.place.tries_to_join(claim.id);
        let joined = self.records.join(&claim.name, &waiter, pause(MAX_WAITERS - 1));
        let reading = self.seen(&claim.name, budget.request(joined).await?);
        if let Some(seen) = &reading.observation {
            self.note_place(claim, seen);
        }
        Ok(reading)
    }

    /// Returns the entry of `claim` in a line, without its number and pause.
    fn waiter(&self, claim: &Claim) -> Waiter {
        Waiter {
            number: 0,
            claim: claim.id,
            holder: claim.waiter(),
            since_us: self.store_time().map(|store| store.hi_us),
            polls_ms: 0,
        }
    }

    /// Marks a lock's record as awaited.
    async fn mark_awaited(
        &self,
        name: &LockName,
        record: &Record,
        version: &Version,
    ) -> Result<(), StoreError> {
        let budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        let mark = self.records.mark_awaited(name, version, record);
        if let Written::Committed { record, version } = budget.request(mark).await? {
            self.cache.wrote(name, *record, version, self.now());
        }
        Ok(())
    }

    /// Removes `claim`, which no longer waits, from the line of `name`.
    pub(super) async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        if !self.records.has_lines() {
            return Ok(());
        }
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        if self.claims_in_turn() {
            return repeated(&mut budget, || self.records.leave(name, claim)).await;
        }
        loop {
            match self.try_to_leave(name, claim, &budget).await {
                Ok(true) => return Ok(()),
                Ok(false) => budget.pause_after_conflict().await?,
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    /// Returns `false` if another process wrote the line at the same time.
    async fn try_to_leave(
        &self,
        name: &LockName,
        claim: Id,
        budget: &RetryBudget<'_>,
    ) -> Result<bool, StoreError> {
        let Some((line, version)) = self.line(name).await? else { return Ok(true) };
        let served = self.cache.recall(name).map_or(0, |observation| observation.record.served);
        let Some(line) = line.left(claim, served) else { return Ok(true) };
        let bytes = line.to_bytes().map_err(Fault::not_applied)?;
        budget.request(self.records.write_line(name, Precondition::Version(&version), bytes)).await
    }

    /// Returns the waiters in the line, for people. A line that cannot be read counts as empty.
    pub(super) async fn waiters(
        &self,
        name: &LockName,
        record: &Record,
        line: Option<&Line>,
    ) -> Vec<lease::Waiter> {
        if !record.awaited || !self.records.has_lines() {
            return Vec::new();
        }
        let read = match line {
            None => self.line(name).await.ok().flatten(),
            Some(_) => None,
        };
        let Some(line) = line.or(read.as_ref().map(|(line, _)| line)) else { return Vec::new() };
        let now_us = self.store_time().map(|store| store.lo_us);
        let shown = line.waiting(record).map(|waiter| {
            let mut shown = lease::Waiter::new(waiter.holder.clone());
            let waited_us =
                now_us.zip(waiter.since_us).map(|(now_us, since_us)| now_us.saturating_sub(since_us));
            shown.waited = waited_us.map(Duration::from_micros);
            shown
        });
        shown.collect()
    }

    /// Reads the line of `name`.
    pub(super) async fn line(&self, name: &LockName) -> Result<Option<(Line, Version)>, StoreError> {
        let found = self.budget(STORE_TIMEOUT, Ttl::DEFAULT).request(self.records.read_line(name)).await?;
        let Some((bytes, version)) = found else { return Ok(None) };
        Ok(Some((Line::parse(&bytes).map_err(Fault::not_applied)?, version)))
    }
}

/// Records and returns the state of `claim` in `line`.
fn note(claim: &Claim, line: &Line, record: &Record) -> Standing {
    let standing = line.standing(claim.id, record);
    claim.place.found(claim.id, standing.clone());
    standing
}
