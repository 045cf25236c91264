//! The workers: processes that are started, stopped, killed, and started again.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock, timeout};
use rustix::process::Signal;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::worker::{CRASHED, Orders};
use crate::process::signal;

/// How long a worker may take to end when it is told to.
const FAREWELL: Duration = Duration::from_secs(10);

/// Before a dead worker is succeeded by the next with its number.
const MOURNING: Duration = Duration::from_millis(300);

/// What is done to a worker.
#[derive(Clone, Copy, Debug)]
enum Order {
    Stop(Duration),
    Kill,
}

/// How a worker is started.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// This program.
    pub program: PathBuf,
    /// Its orders; of `who`, the number.
    pub orders: Orders,
    /// Further variables of its environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// A worker's place, in which one process lives after the other. All ends when it is dropped.
#[derive(Debug)]
pub struct Berth {
    number: String,
    orders: mpsc::UnboundedSender<Order>,
    finish: watch::Sender<bool>,
    task: JoinHandle<io::Result<Vec<String>>>,
}

impl Berth {
    /// Starts the first worker.
    pub fn occupy(recipe: Recipe) -> Self {
        let (orders, received) = mpsc::unbounded_channel();
        let (finish, finishing) = watch::channel(false);
        let number = recipe.orders.who.clone();
        Self { number, orders, finish, task: tokio::spawn(tend(recipe, received, finishing)) }
    }

    /// Whether the worker that calls itself `who` lives here.
    pub fn is_home_of(&self, who: &str) -> bool {
        who.split('.').next() == Some(&self.number)
    }

    /// Its name: that of its workers, without how many there have been.
    pub fn name(&self) -> &str {
        &self.number
    }

    /// Stops the process that lives here, so long.
    pub fn stop(&self, duration: Duration) {
        // When nobody listens any more, the run is over.
        let _ = self.orders.send(Order::Stop(duration));
    }

    /// `kill -9` of the process that lives here. Another one moves in.
    pub fn kill(&self) {
        let _ = self.orders.send(Order::Kill);
    }

    /// Lets the last worker end, and says which have died of something that nobody did to them.
    ///
    /// # Errors
    /// When a worker could not be started or heard.
    pub async fn leave(self) -> io::Result<Vec<String>> {
        self.finish.send_replace(true);
        self.task.await.map_err(io::Error::other)?
    }
}

async fn tend(
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
        // Held open until the end: to wait for a process would close it.
        let input = child.stdin.take();
        tokio::select! {
            death = attend(&mut child, &mut orders) => odd_deaths.extend(death?.map(|how| format!("{}: {how}", recipe.orders.who))),
            // Also when nobody can say so any more.
            () = finished(&mut finishing) => {
                say_goodbye(child, input).await?;
                return Ok(odd_deaths);
            }
        }
        SystemClock.sleep(MOURNING).await;
    }
    Ok(odd_deaths)
}

async fn finished(finishing: &mut watch::Receiver<bool>) {
    let _ = finishing.wait_for(|finishing| *finishing).await;
}

fn start(recipe: &Recipe) -> io::Result<Child> {
    Command::new(&recipe.program)
        .args(recipe.orders.arguments())
        .envs(recipe.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

/// Does to a worker what is ordered until it is dead; says how, if that was not ordered.
async fn attend(
    child: &mut Child,
    orders: &mut mpsc::UnboundedReceiver<Order>,
) -> io::Result<Option<String>> {
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status?;
                let own_decision = status.code() == Some(i32::from(CRASHED));
                return Ok((!own_decision).then(|| status.to_string()));
            }
            Some(order) = orders.recv() => match order {
                Order::Kill => {
                    child.kill().await?;
                    return Ok(None);
                }
                Order::Stop(duration) => {
                    signal(child, Signal::STOP)?;
                    SystemClock.sleep(duration).await;
                    signal(child, Signal::CONT)?;
                }
            }
        }
    }
}

async fn say_goodbye(mut child: Child, input: Option<ChildStdin>) -> io::Result<()> {
    drop(input);
    // It may be stopped, or gone already.
    let _ = signal(&child, Signal::CONT);
    if timeout(&SystemClock, FAREWELL, child.wait()).await.is_none() {
        child.kill().await?;
    }
    Ok(())
}
