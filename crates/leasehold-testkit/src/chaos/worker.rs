//! A worker process: it acquires the lock, uses it, and records what it believes.
//!
//! It ends when its standard input ends. It does not judge what happened; the checker does.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use leasehold::Locker;
use leasehold::clock::{Clock, SystemClock};
use leasehold::lease::{LeaseStore, StoreOptions};
use leasehold::raw::RawRecords;
use leasehold::stores;
use leasehold::url::StoreUrl;
use serde_json::json;
use tokio::io::AsyncReadExt;

use super::contender::{Attempt, Contender, End, Hold, Leasehold};
use super::history::History;
use super::naive::{ExpiryColumn, LaggingRegister, PlainObject, TwoStepRegister};
use super::registers::{Exercise, Registers, deletes_are_known, exercises};
use super::resource::Client;

/// The exit code of a worker that crashed on purpose.
pub const CRASHED: u8 = 77;

/// The most additions that a worker makes in one hold.
const MAX_ROUNDS: u32 = 500;

/// The kind of lock that workers acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// leasehold's, used as documented.
    Leasehold,
    /// leasehold's, used without ever checking whether it is still held.
    Unchecked,
    /// An object that exists while the lock is held. A contender deletes it when it is too old.
    PlainObject,
    /// A database row with an expiry time, by the clock of the process that wrote it.
    ExpiryColumn,
    /// leasehold's, beside registers whose reads lag behind.
    LaggingRegister,
    /// leasehold's, beside registers that check the condition of a write before the write.
    TwoStepRegister,
}

impl Kind {
    /// All kinds.
    pub const ALL: &[Self] = &[
        Self::Leasehold,
        Self::Unchecked,
        Self::PlainObject,
        Self::ExpiryColumn,
        Self::LaggingRegister,
        Self::TwoStepRegister,
    ];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leasehold => "leasehold",
            Self::Unchecked => "unchecked",
            Self::PlainObject => "plain-object",
            Self::ExpiryColumn => "expiry-column",
            Self::LaggingRegister => "lagging-register",
            Self::TwoStepRegister => "two-step-register",
        }
    }
}

/// The arguments of a worker.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The worker's name: its number, and how many workers have had that number.
    pub who: String,
    /// The kind of lock.
    pub kind: Kind,
    /// The store URL. For an incorrect lock, the place where the lock is stored.
    pub store: String,
    /// The lock's name.
    pub lock: String,
    /// The lease's time to live.
    pub ttl: Duration,
    /// Where histories are kept.
    pub folder: PathBuf,
    /// Where the resource listens.
    pub resource: String,
    /// The seed of the worker's decisions.
    pub seed: u64,
}

impl Orders {
    /// Returns the orders as arguments.
    pub fn arguments(&self) -> Vec<String> {
        vec![
            "worker".to_owned(),
            self.who.clone(),
            self.kind.name().to_owned(),
            self.store.clone(),
            self.lock.clone(),
            self.ttl.as_millis().to_string(),
            self.folder.display().to_string(),
            self.resource.clone(),
            self.seed.to_string(),
        ]
    }

    /// Reads the arguments after `worker`. Returns `None` if they were not made by [`arguments`](Self::arguments).
    pub fn read(arguments: &[String]) -> Option<Self> {
        let [who, kind, store, lock, ttl, folder, resource, seed] = arguments else { return None };
        Some(Self {
            who: who.clone(),
            kind: *Kind::ALL.iter().find(|known| known.name() == kind)?,
            store: store.clone(),
            lock: lock.clone(),
            ttl: Duration::from_millis(ttl.parse().ok()?),
            folder: folder.into(),
            resource: resource.clone(),
            seed: seed.parse().ok()?,
        })
    }
}

/// Works until standard input ends.
///
/// # Panics
/// When the resource cannot be reached, or the history cannot be written.
pub async fn work(orders: Orders) -> ExitCode {
    let mut worker = Worker::new(orders).await;
    let mut input = tokio::io::stdin();
    let mut nothing = [0; 1];
    tokio::select! {
        code = worker.work() => code,
        // The nemesis never writes to it, so a read completes only when the nemesis closes it or dies.
        _ = input.read(&mut nothing) => ExitCode::SUCCESS,
    }
}

