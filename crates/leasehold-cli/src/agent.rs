//! `leasehold agent`: holds locks for the program that started it, its *host*. Requests come as lines of JSON on stdin,
//! responses and events go to stdout. `docs/agent.md` specifies the protocol.
//!
//! This module has no lock logic: it translates between messages and the library. One task serves each request
//! ([`session`]), and one task keeps each held lock ([`hold`]). Everything that is sent passes a bounded queue
//! ([`pipe`]). A task that finds it full waits, and then sends the latest state, so memory stays bounded if the host
//! does not read.

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

/// How long the last messages may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves requests until stdin is closed or the host ends.
pub(crate) async fn run(context: &Context) -> Result<u8, Failure> {
    // A new session, so that Ctrl-C does not end the agent before its host. Fails if it leads one already.
    let _ = setsid();
    // While the host lives, it decides: it may want to end its work under its locks after a SIGTERM to both.
    let ignored = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let failed = |error| Failure::new(FAILED, "failed", format!("cannot start the agent: {error}"));
    let mut input = pipe::read().map_err(failed)?;
    let (outbox, writer) = pipe::write().map_err(failed)?;
    let session = Arc::new(Session::new(context.settings.clone(), outbox));
    let mut host: Option<Host> = None;
    let code = loop {
        let next = async {
            match input.recv().await {
                None => Next::End(0),
                Some(Input::TooLong) => session.refuse_line("a line that is too long").await,
                Some(Input::Line(line)) => session.take(&line, requests::begin).await,
            }
        };
        // A response may have to wait for a host that does not read. Its end is noticed all the same.
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
    // A child of the host may have the pipe, and not read it.
    timeout(&SystemClock, WRITE_TIMEOUT, writer.finished()).await;
    drop(ignored);
    Ok(code)
}
