//! Reaps orphans: processes whose parent has ended. As the subreaper of its command, and as process 1 of a container,
//! leasehold becomes their parent. Each of them remains as a zombie until it is reaped, and counts towards the limit of
//! processes.
//!
//! The children that leasehold itself has started are awaited elsewhere. [`Awaited`] marks those that may be zombies for
//! a while. The others are awaited all the time, by the clients of stores (`credential_process`), so the reaper takes
//! only what is a zombie in two looks.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use rustix::process::{WaitOptions, waitpid};
use tokio::signal::unix::Signal;

use super::processes::{self, Process};

/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(400);

static AWAITED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn awaited() -> MutexGuard<'static, BTreeSet<u32>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a child from being reaped by [`reap_orphans`], while this value lives.
#[derive(Debug)]
pub(crate) struct Awaited(u32);

impl Awaited {
    pub(crate) fn new(pid: u32) -> Self {
        awaited().insert(pid);
        Self(pid)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        awaited().remove(&self.0);
    }
}

/// Reaps orphans until the runtime ends. `ended` receives SIGCHLD.
pub(crate) async fn reap_orphans(mut ended: Signal) {
    while ended.recv().await.is_some() {
        let mut seen: Vec<Process> = Vec::new();
        loop {
            let zombies = zombies();
            for zombie in zombies.iter().filter(|zombie| seen.iter().any(|known| known.is(zombie))) {
                let _ = waitpid(Some(zombie.pid), WaitOptions::NOHANG);
            }
            seen = zombies;
            if seen.is_empty() {
                break;
            }
            SystemClock.sleep(PAUSE).await;
        }
    }
}

/// Returns the children that have ended and that no other code awaits.
fn zombies() -> Vec<Process> {
    // The next signal repeats a look that has failed.
    let mut zombies = processes::children().unwrap_or_default();
    let awaited = awaited();
    zombies.retain(|child| {
        let pid = u32::try_from(child.pid.as_raw_nonzero().get());
        child.ended && pid.is_ok_and(|pid| !awaited.contains(&pid))
    });
    zombies
}