struct Worker {
    orders: Orders,
    random: Rng,
    history: History,
    resource: Client,
    grants: u64,
}

/// A grant, with its name in histories.
struct Grant {
    name: String,
    lock: String,
    hold: Box<dyn Hold>,
}

/// How a hold ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Finished,
    Lost,
}

impl Worker {
    async fn new(orders: Orders) -> Self {
        let history = History::create(&orders.folder, &orders.who).expect("a file for the history");
        let resource = Client::connect(&orders.resource, &orders.who).await.expect("the resource is there");
        Self { random: Rng::with_seed(orders.seed), history, resource, grants: 0, orders }
    }

    async fn work(&mut self) -> ExitCode {
        let contender = self.contender().await;
        loop {
            let from = self.history.now();
            match contender.acquire(self.attempt()).await {
                Ok(Some(hold)) => {
                    let grant = self.granted(from, hold);
                    let used = self.hold(&grant).await;
                    if used == Use::Finished && self.random.u8(..100) < 4 {
                        // Exits without running destructors, so the lock stays held.
                        std::process::exit(i32::from(CRASHED));
                    }
                    self.end(grant, used).await;
                }
                Ok(None) => self.pause(5, 60).await,
                Err(error) => {
                    self.history.record("failed", from, json!({ "error": error }));
                    self.pause(50, 300).await;
                }
            }
            self.pause(0, 40).await;
        }
    }

    /// Opens the lock. Retries if the store does not respond.
    async fn contender(&mut self) -> Box<dyn Contender> {
        let Orders { kind, store, lock, ttl, who, .. } = self.orders.clone();
        match kind {
            Kind::PlainObject => Box::new(PlainObject::new(&store, &lock, ttl)),
            Kind::ExpiryColumn => Box::new(ExpiryColumn::new(&store, lock, ttl)),
            Kind::Leasehold | Kind::Unchecked | Kind::LaggingRegister | Kind::TwoStepRegister => loop {
                let from = self.history.now();
                let url = StoreUrl::parse(&store).expect("a store URL");
                match stores::open(url, StoreOptions::default()).await {
                    Ok(store) => {
                        self.exercise_registers(&*store);
                        let locker = Locker::new(store);
                        let (first, last) = (format!("0-{lock}"), format!("{lock}-z"));
                        // Half of the workers hold one or two more locks together with the lock: one that is acquired
                        // before it, one after it, or both.
                        let others = match self.random.u8(..8) {
                            ..4 => Vec::new(),
                            4 => vec![last],
                            5 => vec![first],
                            _ => vec![last, first],
                        };
                        let (name, lock) = (lock.clone(), locker.lock(&lock).ttl(ttl).owner(&who));
                        return Box::new(Leasehold { lock, name, others, checked: kind != Kind::Unchecked });
                    }
                    Err(error) => {
                        self.history.record("failed", from, json!({ "error": format!("{error:#}") }));
                        self.pause(100, 300).await;
                    }
                }
            },
        }
    }

    /// Exercises registers of the store from now on, if it has any and this worker is one of those that do.
    fn exercise_registers(&self, store: &dyn LeaseStore) {
        let Orders { kind, store: url, folder, who, seed, .. } = self.orders.clone();
        let Some(records) = RawRecords::of(store).filter(|_| exercises(&who)) else { return };
        let registers: Arc<dyn Registers> = match kind {
            Kind::Leasehold => Arc::new(records),
            Kind::LaggingRegister => Arc::new(LaggingRegister::new(records)),
            Kind::TwoStepRegister => Arc::new(TwoStepRegister(records)),
            Kind::Unchecked | Kind::PlainObject | Kind::ExpiryColumn => return,
        };
        let history = History::create(&folder, &format!("{who}-registers")).expect("a file for the history");
        let may_delete = deletes_are_known(&url);
        tokio::spawn(async move { Exercise::new(registers, history, seed, may_delete).run().await });
    }

    fn attempt(&mut self) -> Attempt {
        match self.random.u8(..100) {
            ..20 => Attempt::Try,
            20..35 => Attempt::Abandon(Duration::from_millis(self.random.u64(..800))),
            _ => Attempt::Wait(self.orders.ttl * 4),
        }
    }

