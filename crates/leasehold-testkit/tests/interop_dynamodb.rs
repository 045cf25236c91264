//! leasehold shares a table with AWS's lock client in Java and with its Go port, which run as processes. `./test`
//! builds them.

use std::time::Duration;

use leasehold::clock::{Clock, Deadline, SystemClock};
use leasehold::lease::{AcquireOutcome, Claim, Grant, Renewal, Ttl};
use leasehold::url::StoreUrl;
use leasehold::{ErrorKind, Holder, LockName, Locker, LossReason, Token};
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::{Process, within};
use leasehold_testkit::servers::Server;

use crate::interop;
use crate::workers::Worker;

/// The ttl of both clients in tests in which a holder dies.
const TTL: Duration = Duration::from_secs(6);

/// Another client and its settings.
#[derive(Clone, Copy, Debug)]
struct Kind {
    program: Program,
    options: &'static [&'static str],
    /// The dialect of a table that is shared with this client.
    dialect: &'static str,
}

const JAVA: Kind = Kind { program: Program::DYNAMODB_JAVA, options: &[], dialect: "java" };
/// By default, this client deletes an item on release and replaces whole items.
const JAVA_DELETES: Kind = JAVA;
const JAVA_REPLACES: Kind = Kind { options: &["--keep"], ..JAVA };
const JAVA_UPDATES: Kind = Kind { options: &["--keep", "--update"], ..JAVA };
/// This client copies the fields that it finds in an item. A copy may be old.
const GO: Kind = Kind { program: Program::DYNAMODB_GO, options: &[], dialect: "go" };
const GO_DELETES: Kind = Kind { options: &["--delete"], ..GO };

