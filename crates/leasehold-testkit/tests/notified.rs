//! Waiters on NATS, PostgreSQL and Redis are notified of a release. They cannot poll here, because no pause ends on
//! their clock.

use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold::Holder;
use leasehold::clock::{Clock, Moment, SystemClock};
use leasehold::env::Env;
use leasehold::lease::{AcquireOutcome, Claim, Grant, LeaseStore, StoreOptions, Ttl};
use leasehold::url::StoreUrl;
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::process::within;
use leasehold_testkit::stores;
use tokio::task::JoinHandle;

use crate::leases::{granted_to, lock};

macro_rules! notified {
    ($($storage:ident)*) => {$(
        on_storage! { $storage:
            a_release_wakes_the_first_waiter_and_no_other
            an_eviction_wakes_the_first_waiter
        }
    )*};
}

#[cfg(feature = "postgres")]
notified!(postgres);
#[cfg(feature = "redis")]
notified!(redis redis_valkey redis_cluster);

/// A clock on which no pause ends.
#[derive(Debug)]
struct WithoutPauses;

#[async_trait]
impl Clock for WithoutPauses {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    async fn sleep(&self, _: std::time::Duration) {
        pending().await
    }
}

async fn opened(url: &str, env: Env) -> Arc<dyn LeaseStore> {
    let mut options = StoreOptions::default();
    options.env = env;
    leasehold::stores::open(StoreUrl::parse(url).unwrap(), options).await.unwrap()
}

fn claim(store: &dyn LeaseStore, name: &str) -> Claim {
    let mut holder = Holder::this_process();
    holder.name = name.to_owned();
    Claim::new(store.env(), lock(), Ttl::new(Ttl::MAX).unwrap(), holder)
}

async fn granted(store: &dyn LeaseStore) -> Grant {
    granted_to(store, &claim(store, "holder")).await
}

/// A process that waits. The task returns its store, its grant, and how often it asked for the lock.
type Waiting = JoinHandle<(Arc<dyn LeaseStore>, Grant, usize)>;

