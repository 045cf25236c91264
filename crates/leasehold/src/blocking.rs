//! Locks for programs without async. The types and methods have the same names as in the async API.
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
//! valid while its thread works or sleeps. The values of this module can be moved between threads and shared among
//! them.
//!
//! # Differences from the async API
//!
//! - A call cannot be cancelled. Instead, use a method that takes a limit, such as [`Lock::acquire_within`].
//! - Dropping a guard releases its lock *before* the drop returns. So a program that exits right afterwards does not
//!   leave the lock held until the lease lapses.
//! - If the lock is lost while a closure runs, the closure is not stopped. Call [`Guard::check`] before each step that
//!   must not be done twice.
//! - There is no [`Guard::renewed`](crate::Guard::renewed) and no [`Guard::cancellation`](crate::Guard::cancellation).
//!   A thread learns of a loss from [`Guard::check`], or waits for it with [`Guard::lost_within`].
//! - Callbacks such as that of [`Lock::on_wait`] run on the background thread. A blocking call from a callback returns
//!   an error.
//!
//! In an async program, use the [async API](crate), because calls of this module block the calling thread. After a
//! `fork`, the child process must not use values that its parent has created.

mod election;
mod guard;
mod lock;
mod locker;
mod locks;
mod object;
mod once;
mod permits;
mod thread;

pub use self::election::{Election, Leadership};
pub use self::guard::Guard;
pub use self::lock::Lock;
pub use self::locker::Locker;
pub use self::locks::Locks;
pub use self::object::Object;
pub use self::once::{Due, OncePer};
pub use self::permits::{RwLock, Semaphore};
