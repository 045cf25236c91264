//! Whether a grant holds its lock, and why it was lost: decided here for all stores.

use super::{End, Grant, HolderInfo, Id, Loss, LossReason, PastGrant, Released, Renewal, State, Token};

impl LossReason {
    /// The lease was not renewed in time, and no error says why.
    pub(crate) const EXPIRED: Self = Self::Expired { last_error: None };

    /// Returns why `grant` was lost. `history` is that of the lock's record (`None`: there is no record), `seen` is who
    /// has the lock now.
    pub(crate) fn of(grant: Id, history: Option<&[PastGrant]>, seen: Option<HolderInfo>) -> Self {
        let Some(history) = history else { return Self::Deleted };
        let past = past(grant, history);
        if let Some(why) = past.and_then(|past| past.evicted.clone()) {
            return Self::Evicted { why };
        }
        match (past.map(|past| past.end), taken_over(seen)) {
            (Some(End::Released | End::Evicted), _) => Self::Ended,
            (Some(End::Limit), _) => Self::Limit,
            (Some(End::Lapsed) | None, Some(taken_over)) => taken_over,
            (Some(End::Lapsed) | None, None) => Self::EXPIRED,
        }
    }

    /// Returns why a grant was lost, on a store without a history. `ended` is whether the store remembers that another
    /// process ended the grant.
    #[allow(dead_code, reason = "only some stores need it")]
    pub(crate) fn without_history(ended: bool, seen: Option<HolderInfo>) -> Self {
        if ended { Self::Ended } else { taken_over(seen).unwrap_or(Self::Deleted) }
    }
}

fn past(grant: Id, history: &[PastGrant]) -> Option<&PastGrant> {
    history.iter().find(|past| past.grant == grant)
}

/// A lock in a cooldown was not taken over.
fn taken_over(seen: Option<HolderInfo>) -> Option<LossReason> {
    seen.filter(|by| !by.in_cooldown).map(|by| LossReason::TakenOver { by: by.into() })
}

impl Released {
    /// Returns whether the holder released `grant`, according to the `history`.
    pub(crate) fn of(grant: Id, history: &[PastGrant]) -> Self {
        match past(grant, history).map(|past| past.end) {
            Some(End::Released | End::Limit) => Self::Released,
            Some(End::Lapsed | End::Evicted) | None => Self::AlreadyLost,
        }
    }
}

impl Grant {
    /// Returns the loss of this grant.
    pub(crate) fn lost(&self, reason: LossReason) -> Renewal {
        Renewal::Lost(Loss::new(self.name.clone(), self.token, reason))
    }
}

impl State {
    /// Returns whether the grant with `token` holds the lock. If not, returns why it was lost, as far as the state
    /// shows.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locker = leasehold::Locker::open("mem:").await?;
    /// let guard = locker.lock("deploy").acquire().await?;
    /// let (name, token) = (guard.name().clone(), guard.token()?);
    /// assert!(locker.inspect(&name).await?.state.held_with(token).is_ok());
    /// guard.release().await?;
    /// let lost = locker.inspect(&name).await?.state.held_with(token);
    /// assert_eq!(*lost.unwrap_err(), leasehold::LossReason::Ended);
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn held_with(self, token: Token) -> Result<HolderInfo, Box<LossReason>> {
        let reason = match self {
            Self::Held(held) if held.token == Some(token) && !held.in_cooldown => return Ok(held),
            Self::Held(held) => taken_over(Some(held)).unwrap_or(LossReason::Ended),
            Self::Lapsed(held) if held.token == Some(token) => LossReason::EXPIRED,
            Self::Lapsed(_) | Self::Free => LossReason::Ended,
        };
        Err(Box::new(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Eviction, Holder};

    fn id(digit: &str) -> Id {
        digit.repeat(32).parse().unwrap()
    }

    fn history(end: Option<End>) -> Vec<PastGrant> {
        let past = |end| PastGrant {
            token: Token::default(),
            grant: id("a"),
            holder: Holder::default(),
            from_us: None,
            until_us: None,
            end,
            evicted: None,
        };
        end.map(past).into_iter().collect()
    }

    #[test]
    fn a_situation_has_the_same_loss_reason_on_all_stores() {
        let other = || Some(HolderInfo::default());
        let cooldown = || Some(HolderInfo { in_cooldown: true, ..HolderInfo::default() });
        for (end, seen, reason) in [
            (Some(End::Evicted), None, "ended"),
            (Some(End::Evicted), other(), "ended"),
            (Some(End::Released), None, "ended"), // through its ticket
            (Some(End::Released), other(), "ended"),
            (Some(End::Limit), other(), "limit"),
            (Some(End::Lapsed), other(), "taken_over"),
            (Some(End::Lapsed), None, "expired"), // the next holder has released the lock
            (Some(End::Lapsed), cooldown(), "expired"),
            (None, other(), "taken_over"),
            (None, None, "expired"),
        ] {
            let found = LossReason::of(id("a"), Some(&history(end)), seen.clone());
            assert_eq!(found.as_str(), reason, "{end:?} {seen:?}");
        }
        let mut told = history(Some(End::Evicted));
        told[0].evicted = Some(Eviction::new("bob", "it hangs"));
        let found = LossReason::of(id("a"), Some(&told), other());
        assert_eq!(
            (found.as_str(), found),
            ("ended", LossReason::Evicted { why: Eviction::new("bob", "it hangs") })
        );
        assert_eq!(LossReason::of(id("a"), None, None), LossReason::Deleted);
        let others = history(Some(End::Evicted));
        assert_eq!(LossReason::of(id("b"), Some(&others), None), LossReason::EXPIRED, "of another grant");
    }

    #[test]
    fn a_store_without_a_history_knows_less() {
        let other = || Some(HolderInfo::default());
        let cooldown = Some(HolderInfo { in_cooldown: true, ..HolderInfo::default() });
        for (ended, seen, reason) in [
            (true, other(), "ended"),
            (false, other(), "taken_over"),
            (false, cooldown, "deleted"),
            (false, None, "deleted"),
        ] {
            assert_eq!(LossReason::without_history(ended, seen).as_str(), reason);
        }
    }

    #[test]
    fn a_state_shows_whether_a_grant_holds_the_lock() {
        let token = Token::new(7).unwrap();
        let info = |token: u64, in_cooldown| HolderInfo {
            token: Token::new(token),
            in_cooldown,
            ..HolderInfo::default()
        };
        assert_eq!(State::Held(info(7, false)).held_with(token), Ok(info(7, false)));
        for (state, reason) in [
            (State::Held(info(8, false)), LossReason::TakenOver { by: info(8, false).into() }),
            (State::Held(info(7, true)), LossReason::Ended),
            (State::Lapsed(info(7, false)), LossReason::EXPIRED),
            (State::Lapsed(info(8, false)), LossReason::Ended),
            (State::Free, LossReason::Ended),
        ] {
            assert_eq!(state.held_with(token), Err(Box::new(reason)));
        }
    }

    #[test]
    fn only_its_holder_has_released_a_grant() {
        for end in [End::Released, End::Limit] {
            assert_eq!(Released::of(id("a"), &history(Some(end))), Released::Released);
        }
        for end in [Some(End::Evicted), Some(End::Lapsed), None] {
            assert_eq!(Released::of(id("a"), &history(end)), Released::AlreadyLost, "{end:?}");
        }
        assert_eq!(Released::of(id("b"), &history(Some(End::Released))), Released::AlreadyLost);
    }
}