/// Generates a test for each case with each kind of client.
macro_rules! cases {
    ($($case:ident)*) => {
        cases! { @ java_deletes JAVA_DELETES, java_replaces JAVA_REPLACES, java_updates JAVA_UPDATES, go GO, go_deletes GO_DELETES; [$($case)*] }
    };
    (@ $($module:ident $kind:ident),*; $cases:tt) => { $(cases! { @@ $module $kind $cases })* };
    (@@ $module:ident $kind:ident [$($case:ident)*]) => {
        mod $module { $(#[tokio::test] async fn $case() { super::$case(&super::Table::fresh(super::$kind)).await; })* }
    };
}

cases! {
    ours_waits_for_theirs_and_takes_over_when_it_is_killed
    theirs_waits_for_ours_and_takes_over_when_it_dies
    a_released_lock_alternates_at_once_and_our_tokens_rise
    four_of_ours_and_four_of_theirs_count_exactly
}

async fn ours_waits_for_theirs_and_takes_over_when_it_is_killed(table: &Table) {
    let before = table.grant(TTL).await;
    table.release(before.1).await;
    let mut theirs = table.peer("hold", TTL, &[]);
    theirs.says("granted").await;

    let error = table.locker().await.lock("lock").try_acquire().await.unwrap_err();
    let held = error.holder().unwrap();
    assert!(held.holder.as_ref().is_some_and(Holder::is_foreign), "{error:?}");
    assert!(!held.holder.as_ref().unwrap().name.is_empty(), "its owner is named: {error:?}");

    let mut ours = table.worker("hold", TTL, &[]);
    // Their process holds the lock for longer than a lease, so our waiter must have seen its heartbeats.
    SystemClock.sleep(TTL * 2).await;
    let killed = SystemClock.now();
    theirs.kill().await;
    assert!(ours.granted().await > before.0.get());
    // Its last heartbeat came at most a third of a lease before the kill, and prolonged the lock by a whole lease.
    let least = TTL / 2;
    assert!(
        SystemClock.now().longest_since(killed) >= least,
        "granted while it may have believed in its lease"
    );
    ours.kill().await;
}

async fn theirs_waits_for_ours_and_takes_over_when_it_dies(table: &Table) {
    let (token, (locker, mut grant)) = table.grant(TTL).await;
    let attempt = table.peer("try", TTL, &[]);
    assert_eq!(attempt.end().await, (vec!["held".to_owned()], Some(1)));
    let mut theirs = table.peer("hold", TTL, &[]);
    theirs.says("granted").await;
    assert!(
        grant.deadline.passed(SystemClock.now()),
        "granted to them while ours may have believed in its lease"
    );

    // A holder that resumes finds that it has lost the lock.
    grant.deadline = Deadline::new(SystemClock.now(), TTL);
    match locker.store().renew(&mut grant).await.unwrap() {
        Renewal::Lost(loss) => assert!(matches!(loss.reason, LossReason::TakenOver { .. }), "{loss:?}"),
        Renewal::Renewed => panic!("renewed what another holds"),
    }
    release(theirs).await;
    let after = table.grant(TTL).await;
    assert!(after.0 > token);
}

async fn a_released_lock_alternates_at_once_and_our_tokens_rise(table: &Table) {
    let mut last = Token::default();
    for is_last in [false, true] {
        let mut theirs = table.peer("hold", Duration::from_secs(60), &[]);
        theirs.says("granted").await;
        let error = table.locker().await.lock("lock").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held, "{error:?}");
        release(theirs).await;
        // The first grant is over an item of the other client, and the second one over an item of leasehold.
        for _ in 0..2 {
            let (token, ours) = table.grant(Duration::from_secs(60)).await;
            assert!(token > last, "{token} after {last}");
            last = token;
            // A process for each attempt takes long, most of all in Java.
            if !is_last {
                let attempt = table.peer("try", TTL, &[]);
                assert_eq!(attempt.end().await, (vec!["held".to_owned()], Some(1)));
            }
            table.release(ours).await;
        }
    }
    let attempt = table.peer("try", TTL, &[]);
    assert_eq!(attempt.end().await, (vec!["granted".to_owned()], Some(0)));
}

async fn four_of_ours_and_four_of_theirs_count_exactly(table: &Table) {
    let ttl = Duration::from_secs(20);
    let ours = |more: &[&str]| table.worker("increment", ttl, more);
    let theirs = |_, more: &[&str]| table.peer("increment", ttl, more);
    interop::count_exactly(4, 8, ours, theirs).await;
}

/// A table that is shared with clients of one kind, and one lock in it.
struct Table {
    kind: Kind,
    url: String,
}

impl Table {
    fn fresh(kind: Kind) -> Self {
        let url = format!("{}&dialect={}", Server::DYNAMODB_LOCAL.fresh_url(), kind.dialect);
        Self { kind, url }
    }

    async fn locker(&self) -> Locker {
        Locker::open(&self.url).await.unwrap()
    }

    fn worker(&self, verb: &str, ttl: Duration, more: &[&str]) -> Worker {
        let ttl = ttl.as_secs().to_string();
        Worker::start(verb, &self.url, "lock", &[&["--ttl", &ttl], more].concat())
    }

    /// Waits for a grant on a new client. Does not renew it.
    async fn grant(&self, ttl: Duration) -> (Token, (Locker, Grant)) {
        let locker = self.locker().await;
        let (env, store) = (locker.store().env().clone(), locker.store().clone());
        let claim =
            Claim::new(&env, LockName::new("lock").unwrap(), Ttl::new(ttl).unwrap(), Holder::this_process());
        let granted = async {
            loop {
                match store.try_acquire(&claim).await.unwrap() {
                    AcquireOutcome::Granted(grant) => return grant,
                    AcquireOutcome::Held(held) => store.changed(&claim.name, &held).await.unwrap(),
                    AcquireOutcome::Lost(loss) => panic!("{loss:?}"),
                }
            }
        };
        let grant = within("a grant", granted).await;
        (grant.token, (locker, grant))
    }

    async fn release(&self, (locker, mut grant): (Locker, Grant)) {
        locker.store().release(&mut grant, None).await.unwrap();
    }

    fn peer(&self, verb: &str, ttl: Duration, more: &[&str]) -> Process {
        let url = StoreUrl::parse(&self.url).unwrap();
        let lock = format!("{}/lock", url.path().trim_matches('/'));
        let ttl = ttl.as_secs().to_string();
        let more = [&["--ttl", &ttl], more, self.kind.options].concat();
        self.kind.program.start(verb, &self.url, &lock, &more)
    }
}

/// Makes another client's holder release the lock, and waits for that.
async fn release(theirs: Process) {
    assert_eq!(theirs.end().await, (vec!["released".to_owned()], Some(0)));
}
