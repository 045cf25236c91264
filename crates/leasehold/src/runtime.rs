//! Background work: acquisitions, the queues of this process, the hand-off among its tasks, and renewals.
//!
//! A caller's future only waits for a response. It holds nothing that others need, so a program may keep the future
//! without polling it.

pub(crate) mod acquisition;
pub(crate) mod deadlock;
pub(crate) mod hand_off;
pub(crate) mod limit;
pub(crate) mod open_store;
pub(crate) mod outage;
pub(crate) mod queue;
pub(crate) mod renewer;
pub(crate) mod task;
