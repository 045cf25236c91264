//! A model of leasehold's lease protocol. It covers every order in which a few clients, their clocks, the network, the
//! store and an operator can act, within a [`Scope`]. The tests check it exhaustively with stateright.
//!
//! Each of the twelve rules of the protocol, and each further safeguard, can be removed. The checker must then find a
//! history that breaks the promise. `docs/model.md` describes what is modelled, what is not, and how large the scopes
//! are.
//!
//! - [`world`]: the state. [`decide`]: a client's interpretation of the record that it reads. [`time`]: ticks and
//!   inexact clocks.
//! - `client`, `store`: the possible next steps. [`properties`]: the properties that must hold. [`coverage`]: the
//!   events that occurred.
//! - [`trace`]: whether a write of a program is a step of this model.

mod client;
pub mod coverage;
pub mod decide;
pub mod inline_vec;
pub mod properties;
pub mod rules;
pub mod scope;
mod store;
mod story;
pub mod time;
pub mod trace;
pub mod world;

use crate::coverage::{Coverage, Event};
use crate::rules::{Rules, Safeguards};
use crate::scope::Scope;
use crate::time::Rate;
use crate::world::{Budget, Client, Grant, MAX_CLIENTS, Request, Step, Task, Who, World};

/// How many ticks the clock of the second client's front end is ahead of the other clients', if clients use the store's
/// clock.
pub const SKEW: i8 = 2;
/// The safety margin for [`SKEW`], in ticks.
pub const MARGIN: i8 = 2;

/// The claim for which two servers act, if the scope has one.
pub(crate) const SHARED_CLAIM: Grant = 1;

/// The protocol, within a scope.
#[derive(Debug)]
pub struct LeaseModel {
    /// The rules that the clients follow.
    pub rules: Rules,
    /// The safeguards besides the rules.
    pub safeguards: Safeguards,
    /// The bounds of a history.
    pub scope: Scope,
    /// How often each event occurred, over all histories.
    pub coverage: Coverage,
}

/// One step of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A tick of true time passes.
    Tick,
    /// A client requests the lock with a new claim.
    Start(Who),
    /// A client requests the lock again with the claim that it gave up.
    Retry(Who),
    /// A waiting client reads the record.
    Look(Who),
    /// A waiting client writes over the record that it has seen, if the record's lease has lapsed by now.
    TakeKnown(Who),
    /// The store responds to a client's read.
    Read(Who),
    /// A client receives the response for which it waits, and continues.
    Receive(Who),
    /// A client stops waiting for the response to its write.
    GiveUp(Who),
    /// A client stops acquiring and withdraws its claim.
    Abandon(Who),
    /// A server stops acquiring for a claim for which another server may act.
    StopServing(Who),
    /// The client of such a claim withdraws the claim through this server.
    Withdraw(Who),
    /// A holder sends a renewal.
    Renew(Who),
    /// A holder's process passes the grant on. The user's guard ends, and another user's guard begins with the next
    /// token.
    PassOn(Who),
    /// A holder, or its renewer after a loss, sends a release.
    Release(Who),
    /// A client stops releasing, without knowing the outcome.
    Quit(Who),
    /// A write arrives at the store.
    Deliver(Request, Copy),
    /// An operator evicts the holder.
    Evict,
    /// A person edits the record without changing its meaning.
    Edit,
    /// A person deletes the record.
    Delete,
    /// The machine of a holder (the first client) is copied while it runs. The copy replaces the second client.
    Clone(Who, Who),
}

/// Whether a request arrives a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// The request does not arrive again.
    None,
    /// The request arrives again. The current copy gets the response.
    ComesUnanswered,
    /// The request arrives again. The later copy gets the response.
    ComesAnswered,
}

impl LeaseModel {
    /// Creates a model of the complete protocol within `scope`.
    pub fn new(scope: Scope) -> Self {
        assert!((1..=MAX_CLIENTS).contains(&scope.clients), "one to three clients");
        assert!(scope.claims <= client::CLAIMS_EACH, "up to {} claims each", client::CLAIMS_EACH);
        Self { rules: Rules::ALL, safeguards: Safeguards::ALL, scope, coverage: Coverage::default() }
    }

    /// Returns the model without the rule that `take_out` removes.
    pub fn without(mut self, take_out: impl FnOnce(&mut Rules)) -> Self {
        take_out(&mut self.rules);
        self
    }

