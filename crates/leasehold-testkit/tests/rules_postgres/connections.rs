//! Which server of the URL is used, and how many connections and statements the store needs.

use super::*;
use crate::leases::refused_to;

#[tokio::test]
async fn a_standby_is_refused_as_not_the_primary() {
    let (mut server, url, folder) = server(&[]).await;
    // A standby accepts connections once it has replayed all that its last checkpoint needs.
    psql(&server.url_by(server.address()), "CHECKPOINT").await;
    server.kill().await.unwrap();
    std::fs::write(folder.path().join("postgres/standby.signal"), "").unwrap();
    server.start().await.unwrap();
    let store = open(&url).await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(5);
    let refused = async {
        loop {
            let error = store.try_acquire(&claim).await.unwrap_err();
            if error.to_string().contains("is a standby") {
                return error;
            }
        }
    };
    let error = within("the refusal", refused).await;
    assert!(error.fault().help.as_ref().unwrap().contains("primary"), "{error:?}");
}

/// Of the servers in the URL, the primary is used, whatever their order.
#[tokio::test]
async fn the_primary_is_found_among_several_hosts() {
    let fresh = fresh();
    let address = Server::POSTGRESQL.address();
    let url = fresh.url().replace(&address, &format!("127.0.0.1:1,{address}"));
    granted(&*open(&url).await).await;
}

/// Returns how many statements clients have sent to the server.
fn sent(folder: &TempDir) -> usize {
    let log = std::fs::read_to_string(folder.path().join("postgres.log")).unwrap();
    log.lines().filter(|line| line.contains(" execute ")).count()
}

#[tokio::test]
async fn each_step_of_a_lock_is_one_statement() {
    for grace in ["0s", "60s"] {
        each_step_is_one_statement(grace).await;
    }
}

async fn each_step_is_one_statement(grace: &str) {
    let (_server, url, folder) = server(&["log_statement=all", "fsync=on"]).await;
    let url = with_option(&url, &format!("failover_grace={grace}"));
    let (store, other) = (open(&url).await, open(&url).await);
    let mut grant = granted(&*store).await;
    // Connects.
    other.inspect(&lock()).await.unwrap();
    let mut before = sent(&folder);
    let mut one_more = async |step: &str| {
        let now = sent(&folder);
        assert_eq!(now - before, 1, "{step}");
        before = now;
    };
    store.renew(&mut grant).await.unwrap();
    one_more("a renewal").await;
    store.release(&mut grant, None).await.unwrap();
    one_more("a release").await;
    let mut grant = granted(&*store).await;
    one_more("an acquisition").await;
    refused(&*store).await;
    one_more("a refusal").await;
    store.inspect(&lock()).await.unwrap();
    one_more("an inspection").await;
    let mut waiter = claim(&*other);
    waiter.waits = true;
    let held = refused_to(&*other, &waiter).await;
    one_more("a refusal of a process that has not read the row").await;
    other.turn(&waiter, &held).await.unwrap();
    one_more("to join the line").await;
    // It learns its place from what it has just read.
    assert_eq!(refused_to(&*other, &waiter).await.ahead, Some(0));
    store.release(&mut grant, None).await.unwrap();
    one_more("a release").await;
    granted_to(&*other, &waiter).await;
    one_more("a grant to the first waiter").await;
}

/// The server to which the client is connected becomes read-only, and another one is the primary.
#[tokio::test]
async fn a_session_that_is_read_only_is_not_used_again() {
    let ((_old, old, _folder), (_new, new, _other)) = (server(&[]).await, server(&[]).await);
    let address = |url: &str| url.split(['@', '/']).nth(3).unwrap().to_owned();
    let both = old.replace(&address(&old), &format!("{},{}", address(&old), address(&new)));
    let store = open(&both).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    psql(&old, "ALTER SYSTEM SET default_transaction_read_only = on").await;
    psql(&old, "SELECT pg_reload_conf()").await;
    until(&old, "SHOW default_transaction_read_only", "on").await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(20);
    let grant = granted_to(&*store, &claim).await;
    assert_eq!(cells(&new, "token").await, grant.token.to_string());
}

/// Connections that fall silent together cost one attempt, not one each.
#[tokio::test]
async fn idle_connections_are_not_tried_after_one_is_silent() {
    let (_server, url, _folder) = server(&[]).await;
    let store = open(&url).await;
    store.release(&mut granted(&*store).await, None).await.unwrap();
    // This takes several connections, because all claims wait for the row.
    let transaction = Open::on_row(&url).await;
    let claims: Vec<_> = (0..3).map(|_| claim(&*store)).collect();
    let all = futures_util::future::join_all(claims.iter().map(|claim| store.try_acquire(claim)));
    let ended = async {
        until(&url, &waiting(&url), "3").await;
        transaction.end().await;
    };
    for outcome in tokio::join!(all, ended).0 {
        if let AcquireOutcome::Granted(mut grant) = outcome.unwrap() {
            store.release(&mut grant, None).await.unwrap();
        }
    }
    let pids = psql(&url, "SELECT pid FROM pg_stat_activity WHERE application_name = 'leasehold'").await;
    signal("-STOP", &pids).await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(10);
    let outcome = store.try_acquire(&claim).await;
    signal("-CONT", &pids).await;
    assert!(matches!(outcome, Ok(AcquireOutcome::Granted(_))), "{outcome:?}");
}

async fn signal(signal: &str, pids: &str) {
    assert!(Command::new("kill").arg(signal).args(pids.lines()).status().await.unwrap().success());
}

/// Another server, which does not respond now, may accept what one server refuses for good.
#[tokio::test]
async fn an_error_that_one_of_two_hosts_gave_may_pass() {
    let fresh = fresh();
    let address = Server::POSTGRESQL.address();
    let url = fresh.url().replace(&address, &format!("{address},127.0.0.1:1"));
    psql(&url.replace(",127.0.0.1:1", ""), &format!("ALTER TABLE {} SET UNLOGGED", table(&url))).await;
    let store = open(&url).await;
    let mut claim = claim(&*store);
    claim.store_timeout = Duration::from_secs(5);
    let error = store.try_acquire(&claim).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("UNLOGGED") && error.contains("127.0.0.1:1"), "{error}");
}
