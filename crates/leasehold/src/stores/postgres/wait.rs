//! How a waiter waits: it joins the waiters in the lock's row, and polls.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::acquire::as_json;
use super::errors::Effect;
use super::leases::{PostgresLeases, cell, milliseconds, number, only};
use super::record::Record;
use super::rules;
use super::statements::Parameter;
use super::{POLL_INTERVAL, STORE_TIMEOUT};
use crate::error::StoreError;
use crate::lease::{self, Claim, HolderInfo, Id, Ttl, attempt_limit};
use crate::retry::RetryBudget;
use crate::runtime::pacing::Pacing;
use crate::types::LockName;

impl PostgresLeases {
    /// Polls until the lock is no longer as it was `seen`.
    pub(super) async fn until_changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let mut pacing = Pacing::new(POLL_INTERVAL, self.env.now());
        loop {
            let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
            let record = self.record(name, &mut budget).await?;
            pacing.looked(budget.had_trouble());
            let Some(record) = record.filter(|record| rules::is_still(record, seen)) else { return Ok(()) };
            let (now, age) = (self.env.now(), rules::held_for(&record));
            let pause = pacing.pause(now, seen.token, age, Some(record.left()), &self.env.random);
            self.env.sleep(pause).await;
        }
    }

    /// Waits until the lock is no longer as it was `seen`, or `claim` has a new place among the waiters.
    pub(super) async fn until_turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        let joins = claim.waits && !claim.barges;
        let mut pacing = Pacing::new(POLL_INTERVAL, self.env.now());
        let mut has_place = seen.ahead.is_some();
        loop {
            let mut budget = self.budget(STORE_TIMEOUT, claim.ttl);
            let record = match joins && !has_place {
                false => self.record(&claim.name, &mut budget).await?,
                true => match self.join(claim, &mut budget).await? {
                    // The caller reports its place.
                    (true, _) => return Ok(()),
                    (false, record) => record,
                },
            };
            pacing.looked(budget.had_trouble());
            let Some(record) = record else { return Ok(()) };
            let place = rules::ahead(claim, &record);
            has_place = place.is_some();
            let ahead = if joins || seen.reserved { place.unwrap_or(record.waiters.len()) } else { 0 };
            pacing.set_next(place == Some(0));
            let (pause, due) = match rules::reserved(claim, &record) {
                Some(kept) if seen.reserved => (POLL_INTERVAL.shortest(&self.env.random), kept.lapses_within),
                None if rules::is_still(&record, seen) => {
                    let (now, age) = (self.env.now(), rules::held_for(&record));
                    let grace = if joins { rules::grace_before(claim, &record) } else { Duration::ZERO };
                    let pause = pacing.pause(now, seen.token, age, None, &self.env.random);
                    (pause, Some(record.left().saturating_add(grace)))
                }
                Some(_) | None => return Ok(()),
            };
            let pause = lease::pause(pause, ahead, claim.ttl);
            self.env.sleep(pacing.until(pause, due, &self.env.random)).await;
        }
    }

    /// Adds `claim` to the waiters. Returns whether it was added, and the lock's row. Only a lock that is not free has
    /// waiters, and not more than [`MOST_WAITERS`](lease::MOST_WAITERS).
    async fn join(
        &self,
        claim: &Claim,
        budget: &mut RetryBudget<'_>,
    ) -> Result<(bool, Option<Record>), StoreError> {
        let id = claim.id.to_string();
        let holder = as_json(&claim.holder.of_the_past())?;
        let waiter = format!(r#"{{"claim":"{id}","holder":{holder}}}"#);
        let in_ms = |pause: Duration| number(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        let longest = in_ms(lease::pause(Duration::MAX, 0, claim.ttl));
        let single = in_ms(POLL_INTERVAL.max);
        let timeout = milliseconds(attempt_limit(claim.ttl));
        let parameters: [Parameter<'_>; 6] = [
            (&claim.name.as_str(), Type::TEXT),
            (&id, Type::TEXT),
            (&waiter, Type::TEXT),
            (&single, Type::INT8),
            (&longest, Type::INT8),
            (&timeout, Type::TEXT),
        ];
        let rows = self.rows(Effect::Writes, &self.statements.join, &parameters, budget).await?;
        let row = only(&rows)?;
        let is_changed: Option<bool> = cell(row, "is_changed")?;
        let record = is_changed.map(|_| self.parsed(row, &claim.name)).transpose()?;
        Ok((is_changed == Some(true), record))
    }

    /// Removes `claim` from the waiters for `name`. If this fails, it delays the others once.
    pub(super) async fn leave(&self, name: &LockName, claim: Id) {
        let (id, timeout) = (claim.to_string(), milliseconds(attempt_limit(Ttl::DEFAULT)));
        let parameters: [Parameter<'_>; 3] =
            [(&name.as_str(), Type::TEXT), (&id, Type::TEXT), (&timeout, Type::TEXT)];
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        let left = self.rows(Effect::Writes, &self.statements.leave, &parameters, &mut budget).await;
        if let Err(error) = left {
            tracing::debug!(lock = %name, %error, "a place among the waiters was not given up");
        }
    }
}
