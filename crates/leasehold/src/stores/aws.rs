//! Code that the S3 and DynamoDB stores share: finding the service, loading credentials, and classifying failed
//! requests.

pub(super) mod access;
pub(super) mod config;
pub(super) mod credentials;
pub(super) mod http;
pub(super) mod requests;
pub(super) mod sign_in;
pub(super) mod watch;
#[cfg(test)]
pub(super) mod wire;
