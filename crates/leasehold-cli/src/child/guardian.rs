//! `leasehold __guardian`: a process that kills the command when `leasehold run` cannot.
//!
//! `run` may be stopped (SIGSTOP, Ctrl-Z), starved or killed while its command, which has its own process group,
//! continues. After every renewal, `run` sends the end of the lease to the guardian over a pipe. The guardian kills the
//! command and its descendants at that time, or as soon as the pipe closes without a final message. It leads its own
//! process group, so that a signal that stops the group of `run` does not stop it. (PDEATHSIG, see [`super::shim`],
//! covers only the command itself.)
//!
//! When `run` has ended, only an environment variable identifies the descendants of the command.
//!
//! The guardian ends last. A store that watches processes does not grant the lock to others before the guardian has
//! ended.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use leasehold::clock::{Clock as _, Deadline, Moment, SystemClock};
use leasehold::lease::Id;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, getpid, getppid, setpgid, setsid};

use super::cgroup::Cgroup;
use super::processes::{self, ProcessIdentity};
use super::reaper::Awaited;
use super::tree::Tree;
use super::{GUARDIAN, KILL_TIMEOUT, RUN};
use crate::exit::FAILED;

/// The final message.
const DONE: &str = "done";
/// Smaller changes of the deadline come from inaccurate clock readings, not from renewals, and are not sent.
const MIN_CHANGE: Duration = Duration::from_millis(20);
/// Maximum sleep, because timers stop while the machine is suspended.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The guardian, as seen by `run`.
#[derive(Debug)]
pub(super) struct Guardian {
    process: Child,
    awaited: Awaited,
    /// The end of the lease that was sent last.
    sent_end: Option<Deadline>,
}

impl Guardian {
    /// Starts the guardian for processes with the mark of `run`. It kills nothing before [`watch`](Self::watch).
    pub(super) fn start(run: Id, cgroup: Option<&Cgroup>) -> io::Result<Self> {
        let process = Command::new(super::own_executable()?)
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
        Self::of(process)
    }

    fn of(process: Child) -> io::Result<Self> {
        if let Some(pipe) = &process.stdin {
            // A stopped guardian does not read. When its pipe is full, it must not block this process.
            fcntl_setfl(pipe, OFlags::NONBLOCK)?;
        }
        Ok(Self { awaited: Awaited::new(process.id()), process, sent_end: None })
    }

