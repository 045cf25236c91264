use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;

use std::time::Duration;

use super::*;
use crate::clock::TestClock;
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{
    AcquireOutcome as Answer, Capabilities, Claim, Evicted, Eviction, Grant, HolderInfo, Released, Renewal,
    State, Status, StoreOptions, Token, Ttl, Watch,
};
use crate::locker::Locker;
use crate::proof::flawed::{Flaw, store};
use crate::protocol::RegisterLeases;
use crate::stores::memory::MemoryRegister;

fn memory() -> RegisterLeases {
    let env = Env::seeded(Arc::new(TestClock::default()), 1);
    let options = StoreOptions { env: env.clone(), ..StoreOptions::default() };
    RegisterLeases::new(Arc::new(MemoryRegister::new(env)), options)
}

fn failed(report: &Report) -> Vec<&str> {
    let failed = report.findings.iter().filter(|finding| finding.verdict == CheckStatus::Failed);
    failed.map(|finding| finding.check).collect()
}

/// The flaw of a store's leases. The layers below are correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// A claim for a held lock is granted too.
    GrantsTwice,
    /// One of several concurrent claims for a held lock is granted too.
    GrantsOneTooMany,
    InspectsLate,
    ForgetsTokens,
    RenewsEvictedGrants,
    ReleasesForOthers,
    ReportsAllReleased,
    LosesWhatIsHeld,
    /// Loses a held lock, but only after several renewals.
    LosesLater,
    RepeatsTokensLater,
    IsBusyLater,
    KeepsWhatIsReleased,
    HidesFromListings,
    DeniesEvictions,
    IsDown,
    /// Refuses leases of 30 s and more, as a short `failover_grace` does.
    RefusesLongLeases,
}

/// Leases with a flaw.
#[derive(Debug)]
struct Bad {
    good: RegisterLeases,
    wrong: Wrong,
    claims_at_once: AtomicUsize,
    evicted: AtomicUsize,
    renewals: AtomicUsize,
}

fn bad(wrong: Wrong) -> Bad {
    Bad {
        good: memory(),
        wrong,
        claims_at_once: AtomicUsize::new(0),
        evicted: AtomicUsize::new(0),
        renewals: AtomicUsize::new(0),
    }
}

impl Bad {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == wrong
    }

    fn granted_despite_holder(&self, claim: &Claim) -> Answer {
        let deadline = crate::lease::deadline(claim.ttl, self.good.env().now());
        let name = claim.name.clone();
        let token = Token::new(1).unwrap();
        Answer::Granted(Grant {
            name,
            token,
            after: None,
            id: claim.id,
            ttl: claim.ttl,
            deadline,
            at_limit: false,
            size: None,
            memo: None,
        })
    }
}

