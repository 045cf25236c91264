//! The steps outside the clients: of time, the network, the store, and people.

use crate::coverage::Event;
use crate::decide;
use crate::trace::Writer;
use crate::world::{Client, Copied, Record, Request, Step, Task, Who, World};
use crate::{Copy, Turn};

/// The oldest stamp. Stamps that are older have the same effect.
const OLDEST_STAMP: i8 = -6;

impl Turn<'_> {
    pub(crate) fn tick(&mut self) {
        let (model, world) = (self.model, &mut self.world);
        let (holder_span, contender_span) = (model.holder_span(), model.contender_span());
        let (mut expired, mut passed_on) = (0, 0);
        for client in &mut world.clients {
            let rate = client.rate;
            let (holder_limit, contender_limit) = (rate.until(holder_span), rate.until(contender_span));
            if let Some(guard) = &mut client.guard {
                guard.age = (guard.age + 1).min(holder_limit);
                if guard.age == holder_limit && !guard.lost {
                    guard.lost = true;
                    expired += 1;
                    passed_on += usize::from(guard.passed_on);
                }
            }
            client.outlived = None;
            if let Some(seen) = client.seen.as_mut().filter(|seen| seen.record.held) {
                seen.unchanged_for = (seen.unchanged_for + 1).min(contender_limit);
                seen.watched = (seen.watched + 1).min(contender_limit);
            }
            if !matches!(client.task, Task::Release { .. }) {
                for attempt in client.attempts_mut() {
                    attempt.age = (attempt.age + 1).min(holder_limit);
                }
            }
            if let Task::Acquire { step: Step::Reading { asked, .. }, .. } = &mut client.task
                && !model.rules.contender_counts_from_the_answer
            {
                *asked = (*asked + 1).min(contender_limit);
            }
        }
        if model.scope.deletions > 0 {
            (world.granted_now, world.by_clock) = (false, world.highest);
        }
        if model.scope.store_clock {
            world.each_record(|record| {
                if record.held {
                    record.stamp = (record.stamp - 1).max(OLDEST_STAMP);
                }
            });
        }
        for _ in 0..expired {
            self.count(Event::Expired);
        }
        for _ in 0..passed_on {
            self.count(Event::ExpiredWhenPassedOn);
        }
    }

    pub(crate) fn read(&mut self, who: Who) {
        let found = self.world.store;
        if let Task::Acquire { landed, had_landed, .. } = &mut self.client(who).task {
            *had_landed = *landed;
        }
        if let Some(Step::Reading { answer, .. }) = self.client(who).step_mut() {
            *answer = Some(found);
        }
    }

    pub(crate) fn deliver(&mut self, request: Request, copy: Copy) {
        let mut stays = match copy {
            Copy::None => None,
            Copy::ComesUnanswered => Some(Request { awaited: false, ..request }),
            Copy::ComesAnswered => Some(request),
        };
        let mut gone = false;
        self.world.requests.retain(|other| gone || *other != request || std::mem::replace(&mut gone, true));
        if let Some(copy) = stays.take() {
            self.world.budget.doubled -= 1;
            self.count(Event::Doubled);
            self.put(copy);
        }
        let matches = self.world.store == request.expect;
        if matches {
            self.commit(request);
        }
        if request.awaited && copy != Copy::ComesAnswered {
            if let Some(Step::Writing { answer, .. }) = self.client(request.from).step_mut() {
                *answer = Some(matches);
            }
        } else if matches && !request.awaited {
            self.count(Event::LateWriteApplied);
        }
    }

    /// Sends a request.
    pub(crate) fn put(&mut self, request: Request) {
        self.world.requests.push(request);
        self.world.requests.all_mut().sort_unstable();
    }

    fn commit(&mut self, request: Request) {
        let untouched = self.world.budget.deletions == self.model.scope.deletions;
        let world = &mut self.world;
        let before = std::mem::replace(&mut world.store, request.write);
        let is_shared =
            |record: &Record| self.model.scope.replicas && record.held && record.grant == crate::SHARED_CLAIM;
        let (had, has) =
            (before.as_ref().is_some_and(is_shared), request.write.as_ref().is_some_and(is_shared));
        world.wrongs.spent_was_granted |= has && world.shared_ended;
        world.shared_ended |= had && !has;
        let Some(record) = request.write.filter(|record| record.held) else { return };
        world.copied =
            world.copied.filter(|copied| (copied.grant, copied.token) == (record.grant, record.token));
        if let Some(copied) = &mut world.copied {
            let by = *copied.renewed_by.get_or_insert(request.from);
            world.wrongs.renewed_by_two |= by != request.from;
        }
        let goes_on =
            |before: Record| before.held && (before.grant, before.token) == (record.grant, record.token);
        if !before.is_some_and(goes_on) {
            world.granted_now = self.model.scope.deletions > 0;
            let sender = &world.clients[usize::from(request.from)];
            let attempt = sender.attempts().iter().find(|attempt| attempt.nonce == request.nonce);
            // The lowest token that will be reported for this grant.
            let first = attempt.map_or(record.token, |attempt| attempt.first);
            if record.token <= world.highest {
                world.wrongs.token_went_back |= untouched;
            }
            if first <= world.highest {
                world.low.push(record.nonce);
            }
            world.highest = world.highest.max(record.token);
        }
        let sender = &mut world.clients[usize::from(request.from)];
        let ours = sender.attempts().iter().any(|attempt| attempt.nonce == request.nonce);
        if let Task::Acquire { landed, .. } = &mut sender.task {
            *landed |= ours;
        }
    }

    pub(crate) fn evict(&mut self) {
        self.world.budget.evictions -= 1;
        let nonce = self.world.fresh_nonce();
        self.pardon();
        let before = self.world.store;
        if let Some(record) = &mut self.world.store {
            *record = decide::freed(record, true, nonce);
        }
        self.explain_act(before);
    }

    pub(crate) fn edit(&mut self) {
        self.world.budget.edits -= 1;
        let before = self.world.store;
        if let Some(record) = &mut self.world.store {
            record.edition += 1;
        }
        self.explain_act(before);
    }

    /// Checks trace validation against the act of a person that found the record `before`.
    fn explain_act(&mut self, before: Option<Record>) {
        let after = self.world.store;
        self.explain(before.as_ref(), after.as_ref(), &Writer { operator: true, ..Writer::default() });
    }

    /// Copies a holder over an idle client. From now on, both users believe. Exclusion does not apply to them, because
    /// they cannot detect the copy until one of them renews.
    pub(crate) fn copy(&mut self, from: Who, to: Who) {
        self.world.budget.copies -= 1;
        let original = *self.client(from);
        let (Task::Keep { grant, .. }, Some(guard)) = (original.task, original.guard) else { return };
        self.count(Event::Copied);
        let copy = self.client(to);
        let Client { rate, grain, claims, .. } = *copy;
        *copy = Client { rate, grain, claims, retries: 0, given_up: None, ..original };
        self.world.pardoned |= 1 << guard.top;
        self.world.copied = Some(Copied { grant, token: guard.top, renewed_by: None });
    }

    pub(crate) fn delete(&mut self) {
        self.world.budget.deletions -= 1;
        self.pardon();
        let deleted = self.world.store.take();
        self.explain_act(deleted);
        for client in &mut self.world.clients {
            if let Task::Acquire { claim, landed, .. } = &mut client.task {
                // Deleting the record also deletes its history.
                *landed &= deleted.is_some_and(|record| record.grant != *claim && !record.remembers(*claim));
            }
        }
    }

    /// Exempts the grant in the store from exclusion.
    fn pardon(&mut self) {
        if let Some(record) = self.world.store {
            self.world.pardoned |= 1 << record.token;
        }
    }

    /// Removes state that no longer has any effect, so that equivalent worlds become one state.
    pub(crate) fn forget_what_nothing_depends_on(&mut self) {
        self.drop_dead_requests();
        let (model, world) = (self.model, &mut self.world);
        for client in world.clients.iter_mut().take(model.scope.clients) {
            let may_retry = client.given_up.is_some() && client.retries > 0;
            if client.task == Task::Idle && client.claims == model.scope.claims && !may_retry {
                *client = Client { claims: client.claims, ..Default::default() };
            }
        }
        if world.pardoned != 0 {
            world.pardoned &= tokens_in_use(world);
        }
        if !world.low.all().is_empty() {
            let clients = world.clients;
            let tried = |nonce| clients.iter().flat_map(|client| client.attempts()).any(|a| a.nonce == nonce);
            let store = world.store;
            world.low.retain(|nonce| tried(*nonce) || store.is_some_and(|record| record.nonce == *nonce));
        }
        let mut concerned = claims_that_may_be_judged(world);
        let serve = |server: &Client| server.claims < model.scope.claims;
        if model.scope.replicas && world.clients[..2].iter().any(serve) {
            concerned |= 1 << crate::SHARED_CLAIM;
        }
        let shared = if model.scope.replicas { concerned & 1 << crate::SHARED_CLAIM } else { 0 };
        world.each_record(|record| {
            record.ended &= concerned;
            record.spent &= shared;
        });
        self.number_nonces();
    }

    /// Renumbers the nonces in the order in which the world refers to them, because only their equality matters.
    fn number_nonces(&mut self) {
        if !self.model.rules.fresh_nonces {
            return;
        }
        let mut numbers = [0; 64];
        let mut next = 0;
        self.world.each_nonce(|nonce| {
            let number = &mut numbers[usize::from(*nonce)];
            if *number == 0 {
                next += 1;
                *number = next;
            }
            *nonce = *number;
        });
        self.world.requests.all_mut().sort_unstable();
    }

    /// Removes requests without a waiting sender that can no longer have an effect, because they expect a record that
    /// will never exist again. Does nothing without fresh nonces, because equal records can then come back.
    fn drop_dead_requests(&mut self) {
        let rules = &self.model.rules;
        if !rules.fresh_nonces {
            return;
        }
        let World { store, requests, budget, .. } = self.world;
        let never_absent = store.is_some() && budget.deletions == 0 && rules.release_keeps_the_record;
        let dead = |request: &Request| {
            !request.awaited
                && match request.expect {
                    None => never_absent,
                    Some(_) => {
                        store != request.expect && !requests.all().iter().any(|o| o.write == request.expect)
                    }
                }
        };
        let before = requests.all().len();
        self.world.requests.retain(|request| !dead(request));
        for _ in self.world.requests.all().len()..before {
            self.count(Event::LateWriteRefused);
        }
    }
}

/// Returns one bit for each claim that may still return "held".
fn claims_that_may_be_judged(world: &World) -> u16 {
    let claim = |client: &Client| match client.task {
        Task::Acquire { claim, .. } => Some(claim),
        _ => client.given_up,
    };
    world.clients.iter().filter_map(claim).fold(0, |claims, claim| claims | 1 << claim)
}

/// Returns one bit for each token that the store has, or that a client has or may still get.
fn tokens_in_use(world: &World) -> u32 {
    let mut used = world.store.map_or(0, |record| 1 << record.token);
    for client in &world.clients {
        used |= client.guard.map_or(0, |guard| 1 << guard.top);
        for attempt in client.attempts() {
            used |= 1 << attempt.token;
        }
    }
    for request in world.requests.all() {
        used |= request.write.map_or(0, |record| 1 << record.token);
    }
    used
}