    /// Returns the model without the safeguard that `take_out` removes.
    pub fn without_safeguard(mut self, take_out: impl FnOnce(&mut Safeguards)) -> Self {
        take_out(&mut self.safeguards);
        self
    }

    fn client_actions(&self, world: &World, who: Who, actions: &mut Vec<Action>) {
        let client = &world.clients[usize::from(who)];
        let can_lose_an_answer = world.budget.unanswered > 0;
        match client.step() {
            Step::Reading { answer: None, .. } => actions.push(Action::Read(who)),
            Step::Reading { answer: Some(_), .. } => actions.push(Action::Receive(who)),
            Step::Writing { answer, .. } => {
                if answer.is_some() {
                    actions.push(Action::Receive(who));
                }
                if can_lose_an_answer {
                    actions.push(Action::GiveUp(who));
                }
            }
            Step::Ready => {}
        }
        let writing = matches!(client.step(), Step::Writing { .. });
        let can_leave = !writing || can_lose_an_answer;
        if self.may_withdraw(world, who) && can_leave {
            actions.push(Action::Withdraw(who));
        }
        match &client.task {
            Task::Idle => {
                if client.claims < self.scope.claims {
                    actions.push(Action::Start(who));
                }
                if client.given_up.is_some() && client.retries > 0 {
                    actions.push(Action::Retry(who));
                }
            }
            Task::Acquire { step: Step::Ready, .. } => {
                actions.push(Action::Look(who));
                if client
                    .seen
                    .is_some_and(|seen| self.may_be_granted(who, client, &seen.record, seen.unchanged_for))
                {
                    actions.push(Action::TakeKnown(who));
                }
            }
            Task::Acquire { claim, .. } if self.is_repeatable(*claim) => {
                if can_leave {
                    actions.push(Action::StopServing(who));
                }
            }
            Task::Acquire { attempts, .. } => {
                if self.scope.retries > 0 && can_leave && !attempts.all().is_empty() {
                    actions.push(Action::Abandon(who));
                }
            }
            Task::Keep { step, .. } => {
                let lost = client.guard.is_some_and(|guard| guard.lost);
                if *step == Step::Ready && client.renewals > 0 && !lost {
                    actions.push(Action::Renew(who));
                }
                if client.guard.is_some_and(|guard| self.may_be_passed_on(client, &guard)) {
                    actions.push(Action::PassOn(who));
                }
                if can_leave {
                    actions.push(Action::Release(who));
                }
            }
            Task::Release { .. } => {
                if can_leave {
                    actions.push(Action::Quit(who));
                }
            }
        }
    }

    /// Returns whether other servers may also act for `claim`.
    fn is_repeatable(&self, claim: Grant) -> bool {
        self.scope.replicas && claim == SHARED_CLAIM
    }

    /// Returns whether the client may withdraw the shared claim through `who`. A server with a hold releases it
    /// instead.
    fn may_withdraw(&self, world: &World, who: Who) -> bool {
        let asked = || world.clients.iter().take(2).any(|server| server.claims > 0);
        let serves = matches!(world.clients[usize::from(who)].task, Task::Idle | Task::Acquire { .. });
        self.scope.replicas && who < 2 && serves && !world.client_is_gone && asked()
    }

    /// Adds the possible copies. A client is copied only while it has no request in progress. Such a request would
    /// belong to both copies, and the next renewal would reveal that.
    fn copies(&self, world: &World, actions: &mut Vec<Action>) {
        let clients = || (0..).zip(world.clients.iter().take(self.scope.clients));
        for (from, holder) in clients() {
            let settled = matches!(holder.task, Task::Keep { attempts, step: Step::Ready, .. } if attempts.all().is_empty());
            if settled && self.belief(holder).is_some() {
                let idle = clients().filter(|(_, other)| other.task == Task::Idle);
                actions.extend(idle.map(|(to, _)| Action::Clone(from, to)));
            }
        }
    }

    fn start(&self, rates: [Rate; MAX_CLIENTS], grains: [i8; MAX_CLIENTS]) -> World {
        let Scope { unanswered, doubled, evictions, edits, deletions, copies, .. } = self.scope;
        let mut world = World {
            store: self.scope.record_exists.then(Default::default),
            budget: Budget { unanswered, doubled, evictions, edits, deletions, copies },
            ..World::default()
        };
        for (i, client) in world.clients.iter_mut().enumerate().take(self.scope.clients) {
            *client =
                Client { rate: rates[i], grain: grains[i], retries: self.scope.retries, ..Client::default() };
        }
        world
    }
}

