//! What runs in the background: acquisitions and the queue of this process, the hand-off among its tasks, renewals.
//!
//! A caller's future waits for an answer, and holds nothing that others need: it may be kept without being polled.

pub(crate) mod acquisition;
pub(crate) mod hand_off;
pub(crate) mod limiter;
pub(crate) mod outage;
pub(crate) mod pacing;
pub(crate) mod queue;
pub(crate) mod renewer;
pub(crate) mod task;
