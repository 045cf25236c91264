//! Spans: they are children of the caller's, and each hold has one.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

use super::{SECOND, world};
use crate::common::TTL;
use leasehold::{Guard, Locker};
use leasehold_testkit::fault::{Kind, Outcome as Fault};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Instrument as _, Level, Subscriber, info_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// A span that was closed: its name, its parent's name, and its fields.
type Closed = (String, Option<String>, HashMap<String, String>);

/// Keeps the spans that have closed.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Closed>>>);

impl Spans {
    fn closed(&self) -> Vec<Closed> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[derive(Default)]
struct Fields(HashMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").replace('"', ""));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<Fields>().unwrap());
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let followed = context.span(follows).unwrap().name().to_owned();
        let span = context.span(id).unwrap();
        span.extensions_mut().get_mut::<Fields>().unwrap().0.insert("follows".to_owned(), followed);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let parent = span.parent().map(|parent| parent.name().to_owned());
        let fields = span.extensions_mut().remove::<Fields>().unwrap();
        self.0.lock().unwrap().push((span.name().to_owned(), parent, fields.0));
    }
}

/// Formats the closed spans of leasehold as `name < parent` with the fields `wanted`.
fn shown(spans: Vec<Closed>, wanted: &[&str]) -> Vec<String> {
    let spans = spans.into_iter().filter(|(name, ..)| name.starts_with("leasehold."));
    let shown = spans.map(|(name, parent, fields)| {
        let fields: Vec<_> = wanted.iter().filter_map(|field| fields.get(*field).cloned()).collect();
        format!("{name} < {} [{}]", parent.unwrap_or_default(), fields.join(" "))
    });
    shown.collect()
}

/// Records the spans of this thread.
///
/// For each callsite, tracing remembers whether its spans are recorded. If the process has only one subscriber, tracing
/// asks the default subscriber of the first thread that reaches the callsite. That thread may run another test, which
/// has no subscriber. A second subscriber avoids this.
fn record(spans: &Spans) -> DefaultGuard {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Registry::default()));
    LazyLock::force(&SECOND);
    tracing::subscriber::set_default(Registry::default().with(spans.clone()))
}

#[tokio::test(start_paused = true)]
async fn spans_are_below_those_of_the_caller() {
    let spans = Spans::default();
    let _default = record(&spans);
    let world = world().await;
    let (client, other) = (world.observer(1), world.observer(2));
    let locker = Locker::new(client.leases.clone());
    let lock = locker.lock("x").ttl(TTL);
    spans.closed();

    // With a time limit, the acquisition runs in two tasks.
    let guard = lock.acquire_within(SECOND).instrument(info_span!("job")).await.unwrap();
    let wanted = ["store", "operation", "lock", "outcome"];
    let acquired = shown(spans.closed(), &wanted);
    assert_eq!(
        acquired,
        [
            "leasehold.request < leasehold.acquire [memory acquire x done]",
            "leasehold.acquire < job [x acquired]"
        ]
    );

    let _ = Locker::new(other.leases.clone()).lock("x").try_acquire().await.unwrap_err();
    let refused = shown(spans.closed(), &["outcome"]);
    assert_eq!(refused, ["leasehold.request < leasehold.acquire [held]", "leasehold.acquire <  [held]"]);

    client.env.sleep(SECOND * 12).await;
    let renewed = shown(spans.closed(), &["operation", "outcome"]);
    assert_eq!(
        renewed,
        ["leasehold.request < leasehold.renew [renew done]", "leasehold.renew < leasehold.hold []"],
        "not below the caller's span, which may have ended"
    );

    guard.release().instrument(info_span!("clean-up")).await.unwrap();
    client.env.sleep(SECOND).await;
    let released = shown(spans.closed(), &["operation", "outcome"]);
    assert_eq!(
        released,
        [
            "leasehold.hold <  [released]",
            "leasehold.request < leasehold.release [release done]",
            "leasehold.release < clean-up []"
        ]
    );

    let guard = lock.acquire().await.unwrap();
    spans.closed();
    locker.evict(guard.name(), guard.token().unwrap()).instrument(info_span!("operator")).await.unwrap();
    let evicted = shown(spans.closed(), &["operation", "outcome"]);
    assert_eq!(
        evicted,
        ["leasehold.request < leasehold.evict [evict done]", "leasehold.evict < operator []"]
    );
}