/// The interface for a model checker.
impl LeaseModel {
    /// Returns the initial worlds, one for each combination of clocks. The clients are alike, so their order does not
    /// matter, unless their front ends differ.
    pub fn beginnings(&self) -> Vec<World> {
        let mut worlds = Vec::new();
        let choices = |i: usize| if i < self.scope.clients { 2 } else { 1 };
        let rate = |fast| if fast == 1 { Rate::Fast } else { Rate::Slow };
        for (a, b, c) in triples(choices) {
            let sorted = a <= b && (self.scope.clients < 3 || b <= c);
            if !sorted && !self.scope.store_clock {
                continue;
            }
            let opposed = (a, b, c) == (0, 1, choices(2) - 1);
            if !self.scope.any_clocks && !opposed {
                continue;
            }
            let rates = [rate(a), rate(b), rate(c)];
            if !self.scope.store_clock {
                worlds.push(self.start(rates, [0; MAX_CLIENTS]));
                continue;
            }
            for (a, b, c) in triples(choices) {
                worlds.push(self.start(rates, [a, b, c]));
            }
        }
        worlds
    }

    /// Adds the possible next steps to `actions`.
    pub fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for who in (0..).take(self.scope.clients) {
            self.client_actions(world, who, actions);
        }
        if world.budget.copies > 0 {
            self.copies(world, actions);
        }
        for request in world.requests.all() {
            actions.push(Action::Deliver(*request, Copy::None));
            if world.budget.doubled > 0 && (request.expect == world.store || request.expect.is_none()) {
                actions.push(Action::Deliver(*request, Copy::ComesUnanswered));
                if request.awaited {
                    actions.push(Action::Deliver(*request, Copy::ComesAnswered));
                }
            }
        }
        if let Some(record) = world.store {
            if record.held && world.budget.evictions > 0 {
                actions.push(Action::Evict);
            }
            if world.budget.edits > 0 {
                actions.push(Action::Edit);
            }
            let spared = world.granted_now && !self.scope.deletes_new_grants;
            if !spared && world.budget.deletions > 0 {
                actions.push(Action::Delete);
            }
        }
    }

    /// Returns the world after `action`, or `None` if nothing has changed.
    pub fn next(&self, world: &World, action: Action) -> Option<World> {
        let mut turn = Turn { model: self, world: *world };
        match action {
            Action::Tick => turn.tick(),
            Action::Deliver(request, copy) => turn.deliver(request, copy),
            Action::Read(who) => turn.read(who),
            Action::Evict => turn.evict(),
            Action::Edit => turn.edit(),
            Action::Delete => turn.delete(),
            Action::Clone(from, to) => turn.copy(from, to),
            Action::Start(who) => turn.start(who),
            Action::Retry(who) => turn.retry(who),
            Action::Look(who) => turn.look_at_once(who),
            Action::TakeKnown(who) => turn.take_known(who),
            Action::Receive(who) => turn.receive(who),
            Action::GiveUp(who) => turn.give_up(who),
            Action::Abandon(who) => turn.abandon(who),
            Action::StopServing(who) => turn.stop_serving(who),
            Action::Withdraw(who) => turn.withdraw(who),
            Action::Renew(who) => turn.renew(who),
            Action::PassOn(who) => turn.pass_on(who),
            Action::Release(who) => turn.release(who),
            Action::Quit(who) => turn.quit(who),
        }
        turn.forget_what_nothing_depends_on();
        (turn.world != *world).then_some(turn.world)
    }
}

/// A world while an action changes it.
struct Turn<'a> {
    model: &'a LeaseModel,
    world: World,
}

impl Turn<'_> {
    fn client(&mut self, who: Who) -> &mut Client {
        &mut self.world.clients[usize::from(who)]
    }

    fn count(&self, event: Event) {
        self.model.coverage.count(event);
    }
}

fn triples(choices: impl Fn(usize) -> i8) -> Vec<(i8, i8, i8)> {
    let mut all = Vec::new();
    for a in 0..choices(0) {
        for b in 0..choices(1) {
            for c in 0..choices(2) {
                all.push((a, b, c));
            }
        }
    }
    all
}
