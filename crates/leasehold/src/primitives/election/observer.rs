//! What an observer makes of its looks at the store.

use std::sync::Arc;
use std::time::Duration;

use super::Leader;
use crate::error::{Error, Result, StoreError};
use crate::lease::{Capabilities, LeaseStore, State, Status, Token};
use crate::types::LockName;

/// The pauses after trouble grow from this,
const FIRST_AFTER_TROUBLE: Duration = Duration::from_secs(1);
/// up to this.
const MOST_AFTER_TROUBLE: Duration = Duration::from_secs(15);

/// Looks come at about the store's pace: observers that were started together spread out.
const SPREAD: f64 = 0.25;

/// Looks at one election, again and again.
pub(super) struct Observer {
    store: Arc<dyn LeaseStore>,
    name: LockName,
    wait: Wait,
    told: Told,
}

/// What to wait for before the next look.
enum Wait {
    Nothing,
    /// A change of what was seen, or the end of the pause.
    Change {
        seen: Box<Status>,
        pause: Duration,
    },
    /// The end of the pause: the store had trouble.
    Calm {
        pause: Duration,
    },
}

impl Observer {
    pub(super) fn new(store: Arc<dyn LeaseStore>, name: LockName) -> Self {
        Self { store, name, wait: Wait::Nothing, told: Told::default() }
    }

    /// The next that is worth telling.
    pub(super) async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            self.pause().await;
            match self.store.inspect(&self.name).await {
                Ok(status) => {
                    let news = self.told.news(&status.state, &self.store.capabilities());
                    self.wait = self.after(status, news.is_some());
                    if let Some(leader) = news {
                        return Ok(leader);
                    }
                }
                Err(error) => {
                    self.wait = self.wait.after_trouble();
                    if let Some(error) = self.told.trouble(&self.name, error) {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn pause(&self) {
        let env = self.store.env();
        match &self.wait {
            Wait::Nothing => {}
            Wait::Calm { pause } => env.sleep(env.random.jittered(*pause, SPREAD)).await,
            Wait::Change { seen, pause } => {
                tokio::select! {
                    () = self.store.holder_changed(&self.name, seen) => {}
                    () = env.sleep(env.random.jittered(*pause, SPREAD)) => {}
                }
            }
        }
    }

    /// Often after a change, which another may follow, and then ever less.
    fn after(&self, seen: Status, changed: bool) -> Wait {
        let pace = self.store.capabilities().pace;
        let pause = match &self.wait {
            Wait::Change { pause, .. } if !changed => (*pause * 2).min(pace.max),
            _ => pace.min,
        };
        Wait::Change { seen: Box::new(seen), pause }
    }
}

impl Wait {
    fn after_trouble(&self) -> Self {
        let pause = match self {
            Self::Calm { pause } => (*pause * 2).min(MOST_AFTER_TROUBLE),
            Self::Nothing | Self::Change { .. } => FIRST_AFTER_TROUBLE,
        };
        Self::Calm { pause }
    }
}

/// What was told, and must not be told again or taken back.
#[derive(Default)]
struct Told {
    /// The leader, with the token of its grant, which tells two grants of one holder apart also where it is no term.
    latest: Option<Option<(Leader, Option<Token>)>>,
    highest: Option<Token>,
    /// The lasting trouble.
    trouble: Option<String>,
}

impl Told {
    /// The leader in `state`, if that is news.
    fn news(&mut self, state: &State, capabilities: &Capabilities) -> Option<Option<Leader>> {
        let mended = self.trouble.take().is_some();
        // An earlier term is what a request left that came late, after the record was deleted by hand: nobody leads by it.
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
        let news = latest.as_ref().map(|(leader, _)| leader.clone());
        self.latest = Some(latest);
        Some(news)
    }

    /// The error to tell of, if it lasts and is news.
    fn trouble(&mut self, name: &LockName, error: StoreError) -> Option<Error> {
        if error.is_transient() {
            tracing::warn!(election = %name, %error, "who leads was not found out");
            return None;
        }
        let text = error.to_string();
        let known = self.trouble.replace(text.clone()).is_some_and(|known| known == text);
        (!known).then(|| error.into())
    }
}

/// Who leads where the lock's state is `state`.
pub(super) fn leader_of(state: State, capabilities: &Capabilities) -> Option<Leader> {
    let State::Held(held) = state else { return None };
    // First in line, and not told that it is its turn.
    let waits = capabilities.tokens && held.token.is_none() && held.foreign.is_none();
    if held.resting || waits {
        return None;
    }
    let mut holder = held.holder;
    let value = holder.as_mut().and_then(|holder| holder.value.take());
    let is_ours = holder.as_ref().is_some_and(|holder| !holder.is_foreign());
    Some(Leader { value, holder, term: held.token.filter(|_| capabilities.tokens && is_ours) })
}
