//! Jobs that run once per period, on whichever client comes first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use leasehold::clock::RATE_ERROR;
use leasehold::{ErrorKind, Locker, Once, OncePer};

use super::Harness;
use super::client::{Client, name};

/// Longer than any case may take, so that a client that waits for such a cooldown to end fails the case.
const LONG: Duration = Duration::from_secs(3_600);

type Ran = Once<usize, &'static str>;

/// Opens another client. Returns the client and the job that all clients share.
async fn job(harness: &dyn Harness, who: &str, period: Duration) -> (Client, OncePer) {
    let client = Client::open(harness, who).await;
    let lock = Locker::new(client.store.clone()).lock("job").ttl(harness.ttl()).owner(who);
    (client, lock.once_per(period))
}

/// Returns whether the store has no cooldowns. Such a store must refuse a job before it runs.
async fn is_refused(harness: &dyn Harness) -> bool {
    let (client, once) = job(harness, "one", LONG).await;
    if client.store.capabilities().cooldowns {
        return false;
    }
    let refused = once.run(async |_| -> Result<(), ()> { panic!("the job must not run") }).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    client.assert_free(&name("job")).await;
    true
}

/// If several clients start a job at once, one runs it. The others learn that it ran as soon as it has ended.
pub async fn one_of_many_runs_a_job_and_the_others_learn_that_it_ran(harness: &dyn Harness) {
    if is_refused(harness).await {
        return;
    }
    let runs = AtomicUsize::new(0);
    let many = ["one", "two", "three", "four"].map(|who| {
        let runs = &runs;
        async move {
            let (client, once) = job(harness, who, LONG).await;
            let ran = once.run(async |guard| {
                client.env().sleep(harness.ttl() / 4).await;
                guard.check().map_err(|_| "lost")?;
                Ok::<_, &str>(runs.fetch_add(1, Ordering::SeqCst))
            });
            (who, client.within("the job", ran).await.unwrap())
        }
    });
    let outcomes: Vec<(&str, Ran)> = join_all(many).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1, "{outcomes:?}");
    let (runner, _) = outcomes.iter().find(|(_, ran)| *ran == Once::Ran(Ok(0))).unwrap();
    for (who, outcome) in outcomes.iter().filter(|(who, _)| who != runner) {
        let Once::AlreadyRan(ran) = outcome else { panic!("{who}: {outcome:?}") };
        assert_eq!(ran.by.as_ref().map(|by| &*by.name), Some(*runner), "{ran:?}");
        assert!(ran.again_within.is_some_and(|left| left <= LONG.mul_f64(1.0 + RATE_ERROR)), "{ran:?}");
    }
}

/// A job that failed is run by another waiting client in the same period, and not a third time.
pub async fn a_job_that_failed_is_run_by_another_in_the_same_period(harness: &dyn Harness) {
    if is_refused(harness).await {
        return;
    }
    let tries = AtomicUsize::new(0);
    let start = async |who: &str| -> Ran {
        let (client, once) = job(harness, who, LONG).await;
        let ran = once.run(async |_| match tries.fetch_add(1, Ordering::SeqCst) {
            0 => Err("the first fails"),
            number => Ok(number),
        });
        client.within("the job", ran).await.unwrap()
    };
    let (one, two) = join(start("one"), start("two")).await;
    let (failed, succeeded) = (Once::Ran(Err("the first fails")), Once::Ran(Ok(1)));
    assert!(
        (&one, &two) == (&failed, &succeeded) || (&two, &one) == (&failed, &succeeded),
        "{one:?} {two:?}"
    );
    assert!(matches!(start("three").await, Once::AlreadyRan(_)));
}

/// If the machine dies during the job, another runs it after the lease has ended, in the same period.
pub async fn a_job_of_a_dead_machine_is_run_by_another_in_the_same_period(harness: &dyn Harness) {
    if is_refused(harness).await {
        return;
    }
    let dead = Client::open(harness, "dead").await;
    let (client, once) = job(harness, "two", LONG).await;
    // This grant is never renewed, as if the machine had died.
    let grant = dead.granted(&name("job"), harness.ttl()).await;
    let tried = once.try_run(async |_| -> Result<(), ()> { panic!("the job must not run yet") }).await;
    assert_eq!(tried.unwrap_err().kind(), ErrorKind::Held);
    let ran = once.run(async |_| {
        client.assert_passed(grant.deadline);
        Ok::<_, &str>(1)
    });
    assert_eq!(client.within("the job", ran).await.unwrap(), Once::Ran(Ok(1)));
}

/// A job runs again after its period and not before, even on a client that has just started and does not wait.
pub async fn a_job_runs_again_after_its_period_and_not_before(harness: &dyn Harness) {
    if is_refused(harness).await {
        return;
    }
    let period = harness.ttl() * 3 / 2;
    let (one, once) = job(harness, "one", period).await;
    let first = once.run(async |_| {
        let granted = one.env().now();
        // The job takes a part of the period, which counts from the grant.
        one.env().sleep(period / 3).await;
        Ok::<_, &str>(granted)
    });
    let Once::Ran(Ok(first)) = one.within("the job", first).await.unwrap() else { panic!("not run") };
    let again = async {
        loop {
            let (client, once) = job(harness, "fresh", period).await;
            if let Once::Ran(Ok(at)) =
                once.try_run(async |_| Ok::<_, &str>(client.env().now())).await.unwrap()
            {
                return at;
            }
            client.env().sleep(period / 12).await;
        }
    };
    let between = one.within("the next period", again).await.longest_since(first);
    assert!(between >= period.mul_f64(1.0 - RATE_ERROR), "again after {between:?} of {period:?}");
}
