//! Metrics in the format of Prometheus. No label contains the name of a lock, because there may be any number of locks.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::observe::{Event, Observer, Operation, Outcome as RequestOutcome};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::capacity::Capacity;
use crate::problem::Problem;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

/// The outcomes of requests for a lock, in addition to those in `COMMON`.
const ACQUISITIONS: &[&str] =
    &["granted", "held", "key-spent", "too-many-requests", "too-many-waiters", "unsupported", "stopping"];

/// The outcomes of renewals, in addition to those in `COMMON`.
const RENEWALS: &[&str] = &["renewed", "lost", "unknown", "too-many-requests"];

/// The outcomes of both.
const COMMON: &[&str] =
    &["invalid", "forbidden", "unavailable", "store-denied", "conflict", "corrupt", "failed"];

/// The requests to the store that clients cause.
const OPERATIONS: &[Operation] = &[
    Operation::Acquire,
    Operation::Renew,
    Operation::Release,
    Operation::Evict,
    Operation::Inspect,
    Operation::List,
];

/// The reasons of losses.
const REASONS: &[&str] = &["expired", "taken_over", "ended", "deleted", "renewed_elsewhere", "limit"];

/// Why a request has no principal.
const UNAUTHORIZED: &[&str] = &["missing", "wrong"];

/// The metrics of the server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    acquisitions: Family<Outcome, Counter>,
    acquire_seconds: Histogram,
    renewals: Family<Outcome, Counter>,
    losses: Family<Reason, Counter>,
    evictions: Counter,
    audit_failures: Counter,
    unauthorized: Family<Reason, Counter>,
    waiters: Gauge,
    most_waiters: Gauge,
    polls: Gauge,
    viewers: Gauge,
    store_requests: Family<Request, Counter>,
    store_seconds: Family<OperationLabel, Histogram>,
    slack: Histogram,
}

impl Observer for Metrics {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Request { operation, took, outcome, .. } = event {
            let operation = operation.as_str();
            self.store_requests.get_or_create(&Request { operation, outcome: outcome.as_str() }).inc();
            self.store_seconds.get_or_create(&OperationLabel { operation }).observe(took.as_secs_f64());
        }
    }
}

