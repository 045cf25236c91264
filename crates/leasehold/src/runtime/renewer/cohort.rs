//! A grant of the store in this process: the tasks that have the lock by it, one after the other.

use tokio::sync::oneshot;

use super::Hold;
use crate::clock::Moment;
use crate::lease::{Capabilities, Grant, Held, Holder, Token};
use crate::runtime::hand_off::{Terms, Tokens};
use crate::runtime::queue::{Served, Turn};

/// The turn that a lock was acquired in, and on which terms it goes on to the next task without the store's being asked.
#[derive(Debug)]
pub(crate) struct CohortGrant {
    turn: Turn<Hold>,
    /// `None` if it goes on to nobody.
    terms: Option<Terms>,
    holder: Holder,
    tokens: Option<Tokens>,
}

impl CohortGrant {
    pub(crate) fn new(turn: Turn<Hold>, terms: Option<Terms>, holder: Holder) -> Self {
        Self { turn, terms, holder, tokens: None }
    }

    /// The token of the first task that has the lock by `grant`.
    pub(crate) fn begin(&mut self, grant: &Grant) -> Token {
        let others_follow = self.terms.as_ref().is_some_and(|terms| self.turn.followers(terms) > 0);
        let (first, tokens) = Tokens::of(grant, others_follow);
        self.tokens = Some(tokens);
        self.tell(grant, first);
        first
    }

    /// Whether there is another task for `grant`, and time for it.
    pub(crate) fn has_successor(&self, grant: &Grant, now: Moment, capabilities: &Capabilities) -> bool {
        let Some((terms, tokens)) = self.terms.as_ref().zip(self.tokens.as_ref()) else { return false };
        let in_time = grant.deadline.remaining(now) >= grant.ttl.get() / 2
            && self.turn.stay(|stay, _| stay.goes_on(now, capabilities.pace, grant.ttl)).unwrap_or_default();
        in_time && !tokens.is_used_up() && self.turn.followers(terms) > 0
    }

    /// Who has the lock next by the same grant, and its token, if there is time for that.
    pub(crate) fn successor(
        &mut self,
        grant: &Grant,
        now: Moment,
        capabilities: &Capabilities,
    ) -> Option<(oneshot::Sender<Served<Hold>>, Token)> {
        if !self.has_successor(grant, now, capabilities) {
            return None;
        }
        let (terms, tokens) = (self.terms.as_ref()?, self.tokens.as_mut()?);
        let next = self.turn.next_on(terms)?;
        let token = tokens.next()?;
        self.tell(grant, token);
        Some((next, token))
    }

    /// The grant is over, and the next task in line has the turn. Where the store keeps no line, this process stays away
    /// for a while if it was its turn for long.
    pub(crate) fn end(self, grant: &Grant, now: Moment, capabilities: &Capabilities) {
        self.turn.stay(|stay, awaited| {
            if let Some(tokens) = &self.tokens {
                stay.used(tokens);
            }
            if capabilities.fifo {
                stay.released_in_line();
            } else {
                stay.released(now, capabilities.pace, grant.ttl, awaited);
            }
        });
    }

    fn tell(&self, grant: &Grant, token: Token) {
        self.turn.tell(Held {
            holder: Some(self.holder.clone()),
            token: Some(token),
            lapses_within: Some(grant.ttl.get()),
            ..Held::default()
        });
    }
}
