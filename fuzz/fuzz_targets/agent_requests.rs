//! The command has no library, so the modules that serve the agent's requests are included by their paths.
#![no_main]
#![allow(dead_code, unused_imports, reason = "the command uses the rest")]

#[path = "../../crates/leasehold-cli/src"]
mod command {
    pub mod config;
    pub mod escape;
    pub mod exit;
    pub mod mode;
    pub mod report;
    pub mod store_socket;

    pub mod agent {
        mod fields;
        pub mod fuzzing;
        mod hold;
        mod inspect;
        mod locks;
        mod message;
        mod objects;
        mod pipe;
        mod refusal;
        mod requests;
        mod session;
        mod stores;
        mod tickets;
        mod waiting;
    }

    pub mod output {
        pub mod doctor;
        pub mod human;
    }
}

use command::{agent, config, escape, exit, mode, output, report, store_socket};

libfuzzer_sys::fuzz_target!(|data: &[u8]| agent::fuzzing::agent_requests(data));
