//! The integration tests on real stores, in one binary: a module for each subject. `./test` starts the servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[cfg(feature = "etcd")]
mod access_etcd;
#[cfg(feature = "dynamodb")]
mod budget_dynamodb;
#[cfg(feature = "etcd")]
mod budget_etcd;
#[cfg(feature = "gcs")]
mod budget_gcs;
#[cfg(feature = "s3")]
mod budget_s3;
#[cfg(feature = "etcd")]
mod cluster_etcd;
#[cfg(feature = "dynamodb")]
mod conformance_dynamodb;
#[cfg(feature = "sqlite")]
mod conformance_embedded;
#[cfg(feature = "etcd")]
mod conformance_etcd;
#[cfg(feature = "gcs")]
mod conformance_gcs;
#[cfg(feature = "s3")]
mod conformance_s3;
#[cfg(feature = "gcs")]
mod credentials_gcs;
mod documents;
mod evidence;
mod fake;
#[cfg(feature = "chaos")]
mod faults_real;
#[cfg(feature = "etcd")]
mod frozen_etcd;
#[cfg(feature = "dynamodb")]
mod interop_dynamodb;
#[cfg(feature = "etcd")]
mod interop_etcd;
#[cfg(all(feature = "gcs", feature = "s3"))]
mod interop_existence;
#[cfg(feature = "dynamodb")]
mod items_dynamodb;
#[cfg(all(feature = "gcs", feature = "s3"))]
mod objects;
mod packages;
#[cfg(all(feature = "dynamodb", feature = "etcd"))]
mod peers;
#[cfg(feature = "dynamodb")]
mod processes_dynamodb;
#[cfg(feature = "sqlite")]
mod processes_embedded;
#[cfg(feature = "etcd")]
mod processes_etcd;
#[cfg(feature = "gcs")]
mod processes_gcs;
#[cfg(feature = "s3")]
mod processes_s3;
mod refused;
#[cfg(feature = "etcd")]
mod rules_etcd;
#[cfg(feature = "s3")]
mod s3_register;
mod suite_can_fail;
#[cfg(feature = "gcs")]
mod throttled_gcs;
#[cfg(feature = "s3")]
mod versioned_s3;
mod workers;
