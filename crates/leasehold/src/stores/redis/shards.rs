//! The servers of a store: one primary, or the primaries of a Redis Cluster, which share the locks between them by hash
//! slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::{ScriptInvocation, Value};

use super::config::Location;
use super::connect::Connector;
use super::errors;
use super::link::Link;
use super::links::Links;
use super::slots::{Redirect, Slots};
use crate::clock::{StoreTime, micros};
use crate::env::Env;
use crate::error::StoreError;
use crate::stores::hosts::{Host, none_of};
use crate::stores::notifications::Calls;
use crate::worker::detached;

/// How many servers of a cluster are asked at once for its slots.
const ASKED: usize = 4;

/// How wide the bounds of a clock become if it is not read for half an hour.
const VAGUE: Duration = Duration::from_secs(20);

/// The servers of a store.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) connector: Connector,
    pub(super) env: Env,
    pub(super) calls: Arc<Calls>,
    /// The connections by primary. `None` stands for the primary without a cluster.
    links: Mutex<HashMap<Option<Host>, Arc<Links>>>,
    /// The slots of a cluster, as they were last reported. Empty before the first question, and when they have changed.
    slots: Mutex<Arc<Slots>>,
    /// The primary at which a request failed last.
    failed: Mutex<Option<Host>>,
    asking: tokio::sync::Mutex<()>,
}

/// The shard of a lock, for one request.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) links: Arc<Links>,
    pub(super) link: Arc<Link>,
    /// Whether the shard gets the slot only now, and this request was sent on to it.
    asks: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shards {
    pub(super) fn new(connector: Connector, env: Env) -> Self {
        let calls = Calls::new(env.clone());
        let (links, slots, failed, asking) = Default::default();
        Self { connector, env, calls, links, slots, failed, asking }
    }

    pub(super) fn location(&self) -> &Location {
        &self.connector.location
    }

    fn links(&self, host: Option<&Host>) -> Arc<Links> {
        let new = || {
            let connector = host.map_or_else(|| self.connector.clone(), |host| self.connector.only(host));
            Arc::new(Links::new(connector, self.env.clone(), self.calls.clone()))
        };
        locked(&self.links).entry(host.cloned()).or_insert_with(new).clone()
    }

    pub(super) fn latest(&self) -> Arc<Slots> {
        locked(&self.slots).clone()
    }

    /// Returns the shard that has `key`, if its connection is open.
    pub(super) fn opened(&self, key: &str) -> Option<Shard> {
        let links = match self.location().cluster {
            true => self.links(Some(self.latest().host_of(key)?)),
            false => self.links(None),
        };
        links.opened().map(|link| Shard { links, link, asks: false })
    }

    /// Returns the shard that has `key`, and connects to it if necessary. Asks for the slots before that, because the
    /// primary may have been replaced.
    pub(super) async fn shard(self: &Arc<Self>, key: &str) -> Result<Shard, StoreError> {
        if let Some(shard) = self.opened(key) {
            return Ok(shard);
        }
        if !self.location().cluster {
            return self.shard_at(None, false).await;
        }
        let slots = self.slots(self.latest()).await?;
        let unknown = || errors::without_server("the slot of this lock").not_applied();
        self.shard_at(Some(slots.host_of(key).ok_or_else(unknown)?), false).await
    }

    /// Connects to the shard whose primary is `host`.
    pub(super) async fn shard_at(&self, host: Option<&Host>, asks: bool) -> Result<Shard, StoreError> {
        let links = self.links(host);
        let link = links.link().await.inspect_err(|_| *locked(&self.failed) = host.cloned())?;
        Ok(Shard { link, links, asks })
    }

    /// Drops the connections to servers that have no slots.
    fn adopt(&self, slots: Slots) -> Arc<Slots> {
        let primaries = slots.hosts();
        locked(&self.links).retain(|host, _| host.as_ref().is_none_or(|host| primaries.contains(host)));
        *locked(&self.slots) = Arc::new(slots);
        self.latest()
    }

    /// Returns the slots of the cluster, if they are no longer as `seen`, or else asks for them. Does so in a separate
    /// task, so that if the request is abandoned, the next one gets them.
    pub(super) async fn slots(self: &Arc<Self>, seen: Arc<Slots>) -> Result<Arc<Slots>, StoreError> {
        let shards = self.clone();
        detached(async move {
            let _asking = shards.asking.lock().await;
            let latest = shards.latest();
            if !Arc::ptr_eq(&latest, &seen) && !latest.hosts().is_empty() {
                return Ok(latest);
            }
            let all = locked(&shards.links).clone();
            let (open, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|(_, links)| links.opened().is_some());
            let hosts =
                |links: Vec<(Option<Host>, _)>| links.into_iter().filter_map(|(host, _)| host).collect();
            let seeds = shards.location().hosts.clone();
            let mut failed = Vec::new();
            let last = locked(&shards.failed).clone();
            let order = in_order([hosts(open), seeds, hosts(others)], last);
            for hosts in order.iter().flat_map(|hosts| hosts.chunks(ASKED)) {
                let ask = |host| Box::pin(shards.connector.slots(host, &shards.env));
                match select_ok(hosts.iter().map(ask)).await {
                    Ok((slots, _)) => return Ok(shards.adopt(slots)),
                    Err(error) => failed.push(error),
                }
            }
            Err(none_of(failed))
        })
        .await
    }

    /// Sends a script to `shard`. Returns with an error where the server sent the request on to.
    pub(super) async fn invoke(
        &self,
        shard: &Shard,
        script: &ScriptInvocation<'_>,
    ) -> Result<Value, (StoreError, Option<Redirect>)> {
        let answer = shard.links.invoke(&shard.link, script, shard.asks).await;
        answer.map_err(|error| {
            let redirect = Redirect::of(&error, &shard.link.host).filter(|_| self.location().cluster);
            if redirect.as_ref().is_some_and(|redirect| !redirect.asks) {
                *locked(&self.slots) = Arc::default();
            }
            if errors::is_of_this_server(&error) {
                *locked(&self.failed) = Some(shard.link.host.clone());
            }
            (errors::of_request(&error), redirect)
        })
    }

    /// Returns bounds that hold for the clocks of all shards. Skips those that were not read for long, if others were.
    pub(super) fn time(&self) -> Option<StoreTime> {
        let now = self.env.now();
        let times =
            locked(&self.links).values().filter_map(|links| links.clock.bounds(now)).collect::<Vec<_>>();
        let is_recent = |time: &StoreTime| time.hi_us - time.lo_us < micros(VAGUE);
        let has_recent = times.iter().any(is_recent);
        let times = times.into_iter().filter(|time| !has_recent || is_recent(time));
        times.reduce(|one, other| StoreTime {
            lo_us: one.lo_us.min(other.lo_us),
            hi_us: one.hi_us.max(other.hi_us),
            apart: one.apart.max(other.apart),
        })
    }

    pub(super) fn close(&self) {
        locked(&self.links).values().for_each(|links| links.close());
    }
}

