//! What every store of Amazon's shares: how to find and sign in to it, and what became of a request.

pub(super) mod access;
pub(super) mod config;
mod credentials;
pub(super) mod http;
pub(super) mod requests;
pub(super) mod trouble;
pub(super) mod watch;
#[cfg(test)]
pub(super) mod wire;
