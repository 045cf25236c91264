//! Primitives that are built from locks: semaphores, readers-writer locks, elections, and jobs that run once per
//! period.

mod blockers;
mod election;
mod locks;
mod once;
mod permits;
mod resize;
mod rw_lock;
mod semaphore;
mod together;

pub use self::election::{Election, Leader, Leadership};
pub use self::locks::Locks;
pub use self::once::{AlreadyRan, Due, Once, OncePer};
pub use self::rw_lock::RwLock;
pub use self::semaphore::Semaphore;
