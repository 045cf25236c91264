use std::sync::Mutex;

use super::*;
use crate::lease::{Token, Waiter};
use crate::random::Random;

/// Locks in memory: the token of the holder, and the waiters.
#[derive(Default)]
struct Locks {
    by_name: HashMap<LockName, (Option<u64>, Vec<Holder>)>,
    reads: Mutex<Vec<String>>,
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn id(number: u64) -> Id {
    Id::random(&Random::seeded(number))
}

/// The waiter with this number, which holds `holds`.
fn waiter(number: u64, holds: &[(&str, u64)]) -> Holder {
    let holds =
        holds.iter().map(|(lock, number)| HeldLock { name: name(lock), token: token(*number) }).collect();
    let nested = Nested { holds, id: id(number), seen: Vec::new(), stays: false };
    Holder { name: format!("w{number}"), nested: Some(Box::new(nested)), ..Holder::default() }
}

impl Locks {
    /// Adds a lock that is held with this token.
    fn held(mut self, lock: &str, number: u64, waiters: &[Holder]) -> Self {
        self.by_name.insert(name(lock), (Some(number), waiters.to_vec()));
        self
    }

    fn status(&self, lock: &LockName) -> Status {
        self.reads.lock().unwrap().push(lock.to_string());
        let (held, waiters) = self.by_name.get(lock).cloned().unwrap_or_default();
        let state = held.map_or(State::Free, |number| {
            State::Held(HolderInfo { token: Some(token(number)), ..HolderInfo::default() })
        });
        Status { waiters: waiters.into_iter().map(Waiter::new).collect(), ..Status::new(lock.clone(), state) }
    }

    /// Returns the cycles of `waiter`, which waits for `lock`, as the names of the waiters.
    async fn of(&self, lock: &str, waiter: &Holder) -> Vec<Vec<String>> {
        let read: &Read<'_> = &|lock| Box::pin(async move { Ok(self.status(&lock)) });
        let found = cycles(&name(lock), waiter, read).await.unwrap();
        found.iter().map(|cycle| cycle.0.iter().map(|link| link.waiter.name.clone()).collect()).collect()
    }
}

#[tokio::test]
async fn cycles_of_two_and_three_are_found_by_each_waiter() {
    let (one, two) = (waiter(1, &[("a", 1)]), waiter(2, &[("b", 2)]));
    let of_two =
        Locks::default().held("a", 1, std::slice::from_ref(&two)).held("b", 2, std::slice::from_ref(&one));
    assert_eq!(of_two.of("b", &one).await, [["w1", "w2"]]);
    assert_eq!(of_two.of("a", &two).await, [["w2", "w1"]]);
    // One waits for b, two for c, three for a.
    let three = waiter(3, &[("c", 3)]);
    let of_three = Locks::default()
        .held("a", 1, std::slice::from_ref(&three))
        .held("b", 2, std::slice::from_ref(&one))
        .held("c", 3, &[two]);
    assert_eq!(of_three.of("b", &one).await, [["w1", "w3", "w2"]]);
    // All members of a cycle know it by the same id, and agree on who gives up.
    let read: &Read<'_> = &|lock| {
        let status = of_three.status(&lock);
        Box::pin(async move { Ok(status) })
    };
    let (seen_by_one, seen_by_three) =
        (cycles(&name("b"), &one, read).await.unwrap(), cycles(&name("a"), &three, read).await.unwrap());
    assert_eq!(seen_by_one[0].id(), seen_by_three[0].id());
    assert_eq!((seen_by_one[0].gives_up(), seen_by_three[0].gives_up()), (Some(id(3)), Some(id(3))));
}

#[tokio::test]
async fn a_hold_that_is_over_is_no_part_of_a_cycle() {
    let (one, two) = (waiter(1, &[("a", 1)]), waiter(2, &[("b", 2)]));
    let waits = |lock: &str, of: &Holder| (name(lock), of.clone());
    let (a, b) = (waits("a", &two), waits("b", &one));
    // Somebody else has got a, or b, meanwhile.
    for (token_a, token_b) in [(7, 2), (1, 7)] {
        let locks = Locks::default().held("a", token_a, std::slice::from_ref(&a.1)).held(
            "b",
            token_b,
            std::slice::from_ref(&b.1),
        );
        assert_eq!(locks.of("b", &one).await, Vec::<Vec<String>>::new(), "{token_a} {token_b}");
    }
    // Or b is free.
    let locks = Locks::default().held("a", 1, std::slice::from_ref(&a.1));
    assert_eq!(locks.of("b", &one).await, Vec::<Vec<String>>::new());
}

