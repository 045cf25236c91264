//! A register with a flaw, for tests of the checks that must find it.
#![allow(clippy::unwrap_used)] // A panic is how a test fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use crate::clock::{StoreTime, TestClock};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::PollInterval;
use crate::register::{
    Body, Deleted, Metadata, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    IgnoresAbsent,
    IgnoresVersion,
    IgnoresBoth,
    IgnoresVersionOfNothing,
    /// Checks first and then writes. This is correct for a single client.
    ChecksInTwoSteps,
    NeverMatches,
    /// Refuses every conditional write, even of what does not exist.
    RefusesEverything,
    SameVersionAlways,
    DropsMetadata,
    IgnoresVersionOfDeletes,
    /// The first read after a write returns the previous content.
    ReadsLate,
    /// A deleted object can still be read.
    KeepsDeleted,
    DeniesWrites,
    DeniesReads,
    /// Listing is denied. As in clouds, the store then does not report that an object is missing either.
    DeniesListing,
    DeniesDeletes,
    /// All but one of the writes that arrive at once get no definite response.
    RefusesRacers,
    /// Serves four writes at once, and no more.
    ServesFour,
    /// Accepts a second create in this percentage of races.
    DoublesCreates(u8),
    /// Likewise, accepts a second write over one version.
    DoublesReplaces(u8),
    /// Likewise, accepts both a delete and a write over one version.
    DoublesDeletes(u8),
    /// Refuses the first write as busy, and asks the client to wait for a minute.
    AsksForAMinute,
    /// Accepts a second write over one version in the races of the first lane. Asks the other lanes to wait for an hour.
    DoublesInOneLane,
    /// Returns versions with quotes, but compares them without.
    ComparesWithoutQuotes,
}

/// A register with a flaw. It can also fail some of the requests.
#[derive(Debug)]
pub(crate) struct Flawed {
    pub(crate) flaw: Mutex<Flaw>,
    pub(crate) cells: Mutex<HashMap<String, VersionedValue>>,
    pub(crate) requests: AtomicUsize,
    /// Whether there was no read since the latest write.
    pub(crate) fresh: AtomicBool,
    /// If the number of a write request is a multiple of this, its response is lost after the write was applied. 0
    /// means never.
    pub(crate) loses_every: usize,
    /// Likewise, the write is refused as busy.
    pub(crate) busy_every: usize,
    /// How many requests fail as busy before the register works normally.
    pub(crate) busy_first: AtomicUsize,
    pub(crate) writing: AtomicUsize,
    /// The number of writes that were accepted.
    pub(crate) accepted: AtomicUsize,
    /// The races in which a second request will be accepted: the key and the precondition, and the number of accepted
    /// requests including the first of the race.
    pub(crate) doubled: Mutex<HashMap<(String, String), usize>>,
    /// How long each request takes, on average.
    pub(crate) latency: Duration,
    pub(crate) identity: String,
    /// Whether responses contain the time of the store.
    pub(crate) has_clock: bool,
    pub(crate) env: Env,
}

pub(crate) fn store(flaw: Flaw) -> Flawed {
    Flawed {
        flaw: Mutex::new(flaw),
        cells: Mutex::default(),
        requests: AtomicUsize::new(0),
        fresh: AtomicBool::new(false),
        loses_every: 0,
        busy_every: 0,
        busy_first: AtomicUsize::new(0),
        writing: AtomicUsize::new(0),
        accepted: AtomicUsize::new(0),
        doubled: Mutex::default(),
        latency: Duration::ZERO,
        identity: "here".to_owned(),
        has_clock: true,
        env: Env::seeded(Arc::new(TestClock::default()), 1),
    }
}

impl Flawed {
    pub(crate) fn requests(&self) -> usize {
        self.requests.swap(0, Ordering::SeqCst)
    }

    /// Lets other requests arrive first.
    async fn travel(&self) {
        self.env.sleep(self.env.random.jittered(self.latency, 0.5)).await;
        tokio::task::yield_now().await;
    }

    fn throttle(&self) -> Result<(), StoreError> {
        let left = |left: usize| left.checked_sub(1);
        match self.busy_first.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
            Ok(_) => Err(Fault::unavailable("429").with_retry_after(Duration::from_secs(1)).not_applied()),
            Err(_) => Ok(()),
        }
    }

    /// Records that a request was accepted. Decides at random whether a second request of the same race will be
    /// accepted too.
    fn accept(&self, key: &str, expect: Precondition<'_>) {
        let now = self.accepted.fetch_add(1, Ordering::SeqCst) + 1;
        let percent = match (*self.flaw.lock().unwrap(), expect) {
            (Flaw::DoublesCreates(percent), Precondition::Absent) => percent,
            (Flaw::DoublesReplaces(percent) | Flaw::DoublesDeletes(percent), Precondition::Version(_)) => {
                percent
            }
            (Flaw::DoublesInOneLane, Precondition::Version(_)) if key.contains("-0-") => 100,
            _ => 0,
        };
        if self.env.random.fraction() < f64::from(percent) / 100.0 {
            self.doubled.lock().unwrap().insert((key.to_owned(), label(expect)), now);
        }
    }

    /// Returns whether a request is the second winner of its race. `began` is the number of accepted requests when it
    /// was sent.
    fn is_doubled(&self, key: &str, expect: Precondition<'_>, began: usize) -> bool {
        let mut doubled = self.doubled.lock().unwrap();
        let race = (key.to_owned(), label(expect));
        let second = doubled.get(&race).is_some_and(|accepted| *accepted > began);
        second && doubled.remove(&race).is_some()
    }

    fn holds(&self, key: &str, expect: Precondition<'_>) -> bool {
        let flaw = *self.flaw.lock().unwrap();
        let cells = self.cells.lock().unwrap();
        match (expect, cells.get(key)) {
            (Precondition::Absent, _) if matches!(flaw, Flaw::IgnoresAbsent | Flaw::IgnoresBoth) => true,
            (Precondition::Version(_), _) if matches!(flaw, Flaw::IgnoresVersion | Flaw::IgnoresBoth) => true,
            (Precondition::Version(_), _) if flaw == Flaw::NeverMatches => false,
            _ if flaw == Flaw::RefusesEverything => false,
            (Precondition::Version(version), cell) if flaw == Flaw::ComparesWithoutQuotes => {
                cell.is_some_and(|cell| cell.version.as_str().trim_matches('"') == version.as_str())
            }
            (Precondition::Version(_), None) if flaw == Flaw::IgnoresVersionOfNothing => true,
            (Precondition::Absent, cell) => cell.is_none(),
            (Precondition::Version(version), cell) => cell.is_some_and(|cell| cell.version == *version),
        }
    }
}

