//! Inspection of locks.

use std::time::Duration;

use leasehold::LockName;
use leasehold::lease::{End, Id, State, Token};

use super::Harness;
use super::client::{Client, LONG, name};

/// Inspection shows the holder, the token and the past grants of a lock that was never granted, is held, or is free
/// again.
pub async fn inspection_shows_free_held_and_history(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let status = two.inspect(&lock).await;
    assert_eq!((&status.state, status.token, status.history.len()), (&State::Free, None, 0), "{status:?}");
    let mut grant = one.granted(&lock, LONG).await;
    let status = two.inspect(&lock).await;
    let State::Held(held) = &status.state else { panic!("{status:?}") };
    assert_eq!((held.holder.as_ref(), held.token), (Some(one.who()), Some(grant.token)));
    assert!(held.lapses_within.is_none_or(|left| left <= LONG * 2), "{held:?}");
    assert_eq!(status.token, Some(grant.token));
    one.release(&mut grant).await;
    let status = two.inspect(&lock).await;
    assert_eq!(status.state, State::Free);
    if !two.store.capabilities().history {
        return assert_eq!((status.token, status.history.len()), (None, 0), "{status:?}");
    }
    assert_eq!(status.token, Some(grant.token));
    let past = &status.history[0];
    assert_eq!((past.token, &past.holder, past.end), (grant.token, one.who(), End::Released));
}

/// A lapsed lease is shown as lapsed, but not while its holder may still rely on it.
pub async fn inspection_shows_a_lapsed_lease_and_not_too_early(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let grant = one.granted(&lock, harness.ttl()).await;
    let status = two.inspect(&lock).await;
    assert!(matches!(status.state, State::Held(_)), "{status:?}");
    let lapsed = async {
        loop {
            match two.inspect(&lock).await.state {
                State::Lapsed(held) => return Some(held),
                State::Held(_) => two.env().sleep(harness.ttl() / 10).await,
                // A store that ends leases itself may keep no record of them.
                State::Free if !two.store.capabilities().history => return None,
                State::Free => panic!("the lock is free without a release"),
            }
        }
    };
    let held = two.within("the lapse to be shown", lapsed).await;
    two.assert_passed(grant.deadline);
    let Some(held) = held else { return };
    assert_eq!((held.holder.as_ref(), held.token), (Some(one.who()), Some(grant.token)));
}

/// The history shows the latest past grants, newest first, and how each of them ended.
pub async fn history_shows_how_grants_ended(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut released = one.granted(&lock, LONG).await;
    one.release(&mut released).await;
    let evicted = two.granted(&lock, LONG).await;
    one.evict(&lock, evicted.token).await;
    let mut limited = one.claim(&lock, LONG);
    limited.holder.max_hold_ms = Some(7_200_000);
    let mut limited = one.granted_to(&limited).await;
    let held = two.inspect(&lock).await.state.holder().cloned().unwrap();
    assert_eq!(held.max_hold(), Some(Duration::from_secs(7_200)), "{held:?}");
    limited.at_limit = true;
    one.release(&mut limited).await;
    // Every store that keeps a history keeps three grants.
    let expected = [
        (limited.token, limited.id, "one".to_owned(), End::Limit),
        (evicted.token, evicted.id, "two".to_owned(), End::Evicted),
        (released.token, released.id, "one".to_owned(), End::Released),
    ];
    let keeps = one.store.capabilities().history;
    assert_eq!(history(&one, &lock).await, if keeps { &expected[..] } else { &[] });
    let lapsed = one.granted(&lock, harness.ttl()).await;
    two.wait(&lock, LONG).await;
    let latest = history(&one, &lock).await.into_iter().next();
    assert_eq!(latest, keeps.then(|| (lapsed.token, lapsed.id, "one".to_owned(), End::Lapsed)));
}

/// Returns the latest grants of `lock`: the token, the id, the holder's name, and how the grant ended.
async fn history(client: &Client, lock: &LockName) -> Vec<(Token, Id, String, End)> {
    let history = client.inspect(lock).await.history;
    history.into_iter().map(|past| (past.token, past.grant, past.holder.name, past.end)).collect()
}