    fn granted(&mut self, from: u64, hold: Box<dyn Hold>) -> Grant {
        self.grants += 1;
        let grant = Grant {
            name: format!("{}#{}", self.orders.who, self.grants),
            lock: self.orders.lock.clone(),
            hold,
        };
        self.record("granted", from, &grant);
        grant
    }

    /// Uses the lock for a while: mostly a short one, sometimes one long enough to need renewals.
    async fn hold(&mut self, grant: &Grant) -> Use {
        let rounds = match self.random.u8(..100) {
            ..80 => self.random.u32(1..4),
            80..94 => self.random.u32(4..15),
            _ => self.random.u32(20..40),
        };
        for round in 0..MAX_ROUNDS {
            if round >= rounds && !self.resource.asks_to_stay() {
                break;
            }
            if !self.checked(grant) {
                return self.lost(grant).await;
            }
            if !self.add_one(grant).await || !self.pause_unless_lost(grant).await {
                return self.lost(grant).await;
            }
        }
        Use::Finished
    }

    /// Checks whether the lock is held, as a program does before it relies on it.
    fn checked(&self, grant: &Grant) -> bool {
        let from = self.history.now();
        let held = grant.hold.check();
        if held {
            self.record("checked", from, grant);
        }
        held
    }

    /// Reads the counter, and writes the next number a little later. Returns `false` if the lock is lost.
    async fn add_one(&mut self, grant: &Grant) -> bool {
        let token = grant.hold.token();
        let read = self.resource.read(&grant.lock, token).await.expect("the resource answers");
        let Some(value) = read else { return false };
        if self.random.bool() && !self.pause_unless_lost(grant).await {
            return false;
        }
        // A process can be stopped between this check and the write.
        if !self.checked(grant) {
            return false;
        }
        self.pause(0, 20).await;
        self.resource.write(&grant.lock, token, value + 1).await.expect("the resource answers").is_some()
    }

    /// Records that the lock was lost. Then writes anyway, because a lock cannot prevent that.
    async fn lost(&mut self, grant: &Grant) -> Use {
        // If this process was stopped for long, the resource may have refused it before the guard notices.
        if !grant.hold.check() {
            self.record("lost", self.history.now(), grant);
        }
        if grant.hold.token() > 0 {
            self.pause(0, 40).await;
            let late =
                self.resource.read(&grant.lock, grant.hold.token()).await.expect("the resource answers");
            if let Some(value) = late {
                let written = self.resource.write(&grant.lock, grant.hold.token(), value + 1).await;
                written.expect("the resource answers");
            }
        }
        Use::Lost
    }

    async fn end(&mut self, grant: Grant, used: Use) {
        let way = if used == Use::Lost || self.random.u8(..100) < 15 { End::Drop } else { End::Release };
        let token = grant.hold.token();
        self.resource.over(&grant.lock, token).await.expect("the resource answers");
        let from = self.history.now();
        let how = grant.hold.end(way).await;
        let event = json!({ "lock": grant.lock, "grant": grant.name, "token": token, "how": how });
        self.history.record("over", from, event);
    }

    fn record(&self, what: &str, from: u64, grant: &Grant) {
        let event = json!({ "lock": grant.lock, "grant": grant.name, "token": grant.hold.token() });
        self.history.record(what, from, event);
    }

    /// Pauses for a short time. Returns `false` if the lock is lost in the meantime.
    async fn pause_unless_lost(&mut self, grant: &Grant) -> bool {
        tokio::select! {
            () = self.pause(5, 60) => true,
            () = grant.hold.lost() => false,
        }
    }

    async fn pause(&mut self, least_ms: u64, most_ms: u64) {
        SystemClock.sleep(Duration::from_millis(self.random.u64(least_ms..=most_ms))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_were_given() {
        let orders = Orders {
            who: "w1.2".to_owned(),
            kind: Kind::ExpiryColumn,
            store: "sqlite:x".to_owned(),
            lock: "l".to_owned(),
            ttl: Duration::from_millis(1_500),
            folder: "/tmp".into(),
            resource: "127.0.0.1:1".to_owned(),
            seed: 9,
        };
        let read = Orders::read(&orders.arguments()[1..]).unwrap();
        assert_eq!(read.arguments(), orders.arguments());
        assert!(Orders::read(&orders.arguments()).is_none());
    }
}