#[test]
fn only_a_held_lock_keeps_others_waiting() {
    let own = HeldLock { name: name("a"), token: token(1) };
    let held = HolderInfo { token: Some(token(1)), ..HolderInfo::default() };
    assert!(is_held(&own, &held));
    for not in [
        HolderInfo { token: Some(token(2)), ..held.clone() },
        HolderInfo { token: None, ..held.clone() },
        HolderInfo { in_cooldown: true, ..held.clone() },
        HolderInfo { reserved: true, ..held.clone() },
        HolderInfo { withheld: true, ..held.clone() },
        HolderInfo { foreign: Some("x".into()), ..held },
    ] {
        assert!(!is_held(&own, &not), "{not:?}");
    }
}

#[tokio::test]
async fn a_walk_reads_no_more_than_its_limits() {
    // Each waiter holds the next lock. The cycle has nine waiters, one too many.
    let chain = |length: u64| {
        let mut locks = Locks::default();
        for n in 0..length {
            let next = waiter(n + 2, &[(&format!("l{}", n + 1), n + 1)]);
            locks = locks.held(&format!("l{n}"), n, &[next]);
        }
        locks.held(&format!("l{length}"), length, &[])
    };
    let first = waiter(1, &[("l0", 0)]);
    assert_eq!(chain(7).of("l7", &first).await.concat().len(), 8);
    assert_eq!(chain(8).of("l8", &first).await.concat().len(), 0);
    // 64 waiters that hold eight locks each.
    let holds: Vec<_> = (0..600).map(|n| format!("m{n}")).collect();
    let waiters: Vec<_> = (0..64)
        .map(|n| {
            let holds: Vec<_> = (0..8).map(|m| (&*holds[n * 8 + m], 1)).collect();
            waiter(n as u64 + 2, &holds)
        })
        .collect();
    let locks = holds.iter().fold(Locks::default(), |locks, name| locks.held(name, 1, &waiters));
    let locks = locks.held("l0", 0, &waiters);
    assert_eq!(locks.of("x", &first).await.len(), 0);
    let reads = locks.reads.lock().unwrap();
    assert_eq!(reads.len(), MAX_READS);
    assert_eq!(reads.iter().collect::<std::collections::HashSet<_>>().len(), MAX_READS, "each lock once");
}

/// There are many ways from each waiter to the others.
#[tokio::test]
async fn a_walk_follows_a_limited_number_of_paths() {
    let names: Vec<_> = (0..7).map(|n| format!("l{n}")).chain(["x".to_owned()]).collect();
    let holds: Vec<_> = names.iter().map(|name| (&**name, 1)).collect();
    let waiters: Vec<_> = (2..6).map(|n| waiter(n, &holds)).collect();
    let locks = names.iter().fold(Locks::default(), |locks, name| locks.held(name, 1, &waiters));
    let found = locks.of("x", &waiter(1, &holds[..7])).await;
    assert!((1..=MAX_PATHS).contains(&found.len()), "{}", found.len());
    for cycle in found {
        let distinct: std::collections::HashSet<_> = cycle.iter().collect();
        assert_eq!(distinct.len(), cycle.len(), "no waiter is in a cycle twice: {cycle:?}");
    }
}

#[test]
fn a_cycle_counts_when_all_others_have_seen_it() {
    let link = |number: u64, seen: Vec<Id>| {
        Arc::new(CycleLink {
            waiter: Arc::default(),
            waits_for: name("x"),
            holds: HeldLock { name: name(&format!("l{number}")), token: token(5) },
            id: id(number),
            seen,
            stays: number == 3,
        })
    };
    let cycle = |one, two| {
        Cycle(vec![link(1, one), link(2, two), link(3, vec![id(1).combined(id(2)).combined(id(3))])])
    };
    let all = cycle(Vec::new(), Vec::new()).id();
    assert!(cycle(Vec::new(), vec![all]).is_seen_by_all(id(1)));
    assert!(!cycle(Vec::new(), vec![all]).is_seen_by_all(id(2)));
    assert!(!cycle(vec![all], vec![id(9)]).is_seen_by_all(id(1)));
    // Equal tokens of different locks: the name decides. A waiter that stays never gives up.
    assert_eq!(cycle(Vec::new(), Vec::new()).gives_up(), Some(id(2)));
    assert_eq!(Cycle(vec![link(3, Vec::new())]).gives_up(), None);
}
