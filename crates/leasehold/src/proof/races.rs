//! Races: requests that are sent at once with the same precondition. A good store accepts at most one of them.
//!
//! Each round uses a separate key that no other client knows. First, creates race on this key, then writes over the
//! winner's version. If deletes are tested, writes and deletes of the next version race as well. A race proves a flaw
//! only if the store accepted two requests. It counts as good only if the store accepted one request and gave a
//! definite response to at least half of all requests.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::sync::watch;

use super::cells::{Cells, Profile, Races};
use super::checks::{fresh, no_deletes, refusal, worse};
use crate::error::{Fault, StoreError};
use crate::lease::Id;
use crate::register::{Deleted, Precondition, Version, Write};

/// The prefix of the keys of races. A random part and numbers follow.
pub(crate) const PREFIX: &str = ".leasehold-probe-race-";

/// The maximum number of rounds for each race that must count, and the pause after a round in which no race counted.
const ROUNDS_FOR_ONE: usize = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// The kind of requests that race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Writes that expect no object.
    Creates,
    /// Writes that expect one version.
    Replaces,
    /// Writes and deletes that expect one version.
    Deletes,
}

impl Kind {
    /// Returns the name of the check.
    pub(super) fn check(self) -> &'static str {
        match self {
            Self::Creates => "create-race",
            Self::Replaces => "atomic-race",
            Self::Deletes => "delete-race",
        }
    }

    pub(super) fn what(self, profile: &Profile) -> String {
        match self {
            Self::Creates => format!("creates ({})", profile.absent),
            Self::Replaces => format!("writes that expect one version ({})", profile.current),
            Self::Deletes => format!("writes and deletes that expect one version ({})", profile.current),
        }
    }
}

/// Which races to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) kinds: &'a [Kind],
    pub(crate) size: Races,
    /// Whether the other kinds continue after one kind was found unsafe.
    pub(crate) all: bool,
    /// No round begins after this time.
    pub(crate) limit: Duration,
}

/// The results of the races of one kind.
#[derive(Debug)]
pub(crate) struct Raced {
    pub(crate) kind: Kind,
    /// The number of races with one winner and a definite response to at least half of the requests.
    pub(crate) counted: usize,
    /// What the store did wrong.
    pub(crate) unsafe_: Option<StoreError>,
    /// The latest error.
    pub(crate) trouble: Option<StoreError>,
}

impl Raced {
    fn none(kind: Kind) -> Self {
        Self { kind, counted: 0, unsafe_: None, trouble: None }
    }

    /// Returns why these races do not prove the store to be safe, if they do not. `least` of them must count.
    pub(super) fn problem(self, least: usize) -> Option<StoreError> {
        let message = format!("only {} of {least} races had a result", self.counted);
        self.unsafe_.or_else(|| {
            let trouble = || self.trouble.unwrap_or_else(|| Fault::unavailable(message).not_applied());
            (self.counted < least).then(trouble)
        })
    }
}

/// The results of all races.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) kinds: Vec<Raced>,
    /// The prefix of the keys.
    pub(crate) prefix: String,
    /// The keys that were written and could not be deleted: at most one for each round.
    pub(crate) left: Vec<String>,
}

/// The result of one race.
enum RaceResult {
    Good,
    Unsafe(StoreError),
    Nothing(Option<StoreError>),
}

/// Runs `plan` on `cells`.
pub(crate) async fn run(cells: &dyn Cells, plan: Plan<'_>) -> Found {
    let id = Id::random(&cells.env().random).to_string();
    let prefix = format!("{PREFIX}{}", &id[..12]);
    let stop = watch::Sender::new(false);
    let Races { races, lanes, racers, .. } = plan.size;
    let lanes = (0..lanes).map(|lane| {
        // The shares of all lanes add up to the planned number.
        let races = (races + lane) / lanes;
        let prefix = format!("{prefix}-{lane}");
        Lane { cells, plan, races, racers, prefix, left: Vec::new(), stop: &stop }.run()
    });
    let mut found = Found {
        kinds: plan.kinds.iter().copied().map(Raced::none).collect(),
        prefix: prefix.clone(),
        left: Vec::new(),
    };
    for lane in join_all(lanes).await {
        for (all, one) in found.kinds.iter_mut().zip(lane.0) {
            all.counted += one.counted;
            all.unsafe_ = all.unsafe_.take().or(one.unsafe_);
            all.trouble = worse(all.trouble.take(), one.trouble);
        }
        found.left.extend(lane.1);
    }
    found
}

