//! The store as a whole, on real files. Time is moved by hand: no test waits for a lease.

use std::fs;
use std::path::PathBuf;

#[cfg(target_os = "linux")]
use super::machine::tests::Sleeper;
use super::*;
use crate::clock::{Clock, SystemClock, TestClock};
use crate::lease::{End, Holder, Id, State};

const TTL: Duration = Duration::from_secs(30);

/// A folder with a file of locks, and a clock that all its stores share.
struct Site {
    folder: tempfile::TempDir,
    clock: Arc<TestClock>,
    machine: Machine,
}

impl Site {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            clock: Arc::default(),
            machine: Machine { boot: "boot 1".into(), ..Machine::this().unwrap() },
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    async fn try_open(&self) -> Result<SqliteLeases, StoreError> {
        let env = Env { clock: self.clock.clone(), random: Env::system().random };
        let location = Location { path: self.path(), allow_network: false };
        SqliteLeases::open(location, self.machine.clone(), env).await
    }

    async fn open(&self) -> SqliteLeases {
        self.try_open().await.unwrap()
    }

    /// Another process on the same machine that opens the same file.
    #[cfg(target_os = "linux")]
    async fn open_as(&self, process: &machine::Process) -> SqliteLeases {
        let machine = Machine { me: Some(process.clone()), ..self.machine.clone() };
        let mut store = self.open().await;
        store.machine = Arc::new(machine);
        store
    }

    /// The boot clock starts again, the wall clock goes on (to the second).
    fn reboot(&mut self) {
        self.machine.boot.push('+');
        let before = self.clock.now().wall_us();
        self.clock = Arc::default();
        self.clock.step_wall(((before - self.clock.now().wall_us()) / 1_000_000).try_into().unwrap());
    }

    fn sql(&self, sql: &str) {
        rusqlite::Connection::open(self.path()).unwrap().execute_batch(sql).unwrap();
    }

    fn delete(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{suffix}", self.path().display()));
        }
    }
}

fn name() -> LockName {
    LockName::new("deploy/prod").unwrap()
}

fn claim(store: &SqliteLeases) -> Claim {
    Claim::new(&store.env, name(), Ttl::new(TTL).unwrap(), Holder::this_process())
}

async fn verdict(store: &SqliteLeases) -> Verdict {
    store.try_acquire(&claim(store)).await.unwrap()
}