/// Formats the closed spans of holds: what each follows from, its lock and its outcome. Asserts that each has a token.
fn holds(spans: &Spans) -> Vec<String> {
    let mut closed = spans.closed();
    closed.retain(|(name, ..)| name == "leasehold.hold");
    assert!(closed.iter().all(|(.., fields)| fields.contains_key("token")), "{closed:?}");
    shown(closed, &["follows", "lock", "outcome"])
}

#[tokio::test(start_paused = true)]
async fn a_span_of_a_hold_lasts_until_its_guard_ends() {
    let spans = Spans::default();
    let _default = record(&spans);
    let world = world().await;
    let client = world.observer(1);
    spans.closed();
    let locker = Locker::new(client.leases.clone());
    let lock = locker.lock("x").ttl(TTL);

    let guard = lock.acquire().instrument(info_span!("job")).await.unwrap();
    client.env.sleep(SECOND * 12).await;
    assert_eq!(holds(&spans), [""; 0], "it is held");
    drop(guard);
    assert_eq!(holds(&spans), ["leasehold.hold <  [leasehold.acquire x released]"]);

    // A resumed hold follows from no acquisition of this process.
    let ticket = lock.acquire().await.unwrap().into_ticket().await.unwrap();
    assert_eq!(holds(&spans), ["leasehold.hold <  [leasehold.acquire x handed_on]"]);
    let resumed = locker.resume(&ticket).await.unwrap();
    resumed.release().await.unwrap();
    assert_eq!(holds(&spans), ["leasehold.hold <  [x released]"]);

    let evicted = lock.acquire().await.unwrap();
    locker.evict(evicted.name(), evicted.token().unwrap()).await.unwrap();
    evicted.lost().await;
    client.env.sleep(SECOND).await;
    assert_eq!(holds(&spans), ["leasehold.hold <  [leasehold.acquire x lost]"], "the guard is still there");
}

#[tokio::test(start_paused = true)]
async fn the_span_of_a_hold_ends_at_the_deadline() {
    let spans = Spans::default();
    let _default = record(&spans);
    let world = world().await;
    let client = world.observer(1);
    spans.closed();
    let guard = Locker::new(client.leases.clone()).lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.every(Kind::Write, Fault::Stalled);
    guard.lost().await;
    client.env.sleep(TTL * 3).await;
    assert_eq!(holds(&spans), ["leasehold.hold <  [leasehold.acquire x lost]"]);
}

/// Uses the guard while the loss is logged, as a subscriber may.
#[derive(Clone, Default)]
struct UsesTheGuard {
    guard: Arc<OnceLock<Guard>>,
    remaining: Arc<Mutex<Vec<Duration>>>,
}

impl<S: Subscriber> Layer<S> for UsesTheGuard {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == Level::WARN
            && let Some(guard) = self.guard.get()
        {
            self.remaining.lock().unwrap().push(guard.remaining());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_may_use_the_guard_whose_loss_is_logged() {
    let spans = Spans::default();
    let _default = record(&spans);
    let subscriber = UsesTheGuard::default();
    let _default = tracing::subscriber::set_default(Registry::default().with(subscriber.clone()));
    let world = world().await;
    let client = world.observer(1);
    let locker = Locker::new(client.leases.clone());
    // The guard itself notices that its deadline passes.
    let guard = locker.lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.every(Kind::Write, Fault::Stalled);
    subscriber.guard.set(guard).unwrap();
    subscriber.guard.get().unwrap().lost().await;
    assert_eq!(*subscriber.remaining.lock().unwrap(), [Duration::ZERO]);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_passed_on_has_a_span_for_each_hold() {
    let spans = Spans::default();
    let _default = record(&spans);
    let world = world().await;
    let client = world.observer(1);
    spans.closed();
    let lock = Locker::new(client.leases.clone()).lock("x").ttl(TTL);
    let first = lock.acquire().await.unwrap();
    let next = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    client.env.sleep(SECOND).await;
    first.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(holds(&spans), ["leasehold.hold <  [leasehold.acquire x released]"]);
    next.release().await.unwrap();
    assert_eq!(holds(&spans), ["leasehold.hold <  [leasehold.acquire x released]"]);
}
