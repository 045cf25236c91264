//! The checks that every store of locks must pass. They use only the store's leases, under names that the doctor
//! creates.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;

use super::latency::RoundTrips;
use super::{CheckStatus, Examination, Finding};
use crate::diagnosis::UNANSWERED;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{
    AcquireOutcome as Answer, Claim, Evicted, Grant, Holder, LeaseStore, Released, Renewal, State, Token, Ttl,
};
use crate::types::LockName;

/// The number of claims that race for one lock.
const RACERS: usize = 8;

/// The findings and the measured durations.
pub(super) struct Found {
    pub(super) findings: Vec<Finding>,
    pub(super) trips: Vec<RoundTrips>,
    /// The locks whose records remain.
    pub(super) left: Vec<String>,
}

/// Examines `store` with locks whose names begin with `prefix`, and deletes their records.
pub(super) async fn examine(store: &dyn LeaseStore, prefix: &str, examination: &Examination) -> Found {
    let mut patient = Patient::new(store, prefix, examination);
    // The first check that cannot run ends the examination. The earlier findings are kept.
    if let Err(stop) = patient.examine().await {
        patient.findings.push(stop);
        patient.free_held_locks().await;
    }
    let left = patient.clean_up().await;
    Found { findings: patient.findings, trips: patient.trips, left }
}

struct Patient<'a> {
    store: &'a dyn LeaseStore,
    prefix: &'a str,
    /// The ttl of the claims.
    ttl: Ttl,
    thorough: bool,
    holder: Holder,
    taken: Vec<LockName>,
    findings: Vec<Finding>,
    trips: Vec<RoundTrips>,
}

/// How long each operation took, for each round.
#[derive(Default)]
struct Took {
    acquire: Vec<Duration>,
    renew: Vec<Duration>,
    inspect: Vec<Duration>,
    release: Vec<Duration>,
}

/// `Err` ends the examination.
type Step<T> = Result<T, Finding>;

impl<'a> Patient<'a> {
    fn new(store: &'a dyn LeaseStore, prefix: &'a str, examination: &Examination) -> Self {
        let note = Some("leasehold doctor".to_owned());
        Self {
            store,
            prefix,
            ttl: examination.ttl,
            thorough: examination.thorough,
            holder: Holder { note, ..Holder::this_process() },
            taken: Vec::new(),
            findings: Vec::new(),
            trips: Vec::new(),
        }
    }

    async fn examine(&mut self) -> Step<()> {
        let lock = self.name("lock")?;
        if self.ttl < Ttl::DEFAULT {
            self.short_leases_are_granted().await?;
        }
        let first = self.excludes(&lock).await?;
        let first = self.is_seen(first).await?;
        let second = self.is_freed(first).await?;
        self.stale_holder_is_refused(second).await?;
        self.one_of_many_is_granted().await?;
        self.measure(&lock).await
    }

    fn name(&mut self, last: &str) -> Step<LockName> {
        let name = LockName::new(format!("{}/{last}", self.prefix))
            .map_err(|error| Finding::failed("grant", error.to_string()))?;
        self.taken.push(name.clone());
        Ok(name)
    }

    fn claim(&self, name: &LockName) -> Claim {
        Claim::new(self.store.env(), name.clone(), self.ttl, self.holder.clone())
    }

    fn pass(&mut self, check: &'static str, seen: impl Into<String>) {
        self.findings.push(Finding::passed(check, seen));
    }

    /// Makes a claim that must be granted.
    async fn granted(&self, check: &'static str, name: &LockName) -> Step<Grant> {
        match self.store.try_acquire(&self.claim(name)).await.map_err(stopped(check))? {
            Answer::Granted(grant) => Ok(grant),
            Answer::Held(held) => Err(Finding::failed(check, format!("a free lock was refused: {held}"))),
            Answer::Lost(loss) => Err(Finding::failed(check, format!("a first claim was lost: {loss}"))),
        }
    }

    /// Renews a grant that is held.
    async fn renewed(&self, grant: &mut Grant) -> Step<()> {
        const CHECK: &str = "renewal";
        match self.store.renew(grant).await.map_err(stopped(CHECK))? {
            Renewal::Renewed => Ok(()),
            Renewal::Lost(loss) => {
                let seen = format!("a lock was lost although no other client took it: {loss}");
                Err(Finding::failed(CHECK, seen))
            }
        }
    }

    /// Releases a grant. `lost` is the finding if it is no longer held.
    async fn released(&self, check: &'static str, grant: &mut Grant, lost: Finding) -> Step<()> {
        match self.store.release(grant, None).await.map_err(stopped(check))? {
            Released::Released => Ok(()),
            Released::AlreadyLost => Err(lost),
        }
    }

