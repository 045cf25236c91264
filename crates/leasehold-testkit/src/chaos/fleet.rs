//! Starts, stops, kills and replaces the worker processes.

use std::ffi::OsString;
use std::fs::DirEntry;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock, timeout};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::worker::{CRASHED, Orders};
use crate::process::signal;

/// How long a worker may take to exit when it is asked to.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The pause before a dead worker is replaced.
const RESTART_PAUSE: Duration = Duration::from_millis(300);

/// An action on a worker.
#[derive(Clone, Copy, Debug)]
enum Order {
    Stop(Duration),
    StopAgent(Duration),
    Kill,
}

/// How to start a worker.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The program.
    pub program: PathBuf,
    /// Its arguments before the orders.
    pub arguments: Vec<OsString>,
    /// The worker's orders. `who` holds only its number; the run count is appended.
    pub orders: Orders,
    /// Additional environment variables.
    pub variables: Vec<(OsString, OsString)>,
}

/// Runs one worker process at a time and replaces it when it dies. Dropping this ends the worker process.
#[derive(Debug)]
pub struct Slot {
    number: String,
    orders: mpsc::UnboundedSender<Order>,
    finish: watch::Sender<bool>,
    task: JoinHandle<io::Result<Vec<String>>>,
}

impl Slot {
    /// Starts the first worker.
    pub fn start(recipe: Recipe) -> Self {
        let (orders, received) = mpsc::unbounded_channel();
        let (finish, finishing) = watch::channel(false);
        let number = recipe.orders.who.clone();
        Self { number, orders, finish, task: tokio::spawn(keep_running(recipe, received, finishing)) }
    }

    /// Returns whether the worker that calls itself `who` runs here.
    pub fn is_slot_of(&self, who: &str) -> bool {
        who.split('.').next() == Some(&self.number)
    }

    /// Returns the name that all workers here share, without the run count.
    pub fn name(&self) -> &str {
        &self.number
    }

    /// Stops the running process for `duration`.
    pub fn stop(&self, duration: Duration) {
        // If the receiver is gone, the run is over.
        let _ = self.orders.send(Order::Stop(duration));
    }

    /// Stops the agents of the running process for `duration`, but not the process itself.
    pub fn stop_agent(&self, duration: Duration) {
        let _ = self.orders.send(Order::StopAgent(duration));
    }

    /// Kills the running process with `kill -9`. Another one replaces it.
    pub fn kill(&self) {
        let _ = self.orders.send(Order::Kill);
    }

    /// Ends the last worker, and returns the deaths that no fault caused.
    ///
    /// # Errors
    /// When a worker could not be started or waited for.
    pub async fn finish(self) -> io::Result<Vec<String>> {
        self.finish.send_replace(true);
        self.task.await.map_err(io::Error::other)?
    }
}

async fn keep_running(
    mut recipe: Recipe,
    mut orders: mpsc::UnboundedReceiver<Order>,
    mut finishing: watch::Receiver<bool>,
) -> io::Result<Vec<String>> {
    let number = recipe.orders.who.clone();
    let mut odd_deaths = Vec::new();
    for incarnation in 1u64.. {
        recipe.orders.who = format!("{number}.{incarnation}");
        recipe.orders.seed = recipe.orders.seed.wrapping_add(incarnation);
        let mut child = start(&recipe)?;
        // Keeps the input open until the end, because `Child::wait` would close it.
        let input = child.stdin.take();
        let mut killed = false;
        let (death, over) = tokio::select! {
            death = carry_out(&mut child, &mut orders, &mut killed) => (death?, false),
            // This branch is also taken when the sender is gone.
            () = finished(&mut finishing) => (None, true),
        };
        let death = if over { stop_worker(child, input, killed).await? } else { death };
        odd_deaths.extend(death.map(|how| format!("{}: {how}", recipe.orders.who)));
        if over {
            break;
        }
        SystemClock.sleep(RESTART_PAUSE).await;
    }
    Ok(odd_deaths)
}

