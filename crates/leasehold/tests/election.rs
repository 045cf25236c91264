//! Elections: handovers, and what observers see. Time is paused.

use std::time::Duration;

use crate::common::{Client, TTL, World, contender_span, holder_span};
use futures_util::StreamExt;
use futures_util::future::poll_immediate;
use futures_util::stream::BoxStream;
use leasehold::clock::Clock;
use leasehold::lease::LeaseStore;
use leasehold::{Election, ErrorKind, Guard, Leader, Locker, Released, Result};
use leasehold_testkit::fault::{Kind, Outcome};

const SECOND: Duration = Duration::from_secs(1);

fn election(client: &Client) -> Election {
    Locker::new(client.leases.clone()).election("x").ttl(TTL)
}

async fn next(changes: &mut BoxStream<'static, Result<Option<Leader>>>) -> Option<Leader> {
    changes.next().await.expect("the stream goes on").unwrap()
}

async fn next_value(changes: &mut BoxStream<'static, Result<Option<Leader>>>) -> Option<String> {
    next(changes).await.and_then(|leader| leader.value)
}

/// Asserts that the stream yields nothing for `duration`.
async fn assert_silent(
    client: &Client,
    changes: &mut BoxStream<'static, Result<Option<Leader>>>,
    duration: Duration,
) {
    let told = leasehold::clock::timeout(&*client.clock, duration, changes.next()).await;
    assert!(told.is_none(), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn twenty_leaders_hand_over_without_a_ttl_passing() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let day = Duration::from_secs(24 * 60 * 60);
    let candidates = [election(&one).ttl(day), election(&two).ttl(day)];
    let mut leadership = candidates[0].campaign().await.unwrap();
    let began = one.clock.now();
    for n in 1..=20 {
        let next = candidates[n % 2].clone();
        let campaign = tokio::spawn(async move { next.campaign().await });
        one.env.sleep(SECOND * 5).await;
        let term = leadership.term().unwrap();
        assert_eq!(leadership.resign().await.unwrap(), Released::Released);
        leadership = campaign.await.unwrap().unwrap();
        assert!(leadership.term().unwrap() > term);
    }
    let took = one.clock.now().longest_since(began);
    // In this time, each leader led for five seconds.
    assert!(took < SECOND * (5 * 20 + 20), "twenty handovers took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_leadership_or_a_campaign_leaves_no_leader() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    drop(election(&one).campaign().await.unwrap());
    let leadership = election(&two).campaign().await.unwrap();
    let candidate = election(&one);
    assert!(leasehold::clock::timeout(&*one.clock, SECOND, candidate.campaign()).await.is_none());
    leadership.resign().await.unwrap();
    one.env.sleep(TTL * 3).await;
    assert_eq!(election(&one).leader().await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn an_observer_gets_the_current_leader_and_then_only_changes() {
    let world = World::new();
    let (one, two, follower) = (world.observer(1), world.observer(2), world.observer(3));
    let mut changes = election(&follower).observe();
    assert_eq!(next(&mut changes).await, None);
    assert_silent(&follower, &mut changes, SECOND * 100).await;
    for (client, value) in [(&one, "http://one"), (&two, "http://two")] {
        let leadership = election(client).value(value).owner("me").note("leads").campaign().await.unwrap();
        let leader = next(&mut changes).await.unwrap();
        assert_eq!(leader.value.as_deref(), Some(value));
        assert_eq!(leader.term, Some(leadership.term().unwrap()));
        let holder = leader.holder.as_ref().unwrap();
        assert_eq!((holder.name.as_str(), holder.note.as_deref()), ("me", Some("leads")));
        assert!(leader.to_string().starts_with("me@"), "{leader}");
        // Time for thirty renewals.
        assert_silent(&follower, &mut changes, SECOND * 300).await;
        assert_eq!(election(&follower).leader().await.unwrap(), Some(leader));
        leadership.resign().await.unwrap();
        assert_eq!(next(&mut changes).await, None);
    }
    // The record no longer contains what the leader advertised.
    let left = serde_json::to_string(&world.raw().await).unwrap();
    assert!(!left.contains("http://"), "{left}");
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_reported_until_its_lease_lapses() {
    for by_store_clock in [false, true] {
        let world = World::new();
        let leader = world.observer(1);
        let follower = if by_store_clock { world.dated(2) } else { world.observer(2) };
        let leadership = election(&leader).value("v").campaign().await.unwrap();
        let mut changes = election(&follower).observe();
        assert_eq!(next_value(&mut changes).await.as_deref(), Some("v"));
        leader.network.disconnect();
        let died = follower.clock.now();
        leadership.lost().await;
        assert_eq!(next(&mut changes).await, None);
        let after = follower.clock.now().longest_since(died);
        assert!(after >= holder_span() / 2 && after <= contender_span() + SECOND * 11, "{after:?}");
        assert_eq!(leadership.check().unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_outlives_outages_and_reports_a_denial_once() {
    let world = World::new();
    let (leader, follower) = (world.observer(1), world.observer(2));
    let leadership = election(&leader).value("v").campaign().await.unwrap();
    let mut changes = election(&follower).observe();
    assert_eq!(next_value(&mut changes).await.as_deref(), Some("v"));

    follower.network.disconnect();
    assert_silent(&follower, &mut changes, SECOND * 600).await;
    follower.network.heal();
    leadership.resign().await.unwrap();
    assert_eq!(next(&mut changes).await, None, "the stream goes on after trouble that passes");

    follower.network.every(Kind::Read, Outcome::Denied);
    let error = changes.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_silent(&follower, &mut changes, SECOND * 600).await;
    follower.network.heal();
    assert_eq!(next(&mut changes).await, None, "reported again after the outage");
}

#[tokio::test(start_paused = true)]
async fn an_observer_polls_at_the_stores_pace_and_backs_off_on_errors() {
    let world = World::new();
    let follower = world.observer(1);
    let mut changes = election(&follower).observe();
    follower.env.sleep(SECOND * 10).await;
    assert_eq!(follower.network.counts().total(), 0, "nothing is sent before it is polled");
    next(&mut changes).await;
    follower.network.reset_counts();
    assert_silent(&follower, &mut changes, SECOND * 60).await;
    let most = follower.leases.capabilities().poll_interval.max.as_secs_f64();
    let reads = follower.network.counts().reads as f64;
    assert!((60.0 / most * 0.9..60.0 / most * 1.2 + 10.0).contains(&reads), "{reads} reads");
    follower.network.every(Kind::Read, Outcome::Denied);
    changes.next().await.unwrap().unwrap_err();
    follower.network.reset_counts();
    assert_silent(&follower, &mut changes, SECOND * 600).await;
    let reads = follower.network.counts().reads;
    assert!((30..80).contains(&reads), "{reads} reads in ten minutes of trouble");
}

#[tokio::test(start_paused = true)]
async fn an_observer_can_report_each_read() {
    let world = World::new();
    let (leader, follower) = (world.observer(1), world.observer(2));
    let mut read = election(&follower).observe_every(SECOND);
    assert_eq!(next(&mut read).await, None);
    assert_eq!(next(&mut read).await, None, "unchanged, but read again");
    let leadership = election(&leader).value("http://one").campaign().await.unwrap();
    assert_eq!(next_value(&mut read).await.as_deref(), Some("http://one"));
    follower.network.reset_counts();
    let began = follower.clock.now();
    for _ in 0..60 {
        assert_eq!(next_value(&mut read).await.as_deref(), Some("http://one"));
    }
    let took = follower.clock.now().longest_since(began);
    assert!(took < SECOND * 70, "{took:?}");
    assert_eq!(follower.network.counts().reads, 60);
    follower.network.disconnect();
    assert_silent(&follower, &mut read, SECOND * 60).await;
    leadership.resign().await.unwrap();
}

/// A late request after a deletion by hand can leave an earlier term in the record.
#[tokio::test(start_paused = true)]
async fn an_observer_never_sees_an_earlier_term() {
    let world = World::new();
    let (leader, follower) = (world.observer(1), world.observer(2));
    let leadership = election(&leader).value("v").campaign().await.unwrap();
    let term = leadership.term().unwrap();
    let mut changes = election(&follower).observe();
    assert_eq!(next(&mut changes).await.unwrap().term, Some(term));
    world.edit(|record| record["token"] = (term.get() - 1).into()).await;
    assert_eq!(next(&mut changes).await, None, "an earlier term is not a leader");
    drop(leadership);
    let leadership = loop {
        // This succeeds once the edited record has lapsed or was released.
        if let Ok(leadership) = election(&leader).try_campaign().await
            && leadership.term().unwrap() > term
        {
            break leadership;
        }
        leader.env.sleep(SECOND).await;
    };
    assert_eq!(next(&mut changes).await.unwrap().term, Some(leadership.term().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_drops_its_futures_misses_no_change() {
    let world = World::new();
    let (leader, follower) = (world.observer(1), world.observer(2));
    let mut changes = election(&follower).observe();
    let mut patiently = async |client: &Client| loop {
        if let Some(told) = poll_immediate(changes.next()).await {
            return told.unwrap().unwrap();
        }
        client.env.sleep(Duration::from_millis(3)).await;
    };
    assert_eq!(patiently(&follower).await, None);
    for _ in 0..5 {
        let leadership = election(&leader).campaign().await.unwrap();
        let told = patiently(&follower).await.unwrap();
        assert_eq!(told.term, Some(leadership.term().unwrap()));
        leadership.resign().await.unwrap();
        assert_eq!(patiently(&follower).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_election_in_its_cooldown_has_no_leader() {
    let world = World::new();
    let (leader, follower) = (world.observer(1), world.observer(2));
    let leadership = election(&leader).campaign().await.unwrap();
    let mut changes = election(&follower).observe();
    assert!(next(&mut changes).await.is_some());
    Guard::from(leadership).release_with_cooldown(SECOND * 1_000).await.unwrap();
    assert_eq!(next(&mut changes).await, None);
    assert_silent(&follower, &mut changes, SECOND * 2_000).await;
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_too_long_is_refused_and_not_cut() {
    let world = World::new();
    let client = world.observer(1);
    let longest = "ü".repeat(Election::MAX_VALUE);
    let leadership = election(&client).value(&longest).campaign().await.unwrap();
    let leader = election(&client).leader().await.unwrap().unwrap();
    assert_eq!(leader.value.as_deref(), Some(longest.as_str()));
    leadership.resign().await.unwrap();
    let sent = client.network.counts().total();
    let error = election(&client).value(longest + "x").campaign().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("1025") && error.to_string().contains("1024"), "{error}");
    assert_eq!(client.network.counts().total(), sent);
}

#[tokio::test(start_paused = true)]
async fn a_bad_name_fails_campaign_leader_and_observe() {
    let client = World::new().observer(1);
    let election = Locker::new(client.leases.clone()).election("a//b");
    assert_eq!(election.campaign().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(election.leader().await.unwrap_err().kind(), ErrorKind::Invalid);
    let told: Vec<_> = election.observe().collect().await;
    assert!(matches!(&told[..], [Err(error)] if error.kind() == ErrorKind::Invalid), "{told:?}");
}
