//! The same locks for programs without async: the names of the crate, without `await`.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::blocking::Locker;
//!
//! let locker = Locker::open("mem:")?; // sqlite:locks.db, s3://bucket/prefix, gs://...
//! let lock = locker.lock("deploy/prod").ttl(Duration::from_secs(30)).note("make deploy");
//!
//! let guard = lock.acquire()?; // waits; see also try_acquire() and acquire_within()
//! println!("held with token {}", guard.token()?);
//! guard.check()?; // still held? local, no I/O
//! guard.release()?;
//! # Ok::<_, leasehold::Error>(())
//! ```
//!
//! Requests and renewals run on one background thread of the process, which the first call starts. So a guard stays
//! valid while its thread works or sleeps. The values of this module may be shared among threads and moved between them.
//!
//! # Differences from the async interface
//!
//! - A call cannot be cancelled. Use a method that takes a limit, such as [`Lock::acquire_within`].
//! - A guard that is dropped releases its lock *before* the drop returns, so that a program that ends right after it
//!   does not leave the lock to its lease.
//! - A closure is not stopped if the lock is lost while it runs. Call [`Guard::check`] before each step that must not be
//!   done twice.
//! - Callbacks such as [`Lock::on_wait`] run on the background thread. A call from there that would wait returns an
//!   error.
//!
//! In an async program, use the [async interface](crate): a call of this module blocks the thread that makes it. After
//! `fork`, a child process must not use what its parent has opened.

mod election;
mod guard;
mod lock;
mod locker;
mod object;
mod once;
mod permits;
mod thread;

pub use self::election::{Election, Leadership};
pub use self::guard::Guard;
pub use self::lock::Lock;
pub use self::locker::Locker;
pub use self::object::Object;
pub use self::once::{Due, OncePer};
pub use self::permits::{RwLock, Semaphore};
