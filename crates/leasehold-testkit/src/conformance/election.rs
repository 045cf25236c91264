//! Elections: one of several candidates leads, and observers learn who it is.

use futures_util::StreamExt;
use futures_util::future::{join, join_all};
use futures_util::stream::BoxStream;
use leasehold::lease::Released;
use leasehold::{Election, Leader, Leadership, Locker, Result};

use super::Harness;
use super::client::{Client, LONG, name};

/// Returns the election on a new client, and the client.
async fn election(harness: &dyn Harness, who: &str) -> (Client, Election) {
    let client = Client::open(harness, who).await;
    let election = Locker::new(client.store.clone()).election("lock");
    let election = election.ttl(LONG).store_timeout(harness.limit() / 2).owner(who);
    (client, election.value(format!("http://{who}.example")))
}

async fn campaign(client: &Client, election: &Election) -> Leadership {
    client.within("a campaign", election.campaign()).await.unwrap()
}

async fn next(client: &Client, changes: &mut BoxStream<'static, Result<Option<Leader>>>) -> Option<Leader> {
    client.within("news of a leader", changes.next()).await.unwrap().unwrap()
}

/// Asserts that `leader` is the candidate `who`.
fn assert_is(leader: Option<&Leader>, who: &str) {
    let leader = leader.unwrap();
    assert_eq!(leader.value, Some(format!("http://{who}.example")));
    assert_eq!(leader.holder.as_ref().map(|holder| holder.name.as_str()), Some(who));
}

/// Asserts that the stream reports `leadership` of the candidate `who`. `first` is the next item of the stream.
///
/// It may report a lower term first: a store may write a grant twice, with a higher token, before it reports the grant
/// to its holder. It may also report an unknown leader first: a store may record the holder after the grant.
async fn assert_reports(
    client: &Client,
    changes: &mut BoxStream<'static, Result<Option<Leader>>>,
    first: Option<Leader>,
    leadership: &Leadership,
    who: &str,
) -> Option<Leader> {
    let mut reported = match first {
        Some(Leader { holder: None, .. }) => next(client, changes).await,
        first => first,
    };
    loop {
        assert_is(reported.as_ref(), who);
        let (term, leads) = (reported.as_ref().and_then(|leader| leader.term), leadership.term().ok());
        if term == leads {
            return reported;
        }
        assert!(term < leads, "term {term:?} was reported, above the leader's {leads:?}");
        reported = next(client, changes).await;
    }
}

/// One of three candidates leads. When it resigns, another follows with a higher term, long before a ttl has passed.
pub async fn one_candidate_leads_and_another_follows_when_it_resigns(harness: &dyn Harness) {
    let candidates =
        [election(harness, "one").await, election(harness, "two").await, election(harness, "three").await];
    let leads = std::sync::atomic::AtomicBool::new(false);
    let terms = std::sync::Mutex::new(Vec::new());
    let candidacies = candidates.iter().map(|(client, election)| {
        let (leads, terms) = (&leads, &terms);
        async move {
            let leadership = campaign(client, election).await;
            assert!(!leads.swap(true, std::sync::atomic::Ordering::SeqCst), "two lead");
            terms.lock().unwrap().extend(leadership.term().ok());
            client.env().sleep(harness.ttl() / 20).await;
            leadership.check().unwrap();
            leads.store(false, std::sync::atomic::Ordering::SeqCst);
            assert_eq!(client.within("to resign", leadership.resign()).await.unwrap(), Released::Released);
        }
    });
    join_all(candidacies).await;
    let terms = terms.into_inner().unwrap();
    assert!(terms.is_sorted_by(|earlier, later| earlier < later), "{terms:?}");
    candidates[0].0.assert_free(&name("lock")).await;
}

/// An observer that started before there was a leader sees each leader with its value and term, and each vacancy.
pub async fn an_observer_sees_each_leader_and_each_vacancy(harness: &dyn Harness) {
    let (one, first) = election(harness, "one").await;
    let (two, second) = election(harness, "two").await;
    let (three, follower) = election(harness, "three").await;
    let mut changes = follower.observe();
    assert_eq!(next(&three, &mut changes).await, None);
    let (leadership, reported) = join(campaign(&one, &first), next(&three, &mut changes)).await;
    let reported = assert_reports(&three, &mut changes, reported, &leadership, "one").await;
    assert_eq!(three.within("a look", follower.leader()).await.unwrap(), reported);
    let (resigned, reported) = join(leadership.resign(), next(&three, &mut changes)).await;
    assert_eq!((resigned.unwrap(), reported), (Released::Released, None));
    let (leadership, reported) = join(campaign(&two, &second), next(&three, &mut changes)).await;
    assert_reports(&three, &mut changes, reported, &leadership, "two").await;
    drop(leadership);
    assert_eq!(next(&three, &mut changes).await, None);
}

/// An observer sees the next leader even if it misses the vacancy between the two leaders.
pub async fn an_observer_sees_a_leader_that_follows_at_once(harness: &dyn Harness) {
    let (one, first) = election(harness, "one").await;
    let (two, second) = election(harness, "two").await;
    let (three, follower) = election(harness, "three").await;
    let leadership = campaign(&one, &first).await;
    let mut changes = follower.observe();
    let reported = next(&three, &mut changes).await;
    assert_reports(&three, &mut changes, reported, &leadership, "one").await;
    let (resigned, leadership) = join(leadership.resign(), campaign(&two, &second)).await;
    assert_eq!(resigned.unwrap(), Released::Released);
    let reported = match next(&three, &mut changes).await {
        None => next(&three, &mut changes).await,
        reported => reported,
    };
    assert_reports(&three, &mut changes, reported, &leadership, "two").await;
}

/// A leader's value survives its renewals.
pub async fn the_value_of_a_leader_survives_its_renewals(harness: &dyn Harness) {
    let (one, first) = election(harness, "one").await;
    let (two, follower) = election(harness, "two").await;
    let leadership = campaign(&one, &first.ttl(harness.ttl())).await;
    one.env().sleep(harness.ttl() * 2).await;
    leadership.check().unwrap();
    let leader = two.within("a look", follower.leader()).await.unwrap();
    assert_is(leader.as_ref(), "one");
    assert_eq!(leader.unwrap().term, leadership.term().ok());
    leadership.resign().await.unwrap();
    assert_eq!(two.within("a look", follower.leader()).await.unwrap(), None);
}

/// A leader that stops renewing is reported until its lease has ended, and no longer.
pub async fn no_leader_is_reported_once_its_lease_has_ended(harness: &dyn Harness) {
    let one = Client::open(harness, "one").await;
    let (two, follower) = election(harness, "two").await;
    let grant = one.granted(&name("lock"), harness.ttl()).await;
    let mut changes = follower.observe();
    let leader = next(&two, &mut changes).await.unwrap();
    assert_eq!(leader.holder.as_ref(), Some(one.who()));
    assert_eq!(leader.value, None, "a lock's holder advertises nothing");
    assert_eq!(next(&two, &mut changes).await, None);
    two.assert_passed(grant.deadline);
}
