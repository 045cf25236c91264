//! `leasehold __child PID CMD...`: the command's process before it is the command's.
//!
//! A command must not outlive us, since nobody would renew its lock nor stop it. Linux kills it with us if the process
//! asks for that itself, after the fork; code that runs there needs `unsafe`, and this needs none: we start ourselves,
//! ask, and turn into the command.
//!
//! That costs about a millisecond, so the process is started before the lock is had. It waits at a socket that it has in
//! place of stdin; by one message it is given the command's own stdin, and what the environment becomes.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use super::{Environment, OURSELVES, code_of, is_interactive};
use crate::exit::FAILED;

/// The hidden verb.
pub(super) const VERB: &str = "__child";

/// In place of the process that it dies with.
const OUTLIVES: &str = "-";

/// What the environment becomes fits: Linux lets no message between processes be longer, unless told to.
const LONGEST: usize = 212_992;

/// A process that waits to become a command.
#[derive(Debug)]
pub(super) struct Shim {
    pub(super) process: tokio::process::Child,
    socket: OwnedFd,
}

impl Shim {
    /// Starts it for `command`. If it is to die with us, the kernel ties its life to the *thread* that starts it.
    pub(super) fn start(command: &[OsString], dies_with_us: bool) -> io::Result<Self> {
        // Messages keep their bounds, and the end of one side is told to the other.
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut process = tokio::process::Command::new(OURSELVES);
        let parent = if dies_with_us { getpid().as_raw_nonzero().to_string() } else { OUTLIVES.to_owned() };
        process.arg0("leasehold").arg(VERB).arg(parent).args(command);
        process.stdin(Stdio::from(theirs));
        if !is_interactive() {
            process.process_group(0);
        }
        Ok(Self { process: process.spawn()?, socket })
    }

    /// Has it become the command, with our stdin, and with `environment` on top of ours.
    pub(super) fn go(self, environment: &Environment<'_>) -> io::Result<tokio::process::Child> {
        let mut text = Vec::new();
        for (key, value) in environment {
            text.extend_from_slice(key.as_bytes());
            if let Some(value) = value {
                text.push(b'=');
                text.extend_from_slice(value.as_bytes());
            }
            text.push(0);
        }
        let stdin = io::stdin();
        let descriptors = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&self.socket, &[IoSlice::new(&text)], &mut beside, SendFlags::NOSIGNAL)?;
        Ok(self.process)
    }

    /// Ends it before it becomes anything.
    pub(super) async fn end(mut self) {
        // It fails when it has ended already.
        let _ = self.process.kill().await;
    }
}

/// The process itself.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let [parent, program, rest @ ..] = arguments else { return ExitCode::from(FAILED) };
    if parent != OUTLIVES && !dies_with(parent) {
        return ExitCode::from(FAILED);
    }
    let mut command = Command::new(program);
    let error = match told(command.args(rest)) {
        Ok(true) => command.exec(),
        // Whoever started us has no use for us.
        Ok(false) => return ExitCode::from(FAILED),
        Err(error) => error,
    };
    let line = format!("error: cannot run {}: {error}\n", program.to_string_lossy().escape_debug());
    let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
    ExitCode::from(code_of(&error))
}

/// Asks to be killed with the parent; false when that failed or the parent is gone already.
fn dies_with(parent: &OsString) -> bool {
    // In this order: a parent that dies in between is noticed either by the kernel or here.
    let asked = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    asked && now.as_deref() == parent.to_str()
}

/// Waits for the message of [`Shim::go`] and does to `command` what it says; false when there will be none.
fn told(command: &mut Command) -> io::Result<bool> {
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(io::stdin(), &mut [IoSliceMut::new(&mut text)], &mut beside, RecvFlags::CMSG_CLOEXEC)
    })?;
    let stdin = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let Some(stdin) = stdin else { return Ok(false) };
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::other("its environment is too long"));
    }
    command.stdin(Stdio::from(stdin));
    for entry in text[..received.bytes].split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
        let mut halves = entry.splitn(2, |byte| *byte == b'=').map(OsStr::from_bytes);
        match (halves.next(), halves.next()) {
            (Some(key), Some(value)) => command.env(key, value),
            (Some(key), None) => command.env_remove(key),
            (None, _) => command,
        };
    }
    Ok(true)
}