/// Starts a process that waits. Returns when it has a place behind `before` others.
async fn waiter(url: &str, env: Env, observer: &dyn LeaseStore, before: usize) -> Waiting {
    let store = opened(url, env).await;
    let waiting = tokio::spawn(async move {
        let mut claim = claim(&*store, "waiter");
        claim.waits = true;
        let mut asked = 0;
        loop {
            asked += 1;
            match store.try_acquire(&claim).await.unwrap() {
                AcquireOutcome::Granted(grant) => return (store, grant, asked),
                AcquireOutcome::Held(held) => store.turn(&claim, &held).await.unwrap(),
                AcquireOutcome::Lost(loss) => panic!("{loss}"),
            }
        }
    });
    within("a waiter to join", async {
        while observer.inspect(&lock()).await.unwrap().waiters.len() <= before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    waiting
}

fn without_pauses(seed: u64) -> Env {
    Env::seeded(Arc::new(WithoutPauses), seed)
}

async fn a_release_wakes_the_first_waiter_and_no_other(storage: &str) {
    let fresh: Fresh = stores::fresh(storage);
    let holder = opened(fresh.url(), Env::system()).await;
    for round in 0..5 {
        let mut grant = granted(&*holder).await;
        let first = waiter(fresh.url(), without_pauses(2 * round), &*holder, 0).await;
        let second = waiter(fresh.url(), without_pauses(2 * round + 1), &*holder, 1).await;
        // This may happen before a waiter listens.
        holder.release(&mut grant, None).await.unwrap();
        let (store, mut grant, asked) = within("the first waiter", first).await.unwrap();
        // The waiter asks at first, when it has a place, and after the release.
        assert!(asked <= 3, "{asked} requests");
        assert!(!second.is_finished());
        store.release(&mut grant, None).await.unwrap();
        let (store, mut grant, _) = within("the second waiter", second).await.unwrap();
        store.release(&mut grant, None).await.unwrap();
    }
}

async fn an_eviction_wakes_the_first_waiter(storage: &str) {
    let fresh: Fresh = stores::fresh(storage);
    let holder = opened(fresh.url(), Env::system()).await;
    let grant = granted(&*holder).await;
    let first = waiter(fresh.url(), without_pauses(1), &*holder, 0).await;
    holder.evict(&lock(), grant.token, None).await.unwrap();
    within("the waiter", first).await.unwrap();
}

#[cfg(feature = "postgres")]
mod connections {
    use leasehold_testkit::stores::postgres::{psql, table};

    use super::*;

    /// Waits until the role `user` has this many connections.
    async fn connected(url: &str, user: &str, count: usize) {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{user}'");
        within("the connections", async {
            while psql(url, &sql).await != count.to_string() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Creates a user of the table who may have this many connections, and returns it and its URL.
    async fn user(fresh: &Fresh, limit: usize) -> (String, String) {
        let (url, table) = (fresh.url(), table(fresh.url()));
        let user = table.replace("locks", "user");
        let sql = format!(
            "CREATE ROLE {user} LOGIN CONNECTION LIMIT {limit}; GRANT SELECT, INSERT, UPDATE ON {table} TO {user}"
        );
        psql(url, &sql).await;
        let url = url.replace("leasehold@", &format!("{user}@"));
        (user, url)
    }

    /// No pause ends on the waiter's clock, so its notification arrives on the only connection that it has.
    #[tokio::test]
    async fn a_waiting_process_has_one_connection_to_postgresql() {
        let fresh = stores::fresh("postgres");
        let (user, url) = user(&fresh, 2).await;
        let holder = opened(fresh.url(), Env::system()).await;
        let mut grant = granted(&*holder).await;
        let first = waiter(&url, without_pauses(1), &*holder, 0).await;
        holder.release(&mut grant, None).await.unwrap();
        let (store, mut grant, _) = within("the waiter", first).await.unwrap();
        connected(fresh.url(), &user, 1).await;
        store.release(&mut grant, None).await.unwrap();
    }

    /// The waiter cannot open a connection for notifications, so it polls.
    #[tokio::test]
    async fn a_waiter_that_may_have_one_connection_gets_the_lock() {
        let fresh = stores::fresh("postgres");
        let (_, url) = user(&fresh, 1).await;
        let holder = opened(fresh.url(), Env::system()).await;
        let mut grant = granted(&*holder).await;
        let first = waiter(&url, Env::system(), &*holder, 0).await;
        let refused = opened(&url, Env::system()).await;
        let mut claim = claim(&*refused, "refused");
        claim.store_timeout = std::time::Duration::from_millis(300);
        let error = leasehold::Error::from(refused.try_acquire(&claim).await.unwrap_err());
        assert!(error.to_string().contains("53300"), "{error:?}");
        assert!(error.help().iter().any(|help| help.contains("max_connections")), "{error:?}");
        holder.release(&mut grant, None).await.unwrap();
        within("the waiter", first).await.unwrap();
    }
}

#[cfg(feature = "postgres")]
mod poolers {
    use leasehold::Locker;
    use leasehold::doctor::{CheckStatus, Examination};
    use leasehold_testkit::servers::with_option;
    use leasehold_testkit::stores::postgres::psql;

    use super::*;

    async fn notifications(url: &str) -> String {
        let locker = Locker::open(url).await.unwrap();
        let report = locker.examine(&Examination::default()).await;
        let finding = report.finding("notifications").unwrap();
        assert_eq!(finding.verdict, CheckStatus::Passed, "{finding:?}");
        finding.seen.clone()
    }

    /// The pooler gives the server connection to the next client, so leasehold must not listen on it.
    #[tokio::test]
    async fn behind_a_pooler_waiters_poll() {
        let fresh = stores::fresh("postgres_pgbouncer");
        let url = fresh.url().replace("/transaction?", "/single?");
        assert!(notifications(&url).await.contains("pooler"));
        let holder = opened(&url, Env::system()).await;
        let mut grant = granted(&*holder).await;
        let first = waiter(&url, Env::system(), &*holder, 0).await;
        holder.release(&mut grant, None).await.unwrap();
        within("the waiter", first).await.unwrap();
        assert_eq!(psql(&url, "SELECT count(*) FROM pg_listening_channels()").await, "0");
    }

    #[tokio::test]
    async fn the_doctor_reports_whether_waiters_are_notified() {
        let fresh = stores::fresh("postgres");
        assert!(notifications(fresh.url()).await.contains("at once"));
        let off = with_option(fresh.url(), "notify=off");
        assert!(notifications(&off).await.contains("notify=off"));
    }
}

#[cfg(feature = "redis")]
mod promotion {
    use std::time::Duration;

    use leasehold_testkit::launch::Launched;
    use leasehold_testkit::stores::redis::{RedisServer, answers, redis_cli, replicate};

    use super::*;

    /// Waits until this many connections listen on the server.
    async fn listened(url: &str, count: &str) {
        answers(url, &["PUBSUB", "NUMSUB", "//leasehold/calls"], |answer| answer.ends_with(count)).await;
    }

    #[tokio::test]
    async fn a_waiter_listens_to_the_promoted_server() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut primary = Launched::start(&RedisServer::KEEPING, folders[0].path()).await.unwrap();
        let replica = Launched::start(&RedisServer::KEEPING, folders[1].path()).await.unwrap();
        replicate(replica.url(), Some(primary.address())).await;
        let url = format!("redis://{},{}?margin=0s&failover_grace=0s", primary.address(), replica.address());
        let holder = opened(&url, Env::system()).await;
        let mut grant = granted(&*holder).await;
        let first = waiter(&url, Env::system(), &*holder, 0).await;
        listened(primary.url(), "1").await;
        answers(replica.url(), &["HGET", "lock//leasehold", "line"], |line| !line.is_empty()).await;
        primary.kill(Duration::ZERO).await.unwrap();
        replicate(primary.url(), Some("127.0.0.1:1")).await;
        // The waiter may have reconnected before that. Sentinels close the connections of a server that they demote.
        for kind in ["normal", "pubsub"] {
            redis_cli(primary.url(), &["CLIENT", "KILL", "TYPE", kind]).await;
        }
        replicate(replica.url(), None).await;
        listened(replica.url(), "1").await;
        holder.release(&mut grant, None).await.unwrap();
        within("the waiter", first).await.unwrap();
    }
}

#[cfg(feature = "nats")]
mod copies {
    use std::time::Duration;

    use leasehold::Locker;
    use leasehold::doctor::Examination;
    use leasehold_testkit::conformance::Harness;
    use leasehold_testkit::launch::Launched;
    use leasehold_testkit::servers::through;
    use leasehold_testkit::stores::nats::{NatsServer, create};
    use leasehold_testkit::tcp_proxy::{Answers, Wire};
    use serde_json::json;
    use tokio::sync::Notify;

    use super::*;

    /// A clock on which the short pauses end in which a waiter joins the line, and no longer one.
    #[derive(Debug, Default)]
    struct ShortPauses {
        /// The waiter no longer polls.
        ended: Notify,
    }

    #[async_trait]
    impl Clock for ShortPauses {
        fn now(&self) -> Moment {
            SystemClock.now()
        }

        async fn sleep(&self, duration: Duration) {
            if duration > Duration::from_millis(30) {
                // Longer ones are the time limits of requests.
                if duration < Duration::from_millis(250) {
                    self.ended.notify_one();
                }
                pending::<()>().await;
            }
            SystemClock.sleep(duration).await;
        }
    }

    /// Starts a process that waits. Returns when it no longer polls.
    async fn silent_waiter(url: &str, observer: &dyn LeaseStore) -> Waiting {
        let clock = Arc::<ShortPauses>::default();
        let waiting = waiter(url, Env::seeded(clock.clone(), 1), observer, 0).await;
        within("the end of the polls", clock.ended.notified()).await;
        waiting
    }

    #[tokio::test]
    async fn a_change_on_nats_wakes_the_waiter() {
        let fresh = stores::fresh("nats");
        let holder = opened(fresh.url(), Env::system()).await;
        for change in ["release", "eviction", "deletion"] {
            let mut grant = granted(&*holder).await;
            let first = silent_waiter(fresh.url(), &*holder).await;
            match change {
                "release" => drop(holder.release(&mut grant, None).await.unwrap()),
                "eviction" => drop(holder.evict(&lock(), grant.token, None).await.unwrap()),
                _ => fresh.delete_record(&lock()).await,
            }
            let (store, mut grant, asked) = within(change, first).await.unwrap();
            assert!(asked <= 3, "{change}: {asked} requests");
            store.release(&mut grant, None).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_waiter_whose_connection_to_nats_breaks_polls() {
        let fresh = stores::fresh("nats");
        let wire = Wire::to(&fresh.server().address()).await;
        let holder = opened(fresh.url(), Env::system()).await;
        let mut grant = granted(&*holder).await;
        let first = silent_waiter(&through(fresh.url(), wire.address()), &*holder).await;
        wire.let_answers(Answers::AreLost);
        holder.release(&mut grant, None).await.unwrap();
        wire.until_lost().await;
        wire.let_answers(Answers::Arrive);
        within("the waiter", first).await.unwrap();
    }

    #[tokio::test]
    async fn without_copies_in_the_bucket_waiters_poll() {
        let folder = tempfile::tempdir().unwrap();
        let server = Launched::start(&NatsServer, folder.path()).await.unwrap();
        let notifications = async |url: &str| {
            let report = Locker::open(url).await.unwrap().examine(&Examination::default()).await;
            report.finding("notifications").unwrap().seen.clone()
        };
        assert!(notifications(server.url()).await.contains("at once"));
        let url = server.url().replace("leasehold-chaos", "plain");
        create(&url, json!({ "max_msgs_per_subject": 1 })).await;
        assert!(notifications(&url).await.contains("poll"));
        let holder = opened(&url, Env::system()).await;
        let mut grant = granted(&*holder).await;
        let first = waiter(&url, Env::system(), &*holder, 0).await;
        holder.release(&mut grant, None).await.unwrap();
        within("the waiter", first).await.unwrap();
    }
}
