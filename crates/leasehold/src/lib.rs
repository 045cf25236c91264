//! Distributed locks with leases on storage that you already have: a local file, a bucket, a database, etcd or
//! Kubernetes. All stores provide the guarantees below. `docs/guarantees.md` lists the exceptions.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::Locker;
//!
//! #[tokio::main]
//! async fn main() -> leasehold::Result<()> {
//!     let locker = Locker::open("mem:").await?; // sqlite:locks.db, s3://bucket/prefix, gs://...
//!     let lock = locker.lock("deploy/prod").ttl(Duration::from_secs(30)).note("make deploy");
//!
//!     let guard = lock.acquire().await?; // waits; see also try_acquire() and acquire_within()
//!     println!("held with token {}", guard.token()?);
//!     guard.check()?; // still held? local, no I/O
//!     guard.release().await?;
//!     Ok(())
//! }
//! ```
//!
//! # Guarantees
//!
//! For every lock name, on every store:
//!
//! 1. **Exclusion.** A grant begins only after the previous grant was released or evicted, or after the deadline of its
//!    holder has passed. With SQLite on Linux, it may also begin after the holder's process has died.
//! 2. **Fencing.** Every grant carries a [`Token`] that is greater than the token of every earlier grant of that name.
//!    This holds across release, expiry, takeover and eviction, and also if the record is deleted by hand, unless the
//!    store's clock was set back.
//! 3. **No trusted client clock.** The wall clocks of two clients are never compared. Clients only measure durations,
//!    on a clock that counts through suspend. Clock *rates* are assumed to be within 0.5 % of true time.
//! 4. **The holder detects a loss first.** The [`Guard`] reports a loss no later than its local deadline, even if the
//!    network is down or a renewal hangs.
//! 5. **Lost responses are resolved.** If the response to a write is lost, leasehold does not guess whether it was
//!    applied. It looks for the nonce of the write in the record.
//! 6. **Fail closed.** A store that ignores preconditions, a record that does not parse, or an unknown option causes an
//!    error, never a silent double grant.
//!
//! A lease cannot keep a process that was paused from writing after its deadline. Send the token with every write, and
//! let the resource refuse lower tokens.
//!
//! # Overview
//!
//! - [`Locker`] opens a store. [`Lock`] is a name with settings. [`Guard`] is a lock that is held. [`Ticket`] hands a
//!   held lock to another process.
//! - [`Locks`] are several locks, held all or none. [`Semaphore`] and [`RwLock`] consist of several locks. [`OncePer`]
//!   runs a job once per period. [`Election`] elects a leader and tells observers how to reach it.
//! - [`update`] changes an object that has several writers, without a lock. [`fence`] writes an object with a guard's
//!   token. [`Object`] opens an object by its URL.
//! - [`Observer`] receives events for metrics. Each acquisition, renewal, release and request to the store has a
//!   `tracing` span.
//! - To add a store, implement [`Register`]: reads, conditional writes, a listing and the store's time.
//!   [`RegisterLeases`] runs the lease protocol on it. A store that grants leases itself implements
//!   [`lease::LeaseStore`]. See `docs/own-stores.md`.
//!
//! # Stores
//!
//! Each store has a cargo feature. The default features are `sqlite` and `dir`.
//!
//! | feature | store | URL |
//! |---|---|---|
//! | | memory of the process | `mem:` |
//! | `sqlite` | a file, for the processes of one machine | `sqlite:/var/lib/myapp/locks.db` |
//! | `dir` | a directory that machines share, such as NFS | `dir:/mnt/efs/locks` |
//! | `s3` | Amazon S3, and compatible stores with conditional writes | `s3://bucket/prefix?region=eu-west-1` |
//! | `gcs` | Google Cloud Storage | `gs://bucket/prefix` |
//! | `azure` | Azure Blob Storage | `azblob://account/container/prefix` |
//! | `dynamodb` | a DynamoDB table | `dynamodb://table?region=eu-west-1` |
//! | `etcd` | etcd | `etcd://host:2379/prefix/` |
//! | `kubernetes` | Lease objects | `k8s://namespace` |
//! | `mysql` | MySQL or MariaDB | `mysql://user@host/database` |
//! | `postgres` | PostgreSQL | `postgres://user@host/database` |
//! | `redis` | Redis or Valkey, also a cluster | `redis://host:6379/0?prefix=locks/` |
//! | `nats` | a key-value bucket of NATS JetStream | `nats://host:4222/bucket?prefix=locks` |
//! | `http` | a running `leasehold serve` | `https://locks.example.com` |
//!
//! The feature `blocking` adds the module `blocking`, for programs without async.
//!
//! # Runtimes and cancellation
//!
//! The async API needs a tokio runtime with time and I/O enabled. A current-thread runtime is enough, if it runs
//! while a lock is held: renewals are its tasks. If it is blocked for longer than the lease, the guard reports the loss
//! as soon as it is asked. Code that blocks belongs in `spawn_blocking`, where [`Guard::check`] works too. Without a
//! runtime, calls return an error of kind [`ErrorKind::Invalid`]: use the module `blocking`.
//!
//! In the background, the runtime in which a lock was acquired renews its lease, and releases it when the [`Guard`] is
//! dropped. A lock that is neither held nor awaited costs no requests. At the end of a program, await
//! [`Guard::release`]: a runtime that shuts down first leaves the lock to lapse.
//!
//! Acquisitions, checks and reads are cancel safe: dropping their future leaves nothing held. Operations by hand, such
//! as [`Locker::evict`], are not; their documentation says so.

#[cfg(not(unix))]
compile_error!(
    "leasehold runs on Linux and macOS. docs/rfcs/0004-windows.md says what is missing for Windows."
);

#[cfg(feature = "blocking")]
pub mod blocking;
pub mod clock;
mod diagnosis;
pub mod env;
pub mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(missing_docs, reason = "not part of the published crate")]
pub mod fuzzing;
#[cfg(test)]
mod golden;
mod guard;
#[cfg(doctest)]
mod guides;
pub mod lease;
mod lock;
mod locker;
#[allow(dead_code, reason = "not every build has a store that uses it")]
mod native;
mod objects;
pub mod observe;
mod primitives;
mod proof;
mod protocol;
pub mod random;
pub mod register;
mod retry;
mod runtime;
mod settings;
pub mod stores;
mod ticket;
mod types;
pub mod url;
pub mod view;
#[allow(dead_code, reason = "not every build has a store that uses it")]
mod worker;

pub use self::error::{Error, ErrorKind, Result};
pub use self::guard::Guard;
pub use self::lease::{
    Evicted, Eviction, Holder, HolderInfo, Loss, LossReason, PastGrant, Released, State, Status, Swept,
    Token, Waiter,
};
pub use self::lock::Lock;
pub use self::locker::Locker;
pub use self::objects::{Object, Updated, fence, update};
pub use self::observe::Observer;
pub use self::primitives::{
    AlreadyRan, Due, Election, Leader, Leadership, Locks, Once, OncePer, RwLock, Semaphore,
};
pub use self::proof::doctor;
pub use self::protocol::RegisterLeases;
#[cfg(feature = "_raw")]
#[doc(hidden)]
pub use self::protocol::raw;
#[doc(hidden)]
pub use self::protocol::{Passing, Tap};
pub use self::register::Register;
pub use self::ticket::{HeldTicket, Ticket};
pub use self::types::{InvalidValue, LockName, OnDeadlock};
