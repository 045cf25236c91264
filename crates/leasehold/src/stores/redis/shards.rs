//! The servers of a store: one primary, or the primaries of a Redis Cluster, which share the locks between them by hash
//! slots.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::select_ok;
use redis::{RedisError, ScriptInvocation, Value};

use super::config::Location;
use super::connect::Connector;
use super::errors;
use super::link::Link;
use super::links::Links;
use super::slots::{Slots, redirect};
use crate::clock::StoreTime;
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::stores::hosts::{Host, none_of};
use crate::stores::notifications::Calls;

/// How many servers of a cluster are asked at once for its slots.
const ASKED: usize = 4;

/// The servers of a store.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) connector: Connector,
    pub(super) env: Env,
    pub(super) calls: Arc<Calls>,
    /// The connections that were ever needed, by primary. `None` stands for the primary without a cluster.
    links: Mutex<HashMap<Option<Host>, Arc<Links>>>,
    slots: Mutex<Found>,
    asking: tokio::sync::Mutex<()>,
}

/// What is known about the slots of a cluster.
#[derive(Debug, Default)]
struct Found {
    slots: Arc<Slots>,
    is_current: bool,
    /// The server to ask last, because it may have been replaced.
    failed: Option<Host>,
}

/// The shard of a lock, for one request.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) links: Arc<Links>,
    pub(super) link: Arc<Link>,
    /// Whether the shard has the slot only for requests that were sent on to it, while the slot moves there.
    asks: bool,
    /// The slots when the request began.
    slots: Arc<Slots>,
    /// Where the server sent the request on to, and whether only this one.
    redirect: Mutex<Option<(Host, bool)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shards {
    pub(super) fn new(connector: Connector, env: Env) -> Self {
        let calls = Calls::new(env.clone());
        let (links, slots, asking) = Default::default();
        Self { connector, env, calls, links, slots, asking }
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

    fn latest(&self) -> Arc<Slots> {
        locked(&self.slots).slots.clone()
    }

    fn shard_of(&self, links: Arc<Links>, link: Arc<Link>, asks: bool) -> Shard {
        Shard { links, link, asks, slots: self.latest(), redirect: Mutex::default() }
    }

    /// Returns the shard that has `key`, if its connection is open.
    pub(super) fn opened(&self, key: &str) -> Option<Shard> {
        let links = match self.location().cluster {
            false => self.links(None),
            true if !locked(&self.slots).is_current => return None,
            true => self.links(Some(self.latest().host_of(key)?)),
        };
        links.opened().map(|link| self.shard_of(links, link, false))
    }

    /// Returns the shard that has `key`, and connects to it if necessary.
    pub(super) async fn shard(self: &Arc<Self>, key: &str) -> Result<Shard, StoreError> {
        if let Some(shard) = self.opened(key) {
            return Ok(shard);
        }
        if !self.location().cluster {
            return self.shard_at(None, false).await;
        }
        let seen = self.latest();
        if let Some(host) = seen.host_of(key)
            && self.links(Some(host)).was_used.swap(true, Ordering::SeqCst)
        {
            // The connection was lost, or the server does not respond.
            self.outdate(&seen, Some(host));
        }
        let slots = self.slots().await?;
        let unknown = || errors::without_server("the slot of this lock").not_applied();
        self.shard_at(Some(slots.host_of(key).ok_or_else(unknown)?), false).await
    }

    /// Connects to the shard whose primary is `host`.
    pub(super) async fn shard_at(&self, host: Option<&Host>, asks: bool) -> Result<Shard, StoreError> {
        let links = self.links(host);
        let link = links.link().await.inspect_err(|_| self.outdate(&self.latest(), host))?;
        Ok(self.shard_of(links, link, asks))
    }

    /// Asks for the slots before the next request, unless that was done since they were as `seen`.
    fn outdate(&self, seen: &Arc<Slots>, failed: Option<&Host>) {
        let mut found = locked(&self.slots);
        if Arc::ptr_eq(&found.slots, seen) {
            (found.is_current, found.failed) = (false, failed.cloned());
        }
    }

    /// Returns the slots of the cluster. Asks for them in a separate task, so that if the request is abandoned, the next
    /// one gets them.
    pub(super) async fn slots(self: &Arc<Self>) -> Result<Arc<Slots>, StoreError> {
        let shards = self.clone();
        let asked = tokio::spawn(async move {
            let _asking = shards.asking.lock().await;
            let (seeds, mut hosts) = (shards.location().hosts.clone(), shards.latest().hosts());
            let failed = match &*locked(&shards.slots) {
                Found { slots, is_current: true, .. } => return Ok(slots.clone()),
                Found { failed, .. } => failed.clone(),
            };
            hosts.extend(seeds);
            hosts.retain(|host| Some(host) != failed.as_ref());
            let mut errors = Vec::new();
            for hosts in hosts.chunks(ASKED).chain(failed.as_slice().chunks(1)) {
                let ask = |host| Box::pin(shards.connector.slots(host, &shards.env));
                match select_ok(hosts.iter().map(ask)).await {
                    Ok((slots, _)) => {
                        let slots = Arc::new(slots);
                        *locked(&shards.slots) =
                            Found { slots: slots.clone(), is_current: true, failed: None };
                        return Ok(slots);
                    }
                    Err(error) => errors.push(error),
                }
            }
            Err(none_of(errors))
        });
        asked.await.unwrap_or_else(|_| Err(Fault::unavailable("the program is ending").not_applied()))
    }

    /// Sends a script to `shard`.
    pub(super) async fn invoke(
        &self,
        shard: &Shard,
        script: &ScriptInvocation<'_>,
    ) -> Result<Value, StoreError> {
        let answer = shard.links.invoke(&shard.link, script, shard.asks).await;
        answer.map_err(|error: RedisError| {
            if self.location().cluster {
                *locked(&shard.redirect) = redirect(&error, &shard.link.host);
                if errors::is_of_this_shard(&error) {
                    self.outdate(&shard.slots, Some(&shard.link.host));
                }
            }
            errors::of_request(&error)
        })
    }

    /// Returns bounds that hold for the clocks of all shards.
    pub(super) fn time(&self) -> Option<StoreTime> {
        let (now, links) = (self.env.now(), locked(&self.links));
        let times = links.values().filter_map(|links| links.clock.bounds(now));
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

impl Shard {
    /// Returns where the latest request was sent on to, and whether only that one, and forgets it.
    pub(super) fn redirect(&self) -> Option<(Host, bool)> {
        locked(&self.redirect).take()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    #[test]
    fn the_bounds_of_the_clock_hold_for_each_shard() {
        let url = StoreUrl::parse("redis://h1,h2/?cluster=on").unwrap();
        let location = Location::from_url(url, &mut StoreOptions::default()).unwrap();
        let hosts = location.hosts.clone();
        let shards = Shards::new(Connector::to(location).unwrap(), Env::system());
        assert!(shards.time().is_none());
        let now = shards.env.now();
        for (host, us) in hosts.iter().zip([5_000_000_000, 1_000_000_000]) {
            shards.links(Some(host)).clock.observe(us, Duration::ZERO, now, now);
        }
        let time = shards.time().unwrap();
        assert!(time.lo_us < 2_000_000_000 && time.hi_us >= 5_000_000_000, "{time:?}");
    }
}
