//! The steps of the clients. They correspond to the driver of the protocol (`protocol/driver` and the renewer in the
//! library), one step at a time.

mod hold;

use crate::coverage::Event;
use crate::decide::{self, Claimed};
use crate::rules::{Rules, Safeguards};
use crate::time::{self, Age, RATE_ERROR, SLACK, TICK, TTL};
use crate::trace::{self, Writer};
use crate::world::{
    Attempt, Attempts, Client, Grant, Guard, Memo, Nonce, Record, Request, Seen, Step, Task, Token, Who,
};
use crate::{LeaseModel, MARGIN, SHARED_CLAIM, SKEW, Turn};

/// The maximum number of claims per client. It separates the ids of the claims of different clients.
pub(crate) const CLAIMS_EACH: Grant = 5;

impl LeaseModel {
    /// Returns whether `who` may be granted the lock over `record`, which it has seen unchanged for `unchanged_for`.
    pub(crate) fn may_be_granted(
        &self,
        who: Who,
        client: &Client,
        record: &Record,
        unchanged_for: Age,
    ) -> bool {
        !record.held
            || client.rate.elapsed(unchanged_for) >= self.contender_span()
            || self.lapsed_by_store_clock(who, client, record)
    }

    /// Returns whether the grant that `client` holds with `guard` may be passed on to another task of its process.
    pub(crate) fn may_be_passed_on(&self, client: &Client, guard: &Guard) -> bool {
        let last =
            if self.safeguards.tokens_are_reserved { guard.top } else { guard.top + self.scope.hand_offs };
        let good = !guard.lost && self.belief(client).is_some();
        guard.token < last && (good || !self.safeguards.lost_is_not_passed_on)
    }

    fn lapsed_by_store_clock(&self, who: Who, client: &Client, record: &Record) -> bool {
        let margin = if self.safeguards.margin { MARGIN } else { 0 };
        let (lower, upper) = store_time(who, client);
        let now = if self.safeguards.outer_bounds { lower } else { upper };
        self.scope.store_clock
            && i32::from(now - record.stamp) * TICK >= self.contender_span() + i32::from(margin) * TICK
    }

    /// Returns the store's time for a record that is written now.
    fn stamp(&self, who: Who, client: &Client) -> i8 {
        let (lower, upper) = store_time(who, client);
        match self.scope.store_clock {
            false => 0,
            true if self.safeguards.outer_bounds => upper,
            true => lower,
        }
    }
}

/// Returns bounds of the store's clock, in ticks relative to now. The `Date` of the store is exact to a tick.
fn store_time(who: Who, client: &Client) -> (i8, i8) {
    let front_end = if who == 1 { SKEW } else { 0 };
    (front_end - client.grain, front_end - client.grain + 1)
}

