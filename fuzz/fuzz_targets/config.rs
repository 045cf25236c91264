//! The command has no library, so the configuration parser is included by its path.
#![no_main]
#![allow(dead_code, reason = "the command uses the rest")]

#[path = "../../crates/leasehold-cli/src/config.rs"]
mod config;
#[path = "../../crates/leasehold-cli/src/exit.rs"]
mod exit;
#[path = "../../crates/leasehold-cli/src/store_socket.rs"]
mod store_socket;

libfuzzer_sys::fuzz_target!(|data: &[u8]| config::fuzzing::config(data));
