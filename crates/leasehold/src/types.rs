//! Value types that all layers use: names, ids, tokens, times to live, and the state of locks.

mod eviction;
mod id;
mod invalid;
mod name;
mod nested;
mod secret;
mod span;
mod status;
mod token;
mod ttl;

pub use self::eviction::Eviction;
pub use self::id::Id;
pub use self::invalid::InvalidValue;
pub use self::name::LockName;
pub(crate) use self::name::is_unprintable;
pub use self::nested::{HeldLock, Nested, OnDeadlock};
pub use self::secret::Secret;
pub(crate) use self::span::set_span;
pub use self::span::{span, span_up};
pub(crate) use self::status::MAX_HOLD;
pub use self::status::{
    End, Holder, HolderInfo, Loss, LossReason, PastGrant, State, Status, Waiter, printable,
};
pub use self::token::Token;
pub(crate) use self::ttl::{RENEW_AFTER, RENEW_SPREAD};
pub use self::ttl::{Ttl, attempt_limit, deadline};
