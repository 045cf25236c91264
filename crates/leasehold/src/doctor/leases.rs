//! What every store of locks must do, whatever it is made of: asked through its leases alone, under names of its own.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;

use super::measured::RoundTrips;
use super::{Examination, Finding, Verdict};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{
    Claim, Evicted, Grant, Holder, LeaseStore, Released, Renewal, State, Ttl, Verdict as Answer,
};
use crate::name::LockName;

/// How many claims race for one lock.
const RACERS: usize = 8;

/// What was found, and how long it took.
pub(super) struct Found {
    pub(super) findings: Vec<Finding>,
    pub(super) trips: Vec<RoundTrips>,
    /// Which locks' records stay.
    pub(super) left: Vec<String>,
}

/// Examines `store` with locks whose names begin with `place`, and deletes their records.
pub(super) async fn examine(store: &dyn LeaseStore, place: &str, examination: &Examination) -> Found {
    let mut patient = Patient::new(store, place, examination);
    // What is found so far stands, and the first thing that cannot be asked ends it.
    if let Err(stop) = patient.examine().await {
        patient.findings.push(stop);
    }
    let left = patient.clean_up().await;
    Found { findings: patient.findings, trips: patient.trips, left }
}

struct Patient<'a> {
    store: &'a dyn LeaseStore,
    place: &'a str,
    thorough: bool,
    holder: Holder,
    taken: Vec<LockName>,
    findings: Vec<Finding>,
    trips: Vec<RoundTrips>,
}

/// `Err` is what ends the examination.
type Step<T> = Result<T, Finding>;

impl<'a> Patient<'a> {
    fn new(store: &'a dyn LeaseStore, place: &'a str, examination: &Examination) -> Self {
        let note = Some("leasehold doctor".to_owned());
        Self {
            store,
            place,
            thorough: examination.thorough,
            holder: Holder { note, ..Holder::this_process() },
            taken: Vec::new(),
            findings: Vec::new(),
            trips: Vec::new(),
        }
    }

    async fn examine(&mut self) -> Step<()> {
        let lock = self.name("lock")?;
        let first = self.excludes(&lock).await?;
        let first = self.is_seen(first).await?;
        let second = self.is_freed(first).await?;
        self.stale_holder_is_refused(second).await?;
        self.one_of_many_is_granted().await?;
        self.measure(&lock).await
    }

    fn name(&mut self, last: &str) -> Step<LockName> {
        let name = LockName::new(format!("{}/{last}", self.place))
            .map_err(|error| Finding::failed("grant", error.to_string()))?;
        self.taken.push(name.clone());
        Ok(name)
    }

    fn claim(&self, name: &LockName) -> Claim {
        Claim::new(self.store.env(), name.clone(), Ttl::DEFAULT, self.holder.clone())
    }

    fn pass(&mut self, check: &'static str, seen: impl Into<String>) {
        self.findings.push(Finding::passed(check, seen));
    }

    /// A claim that must be granted.
    async fn granted(&self, check: &'static str, name: &LockName) -> Step<Grant> {
        match self.store.try_acquire(&self.claim(name)).await {
            Ok(Answer::Granted(grant)) => Ok(grant),
            Ok(Answer::Held(held)) => {
                Err(Finding::failed(check, format!("a lock that nobody has was refused: {held}")))
            }
            Ok(Answer::Lost(loss)) => Err(Finding::failed(check, format!("a first claim was lost: {loss}"))),
            Err(error) => Err(stopped(check, &error)),
        }
    }

    async fn excludes(&mut self, name: &LockName) -> Step<Grant> {
        let grant = self.granted("grant", name).await?;
        self.pass("grant", "a lock that nobody has is granted");
        const CHECK: &str = "exclusion";
        match self.store.try_acquire(&self.claim(name)).await {
            Ok(Answer::Held(_)) => self.pass(CHECK, "a second claim is refused while the first is held"),
            Ok(_) => return Err(unsafe_store(CHECK, "a second claim was granted while the first was held")),
            Err(error) => return Err(stopped(CHECK, &error)),
        }
        Ok(grant)
    }

