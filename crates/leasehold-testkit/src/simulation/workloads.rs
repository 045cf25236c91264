//! The workloads of the simulated machines, and the rules about simultaneous holders.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Register as _;
use leasehold::clock::{RATE_ERROR, timeout};
use leasehold::lease::Ttl;
use leasehold::{Guard, Lock, LockName, RwLock};

use super::checker::{Checker, Held};
use super::client::Client;
use super::plan::{FOREIGN_LEASE, Fault, LONGEST_POLL, Store, Workload};
use super::{LOCK, SEVERAL};

impl Client {
    /// Acquires the lock or permit that the workload contends for. Returns the guard and how it is held.
    pub(super) async fn acquire(&mut self) -> leasehold::Result<(Guard, Held)> {
        let tries = self.random.u8(..3) == 0 && !self.plan().is_rush();
        let lock = self.lock();
        let workload = self.plan().workload;
        let guard = match workload {
            Workload::Lock if tries => lock.try_acquire().await?,
            Workload::Lock => lock.acquire().await?,
            Workload::Election => {
                // The candidate advertises a value that no other acquisition has.
                let candidate = lock.election().value(self.note.clone());
                Guard::from(if tries {
                    candidate.try_campaign().await?
                } else {
                    candidate.campaign().await?
                })
            }
            Workload::Semaphore(permits) => return self.permit(lock, permits, tries).await,
            Workload::RwLock if self.random.u8(..3) > 0 => {
                let lock = lock.rw_lock();
                let guard = if tries { lock.try_shared().await? } else { lock.shared().await? };
                return Ok((guard, Held::Shared));
            }
            Workload::RwLock if tries => lock.rw_lock().try_exclusive().await?,
            Workload::RwLock => lock.rw_lock().exclusive().await?,
            Workload::Several => {
                let mut names = SEVERAL.to_vec();
                self.random.shuffle(&mut names);
                if !self.wants_all {
                    names.truncate(self.random.usize(1..=SEVERAL.len()));
                }
                let locks = self.several(names);
                let guard = if tries { locks.try_acquire().await? } else { locks.acquire().await? };
                return Ok((guard, Held::Together));
            }
        };
        Ok((guard, Held::Alone))
    }

    /// Acquires one of `permits` permits, or of another number. If the store has yet another number, may change it.
    async fn permit(&mut self, lock: Lock, permits: usize, tries: bool) -> leasehold::Result<(Guard, Held)> {
        let has_sizes = self.locker.capabilities().sizes;
        let permits = match self.permits {
            Some(permits) => permits,
            None if has_sizes && self.random.u8(..6) == 0 => permits % 3 + 1,
            None => permits,
        };
        let semaphore = lock.semaphore(permits);
        let acquired = if tries { semaphore.try_acquire().await } else { semaphore.acquire().await };
        if let Err(error) = &acquired
            && let Some(sizes) = error.sizes()
        {
            self.world.checker.lock().history.disagreed += 1;
            if self.wants_all {
                self.permits = usize::try_from(sizes.stored).ok();
            } else if self.random.bool() && semaphore.resize().await.is_ok() {
                self.world.checker.lock().history.resized += 1;
            }
        }
        Ok((acquired?, Held::Permit(permits)))
    }

    /// Returns how long after its last renewal a lock is free again: ttl (1 + rho) + delta on the slowest clock, a
    /// poll, and the time for which requests may be late.
    pub(super) fn bound(&self) -> Duration {
        let world = &self.world;
        let has_others = world.items.is_some() || world.cluster.is_some() || world.server.is_some();
        let others =
            if has_others && self.plan().has(Fault::Strangers) { FOREIGN_LEASE } else { Duration::ZERO };
        let longest = self.plan().longest_ttl().max(others);
        let ttl = Ttl::new(longest).unwrap_or_default();
        // If a release deletes the object, a late create (up to a ttl late, see `Plan::chaos`) may succeed. In other
        // stores, a late renewal of a dead holder may.
        let late = match (self.plan().store, self.plan().has(Fault::LateRequests)) {
            (Store::Objects, _) => 2 * self.plan().ttl,
            // A late claim of a free item may succeed.
            (_, true) if self.world.items.is_some() => 2 * self.plan().ttl,
            (_, true) => self.plan().ttl,
            (_, false) => Duration::ZERO,
        };
        let poll = self.plan().longest_poll().max(self.locker.store().capabilities().poll_interval.max);
        let on_its_clock = ttl.contender_span() + poll.mul_f64(1.25);
        let on_its_clock = on_its_clock.div_f64(1.0 - RATE_ERROR.max(self.plan().rates()));
        on_its_clock + late + self.plan().failover_grace()
    }

    /// Returns how long dead waiters can delay a grant. Each line delays from the moment when its lock is free, so the
    /// longest delay of a line counts. It follows from the pauses that the waiters wrote there. Waiters for one of
    /// several permits are in the line of their queue. Waiters for a single permit are in the line of that permit.
    async fn dead_waiters(&self) -> Duration {
        let mut longest = self.dead_waiters_of(LOCK).await;
        for line in ["permit-1", "permit-queue", "shared-queue"] {
            longest = longest.max(self.dead_waiters_of(&format!("{LOCK}/{line}")).await);
        }
        if self.plan().workload == Workload::Several {
            for lock in SEVERAL {
                longest = longest.max(self.dead_waiters_of(lock).await);
            }
        }
        if self.plan().workload == Workload::RwLock {
            for n in 1..=RwLock::DEFAULT_READERS {
                longest = longest.max(self.dead_waiters_of(&format!("{LOCK}/shared-{n}")).await);
            }
        }
        longest
    }

