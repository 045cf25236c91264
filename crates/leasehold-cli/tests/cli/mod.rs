//! Tests of the `leasehold` command with real processes, real signals and a real store in a temporary folder.

mod agent;
mod bad_input;
pub(crate) mod deadlock;
mod doctor;
mod elect;
mod help;
mod json;
mod listing;
mod loss;
mod max_hold;
mod modes;
mod namespaces;
mod once;
mod processes;
mod run;
mod settings;
mod several;
mod signals;
mod terminal;
mod tickets;
mod waiting;
