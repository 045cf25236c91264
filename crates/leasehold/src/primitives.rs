//! Primitives that are built from locks: semaphores, readers-writer locks, elections, and jobs that run once per
//! period.

mod election;
mod once;
mod permits;
mod rw_lock;
mod semaphore;

pub use self::election::{Election, Leader, Leadership};
pub use self::once::{AlreadyRan, Due, Once, OncePer};
pub use self::rw_lock::RwLock;
pub use self::semaphore::Semaphore;
