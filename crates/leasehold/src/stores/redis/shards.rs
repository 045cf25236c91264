//! The servers of a store: one primary, or the primaries of a Redis Cluster, which share the locks between them by hash
//! slots.

use std::collections::HashMap;
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
    slots: Option<Arc<Slots>>,
    /// Primaries to ask for the slots, before the servers in the URL.
    known: Vec<Host>,
}

/// The shard of a lock, for one request.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) links: Arc<Links>,
    pub(super) link: Arc<Link>,
    /// Whether the shard has the slot only for requests that were sent on to it, while the slot moves there.
    asks: bool,
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

    /// Returns the shard that has `key`, if its connection is open.
    pub(super) fn opened(&self, key: &str) -> Option<Shard> {
        let links = match self.location().cluster {
            false => self.links(None),
            true => self.links(Some(locked(&self.slots).slots.as_ref()?.host_of(key)?)),
        };
        links.opened().map(|link| Shard::new(links, link, false))
    }

    /// Returns the shard that has `key`, and connects to it if necessary.
    pub(super) async fn shard(self: &Arc<Self>, key: &str) -> Result<Shard, StoreError> {
        if let Some(shard) = self.opened(key) {
            return Ok(shard);
        }
        if !self.location().cluster {
            return self.shard_at(None, false).await;
        }
        let slots = self.slots().await?;
        let host = slots
            .host_of(key)
            .ok_or_else(|| errors::without_server("the slot of this lock").not_applied())?;
        self.shard_at(Some(host), false).await
    }

    /// Connects to the shard whose primary is `host`.
    pub(super) async fn shard_at(&self, host: Option<&Host>, asks: bool) -> Result<Shard, StoreError> {
        let links = self.links(host);
        let link = links.link().await.inspect_err(|_| self.forget_slots(host))?;
        Ok(Shard::new(links, link, asks))
    }

    /// Asks for the slots again before the next request. `failed` may be unable to answer.
    fn forget_slots(&self, failed: Option<&Host>) {
        let mut found = locked(&self.slots);
        if let Some(slots) = found.slots.take() {
            found.known = slots.hosts();
        }
        found.known.retain(|host| Some(host) != failed);
    }

    /// Returns the slots of the cluster. Asks for them in a separate task, so that if the request is abandoned, the next
    /// one gets them.
    pub(super) async fn slots(self: &Arc<Self>) -> Result<Arc<Slots>, StoreError> {
        let shards = self.clone();
        let asked = tokio::spawn(async move {
            let _asking = shards.asking.lock().await;
            let known = match &*locked(&shards.slots) {
                Found { slots: Some(slots), .. } => return Ok(slots.clone()),
                Found { known, .. } => known.clone(),
            };
            let connector = &shards.connector;
            let (hosts, mut failed) = ([known, connector.location.hosts.clone()].concat(), Vec::new());
            for hosts in hosts.chunks(ASKED) {
                let ask = |host| Box::pin(connector.slots(host, &shards.env));
                match select_ok(hosts.iter().map(ask)).await {
                    Ok((slots, _)) => return Ok(locked(&shards.slots).slots.insert(Arc::new(slots)).clone()),
                    Err(error) => failed.push(error),
                }
            }
            Err(none_of(failed))
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
                    self.forget_slots(Some(&shard.link.host).filter(|_| error.code().is_none()));
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
    fn new(links: Arc<Links>, link: Arc<Link>, asks: bool) -> Self {
        Self { links, link, asks, redirect: Mutex::default() }
    }

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
