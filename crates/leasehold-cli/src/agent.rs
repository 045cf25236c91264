//! `leasehold agent`: holds locks for the program that started it, its *host*. Requests arrive as lines of JSON on
//! stdin, and responses and events go to stdout. `docs/agent.md` specifies the protocol.
//!
//! This module has no lock logic: it translates between messages and the library. One task serves each request
//! ([`session`]), and one task keeps each held lock ([`hold`]). All messages to the host pass through a bounded queue
//! ([`pipe`]). A task that finds it full waits and then sends the latest state, so memory stays bounded even if the
//! host does not read.

mod fields;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod hold;
mod host;
mod inspect;
mod locks;
mod message;
mod objects;
mod pipe;
mod refusal;
mod requests;
mod session;
mod stores;
mod tickets;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{SystemClock, timeout};
use rustix::process::setsid;
use tokio::signal::unix::{SignalKind, signal};

use self::host::Host;
use self::pipe::Input;
use self::session::{Next, Session};
use crate::context::Context;
use crate::exit::{FAILED, Failure};

/// How long it may take to write the last messages.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves requests until stdin is closed or the host ends.
pub(crate) async fn run(context: &Context) -> Result<u8, Failure> {
    // Start a new session, so that Ctrl-C does not end the agent before its host. This fails if the agent already leads
    // a session.
    let _ = setsid();
    // Ignore these signals while the host is alive. After a SIGTERM to both, the host may want to finish its work under
    // its locks.
    let ignored = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let failed = |error| Failure::new(FAILED, "failed", format!("cannot start the agent: {error}"));
    let mut input = pipe::read().map_err(failed)?;
    let (outbox, writer) = pipe::write().map_err(failed)?;
    let session = Arc::new(Session::new(context.settings.clone(), context.store_option(), outbox));
    let mut host: Option<Host> = None;
    let code = loop {
        let next = async {
            match input.recv().await {
                None => Next::End(0),
                Some(Input::TooLong) => session.refuse_line("a line that is too long").await,
                Some(Input::Line(line)) => session.take(&line, requests::begin).await,
            }
        };
        // A response may have to wait for a host that does not read. Detect the end of the host even then.
        let next = tokio::select! {
            biased;
            () = host::ended(&mut host) => Next::End(0),
            next = next => next,
        };
        match next {
            Next::Continue => {}
            Next::Watch(pid) => host = Host::watch(pid),
            Next::End(code) => break code,
        }
    };
    session.end().await;
    drop(session);
    // Limit the wait, because a child of the host may have inherited the pipe without reading it.
    timeout(&SystemClock, WRITE_TIMEOUT, writer.finished()).await;
    drop(ignored);
    Ok(code)
}
