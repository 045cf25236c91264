//! The metrics of each scenario, in the order of the tables' columns.

use crate::scenario::Scenario;

/// A metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// The name in samples.
    pub(crate) name: &'static str,
    /// The title in tables.
    pub(crate) title: &'static str,
    pub(crate) better: Better,
    /// Whether contenders are compared by it.
    pub(crate) compared: bool,
}

/// Which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
}

const fn compared(name: &'static str, title: &'static str, better: Better) -> Metric {
    Metric { name, title, better, compared: true }
}

const fn shown(name: &'static str, title: &'static str) -> Metric {
    Metric { name, title, better: Better::Less, compared: false }
}

pub(crate) const OPS: Metric = compared("ops_per_s", "locks/s", Better::More);
pub(crate) const REQUESTS: Metric = compared("requests_per_op", "requests/lock", Better::Less);
pub(crate) const CYCLE_P50: Metric = shown("cycle_p50_ms", "cycle p50, ms");
pub(crate) const CYCLE_P99: Metric = shown("cycle_p99_ms", "cycle p99, ms");
pub(crate) const STARVED: Metric = shown("starved_tasks", "tasks starved");
pub(crate) const HAND_OFF_P50: Metric = compared("hand_off_p50_ms", "hand-off p50, ms", Better::Less);
pub(crate) const HAND_OFF_P90: Metric = shown("hand_off_p90_ms", "p90, ms");
pub(crate) const HAND_OFF_P99: Metric = shown("hand_off_p99_ms", "p99, ms");
pub(crate) const HAND_OFF_MEAN: Metric = shown("hand_off_mean_ms", "mean, ms");
pub(crate) const HAND_OFFS: Metric = shown("hand_offs", "hand-offs seen");
pub(crate) const RECOVERY_TTLS: Metric = compared("recovery_ttls", "recovery, ttls", Better::Less);
pub(crate) const RECOVERY_S: Metric = shown("recovery_s", "recovery, s");
pub(crate) const REQUESTS_PER_S: Metric = compared("requests_per_s", "requests/s", Better::Less);
pub(crate) const CPU: Metric = compared("cpu_percent", "CPU, % of a core", Better::Less);
pub(crate) const MEMORY: Metric = compared("peak_memory_mb", "peak memory, MB", Better::Less);
pub(crate) const ACQUIRE_S: Metric = shown("acquire_all_s", "to take all, s");
pub(crate) const STREAMS: Metric = shown("keep_alive_streams", "keep-alive streams");
pub(crate) const HELD: Metric = shown("held_locks", "locks held");
pub(crate) const RENEWALS: Metric = shown("renewals_per_s", "renewals/s");
pub(crate) const LEFT: Metric = shown("least_left_s", "least left of a lease, s");
pub(crate) const LOST: Metric = shown("lost_locks", "locks lost");
pub(crate) const RUN_P50: Metric = compared("run_p50_ms", "run p50, ms", Better::Less);
pub(crate) const RUN_P90: Metric = shown("run_p90_ms", "p90, ms");
pub(crate) const JAIN_TASKS: Metric = shown("jain_tasks", "Jain's index, tasks");
pub(crate) const JAIN_PROCESSES: Metric = shown("jain_processes", "Jain's index, processes");
pub(crate) const OVERTAKEN: Metric = shown("overtaken", "out of order");
pub(crate) const FIRST_MS: Metric = compared("first_grant_ms", "first grant, ms", Better::Less);
pub(crate) const TOOK: Metric = shown("took_s", "all turns, s");
pub(crate) const LONGEST_WAIT: Metric = shown("longest_wait_s", "longest wait, s");

impl Scenario {
    /// Returns the columns of its table on the page. Clients are compared by the first one, which is also plotted.
    pub(crate) fn summary(self) -> &'static [Metric] {
        match self {
            Self::Uncontended => &[OPS, REQUESTS, CYCLE_P99],
            Self::Tasks | Self::Processes => &[OPS, REQUESTS, STARVED],
            Self::HandOff => &[HAND_OFF_P50, HAND_OFF_P99, REQUESTS],
            Self::Recovery => &[RECOVERY_S],
            Self::Many => &[CPU, MEMORY, HELD, ACQUIRE_S, REQUESTS_PER_S, RENEWALS, LEFT, LOST],
            Self::Run => &[RUN_P50, RUN_P90],
            Self::First => &[FIRST_MS, REQUESTS],
            Self::Waiters => &[REQUESTS, HAND_OFF_P50, OVERTAKEN, STARVED],
        }
    }

    /// Returns the columns of its table in the terminal.
    pub(crate) fn metrics(self) -> &'static [Metric] {
        match self {
            Self::Uncontended => &[OPS, REQUESTS, CYCLE_P50, CYCLE_P99],
            Self::Tasks | Self::Processes => &[OPS, REQUESTS, STARVED],
            Self::HandOff => &[HAND_OFF_P50, HAND_OFF_P90, HAND_OFF_P99, HAND_OFFS, REQUESTS],
            Self::Recovery => &[RECOVERY_TTLS, RECOVERY_S],
            Self::Many => &[CPU, MEMORY, HELD, ACQUIRE_S, REQUESTS_PER_S, STREAMS, RENEWALS, LEFT, LOST],
            Self::Run => &[RUN_P50, RUN_P90],
            Self::First => &[FIRST_MS, REQUESTS],
            Self::Waiters => &[
                REQUESTS,
                HAND_OFF_P50,
                HAND_OFF_P90,
                HAND_OFF_MEAN,
                HAND_OFFS,
                OVERTAKEN,
                JAIN_PROCESSES,
                LONGEST_WAIT,
                STARVED,
                TOOK,
            ],
        }
    }
}
