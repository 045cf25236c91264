//! `leasehold __guardian`: a process that kills the command when `leasehold run` cannot.
//!
//! `run` may be stopped (SIGSTOP, Ctrl-Z), starved or killed while its command, which has a process group of its own,
//! goes on. The guardian is told the end of the lease after every renewal, over a pipe; it kills the command with all
//! that it started at that end, and at once when the pipe closes without a farewell. It leads a group of its own, so
//! that what stops `run` does not stop it. (PDEATHSIG, see [`super::shim`], covers only the command itself.)
//!
//! When `run` is gone, nothing ties what the command started to it but the environment: that is what they are found by.

use std::ffi::OsString;
use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use leasehold::clock::{Clock as _, Deadline, Moment, SystemClock};
use rustix::process::{Pid, getpid};

use super::tree::{self, Tree};
use super::{Environment, RUN};
use crate::exit::FAILED;

/// The hidden verb.
pub(super) const VERB: &str = "__guardian";
/// The farewell.
const DONE: &str = "done";
/// Renewals are told to the guardian; smaller movements of the deadline are clock reading, not news.
const NEWS: Duration = Duration::from_millis(20);
/// No timer is trusted for longer: timers stop while the machine is suspended.
const SLICE: Duration = Duration::from_millis(500);

/// The guardian, as `run` sees it.
#[derive(Debug)]
pub(super) struct Guardian {
    process: Child,
    told: Option<Deadline>,
}

impl Guardian {
    /// Starts it, with the `environment` of the command, by which it finds what the command started. It has nothing to
    /// kill before [`watch`](Self::watch).
    pub(super) fn start(environment: &Environment<'_>) -> std::io::Result<Self> {
        let process = Command::new(super::OURSELVES)
            .arg0("leasehold")
            .arg(VERB)
            .arg(getpid().as_raw_nonzero().to_string())
            .envs(environment.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { process, told: None })
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.process.id()).ok()?)
    }

    /// Tells it whom to kill.
    pub(super) fn watch(&mut self, tree: &Tree) {
        let group = if tree.own_group { "group" } else { "process" };
        self.tell(&format!("{group} {}", tree.leader.as_raw_nonzero()));
    }

    /// Tells it that the lease ends when `remaining` has passed from `now` on.
    pub(super) fn set_end(&mut self, now: Moment, remaining: Duration) {
        let known = self.told.map_or(Duration::ZERO, |end| end.remaining(now));
        if self.told.is_some() && remaining.abs_diff(known) < NEWS {
            return;
        }
        self.told = Some(Deadline::new(now, remaining));
        let boot_ns = now.since_boot().as_nanos();
        self.tell(&format!("end {boot_ns} {} {}", now.wall_us(), remaining.as_micros()));
    }

    /// Sends it home: the command has ended.
    pub(super) fn dismiss(mut self) {
        self.tell(DONE);
        // Dropping the pipe ends it; nobody waits for that, since the lock is to be released now.
    }

    fn tell(&mut self, line: &str) {
        // A guardian that somebody killed is not missed before it is needed. The pipe holds hundreds of renewals, so a
        // guardian that somebody stopped blocks nobody for hours.
        if let Some(pipe) = &mut self.process.stdin {
            let _ = pipe.write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// What the guardian was told.
enum News {
    Watch { leader: Pid, own_group: bool },
    End(Deadline),
    Done,
}

/// The guardian itself.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let root = arguments.first().and_then(|root| root.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let Some(root) = root else { return ExitCode::from(FAILED) };
    let news = listen();
    let mut tree = None;
    let mut end: Option<Deadline> = None;
    loop {
        let left = end.map_or(SLICE, |end| end.remaining(SystemClock.now()));
        match news.recv_timeout(left.min(SLICE)) {
            Ok(News::Watch { leader, own_group }) => {
                tree = Some(Tree { root, leader, leader_ended: false, own_group, spare: Some(getpid()) });
            }
            Ok(News::End(moved)) => end = Some(moved),
            Ok(News::Done) => return ExitCode::SUCCESS,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if end.is_some_and(|end| end.passed(SystemClock.now())) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    if let Some(tree) = tree {
        tree.kill();
        if let Some(mark) = mark() {
            tree::kill_all_with(&mark);
        }
    }
    ExitCode::SUCCESS
}

/// What stands in the environment of the command, of all that it started, and in ours, and of nobody else.
fn mark() -> Option<Vec<u8>> {
    Some(format!("{RUN}={}", std::env::var(RUN).ok()?).into_bytes())
}

/// Reads stdin in a thread of its own, because a pipe is read without a time limit.
fn listen() -> mpsc::Receiver<News> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Some(news) = line.ok().as_deref().and_then(understand) else { return };
            if sender.send(news).is_err() {
                return;
            }
        }
    });
    receiver
}

fn understand(line: &str) -> Option<News> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        [DONE] => Some(News::Done),
        ["group", pid] => Some(News::Watch { leader: Pid::from_raw(pid.parse().ok()?)?, own_group: true }),
        ["process", pid] => Some(News::Watch { leader: Pid::from_raw(pid.parse().ok()?)?, own_group: false }),
        ["end", boot_ns, wall_us, remaining_us] => {
            let wall_ns = wall_us.parse::<i64>().ok()?.checked_mul(1_000)?;
            let from = Moment::from_raw(boot_ns.parse().ok()?, wall_ns);
            Some(News::End(Deadline::new(from, Duration::from_micros(remaining_us.parse().ok()?))))
        }
        _ => None,
    }
}
