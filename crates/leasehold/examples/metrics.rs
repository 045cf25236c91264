//! Exports metrics for Prometheus, without `leasehold serve`. An observer counts events with the crate
//! prometheus-client.
//!
//! ```text
//! cargo run --example metrics
//! ```

use std::sync::Arc;
use std::time::Duration;

use leasehold::observe::{Event, Observer};
use leasehold::{Locker, Result};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};
use prometheus_client::registry::Registry;

/// The metrics of this process. Lock names are not labels, because their number is not limited.
struct Metrics {
    registry: Registry,
    held: Gauge,
    waiting: Gauge,
    acquire_seconds: Histogram,
    renewal_slack: Histogram,
    losses: Family<[(&'static str, &'static str); 1], Counter>,
    store_requests: Family<[(&'static str, &'static str); 2], Counter>,
    store_seconds: Family<[(&'static str, &'static str); 1], Histogram>,
}

/// Creates a histogram with buckets from 1 ms to 32 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

impl Metrics {
    fn new() -> Self {
        let mut registry = Registry::with_prefix("leasehold");
        let (held, waiting, acquire_seconds) = (Gauge::default(), Gauge::default(), seconds());
        let renewal_slack = Histogram::new(linear_buckets(0.1, 0.1, 10));
        let (losses, store_requests) = (Family::default(), Family::default());
        let store_seconds = Family::new_with_constructor(seconds as fn() -> Histogram);
        registry.register("held", "Locks that this process holds", held.clone());
        registry.register("waiting", "Acquisitions that wait for a holder", waiting.clone());
        registry.register("acquire_duration_seconds", "Time to acquire a lock", acquire_seconds.clone());
        let help = "Remaining lease at renewal, divided by its ttl";
        registry.register("renewal_slack_ratio", help, renewal_slack.clone());
        registry.register("losses", "Locks that were lost", losses.clone());
        registry.register("store_requests", "Requests to the store", store_requests.clone());
        let help = "Time of requests to the store";
        registry.register("store_request_duration_seconds", help, store_seconds.clone());
        Self {
            registry,
            held,
            waiting,
            acquire_seconds,
            renewal_slack,
            losses,
            store_requests,
            store_seconds,
        }
    }

    /// Returns the body of `/metrics`.
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Request { operation, took, outcome, .. } => {
                let operation = ("operation", operation.as_str());
                self.store_requests.get_or_create(&[operation, ("outcome", outcome.as_str())]).inc();
                self.store_seconds.get_or_create(&[operation]).observe(took.as_secs_f64());
            }
            Event::WaitBegan { .. } => {
                self.waiting.inc();
            }
            Event::WaitEnded { .. } => {
                self.waiting.dec();
            }
            Event::Acquired { waited, .. } => {
                self.held.inc();
                self.acquire_seconds.observe(waited.as_secs_f64());
            }
            Event::Resumed { .. } => {
                self.held.inc();
            }
            Event::Renewed { left, ttl, .. } => {
                self.renewal_slack.observe(left.div_duration_f64(ttl.get()));
            }
            Event::Lost { reason, .. } => {
                self.held.dec();
                self.losses.get_or_create(&[("reason", reason.as_str())]).inc();
            }
            Event::Released { .. } | Event::HandedOn { .. } => {
                self.held.dec();
            }
            // This includes the events of later versions.
            _ => {}
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let metrics = Arc::new(Metrics::new());
    let locker = Locker::open("mem:").await?.observed_by(metrics.clone());
    let lock = locker.lock("examples/metrics").ttl(Duration::from_secs(3));

    let guard = lock.acquire().await?;
    guard.renew().await?;
    guard.release().await?;

    let evicted = lock.acquire().await?;
    locker.evict(evicted.name(), evicted.token()?).await?;
    evicted.lost().await;
    // The guard knows of the loss first. The event follows in the background.
    while metrics.held.get() > 0 {
        tokio::task::yield_now().await;
    }

    let guard = lock.acquire().await?;
    let text = metrics.text();
    for line in text.lines().filter(|line| !line.contains("_bucket") && !line.contains("_sum")) {
        println!("{line}");
    }
    for line in [
        "leasehold_held 1",
        "leasehold_acquire_duration_seconds_count 3",
        "leasehold_losses_total{reason=\"ended\"} 1",
        "leasehold_store_requests_total{operation=\"acquire\",outcome=\"done\"} 3",
        "leasehold_store_requests_total{operation=\"renew\",outcome=\"lost\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    guard.release().await?;
    Ok(())
}
