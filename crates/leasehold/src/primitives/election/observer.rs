//! [`Observer`]: polls an election, and decides which results to report.

use std::sync::Arc;
use std::time::Duration;

use super::Leader;
use crate::error::{Error, Result, StoreError};
use crate::lease::{Capabilities, LeaseStore, State, Status, Token};
use crate::types::LockName;

/// The first pause after an error. Each further pause is twice as long.
const FIRST_AFTER_TROUBLE: Duration = Duration::from_secs(1);
/// The longest pause after an error.
const MAX_AFTER_TROUBLE: Duration = Duration::from_secs(15);

/// The jitter of pauses. It spreads the polls of observers that started at the same time.
const SPREAD: f64 = 0.25;

/// Polls one election.
pub(super) struct Observer {
    store: Arc<dyn LeaseStore>,
    name: LockName,
    wait: Wait,
    reported: Reported,
    /// If each read is reported: the longest pause between two reads.
    every: Option<Duration>,
}

/// The event to wait for before the next poll.
enum Wait {
    Nothing,
    /// A change of the status that was seen, or the end of the pause.
    Change {
        seen: Box<Status>,
        pause: Duration,
    },
    /// The end of the pause after an error of the store.
    Calm {
        pause: Duration,
    },
}

impl Observer {
    pub(super) fn new(store: Arc<dyn LeaseStore>, name: LockName, every: Option<Duration>) -> Self {
        Self { store, name, wait: Wait::Nothing, reported: Reported::default(), every }
    }

    /// Waits for the next leader or error to report.
    pub(super) async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            self.pause().await;
            match self.store.inspect(&self.name).await {
                Ok(status) => {
                    let news = self.reported.news(&status.state, &self.store.capabilities());
                    self.wait = self.after(status, news.is_some());
                    if let Some(leader) = news.or_else(|| self.every.and_then(|_| self.reported.leader())) {
                        return Ok(leader);
                    }
                }
                Err(error) => {
                    self.wait = self.wait.after_trouble();
                    if let Some(error) = self.reported.trouble(&self.name, error) {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn pause(&self) {
        let env = self.store.env();
        let longest = |pause: Duration| self.every.map_or(pause, |every| pause.min(every));
        match &self.wait {
            Wait::Nothing => {}
            Wait::Calm { pause } => env.sleep(env.random.jittered(longest(*pause), SPREAD)).await,
            Wait::Change { seen, pause } => {
                tokio::select! {
                    () = self.store.holder_changed(&self.name, seen) => {}
                    () = env.sleep(env.random.jittered(longest(*pause), SPREAD)) => {}
                }
            }
        }
    }

    /// Returns what to wait for after `seen` was read. After a change, the pause is short, because another change may
    /// follow. Then it doubles.
    fn after(&self, seen: Status, changed: bool) -> Wait {
        let poll_interval = self.store.capabilities().poll_interval;
        let pause = match &self.wait {
            Wait::Change { pause, .. } if !changed => (*pause * 2).min(poll_interval.max),
            _ => poll_interval.min,
        };
        Wait::Change { seen: Box::new(seen), pause }
    }
}

impl Wait {
    fn after_trouble(&self) -> Self {
        let pause = match self {
            Self::Calm { pause } => (*pause * 2).min(MAX_AFTER_TROUBLE),
            Self::Nothing | Self::Change { .. } => FIRST_AFTER_TROUBLE,
        };
        Self::Calm { pause }
    }
}

/// The state that was reported. It must not be reported again or taken back.
#[derive(Default)]
struct Reported {
    /// The leader and the token of its grant. Even if it is not a term, the token distinguishes two grants of one
    /// holder.
    latest: Option<Option<(Leader, Option<Token>)>>,
    highest: Option<Token>,
    /// The last reported lasting error.
    trouble: Option<String>,
}

impl Reported {
    /// Returns the leader in `state`, if it must be reported.
    fn news(&mut self, state: &State, capabilities: &Capabilities) -> Option<Option<Leader>> {
        let mended = self.trouble.take().is_some();
        // A lower term comes from a request that arrived late, after the record was deleted by hand. No process leads
        // with it.
        let leader = leader_of(state.clone(), capabilities)
            .filter(|leader| leader.term.is_none() || leader.term >= self.highest);
        self.highest = self.highest.max(leader.as_ref().and_then(|leader| leader.term));
        let grant = match state {
            State::Held(held) => held.token,
            State::Free | State::Lapsed(_) => None,
        };
        let latest = leader.map(|leader| (leader, grant));
        if self.latest.as_ref() == Some(&latest) && !mended {
            return None;
        }
        self.latest = Some(latest);
        self.leader()
    }

    /// Returns the leader that was reported.
    fn leader(&self) -> Option<Option<Leader>> {
        self.latest.as_ref().map(|latest| latest.as_ref().map(|(leader, _)| leader.clone()))
    }

    /// Returns the error to report, if `error` is lasting and new.
    fn trouble(&mut self, name: &LockName, error: StoreError) -> Option<Error> {
        if error.is_transient() {
            tracing::warn!(election = %name, %error, "cannot read the leader");
            return None;
        }
        let text = error.to_string();
        let known = self.trouble.replace(text.clone()).is_some_and(|known| known == text);
        (!known).then(|| error.into())
    }
}

/// Returns the leader of an election whose lock is in `state`.
pub(super) fn leader_of(state: State, capabilities: &Capabilities) -> Option<Leader> {
    let State::Held(held) = state else { return None };
    // The first in the line has not noticed yet that it is its turn, so it does not lead yet.
    let waits = capabilities.tokens && held.token.is_none() && held.foreign.is_none();
    if held.in_cooldown || waits {
        return None;
    }
    let mut holder = held.holder;
    let value = holder.as_mut().and_then(|holder| holder.value.take());
    let is_ours = holder.as_ref().is_some_and(|holder| !holder.is_foreign());
    Some(Leader { value, holder, term: held.token.filter(|_| capabilities.tokens && is_ours) })
}