/// Acquiring.
impl Turn<'_> {
    pub(crate) fn start(&mut self, who: Who) {
        let client = self.client(who);
        let mut claim = who * CLAIMS_EACH + client.claims + 1;
        client.claims += 1;
        if self.model.scope.replicas && who < 2 {
            claim = SHARED_CLAIM;
            let other = self.client(1 - who).task;
            if matches!(other, Task::Acquire { .. } | Task::Keep { .. }) {
                self.count(Event::ActsForTheSameClaim);
            }
        }
        self.begin(who, claim);
    }

    pub(crate) fn retry(&mut self, who: Who) {
        let client = self.client(who);
        client.retries -= 1;
        if let Some(claim) = client.given_up {
            self.begin(who, claim);
        }
    }

    fn begin(&mut self, who: Who, claim: Grant) {
        let client = self.client(who);
        client.given_up = None;
        client.task = Task::call(claim);
        let client = *client;
        match client.seen {
            // The warm path, a write without a read.
            Some(Seen { record, unchanged_for, .. })
                if self.model.may_be_granted(who, &client, &record, unchanged_for)
                    && record.grant != claim
                    && !record.unconfirmed =>
            {
                if self.model.is_repeatable(claim) {
                    return self.judge(who, claim, Some(record));
                }
                self.write_grant(who, claim, Some(record), false);
            }
            _ => self.look_at_once(who),
        }
    }

    /// Reads the record. If contenders count from the response, the travel time of the request does not matter, so the
    /// store responds at once.
    pub(crate) fn look_at_once(&mut self, who: Who) {
        self.look(who);
        if self.model.rules.contender_counts_from_the_answer {
            self.read(who);
        }
    }

    pub(crate) fn look(&mut self, who: Who) {
        if let Some(step) = self.client(who).step_mut() {
            *step = Step::Reading { asked: 0, answer: None };
        }
    }

    pub(crate) fn take_known(&mut self, who: Who) {
        let client = *self.client(who);
        if let (Task::Acquire { claim, .. }, Some(seen)) = (client.task, client.seen) {
            self.judge(who, claim, Some(seen.record));
        }
    }

    /// Records what the client has seen, and since when.
    fn see(&mut self, who: Who, found: Option<Record>, asked: Age) {
        let rules = self.model.rules;
        let client = self.client(who);
        let Some(record) = found else {
            client.seen = None;
            return;
        };
        let life = |record: &Record| (record.held, record.grant, record.token, record.heartbeat);
        let earlier = client.seen.filter(|_| record.held);
        let same_life = earlier.filter(|seen| life(&seen.record) == life(&record));
        let unchanged = match rules.alive_by_grant_and_beat {
            true => same_life,
            false => earlier.filter(|seen| seen.record == record),
        };
        let begin = if rules.contender_counts_from_the_answer || !record.held { 0 } else { asked };
        client.seen = Some(Seen {
            record,
            unchanged_for: unchanged.map_or(begin, |seen| seen.unchanged_for),
            watched: same_life.map_or(0, |seen| seen.watched),
        });
    }

    fn judge(&mut self, who: Who, claim: Grant, found: Option<Record>) {
        let client = *self.client(who);
        let unchanged_for = client.seen.map_or(0, |seen| seen.unchanged_for);
        let lapsed =
            found.is_some_and(|record| self.model.may_be_granted(who, &client, &record, unchanged_for));
        let LeaseModel { rules, safeguards, .. } = self.model;
        let repeatable = self.model.is_repeatable(claim);
        match decide::judge(rules, safeguards, claim, client.attempts(), found.as_ref(), lapsed, repeatable) {
            Claimed::Ours(attempt) => {
                self.count(Event::GrantFoundByNonce);
                self.granted(who, claim, attempt.age, attempt.first, found);
            }
            Claimed::AdoptedByReading => {
                self.granted(who, claim, 0, found.map_or(0, |record| record.token), found);
            }
            Claimed::Grantable { floor_from_clock } => {
                self.count_grant(&client, claim, found.as_ref());
                self.write_grant(who, claim, found, floor_from_clock);
            }
            Claimed::Taken => self.tell_held(who, claim),
            Claimed::Lost => {
                self.count(if repeatable { Event::Spent } else { Event::LostInBetween });
                self.client(who).task = Task::Idle;
            }
        }
    }

    fn count_grant(&self, client: &Client, claim: Grant, found: Option<&Record>) {
        let Some(record) = found.filter(|record| record.held) else { return };
        let unchanged_for = client.seen.map_or(0, |seen| seen.unchanged_for);
        if record.grant == claim {
            let created = client.attempts().iter().any(|a| a.nonce == record.nonce && a.created);
            self.count(if created { Event::CreateWrittenAgain } else { Event::AdoptedByWrite });
        } else if client.rate.elapsed(unchanged_for) >= self.model.contender_span() {
            self.count(Event::TakenOverByObservation);
        } else {
            self.count(Event::TakenOverByStoreClock);
        }
    }

    fn write_grant(&mut self, who: Who, claim: Grant, over: Option<Record>, floor_from_clock: bool) {
        let model = self.model;
        let nonce = self.nonce(claim);
        let floor = if floor_from_clock { self.clock(who) } else { 0 };
        let stamp = model.stamp(who, self.client(who));
        let (safeguards, more) = (&model.safeguards, model.scope.hand_offs);
        let repeats = model.is_repeatable(claim) && model.rules.repetitions_keep_the_token;
        let kept = over.as_ref().filter(|_| repeats && decide::is_kept(claim, over.as_ref()));
        let mut record = match kept {
            Some(own) => decide::renewed(own, nonce, stamp),
            None => decide::grant(safeguards, claim, over.as_ref(), floor, 1 + more, nonce, stamp),
        };
        if kept.is_some() {
            self.count(Event::HoldRepeated);
        }
        record.unconfirmed &= safeguards.unconfirmed_mark;
        self.send(who, over, Some(record), nonce, record.token);
        if let Some(attempt) = self.client(who).attempts_mut().last_mut() {
            attempt.first = decide::first_token(safeguards, over.as_ref(), &record, more);
        }
    }

    /// Returns a token from the lower bound of the store's clock. It is above all tokens that were committed before this
    /// tick, and above the tokens of earlier creates of the same claim.
    fn clock(&mut self, who: Who) -> Token {
        let created = self.client(who).attempts().iter().filter(|attempt| attempt.created);
        let latest = created.map(|attempt| attempt.token).max().unwrap_or(0);
        let by_clock = if self.model.scope.deletions > 0 { self.world.by_clock } else { self.world.highest };
        1 + by_clock.max(latest)
    }

    /// Lets the user believe in the grant, or returns the grant if its time is already over.
    fn granted(&mut self, who: Who, claim: Grant, age: Age, first: Token, found: Option<Record>) {
        let Some(record) = found else { return };
        let memo = Memo::of(record, true);
        let renewals = self.model.scope.renewals;
        let passed = self.passed(who, age);
        let repeatable = self.model.is_repeatable(claim);
        if repeatable && self.world.client_is_gone {
            self.count(Event::GrantedToNoOne);
            return self.done(who);
        }
        if passed {
            self.count(Event::GrantedTooLate);
            if repeatable {
                return self.done(who);
            }
            self.client(who).given_up = Some(claim);
            return self.send_release(who, claim, memo, Attempts::default());
        }
        self.world.wrongs.low_token_told |= self.world.low.all().contains(&record.nonce);
        let client = self.client(who);
        client.guard = Some(Guard { token: first, top: record.token, age, lost: false, passed_on: false });
        client.renewals = renewals;
        client.seen = None;
        client.task = Task::Keep { grant: claim, memo, attempts: Attempts::default(), step: Step::Ready };
    }

    fn tell_held(&mut self, who: Who, claim: Grant) {
        self.count(Event::Held);
        let span = self.model.contender_span();
        let client = self.client(who);
        let landed = match client.task {
            Task::Acquire { step: Step::Writing { .. }, landed, .. } => landed, // Without rule 4, the client guesses.
            Task::Acquire { had_landed, .. } => had_landed,
            _ => false,
        };
        let watched = client.seen.map_or(0, |seen| seen.watched);
        let waited_enough = client.rate.elapsed(watched) >= span;
        client.task = Task::call(claim);
        self.world.wrongs.held_denied |= landed;
        self.world.wrongs.prolonged_by_others |= waited_enough;
    }

    pub(crate) fn abandon(&mut self, who: Who) {
        self.stop_waiting(who);
        let client = self.client(who);
        let Task::Acquire { claim, .. } = client.task else { return };
        client.given_up = Some(claim);
        self.end_by_id(who, claim);
    }

    /// Reads whether `claim` was granted the lock. If so, ends the grant.
    fn end_by_id(&mut self, who: Who, claim: Grant) {
        let step = Step::Reading { asked: 0, answer: None };
        let attempts = Attempts::default();
        self.client(who).task = Task::Release { grant: claim, memo: None, attempts, step };
    }

    /// A server stops acquiring for a claim for which another server may act.
    pub(crate) fn stop_serving(&mut self, who: Who) {
        self.count(Event::ServerGaveUp);
        self.stop_waiting(who);
        match self.model.rules.servers_end_no_grant_by_id {
            true => self.done(who),
            false => self.end_by_id(who, SHARED_CLAIM),
        }
    }

    /// The client ends its claim through one server. The other server may still act for it.
    pub(crate) fn withdraw(&mut self, who: Who) {
        if matches!(self.client(1 - who).task, Task::Acquire { .. } | Task::Keep { .. }) {
            self.count(Event::Withdrawn);
        }
        self.stop_waiting(who);
        self.client_leaves();
        self.end_by_id(who, SHARED_CLAIM);
    }

    /// The client of the shared claim ends its belief in every grant that a server has reported to it.
    pub(crate) fn client_leaves(&mut self) {
        self.world.client_is_gone = true;
        for server in &mut self.world.clients[..2] {
            server.guard = None;
            server.renewals = 0;
        }
    }
}

