//! Objects with several writers: updates and fenced writes. Neither needs a lock.

mod cas_loop;
pub mod fence;
mod object;
mod update;
pub(crate) mod write_log;

pub use self::object::Object;
pub use self::update::{Updated, update};
