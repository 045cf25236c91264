//! Distributed locks on the storage you already have: a local file, a bucket, a table,
//! etcd, with one promise on all of them.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::Locker;
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let locker = Locker::open("mem:").await?; // sqlite:locks.db, s3://bucket/prefix, gs://...
//! let lock = locker.lock("deploy/prod").ttl(Duration::from_secs(30)).note("make deploy");
//!
//! let guard = lock.acquire().await?; // waits; try_acquire() and acquire_within() do not, or not for ever
//! println!("held with token {}", guard.token()?);
//! guard.check()?; // still held? local, no I/O
//! guard.release().await?;
//! # Ok::<_, leasehold::Error>(())
//! # }).unwrap();
//! ```
//!
//! # The promise
//!
//! For every lock name, on every store:
//!
//! 1. **Exclusion.** A grant begins only after the one before it was released or evicted, or its holder's own deadline
//!    has passed.
//! 2. **Fencing.** Every grant carries a [`Token`] greater than that of every earlier grant of that name, across release,
//!    expiry, takeover, eviction, and deletion of the record by hand.
//! 3. **No trusted client clock.** No client's wall clock is compared with another's. Clients measure durations, on a
//!    clock that counts through suspend; clock *rates* are assumed to be within 0.5 % of true time.
//! 4. **The holder knows first.** The [`Guard`] reports loss no later than its local deadline, also when the network is
//!    down and when a renewal hangs.
//! 5. **Unknown is a value.** A write whose answer was lost is never guessed at; it is resolved by its nonce.
//! 6. **Fail closed.** A store that ignores preconditions, a record that does not parse, an unknown option: a clear error,
//!    never a silent double grant.
//!
//! What a lease cannot promise is that a paused process stops writing: give the token along with every write, and let
//! the resource refuse lower ones.
//!
//! # Where things are
//!
//! [`Locker`] opens a store, [`Lock`] is a name with settings, [`Guard`] a lock that is held; a [`Ticket`] hands it to another
//! process. [`Semaphore`] and [`RwLock`] are made of locks, [`OncePer`] runs a job once per period, and an [`Election`] says
//! who has a lock, and where to find them. Stores implement [`lease::LeaseStore`], or the smaller [`Register`] on which
//! [`RegisterLeases`] runs the lease protocol. [`update`] changes an object that many write, without a lock; [`fence`]
//! writes one with a guard's token; [`Object`] opens one by its URL.
//! Everything needs a tokio runtime with time enabled.

pub mod clock;
mod diagnosis;
pub mod doctor;
pub mod env;
pub mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(missing_docs, reason = "no part of what is published")]
pub mod fuzzing;
#[cfg(test)]
mod golden;
mod guard;
#[cfg(doctest)]
mod guides;
pub mod lease;
mod lock;
mod locker;
mod objects;
mod primitives;
pub mod random;
pub mod register;
mod runtime;
mod settings;
pub mod stores;
mod ticket;
mod types;
pub mod url;

pub use self::error::{Error, ErrorKind, Result};
pub use self::guard::Guard;
pub use self::lease::{
    Evicted, Held, Holder, Loss, LossReason, PastGrant, Released, State, Status, Swept, Token,
};
pub use self::lock::Lock;
pub use self::locker::Locker;
pub use self::objects::{Object, Updated, fence, update};
pub use self::primitives::{AlreadyRan, Due, Election, Leader, Leadership, Once, OncePer, RwLock, Semaphore};
pub use self::register::{Register, RegisterLeases};
pub use self::ticket::Ticket;
pub use self::types::{InvalidValue, LockName};