struct Lane<'a> {
    cells: &'a dyn Cells,
    plan: Plan<'a>,
    races: usize,
    racers: usize,
    prefix: String,
    left: Vec<String>,
    /// Whether all lanes stop, because one has found that the store is unsafe.
    stop: &'a watch::Sender<bool>,
}

impl Lane<'_> {
    /// Returns the results of each kind, and the keys that could not be deleted.
    async fn run(mut self) -> (Vec<Raced>, Vec<String>) {
        let mut kinds: Vec<Raced> = self.plan.kinds.iter().copied().map(Raced::none).collect();
        let env = self.cells.env();
        let start = env.now();
        for round in 0..ROUNDS_FOR_ONE * self.races {
            let settled = |raced: &Raced| raced.unsafe_.is_some() || raced.counted >= self.races;
            // An error that a retry does not change, such as a missing permission.
            let hopeless = |raced: &Raced| raced.trouble.as_ref().is_some_and(|error| !error.is_transient());
            let late = env.now().longest_since(start) > self.plan.limit;
            if *self.stop.borrow() || late || kinds.iter().all(settled) || kinds.iter().any(hopeless) {
                break;
            }
            let before: usize = kinds.iter().map(|raced| raced.counted).sum();
            let key = format!("{}-{round}", self.prefix);
            self.round(&key, &mut kinds).await;
            if !self.plan.all && kinds.iter().any(|raced| raced.unsafe_.is_some()) {
                self.stop.send_replace(true);
            }
            let after: usize = kinds.iter().map(|raced| raced.counted).sum();
            if after == before && kinds.iter().all(|raced| raced.unsafe_.is_none()) {
                let retry_after =
                    kinds.iter().filter_map(|raced| raced.trouble.as_ref()?.fault().retry_after).max();
                let left = self.plan.limit.saturating_sub(env.now().longest_since(start));
                let pause = env.random.jittered(PAUSE, 0.5).max(retry_after.unwrap_or_default()).min(left);
                self.racers = (self.racers / 2).max(self.plan.size.least_racers);
                let mut stop = self.stop.subscribe();
                tokio::select! {
                    () = env.sleep(pause) => {}
                    _ = stop.wait_for(|stop| *stop) => {}
                }
            }
        }
        (kinds, self.left)
    }

    /// Runs one race of each kind on `key`.
    async fn round(&mut self, key: &str, kinds: &mut [Raced]) {
        let mut current = None;
        for raced in kinds {
            let (seen, version) = match (raced.kind, current.take()) {
                (Kind::Creates, _) => self.creates(key).await,
                (Kind::Replaces, Some(version)) => self.replaces(key, &version).await,
                (Kind::Deletes, Some(version)) => self.deletes(key, &version).await,
                // If creates are not tested, one create is enough.
                (Kind::Replaces | Kind::Deletes, None) => match self.created(key).await {
                    Ok(version) if raced.kind == Kind::Replaces => self.replaces(key, &version).await,
                    Ok(version) => self.deletes(key, &version).await,
                    Err(error) => (RaceResult::Nothing(Some(error)), None),
                },
            };
            match seen {
                RaceResult::Good => raced.counted += 1,
                RaceResult::Unsafe(error) => raced.unsafe_ = raced.unsafe_.take().or(Some(error)),
                RaceResult::Nothing(trouble) => raced.trouble = trouble.or(raced.trouble.take()),
            }
            current = match version {
                Some(version) => Some(version),
                // The winner's response was lost, or there were several winners.
                None => self.cells.read(key).await.ok().flatten().map(|(_, version)| version),
            };
            if current.is_none() && raced.kind != Kind::Deletes {
                break;
            }
        }
        self.clean_up(key, current).await;
    }

    async fn created(&self, key: &str) -> Result<Version, StoreError> {
        match self.cells.write(key, Precondition::Absent, fresh(self.cells)).await? {
            Write::Committed(version) => Ok(version),
            Write::Conflict => Err(none_accepted(1)),
        }
    }

    async fn creates(&self, key: &str) -> (RaceResult, Option<Version>) {
        let writes = (0..self.racers).map(|_| self.cells.write(key, Precondition::Absent, fresh(self.cells)));
        self.judged(Kind::Creates, join_all(writes).await.into_iter().map(accepted).collect())
    }

    async fn replaces(&self, key: &str, version: &Version) -> (RaceResult, Option<Version>) {
        let expect = Precondition::Version(version);
        let writes = (0..self.racers).map(|_| self.cells.write(key, expect, fresh(self.cells)));
        self.judged(Kind::Replaces, join_all(writes).await.into_iter().map(accepted).collect())
    }

    async fn deletes(&self, key: &str, version: &Version) -> (RaceResult, Option<Version>) {
        let (cells, half) = (self.cells, self.racers / 2);
        let expect = Precondition::Version(version);
        let writes = join_all((0..half).map(|_| cells.write(key, expect, fresh(cells))));
        let deletes = join_all((0..half).map(|_| cells.delete(key, version)));
        let (writes, deletes) = join(writes, deletes).await;
        let deletes = deletes
            .into_iter()
            .map(|deleted| deleted.map(|deleted| (deleted == Deleted::Deleted).then_some(None)));
        self.judged(Kind::Deletes, writes.into_iter().map(accepted).chain(deletes).collect())
    }

    /// Evaluates the responses. Returns the result, and the version of the winner if there is exactly one.
    fn judged(&self, kind: Kind, answers: Vec<Answer>) -> (RaceResult, Option<Version>) {
        let racers = answers.len();
        let (mut winners, mut refused, mut trouble) = (Vec::new(), 0, None);
        for answer in answers {
            match answer {
                Ok(Some(version)) => winners.push(version),
                Ok(None) => refused += 1,
                // Busy stores reject racers (409). Up to half of the requests may fail in this way.
                Err(error) => trouble = Some(error),
            }
        }
        match winners.len() {
            0 => (RaceResult::Nothing(Some(trouble.unwrap_or_else(|| none_accepted(racers)))), None),
            1 => {
                let seen = match 2 * (1 + refused) >= racers {
                    true => RaceResult::Good,
                    false => RaceResult::Nothing(trouble),
                };
                (seen, winners.pop().flatten())
            }
            accepted => (RaceResult::Unsafe(two_winners(self.cells, kind, racers, accepted)), None),
        }
    }

    async fn clean_up(&mut self, key: &str, version: Option<Version>) {
        let version = match version {
            Some(version) => Some(version),
            None => match self.cells.read(key).await {
                Ok(None) => return,
                read => read.ok().flatten().map(|(_, version)| version),
            },
        };
        let deleted = match version {
            Some(version) => self.cells.delete(key, &version).await.ok(),
            None => None,
        };
        if deleted != Some(Deleted::Deleted) {
            self.left.push(key.to_owned());
        }
    }
}

/// `Some` for an accepted request, with the new version if it was a write. `None` for a refused request.
type Answer = Result<Option<Option<Version>>, StoreError>;

fn accepted(answer: Result<Write, StoreError>) -> Answer {
    answer.map(|write| match write {
        Write::Committed(version) => Some(Some(version)),
        Write::Conflict => None,
    })
}

fn none_accepted(racers: usize) -> StoreError {
    Fault::unavailable(format!("of {racers} requests at once, the store accepted none")).not_applied()
}

fn two_winners(cells: &dyn Cells, kind: Kind, racers: usize, accepted: usize) -> StoreError {
    let seen = format!(
        "this store does not check preconditions atomically: of {racers} {} at once, it accepted {accepted}",
        kind.what(&cells.profile())
    );
    match kind {
        Kind::Creates | Kind::Replaces => refusal(
            cells,
            seen,
            "two clients that request a lock at the same time could be granted the same lock",
        ),
        Kind::Deletes => no_deletes(seen),
    }
}
