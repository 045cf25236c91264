//! [`Limit`]: how long a lock is held at most, however often its lease is renewed.

use std::time::Duration;

use super::open_store::OpenStore;
use crate::clock::{Deadline, Moment};
use crate::error::{Error, Result};
use crate::lease::{Loss, LossReason, State, Token};
use crate::ticket::Ticket;
use crate::types::LockName;

/// The limit of a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// The limit, from the grant on.
    pub(crate) max_hold: Duration,
    /// When the hold ends, on this machine's clocks.
    pub(crate) until: Deadline,
}

impl Limit {
    /// Returns the limit of a hold that began at `began` or later.
    pub(crate) fn new(max_hold: Duration, began: Moment) -> Self {
        Self { max_hold, until: Deadline::new(began, max_hold) }
    }

    /// Returns the limit of the hold of `ticket`. The grant may have been made on another machine, whose clocks must not
    /// be compared with those of this one. So the store says how long ago that was, on its own clock. Returns `None`
    /// without a limit.
    pub(crate) async fn of_ticket(ticket: &Ticket, opened: &OpenStore) -> Result<Option<Self>> {
        let Some(max_hold) = ticket.max_hold() else { return Ok(None) };
        let asked = opened.store.env().now();
        let state = opened.store.inspect(ticket.name()).await?.state;
        let is_ours = |token| token == ticket.token();
        let held = match state {
            State::Held(held) | State::Lapsed(held)
                if !held.in_cooldown && !held.reserved && held.token.is_none_or(is_ours) =>
            {
                held
            }
            // The renewal that follows reports the loss. If it succeeds nevertheless, the limit counts from now on.
            _ => return Ok(Some(Self::new(max_hold, asked))),
        };
        let held_for = held.held_for.ok_or_else(|| {
            let store = opened.store.capabilities().store;
            Error::unsupported(format!(
                "the lock `{}` has a limit, but {store} does not show for how long it has been held",
                ticket.name()
            ))
            .with_help("acquire it without `max_hold`, or hold it with a guard or `leasehold run` instead of a ticket")
        })?;
        let until = Deadline::new(asked, max_hold.saturating_sub(held_for));
        Ok(Some(Self { max_hold, until }))
    }

    /// Returns the loss of the grant of `name` with `token` if its limit has passed.
    pub(crate) fn check(limit: Option<Self>, name: &LockName, token: Token, now: Moment) -> Result<()> {
        match limit {
            Some(limit) if limit.until.passed(now) => {
                Err(Error::lost(Loss::new(name.clone(), token, LossReason::Limit)))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether `state` shows a hold that is over. The time of the grant may be an estimate.
    pub(crate) fn is_over(state: &State) -> bool {
        let (State::Held(held) | State::Lapsed(held)) = state else { return false };
        held.max_hold().zip(held.held_for).is_some_and(|(limit, held_for)| held_for >= limit)
    }

    /// Returns the deadline that comes first: `lease`, or the end of the hold.
    pub(crate) fn of_lease(limit: Option<Self>, lease: Deadline) -> Deadline {
        limit.map_or(lease, |limit| limit.until.earliest(lease))
    }
}