    /// Read after write, and the listing.
    async fn is_seen(&mut self, mut grant: Grant) -> Step<Grant> {
        const CHECK: &str = "sees-grant";
        let status = self.store.inspect(&grant.name).await.map_err(|error| stopped(CHECK, &error))?;
        match status.state {
            State::Held(_) if status.token.is_none_or(|token| token == grant.token) => {
                self.pass(CHECK, "a grant is seen as soon as it is answered");
            }
            other => {
                return Err(unsafe_store(
                    CHECK,
                    &format!("right after a grant another state was read: {other:?}"),
                ));
            }
        }
        self.listed(&grant.name).await;
        match self.store.renew(&mut grant).await {
            Ok(Renewal::Renewed) => self.pass("renewal", "a held lock is renewed"),
            Ok(Renewal::Lost(loss)) => {
                return Err(Finding::failed("renewal", format!("a lock that nobody took was lost: {loss}")));
            }
            Err(error) => return Err(stopped("renewal", &error)),
        }
        Ok(grant)
    }

    async fn listed(&mut self, name: &LockName) {
        const CHECK: &str = "listing";
        let mut names = self.store.list(self.place);
        let finding = loop {
            match names.next().await {
                Some(Ok(found)) if found == *name => break Finding::passed(CHECK, "locks are listed"),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    break Finding::of_error(CHECK, Verdict::Warning, &error)
                        .with_help("locks work without it; `leasehold ls` does not");
                }
                None => break Finding::warning(CHECK, "a held lock is not in the listing"),
            }
        };
        drop(names);
        self.findings.push(finding);
    }

    async fn is_freed(&mut self, mut grant: Grant) -> Step<Grant> {
        const CHECK: &str = "release";
        match self.store.release(&mut grant, None).await {
            Ok(Released::Released) => {}
            Ok(Released::AlreadyLost) => {
                return Err(Finding::failed(CHECK, "a held lock was gone when it was released"));
            }
            Err(error) => return Err(stopped(CHECK, &error)),
        }
        let next = self.granted(CHECK, &grant.name).await?;
        self.pass(CHECK, "a released lock is granted to the next");
        const TOKENS: &str = "tokens";
        if !self.store.capabilities().tokens {
            let seen = "this store gives no fencing tokens";
            self.findings.push(Finding::not_applicable(TOKENS, seen));
        } else if next.token > grant.token {
            self.pass(TOKENS, "the next grant has a higher fencing token");
        } else {
            let seen = format!("token {} came after {}", next.token, grant.token);
            return Err(unsafe_store(TOKENS, &seen));
        }
        Ok(next)
    }

    /// Who was evicted can neither renew nor release any more.
    async fn stale_holder_is_refused(&mut self, mut stale: Grant) -> Step<()> {
        const CHECK: &str = "stale-holder";
        let name = stale.name.clone();
        match self.store.evict(&name, stale.token).await {
            Ok(Evicted::Evicted) => {}
            Ok(Evicted::Changed) => return Err(Finding::failed(CHECK, "a holder could not be evicted")),
            Err(error) => return Err(stopped(CHECK, &error)),
        }
        let mut next = self.granted(CHECK, &name).await?;
        match self.store.renew(&mut stale).await {
            Ok(Renewal::Lost(_)) => {}
            Ok(Renewal::Renewed) => {
                return Err(unsafe_store(CHECK, "a holder that was evicted renewed its lease"));
            }
            Err(error) => return Err(stopped(CHECK, &error)),
        }
        match self.store.release(&mut stale, None).await {
            Ok(Released::AlreadyLost) => {}
            Ok(Released::Released) => {
                return Err(unsafe_store(
                    CHECK,
                    "a holder that was evicted released the lock of its successor",
                ));
            }
            Err(error) => return Err(stopped(CHECK, &error)),
        }
        match self.store.release(&mut next, None).await {
            Ok(Released::Released) => {}
            Ok(Released::AlreadyLost) => {
                return Err(unsafe_store(CHECK, "the successor of an evicted holder lost its lock"));
            }
            Err(error) => return Err(stopped(CHECK, &error)),
        }
        self.pass(CHECK, "a holder that was evicted can neither renew nor release");
        Ok(())
    }

    /// Claims that come at once, on a lock that never was and on one that is free.
    async fn one_of_many_is_granted(&mut self) -> Step<()> {
        const CHECK: &str = "claims-race";
        let (racers, races) = if self.thorough { (2 * RACERS, 40) } else { (RACERS, 4) };
        let name = self.name("race")?;
        for _ in 0..races {
            let claims: Vec<_> = (0..racers).map(|_| self.claim(&name)).collect();
            let answers = join_all(claims.iter().map(|claim| self.store.try_acquire(claim))).await;
            let (mut granted, mut trouble) = (Vec::new(), None);
            for answer in answers {
                match answer {
                    Ok(Answer::Granted(grant)) => granted.push(grant),
                    Ok(_) => {}
                    Err(error) => trouble = Some(error),
                }
            }
            let count = granted.len();
            for grant in &mut granted {
                // What cannot be released lapses.
                let _ = self.store.release(grant, None).await;
            }
            match (count, trouble) {
                (1, _) => {}
                (0, Some(error)) => return Err(stopped(CHECK, &error)),
                (0, None) => {
                    return Err(Finding::failed(
                        CHECK,
                        format!("of {racers} claims at once none was granted"),
                    ));
                }
                _ => {
                    return Err(unsafe_store(
                        CHECK,
                        &format!("of {racers} claims at once, {count} were granted"),
                    ));
                }
            }
        }
        self.pass(CHECK, format!("of {racers} claims at once, one was granted, {races} times"));
        Ok(())
    }

    /// Round trips of the usual life of a lock.
    async fn measure(&mut self, name: &LockName) -> Step<()> {
        const CHECK: &str = "round-trips";
        let (rounds, limit) = if self.thorough { (200, 20) } else { (25, 2) };
        let env = self.store.env();
        let start = env.now();
        let (mut acquire, mut renew, mut inspect, mut release) = (vec![], vec![], vec![], vec![]);
        for round in 0..rounds {
            if round >= 5 && env.now().longest_since(start) > Duration::from_secs(limit) {
                break;
            }
            let sent = env.now();
            let mut grant = self.granted(CHECK, name).await?;
            acquire.push(env.now().longest_since(sent));
            let sent = env.now();
            self.store.renew(&mut grant).await.map_err(|error| stopped(CHECK, &error))?;
            renew.push(env.now().longest_since(sent));
            let sent = env.now();
            self.store.inspect(name).await.map_err(|error| stopped(CHECK, &error))?;
            inspect.push(env.now().longest_since(sent));
            let sent = env.now();
            self.store.release(&mut grant, None).await.map_err(|error| stopped(CHECK, &error))?;
            release.push(env.now().longest_since(sent));
        }
        let measured = [("acquire", acquire), ("renew", renew), ("inspect", inspect), ("release", release)];
        self.trips = measured.into_iter().filter_map(|(what, took)| RoundTrips::of(what, took)).collect();
        Ok(())
    }

    async fn clean_up(&self) -> Vec<String> {
        let mut left = Vec::new();
        for name in &self.taken {
            if !matches!(self.store.discard(name).await, Ok(true)) {
                left.push(name.to_string());
            }
        }
        left
    }
}

/// A store that does what it must not.
fn unsafe_store(check: &'static str, seen: &str) -> Finding {
    Finding::failed(check, seen).with_help("do not use this store for locks: two holders could work at once")
}

/// The store could not be asked.
fn stopped(check: &'static str, error: &StoreError) -> Finding {
    let Fault { kind, .. } = error.fault();
    let finding = Finding::of_error(check, Verdict::Failed, error);
    if *kind == ErrorKind::Unavailable && finding.help.is_empty() {
        return finding.with_help("the store does not answer in time, or is too busy: try again");
    }
    finding
}
