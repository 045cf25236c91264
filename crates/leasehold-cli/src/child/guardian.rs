//! `leasehold __guardian`: a process that kills the command when `leasehold run` cannot.
//!
//! `run` may be stopped (SIGSTOP, Ctrl-Z), starved or killed while its command, which has a process group of its own,
//! goes on. The guardian is told the end of the lease after every renewal, over a pipe; it kills the command with all
//! that it started at that end, and at once when the pipe closes without a farewell. It leads a group of its own, so
//! that what stops `run` does not stop it. (PDEATHSIG, see [`super::shim`], covers only the command itself.)
//!
//! When `run` is gone, nothing ties what the command started to it but the environment: that is what they are found by.
//!
//! It ends last: a store that sees processes die grants the lock to others only when it has ended too.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use leasehold::clock::{Clock as _, Deadline, Moment, SystemClock};
use leasehold::lease::Id;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, getpgid, getpid, getppid, setpgid, setsid};

use super::cgroup::Cgroup;
use super::processes::{self, Known};
use super::tree::Tree;
use super::{BURIAL, GUARDIAN, RUN};
use crate::exit::FAILED;

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
    /// Starts it for what has the mark of `run`. It has nothing to kill before [`watch`](Self::watch).
    pub(super) fn start(run: Id, cgroup: Option<&Cgroup>) -> io::Result<Self> {
        let process = Command::new(super::OURSELVES)
            .arg0("leasehold")
            .arg(GUARDIAN)
            .arg(getpid().as_raw_nonzero().to_string())
            .args(cgroup.map(Cgroup::folder))
            .env(RUN, run.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { process, told: None })
    }

    /// None if somebody has ended it already.
    pub(super) fn unless_ended(mut self) -> Option<Self> {
        matches!(self.process.try_wait(), Ok(None)).then_some(self)
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.process.id()).ok()?)
    }

    /// Tells it whom to kill.
    pub(super) fn watch(&mut self, tree: &Tree) {
        let group = if tree.own_group { "group" } else { "process" };
        self.tell(&format!("{group} {}", tree.leader.pid.as_raw_nonzero()));
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
    pub(super) fn dismiss(mut self) -> Dismissed {
        self.tell(DONE);
        // Nobody waits for its end, since the lock is to be released now.
        Dismissed(self.process)
    }

    fn tell(&mut self, line: &str) {
        // A guardian that somebody killed is not missed before it is needed. The pipe holds hundreds of renewals, so a
        // guardian that somebody stopped blocks nobody for hours.
        if let Some(pipe) = &mut self.process.stdin {
            let _ = pipe.write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// A guardian that was sent home, and may not have heard of it: if the lease has ended, it kills what we started and
/// what we start next.
#[derive(Debug)]
pub(crate) struct Dismissed(Child);

impl Dismissed {
    /// Ends it for certain, though it was stopped or starved.
    pub(crate) fn end(mut self) {
        // Both fail only when it has ended already, and others have taken note of that.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Dismissed {
    /// One that was stopped would stay for ever. Its end is not waited for.
    fn drop(&mut self) {
        let _ = self.0.kill();
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
    leave_session(root);
    let mut known_root = Known::now(root);
    // It is our parent, or has ended: what has its number then is a stranger. No process starts at 0.
    known_root.start = known_root.start.filter(|_| getppid() == Some(root)).or(Some(0));
    let mut ear = Ear::default();
    let mut tree = None::<Tree>;
    let mut end: Option<Deadline> = None;
    loop {
        let left = end.map_or(SLICE, |end| end.remaining(SystemClock.now()));
        match ear.listen(left.min(SLICE)) {
            Heard::News(News::Watch { leader, own_group }) => {
                tree = Some(Tree {
                    root: known_root,
                    leader: Known::now(leader),
                    leader_ended: false,
                    own_group,
                    spare: Some(getpid()),
                });
            }
            Heard::News(News::End(moved)) => end = Some(moved),
            Heard::News(News::Done) => return ExitCode::SUCCESS,
            Heard::End => break,
            Heard::Nothing if end.is_some_and(|end| end.passed(SystemClock.now())) => break,
            Heard::Nothing => {}
        }
    }
    if let Some(mut tree) = tree {
        let leader = processes::find(tree.leader.pid).ok().flatten();
        tree.forget_replaced_leader(leader.as_slice());
        // The lock may be granted to others when we end, and before only when the lease does.
        let given_up = Deadline::new(SystemClock.now(), BURIAL);
        let cgroup = arguments.get(1).map(|folder| Cgroup::made(folder.into()));
        tree.kill_for_good(mark().as_deref(), cgroup.as_ref(), || {
            let now = SystemClock.now();
            given_up.passed(now) && end.is_none_or(|end| end.passed(now))
        });
    }
    ExitCode::SUCCESS
}

/// The kernel sends SIGHUP to a stopped process whose parent dies, if that is the last of its group's ties to their session. Who
/// leads a group cannot leave its session, so we join the group of `root` for a moment.
fn leave_session(root: Pid) {
    let left = getpgid(Some(root)).and_then(|group| setpgid(None, Some(group))).and_then(|()| setsid());
    // Only a guardian that is stopped is worse off without.
    let _ = left;
}

/// What stands in the environment of the command, of all that it started, and in ours, and of nobody else.
fn mark() -> Option<Vec<u8>> {
    Some(format!("{RUN}={}", std::env::var(RUN).ok()?).into_bytes())
}

/// What came of listening for a while.
enum Heard {
    News(News),
    Nothing,
    /// There will be no more, or none that can be understood.
    End,
}

/// Reads stdin, a pipe, with a time limit.
#[derive(Default)]
struct Ear {
    /// What was read and not understood yet.
    unread: Vec<u8>,
}

impl Ear {
    /// The next news; waits for it, for at most `limit`. What was said before comes first, also when there is no time.
    fn listen(&mut self, limit: Duration) -> Heard {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let news = std::str::from_utf8(&line[..end]).ok().and_then(understand);
                return news.map_or(Heard::End, Heard::News);
            }
            let stdin = io::stdin();
            // Less than a second.
            let limit = Timespec { tv_sec: 0, tv_nsec: limit.min(SLICE).subsec_nanos().into() };
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&limit)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => return Heard::Nothing,
                Ok(_) => {}
                Err(_) => return Heard::End,
            }
            let mut buffer = [0; 512];
            // The descriptor's own reader: what a buffered one holds would not be polled for.
            match rustix::io::read(&stdin, &mut buffer) {
                Ok(0) => return Heard::End,
                Ok(length) => self.unread.extend_from_slice(&buffer[..length]),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Heard::End,
            }
        }
    }
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
