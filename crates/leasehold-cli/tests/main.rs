//! The integration tests of the command, in one binary. Server tests and guides need all stores: `./test` starts the
//! servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[cfg(feature = "sqlite")]
mod cli;
#[cfg(all(
    feature = "sqlite",
    feature = "azure",
    feature = "dynamodb",
    feature = "etcd",
    feature = "gcs",
    feature = "kubernetes",
    feature = "postgres",
    feature = "redis",
    feature = "s3"
))]
mod doctor;
#[cfg(all(feature = "kubernetes", feature = "sqlite"))]
mod elect_kubernetes;
#[cfg(all(
    feature = "sqlite",
    feature = "azure",
    feature = "dynamodb",
    feature = "etcd",
    feature = "gcs",
    feature = "kubernetes",
    feature = "postgres",
    feature = "redis",
    feature = "s3"
))]
mod guides;
#[cfg(all(feature = "sqlite", feature = "serve"))]
mod serve;
#[cfg(all(
    feature = "sqlite",
    feature = "azure",
    feature = "dynamodb",
    feature = "etcd",
    feature = "gcs",
    feature = "kubernetes",
    feature = "postgres",
    feature = "redis",
    feature = "s3"
))]
mod servers;
#[cfg(feature = "sqlite")]
mod support;
