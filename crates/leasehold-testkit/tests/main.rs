//! The integration tests on real stores, in one binary with a module for each subject. `./test` starts the servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

/// Generates a test for each of these functions, in a module named after the storage. Each function receives that name.
macro_rules! on_storage {
    ($storage:ident: $($test:ident)*) => {
        mod $storage {
            $(#[tokio::test] async fn $test() { super::$test(stringify!($storage)).await; })*
        }
    };
}

#[cfg(any(feature = "etcd", feature = "mysql", feature = "nats", feature = "postgres", feature = "redis"))]
#[cfg_attr(not(feature = "chaos"), allow(dead_code, reason = "not every store needs all of it"))]
mod access;
#[cfg(feature = "etcd")]
mod access_etcd;
#[cfg(feature = "kubernetes")]
mod access_kubernetes;
#[cfg(feature = "mysql")]
mod access_mysql;
#[cfg(feature = "nats")]
mod access_nats;
#[cfg(feature = "postgres")]
mod access_postgres;
#[cfg(feature = "redis")]
mod access_redis;
#[cfg(feature = "dynamodb")]
mod budget_dynamodb;
#[cfg(feature = "etcd")]
mod budget_etcd;
#[cfg(feature = "gcs")]
mod budget_gcs;
#[cfg(feature = "redis")]
mod budget_redis;
#[cfg_attr(
    not(feature = "chaos"),
    allow(dead_code, unused_macros, reason = "no store may have requests to count")
)]
mod budgets;
#[cfg(feature = "etcd")]
mod cluster_etcd;
#[cfg(feature = "nats")]
mod cluster_nats;
#[cfg(feature = "redis")]
mod cluster_redis;
mod conformance;
#[cfg(feature = "gcs")]
mod credentials_gcs;
mod documents;
mod evidence;
#[cfg(feature = "mysql")]
mod failover_mysql;
#[cfg(feature = "postgres")]
mod failover_postgres;
#[cfg(feature = "redis")]
mod failover_redis;
mod fake;
#[cfg(feature = "dynamodb")]
mod fake_dynamodb;
#[cfg(feature = "nats")]
mod fake_nats;
#[cfg(feature = "chaos")]
mod faults_real;
#[cfg(feature = "etcd")]
mod frozen_etcd;
#[cfg(any(
    feature = "azure",
    feature = "dynamodb",
    feature = "etcd",
    feature = "kubernetes",
    feature = "mysql",
    feature = "postgres",
    feature = "redis"
))]
#[cfg_attr(not(feature = "chaos"), allow(dead_code, reason = "not every store needs all of it"))]
mod interop;
#[cfg(feature = "azure")]
mod interop_azure;
#[cfg(feature = "dynamodb")]
mod interop_dynamodb;
#[cfg(feature = "etcd")]
mod interop_etcd;
#[cfg(all(feature = "gcs", feature = "s3"))]
mod interop_existence;
#[cfg(feature = "kubernetes")]
mod interop_kubernetes;
#[cfg(feature = "redis")]
mod interop_redis;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod interop_shedlock;
#[cfg(feature = "dynamodb")]
mod items_dynamodb;
#[cfg_attr(not(feature = "chaos"), allow(dead_code, reason = "not every store needs all of it"))]
mod leases;
#[cfg(feature = "postgres")]
mod line_postgres;
#[cfg(feature = "http")]
mod lost_responses_http;
#[cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
#[cfg_attr(
    not(feature = "chaos"),
    allow(dead_code, unused_macros, reason = "not every store needs all of it")
)]
mod notified;
#[cfg(all(feature = "azure", feature = "gcs", feature = "s3"))]
mod objects;
mod packages;
#[cfg(all(feature = "dynamodb", feature = "etcd"))]
mod peers;
#[cfg(feature = "postgres")]
mod pgbouncer_postgres;
#[cfg_attr(not(feature = "chaos"), allow(dead_code, unused_macros, reason = "memory may be the only store"))]
mod processes;
#[cfg(feature = "etcd")]
mod processes_etcd;
mod refused;
#[cfg(feature = "etcd")]
mod rules_etcd;
#[cfg(feature = "mysql")]
mod rules_mysql;
#[cfg(feature = "nats")]
mod rules_nats;
#[cfg(feature = "postgres")]
mod rules_postgres;
#[cfg(feature = "redis")]
mod rules_redis;
#[cfg(feature = "s3")]
mod s3_register;
#[cfg(feature = "chaos")]
mod same_answers;
mod store_names;
mod suite_can_fail;
mod suite_on_registers;
#[cfg(feature = "gcs")]
mod throttled_gcs;
#[cfg(feature = "s3")]
mod versioned_s3;
mod workers;
