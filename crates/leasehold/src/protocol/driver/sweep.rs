//! Sweeping: deletes the records of locks that have long been unused.

use std::time::Duration;

use super::{Reading, RegisterLeases, STORE_TIMEOUT};
use crate::clock::StoreTime;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Swept, Ttl};
use crate::protocol::record::{Record, RecordState};
use crate::protocol::record_cache::Observation;
use crate::protocol::rules::Rules;
use crate::register::Version;
use crate::retry::{RetryBudget, repeated};
use crate::types::LockName;

impl RegisterLeases {
    /// Deletes exactly the record that was read. A grant in between changes the version, so the delete fails.
    pub(super) async fn swept(
        &self,
        name: &LockName,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<Swept, StoreError> {
        if !self.rules.store_clock {
            let message =
                "no clock says for how long a lock has been free: the store has none, or store_clock=off";
            return Err(Fault::new(ErrorKind::Unsupported, message)
                .with_help("with store_clock=off, sweep without that option, if the store's clock is right")
                .not_applied());
        }
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        self.trusted(&mut budget).await?;
        repeated(&mut budget, || self.records.check_sweep()).await?;
        // Whether a delete was sent and got no response.
        let mut unknown = false;
        loop {
            let Reading { found, observation, .. } = self.read(name, &mut budget).await?;
            let Some(Observation { record, version, .. }) = observation else {
                return Ok(if unknown && found.is_none() { Swept::Deleted } else { Swept::Kept });
            };
            // A store that keeps the line also takes the tokens from its clock.
            let exact = self.claims_in_turn();
            // Without it, the next client would choose the size, while others still rely on it.
            if record.size != 0
                || free_for(&record, self.rules, self.store_time(), exact)
                    .is_none_or(|free| free < older_than)
            {
                return Ok(Swept::Kept);
            }
            if dry_run {
                return Ok(Swept::Deleted);
            }
            self.probed(self.records.trust_deletes(), &mut budget).await?;
            match self.discarded(name, &version, &budget).await {
                Ok(true) => return Ok(Swept::Deleted),
                Ok(false) if unknown => budget.pause_after_conflict().await?,
                Ok(false) => return Ok(Swept::Kept),
                Err(error) => {
                    unknown |= matches!(error, StoreError::MaybeApplied(_));
                    budget.pause_after(error).await?;
                }
            }
        }
    }

    /// Deletes the record if it has this version, and then its line. Reads the line first, because on DynamoDB
    /// it has the token of the record, and that of a later record must stay.
    pub(super) async fn discarded(
        &self,
        name: &LockName,
        version: &Version,
        budget: &RetryBudget<'_>,
    ) -> Result<bool, StoreError> {
        let line = budget.request(self.records.read_line(name)).await;
        if !budget.request(self.records.discard(name, version)).await? {
            return Ok(false);
        }
        self.cache.forget(name);
        let deleted = match line {
            Ok(Some((_, version))) => budget.request(self.records.delete_line(name, &version)).await,
            line => line.map(drop),
        };
        if let Err(error) = deleted {
            tracing::debug!(lock = %name, %error, "the line of waiters was not deleted");
        }
        Ok(true)
    }
}

/// Returns how long the lock has certainly been free by the store's clock. Returns `None` if it is not free, or if this
/// is unknown. `exact`: see [`Rules::is_recent`].
fn free_for(record: &Record, rules: Rules, store: Option<StoreTime>, exact: bool) -> Option<Duration> {
    let cooldown_ms = match record.state {
        RecordState::Held => return None,
        RecordState::Free => 0,
        RecordState::Cooldown => record.cooldown_ms?,
    };
    let free_from_us = record.renewed_at_us?.saturating_add(cooldown_ms.saturating_mul(1_000));
    let store = store?;
    if rules.is_recent(record.token, store, exact) {
        return None;
    }
    store.lo_us.checked_sub(free_from_us).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::golden::golden_record;
    use crate::lease::{AcquireOutcome, Claim, Evicted, Holder, LeaseStore, StoreOptions, Token};
    use crate::proof::flawed::{Flaw, Flawed, store};
    use crate::register::Register;

    /// Creates a lock in `register` that has been free for a day.
    async fn with_old_lock(register: Arc<Flawed>) -> (RegisterLeases, LockName) {
        let options = StoreOptions { env: register.env.clone(), ..StoreOptions::default() };
        let leases = RegisterLeases::new(register, options);
        let name = LockName::new("old").unwrap();
        let claim = Claim::new(leases.env(), name.clone(), Ttl::DEFAULT, Holder::this_process());
        let AcquireOutcome::Granted(mut grant) = leases.try_acquire(&claim).await.unwrap() else {
            panic!("the lock is free");
        };
        leases.release(&mut grant, None).await.unwrap();
        leases.env().sleep(DAY).await;
        (leases, name)
    }

    const DAY: Duration = Duration::from_secs(86_400);

    const RULES: Rules = Rules { store_clock: true, margin: Duration::ZERO, lapsed_is_over: false };

    #[tokio::test(start_paused = true)]
    async fn a_store_whose_deletes_are_not_conditional_is_not_swept() {
        let register = Arc::new(store(Flaw::IgnoresVersionOfDeletes));
        let (leases, name) = with_old_lock(register.clone()).await;
        let refused = leases.sweep(&name, Duration::ZERO, false).await.unwrap_err();
        assert_eq!(refused.fault().kind, ErrorKind::Unsupported, "{refused:?}");
        assert!(register.read("old.lock").await.unwrap().is_some());
    }

    /// The probe of deletes sends dozens of requests, so it takes longer than one request may.
    #[tokio::test(start_paused = true)]
    async fn a_slow_store_is_swept() {
        let register = Flawed { latency: Duration::from_millis(500), ..store(Flaw::None) };
        let (leases, name) = with_old_lock(Arc::new(register)).await;
        assert_eq!(leases.sweep(&name, Duration::ZERO, false).await.unwrap(), Swept::Deleted);
    }

    /// The probe of writes takes longer than an eviction may.
    #[tokio::test(start_paused = true)]
    async fn a_grant_on_a_slow_store_that_was_not_probed_is_evicted() {
        let register = Arc::new(Flawed { latency: Duration::from_secs(2), ..store(Flaw::None) });
        let options = StoreOptions { env: register.env.clone(), ..StoreOptions::default() };
        let leases = RegisterLeases::new(register.clone(), options.clone());
        let name = LockName::new("lock").unwrap();
        let claim = Claim::new(leases.env(), name.clone(), Ttl::DEFAULT, Holder::this_process());
        let AcquireOutcome::Granted(grant) = leases.try_acquire(&claim).await.unwrap() else {
            panic!("the lock is free");
        };
        // Without the marker, another process does not know that the store was probed.
        register.cells.lock().unwrap().remove(".leasehold-probe");
        let other = RegisterLeases::new(register, options);
        assert_eq!(other.evict(&name, grant.token, None).await.unwrap(), Evicted::Evicted);
    }

    #[test]
    fn age_counts_from_the_release_or_the_end_of_a_cooldown() {
        let now = 2_000_000_000_000_000;
        let free_for =
            |record: &Record, now| free_for(record, RULES, Some(StoreTime::between(now, u64::MAX)), false);
        let mut record = golden_record("1-free.json");
        record.renewed_at_us = Some(now - 5_000_000);
        assert_eq!(free_for(&record, now), Some(Duration::from_secs(5)));
        assert_eq!(free_for(&record, now - 6_000_000), None, "not from before the release");
        record.state = RecordState::Cooldown;
        record.cooldown_ms = Some(2_000);
        assert_eq!(free_for(&record, now), Some(Duration::from_secs(3)));
        record.cooldown_ms = Some(6_000);
        assert_eq!(free_for(&record, now), None);
        record.state = RecordState::Free;
        assert_eq!(super::free_for(&record, RULES, None, false), None, "without a clock");
        let written = Record { renewed_at_us: None, ..record.clone() };
        assert_eq!(free_for(&written, now), None, "written by a client that does not say when");
        record.state = RecordState::Held;
        assert_eq!(free_for(&record, now), None);
    }

    /// The next token might not be higher.
    #[test]
    fn a_record_with_a_recent_token_is_not_swept() {
        let store = StoreTime::exactly(9_000_000);
        let mut record = Record { renewed_at_us: Some(0), ..golden_record("1-free.json") };
        for (token, margin, exact, free) in [
            (5_999_999, 0, false, true),
            (6_000_000, 0, false, false),
            (10_000_000, 0, false, false),
            (3_999_999, 5, false, true),
            (4_000_000, 5, false, false),
            (8_999_999, 5, true, true),
            (9_000_000, 5, true, false),
        ] {
            record.token = Token::new(token).unwrap();
            let rules = Rules { margin: Duration::from_secs(margin), ..RULES };
            assert_eq!(
                free_for(&record, rules, Some(store), exact).is_some(),
                free,
                "{token} {margin} {exact}"
            );
        }
    }
}
