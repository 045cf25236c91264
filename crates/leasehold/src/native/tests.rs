//! The rules of all stores with native leases, on a store whose responses are scripted.

use std::collections::VecDeque;

use futures_util::TryStreamExt;

use super::*;
use crate::clock::{Clock, TestClock};
use crate::lease::Holder;

const SECOND: Duration = Duration::from_secs(1);

/// A response of the store.
#[derive(Debug)]
enum Reply {
    Claimed(Claimed),
    Renewed(Renewed),
    Ended(Ended),
    Lost(LossReason),
    /// The request certainly had no effect.
    Refused(ErrorKind),
    /// The request may have an effect.
    NoAnswer,
    /// Nothing arrives.
    Silence,
}

use Reply::{NoAnswer, Refused, Silence};

/// A store that responds as it is told, and notes the requests.
#[derive(Debug)]
struct Scripted {
    env: Env,
    clock: Arc<TestClock>,
    /// Each reply, and how long it takes.
    script: Mutex<VecDeque<(Duration, Reply)>>,
    asked: Mutex<Vec<&'static str>>,
    /// Whether the store has what only some have: a line with a place for each waiter, a sweep, a deletion.
    has_all: bool,
}

impl Scripted {
    async fn reply(&self, request: &'static str) -> Result<Reply, StoreError> {
        self.asked.lock().unwrap().push(request);
        let (took, reply) = self.script.lock().unwrap().pop_front().expect(request);
        self.clock.suspend(took);
        match reply {
            Refused(kind) => Err(Fault::new(kind, "refused").not_applied()),
            NoAnswer => Err(Fault::unavailable("no answer").maybe_applied()),
            Silence => std::future::pending().await,
            reply => Ok(reply),
        }
    }

    async fn renewed(&self, request: &'static str) -> Outcome<Renewed> {
        let Reply::Renewed(renewed) = self.reply(request).await? else { panic!("{request}") };
        Ok(renewed)
    }

    async fn ended(&self, request: &'static str) -> Result<Ended, StoreError> {
        let Reply::Ended(ended) = self.reply(request).await? else { panic!("{request}") };
        Ok(ended)
    }
}

#[async_trait]
impl NativeLeases for Scripted {
    type Position = u64;

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let poll_interval = crate::lease::PollInterval { min: SECOND, max: SECOND };
        let line = self.has_all.then_some("the script");
        Capabilities { line, ..Capabilities::new("a script", poll_interval) }
    }

    async fn claim(&self, _: &Claim, ask: &mut Ask<'_>) -> Outcome<Claimed> {
        let request = if ask.again { "claim again" } else { "claim" };
        let Reply::Claimed(claimed) = self.reply(request).await? else { panic!("{request}") };
        Ok(claimed)
    }

    fn gave_up(&self, _: &Claim) -> bool {
        self.has_all
    }

    fn is_swept(&self) -> bool {
        self.has_all
    }

    async fn renew(&self, _: &Grant, _: &mut Ask<'_>) -> Outcome<Renewed> {
        self.renewed("renew").await
    }

    async fn detach(&self, _: &Grant, _: &mut Ask<'_>) -> Outcome<Option<Renewed>> {
        if self.script.lock().unwrap().is_empty() { Ok(None) } else { self.renewed("detach").await.map(Some) }
    }

    async fn loss(&self, _: &Grant, _: &mut Ask<'_>) -> Outcome<LossReason> {
        let Reply::Lost(reason) = self.reply("loss").await? else { panic!("loss") };
        Ok(reason)
    }

    async fn end(&self, grant: &Grant, cooldown: Option<Duration>, ask: &mut Ask<'_>) -> Outcome<Ended> {
        let is_withdrawn = grant.token == Token::default();
        let request = match (is_withdrawn, cooldown, ask.again) {
            (true, ..) => "withdraw",
            (_, Some(_), _) => "end with a cooldown",
            (_, None, true) => "end again",
            (_, None, false) => "end",
        };
        self.ended(request).await
    }

    async fn evict(&self, _: &LockName, _: Token, _: Option<&Eviction>, ask: &mut Ask<'_>) -> Outcome<Ended> {
        self.ended(if ask.again { "evict again" } else { "evict" }).await
    }

    async fn status(&self, name: &LockName, _: &mut Ask<'_>) -> Outcome<Status> {
        Ok(Status::new(name.clone(), crate::lease::State::Free))
    }

    /// Returns two pages, the second of which names itself as the next one if the prefix is `endless`.
    async fn names(
        &self,
        prefix: &str,
        from: Option<u64>,
        _: &mut Ask<'_>,
    ) -> Outcome<(Vec<LockName>, Option<u64>)> {
        let page = from.unwrap_or(1);
        let next = Some(2).filter(|_| page == 1 || prefix == "endless");
        Ok((vec![LockName::new(format!("{prefix}{page}")).unwrap()], next))
    }
}