async fn grant(store: &SqliteLeases) -> Grant {
    match verdict(store).await {
        Verdict::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn held(store: &SqliteLeases) -> Held {
    match verdict(store).await {
        Verdict::Held(held) => held,
        other => panic!("not held: {other:?}"),
    }
}

async fn lost_by(store: &SqliteLeases, grant: &mut Grant) -> LossReason {
    match store.renew(grant).await.unwrap() {
        Renewal::Lost(loss) => loss.reason,
        Renewal::Renewed => panic!("renewed"),
    }
}

/// How long after its last renewal a lease lapses.
fn span() -> Duration {
    Ttl::new(TTL).unwrap().contender_span()
}

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
    assert_eq!(past.until_us.unwrap() - past.from_us.unwrap(), crate::clock::micros(span()));
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
    // A renewal that was sent in time and comes late: the holder's own deadline has not passed for it.
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
async fn a_renewal_after_the_holders_deadline_is_a_loss_though_nobody_took_over() {
    let site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    site.clock.suspend(first.ttl.holder_span());
    assert_eq!(lost_by(&store, &mut first).await, LossReason::Expired { last_error: None });
}

#[tokio::test]
async fn a_renewal_that_is_answered_after_the_holders_deadline_prolongs_nothing() {
    let site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    let turn = store.database.turn().await;
    let (reason, ()) = tokio::join!(lost_by(&store, &mut first), async {
        site.clock.suspend(TTL);
        drop(turn);
    });
    assert_eq!(reason, LossReason::Expired { last_error: None });
    assert!(first.deadline.passed(store.env.now()));
}

/// Every look at it costs more than a lease.
#[derive(Debug)]
struct SlowMachine(TestClock);

#[async_trait]
impl Clock for SlowMachine {
    fn now(&self) -> Moment {
        self.0.suspend(TTL);
        self.0.now()
    }

    async fn sleep(&self, _: Duration) {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_grant_that_comes_after_its_deadline_is_not_given_out() {
    let site = Site::new();
    let mut store = site.open().await;
    store.env.clock = Arc::new(SlowMachine(TestClock::default()));
    let error = store.try_acquire(&claim(&store)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(site.open().await.inspect(&name()).await.unwrap().state, State::Free);
}

#[tokio::test]
async fn a_grant_is_known_by_its_id_not_by_what_the_row_looks_like() {
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
    let claim = claim(&store);
    let Verdict::Granted(mut first) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    let Verdict::Granted(again) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    assert_eq!((first.id, first.token), (again.id, again.token));
    store.release(&mut first, None).await.unwrap();
    match store.try_acquire(&claim).await.unwrap() {
        Verdict::Lost(loss) => assert_eq!((loss.token, loss.reason), (first.token, LossReason::Ended)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_may_be_asked_for_again() {
    let site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, None).await.unwrap();
    assert_eq!(store.release(&mut first, None).await.unwrap(), Released::Released);
    let mut second = grant(&store).await;
    store.evict(&name(), second.token).await.unwrap();
    assert_eq!(store.release(&mut second, None).await.unwrap(), Released::AlreadyLost);
    assert_eq!(store.release(&mut second, None).await.unwrap(), Released::AlreadyLost);
}

#[tokio::test]
async fn tokens_rise_across_release_eviction_deletion_of_the_row_and_of_the_file() {
    let site = Site::new();
    let store = site.open().await;
    let mut latest = grant(&store).await;
    let mut rises = |grant: &Grant| {
        assert!(grant.token > latest.token, "{} after {}", grant.token, latest.token);
        latest.token = grant.token;
    };
    store.evict(&name(), held(&store).await.token.unwrap()).await.unwrap();
    let mut second = grant(&store).await;
    rises(&second);
    // From here on the wall clock says nothing: only what is kept can.
    site.clock.step_wall(-86_400);
    store.release(&mut second, None).await.unwrap();
    rises(&grant(&store).await);
    site.sql("DELETE FROM lock");
    rises(&grant(&store).await);
    site.sql("UPDATE counter SET token = 0");
    store.evict(&name(), held(&store).await.token.unwrap()).await.unwrap();
    rises(&grant(&store).await);
    // Without the file only the wall clock is left.
    site.clock.step_wall(86_400 + 60);
    site.delete();
    rises(&grant(&store).await);
}

#[tokio::test]
async fn a_power_failure_that_takes_back_commits_gives_no_token_again() {
    let mut site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, None).await.unwrap();
    // What is certainly on the disk from here on: the commit that raised the ceiling.
    let kept = site.folder.path().join("kept.db");
    rusqlite::Connection::open(site.path())
        .unwrap()
        .execute("VACUUM INTO ?", [kept.to_str().unwrap()])
        .unwrap();
    let mut taken_back = Vec::new();
    for _ in 0..50 {
        let mut grant = grant(&store).await;
        taken_back.push(grant.token);
        store.release(&mut grant, None).await.unwrap();
    }
    drop(store);
    site.delete();
    fs::rename(kept, site.path()).unwrap();
    site.reboot();
    // A machine without a clock battery.
    site.clock.step_wall(-10 * 86_400);
    let after = grant(&site.open().await).await.token;
    assert!(taken_back.iter().all(|&token| token < after), "{after} after {taken_back:?}");
}

#[tokio::test(start_paused = true)]
async fn a_token_waits_for_the_disk_once_in_a_while_only() {
    let site = Site::new();
    let store = site.open().await;
    let ceiling = || -> i64 {
        rusqlite::Connection::open(site.path())
            .unwrap()
            .query_row("SELECT ceiling FROM counter", (), |row| row.get(0))
            .unwrap()
    };
    let mut first = grant(&store).await;
    let start = ceiling();
    assert!(start as u64 > first.token.get());
    store.release(&mut first, None).await.unwrap();
    store.release(&mut grant(&store).await, None).await.unwrap();
    assert_eq!(ceiling(), start);
    site.clock.suspend(Duration::from_secs(11));
    let later = grant(&store).await;
    assert!(ceiling() as u64 > later.token.get(), "no token above the ceiling is ever used");
}

#[tokio::test]
async fn what_was_granted_in_another_boot_has_lapsed() {
    let mut site = Site::new();
    let mut before = grant(&site.open().await).await;
    site.reboot();
    let store = site.open().await;
    assert!(matches!(store.inspect(&name()).await.unwrap().state, State::Lapsed(_)));
    let after = grant(&store).await;
    assert!(after.token > before.token);
    assert!(matches!(lost_by(&store, &mut before).await, LossReason::TakenOver { .. }));
}

#[tokio::test]
async fn a_container_with_a_boot_id_of_its_own_is_not_granted_what_is_held() {
    let mut site = Site::new();
    let holder = site.open().await;
    let mut grant = grant(&holder).await;
    site.machine.boot = "container:another".into();
    let container = site.open().await;
    held(&container).await;
    assert!(matches!(holder.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(holder.release(&mut grant, None).await.unwrap(), Released::Released);
}

#[tokio::test]
async fn a_ticket_survives_a_reboot_while_nobody_took_over() {
    let mut site = Site::new();
    let store = site.open().await;
    let mut claim = claim(&store);
    claim.detached = true;
    let Verdict::Granted(mut first) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    site.reboot();
    let store = site.open().await;
    assert!(matches!(store.renew(&mut first).await.unwrap(), Renewal::Renewed));
    assert_eq!(held(&store).await.token, Some(first.token));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dead_holder_is_succeeded_at_once() {
    let site = Site::new();
    let mut sleeper = Sleeper::start();
    let holder = site.open_as(&sleeper.process()).await;
    let store = site.open().await;
    let first = grant(&holder).await;
    let seen = held(&store).await;
    sleeper.kill();
    // No time has to pass: the waiter asks within milliseconds.
    store.changed(&name(), &seen).await.unwrap();
    assert!(matches!(store.inspect(&name()).await.unwrap().state, State::Lapsed(_)));
    assert!(grant(&store).await.token > first.token);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_detached_grant_outlives_its_process() {
    for at_once in [true, false] {
        let site = Site::new();
        let mut sleeper = Sleeper::start();
        let holder = site.open_as(&sleeper.process()).await;
        let mut claim = claim(&holder);
        claim.detached = at_once;
        let Verdict::Granted(mut first) = holder.try_acquire(&claim).await.unwrap() else { panic!() };
        if !at_once {
            holder.detach(&mut first).await.unwrap();
        }
        sleeper.kill();
        sleeper.reap();
        let store = site.open().await;
        assert_eq!(held(&store).await.token, Some(first.token));
        // A process that has its ticket goes on with it.
        assert!(matches!(store.renew(&mut first).await.unwrap(), Renewal::Renewed));
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_grant_that_another_process_renewed_is_not_ended_by_the_first_one() {
    let site = Site::new();
    let mut sleeper = Sleeper::start();
    let mut first = grant(&site.open_as(&sleeper.process()).await).await;
    let store = site.open().await;
    assert!(matches!(store.renew(&mut first).await.unwrap(), Renewal::Renewed));
    sleeper.kill();
    assert_eq!(held(&store).await.token, Some(first.token));
}

#[tokio::test(start_paused = true)]
async fn a_lock_delay_counts_from_the_lapse_and_not_from_a_release() {
    let site = Site::new();
    let store = site.open().await;
    let mut claim = claim(&store);
    claim.lock_delay = Duration::from_secs(5);
    let Verdict::Granted(mut first) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    site.clock.suspend(span());
    assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(5)));
    site.clock.suspend(Duration::from_secs(5));
    let mut second = grant(&store).await;
    assert!(second.token > first.token);
    store.release(&mut second, None).await.unwrap();
    claim.id = Id::random(&store.env.random);
    let Verdict::Granted(third) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    first = third;
    store.release(&mut first, None).await.unwrap();
    grant(&store).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn a_lock_delay_counts_from_when_a_process_was_seen_dead() {
    for seen_by_waiter in [true, false] {
        let site = Site::new();
        let mut sleeper = Sleeper::start();
        let holder = site.open_as(&sleeper.process()).await;
        let mut claim = claim(&holder);
        claim.lock_delay = Duration::from_secs(5);
        holder.try_acquire(&claim).await.unwrap();
        let store = site.open().await;
        let seen = held(&store).await;
        site.clock.suspend(Duration::from_secs(1));
        sleeper.kill();
        let start = store.env.now();
        if seen_by_waiter {
            store.changed(&name(), &seen).await.unwrap();
        } else {
            assert_eq!(held(&store).await.lapses_within, Some(claim.lock_delay));
            site.clock.suspend(Duration::from_secs(3));
            assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(2)));
            store.changed(&name(), &seen).await.unwrap();
        }
        let waited = store.env.now().longest_since(start);
        assert!(
            (claim.lock_delay..claim.lock_delay + Duration::from_millis(5)).contains(&waited),
            "{waited:?}"
        );
        grant(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_rests_for_as_long_as_its_holder_said_also_across_a_reboot() {
    let mut site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, Some(Duration::from_secs(100))).await.unwrap();
    site.clock.suspend(Duration::from_secs(40));
    let resting = held(&store).await;
    assert!(resting.resting && resting.holder.is_none());
    assert_eq!((resting.token, resting.lapses_within), (Some(first.token), Some(Duration::from_secs(60))));
    site.reboot();
    let store = site.open().await;
    assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(60)));
    site.clock.suspend(Duration::from_secs(60));
    assert_eq!(store.inspect(&name()).await.unwrap().state, State::Free);
    assert!(grant(&store).await.token > first.token);
}

/// A wall clock that was years ahead when the rest began, and is right since the reboot, does not make it last for years.
#[tokio::test(start_paused = true)]
async fn a_rest_ends_also_when_the_wall_clock_was_set_back_with_the_reboot() {
    let mut site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, Some(Duration::from_secs(100))).await.unwrap();
    site.reboot();
    site.clock.step_wall(-100_000_000);
    let store = site.open().await;
    assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(100)));
    site.clock.suspend(Duration::from_secs(99));
    assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(1)));
    site.clock.suspend(Duration::from_secs(1));
    assert!(grant(&store).await.token > first.token);
}

#[tokio::test]
async fn eviction_ends_the_grant_that_it_names_and_no_other() {
    let site = Site::new();
    let store = site.open().await;
    assert_eq!(store.evict(&name(), Token::new(1).unwrap()).await.unwrap(), Evicted::Changed);
    let mut first = grant(&store).await;
    let other = Token::new(first.token.get() + 1).unwrap();
    assert_eq!(store.evict(&name(), other).await.unwrap(), Evicted::Changed);
    assert_eq!(held(&store).await.token, Some(first.token));
    assert_eq!(store.evict(&name(), first.token).await.unwrap(), Evicted::Evicted);
    assert_eq!(store.evict(&name(), first.token).await.unwrap(), Evicted::Changed);
    assert_eq!(lost_by(&store, &mut first).await, LossReason::Ended);
    let status = store.inspect(&name()).await.unwrap();
    assert_eq!((status.state, status.token), (State::Free, Some(first.token)));
    assert_eq!((status.history[0].grant, status.history[0].end), (first.id, End::Evicted));
}

#[tokio::test]
async fn a_holder_whose_row_was_deleted_learns_it() {
    let site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    site.sql("DELETE FROM lock");
    assert_eq!(lost_by(&store, &mut first).await, LossReason::Deleted);
    assert_eq!(store.release(&mut first, None).await.unwrap(), Released::AlreadyLost);
}

#[tokio::test]
async fn a_holder_whose_file_was_deleted_or_replaced_learns_it() {
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

#[tokio::test]
async fn the_history_keeps_the_latest_eight() {
    let site = Site::new();
    let store = site.open().await;
    let mut tokens = Vec::new();
    for _ in 0..10 {
        let mut grant = grant(&store).await;
        tokens.insert(0, grant.token);
        store.release(&mut grant, None).await.unwrap();
    }
    let history = store.inspect(&name()).await.unwrap().history;
    assert_eq!(history.iter().map(|past| past.token).collect::<Vec<_>>(), tokens[..8]);
    assert!(history.iter().all(|past| past.end == End::Released));
}

#[tokio::test]
async fn names_are_listed_by_prefix_page_by_page() {
    let site = Site::new();
    let store = site.open().await;
    let mut expected = Vec::new();
    for number in 0..PAGE + 10 {
        expected.push(format!("a_/{number:04}"));
    }
    let values =
        expected.iter().map(|name| format!("('{name}', 'free', 1, '[]')")).collect::<Vec<_>>().join(",");
    site.sql(&format!(
        "INSERT INTO lock (name, state, token, history) VALUES {values}, ('ab/x', 'free', 1, '[]'), ('../x', 'free', 1, '[]')"
    ));
    let listed = |prefix: &'static str| {
        let names = store.list(prefix).map_ok(|name| name.to_string());
        async move { names.try_collect::<Vec<_>>().await.unwrap() }
    };
    assert_eq!(listed("a_").await, expected);
    assert_eq!(listed("ab").await, ["ab/x"]);
    assert_eq!(listed("%").await, [""; 0]);
    assert_eq!(listed("").await.len(), expected.len() + 1);
}

#[tokio::test]
async fn a_waiter_is_told_of_a_release_by_another_process() {
    let site = Site::new();
    let (one, two) = (site.open().await, site.open().await);
    let mut first = grant(&one).await;
    let seen = held(&two).await;
    let name = name();
    let (changed, released) = tokio::join!(two.changed(&name, &seen), one.release(&mut first, None));
    changed.unwrap();
    released.unwrap();
    grant(&two).await;
    // Held by another grant than the one that was seen: worth a look.
    two.changed(&name, &seen).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_wakes_at_the_lapse_and_not_before() {
    let site = Site::new();
    let store = site.open().await;
    grant(&store).await;
    let seen = held(&store).await;
    let start = store.env.now();
    store.changed(&name(), &seen).await.unwrap();
    let waited = store.env.now().longest_since(start);
    assert!((span()..span() + Duration::from_millis(5)).contains(&waited), "{waited:?}");
}

#[tokio::test]
async fn capabilities_are_what_the_store_does() {
    let site = Site::new();
    let capabilities = site.open().await.capabilities();
    assert!(capabilities.tokens && capabilities.rests && !capabilities.fifo && !capabilities.watches);
    assert_eq!(capabilities.sees_dead_processes, cfg!(target_os = "linux"));
}

#[tokio::test]
async fn rows_that_cannot_be_read_are_never_granted_and_never_overwritten() {
    for edit in [
        "token = -1",
        "token = 9007199254740992",
        "ttl_ms = 0",
        "ttl_ms = NULL",
        "grant_id = 'x'",
        "grant_id = NULL",
        "holder = '{'",
        "holder = NULL",
        "renewed_ns = -5",
        "renewed_ns = NULL",
        "boot = NULL",
        "history = 'x'",
        "process = '{}'",
        "died_ns = -1",
        "lock_delay_ms = -1",
        "state = 'resting'",
    ] {
        let site = Site::new();
        let store = site.open().await;
        let mut first = grant(&store).await;
        site.sql(&format!("UPDATE lock SET {edit}"));
        for error in [
            store.try_acquire(&claim(&store)).await.err(),
            store.renew(&mut first).await.err(),
            store.release(&mut first, None).await.err(),
            store.inspect(&name()).await.err(),
            store.evict(&name(), first.token).await.err(),
        ] {
            let error = error.unwrap_or_else(|| panic!("{edit}: no error"));
            assert!(
                matches!(&error, StoreError::NotApplied(fault) if fault.kind == ErrorKind::Corrupt),
                "{edit}: {error}"
            );
            assert!(error.to_string().contains("deploy/prod"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_counter_that_cannot_be_read_grants_nothing() {
    for edit in ["token = -1", "ceiling = -1", "token = 9007199254740991"] {
        let site = Site::new();
        let store = site.open().await;
        site.sql(&format!("UPDATE counter SET boot = 'boot 1', {edit}"));
        let error = store.try_acquire(&claim(&store)).await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{edit}");
    }
}

/// What opening says, and that it left the file as it was.
async fn refusal(site: &Site) -> Fault {
    let before = fs::read(site.path()).ok();
    let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) =
        site.try_open().await.unwrap_err();
    assert_eq!(fs::read(site.path()).ok(), before, "nothing was overwritten");
    assert!(fault.help.is_some(), "{fault:?}");
    assert!(fault.message.contains(site.folder.path().to_str().unwrap()), "{fault:?}");
    fault
}

#[tokio::test]
async fn files_that_are_not_ours_are_refused_and_left_alone() {
    let site = Site::new();
    fs::write(site.path(), "#!/bin/sh\n".repeat(1_000)).unwrap();
    assert_eq!(refusal(&site).await.kind, ErrorKind::Corrupt);

    let site = Site::new();
    site.sql("CREATE TABLE customer (name)");
    assert_eq!(refusal(&site).await.kind, ErrorKind::Invalid);

    let site = Site::new();
    site.sql("PRAGMA application_id = 7");
    assert_eq!(refusal(&site).await.kind, ErrorKind::Invalid);

    let site = Site::new();
    drop(site.open().await);
    site.sql("PRAGMA user_version = 2");
    let fault = refusal(&site).await;
    assert_eq!(fault.kind, ErrorKind::Unsupported);
    assert!(fault.help.unwrap().contains("upgrade"));

    let site = Site::new();
    fs::create_dir(site.path()).unwrap();
    assert_eq!(refusal(&site).await.kind, ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_many_create_at_once_is_one_store() {
    for _ in 0..20 {
        let site = Arc::new(Site::new());
        let opening: Vec<_> = (0..8)
            .map(|_| {
                let site = site.clone();
                tokio::spawn(async move { site.open().await })
            })
            .collect();
        let mut stores = Vec::new();
        for store in opening {
            stores.push(store.await.unwrap());
        }
        let first = grant(&stores[0]).await;
        for store in &stores {
            assert_eq!(held(store).await.token, Some(first.token));
        }
    }
}

#[tokio::test]
async fn an_empty_file_becomes_a_store() {
    let site = Site::new();
    fs::write(site.path(), "").unwrap();
    grant(&site.open().await).await;
}

#[tokio::test]
async fn damage_is_reported_and_a_mended_file_is_used_again() {
    let site = Site::new();
    let store = site.open().await;
    store.release(&mut grant(&store).await, None).await.unwrap();
    site.sql("PRAGMA wal_checkpoint(TRUNCATE); DROP TABLE counter");
    let error = store.try_acquire(&claim(&store)).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{error}");
    drop(store);

    let damaged = fs::read(site.path()).unwrap();
    let half: Vec<u8> =
        damaged.iter().enumerate().map(|(at, &byte)| if at > 100 { 0x55 } else { byte }).collect();
    fs::write(site.path(), half).unwrap();
    let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) = match site.try_open().await {
        Err(error) => error,
        Ok(store) => store.try_acquire(&claim(&store)).await.unwrap_err(),
    };
    assert_eq!(fault.kind, ErrorKind::Corrupt, "{fault:?}");
    site.delete();
    grant(&site.open().await).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn without_permission_to_write_the_error_says_so() {
    let site = Site::new();
    let store = site.open().await;
    let refuse = |connection: &mut Connection| Ok(connection.pragma_update(None, "query_only", "ON")?);
    store.database.run(&store.env, PATIENCE, false, refuse).await.unwrap();
    let error = store.try_acquire(&claim(&store)).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::NotApplied(fault) if fault.kind == ErrorKind::Denied && fault.help.is_some()),
        "{error}"
    );
    // A place where not even root can make a file.
    let location = Location { path: "/proc/locks.db".into(), allow_network: true };
    let error = SqliteLeases::open(location, site.machine.clone(), store.env.clone()).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_full_disk_is_reported_and_grants_nothing() {
    let site = Site::new();
    let store = site.open().await;
    let fill = |connection: &mut Connection| {
        let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
        Ok(connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?)
    };
    store.database.run(&store.env, PATIENCE, false, fill).await.unwrap();
    let mut large = claim(&store);
    large.holder.note = Some("x".repeat(100_000));
    let error = store.try_acquire(&large).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::NotApplied(fault) if fault.kind == ErrorKind::Unavailable),
        "{error}"
    );
    assert!(error.fault().help.as_ref().unwrap().contains("full"), "{error:?}");
    assert_eq!(store.inspect(&name()).await.unwrap().state, State::Free);
    grant(&store).await;
}

#[tokio::test]
async fn a_file_that_stays_busy_is_given_up_on_and_one_that_does_not_is_waited_for() {
    let site = Site::new();
    let store = site.open().await;
    let mut other = rusqlite::Connection::open(site.path()).unwrap();
    let writer = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    let mut claim = claim(&store);
    claim.patience = Duration::from_millis(150);
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unavailable, "{error}");
    assert_eq!(store.inspect(&name()).await.unwrap().state, State::Free, "reading goes on");
    claim.patience = PATIENCE;
    let (verdict, ()) = tokio::join!(store.try_acquire(&claim), async {
        tokio::task::yield_now().await;
        writer.rollback().unwrap();
    });
    assert!(matches!(verdict.unwrap(), Verdict::Granted(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_two_stores_never_hold_it_together() {
    let site = Site::new();
    let env = Env { clock: Arc::new(SystemClock), random: Env::system().random };
    let inside = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut stores = Vec::new();
    for _ in 0..2 {
        let location = Location { path: site.path(), allow_network: false };
        stores.push(Arc::new(SqliteLeases::open(location, site.machine.clone(), env.clone()).await.unwrap()));
    }
    let tasks = (0..16).map(|number| {
        let (store, inside, tokens) = (stores[number % 2].clone(), inside.clone(), tokens.clone());
        tokio::spawn(async move {
            for _ in 0..5 {
                let mut grant = loop {
                    match verdict(&store).await {
                        Verdict::Granted(grant) => break grant,
                        Verdict::Held(held) => store.changed(&name(), &held).await.unwrap(),
                        Verdict::Lost(loss) => panic!("{loss}"),
                    }
                };
                assert!(!inside.swap(true, std::sync::atomic::Ordering::SeqCst), "two holders");
                tokens.lock().unwrap().push(grant.token);
                tokio::task::yield_now().await;
                inside.store(false, std::sync::atomic::Ordering::SeqCst);
                assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 80);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
}

#[tokio::test]
async fn the_url_opens_the_file_and_refuses_what_it_does_not_know() {
    let site = Site::new();
    let path = site.path().display().to_string();
    for url in
        [format!("sqlite:{path}"), format!("sqlite://{path}?store_clock=off&margin=1s&allow_network=off")]
    {
        let store = open(StoreUrl::parse(&url).unwrap(), StoreOptions::default()).await.unwrap();
        assert_eq!(store.inspect(&name()).await.unwrap().state, State::Free);
    }
    let url = StoreUrl::parse(&format!("sqlite:{path}?mode=ro")).unwrap();
    assert_eq!(open(url, StoreOptions::default()).await.unwrap_err().kind(), ErrorKind::Invalid);
}