    /// Checks that the store grants leases of a ttl that is shorter than the default. The other checks then use the
    /// default, because a short lease could end between two of their requests, unless the store refuses the default.
    async fn short_leases_are_granted(&mut self) -> Step<()> {
        const CHECK: &str = "grant";
        let name = self.name("ttl")?;
        let mut grant = self.granted(CHECK, &name).await?;
        self.store.release(&mut grant, None).await.map_err(stopped(CHECK))?;
        let asked = std::mem::replace(&mut self.ttl, Ttl::DEFAULT);
        match self.store.try_acquire(&self.claim(&name)).await {
            Err(error) if error.fault().kind == ErrorKind::Invalid => self.ttl = asked,
            Ok(Answer::Granted(mut grant)) => {
                self.store.release(&mut grant, None).await.map_err(stopped(CHECK))?;
            }
            // The next checks examine this answer.
            _ => {}
        }
        Ok(())
    }

    async fn excludes(&mut self, name: &LockName) -> Step<Grant> {
        let grant = self.granted("grant", name).await?;
        self.pass("grant", "a free lock is granted");
        const CHECK: &str = "exclusion";
        match self.store.try_acquire(&self.claim(name)).await.map_err(stopped(CHECK))? {
            Answer::Held(_) => self.pass(CHECK, "a second claim is refused while the first is held"),
            _ => return Err(unsafe_store(CHECK, "a second claim was granted while the first was held")),
        }
        Ok(grant)
    }

    /// Checks that a grant is visible and listed, and that it can be renewed.
    async fn is_seen(&mut self, mut grant: Grant) -> Step<Grant> {
        const CHECK: &str = "sees-grant";
        let status = self.store.inspect(&grant.name).await.map_err(stopped(CHECK))?;
        match status.state {
            State::Held(_) if status.token.is_none_or(|token| token == grant.token) => {
                self.pass(CHECK, "a grant is visible as soon as it is reported");
            }
            other => {
                return Err(unsafe_store(
                    CHECK,
                    &format!("a read right after a grant returned another state: {other:?}"),
                ));
            }
        }
        self.listed(&grant.name).await;
        self.renewed(&mut grant).await?;
        self.pass("renewal", "a held lock is renewed");
        Ok(grant)
    }

    async fn listed(&mut self, name: &LockName) {
        const CHECK: &str = "listing";
        let mut names = self.store.list(self.prefix);
        let finding = loop {
            match names.next().await {
                Some(Ok(found)) if found == *name => break Finding::passed(CHECK, "locks are listed"),
                Some(Ok(_)) => {}
                Some(Err(error)) => break Finding::unlisted(CHECK, &error),
                None => break Finding::warning(CHECK, "a held lock is not in the listing"),
            }
        };
        drop(names);
        self.findings.push(finding);
    }

    async fn is_freed(&mut self, mut grant: Grant) -> Step<Grant> {
        const CHECK: &str = "release";
        self.released(CHECK, &mut grant, gone()).await?;
        let next = self.granted(CHECK, &grant.name).await?;
        self.pass(CHECK, "a released lock is granted to the next claim");
        const TOKENS: &str = "tokens";
        if !self.store.capabilities().tokens {
            let seen = "this store does not provide fencing tokens";
            self.findings.push(Finding::not_applicable(TOKENS, seen));
        } else if next.token > grant.token {
            self.pass(TOKENS, "the next grant has a higher fencing token");
        } else {
            let seen = format!("token {} came after {}", next.token, grant.token);
            return Err(unsafe_store(TOKENS, &seen));
        }
        Ok(next)
    }

    /// Checks that an evicted holder can neither renew nor release the lock.
    async fn stale_holder_is_refused(&mut self, mut stale: Grant) -> Step<()> {
        const CHECK: &str = "stale-holder";
        let name = stale.name.clone();
        match self.store.evict(&name, stale.token, None).await {
            Ok(Evicted::Evicted) => {}
            Ok(Evicted::Changed) => return Err(Finding::failed(CHECK, "a holder could not be evicted")),
            // `leasehold serve` has a separate right for evictions. Locks do not need it.
            Err(error) if error.fault().kind == ErrorKind::Denied => {
                let finding = Finding::of_error(CHECK, CheckStatus::Warning, &error);
                self.findings.push(finding.with_help("locks work without it; `leasehold evict` does not"));
                return self.store.release(&mut stale, None).await.map(drop).map_err(stopped(CHECK));
            }
            Err(error) => return Err(stopped(CHECK)(error)),
        }
        let mut next = self.granted(CHECK, &name).await?;
        if let Renewal::Renewed = self.store.renew(&mut stale).await.map_err(stopped(CHECK))? {
            return Err(unsafe_store(CHECK, "a holder that was evicted renewed its lease"));
        }
        match self.store.release(&mut stale, None).await.map_err(stopped(CHECK))? {
            Released::AlreadyLost => {}
            // If a release deletes, a lost response leaves no trace. The current state of the lock decides.
            Released::Released => {
                let status = self.store.inspect(&name).await.map_err(stopped(CHECK))?;
                let held = matches!(status.state, State::Held(_));
                if !held || status.token.is_some_and(|token| token != next.token) {
                    return Err(unsafe_store(
                        CHECK,
                        "a holder that was evicted released the lock of its successor",
                    ));
                }
            }
        }
        let lost = unsafe_store(CHECK, "the successor of an evicted holder lost its lock");
        self.released(CHECK, &mut next, lost).await?;
        self.pass(CHECK, "a holder that was evicted can neither renew nor release");
        Ok(())
    }