async fn finished(finishing: &mut watch::Receiver<bool>) {
    let _ = finishing.wait_for(|finishing| *finishing).await;
}

fn start(recipe: &Recipe) -> io::Result<Child> {
    Command::new(&recipe.program)
        .args(&recipe.arguments)
        .args(recipe.orders.arguments())
        .envs(recipe.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

/// Carries out orders until the worker dies. Returns how it died, unless it was killed by an order or crashed on
/// purpose. `killed` is set even if this future is dropped while the worker dies.
async fn carry_out(
    child: &mut Child,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    killed: &mut bool,
) -> io::Result<Option<String>> {
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status?;
                return Ok((!exited_on_purpose(status)).then(|| status.to_string()));
            }
            Some(order) = orders.recv() => match order {
                Order::Kill => {
                    *killed = true;
                    child.kill().await?;
                    return Ok(None);
                }
                Order::Stop(duration) => {
                    signal(child, Signal::STOP)?;
                    // A machine that freezes would stop the worker and its agents.
                    let _stopped = StoppedAgents::of(child);
                    SystemClock.sleep(duration).await;
                    signal(child, Signal::CONT)?;
                }
                Order::StopAgent(duration) => {
                    let _stopped = StoppedAgents::of(child);
                    SystemClock.sleep(duration).await;
                }
            }
        }
    }
}

/// The agents of a worker, which are stopped until this is dropped, even if the worker has died. A worker in Rust has
/// no agent.
struct StoppedAgents(Vec<Pid>);

impl StoppedAgents {
    fn of(worker: &Child) -> Self {
        let tasks = worker.id().and_then(|id| std::fs::read_dir(format!("/proc/{id}/task")).ok());
        let children = |task: DirEntry| std::fs::read_to_string(task.path().join("children")).ok();
        let agents = tasks.into_iter().flatten().flatten().filter_map(children);
        let pid = |id: &str| Pid::from_raw(id.parse().ok()?);
        let agents =
            Self(agents.flat_map(|ids| ids.split_whitespace().filter_map(pid).collect::<Vec<_>>()).collect());
        agents.signal(Signal::STOP);
        agents
    }

    fn signal(&self, signal: Signal) {
        for agent in &self.0 {
            // The agent may have ended in the meantime.
            let _ = kill_process(*agent, signal);
        }
    }
}

impl Drop for StoppedAgents {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

/// Asks a worker to exit. Returns how it exited if it did not exit as expected.
async fn stop_worker(
    mut child: Child,
    input: Option<ChildStdin>,
    killed: bool,
) -> io::Result<Option<String>> {
    drop(input);
    // The worker may be stopped, or already dead.
    let _ = signal(&child, Signal::CONT);
    let Some(status) = timeout(&SystemClock, STOP_LIMIT, child.wait()).await else {
        child.kill().await?;
        return Ok(Some(format!("did not end within {STOP_LIMIT:?} of the request")));
    };
    let status = status?;
    let fine = killed || status.success() || exited_on_purpose(status);
    Ok((!fine).then(|| format!("{status}, after the request to stop")))
}

fn exited_on_purpose(status: ExitStatus) -> bool {
    status.code() == Some(i32::from(CRASHED))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn stopped(script: &str, killed: bool) -> Option<String> {
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        stop_worker(child, input, killed).await.unwrap()
    }

    #[tokio::test]
    async fn a_worker_that_does_not_exit_cleanly_is_reported() {
        assert_eq!(stopped("cat", false).await, None);
        assert_eq!(stopped("exit 77", false).await, None);
        assert!(stopped("cat; exit 101", false).await.unwrap().contains("101"));
        assert_eq!(stopped("kill -9 $$", true).await, None);
        assert!(stopped("kill -9 $$", false).await.is_some());
    }
}