#[async_trait]
impl Watch for Scripted {
    async fn changed(&self, _: &LockName, _: &HolderInfo) -> Result<(), StoreError> {
        Ok(())
    }

    async fn ended(&self, _: &Grant) {
        self.asked.lock().unwrap().push("ended");
    }

    async fn holder_changed(&self, _: &LockName, _: &Status) {
        self.asked.lock().unwrap().push("holder changed");
    }
}

#[async_trait]
impl Diagnose for Scripted {
    async fn discard(&self, _: &LockName) -> Result<bool, StoreError> {
        Ok(self.has_all)
    }
}

type Store = NativeStore<Scripted>;

fn store(script: impl IntoIterator<Item = Reply>) -> Store {
    store_with(script.into_iter().map(|reply| (Duration::ZERO, reply)), false)
}

fn store_with(script: impl IntoIterator<Item = (Duration, Reply)>, has_all: bool) -> Store {
    let clock = Arc::new(TestClock::default());
    let env = Env::seeded(clock.clone(), 1);
    let script = Mutex::new(script.into_iter().collect());
    NativeStore::new(Scripted { env, clock, script, asked: Mutex::default(), has_all })
}

/// Returns the requests since the last call. The script must be over.
fn asked(store: &Store) -> Vec<&'static str> {
    assert!(store.leases().script.lock().unwrap().is_empty(), "{store:?}");
    std::mem::take(&mut *store.leases().asked.lock().unwrap())
}

fn claim(store: &Store) -> Claim {
    Claim::new(store.env(), LockName::new("a").unwrap(), Ttl::DEFAULT, Holder::default())
}

fn token() -> Token {
    Token::new(7).unwrap()
}

fn granted() -> Reply {
    Reply::Claimed(Claimed::Granted(token(), Lease::default()))
}

fn renewed() -> Reply {
    Reply::Renewed(Renewed::Until(Lease::default()))
}

fn grant(store: &Store) -> Grant {
    let Claim { name, id, ttl, .. } = claim(store);
    let deadline = crate::lease::deadline(ttl, store.env().now());
    Grant { name, token: token(), after: None, id, ttl, deadline, at_limit: false, size: None, memo: None }
}

fn is_maybe<T: fmt::Debug>(answer: Result<T, StoreError>) -> bool {
    matches!(answer.unwrap_err(), StoreError::MaybeApplied(_))
}

fn lost(renewal: Renewal) -> LossReason {
    let Renewal::Lost(loss) = renewal else { panic!("renewed") };
    loss.reason
}

