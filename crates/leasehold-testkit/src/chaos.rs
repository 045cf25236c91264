//! Chaos on real servers: many processes that take one lock while they, the servers, the network between them and their
//! clocks fail, and a checker that reads afterwards what they believed. `./chaos` runs it; docs/chaos.md tells how.
//!
//! - [`scenario`]: what it is made on.
//! - [`plan`]: which faults come when, from a seed.
//! - [`nemesis`]: runs a scenario, with each fault in its time.
//! - [`servers`]: the servers of a scenario, and the ways to them; [`environment`]: what is done to those.
//! - [`fleet`]: its workers, which are stopped and killed.
//! - [`faults`]: does what is planned.
//! - [`worker`]: what each process does; [`contender`]: with what kind of lock; [`naive`]: with locks that are none.
//! - [`resource`]: the counter that the lock protects.
//! - [`true_time`], [`history`]: what happened when.
//! - [`checker`]: whether that was right.
//! - [`options`], [`report`]: what the user asks, and is told.

pub mod checker;
pub mod contender;
pub mod environment;
pub mod faults;
pub mod fleet;
pub mod history;
pub mod naive;
pub mod nemesis;
pub mod options;
pub mod plan;
pub mod report;
pub mod resource;
pub mod scenario;
pub mod servers;
pub mod true_time;
pub mod worker;
