//! Code that the stores at Amazon share: how to find the service, how to sign requests, and how a request ended.

pub(super) mod access;
pub(super) mod config;
mod credentials;
pub(super) mod http;
pub(super) mod requests;
pub(super) mod sign_in;
pub(super) mod watch;
#[cfg(test)]
pub(super) mod wire;
