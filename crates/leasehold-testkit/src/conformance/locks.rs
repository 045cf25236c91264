//! Locks as programs use them, through [`Locker`].

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use leasehold::lease::{Evicted, Released, Secret};
use leasehold::{ErrorKind, Guard, Lock, Locker, Ticket};

use super::Harness;
use super::client::{Client, LONG, name};

/// Returns a locker on a new client, and the client, which can inspect the store directly.
pub(super) async fn locker(harness: &dyn Harness, who: &str) -> (Client, Locker) {
    let client = Client::open(harness, who).await;
    (client.clone(), Locker::new(client.store))
}

async fn acquired(client: &Client, lock: &Lock) -> Guard {
    client.within("acquire", lock.acquire()).await.unwrap()
}

/// A hundred tasks of one process share a lock: each gets it once, one at a time, with rising tokens.
pub async fn a_hundred_tasks_share_a_lock(harness: &dyn Harness) {
    const TASKS: u64 = 100;
    let (client, locker) = locker(harness, "one").await;
    let (count, highest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks = (0..TASKS).map(|_| {
        let (lock, count, highest) = (locker.lock("lock").ttl(LONG), count.clone(), highest.clone());
        let client = client.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            let seen = count.load(Ordering::Relaxed);
            tokio::task::yield_now().await;
            if let Some(token) = client.token(&guard) {
                let before = highest.swap(token.get(), Ordering::Relaxed);
                assert!(before < token.get(), "token {token} after {before}");
            }
            count.store(seen + 1, Ordering::Relaxed);
            guard.check().unwrap();
            guard.release().await.unwrap();
        })
    });
    for task in client.within("a hundred tasks", join_all(tasks)).await {
        task.unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), TASKS);
    client.assert_free(&name("lock")).await;
}

