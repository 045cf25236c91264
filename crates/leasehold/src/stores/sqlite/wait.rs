//! Polling by waiters.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;

use super::evidence::{Evidence, Standing};
use super::requests::Purpose;
use super::row;
use super::waiters::RESERVATION;
use super::{POLL_INTERVAL, STORE_TIMEOUT, SqliteLeases, calls, waiters};
use crate::clock::timeout;
use crate::error::StoreError;
use crate::lease::pacing::Pacing;
use crate::lease::{Claim, HolderInfo, Token, Watch};
use crate::protocol::record::RecordState;
use crate::types::LockName;

/// The longest pause of a waiter that is far behind in the line.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[async_trait]
impl Watch for SqliteLeases {
    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        let joins = claim.waits && !claim.barges;
        // Before the first poll, so that no call is missed.
        let call = joins.then(|| calls::expect(claim.id, &self.machine));
        let mut pacing = Pacing::new(POLL_INTERVAL, self.env.now());
        loop {
            let poll = self.poll(&claim.name, Some(claim)).await?;
            let ahead = if claim.barges { 0 } else { poll.ahead };
            let pause = match (poll.standing, poll.kept) {
                (Standing::Free, None) => return Ok(()),
                (Standing::Free, Some(left)) => {
                    let pause = self.behind(ahead.max(1));
                    // It has to ask in the second half of the reservation.
                    let due = left.checked_sub(RESERVATION / 2).filter(|due| !due.is_zero()).unwrap_or(left);
                    if ahead < waiters::ASKING { pause.min(due) } else { pause }
                }
                // The lock has another holder, or a cooldown began or ended. The caller reports it.
                (Standing::Taken(_) | Standing::JustDied, _)
                    if (poll.token, poll.in_cooldown) != (seen.token, seen.in_cooldown) =>
                {
                    return Ok(());
                }
                // A waiter before it has left the line. The caller reports its new place.
                (Standing::Taken(_), _) if joins && seen.ahead.is_some_and(|seen| seen != ahead) => {
                    return Ok(());
                }
                // It was passed over, and joins again.
                (Standing::Taken(_), _) if joins && !poll.has_place => return Ok(()),
                (Standing::JustDied, _) => {
                    self.note_death(&claim.name).await?;
                    continue;
                }
                (Standing::Taken(left), _) if ahead == 0 => {
                    let now = self.env.now();
                    pacing.pause(now, poll.token, poll.held_for, Some(left), &self.env.random)
                }
                (Standing::Taken(_), _) => self.behind(ahead),
            };
            match &call {
                None => self.env.sleep(pause).await,
                Some(call) => {
                    timeout(&*self.env.clock, pause, call.called()).await;
                }
            }
        }
    }

    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let mut pacing = Pacing::new(POLL_INTERVAL, self.env.now());
        loop {
            let poll = self.poll(name, None).await?;
            match poll.standing {
                Standing::Free => return Ok(()),
                _ if (poll.token, poll.in_cooldown) != (seen.token, seen.in_cooldown) => return Ok(()),
                Standing::JustDied => self.note_death(name).await?,
                Standing::Taken(left) => {
                    let now = self.env.now();
                    let pause = pacing.pause(now, poll.token, poll.held_for, Some(left), &self.env.random);
                    self.env.sleep(pause).await;
                }
            }
        }
    }
}

impl SqliteLeases {
    /// Returns the pause of a waiter behind `ahead` others. Before it can get the lock, one of them does, so it is called
    /// in time, and polls only in case that all of them and the holder have died.
    pub(super) fn behind(&self, ahead: usize) -> Duration {
        let factor = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
        self.env.random.jittered(POLL_INTERVAL.max.saturating_mul(factor).min(LONGEST_PAUSE), 0.1)
    }

    /// Reads the state of the lock, and the place of `claim` in the line if there is one.
    async fn poll(&self, name: &LockName, claim: Option<&Claim>) -> Result<Poll, StoreError> {
        let (name, claim) = (name.clone(), claim.cloned());
        let (machine, env) = (Arc::clone(&self.machine), self.env.clone());
        let work = move |connection: &mut Connection| {
            let (row, now) = (row::load(connection, &name)?, env.now());
            let evidence = Evidence::of(row.as_ref(), &machine, now);
            let record = row.as_ref().map(|row| &row.record);
            let mut poll = Poll {
                standing: record.map_or(Standing::Free, |record| evidence.standing(record)),
                held_for: record.map_or(Duration::ZERO, |record| evidence.held_for(record)),
                token: record.map(|record| record.token),
                in_cooldown: record.is_some_and(|record| record.state == RecordState::Cooldown),
                kept: None,
                ahead: 0,
                has_place: false,
            };
            if let Some(claim) = &claim {
                (poll.ahead, poll.has_place) = waiters::place(connection, claim)?;
                if matches!(poll.standing, Standing::Free) {
                    poll.kept = waiters::kept_for(connection, claim, &machine, now)?;
                }
            }
            Ok(poll)
        };
        self.database.run(&self.env, STORE_TIMEOUT, Purpose::Poll, work).await
    }
}

/// The result of one poll of a waiter.
struct Poll {
    standing: Standing,
    held_for: Duration,
    token: Option<Token>,
    in_cooldown: bool,
    /// How long the free lock is kept for another waiter.
    kept: Option<Duration>,
    /// How many waiters are before the claim.
    ahead: usize,
    /// Whether the claim is in the line.
    has_place: bool,
}
