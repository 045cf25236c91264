//! A contention: one acquisition, from its turn in this process until the store grants or refuses it, or nobody waits for it any
//! more.
//!
//! Whoever asked does it as an [errand](crate::errand) as long as it does not have to wait. Waiting is for a task: who asked may
//! look away for long (in a loop over `select!`, say), and others stand behind it, in this process and in the store's line.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::clock::{Deadline, timeout};
use crate::errand::Errand;
use crate::error::{Error, ErrorKind, Result, StoreError};
use crate::guard::Guard;
use crate::hand_off::Terms;
use crate::lease::{Claim, Grant, Held, Id, LeaseStore, State, Verdict, deadline};
use crate::lock::{Lock, held_error};
use crate::queue::Turn;
use crate::tenure::Tenure;

/// Whether an acquisition waits for the one who has the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    Yes,
    /// But not for the end of a rest.
    UntilItRests,
}

impl Wait {
    /// Whether to go away when the lock is `held`.
    fn is_over(self, held: &Held) -> bool {
        match self {
            Self::No => true,
            Self::Yes => false,
            Self::UntilItRests => held.resting,
        }
    }
}

/// What is contended for, and by whom.
pub(crate) struct Contention {
    lock: Lock,
    store: Arc<dyn LeaseStore>,
    claim: Claim,
    terms: Option<Terms>,
    turn: Turn,
    wait: Wait,
    reply: oneshot::Sender<Result<Guard>>,
}

impl Contention {
    /// Contends for `lock`. Dropping the future drops no request to the store.
    pub(crate) async fn of(
        lock: &Lock,
        mut claim: Claim,
        terms: Option<Terms>,
        turn: Turn,
        wait: Wait,
    ) -> Result<Guard> {
        // In line, where the store keeps one, nobody hears of what happens at its head: that it rests.
        claim.waits = wait == Wait::Yes;
        let (reply, answer) = oneshot::channel();
        let store = lock.locker().store().clone();
        let contention = Self { lock: lock.clone(), store, claim, terms, turn, wait, reply };
        match Errand::new(Handle::current(), answer, contention.begin()).await {
            Some(outcome) => outcome,
            None => Err(Error::new(
                ErrorKind::Unavailable,
                format!("lock `{}`: the runtime has shut down", lock.name()),
            )),
        }
    }

    /// In whoever waits for the answer, as long as there is nothing else to wait for.
    async fn begin(self) {
        let pace = self.store.capabilities().pace;
        self.turn.stay(|stay, _| stay.wanted(self.store.env().now(), pace, self.claim.ttl));
        if self.wait == Wait::Yes && !absence(&self.turn, &*self.store).is_zero() {
            self.go_on(None);
        } else {
            self.ask(None, Place::Errand).await;
        }
    }

    /// In a task, which has nothing else to do. `seen` has the lock.
    fn go_on(self, seen: Option<Held>) {
        tokio::spawn(self.wait(seen));
    }

    async fn wait(mut self, mut seen: Option<Held>) {
        if seen.is_none() {
            match stay_away(&*self.store, &self.turn, &self.claim, &mut self.reply).await {
                ControlFlow::Continue(held) => seen = held,
                ControlFlow::Break(()) => return,
            }
        }
        self.ask(seen, Place::Task).await;
    }

