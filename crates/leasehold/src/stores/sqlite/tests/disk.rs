//! Tests that tokens rise whatever happens to the file, and that commits rarely wait for the disk.

use super::*;

#[tokio::test]
async fn tokens_rise_across_release_eviction_and_deletions() {
    let site = Site::new();
    let store = site.open().await;
    let mut latest = grant(&store).await;
    let mut rises = |grant: &Grant| {
        assert!(grant.token > latest.token, "{} after {}", grant.token, latest.token);
        latest.token = grant.token;
    };
    store.evict(&name(), held(&store).await.token.unwrap(), None).await.unwrap();
    let mut second = grant(&store).await;
    rises(&second);
    // From here on the wall clock is too low, so only stored tokens count.
    site.clock.step_wall(-86_400);
    store.release(&mut second, None).await.unwrap();
    rises(&grant(&store).await);
    site.sql("DELETE FROM lock");
    rises(&grant(&store).await);
    site.sql("UPDATE counter SET token = 0");
    store.evict(&name(), held(&store).await.token.unwrap(), None).await.unwrap();
    rises(&grant(&store).await);
    // Without the file only the wall clock remains.
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
    // The commit that raised the ceiling is certainly on the disk from here on.
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
    // The machine has no clock battery.
    site.clock.step_wall(-10 * 86_400);
    let after = grant(&site.open().await).await.token;
    assert!(taken_back.iter().all(|&token| token < after), "{after} after {taken_back:?}");
}

#[tokio::test(start_paused = true)]
async fn only_some_tokens_wait_for_the_disk() {
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

#[tokio::test(start_paused = true)]
async fn what_outlives_the_boot_waits_for_the_disk() {
    let site = Site::new();
    let store = site.open().await;
    // Sets the ceiling.
    let mut first = grant(&store).await;
    site.sql(
        "CREATE TABLE seen (full INTEGER);
         CREATE TRIGGER see AFTER INSERT ON lock BEGIN
             INSERT INTO seen SELECT synchronous = 2 FROM pragma_synchronous;
         END",
    );
    let waited = || -> bool {
        let last = "SELECT full FROM seen ORDER BY rowid DESC LIMIT 1";
        rusqlite::Connection::open(site.path()).unwrap().query_row(last, (), |row| row.get(0)).unwrap()
    };
    store.release(&mut first, None).await.unwrap();
    assert!(!waited(), "a release");
    let mut plain = grant(&store).await;
    assert!(!waited(), "a grant below the ceiling");
    store.release(&mut plain, Some(Duration::from_secs(1))).await.unwrap();
    assert!(waited(), "a cooldown");
    site.clock.suspend(Duration::from_secs(11));
    let mut above = grant(&store).await;
    assert!(waited(), "a grant above the ceiling");
    store.renew(&mut above).await.unwrap();
    assert!(!waited(), "a renewal");
    store.detach(&mut above).await.unwrap();
    assert!(waited(), "a ticket");
    store.renew(&mut above).await.unwrap();
    assert!(!waited(), "the ttl of a ticket counts from the reboot");
    store.release(&mut above, None).await.unwrap();
    assert!(waited(), "the release of a ticket");
    let delayed = Claim { lock_delay: Duration::from_secs(1), ..claim(&store) };
    let AcquireOutcome::Granted(delayed) = store.try_acquire(&delayed).await.unwrap() else { panic!("held") };
    assert!(waited(), "a lock delay");
    store.evict(&name(), delayed.token, None).await.unwrap();
    assert!(waited(), "an eviction");
}

/// The size of the log that the next process reads. Each page in the log has a header of 24 bytes, and the log itself
/// has a header of 32 bytes.
const YOUNG_LOG_BYTES: u64 = 32 + (file::YOUNG_LOG as u64) * (4_096 + 24);

#[tokio::test]
async fn a_closing_store_keeps_its_log_and_the_log_stays_short() {
    let site = Site::new();
    let log = || fs::metadata(format!("{}-wal", site.path().display())).unwrap().len();
    let mut longest = 0;
    for _ in 0..2 * file::YOUNG_LOG {
        let store = site.open().await;
        let mut grant = grant(&store).await;
        store.release(&mut grant, None).await.unwrap();
        // If closing wrote the log into the file, it would delete the log and wait for the disk.
        drop(store);
        assert!(log() > 0);
        longest = longest.max(log());
    }
    // A commit writes the log into the file. The commit itself may have a few pages.
    assert!((YOUNG_LOG_BYTES..2 * YOUNG_LOG_BYTES).contains(&longest), "{longest}");
}

#[tokio::test]
async fn a_store_in_long_use_writes_its_log_back_less_often() {
    let site = Site::new();
    let store = site.open().await;
    for _ in 0..2 * file::YOUNG_LOG {
        let mut grant = grant(&store).await;
        store.release(&mut grant, None).await.unwrap();
    }
    let log = fs::metadata(format!("{}-wal", site.path().display())).unwrap().len();
    assert!(log > 2 * YOUNG_LOG_BYTES, "{log}");
}