/// Requests and responses.
impl Turn<'_> {
    /// Sends a conditional write. The attempt is recorded before it is sent.
    fn send(&mut self, who: Who, expect: Option<Record>, write: Option<Record>, nonce: Nonce, token: Token) {
        self.explain_sent(who, expect.as_ref(), write.as_ref());
        let created = expect.is_none();
        let attempt = Attempt { nonce, age: 0, token, first: token, created, unknown: true };
        match &mut self.client(who).task {
            Task::Idle => return,
            Task::Acquire { attempts, step, .. }
            | Task::Keep { attempts, step, .. }
            | Task::Release { attempts, step, .. } => {
                attempts.push(attempt);
                *step = Step::Writing { sent: write, answer: None };
            }
        }
        self.put(Request { from: who, awaited: true, expect, write, nonce });
    }

    /// Checks trace validation against a write that is about to be sent. Removed rules do not change what it expects.
    fn explain_sent(&mut self, who: Who, expect: Option<&Record>, write: Option<&Record>) {
        let client = *self.client(who);
        let (claim, memo) = match client.task {
            Task::Idle => return,
            Task::Acquire { claim, .. } => (claim, None),
            Task::Keep { grant, memo, .. } => (grant, Some(memo)),
            Task::Release { grant, memo, .. } => (grant, memo),
        };
        let owns = |record: Option<&Record>| record.is_some_and(|record| record.grant == claim);
        let span = |of: fn(f64, f64, f64) -> f64| of(f64::from(TTL), RATE_ERROR, SLACK) as i32;
        let passed = |age| client.rate.elapsed(age) >= span(time::holder_span);
        let lapsed = |record: &Record| {
            let by_clock = i32::from(store_time(who, &client).0 - record.stamp - MARGIN) * TICK;
            let watched = client.seen.map_or(0, |seen| client.rate.elapsed(seen.watched));
            let by_clock = if self.model.scope.store_clock { by_clock } else { 0 };
            watched.max(by_clock) >= span(time::contender_span)
        };
        // A server that repeats a hold has no guard.
        let repeats = self.model.is_repeatable(claim);
        let deletes = self.model.scope.deletions > 0;
        let by = Writer {
            operator: false,
            owns_before: owns(expect),
            owns_after: owns(write),
            wrote_before: memo.is_some() || repeats,
            confirmed: memo.is_some_and(|memo| memo.confirmed),
            in_time: client.guard.map_or(repeats, |guard| !guard.lost && !passed(guard.age)),
            lapsed: expect.is_some_and(lapsed),
            floor: 1 + if deletes { self.world.by_clock } else { self.world.highest },
        };
        self.explain(expect, write, &by);
    }

    /// Checks trace validation against a step.
    pub(crate) fn explain(&mut self, before: Option<&Record>, after: Option<&Record>, by: &Writer) {
        let model = (&Rules::ALL, &Safeguards::ALL);
        self.world.wrongs.unexplained |=
            trace::explain(model, trace::Store::default(), before, after, by).is_none();
    }

    pub(crate) fn receive(&mut self, who: Who) {
        match self.client(who).step() {
            Step::Reading { asked, answer: Some(found) } => self.receive_reading(who, asked, found),
            Step::Writing { sent, answer: Some(true) } => self.committed(who, sent),
            Step::Writing { answer: Some(false), .. } => self.conflict(who),
            _ => {}
        }
    }

    fn receive_reading(&mut self, who: Who, asked: Age, found: Option<Record>) {
        match self.client(who).task {
            Task::Idle => {}
            Task::Acquire { claim, .. } => {
                self.see(who, found, asked);
                self.judge(who, claim, found);
            }
            Task::Keep { grant, memo, .. } => self.settle_renewal(who, grant, memo, found),
            Task::Release { grant, memo, .. } => self.settle_release(who, grant, memo, found),
        }
    }

    fn committed(&mut self, who: Who, sent: Option<Record>) {
        let model = self.model;
        let Some(latest) = self.client(who).attempts_mut().last_mut() else { return };
        latest.unknown = false;
        let latest = *latest;
        let age = if model.rules.holder_counts_from_before_the_send { latest.age } else { 0 };
        match self.client(who).task {
            Task::Idle => {}
            // If the response to a create was late, the create's token may no longer be above all other tokens.
            Task::Acquire { .. }
                if latest.created && latest.age > 0 && model.safeguards.late_creates_are_written_again =>
            {
                self.look(who);
            }
            Task::Acquire { claim, .. } => {
                self.count(Event::Granted);
                self.granted(who, claim, age, latest.first, sent);
            }
            Task::Keep { grant, memo, .. } => {
                self.count(Event::Renewed);
                let record = sent.unwrap_or(memo.record);
                self.prolong(who, grant, age, Memo::of(record, memo.confirmed));
            }
            Task::Release { .. } => {
                self.count(Event::Released);
                self.see(who, sent, 0);
                self.done(who);
            }
        }
    }

    fn conflict(&mut self, who: Who) {
        if let Some(latest) = self.client(who).attempts_mut().last_mut() {
            latest.unknown = false;
        }
        let guessed = !self.model.rules.unknown_until_read_back;
        match self.client(who).task {
            Task::Acquire { claim, .. } if guessed => self.tell_held(who, claim),
            Task::Keep { .. } if guessed => self.done(who),
            _ => self.look(who),
        }
    }

    pub(crate) fn give_up(&mut self, who: Who) {
        self.stop_waiting(who);
        let guessed = !self.model.rules.unknown_until_read_back;
        match self.client(who).task {
            Task::Acquire { claim, .. } if guessed => self.tell_held(who, claim),
            Task::Keep { grant, memo, .. } if guessed => self.keep_on(who, grant, memo),
            _ => self.look(who),
        }
    }

    /// Stops waiting for the response to a write. The request remains in the network.
    fn stop_waiting(&mut self, who: Who) {
        if !matches!(self.client(who).step(), Step::Writing { .. }) {
            return;
        }
        self.world.budget.unanswered -= 1;
        for request in self.world.requests.all_mut() {
            request.awaited &= request.from != who;
        }
        self.world.requests.all_mut().sort_unstable();
    }

    fn nonce(&mut self, claim: Grant) -> Nonce {
        // Without rule 2, all writes of a claim have one nonce, in a range that fresh nonces do not use.
        if self.model.rules.fresh_nonces { self.world.fresh_nonce() } else { 32 + claim }
    }

    fn passed(&mut self, who: Who, age: Age) -> bool {
        let span = self.model.holder_span();
        self.client(who).rate.elapsed(age) >= span
    }
}
