//! The background thread, and functions with which other threads wait for its tasks.

use std::pin::pin;
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread, ThreadId};

use futures_util::stream::{BoxStream, StreamExt};
use tokio::runtime::{Builder, Handle};
use tokio::task::unconstrained;

use crate::error::{Error, ErrorKind, Result};

struct Background {
    runtime: Handle,
    thread: ThreadId,
}

/// Waits for `future`, polling it on the calling thread. Tasks that it spawns run on the background thread.
///
/// # Errors
/// Returns the errors of `future`. Returns [`ErrorKind::Invalid`] on the background thread, because it would wait for
/// itself, and [`ErrorKind::Unavailable`] if that thread cannot be started.
pub(super) fn wait<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let background = background()?;
    if thread::current().id() == background.thread {
        let message = "a callback of leasehold::blocking must not wait for the store";
        return Err(Error::invalid(message).with_help("wait in another thread"));
    }
    // `Handle::block_on` would panic on a thread of another runtime.
    let _entered = background.runtime.enter();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    // In a task of another runtime, tokio would end each poll after some operations and wake that task instead of this
    // thread.
    let mut future = pin!(unconstrained(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread::park();
    }
}

/// Returns an iterator that waits for the items of `stream`.
pub(super) fn iterate<T>(mut stream: BoxStream<'_, Result<T>>) -> impl Iterator<Item = Result<T>> {
    std::iter::from_fn(move || {
        wait(async { Ok(stream.next().await) }).unwrap_or_else(|error| Some(Err(error)))
    })
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn background() -> Result<&'static Background> {
    static BACKGROUND: OnceLock<std::io::Result<Background>> = OnceLock::new();
    BACKGROUND.get_or_init(start).as_ref().map_err(|error| {
        let message = format!("cannot start the background thread of leasehold::blocking: {error}");
        Error::new(ErrorKind::Unavailable, message)
    })
}

fn start() -> std::io::Result<Background> {
    let (sender, receiver) = mpsc::channel();
    let thread =
        thread::Builder::new().name("leasehold".to_owned()).spawn(
            move || match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let _ = sender.send(Ok(runtime.handle().clone()));
                    runtime.block_on(std::future::pending::<()>());
                }
                Err(error) => drop(sender.send(Err(error))),
            },
        )?;
    let runtime = receiver.recv().map_err(std::io::Error::other)??;
    Ok(Background { runtime, thread: thread.thread().id() })
}
