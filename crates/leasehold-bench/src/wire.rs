//! The connection between a contender and its server. Every contender uses the same proxy, which adds a round trip and
//! counts requests.

pub(crate) mod heads;
mod postgres;
pub(crate) mod proxy;
mod redis;
mod timer;