    /// Asks the store, over and over, unless somebody is known to have the lock now.
    async fn ask(self, mut seen: Option<Held>, place: Place) {
        let Self { lock, store, mut claim, terms, turn, wait, mut reply } = self;
        let keeps_line = store.capabilities().fifo;
        // Whether the store may go on with this claim when we do not: a place in line, a request that was not answered.
        let mut pending = false;
        let patience = Deadline::new(store.env().now(), claim.patience);
        let outcome = loop {
            // For itself, and for those to whom it will be passed on.
            claim.tokens = terms.as_ref().map_or(1, |terms| turn.demand(terms));
            let verdict = match seen.take() {
                Some(held) => Ok(Verdict::Held(held)),
                None => store.try_acquire(&claim).await,
            };
            match verdict {
                Ok(Verdict::Granted(grant)) => {
                    turn.stay(|stay, _| stay.granted(&grant, store.env().now()));
                    // When nobody takes the guard any more, it is dropped here, and releases.
                    let tenure = Tenure::new(turn, terms, claim.holder);
                    let guard = Guard::in_turn(lock.locker().opened().clone(), grant, tenure);
                    let _ = reply.send(Ok(guard));
                    return;
                }
                Ok(Verdict::Held(held)) if wait.is_over(&held) => {
                    break Some(Err(held_error(&claim.name, held)));
                }
                Ok(Verdict::Lost(loss)) if wait == Wait::No && patience.passed(store.env().now()) => {
                    break Some(Err(Error::lost(loss)));
                }
                // A grant that was lost before anybody could believe in it. The next one is another acquisition.
                Ok(Verdict::Lost(loss)) => {
                    tracing::warn!(%loss, "lost before it was known to be acquired");
                    claim.id = Id::random(&store.env().random);
                }
                Ok(Verdict::Held(held)) if place == Place::Errand => {
                    return Self { lock, store, claim, terms, turn, wait, reply }.go_on(Some(held));
                }
                Ok(Verdict::Held(held)) => {
                    pending = keeps_line && claim.waits;
                    turn.stay(|stay, _| stay.refused(&held));
                    turn.tell(held.clone());
                    lock.tell(&held);
                    tokio::select! {
                        biased;
                        () = reply.closed() => break None,
                        due = store.turn(&claim, &held) => {
                            // Trouble that passes: the next try is as patient as its claim.
                            if let Err(error) = due && !error.is_transient() {
                                break Some(Err(error.into()));
                            }
                        }
                    }
                }
                Err(error) => {
                    pending |= matches!(error, StoreError::MaybeApplied(_));
                    break Some(Err(Error::from(error)));
                }
            }
            if reply.is_closed() {
                break None;
            }
        };
        // The turn first: whoever hears of the outcome may try again at once.
        if pending {
            withdraw(store, claim, turn);
        } else {
            drop(turn);
        }
        if let Some(outcome) = outcome {
            let _ = reply.send(outcome);
        }
    }
}

/// Where a contention is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In whoever asked.
    Errand,
    Task,
}

/// For how long the lock is left to other processes.
fn absence(turn: &Turn, store: &dyn LeaseStore) -> Duration {
    turn.stay(|stay, _| stay.absence(store.env().now())).unwrap_or_default()
}

/// Leaves the lock to other processes for a while, if this one has had it for long, or until another has had it: gives who
/// has it then. Breaks when nobody waits for that any more.
async fn stay_away(
    store: &dyn LeaseStore,
    turn: &Turn,
    claim: &Claim,
    reply: &mut oneshot::Sender<Result<Guard>>,
) -> ControlFlow<(), Option<Held>> {
    let env = store.env();
    let mut pause = store.capabilities().pace.first;
    loop {
        let absence = absence(turn, store);
        if absence.is_zero() {
            return ControlFlow::Continue(None);
        }
        turn.tell(Held { holder: Some(claim.holder.clone()), ..Held::default() });
        let look = async {
            env.sleep(env.random.jittered(pause, 0.1)).await;
            store.inspect(&claim.name).await
        };
        let status = tokio::select! {
            biased;
            () = reply.closed() => return ControlFlow::Break(()),
            status = timeout(&*env.clock, absence, look) => status,
        };
        // Trouble is the next acquisition's.
        if let Some(Ok(status)) = status
            && turn.stay(|stay, _| stay.saw(&status)).unwrap_or_default()
        {
            return ControlFlow::Continue(match status.state {
                State::Held(held) => Some(held),
                State::Free | State::Lapsed(_) => None,
            });
        }
        pause *= 2;
    }
}

/// The store may still grant what nobody waits for any more: in the background, gives up the place in line, and makes
/// the lock free again as soon as the store answers.
///
/// The turn is given up at once: what lands later is told from others by its id. Except where the store keeps a line:
/// the next task must not find this one's place in it.
fn withdraw(store: Arc<dyn LeaseStore>, claim: Claim, turn: Turn) {
    let turn = Some(turn).filter(|_| store.capabilities().fifo);
    tokio::spawn(async move {
        let sent = store.env().now();
        let mut grant = Grant {
            name: claim.name,
            // Of no meaning here: a release goes by the claim's id.
            token: crate::Token::default(),
            after: None,
            id: claim.id,
            ttl: claim.ttl,
            deadline: deadline(claim.ttl, sent),
            memo: None,
        };
        if let Err(error) = store.release(&mut grant, None).await {
            tracing::debug!(lock = %grant.name, %error, "an unanswered request was not withdrawn; it lapses");
        }
        drop(turn);
    });
}
