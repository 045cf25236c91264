//! Chaos tests on real servers: many processes contend for one lock while the processes, the servers, the network and
//! the clocks fail. A checker then reads what each process recorded. `./chaos` runs them; see docs/chaos.md.
//!
//! - [`scenario`]: the definition of a run.
//! - [`plan`]: the schedule of faults, drawn from a seed.
//! - [`nemesis`]: runs a scenario and its plan of faults.
//! - [`servers`]: the servers of a scenario and the proxies in front of them; [`replicated`]: databases with replicas;
//!   [`environment`]: the faults applied to them.
//! - [`fleet`]: starts, stops, kills and replaces the worker processes.
//! - [`faults`]: carries out a planned fault.
//! - [`worker`]: the work of each process; [`contender`]: the locks that it uses; [`naive`]: incorrect locks that the
//!   checker must catch.
//! - [`registers`]: single conditional requests of some workers; [`linearizable`]: judges them.
//! - [`workers`]: the programs of the processes, in Rust and in the languages of the clients.
//! - [`resource`]: the counter that the lock protects.
//! - [`true_time`], [`history`]: the record of events, with times that faked clocks do not affect.
//! - [`checker`]: judges the recorded history.
//! - [`options`], [`report`]: the command line and the printed results.

pub mod checker;
pub mod contender;
pub mod environment;
pub mod faults;
pub mod fleet;
pub mod history;
pub mod linearizable;
pub mod naive;
pub mod nemesis;
pub mod options;
pub mod plan;
pub mod registers;
pub mod replicated;
pub mod report;
pub mod resource;
pub mod scenario;
pub mod servers;
pub mod true_time;
pub mod worker;
pub mod workers;
