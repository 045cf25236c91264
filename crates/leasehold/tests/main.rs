//! The library's integration tests, in one binary with a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[cfg(feature = "blocking")]
mod blocking;
mod common;
mod crowd;
mod deadlock;
mod election;
mod existence;
mod faults;
mod fence;
mod guard;
mod hand_off;
mod interleavings;
mod limits;
mod line;
mod lines;
mod locks;
mod many;
mod max_hold;
mod observe;
mod once;
mod outage;
mod permit_queue;
mod protocol;
mod repeatable;
mod runtimes;
mod rw_lock;
mod semaphore;
mod server;
mod simulation;
mod sizes;
#[cfg(feature = "sqlite")]
mod sqlite_processes;
mod sweep;
mod unpolled_futures;
mod update;
mod waiting;