/// Returns the servers to ask for the slots: first those that respond, and last the one at which a request `failed`. A
/// primary that is cut off may not know that it was replaced.
fn in_order(groups: [Vec<Host>; 3], failed: Option<Host>) -> Vec<Vec<Host>> {
    let others = groups.map(|hosts| hosts.into_iter().filter(|host| Some(host) != failed.as_ref()).collect());
    others.into_iter().chain([failed.into_iter().collect()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    fn shards() -> (Shards, Vec<Host>) {
        let url = StoreUrl::parse("redis://h1,h2/?cluster=on").unwrap();
        let location = Location::from_url(url, &mut StoreOptions::default()).unwrap();
        let hosts = location.hosts.clone();
        (Shards::new(Connector::to(location).unwrap(), Env::system()), hosts)
    }

    #[test]
    fn the_bounds_of_the_clock_hold_for_each_shard() {
        let (shards, hosts) = shards();
        assert!(shards.time().is_none());
        let now = shards.env.now();
        for (host, us) in hosts.iter().zip([5_000_000_000, 1_000_000_000]) {
            shards.links(Some(host)).clock.observe(us, Duration::ZERO, now, now);
        }
        let time = shards.time().unwrap();
        assert!(time.lo_us < 2_000_000_000 && time.hi_us >= 5_000_000_000, "{time:?}");
        // A server without slots no longer counts.
        let server = Value::Array(vec![Value::BulkString("h1".into()), Value::Int(6_379)]);
        let range = Value::Array(vec![Value::Int(0), Value::Int(16_383), server]);
        shards.adopt(Slots::of(Value::Array(vec![range]), &hosts[0]).unwrap());
        assert!(shards.time().unwrap().lo_us >= 5_000_000_000);
    }

    /// The bounds of a clock that was not read for long would delay every takeover.
    #[test]
    fn a_clock_that_was_not_read_for_long_does_not_count() {
        let (shards, hosts) = shards();
        let now = shards.env.now();
        let observe = |host: usize, resolution| {
            shards.links(Some(&hosts[host])).clock.observe(5_000_000_000, resolution, now, now);
        };
        observe(0, 2 * VAGUE);
        assert!(shards.time().unwrap().hi_us >= 5_040_000_000, "it is all there is");
        observe(1, Duration::ZERO);
        assert!(shards.time().unwrap().hi_us < 5_020_000_000);
    }

    #[test]
    fn the_primary_that_failed_is_asked_last_for_the_slots() {
        let host = |port| Host { name: "h".into(), port };
        let groups = [vec![host(1), host(2)], vec![host(2), host(3)], vec![]];
        let order = in_order(groups, Some(host(2))).concat();
        assert_eq!(order, [host(1), host(3), host(2)]);
    }
}