/// Dropping a guard releases its lock, long before its lease ends.
pub async fn dropping_a_guard_releases_its_lock(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    drop(acquired(&one, &here.lock("lock").ttl(LONG)).await);
    let guard = acquired(&two, &there.lock("lock").ttl(LONG)).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

/// An acquisition that is dropped at any point does not block other clients.
pub async fn an_acquisition_given_up_leaves_nothing_behind(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    let mut polls = 0;
    loop {
        let lock = here.lock("lock").ttl(LONG);
        let given_up = {
            // Polls it once, then twice, and so on, to drop it before the request, during the request, and after the
            // response.
            let mut acquire = pin!(lock.acquire());
            let mut granted = None;
            for _ in 0..=polls {
                granted = futures_util::future::poll_immediate(acquire.as_mut()).await;
                if granted.is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            granted
        };
        let was_granted = given_up.is_some();
        drop(given_up);
        let guard = acquired(&two, &there.lock("lock").ttl(LONG)).await;
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        polls += 1;
        if was_granted || polls > 8 {
            break;
        }
    }
    acquired(&one, &here.lock("lock").ttl(LONG)).await.release().await.unwrap();
}

/// `with` holds the lock exactly while its body runs, and returns the body's result.
pub async fn with_holds_the_lock_while_its_body_runs(harness: &dyn Harness) {
    let (_, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    let lock = here.lock("lock").ttl(LONG);
    let token = lock.with(async |guard| {
        let refusal = there.lock("lock").try_acquire().await.unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Held);
        let token = two.token(guard);
        assert!(token.is_none() || refusal.holder().unwrap().token == token, "{refusal:?}");
        token
    });
    let token = two.within("the body", token).await.unwrap();
    let guard = there.lock("lock").ttl(LONG).try_acquire().await.unwrap();
    assert!(token.is_none() || two.token(&guard) > token);
    guard.release().await.unwrap();
}

/// A holder whose grant an operator ends notices it at its next renewal. Its check fails from then on.
pub async fn a_holder_learns_that_it_was_evicted(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, _) = locker(harness, "two").await;
    let guard = acquired(&one, &here.lock("lock").ttl(harness.ttl())).await;
    guard.check().unwrap();
    let number = two.inspect(&name("lock")).await.token.unwrap();
    assert_eq!(two.evict(&name("lock"), number).await, Evicted::Evicted);
    let loss = one.within("the loss", guard.lost()).await;
    assert_eq!(loss.token, number);
    one.assert_ended(&loss);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(guard.cancellation().is_cancelled());
    assert!(guard.remaining().is_zero());
}

/// A guard renews its lease by itself. The lock is held for longer than its ttl, and free as soon as it is released.
pub async fn a_guard_keeps_its_lease_alive(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    let guard = acquired(&one, &here.lock("lock").ttl(harness.ttl())).await;
    one.env().sleep(harness.ttl() * 2).await;
    guard.check().unwrap();
    let refusal = there.lock("lock").try_acquire().await.unwrap_err();
    let token = one.token(&guard);
    assert!(token.is_none() || refusal.holder().unwrap().token == token, "{refusal:?}");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    two.granted(&name("lock"), LONG).await;
}

/// A lock that is passed on by ticket is held without a gap, by one client at a time and with one token.
pub async fn a_ticket_hands_a_lock_on(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (_, there) = locker(harness, "two").await;
    let guard = acquired(&one, &here.lock("lock").ttl(LONG)).await;
    let token = one.token(&guard);
    let text = guard.into_ticket().await.unwrap().to_string();
    assert_eq!(here.lock("lock").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    let guard = there.resume(&text.parse().unwrap()).await.unwrap();
    assert_eq!(one.token(&guard), token);
    guard.release().await.unwrap();
    one.granted(&name("lock"), LONG).await;
}

/// A guard made from a ticket can be turned into a ticket for the same grant again. At every step the lock is held
/// under one token, and the first ticket stays valid.
pub async fn a_ticket_is_taken_up_and_handed_on_again(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let guard = acquired(&one, &here.lock("lock").ttl(LONG).for_ticket()).await;
    let first = guard.into_ticket().await.unwrap();
    let mut ticket = first.clone();
    for who in ["two", "three", "four"] {
        let (client, there) = locker(harness, who).await;
        let guard = client.within("resume", there.resume(&ticket)).await.unwrap();
        client.refused(&name("lock")).await;
        let next = client.within("handing on", guard.into_ticket()).await.unwrap();
        assert_eq!((next.name(), next.token(), next.ttl()), (first.name(), first.token(), first.ttl()));
        client.refused(&name("lock")).await;
        client.within("renew", there.renew(&first)).await.unwrap();
        ticket = next;
    }
    let (client, there) = locker(harness, "five").await;
    assert_eq!(client.within("release", there.release(&ticket)).await.unwrap(), Released::Released);
    assert_eq!(there.resume(&first).await.unwrap_err().kind(), ErrorKind::Lost);
    one.granted(&name("lock"), LONG).await;
}

/// A ticket contains a secret, and the store has only a digest of it. So nothing that a reader of the store can read
/// about a held lock makes a ticket that renews or releases it.
pub async fn a_reader_of_the_store_cannot_release(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    let guard = acquired(&one, &here.lock("lock").ttl(LONG).for_ticket()).await;
    let ticket = guard.into_ticket().await.unwrap();
    let fields = serde_json::to_value(&ticket).unwrap();
    let secret = fields["secret"].as_str().unwrap();
    let id = secret.parse::<Secret>().unwrap().id().to_string();
    let (status, record) = (two.inspect(&name("lock")).await, harness.read_record(&name("lock")).await);
    let seen = format!("{status:?} {record} {id}").replace('-', "").to_lowercase();
    assert!(!seen.contains(secret), "the store shows the secret: {seen}");
    for guess in words_of_digits(&seen) {
        let mut fields = fields.clone();
        fields["secret"] = guess.into();
        let forged: Ticket = serde_json::from_value(fields).unwrap();
        let renewed = two.within("renew", there.renew(&forged)).await;
        assert!(renewed.is_err_and(|error| error.kind() == ErrorKind::Lost), "{guess} renews the lock");
        let released = two.within("release", there.release(&forged)).await.unwrap();
        assert_eq!(released, Released::AlreadyLost, "{guess} releases the lock");
        two.refused(&name("lock")).await;
    }
    one.within("renew", here.renew(&ticket)).await.unwrap();
    assert_eq!(one.within("release", here.release(&ticket)).await.unwrap(), Released::Released);
}

/// Returns each part of `text` that has the form of a secret.
fn words_of_digits(text: &str) -> HashSet<&str> {
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    text.split(|c| !is_digit(c)).filter(|word| word.len() == 32).collect()
}