    /// Returns `None` if the guardian has already ended.
    pub(super) fn unless_ended(mut self) -> Option<Self> {
        matches!(self.process.try_wait(), Ok(None)).then_some(self)
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.process.id()).ok()?)
    }

    /// Sends the guardian the processes to kill.
    pub(super) fn watch(&mut self, tree: &Tree) {
        let group = if tree.own_group { "group" } else { "process" };
        self.send(&format!("{group} {}", tree.leader.pid.as_raw_nonzero()));
    }

    /// Sends the guardian the end of the lease, `remaining` after `now`. If its pipe is full, the next call tries
    /// again. Until then, the guardian uses the previous end, which is earlier unless the lock was lost.
    pub(super) fn set_end(&mut self, now: Moment, remaining: Duration) {
        let known = self.sent_end.map_or(Duration::ZERO, |end| end.remaining(now));
        if self.sent_end.is_some() && remaining.abs_diff(known) < MIN_CHANGE {
            return;
        }
        let boot_ns = now.since_boot().as_nanos();
        if self.send(&format!("end {boot_ns} {} {}", now.wall_us(), remaining.as_micros())) {
            self.sent_end = Some(Deadline::new(now, remaining));
        }
    }

    /// Returns whether the guardian should have killed the command by `now`.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.sent_end.is_some_and(|end| end.passed(now))
    }

    /// Asks the guardian to exit, because the command has ended.
    pub(super) fn dismiss(mut self) -> Dismissed {
        self.send(DONE);
        // Do not wait for its exit, so that the lock can be released now.
        Dismissed { process: self.process, _awaited: self.awaited }
    }

    /// Sends `line`. Returns false if the pipe is full because the guardian is stopped or starved. In that case no part
    /// of the message was sent, because it is shorter than `PIPE_BUF`.
    fn send(&mut self, line: &str) -> bool {
        let Some(pipe) = &mut self.process.stdin else { return true };
        // Any other error means that the guardian was killed. That does not matter until a guardian is needed.
        let sent = pipe.write_all(format!("{line}\n").as_bytes());
        !sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// A guardian that was asked to exit but may not have read the request. If the lease has ended, it kills all processes
/// that this process has started or starts next.
#[derive(Debug)]
pub(crate) struct Dismissed {
    process: Child,
    _awaited: Awaited,
}

impl Dismissed {
    /// Ends the guardian even if it is stopped or starved.
    pub(crate) fn end(mut self) {
        // Both fail only if the guardian has ended and was already reaped.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Dismissed {
    /// Kills the guardian, because a stopped guardian would stay forever. Does not wait for its exit.
    fn drop(&mut self) {
        let _ = self.process.kill();
    }
}

/// A message to the guardian.
enum Message {
    Watch { leader: Pid, own_group: bool },
    End(Deadline),
    Done,
}

/// The main function of the guardian.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let root = arguments.first().and_then(|root| root.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let Some(root) = root else { return ExitCode::from(FAILED) };
    leave_session(root);
    let mut known_root = ProcessIdentity::now(root);
    // If `root` is no longer our parent, it has ended and its process id may belong to another process. No process has
    // start time 0.
    known_root.start = known_root.start.filter(|_| getppid() == Some(root)).or(Some(0));
    let mut receiver = Receiver::default();
    let mut tree = None::<Tree>;
    let mut end: Option<Deadline> = None;
    loop {
        let left = end.map_or(MAX_WAIT, |end| end.remaining(SystemClock.now()));
        match receiver.receive(left.min(MAX_WAIT)) {
            Received::Message(Message::Watch { leader, own_group }) => {
                tree = Some(Tree {
                    root: known_root,
                    leader: ProcessIdentity::now(leader),
                    leader_ended: false,
                    own_group,
                    guardian: Some(getpid()),
                });
            }
            Received::Message(Message::End(moved)) => end = Some(moved),
            Received::Message(Message::Done) => return ExitCode::SUCCESS,
            Received::Closed => break,
            Received::Nothing if end.is_some_and(|end| end.passed(SystemClock.now())) => break,
            Received::Nothing => {}
        }
    }
    if let Some(mut tree) = tree {
        let leader = processes::find(tree.leader.pid).ok().flatten();
        tree.forget_replaced_leader(leader.as_slice());
        // Do not give up before the lease ends: when this process exits, the lock may be granted to others.
        let given_up = Deadline::new(SystemClock.now(), KILL_TIMEOUT);
        let cgroup = arguments.get(1).map(|folder| Cgroup::made(folder.into()));
        tree.kill_for_good(mark().as_deref(), cgroup.as_ref(), || {
            let now = SystemClock.now();
            given_up.passed(now) && end.is_none_or(|end| end.passed(now))
        });
    }
    ExitCode::SUCCESS
}

/// Leaves the session. Otherwise the kernel could send SIGHUP to a stopped guardian when its parent dies, if the
/// parent is the last link between the guardian's process group and the session. The leader of a process group cannot
/// leave its session, so this process first joins the group of `root`.
fn leave_session(root: Pid) {
    let Some(group) = Pid::from_raw(processes::group_of(root)) else { return };
    // A failure affects only a stopped guardian.
    let _ = setpgid(None, Some(group)).and_then(|()| setsid());
}

/// Returns the mark in the environment of this process, of the command, and of all its descendants. No other process
/// has it.
fn mark() -> Option<Vec<u8>> {
    Some(format!("{RUN}={}", std::env::var(RUN).ok()?).into_bytes())
}

/// The result of waiting for a message.
enum Received {
    Message(Message),
    Nothing,
    /// There will be no more messages, or an invalid one arrived.
    Closed,
}

/// Reads messages from stdin, a pipe, with a time limit.
#[derive(Default)]
struct Receiver {
    /// Bytes that were read but not parsed.
    unread: Vec<u8>,
}

impl Receiver {
    /// Waits up to `limit` for the next message. Returns messages that have already arrived even if `limit` is zero.
    fn receive(&mut self, limit: Duration) -> Received {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let message = std::str::from_utf8(&line[..end]).ok().and_then(parse);
                return message.map_or(Received::Closed, Received::Message);
            }
            let stdin = io::stdin();
            // `MAX_WAIT` is less than a second, so the seconds are zero.
            let limit = Timespec { tv_sec: 0, tv_nsec: limit.min(MAX_WAIT).subsec_nanos().into() };
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&limit)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => return Received::Nothing,
                Ok(_) => {}
                Err(_) => return Received::Closed,
            }
            let mut buffer = [0; 512];
            // Read without a buffer, because poll(2) does not see buffered bytes.
            match rustix::io::read(&stdin, &mut buffer) {
                Ok(0) => return Received::Closed,
                Ok(length) => self.unread.extend_from_slice(&buffer[..length]),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Received::Closed,
            }
        }
    }
}

fn parse(line: &str) -> Option<Message> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        [DONE] => Some(Message::Done),
        ["group", pid] => Some(Message::Watch { leader: Pid::from_raw(pid.parse().ok()?)?, own_group: true }),
        ["process", pid] => {
            Some(Message::Watch { leader: Pid::from_raw(pid.parse().ok()?)?, own_group: false })
        }
        ["end", boot_ns, wall_us, remaining_us] => {
            let wall_ns = wall_us.parse::<i64>().ok()?.checked_mul(1_000)?;
            let from = Moment::from_raw(boot_ns.parse().ok()?, wall_ns);
            Some(Message::End(Deadline::new(from, Duration::from_micros(remaining_us.parse().ok()?))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc;

    use super::*;

    /// Simulates a stopped guardian: nothing reads its pipe.
    #[test]
    fn a_full_pipe_does_not_block_and_the_end_is_sent_again() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut process = Command::new("true").spawn().unwrap();
        process.stdin = Some(OwnedFd::from(writer).into());
        let mut guardian = Guardian::of(process).unwrap();
        let now = SystemClock.now();
        let (full, is_full) = mpsc::channel();
        std::thread::spawn(move || {
            let mut ends = (60..).map(Duration::from_secs);
            let refused = ends.find(|end| {
                guardian.set_end(now, *end);
                guardian.sent_end != Some(Deadline::new(now, *end))
            });
            full.send((guardian, refused.unwrap()))
        });
        let (mut guardian, refused) = is_full.recv_timeout(Duration::from_secs(60)).expect("it blocks");

        let mut earlier = vec![0; 1 << 20];
        let length = reader.read(&mut earlier).unwrap();
        assert!(earlier[..length].ends_with(b"\n"), "a part of a message was sent");
        guardian.set_end(now, refused);
        guardian.dismiss().end();
        let mut later = String::new();
        reader.read_to_string(&mut later).unwrap();
        let (boot_ns, wall_us) = (now.since_boot().as_nanos(), now.wall_us());
        assert_eq!(later, format!("end {boot_ns} {wall_us} {}\ndone\n", refused.as_micros()));
    }
}
