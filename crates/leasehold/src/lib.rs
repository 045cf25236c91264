//! Distributed locks on the storage you already have.

pub mod clock;
pub mod env;
pub mod error;
pub mod lease;
mod name;
pub mod random;
pub mod register;
pub mod stores;
pub mod url;

pub use self::error::{Error, ErrorKind, Result};
pub use self::lease::{Held, Holder, Loss, LossReason, Status, Token};
pub use self::name::LockName;
pub use self::register::{Register, RegisterLeases};
