//! Tests of a lease from its grant to its end.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::*;

#[tokio::test]
async fn one_holder_at_a_time_across_stores_and_tokens_rise() {
    let site = Site::new();
    let (one, two) = (site.open().await, site.open().await);
    let mut first = grant(&one).await;
    let seen = held(&two).await;
    assert_eq!((seen.token, seen.holder), (Some(first.token), Some(Holder::this_process())));
    assert!(seen.lapses_within.unwrap() <= span());
    assert_eq!(one.release(&mut first, None).await.unwrap(), Released::Released);
    let second = grant(&two).await;
    assert!(second.token > first.token);
    assert_eq!(held(&one).await.token, Some(second.token));
}

#[tokio::test(start_paused = true)]
async fn a_lease_lapses_when_its_span_is_over_and_not_before() {
    let site = Site::new();
    let (one, two) = (site.open().await, site.open().await);
    let mut first = grant(&one).await;
    site.clock.suspend(span() - Duration::from_millis(1));
    assert_eq!(held(&two).await.lapses_within, Some(Duration::from_millis(1)));
    assert!(first.deadline.passed(one.env.now()), "the holder stops first");
    site.clock.suspend(Duration::from_millis(1));
    assert!(matches!(two.inspect(&name()).await.unwrap().state, State::Lapsed(_)));
    let second = grant(&two).await;
    assert!(second.token > first.token);
    assert_eq!(one.release(&mut first, None).await.unwrap(), Released::AlreadyLost);
    assert_eq!(held(&one).await.token, Some(second.token), "the late release ended nothing");
    let past = &two.inspect(&name()).await.unwrap().history[0];
    assert_eq!((past.token, past.end), (first.token, End::Lapsed));
    assert_eq!(past.until_us, past.from_us, "it was never renewed");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_moves_the_lapse_and_the_deadline() {
    let site = Site::new();
    let (one, two) = (site.open().await, site.open().await);
    let mut first = grant(&one).await;
    for _ in 0..4 {
        site.clock.suspend(TTL / 2);
        assert!(matches!(one.renew(&mut first).await.unwrap(), Renewal::Renewed));
        assert_eq!(first.deadline.remaining(one.env.now()), first.ttl.holder_span());
        assert_eq!(held(&two).await.lapses_within, Some(span()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_wall_clock_has_no_effect_on_a_lease() {
    for seconds in [7_200, -7_200] {
        let site = Site::new();
        let (one, two) = (site.open().await, site.open().await);
        let first = grant(&one).await;
        site.clock.step_wall(seconds);
        assert_eq!(held(&two).await.lapses_within, Some(span()));
        site.clock.suspend(span());
        assert!(grant(&two).await.token > first.token);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_takeover_renewal_and_detachment_report_the_loss() {
    let site = Site::new();
    let (one, two) = (site.open().await, site.open().await);
    let mut first = grant(&one).await;
    // Simulates a renewal that was sent in time and arrives late. For this renewal, the holder's own deadline has not
    // passed.
    site.sql("UPDATE lock SET renewed_ns = 0");
    site.clock.suspend(span());
    first.deadline = deadline(first.ttl, one.env.now());
    let second = grant(&two).await;
    match lost_by(&one, &mut first).await {
        LossReason::TakenOver { by } => assert_eq!(by.token, Some(second.token)),
        other => panic!("{other:?}"),
    }
    let error = one.detach(&mut first).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_past_the_deadline_is_a_loss_without_a_takeover() {
    let site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    site.clock.suspend(first.ttl.holder_span());
    assert_eq!(lost_by(&store, &mut first).await, LossReason::Expired { last_error: None });
}

#[tokio::test]
async fn a_renewal_confirmed_past_the_deadline_extends_nothing() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let mut first = grant(&store).await;
    let gate = Gate::close(&store).await;
    let (reason, ()) = tokio::join!(lost_by(&store, &mut first), async {
        site.clock.suspend(TTL);
        drop(gate);
    });
    match reason {
        LossReason::Expired { last_error: Some(error) } => assert!(error.contains("locks.db"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(first.deadline.passed(store.env.now()));
}

/// A clock whose first readings take longer than a lease.
#[derive(Debug)]
struct SlowMachine {
    clock: TestClock,
    slow_looks: AtomicU32,
}

#[async_trait]
impl Clock for SlowMachine {
    fn now(&self) -> Moment {
        let slow = self.slow_looks.fetch_update(Relaxed, Relaxed, |looks| looks.checked_sub(1));
        if slow.is_ok() {
            self.clock.suspend(TTL);
        }
        self.clock.now()
    }

    async fn sleep(&self, _: Duration) {
        std::future::pending().await
    }
}

/// A clock that jumps by a span at one of its readings.
#[derive(Debug)]
struct JumpingClock {
    clock: Arc<TestClock>,
    readings_left: AtomicU32,
}

#[async_trait]
impl Clock for JumpingClock {
    fn now(&self) -> Moment {
        let left = self.readings_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        if left == Ok(1) {
            self.clock.suspend(span());
        }
        self.clock.now()
    }

    async fn sleep(&self, _: Duration) {
        std::future::pending().await
    }
}

/// Wherever the process is paused, it neither relies on a renewal nor writes one after its lease.
#[tokio::test]
async fn a_renewal_with_a_pause_anywhere_is_a_loss() {
    let mut pauses = 0;
    loop {
        let site = Site::new();
        let (mut store, other) = (site.open().await, site.open().await);
        let mut first = grant(&store).await;
        let clock = JumpingClock { clock: site.clock.clone(), readings_left: AtomicU32::new(pauses + 1) };
        let clock = Arc::new(clock);
        store.env.clock = clock.clone();
        let renewal = store.renew(&mut first).await.unwrap();
        if clock.readings_left.load(Relaxed) > 0 {
            assert!(matches!(renewal, Renewal::Renewed));
            break;
        }
        assert!(matches!(renewal, Renewal::Lost(_)), "{pauses}");
        let status = other.inspect(&name()).await.unwrap();
        assert!(matches!(status.state, State::Lapsed(_)), "{pauses}: {status:?}");
        pauses += 1;
    }
    assert!(pauses >= 3, "{pauses}");
}

#[tokio::test]
async fn a_grant_that_comes_after_its_deadline_is_not_given_out() {
    let site = Site::new();
    let mut store = site.open().await;
    // One reading for the claim, two for the request, one for its read, one for each of the two transactions, and one
    // for the grant. Its release is quick.
    let slow_looks = AtomicU32::new(7);
    store.env.clock = Arc::new(SlowMachine { clock: TestClock::default(), slow_looks });
    let claim = Claim { store_timeout: Duration::from_secs(86_400), ..claim(&store) };
    let verdict = store.try_acquire(&claim).await.unwrap();
    assert!(matches!(verdict, AcquireOutcome::Lost(_)), "{verdict:?}");
    assert_eq!(site.open().await.inspect(&name()).await.unwrap().state, State::Free);
}

#[tokio::test]
async fn a_grant_is_identified_by_its_id_not_by_its_row() {
    let site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, None).await.unwrap();
    let second = grant(&store).await;
    // The same holder, ttl and state as before (ABA).
    assert_eq!(lost_by(&store, &mut first).await, LossReason::Ended);
    first.memo = None;
    assert_eq!(store.release(&mut first, None).await.unwrap(), Released::AlreadyLost);
    assert_eq!(held(&store).await.token, Some(second.token));
}

#[tokio::test]
async fn a_claim_that_is_tried_again_gets_its_own_grant_back() {
    let site = Site::new();
    let store = site.open().await;
    for repeatable in [false, true] {
        let claim = Claim { repeatable, ..claim(&store) };
        let AcquireOutcome::Granted(mut first) = store.try_acquire(&claim).await.unwrap() else { panic!() };
        let AcquireOutcome::Granted(mut again) = store.try_acquire(&claim).await.unwrap() else { panic!() };
        assert_eq!(first.id, again.id);
        assert_eq!(first.token, again.token);
        // Only a repetition by another process shares the grant.
        assert!(matches!(store.renew(&mut again).await.unwrap(), Renewal::Renewed));
        match store.renew(&mut first).await.unwrap() {
            Renewal::Renewed => assert!(repeatable),
            Renewal::Lost(loss) => {
                assert_eq!((loss.reason, repeatable), (LossReason::RenewedElsewhere, false))
            }
        }
        store.release(&mut again, None).await.unwrap();
    }
    let claim = Claim { repeatable: true, ..claim(&store) };
    let AcquireOutcome::Granted(mut first) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    store.release(&mut first, None).await.unwrap();
    match store.try_acquire(&claim).await.unwrap() {
        AcquireOutcome::Lost(loss) => assert_eq!((loss.token, loss.reason), (first.token, LossReason::Ended)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_release_with_a_lost_response_may_be_repeated() {
    let site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, None).await.unwrap();
    assert_eq!(store.release(&mut first, None).await.unwrap(), Released::Released);
    let mut second = grant(&store).await;
    store.evict(&name(), second.token, None).await.unwrap();
    assert_eq!(store.release(&mut second, None).await.unwrap(), Released::AlreadyLost);
    assert_eq!(store.release(&mut second, None).await.unwrap(), Released::AlreadyLost);
}

#[tokio::test]
async fn eviction_ends_the_grant_that_it_names_and_no_other() {
    let site = Site::new();
    let store = site.open().await;
    assert_eq!(store.evict(&name(), Token::new(1).unwrap(), None).await.unwrap(), Evicted::Changed);
    let mut first = grant(&store).await;
    let other = Token::new(first.token.get() + 1).unwrap();
    assert_eq!(store.evict(&name(), other, None).await.unwrap(), Evicted::Changed);
    assert_eq!(held(&store).await.token, Some(first.token));
    assert_eq!(store.evict(&name(), first.token, None).await.unwrap(), Evicted::Evicted);
    assert_eq!(store.evict(&name(), first.token, None).await.unwrap(), Evicted::Changed);
    assert_eq!(lost_by(&store, &mut first).await, LossReason::Ended);
    let status = store.inspect(&name()).await.unwrap();
    assert_eq!((status.state, status.token), (State::Free, Some(first.token)));
    assert_eq!((status.history[0].grant, status.history[0].end), (first.id, End::Evicted));
}

#[tokio::test]
async fn a_holder_notices_that_its_row_was_deleted() {
    let site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    site.sql("DELETE FROM lock");
    assert_eq!(lost_by(&store, &mut first).await, LossReason::Deleted);
    assert_eq!(store.release(&mut first, None).await.unwrap(), Released::AlreadyLost);
}

#[tokio::test]
async fn a_holder_notices_that_its_file_was_deleted_or_replaced() {
    for files in [&["", "-wal", "-shm"][..], &[""]] {
        let site = Site::new();
        let one = site.open().await;
        let mut first = grant(&one).await;
        for suffix in files {
            fs::remove_file(format!("{}{suffix}", site.path().display())).unwrap();
        }
        let two = site.open().await;
        let second = grant(&two).await;
        assert!(matches!(lost_by(&one, &mut first).await, LossReason::Ended | LossReason::TakenOver { .. }));
        assert_eq!(held(&one).await.token, Some(second.token), "both see the same file");
    }
}

/// A process that is copied while it runs continues as two processes with one grant.
#[tokio::test]
async fn of_two_copies_of_a_holder_the_later_one_loses() {
    let site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    let mut copy = Grant {
        memo: Some(hold::Memo::copy_of(&first)),
        ..Grant::withdrawn(name(), first.id, first.ttl, store.env.now())
    };
    (copy.token, copy.deadline) = (first.token, first.deadline);
    assert!(matches!(store.renew(&mut copy).await.unwrap(), Renewal::Renewed));
    assert_eq!(lost_by(&store, &mut first).await, LossReason::RenewedElsewhere);
    assert_eq!(store.detach(&mut first).await.unwrap_err().fault().kind, ErrorKind::Lost);
    assert_eq!(store.release(&mut first, None).await.unwrap(), Released::AlreadyLost);
    assert!(matches!(store.renew(&mut copy).await.unwrap(), Renewal::Renewed));
    // Each process with a ticket may renew.
    store.detach(&mut copy).await.unwrap();
    let mut ticket = Grant::withdrawn(name(), copy.id, copy.ttl, store.env.now());
    (ticket.token, ticket.deadline) = (copy.token, copy.deadline);
    for _ in 0..2 {
        assert!(matches!(store.renew(&mut ticket).await.unwrap(), Renewal::Renewed));
        assert!(matches!(store.renew(&mut copy).await.unwrap(), Renewal::Renewed));
    }
    assert_eq!(store.release(&mut ticket, None).await.unwrap(), Released::Released);
}
