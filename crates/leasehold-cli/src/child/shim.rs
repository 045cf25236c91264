//! `leasehold __child PID CMD...`: the process that later executes the command.
//!
//! A command must not outlive `leasehold run`, which renews its lock and stops it. Linux kills the command together
//! with `run` if the process of the command requests that itself, after the fork. Running code between fork and exec
//! needs `unsafe`. To avoid it, `run` starts its own program again. That process makes the request and then executes
//! the command.
//!
//! Starting the process takes about a millisecond, so it is started before the lock is acquired. It waits on a socket
//! that takes the place of stdin. One message contains the command's stdin and the changes to the environment. If the
//! command cannot be executed, the response contains the error number.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use super::program::{cannot_run, code_of};
use super::reaper::Awaited;
use super::{Environment, is_interactive, own_executable};
use crate::exit::{FAILED, Failure, NOT_FOUND};

/// The internal subcommand.
pub(super) const SUBCOMMAND: &str = "__child";

/// Replaces the process id of the parent if the command may outlive `run`.
const OUTLIVES: &str = "-";

/// The maximum size of the changes to the environment: Linux's default limit for a message on a socket.
const MAX_MESSAGE: usize = 212_992;

/// A process that waits to execute a command.
#[derive(Debug)]
pub(super) struct Shim {
    pub(super) process: tokio::process::Child,
    awaited: Option<Awaited>,
    socket: OwnedFd,
}

impl Shim {
    /// Starts the process for `command`. With `dies_with_us`, the kernel kills it when the *thread* that started it
    /// ends.
    pub(super) fn start(command: &[OsString], dies_with_us: bool) -> io::Result<Self> {
        // This type preserves message boundaries, and each side sees when the other closes.
        let (socket, process_socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut process = tokio::process::Command::new(own_executable()?);
        let parent = if dies_with_us { getpid().as_raw_nonzero().to_string() } else { OUTLIVES.to_owned() };
        process.arg0("leasehold").arg(SUBCOMMAND).arg(parent).args(command);
        process.stdin(Stdio::from(process_socket));
        if !is_interactive() {
            process.process_group(0);
        }
        let process = process.spawn()?;
        Ok(Self { awaited: process.id().map(Awaited::new), process, socket })
    }

    /// Makes the process execute the command, whose program is `program`, with our stdin, and with the changes of
    /// `environment` to our environment.
    pub(super) fn execute(
        self,
        program: &OsStr,
        environment: &Environment<'_>,
    ) -> io::Result<(tokio::process::Child, Execution)> {
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
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&self.socket, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)?;
        let execution =
            Execution { _awaited: self.awaited, socket: self.socket, program: program.to_owned() };
        Ok((self.process, execution))
    }

    /// Ends the process before it executes the command.
    pub(super) async fn end(mut self) {
        // Fails if the process has already ended.
        let _ = self.process.kill().await;
    }
}

/// A command that a [`Shim`] was told to execute.
#[derive(Debug)]
pub(super) struct Execution {
    /// Until the command was awaited, because only then its status is known.
    _awaited: Option<Awaited>,
    socket: OwnedFd,
    program: OsString,
}

impl Execution {
    /// Returns the failure if the command could not be executed. Complete only when the process has ended.
    pub(super) fn failure(&self) -> Option<Failure> {
        let mut number = [0_u8; size_of::<i32>()];
        // If the command was executed, its process has closed the socket.
        let (_, length) = recv(&self.socket, &mut number, RecvFlags::DONTWAIT).ok()?;
        if length != number.len() {
            return None;
        }
        let error = io::Error::from_raw_os_error(i32::from_ne_bytes(number));
        let failure = cannot_run(&self.program, &error);
        if failure.code != NOT_FOUND {
            return Some(failure);
        }
        Some(failure.with_help("if it is a script, check that the interpreter in its first line exists"))
    }
}

/// The main function of the process.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let [parent, program, rest @ ..] = arguments else { return ExitCode::from(FAILED) };
    if parent != OUTLIVES && !dies_with(parent) {
        return ExitCode::from(FAILED);
    }
    // Closed when the command is executed. A failed execution leaves the command's stdin in the place of ours.
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let mut command = Command::new(program);
    let error = match receive(command.args(rest)) {
        Ok(true) => command.exec(),
        // `run` closed the socket, because the command is not needed.
        Ok(false) => return ExitCode::from(FAILED),
        Err(error) => error,
    };
    let number = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
    if let Ok(socket) = socket {
        // Fails if `run` has ended.
        let _ = send(&socket, &number.to_ne_bytes(), SendFlags::NOSIGNAL);
    }
    ExitCode::from(code_of(&error))
}

/// Requests to be killed with the parent. Returns false if that failed or the parent has already ended.
fn dies_with(parent: &OsString) -> bool {
    // In this order, the end of the parent is always noticed. The check of its id notices an end before the request,
    // and the kernel notices a later one.
    let requested = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    requested && now.as_deref() == parent.to_str()
}

/// Waits for the message from [`Shim::execute`] and applies it to `command`. Returns false if there will be no message.
fn receive(command: &mut Command) -> io::Result<bool> {
    let mut text = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(io::stdin(), &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let stdin = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let Some(stdin) = stdin else { return Ok(false) };
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::TOOBIG.into());
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
