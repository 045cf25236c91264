//! One grant in this process, and the tasks that hold the lock by it, one after the other.

use tokio::sync::oneshot;

use super::Hold;
use crate::clock::Moment;
use crate::lease::{Capabilities, Grant, Holder, HolderInfo, Token};
use crate::runtime::hand_off::{Terms, Tokens};
use crate::runtime::queue::{Served, Turn};

/// The turn in which a lock was acquired, and the settings with which it is passed on to the next task without a
/// request to the store.
#[derive(Debug)]
pub(crate) struct CohortGrant {
    turn: Turn<Hold>,
    /// `None` if the lock is not passed on.
    terms: Option<Terms>,
    holder: Holder,
    tokens: Option<Tokens>,
}

impl CohortGrant {
    pub(crate) fn new(turn: Turn<Hold>, terms: Option<Terms>, holder: Holder) -> Self {
        Self { turn, terms, holder, tokens: None }
    }

    /// Starts the cohort. Returns the token of the first task that holds the lock by `grant`.
    pub(crate) fn begin(&mut self, grant: &Grant) -> Token {
        let others_follow = self.terms.as_ref().is_some_and(|terms| self.turn.followers(terms) > 0);
        let (first, tokens) = Tokens::of(grant, others_follow);
        self.tokens = Some(tokens);
        self.report_holder(grant, first);
        first
    }

    /// Returns whether another task can hold the lock by `grant` and there is time for it.
    pub(crate) fn has_successor(&self, grant: &Grant, now: Moment, capabilities: &Capabilities) -> bool {
        let Some((terms, tokens)) = self.terms.as_ref().zip(self.tokens.as_ref()) else { return false };
        let in_time = grant.deadline.remaining(now) >= grant.ttl.get() / 2
            && self
                .turn
                .policy(|policy, _| policy.continues(now, capabilities, grant.ttl))
                .unwrap_or_default();
        in_time && !tokens.is_used_up() && self.turn.followers(terms) > 0
    }

    /// Returns the next task that holds the lock by the same grant, its token, and when it began to acquire the lock.
    /// Returns `None` if there is no such task or no time for it.
    pub(crate) fn successor(
        &mut self,
        grant: &Grant,
        now: Moment,
        capabilities: &Capabilities,
    ) -> Option<(oneshot::Sender<Served<Hold>>, Token, Moment)> {
        if !self.has_successor(grant, now, capabilities) {
            return None;
        }
        let (terms, tokens) = (self.terms.as_ref()?, self.tokens.as_mut()?);
        let (next, began) = self.turn.next_on(terms)?;
        let token = tokens.next()?;
        self.report_holder(grant, token);
        Some((next, token, began))
    }

    /// Ends the grant and gives the turn to the next task. If the store keeps no line and this process had the lock for
    /// long, the process then backs off.
    pub(crate) fn end(self, grant: &Grant, now: Moment, capabilities: &Capabilities) {
        self.turn.policy(|policy, awaited| {
            if let Some(tokens) = &self.tokens {
                policy.used(tokens);
            }
            policy.released(now, capabilities, grant.ttl, awaited);
        });
    }

    fn report_holder(&self, grant: &Grant, token: Token) {
        self.turn.report_holder(HolderInfo {
            holder: Some(self.holder.clone()),
            token: Some(token),
            lapses_within: Some(grant.ttl.get()),
            size: grant.size,
            ..HolderInfo::default()
        });
    }
}