#[async_trait]
impl LeaseStore for Bad {
    async fn try_acquire(&self, claim: &Claim) -> Result<Answer, StoreError> {
        let at_once = self.claims_at_once.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let answer = self.good.try_acquire(claim).await;
        self.claims_at_once.fetch_sub(1, Ordering::SeqCst);
        if self.is(Wrong::RefusesLongLeases) && claim.ttl >= Ttl::DEFAULT {
            return Err(Fault::new(ErrorKind::Invalid, "too long")
                .with_help("use a shorter ttl")
                .not_applied());
        }
        match answer? {
            Answer::Held(_) if self.is(Wrong::GrantsTwice) => Ok(self.granted_despite_holder(claim)),
            Answer::Held(_) if self.is(Wrong::GrantsOneTooMany) && at_once == 1 => {
                Ok(self.granted_despite_holder(claim))
            }
            Answer::Granted(grant) if self.is(Wrong::ForgetsTokens) => {
                Ok(Answer::Granted(Grant { token: Token::new(1).unwrap(), ..grant }))
            }
            Answer::Granted(grant)
                if self.is(Wrong::RepeatsTokensLater) && self.renewals.load(Ordering::SeqCst) > 4 =>
            {
                Ok(Answer::Granted(Grant { token: Token::new(1).unwrap(), ..grant }))
            }
            answer => Ok(answer),
        }
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let later = self.renewals.fetch_add(1, Ordering::SeqCst) > 4;
        if later && self.is(Wrong::IsBusyLater) {
            return Err(Fault::unavailable("503").not_applied());
        }
        if self.is(Wrong::LosesWhatIsHeld) || later && self.is(Wrong::LosesLater) {
            self.good.evict(&grant.name, grant.token, None).await?;
        }
        if self.is(Wrong::RenewsEvictedGrants) && self.evicted.load(Ordering::SeqCst) > 0 {
            return Ok(Renewal::Renewed);
        }
        self.good.renew(grant).await
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        match self.wrong {
            Wrong::KeepsWhatIsReleased => Ok(Released::Released),
            Wrong::ReleasesForOthers => {
                if let Some(token) = self.good.inspect(&grant.name).await?.token {
                    self.good.evict(&grant.name, token, None).await?;
                }
                Ok(Released::Released)
            }
            // A lost response to a delete looks like this.
            Wrong::ReportsAllReleased => self.good.release(grant, cooldown).await.map(|_| Released::Released),
            _ => self.good.release(grant, cooldown).await,
        }
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        if self.is(Wrong::DeniesEvictions) {
            return Err(Fault::new(ErrorKind::Denied, "the token may not evict").not_applied());
        }
        self.evicted.fetch_add(1, Ordering::SeqCst);
        let token = match self.good.inspect(name).await?.token {
            Some(current) if self.is(Wrong::ForgetsTokens) => current,
            _ => token,
        };
        self.good.evict(name, token, why).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        match self.wrong {
            Wrong::InspectsLate => Ok(Status::new(name.clone(), State::Free)),
            Wrong::IsDown => {
                Err(Fault::unavailable("connection refused").with_help("start it").not_applied())
            }
            Wrong::ForgetsTokens => {
                let mut status = self.good.inspect(name).await?;
                status.token = None;
                Ok(status)
            }
            _ => self.good.inspect(name).await,
        }
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        self.good.list(if self.is(Wrong::HidesFromListings) { "nowhere" } else { prefix })
    }

    fn capabilities(&self) -> Capabilities {
        self.good.capabilities()
    }

    fn env(&self) -> &Env {
        self.good.env()
    }
}

#[async_trait]
impl Watch for Bad {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        self.good.changed(name, seen).await
    }
}

#[async_trait]
impl Diagnose for Bad {
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        self.good.discard(name).await
    }
}

