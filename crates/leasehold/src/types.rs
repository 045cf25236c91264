//! Value types that all layers use: names, ids, tokens, times to live, and the state of locks.

mod eviction;
mod invalid;
mod name;
mod status;
mod terms;

pub use self::eviction::Eviction;
pub use self::invalid::InvalidValue;
pub use self::name::LockName;
pub(crate) use self::name::is_unprintable;
pub use self::status::{
    End, Holder, HolderInfo, Loss, LossReason, PastGrant, State, Status, Waiter, printable,
};
pub use self::terms::{Id, Token, Ttl, attempt_limit, deadline};
pub(crate) use self::terms::{RENEW_AFTER, RENEW_SPREAD};