    /// Races claims for a lock that has no record yet, and for a lock that is free.
    async fn one_of_many_is_granted(&mut self) -> Step<()> {
        const CHECK: &str = "claims-race";
        let (racers, races) = if self.thorough { (2 * RACERS, 40) } else { (RACERS, 4) };
        let mut name = self.name("race")?;
        let mut counted = 0;
        let mut trouble = None;
        for race in 0..2 * races {
            if counted == races {
                break;
            }
            let claims: Vec<_> = (0..racers).map(|_| self.claim(&name)).collect();
            let answers = join_all(claims.iter().map(|claim| self.store.try_acquire(claim))).await;
            let (mut granted, mut refused) = (Vec::new(), 0);
            for answer in answers {
                match answer {
                    Ok(Answer::Granted(grant)) => granted.push(grant),
                    Ok(_) => refused += 1,
                    Err(error) => trouble = Some(error),
                }
            }
            let count = granted.len();
            for grant in &mut granted {
                // A grant that cannot be released lapses.
                let _ = self.store.release(grant, None).await;
            }
            match count {
                0 if refused == racers => {
                    return Err(Finding::failed(
                        CHECK,
                        format!("of {racers} claims at once, none was granted"),
                    ));
                }
                1 if 2 * (1 + refused) >= racers => counted += 1,
                // A claim without a response may be granted later, so the next race uses another lock.
                0 | 1 => name = self.name(&format!("race-{race}"))?,
                _ => {
                    return Err(unsafe_store(
                        CHECK,
                        &format!("of {racers} claims at once, {count} were granted"),
                    ));
                }
            }
        }
        if counted == 0 {
            let unheard = || Fault::unavailable("most claims at once got no response").not_applied();
            return Err(stopped(CHECK)(trouble.unwrap_or_else(unheard)));
        }
        self.pass(CHECK, format!("of {racers} claims at once, one was granted, {counted} times"));
        Ok(())
    }

    /// Measures the round trips of the usual operations on a lock. Measurements before an error are kept.
    async fn measure(&mut self, name: &LockName) -> Step<()> {
        let (rounds, limit) = if self.thorough { (200, 20) } else { (25, 2) };
        let env = self.store.env();
        let start = env.now();
        let mut took = Took::default();
        let mut token = None;
        let mut outcome = Ok(());
        for round in 0..rounds {
            if round >= 5 && env.now().longest_since(start) > Duration::from_secs(limit) {
                break;
            }
            outcome = self.round(name, &mut token, &mut took).await;
            if outcome.is_err() {
                break;
            }
        }
        let measured = [
            ("acquire", took.acquire),
            ("renew", took.renew),
            ("inspect", took.inspect),
            ("release", took.release),
        ];
        self.trips = measured.into_iter().filter_map(|(what, took)| RoundTrips::of(what, took)).collect();
        outcome.map_err(|stop| match stop.check {
            UNANSWERED => Finding { check: "round-trips", verdict: CheckStatus::Warning, ..stop },
            _ => stop,
        })
    }

    async fn round(&self, name: &LockName, before: &mut Option<Token>, took: &mut Took) -> Step<()> {
        const CHECK: &str = "round-trips";
        let env = self.store.env();
        let sent = env.now();
        let mut grant = self.granted("grant", name).await?;
        took.acquire.push(env.now().longest_since(sent));
        let token = Some(grant.token);
        if self.store.capabilities().tokens && token <= before.replace(grant.token) {
            return Err(unsafe_store(
                "tokens",
                &format!("token {} followed an equal or higher token", grant.token),
            ));
        }
        let sent = env.now();
        self.renewed(&mut grant).await?;
        took.renew.push(env.now().longest_since(sent));
        let sent = env.now();
        self.store.inspect(name).await.map_err(stopped(CHECK))?;
        took.inspect.push(env.now().longest_since(sent));
        let sent = env.now();
        self.released("release", &mut grant, gone()).await?;
        took.release.push(env.now().longest_since(sent));
        Ok(())
    }

    /// Frees the locks after the examination has ended early. No other client knows these names.
    async fn free_held_locks(&self) {
        for name in &self.taken {
            if let Ok(status) = self.store.inspect(name).await
                && let (State::Held(_), Some(token)) = (status.state, status.token)
            {
                // A lock that cannot be freed is listed as remaining.
                let _ = self.store.evict(name, token, None).await;
            }
        }
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

fn gone() -> Finding {
    Finding::failed("release", "a held lock was gone when it was released")
}

/// Returns the finding for a store that is unsafe for locks.
fn unsafe_store(check: &'static str, seen: &str) -> Finding {
    Finding::failed(check, seen).with_help(
        "do not use this store for locks: two processes could hold one lock at \
        the same time",
    )
}

/// Returns the finding for a store that did not respond or refused a request.
fn stopped(check: &'static str) -> impl Fn(StoreError) -> Finding {
    move |error| Finding::stopped(check, &error)
}