#[tokio::test(start_paused = true)]
async fn each_flaw_of_leases_fails_its_check() {
    for (wrong, check) in [
        (Wrong::Nothing, None),
        (Wrong::GrantsTwice, Some("exclusion")),
        (Wrong::GrantsOneTooMany, Some("claims-race")),
        (Wrong::InspectsLate, Some("sees-grant")),
        (Wrong::ForgetsTokens, Some("tokens")),
        (Wrong::RenewsEvictedGrants, Some("stale-holder")),
        (Wrong::ReleasesForOthers, Some("stale-holder")),
        (Wrong::ReportsAllReleased, None),
        (Wrong::LosesWhatIsHeld, Some("renewal")),
        (Wrong::LosesLater, Some("renewal")),
        (Wrong::RepeatsTokensLater, Some("tokens")),
        (Wrong::IsBusyLater, None),
        (Wrong::KeepsWhatIsReleased, Some("release")),
        (Wrong::HidesFromListings, None),
        (Wrong::DeniesEvictions, None),
        (Wrong::IsDown, Some("reachable")),
        (Wrong::RefusesLongLeases, Some("grant")),
    ] {
        let store = Arc::new(bad(wrong));
        let report = Locker::new(store.clone()).examine(&Examination::default()).await;
        assert_eq!(failed(&report), Vec::from_iter(check), "{wrong:?}: {:#?}", report.findings);
        assert_eq!(report.is_safe(), check.is_none());
        let silent = |finding: &&Finding| finding.verdict == CheckStatus::Failed && finding.help.is_empty();
        assert_eq!(report.findings.iter().find(silent), None, "it says what to do");
        let left: Vec<_> = store.good.list("").try_collect().await.unwrap();
        // Stores that report nothing about their locks, or report it wrongly, are not cleaned.
        let silent = [Wrong::InspectsLate, Wrong::KeepsWhatIsReleased, Wrong::ForgetsTokens];
        assert!(left.is_empty() || silent.contains(&wrong), "{wrong:?}: {left:?}");
        if wrong == Wrong::IsBusyLater {
            assert_eq!(report.finding("round-trips").unwrap().verdict, CheckStatus::Warning);
            assert!(report.round_trips.iter().any(|trips| trips.operation == "renew"));
        }
        if wrong == Wrong::DeniesEvictions {
            assert_eq!(report.finding("stale-holder").unwrap().verdict, CheckStatus::Warning);
            assert_eq!(report.finding("claims-race").unwrap().verdict, CheckStatus::Passed);
        }
        if wrong == Wrong::HidesFromListings {
            assert_eq!(report.finding("listing").unwrap().verdict, CheckStatus::Warning);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn leases_are_examined_with_the_ttl_in_question() {
    for (seconds, is_safe) in [(1, true), (29, true), (30, false), (600, false)] {
        let ttl = Ttl::new(Duration::from_secs(seconds)).unwrap();
        let examination = Examination { ttl, ..Examination::default() };
        let report = Locker::new(Arc::new(bad(Wrong::RefusesLongLeases))).examine(&examination).await;
        assert_eq!(report.is_safe(), is_safe, "{seconds}: {:#?}", report.findings);
    }
}

#[tokio::test(start_paused = true)]
async fn a_good_store_is_safe_measured_and_left_as_it_was() {
    let store = Arc::new(memory());
    let report = Locker::new(store.clone()).examine(&Examination::default()).await;
    assert!(report.is_safe(), "{:#?}", report.findings);
    assert_eq!(report.kind, Some("memory"));
    let measured: Vec<_> = report.round_trips.iter().map(|trips| trips.operation).collect();
    assert_eq!(measured, ["acquire", "renew", "inspect", "release"]);
    assert_eq!(report.smallest_ttl_ms, Some(1_000));
    assert_eq!(report.finding("clean-up").unwrap().verdict, CheckStatus::Passed);
    assert_eq!(report.finding("store-clock").unwrap().verdict, CheckStatus::Passed);
    assert!(report.finding("order").unwrap().seen.contains("NAME.line"));
    assert_eq!(store.list("").try_collect::<Vec<_>>().await.unwrap(), []);
}

/// A flaw of the register is reported once, and leases on it are not examined.
#[tokio::test(start_paused = true)]
async fn leases_are_not_tried_on_a_register_that_failed() {
    let register = store(Flaw::IgnoresAbsent);
    let store = RegisterLeases::new(Arc::new(register), StoreOptions::default());
    let report = Locker::new(Arc::new(store)).examine(&Examination::default()).await;
    assert_eq!(failed(&report), ["create-if-absent", "create-race"]);
    assert_eq!(report.finding("leases").unwrap().verdict, CheckStatus::NotApplicable);
    assert_eq!(report.finding("grant"), None);
}

#[test]
fn a_store_that_cannot_be_opened_is_not_safe() {
    let error = Error::new(ErrorKind::Denied, "not yours").with_help("ask its owner");
    let report = Report::unopened(&error);
    assert!(!report.is_safe());
    assert_eq!(report.findings[0].check, "reachable");
    assert_eq!(report.findings[0].help, ["ask its owner"]);
}

#[test]
fn names_for_programs_are_written_as_documented() {
    let finding = Finding::not_applicable("cost", "none").with_help("x");
    let json = serde_json::to_string(&finding).unwrap();
    assert_eq!(json, r#"{"check":"cost","verdict":"not_applicable","seen":"none","help":["x"]}"#);
}