/// A deadline counts from before the request, whatever the store says, and may end earlier.
#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_before_the_request() {
    for renews in [false, true] {
        for says in [None, Some(Ttl::MAX), Some(5 * SECOND)] {
            let lease = || {
                let until = says.map(|says| Deadline::new(TestClock::default().now(), says));
                Lease { until, memo: None }
            };
            let reply = match renews {
                false => Reply::Claimed(Claimed::Granted(token(), lease())),
                true => Reply::Renewed(Renewed::Until(lease())),
            };
            let store = store_with([(SECOND, reply)], false);
            let began = store.env().now();
            let deadline = if renews {
                let mut grant = grant(&store);
                assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
                grant.deadline
            } else {
                let outcome = store.try_acquire(&claim(&store)).await.unwrap();
                let AcquireOutcome::Granted(grant) = outcome else { panic!("{outcome:?}") };
                grant.deadline
            };
            let most = says.unwrap_or(Duration::MAX).min(Ttl::DEFAULT.holder_span());
            assert!(deadline.remaining(began) <= most, "{renews} {says:?}: {deadline:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_grant_is_withdrawn_and_lost_whatever_the_response() {
    for withdrawn in [Reply::Ended(Ended::Now), Reply::Ended(Ended::Gone), Refused(ErrorKind::Denied)] {
        let store = store_with([(40 * SECOND, granted()), (SECOND, withdrawn)], false);
        let outcome = store.try_acquire(&claim(&store)).await.unwrap();
        let AcquireOutcome::Lost(loss) = outcome else { panic!("{outcome:?}") };
        assert_eq!((loss.token, loss.reason), (token(), LossReason::EXPIRED));
        assert_eq!(asked(&store), ["claim", "withdraw"]);
    }
    // A repetition of the claim may have the same grant.
    let store = store_with([(40 * SECOND, granted())], false);
    let repeatable = Claim { repeatable: true, ..claim(&store) };
    assert!(matches!(store.try_acquire(&repeatable).await.unwrap(), AcquireOutcome::Lost(_)));
    assert_eq!(asked(&store), ["claim"]);
}

#[tokio::test(start_paused = true)]
async fn a_spent_claim_is_withdrawn_only_if_its_lease_may_exist() {
    for (reason, expected) in
        [(LossReason::EXPIRED, &["claim", "withdraw"][..]), (LossReason::Ended, &["claim"])]
    {
        let loss = Loss::new(LockName::new("a").unwrap(), token(), reason);
        let replies = [Reply::Claimed(Claimed::Lost(loss)), Reply::Ended(Ended::Gone)];
        let store = store(replies.into_iter().take(expected.len()));
        assert!(matches!(store.try_acquire(&claim(&store)).await.unwrap(), AcquireOutcome::Lost(_)));
        assert_eq!(asked(&store), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_a_response_is_repeated() {
    let again = || Reply::Claimed(Claimed::Again);
    let store = store([again(), Refused(ErrorKind::Unavailable), NoAnswer, again(), granted()]);
    assert!(matches!(store.try_acquire(&claim(&store)).await.unwrap(), AcquireOutcome::Granted(_)));
    assert_eq!(asked(&store), ["claim", "claim", "claim", "claim again", "claim again"]);
}

/// The caller then withdraws the claim.
#[tokio::test(start_paused = true)]
async fn an_error_says_that_an_earlier_request_may_be_granted() {
    for (replies, is_in_line, expected) in [
        (vec![Refused(ErrorKind::Denied)], false, false),
        (vec![Refused(ErrorKind::Unavailable), Refused(ErrorKind::Denied)], false, false),
        (vec![NoAnswer, Refused(ErrorKind::Denied)], false, true),
        (vec![Refused(ErrorKind::Denied)], true, true),
    ] {
        let store = store_with(replies.into_iter().map(|reply| (Duration::ZERO, reply)), is_in_line);
        assert_eq!(is_maybe(store.try_acquire(&claim(&store)).await), expected, "{store:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_not_renewed_after_its_deadline() {
    let store = store([]);
    let mut over = grant(&store);
    store.leases().clock.suspend(30 * SECOND);
    assert_eq!(lost(store.renew(&mut over).await.unwrap()), LossReason::EXPIRED);
    assert!(asked(&store).is_empty());
    // The response came too late: the guard has reported the loss, and another client may have the lock.
    let store = store_with([(30 * SECOND, renewed())], false);
    assert_eq!(lost(store.renew(&mut grant(&store)).await.unwrap()), LossReason::EXPIRED);
    assert_eq!(asked(&store), ["renew"]);
    let store = store_with([(15 * SECOND, renewed())], false);
    let mut late = grant(&store);
    store.leases().clock.suspend(20 * SECOND);
    assert_eq!(
        lost(store.renew(&mut late).await.unwrap()),
        LossReason::EXPIRED,
        "although the lease goes on"
    );
    let until = Some(Deadline::new(TestClock::default().now(), Duration::ZERO));
    let short = Reply::Renewed(Renewed::Until(Lease { until, memo: None }));
    let store = store_with([(SECOND, short)], false);
    assert_eq!(
        lost(store.renew(&mut grant(&store)).await.unwrap()),
        LossReason::EXPIRED,
        "it is over already"
    );
}

/// The renewal task needs the error before the deadline.
#[tokio::test(start_paused = true)]
async fn a_renewal_ends_before_the_deadline_and_leaves_it() {
    let store = store((0..99).map(|_| NoAnswer));
    let mut grant = grant(&store);
    let (began, before) = (store.env().now(), grant.deadline);
    assert!(store.renew(&mut grant).await.unwrap_err().is_transient());
    assert_eq!(grant.deadline, before);
    assert!(store.env().now().longest_since(began) < Ttl::DEFAULT.get() / 2);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_responses_until_the_deadline_is_a_loss() {
    let store = store_with([(30 * SECOND, NoAnswer)], false);
    let reason = lost(store.renew(&mut grant(&store)).await.unwrap());
    assert_eq!(reason, LossReason::Expired { last_error: Some("no answer".to_owned()) });
}

#[tokio::test(start_paused = true)]
async fn a_loss_has_the_reason_of_the_store_or_its_error() {
    let gone = || Reply::Renewed(Renewed::Gone);
    let unknown = LossReason::Expired { last_error: Some("refused".to_owned()) };
    for (replies, reason) in [
        (vec![Reply::Renewed(Renewed::Lost(LossReason::Deleted))], LossReason::Deleted),
        (vec![gone(), Reply::Lost(LossReason::Ended)], LossReason::Ended),
        (vec![gone(), Refused(ErrorKind::Unavailable)], unknown),
    ] {
        let store = store(replies);
        assert_eq!(lost(store.renew(&mut grant(&store)).await.unwrap()), reason);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_continues_with_the_memo_that_it_found() {
    let found: Memo = Arc::new(5_u8);
    let store = store([Reply::Renewed(Renewed::Again(found)), Refused(ErrorKind::Denied)]);
    let mut grant = grant(&store);
    store.renew(&mut grant).await.unwrap_err();
    assert_eq!(memo::<u8>(&grant), Some(&5));
}

#[tokio::test(start_paused = true)]
async fn a_grant_keeps_the_memo_of_its_claim() {
    let lease = Lease { until: None, memo: Some(Arc::new(5_u8)) };
    let store = store([Reply::Claimed(Claimed::Granted(token(), lease))]);
    let AcquireOutcome::Granted(grant) = store.try_acquire(&claim(&store)).await.unwrap() else { panic!() };
    assert_eq!(memo::<u8>(&grant), Some(&5));
}

#[tokio::test(start_paused = true)]
async fn only_an_unanswered_request_counts_as_the_release() {
    let gone = || Reply::Ended(Ended::Gone);
    for (replies, expected, requests) in [
        (vec![Reply::Ended(Ended::Now)], Released::Released, &["end"][..]),
        (vec![gone()], Released::AlreadyLost, &["end"]),
        (vec![Refused(ErrorKind::Unavailable), gone()], Released::AlreadyLost, &["end", "end"]),
        (vec![Reply::Ended(Ended::Again), gone()], Released::AlreadyLost, &["end", "end"]),
        (vec![NoAnswer, gone()], Released::Released, &["end", "end again"]),
        (
            vec![NoAnswer, Refused(ErrorKind::Unavailable), gone()],
            Released::Released,
            &["end", "end again", "end again"],
        ),
        (vec![NoAnswer, Reply::Ended(Ended::Lost)], Released::AlreadyLost, &["end", "end again"]),
    ] {
        let store = store(replies);
        let mut grant = grant(&store);
        assert_eq!(store.release(&mut grant, Some(Duration::ZERO)).await.unwrap(), expected);
        assert_eq!(asked(&store), requests);
        assert_eq!(store.release(&mut grant, None).await.unwrap(), expected, "the result is remembered");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_failed_or_was_dropped_is_remembered() {
    let gone = || Reply::Ended(Ended::Gone);
    for (first, expected) in
        [(Silence, Released::Released), (Refused(ErrorKind::Denied), Released::AlreadyLost)]
    {
        let is_dropped = matches!(first, Silence);
        let store = store([first, gone()]);
        let mut grant = grant(&store);
        if is_dropped {
            let mut release = store.release(&mut grant, None);
            assert!(futures_util::poll!(release.as_mut()).is_pending());
        } else {
            assert!(!is_maybe(store.release(&mut grant, None).await));
        }
        assert_eq!(store.release(&mut grant, None).await.unwrap(), expected);
    }
    let denied = || Refused(ErrorKind::Denied);
    let store = store([NoAnswer, denied(), denied(), Reply::Ended(Ended::Now)]);
    let mut grant = grant(&store);
    assert!(is_maybe(store.release(&mut grant, None).await), "the first request may have released it");
    store.release(&mut grant, None).await.unwrap_err();
    store.release(&mut grant, Some(SECOND)).await.unwrap();
    assert_eq!(asked(&store), ["end", "end again", "end again", "end with a cooldown"]);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_without_a_response_is_resolved() {
    let gone = || Reply::Ended(Ended::Gone);
    for (replies, expected) in [
        (vec![Reply::Ended(Ended::Now)], Evicted::Evicted),
        (vec![gone()], Evicted::Changed),
        (vec![Refused(ErrorKind::Unavailable), gone()], Evicted::Changed),
        (vec![NoAnswer, gone()], Evicted::Evicted),
        (vec![NoAnswer, Reply::Ended(Ended::Lost)], Evicted::Changed),
    ] {
        let store = store(replies);
        assert_eq!(store.evict(&LockName::new("a").unwrap(), token(), None).await.unwrap(), expected);
    }
    for (replies, expected) in
        [(vec![Refused(ErrorKind::Denied)], false), (vec![NoAnswer, Refused(ErrorKind::Denied)], true)]
    {
        let store = store(replies);
        assert_eq!(is_maybe(store.evict(&LockName::new("a").unwrap(), token(), None).await), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_detached_like_it_is_renewed() {
    let store = store([]);
    store.detach(&mut grant(&store)).await.unwrap();
    let moved: Memo = Arc::new(5_u8);
    let lease = Lease { until: None, memo: Some(moved) };
    let store = self::store([NoAnswer, Reply::Renewed(Renewed::Until(lease))]);
    let mut grant = grant(&store);
    store.detach(&mut grant).await.unwrap();
    assert_eq!((memo::<u8>(&grant), asked(&store)), (Some(&5), vec!["detach", "detach"]));
    let store = self::store([Reply::Renewed(Renewed::Lost(LossReason::Deleted))]);
    assert_eq!(store.detach(&mut grant).await.unwrap_err().fault().kind, ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_listing_has_all_pages_and_ends() {
    let store = store([]);
    let names: Vec<LockName> = store.list("x").try_collect().await.unwrap();
    assert_eq!(names.iter().map(LockName::as_str).collect::<Vec<_>>(), ["x1", "x2"]);
    let endless: Result<Vec<LockName>, _> = store.list("endless").try_collect().await;
    assert_eq!(endless.unwrap_err().fault().kind, ErrorKind::Corrupt);
}

#[tokio::test(start_paused = true)]
async fn what_needs_no_repetition_is_passed_on() {
    for has_all in [false, true] {
        let store = store_with([], has_all);
        let (grant, claim) = (grant(&store), claim(&store));
        let place = |waits| store.may_have_place(&Claim { waits, ..claim.clone() });
        assert_eq!([place(true), place(false)], [has_all, false]);
        assert_eq!(store.sweep(&claim.name, SECOND, false).await.is_ok(), has_all);
        assert_eq!(store.discard(&claim.name).await.unwrap(), has_all);
        store.ended(&grant).await;
        store.holder_changed(&claim.name, &Status::new(claim.name.clone(), crate::lease::State::Free)).await;
        assert_eq!(asked(&store), ["ended", "holder changed"]);
    }
}
