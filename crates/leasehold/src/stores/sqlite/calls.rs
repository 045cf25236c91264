//! Calls: a process that frees a lock calls the first waiter, which then asks for the lock at once.
//!
//! A process that waits listens on a datagram socket, whose name in the kernel's abstract namespace is the identity of
//! the process. The socket disappears with the process, so a call also shows whether a waiter is alive. A lost call
//! only delays the waiter until its next poll. This is so on systems without abstract sockets, and between containers
//! with different networks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use rusqlite::Connection;

use super::machine::{Machine, Process};
use super::waiters;
use crate::env::Env;
use crate::lease::Id;
use crate::stores::notifications::{Call, Calls};
use crate::types::LockName;

/// The claims of this process that wait, in all stores.
static CALLS: LazyLock<Arc<Calls>> = LazyLock::new(|| Calls::new(Env::system()));

/// Whether this process listens, or has tried to.
static LISTENS: AtomicBool = AtomicBool::new(false);

/// Makes `claim` callable until the returned [`Call`] is dropped.
pub(super) fn expect(claim: Id, machine: &Machine) -> Call {
    let call = CALLS.expect(claim);
    if let Some(me) = machine.me.as_ref().filter(|me| me.pid == std::process::id())
        && !LISTENS.swap(true, Ordering::SeqCst)
    {
        socket::listen(me);
    }
    call
}

/// Calls the first waiter for `name` that listens. Must follow the commit, so that the waiter sees the change.
pub(super) fn call_first(connection: &Connection, name: &LockName) {
    if let Err(error) = waiters::first_that(connection, name, call) {
        tracing::debug!(lock = %name, ?error, "no waiter was called; the first one polls");
    }
}

/// Calls `claim`, which waits in `process`. Returns whether the process listens.
fn call(claim: Id, process: Option<&Process>) -> bool {
    CALLS.call(&claim.to_string()) || process.is_some_and(|process| socket::send(process, claim))
}

#[cfg(target_os = "linux")]
mod socket {
    use std::io;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::thread;

    use super::{CALLS, Id, Process};

    fn address(process: &Process) -> io::Result<SocketAddr> {
        let Process { namespace, pid, start, .. } = process;
        SocketAddr::from_abstract_name(format!("leasehold/{namespace}/{pid}/{start}"))
    }

    /// Starts a thread that receives the calls of this process, `me`, until the process ends. It wakes up only for
    /// calls. Without it, the waiters of this process poll.
    pub(super) fn listen(me: &Process) {
        let started = address(me).and_then(|address| UnixDatagram::bind_addr(&address)).and_then(|socket| {
            thread::Builder::new().name("leasehold-calls".to_owned()).spawn(move || receive(&socket))
        });
        if let Err(error) = started {
            tracing::debug!(%error, "this process cannot be called; its waiters poll");
        }
    }

    fn receive(socket: &UnixDatagram) {
        let mut message = [0; 64];
        loop {
            match socket.recv(&mut message) {
                Ok(length) => {
                    let text = message.get(..length).and_then(|bytes| std::str::from_utf8(bytes).ok());
                    text.map(|claim| CALLS.call(claim));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Calls `claim` in `process`. Returns whether the process listens. Calls that it has not received yet may fill its
    /// socket.
    pub(super) fn send(process: &Process, claim: Id) -> bool {
        let sent = address(process).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to_addr(claim.to_string().as_bytes(), &address)
        });
        sent.map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_| true)
    }
}

#[cfg(not(target_os = "linux"))]
mod socket {
    use super::{Id, Process};

    pub(super) fn listen(_: &Process) {}

    pub(super) fn send(_: &Process, _: Id) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::random::Random;

    fn id() -> Id {
        Id::random(&Random::from_os())
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_process_is_called_through_its_socket() {
        let machine = Machine::this().unwrap();
        let me = machine.me.clone().unwrap();
        let (id, other) = (id(), id());
        let claim = expect(id, &machine);
        // What cannot be parsed, or is for a claim that does not wait, wakes none and ends nothing.
        assert!(socket::send(&me, other) && claim.called().now_or_never().is_none());
        assert!(socket::send(&me, id));
        claim.called().await;
        assert!(
            !socket::send(&Process { start: me.start + 1, ..me }, other),
            "another process does not listen"
        );
    }
}
