//! The `leasehold` command, as its users meet it: real processes, real signals, a real store in a temporary folder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test that panics is a test that says so.
#![cfg(feature = "sqlite")]

mod bad_input;
mod doctor;
mod elect;
mod help;
mod listing;
mod loss;
mod once;
mod processes;
mod run;
mod settings;
mod sharing;
mod support;
mod terminal;
mod tickets;
mod waiting;