impl Metrics {
    pub(crate) fn new(store: &str) -> Self {
        let mut registry = Registry::with_prefix("leasehold");
        let metrics = Self {
            acquisitions: Family::default(),
            // 1 ms to 32 s.
            acquire_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            renewals: Family::default(),
            losses: Family::default(),
            evictions: Counter::default(),
            audit_failures: Counter::default(),
            unauthorized: Family::default(),
            waiters: Gauge::default(),
            most_waiters: Gauge::default(),
            polls: Gauge::default(),
            viewers: Gauge::default(),
            store_requests: Family::default(),
            store_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 16))
            }),
            slack: Histogram::new(linear_buckets(0.1, 0.1, 10)),
            registry: Registry::default(),
        };
        metrics.begin_at_zero();
        let Self { acquisitions, acquire_seconds, renewals, losses, evictions, .. } = &metrics;
        let Self { waiters, most_waiters, polls, viewers, audit_failures, unauthorized, .. } = &metrics;
        let Self { store_requests, store_seconds, slack, .. } = &metrics;
        registry.register("acquisitions", "Requests for a lock, by outcome", acquisitions.clone());
        let help = "Time from a request for a lock to its grant";
        registry.register("acquire_duration_seconds", help, acquire_seconds.clone());
        registry.register("renewals", "Renewals, by outcome", renewals.clone());
        registry.register("losses", "Holds whose loss was reported, by reason", losses.clone());
        registry.register("evictions", "Grants that an operator has ended", evictions.clone());
        let help = "Lines that were not written to the audit log in time";
        registry.register("audit_failures", help, audit_failures.clone());
        let help = "Requests without a token, or with a wrong one";
        registry.register("unauthorized", help, unauthorized.clone());
        registry.register("waiters", "Requests that are waiting for a lock", waiters.clone());
        registry.register("waiters_limit", "How many requests may wait for a lock", most_waiters.clone());
        registry.register("polls", "Requests that are waiting for a change of a lock", polls.clone());
        registry.register("viewers", "Open event streams", viewers.clone());
        registry.register("store_requests", "Requests to the store, by outcome", store_requests.clone());
        let help = "Duration of requests to the store";
        registry.register("store_request_duration_seconds", help, store_seconds.clone());
        let help = "Remaining validity of a hold when its renewal is confirmed, divided by its ttl";
        registry.register("renewal_slack_ratio", help, slack.clone());
        let build =
            Info::new(vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("store", store.to_owned())]);
        registry.register("build", "Version of leasehold and kind of store", build);
        Self { registry, ..metrics }
    }

    /// Creates all series with the value 0. Otherwise the first loss after a start would create a series that already
    /// begins at 1, so Prometheus would see no increase and no alert would fire.
    fn begin_at_zero(&self) {
        for outcome in COMMON {
            for family in [&self.acquisitions, &self.renewals] {
                family.get_or_create(&Outcome { outcome: (*outcome).to_owned() }).inc_by(0);
            }
        }
        for (family, outcomes) in [(&self.acquisitions, ACQUISITIONS), (&self.renewals, RENEWALS)] {
            for outcome in outcomes {
                family.get_or_create(&Outcome { outcome: (*outcome).to_owned() }).inc_by(0);
            }
        }
        for operation in OPERATIONS.iter().map(|operation| operation.as_str()) {
            drop(self.store_seconds.get_or_create(&OperationLabel { operation }));
            for outcome in [RequestOutcome::Done, RequestOutcome::Failed(ErrorKind::Unavailable)] {
                self.store_requests
                    .get_or_create(&Request { operation, outcome: outcome.as_str() })
                    .inc_by(0);
            }
        }
        for reason in UNAUTHORIZED {
            self.unauthorized.get_or_create(&Reason { reason: (*reason).to_owned() }).inc_by(0);
        }
        for reason in REASONS {
            self.losses.get_or_create(&Reason { reason: (*reason).to_owned() }).inc_by(0);
        }
    }

    /// Counts a request for a lock. `took` is the time until its grant, if it received a new one.
    pub(crate) fn acquired<T>(&self, outcome: &Result<T, Problem>, took: Option<Duration>) {
        self.acquisitions.get_or_create(&of(outcome, "granted")).inc();
        if let Some(took) = took {
            self.acquire_seconds.observe(took.as_secs_f64());
        }
    }

    /// Counts a renewal. `slack` is the fraction of the ttl for which the hold is valid from now on.
    pub(crate) fn renewed<T>(&self, outcome: &Result<T, Problem>, slack: Option<f64>) {
        self.renewals.get_or_create(&of(outcome, "renewed")).inc();
        if let Some(slack) = slack {
            self.slack.observe(slack);
        }
    }

    pub(crate) fn lost(&self, reason: &str) {
        self.losses.get_or_create(&Reason { reason: reason.to_owned() }).inc();
    }

    pub(crate) fn evicted(&self) {
        self.evictions.inc();
    }

    /// Counts a request without a principal, for one of the reasons in `UNAUTHORIZED`.
    pub(crate) fn unauthorized(&self, reason: &str) {
        self.unauthorized.get_or_create(&Reason { reason: reason.to_owned() }).inc();
    }

    /// Counts a line that was not written to the audit log in time.
    pub(crate) fn not_audited(&self) {
        self.audit_failures.inc();
    }

    /// Returns all metrics as text, with the current numbers of requests that stay open.
    pub(crate) fn text(&self, capacity: &Capacity) -> String {
        let Capacity { waits, polls, streams } = capacity;
        for (gauge, value) in [
            (&self.waiters, waits.open()),
            (&self.most_waiters, waits.most()),
            (&self.polls, polls.open()),
            (&self.viewers, streams.open()),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn of<T>(outcome: &Result<T, Problem>, fine: &str) -> Outcome {
    let outcome = outcome.as_ref().map_or_else(|problem| problem.outcome(), |_| fine);
    Outcome { outcome: outcome.to_owned() }
}

#[cfg(test)]
mod tests {
    use leasehold::LossReason;

    use super::*;
    use crate::access::Caller;

    #[test]
    fn series_begin_at_zero() {
        let text = Metrics::new("SQLite").text(&Capacity::of(160));
        for line in [
            "leasehold_acquisitions_total{outcome=\"granted\"} 0",
            "leasehold_acquisitions_total{outcome=\"unavailable\"} 0",
            "leasehold_renewals_total{outcome=\"renewed\"} 0",
            "leasehold_renewals_total{outcome=\"unavailable\"} 0",
            "leasehold_losses_total{reason=\"taken_over\"} 0",
            "leasehold_store_requests_total{operation=\"acquire\",outcome=\"unavailable\"} 0",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let reasons =
            [LossReason::Ended, LossReason::Deleted, LossReason::RenewedElsewhere, LossReason::Limit];
        for reason in reasons.iter().chain([&LossReason::Expired { last_error: None }]) {
            assert!(REASONS.contains(&reason.as_str()), "{reason:?}");
        }
    }

    #[test]
    fn outcomes_are_counted() {
        let metrics = Metrics::new("SQLite");
        metrics.acquired(&Ok(()), Some(Duration::from_millis(3)));
        metrics.acquired::<()>(&Err(Problem::invalid("no")), None);
        metrics.renewed(&Ok(()), Some(0.95));
        metrics.lost("ended");
        metrics.evicted();
        metrics.not_audited();
        metrics.unauthorized("wrong");
        let capacity = Capacity::of(160);
        let caller = Caller::with_rights("ci", Vec::new());
        let _open =
            [&capacity.waits, &capacity.waits, &capacity.streams].map(|kind| kind.enter(&caller, None));
        let text = metrics.text(&capacity);
        for line in [
            "leasehold_acquisitions_total{outcome=\"granted\"} 1",
            "leasehold_acquisitions_total{outcome=\"invalid\"} 1",
            "leasehold_acquire_duration_seconds_count 1",
            "leasehold_renewals_total{outcome=\"renewed\"} 1",
            "leasehold_renewal_slack_ratio_bucket{le=\"0.9\"} 0",
            "leasehold_renewal_slack_ratio_count 1",
            "leasehold_losses_total{reason=\"ended\"} 1",
            "leasehold_evictions_total 1",
            "leasehold_audit_failures_total 1",
            "leasehold_unauthorized_total{reason=\"wrong\"} 1",
            "leasehold_unauthorized_total{reason=\"missing\"} 0",
            "leasehold_waiters 2",
            "leasehold_waiters_limit 120",
            "leasehold_polls 0",
            "leasehold_viewers 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(
            text.contains("leasehold_build_info{version=\"") && text.contains("store=\"SQLite\""),
            "{text}"
        );
    }
}
