//! Carries out planned faults for the nemesis.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock, timeout};
use serde_json::json;

use super::environment::Environment;
use super::fleet::Slot;
use super::history::History;
use super::plan::{Fault, Kind};
use super::resource::Resource;

/// How long a fault for a holder waits until a worker holds the lock. After that, it hits any worker. Longer than a
/// dead holder's lease.
const WAIT_FOR_HOLDER: Duration = Duration::from_secs(5);

/// How long the successor keeps holding the lock after the old holder has resumed.
const AFTERMATH: Duration = Duration::from_millis(300);

/// Everything that faults act on.
#[derive(Debug)]
pub struct World {
    /// The servers, and the proxies in front of them.
    pub environment: Environment,
    /// The workers.
    pub slots: Vec<Slot>,
    /// The counter that the lock protects. It knows which worker holds the lock.
    pub resource: Resource,
    /// The wall clocks that can be stepped.
    pub steppers: Vec<Stepper>,
    /// Where faults are recorded.
    pub history: History,
}

/// A worker's wall clock, in a file that faketime reads.
#[derive(Debug)]
pub struct Stepper {
    path: PathBuf,
}

impl Stepper {
    /// Creates a file in `folder` for a clock that shows the right time.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new(folder: &Path, worker: usize) -> io::Result<Self> {
        let stepper = Self { path: folder.join(format!("clock-{worker}")) };
        stepper.set(0)?;
        Ok(stepper)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the clock's offset from true time, in seconds.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, seconds: i64) -> io::Result<()> {
        // Replaces the file by renaming a new one, because faketime may read it at any time and must not see half of
        // it.
        let new = self.path.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}s\n"))?;
        std::fs::rename(new, &self.path)
    }
}

impl World {
    /// Applies the fault, and removes it after its duration.
    ///
    /// # Errors
    /// When a server does not restart.
    pub async fn suffer(&self, fault: &Fault) -> io::Result<()> {
        let from = self.history.now();
        let linger = fault.kind.is_for_a_holder().then(|| self.resource.linger());
        let holder = match fault.kind {
            Kind::StopHolder | Kind::StopAgent | Kind::KillHolder | Kind::CutHolder => self.holder().await,
            _ => None,
        };
        // The history records the kind of fault that actually occurred.
        let kind = if holder.is_some() { fault.kind } else { fault.kind.without_a_holder() };
        let victim = holder.unwrap_or_else(|| match kind {
            Kind::KillWaiter => self.waiter(fault),
            _ => self.anybody(fault),
        });
        let slot = &self.slots[victim];
        let mut target = slot.name();
        match kind {
            Kind::StopHolder | Kind::StopWorker => {
                slot.stop(fault.lasts);
                SystemClock.sleep(fault.lasts).await;
            }
            Kind::StopAgent => {
                slot.stop_agent(fault.lasts);
                SystemClock.sleep(fault.lasts).await;
            }
            Kind::KillHolder | Kind::KillWaiter => slot.kill(),
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
        // Waits while the old holder, which has resumed, and its successor are both at work.
        if linger.is_some() {
            SystemClock.sleep(AFTERMATH).await;
        }
        drop(linger);
        let lasts_ms = u64::try_from(fault.lasts.as_millis()).unwrap_or(u64::MAX);
        let event = json!({ "kind": kind.name(), "target": target, "lasts_ms": lasts_ms });
        self.history.record("fault", from, event);
        Ok(())
    }

    /// Returns the worker that holds the lock and has just been asked to keep it, if any.
    async fn holder(&self) -> Option<usize> {
        let mut seen = self.resource.seen();
        let reads = seen.borrow().reads;
        let read = async {
            seen.wait_for(|seen| seen.reads > reads).await.ok().and_then(|seen| seen.holder.clone())
        };
        let holder = timeout(&SystemClock, WAIT_FOR_HOLDER, read).await.flatten();
        let slot = |who: &String| self.slots.iter().position(|slot| slot.is_slot_of(who));
        holder.as_ref().and_then(slot)
    }

    fn anybody(&self, fault: &Fault) -> usize {
        (fault.pick % self.slots.len() as u64) as usize
    }

    /// Returns any worker except the one that used the lock last.
    fn waiter(&self, fault: &Fault) -> usize {
        let user = self.resource.seen().borrow().holder.clone();
        let anybody = self.anybody(fault);
        match user {
            Some(user) if self.slots[anybody].is_slot_of(&user) => (anybody + 1) % self.slots.len(),
            _ => anybody,
        }
    }

    /// Steps a wall clock. It stays wrong until the next step.
    fn step(&self, fault: &Fault) -> io::Result<()> {
        const HOUR: i64 = 3_600;
        let to = [-HOUR, 0, HOUR][(fault.pick / 7 % 3) as usize];
        match self.steppers.get((fault.pick % self.steppers.len().max(1) as u64) as usize) {
            Some(stepper) => stepper.set(to),
            None => Ok(()),
        }
    }
}