    async fn dead_waiters_of(&self, lock: &str) -> Duration {
        let pauses = match &self.world.server {
            Some(server) => server.pauses(lock),
            // The file does not show its waiters' pauses.
            None if self.plan().store == Store::File => {
                let Ok(lock) = LockName::new(lock) else { return Duration::ZERO };
                let waiters = self.locker.inspect(&lock).await.map_or(0, |status| status.waiters.len());
                vec![LONGEST_POLL.as_millis() as u64; waiters]
            }
            None => {
                let line: serde_json::Value = if let Some(backend) = self.world.backend() {
                    backend.line(lock).unwrap_or_default()
                } else {
                    let line = self.world.register.inner.read(&format!("{lock}.line")).await;
                    let Ok(Some(line)) = line else { return Duration::ZERO };
                    serde_json::from_slice(&line.value).unwrap_or_default()
                };
                let waiters = line["waiters"].as_array().into_iter().flatten();
                waiters.filter_map(|waiter| waiter["polls_ms"].as_u64()).collect()
            }
        };
        let pauses: Vec<_> = pauses.into_iter().map(Duration::from_millis).collect();
        // One more waiter may still join by a late request. Its pause exceeds the last one's by at most the longest
        // poll.
        let late = self.plan().has(Fault::LateRequests);
        let one_more = late.then(|| pauses.last().copied().unwrap_or_default() + self.plan().longest_poll());
        let pauses = || pauses.iter().chain(&one_more);
        2 * pauses().max().copied().unwrap_or_default() + Duration::from_millis(500) * pauses().count() as u32
    }

    /// Acquires everything that a dead holder held. This must succeed within
    /// [`bound`](Self::bound) plus [`dead_waiters`](Self::dead_waiters).
    pub(super) async fn acquire_all(&mut self, invariant: &'static str) -> Vec<Guard> {
        let bound = self.bound() + self.dead_waiters().await;
        let (mut all, bound) = match self.plan().workload {
            // The first of these acquisitions may learn that the store has another number.
            Workload::Semaphore(permits) => (permits, bound),
            // The permits are tried only once the gate is held.
            Workload::RwLock => (1, bound * 2),
            // The locks are acquired one after the other.
            Workload::Several => (1, bound * SEVERAL.len() as u32),
            Workload::Lock | Workload::Election => (1, bound),
        };
        self.wants_all = true;
        self.permits =
            if let Workload::Semaphore(permits) = self.plan().workload { Some(permits) } else { None };
        let (clock, mut guards) = (self.host.clone(), Vec::new());
        let whole = async {
            while guards.len() < all {
                match self.acquire().await {
                    Ok((_, Held::Shared)) => {}
                    Ok((guard, _)) => guards.push(guard),
                    Err(error) if error.sizes().is_some() => all = self.permits.unwrap_or(all),
                    Err(error) if error.kind() == leasehold::ErrorKind::Held => self.rest(200).await,
                    Err(error) => return Err(error.to_string()),
                }
            }
            Ok(())
        };
        let ended = timeout(&*clock, bound, whole).await.unwrap_or_else(|| Err("still held".into()));
        if let Err(error) = ended {
            let what = format!("not free within {bound:?} after all were gone: {error}");
            self.world.checker.violated(invariant, what);
        }
        guards
    }
}

impl Checker {
    /// Records that a client was granted `guard`.
    pub(super) fn granted(&self, guard: Guard, how: Held, workload: Workload) -> Arc<Guard> {
        let guard = Arc::new(guard);
        let mut checked = self.lock();
        if workload.is_one_lock() {
            return guard;
        }
        checked.held.retain(|(_, guard)| guard.strong_count() > 0);
        checked.held.push((how, Arc::downgrade(&guard)));
        guard
    }

    /// Records that a check of something held as `how` has passed. Checks all other guards in the same instant.
    pub(super) fn together(&self, how: Held) {
        let guards = self.lock().held.clone();
        let believed = guards
            .into_iter()
            .filter(|(_, guard)| guard.upgrade().is_some_and(|guard| guard.check().is_ok()))
            .map(|(how, _)| how);
        let believed: Vec<_> = believed.collect();
        let other = believed.iter().find(|other| matches!(other, Held::Permit(_)) && **other != how);
        let other = other.filter(|_| matches!(how, Held::Permit(_))).copied();
        let (alone, others): (Vec<_>, Vec<_>) = believed.into_iter().partition(|how| *how == Held::Alone);
        let (alone, others) = (alone.len(), others.len());
        let mut checked = self.lock();
        checked.history.checks += usize::from(how != Held::Alone);
        checked.history.most = checked.history.most.max(alone + others);
        if let Held::Permit(permits) = how
            && others > permits
        {
            checked.violates("S1", format!("{others} of {permits} permits are believed in"));
        }
        // Their numbers differ, so there was a resize between two holds that are both believed in.
        if let Some(other) = other {
            checked.violates("N1", format!("{how:?} and {other:?} are believed in at once"));
        }
        if alone > 1 || (alone > 0 && others > 0) {
            checked.violates("S2", format!("{alone} hold it exclusively, and {others} shared"));
        }
    }
}
