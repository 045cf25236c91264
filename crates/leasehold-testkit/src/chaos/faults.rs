//! Does what is planned, to whoever it meets.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock, timeout};
use serde_json::json;

use super::environment::Environment;
use super::fleet::Berth;
use super::history::History;
use super::plan::{Fault, Kind};
use super::resource::Resource;

/// How long a fault that is meant for a holder waits for one: longer than a dead one is in the way. Then it meets anybody.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a successor goes on holding the lock when the old holder is back.
const AFTERMATH: Duration = Duration::from_millis(300);

/// What can be harmed.
#[derive(Debug)]
pub struct World {
    /// The servers, and the ways to them.
    pub environment: Environment,
    /// The workers.
    pub berths: Vec<Berth>,
    /// What the lock protects, and who knows who holds it.
    pub resource: Resource,
    /// The wall clocks that can be stepped.
    pub steppers: Vec<Stepper>,
    /// Where faults are written down.
    pub history: History,
}

/// The wall clock of a worker, in a file that faketime reads.
#[derive(Debug)]
pub struct Stepper {
    path: PathBuf,
}

impl Stepper {
    /// A clock that is right, in a file in `folder`.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn new(folder: &Path, worker: usize) -> io::Result<Self> {
        let stepper = Self { path: folder.join(format!("clock-{worker}")) };
        stepper.set(0)?;
        Ok(stepper)
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the clock so many seconds off.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, seconds: i64) -> io::Result<()> {
        // Never half a file: it is read whenever anybody asks for the time.
        let new = self.path.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}s\n"))?;
        std::fs::rename(new, &self.path)
    }
}

impl World {
    /// Does it, and undoes it.
    ///
    /// # Errors
    /// When a server does not come back.
    pub async fn suffer(&self, fault: &Fault) -> io::Result<()> {
        let from = self.history.now();
        let linger = fault.kind.is_for_a_holder().then(|| self.resource.linger());
        let holder = match fault.kind {
            Kind::StopHolder | Kind::KillHolder | Kind::CutHolder => self.holder().await,
            _ => None,
        };
        // Counted as what it was.
        let kind = if holder.is_some() { fault.kind } else { fault.kind.without_a_holder() };
        let victim = holder.unwrap_or_else(|| self.anybody(fault));
        let berth = &self.berths[victim];
        let mut target = berth.name();
        match kind {
            Kind::StopHolder | Kind::StopWorker => {
                berth.stop(fault.lasts);
                SystemClock.sleep(fault.lasts).await;
            }
            Kind::KillHolder | Kind::KillWorker => berth.kill(),
            Kind::StopServer | Kind::StopLeader => {
                target = "server";
                self.environment.stop(fault.lasts).await?;
            }
            Kind::KillServer | Kind::KillLeader => {
                target = "server";
                self.environment.kill(fault.lasts).await?;
            }
            Kind::StepWall => self.step(fault)?,
            kind => self.environment.harm(victim, kind, fault.lasts).await,
        }
        // Once more, with the one that comes back and the one that has succeeded it both at work.
        if linger.is_some() {
            SystemClock.sleep(AFTERMATH).await;
        }
        drop(linger);
        let lasts_ms = u64::try_from(fault.lasts.as_millis()).unwrap_or(u64::MAX);
        let event = json!({ "kind": kind.name(), "target": target, "lasts_ms": lasts_ms });
        self.history.tell("fault", from, event);
        Ok(())
    }

    /// The number of the worker that holds the lock, and was told now that it is to stay, if anybody is.
    async fn holder(&self) -> Option<usize> {
        let mut seen = self.resource.seen();
        let reads = seen.borrow().reads;
        let read = async {
            seen.wait_for(|seen| seen.reads > reads).await.ok().and_then(|seen| seen.holder.clone())
        };
        let holder = timeout(&SystemClock, STORE_TIMEOUT, read).await.flatten();
        let home = |who: &String| self.berths.iter().position(|berth| berth.is_home_of(who));
        holder.as_ref().and_then(home)
    }

    fn anybody(&self, fault: &Fault) -> usize {
        (fault.pick % self.berths.len() as u64) as usize
    }

    /// Not undone: a wall clock that was set wrong is wrong until it is set again.
    fn step(&self, fault: &Fault) -> io::Result<()> {
        const HOUR: i64 = 3_600;
        let to = [-HOUR, 0, HOUR][(fault.pick / 7 % 3) as usize];
        match self.steppers.get((fault.pick % self.steppers.len().max(1) as u64) as usize) {
            Some(stepper) => stepper.set(to),
            None => Ok(()),
        }
    }
}