#[async_trait]
impl Register for Flawed {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.travel().await;
        self.throttle()?;
        let cell = self.cells.lock().unwrap().get(key).cloned();
        match *self.flaw.lock().unwrap() {
            Flaw::DeniesReads => Err(denied()),
            Flaw::DeniesListing if cell.is_none() => Err(denied()),
            Flaw::ReadsLate if self.fresh.swap(false, Ordering::SeqCst) => Ok(None),
            _ => Ok(cell),
        }
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let n = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let nth = |every: usize| every > 0 && n.is_multiple_of(every);
        let at_once = self.writing.fetch_add(1, Ordering::SeqCst);
        let began = self.accepted.load(Ordering::SeqCst);
        self.travel().await;
        self.writing.fetch_sub(1, Ordering::SeqCst);
        self.throttle()?;
        let served = match *self.flaw.lock().unwrap() {
            Flaw::RefusesRacers => 1,
            Flaw::ServesFour => 4,
            _ => usize::MAX,
        };
        if at_once >= served {
            return Err(Fault::unavailable("409").not_applied());
        }
        if nth(self.busy_every) {
            return Err(Fault::unavailable("409").not_applied());
        }
        let flaw = *self.flaw.lock().unwrap();
        if flaw == Flaw::AsksForAMinute {
            *self.flaw.lock().unwrap() = Flaw::None;
            return Err(Fault::unavailable("503").with_retry_after(Duration::from_secs(60)).not_applied());
        }
        if flaw == Flaw::DoublesInOneLane && key.contains("-race-") && !key.contains("-0-") {
            return Err(Fault::unavailable("503").with_retry_after(Duration::from_secs(3_600)).not_applied());
        }
        if flaw == Flaw::DeniesWrites {
            return Err(denied());
        }
        if flaw == Flaw::ChecksInTwoSteps {
            if !self.holds(key, expect) {
                return Ok(Write::Conflict);
            }
            tokio::task::yield_now().await;
        } else if self.holds(key, expect) {
            self.accept(key, expect);
        } else if matches!(flaw, Flaw::DoublesDeletes(_)) || !self.is_doubled(key, expect, began) {
            return Ok(Write::Conflict);
        }
        let version = Version::new(match flaw {
            Flaw::SameVersionAlways => "v".to_owned(),
            Flaw::ComparesWithoutQuotes => format!("\"v{n}\""),
            _ => format!("v{n}"),
        });
        let metadata = if flaw == Flaw::DropsMetadata { Metadata::default() } else { body.metadata };
        let cell = VersionedValue { value: body.bytes, version: version.clone(), metadata };
        self.cells.lock().unwrap().insert(key.to_owned(), cell);
        self.fresh.store(true, Ordering::SeqCst);
        if nth(self.loses_every) {
            return Err(Fault::unavailable("reset").maybe_applied());
        }
        Ok(Write::Committed(version))
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        let began = self.accepted.load(Ordering::SeqCst);
        self.travel().await;
        self.throttle()?;
        let flaw = *self.flaw.lock().unwrap();
        let doubled = matches!(flaw, Flaw::DoublesDeletes(_))
            && self.is_doubled(key, Precondition::Version(version), began);
        let mut cells = self.cells.lock().unwrap();
        match (flaw, cells.get(key)) {
            (Flaw::DeniesDeletes, _) => Err(denied()),
            (flaw, _) if doubled || flaw == Flaw::IgnoresVersionOfDeletes => {
                cells.remove(key);
                Ok(Deleted::Deleted)
            }
            (Flaw::KeepsDeleted, Some(cell)) if cell.version == *version => Ok(Deleted::Deleted),
            (_, Some(cell)) if cell.version == *version => {
                cells.remove(key);
                Ok(Deleted::Deleted)
            }
            _ => Ok(Deleted::Conflict),
        }
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        if *self.flaw.lock().unwrap() == Flaw::DeniesListing {
            return stream::iter([Err(denied())]).boxed();
        }
        let keys: Vec<_> =
            self.cells.lock().unwrap().keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        stream::iter(keys).map(Ok).boxed()
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.has_clock.then(|| StoreTime::exactly(self.env.now().wall_us()))
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> RegisterCapabilities {
        let poll_interval = PollInterval { min: Duration::ZERO, max: Duration::ZERO };
        RegisterCapabilities {
            store: "flawed",
            trusted: false,
            generations: false,
            metadata: Some(2_048),
            poll_interval,
        }
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }
}

fn label(expect: Precondition<'_>) -> String {
    match expect {
        Precondition::Absent => String::new(),
        Precondition::Version(version) => version.as_str().to_owned(),
    }
}

fn denied() -> StoreError {
    Fault::new(ErrorKind::Denied, "403").with_help("allow it").not_applied()
}
