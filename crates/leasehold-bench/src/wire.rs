//! The way between a contender and its server: every contender goes through the same proxy, which makes it as long as it is
//! told to and counts the requests.

pub(crate) mod heads;
pub(crate) mod proxy;
mod timer;
