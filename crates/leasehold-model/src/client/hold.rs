//! Keeping and releasing: the steps of a client that was granted the lock.

use crate::Turn;
use crate::coverage::Event;
use crate::decide::{self, Settled};
use crate::time::Age;
use crate::world::{Attempts, Grant, Guard, Memo, Record, Step, Task, Who};

impl Turn<'_> {
    pub(crate) fn renew(&mut self, who: Who) {
        self.client(who).renewals -= 1;
        let Task::Keep { grant, memo, .. } = self.client(who).task else { return };
        let nonce = self.nonce(grant);
        let stamp = self.model.stamp(who, self.client(who));
        let record = decide::renewed(&memo.record, nonce, stamp);
        self.send(who, Some(memo.version), Some(record), nonce, record.token);
    }

    /// Extends the lease after a renewal that was sent `age` ago was applied.
    pub(super) fn prolong(&mut self, who: Who, grant: Grant, age: Age, memo: Memo) {
        let rules = self.model.rules;
        let passed = self.passed(who, age);
        let client = self.client(who);
        let lost = client.guard.is_none_or(|guard| guard.lost);
        if rules.lost_is_final && (lost || passed) {
            self.count(Event::RenewedTooLate);
            if self.model.is_repeatable(grant) {
                self.client_leaves();
            }
            return self.send_release(who, grant, memo, Attempts::default());
        }
        if let Some(guard) = &mut client.guard {
            guard.age = age;
        }
        client.task = Task::Keep { grant, memo, attempts: Attempts::default(), step: Step::Ready };
        self.world.wrongs.lost_came_back |= lost && !passed;
    }

    pub(super) fn settle_renewal(&mut self, who: Who, grant: Grant, memo: Memo, found: Option<Record>) {
        let client = *self.client(who);
        let (rules, known) = (&self.model.rules, memo.version.nonce);
        let settled = decide::settle_renewal(rules, grant, known, client.attempts(), found.as_ref());
        let version = found.unwrap_or(memo.version);
        // The record has the same claim but another grant, which a late request of the claim has written.
        let other_token = version.grant == grant && version.token != memo.record.token;
        match settled {
            Settled::Applied(attempt) => {
                self.count(Event::RenewalFoundByNonce);
                self.prolong(who, grant, attempt.age, Memo::of(version, memo.confirmed));
            }
            Settled::Earlier if !other_token => {
                self.keep_on(who, grant, Memo::of(version, memo.confirmed));
            }
            // Another server has renewed the hold of the ticket.
            Settled::Foreign if self.model.is_repeatable(grant) && !other_token => {
                self.keep_on(who, grant, Memo::of(version, memo.confirmed));
            }
            Settled::Stolen => self.keep_on(who, grant, Memo { version, ..memo }),
            Settled::Earlier | Settled::Foreign | Settled::Gone if self.passed_on_when_lost(who) => {
                self.keep_on(who, grant, memo);
            }
            Settled::Earlier | Settled::Foreign | Settled::Gone => {
                let by_a_copy = settled == Settled::Foreign && !other_token;
                self.count(if by_a_copy { Event::RenewedByACopy } else { Event::Gone });
                self.see(who, found, 0);
                self.done(who);
            }
        }
    }

    /// Without a safeguard, passes the grant on although the store has reported its loss. The exemption from exclusion
    /// after an operator's action then no longer applies.
    fn passed_on_when_lost(&mut self, who: Who) -> bool {
        let client = *self.client(who);
        let next = client.guard.filter(|guard| self.model.may_be_passed_on(&client, guard));
        if self.model.safeguards.lost_is_not_passed_on || next.is_none() {
            return false;
        }
        self.world.pardoned &= !next.map_or(0, |guard| 1 << guard.top);
        self.pass_on(who);
        true
    }

    pub(super) fn keep_on(&mut self, who: Who, grant: Grant, memo: Memo) {
        if let Task::Keep { attempts, .. } = self.client(who).task {
            self.client(who).task = Task::Keep { grant, memo, attempts, step: Step::Ready };
        }
    }

    /// The renewer passes the grant on. Requests in progress continue.
    pub(crate) fn pass_on(&mut self, who: Who) {
        let safeguards = self.model.safeguards;
        let client = *self.client(who);
        let Some(before) = client.guard else { return };
        self.count(Event::PassedOn);
        if client.step() != Step::Ready || !client.attempts().is_empty() {
            self.count(Event::PassedOnUnsettled);
        }
        let token = before.token + 1;
        // The token is not reserved, so another grant may have the same token.
        if token > before.top {
            self.world.wrongs.low_token_told |= token <= self.world.highest;
            self.world.highest = self.world.highest.max(token);
        }
        let age = if safeguards.deadline_is_the_grants { before.age } else { 0 };
        let client = self.client(who);
        client.guard = Some(Guard { token, age, lost: false, passed_on: true, ..before });
        client.outlived = (!safeguards.invalidated_before_the_next).then_some(before);
    }

    pub(crate) fn release(&mut self, who: Who) {
        self.stop_waiting(who);
        let Task::Keep { grant, memo, attempts, .. } = self.client(who).task else { return };
        if self.model.is_repeatable(grant) {
            self.client_leaves();
        }
        self.send_release(who, grant, memo, attempts);
    }

    /// Sends a release, after the user's belief has ended.
    pub(super) fn send_release(&mut self, who: Who, grant: Grant, memo: Memo, mut attempts: Attempts) {
        let rules = self.model.rules;
        let nonce = self.nonce(grant);
        let client = self.client(who);
        if rules.belief_ends_before_the_release {
            client.guard = None;
        }
        client.outlived = None;
        attempts.all_mut().iter_mut().for_each(|attempt| attempt.age = 0);
        client.task = Task::Release { grant, memo: Some(memo), attempts, step: Step::Ready };
        let mut free = decide::freed(&memo.record, false, nonce);
        free.unconfirmed &= !memo.confirmed;
        let write = rules.release_keeps_the_record.then_some(free);
        self.send(who, Some(memo.version), write, nonce, free.token);
    }

    pub(super) fn settle_release(
        &mut self,
        who: Who,
        grant: Grant,
        known: Option<Memo>,
        found: Option<Record>,
    ) {
        // A withdrawn claim does not know its token, so it releases any record with its id.
        let Some(record) = found.filter(|_| decide::still_ours(grant, found.as_ref())) else {
            self.count(Event::ReleaseSettledByReading);
            self.see(who, found, 0);
            return self.done(who);
        };
        // The ticket belongs to another grant.
        let repeatable = self.model.is_repeatable(grant);
        if repeatable && known.is_some_and(|memo| memo.record.token != record.token) {
            return self.done(who);
        }
        if known.is_none() && repeatable {
            self.count(Event::WithdrawalEndedAGrant);
        }
        // A copy has renewed the grant by now.
        let foreign = |memo: Memo| {
            let (rules, nonce) = (&self.model.rules, memo.version.nonce);
            let attempts = self.world.clients[usize::from(who)].attempts();
            let settled = decide::settle_renewal(rules, grant, nonce, attempts, Some(&record));
            settled == Settled::Foreign && record.token == memo.record.token && !repeatable
        };
        if known.is_some_and(foreign) {
            return self.done(who);
        }
        let strict = self.model.safeguards.only_the_answered_record_is_confirmed;
        let same = |memo: Memo| memo.record.nonce == record.nonce || !strict;
        let memo = Memo::of(record, known.is_some_and(|memo| memo.confirmed && same(memo)));
        let Task::Release { attempts, .. } = self.client(who).task else { return };
        let attempts = if known.is_some() { attempts } else { Attempts::default() };
        self.send_release(who, grant, memo, attempts);
    }

    pub(crate) fn quit(&mut self, who: Who) {
        self.stop_waiting(who);
        self.done(who);
    }

    pub(super) fn done(&mut self, who: Who) {
        let client = self.client(who);
        (client.guard, client.outlived) = (None, None);
        client.renewals = 0;
        client.task = Task::Idle;
    }
}
