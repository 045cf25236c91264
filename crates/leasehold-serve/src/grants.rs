//! The grants that this server has seen. They show whether a ticket is forged when the store says that its lock is lost,
//! and that a loss was already reported. No lock depends on them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::{LockName, Loss, Ticket, Token};

/// How many grants are kept at least, if there are so many. The number that is kept is at most twice as high.
const KEPT: usize = 10_000;

/// What the server last learned about a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The store granted or renewed it.
    Held,
    Released,
    /// Its loss was reported.
    Lost(Box<Loss>),
}

/// The grants that were used last. A grant that is renewed stays, however many others there are.
#[derive(Debug)]
pub(crate) struct Grants {
    /// See [`KEPT`].
    kept: usize,
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Seen>,
    old: HashMap<Key, Seen>,
}

type Key = (LockName, Token);

#[derive(Debug)]
struct Seen {
    ticket: Ticket,
    fate: Fate,
}

impl Default for Grants {
    fn default() -> Self {
        Self { kept: KEPT, generations: Mutex::default() }
    }
}

impl Grants {
    fn generations(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the fate of the grant of `ticket`, which the store has confirmed. Returns the fate before.
    pub(crate) fn record(&self, ticket: &Ticket, fate: Fate) -> Option<Fate> {
        let mut generations = self.generations();
        let Generations { young, old } = &mut *generations;
        let key = key(ticket);
        if let Some(seen) = young.get_mut(&key).filter(|seen| seen.ticket.is_of_same_grant(ticket)) {
            return Some(std::mem::replace(&mut seen.fate, fate));
        }
        if young.len() >= self.kept {
            *old = std::mem::take(young);
        }
        let before = old.remove(&key).filter(|seen| seen.ticket.is_of_same_grant(ticket));
        young.insert(key, Seen { ticket: ticket.clone(), fate });
        before.map(|seen| seen.fate)
    }

    /// Returns the fate of the grant of `ticket`, if the server knows this grant.
    pub(crate) fn fate(&self, ticket: &Ticket) -> Option<Fate> {
        let generations = self.generations();
        let key = key(ticket);
        let seen = generations.young.get(&key).or_else(|| generations.old.get(&key))?;
        seen.ticket.is_of_same_grant(ticket).then(|| seen.fate.clone())
    }
}

fn key(ticket: &Ticket) -> Key {
    (ticket.name().clone(), ticket.token())
}

#[cfg(test)]
mod tests {
    use leasehold::{Locker, LossReason};

    use super::*;

    async fn ticket(locker: &Locker, name: &str) -> Ticket {
        locker.lock(name).acquire().await.unwrap().into_ticket().await.unwrap()
    }

    #[tokio::test]
    async fn a_forged_ticket_has_no_fate() {
        let (locker, other) = (Locker::open("mem:").await.unwrap(), Locker::open("mem:").await.unwrap());
        let grants = Grants::default();
        let held = ticket(&locker, "a").await;
        assert_eq!(grants.fate(&held), None);
        let loss = Loss::new(held.name().clone(), held.token(), LossReason::Ended);
        for fate in [Fate::Held, Fate::Released, Fate::Lost(Box::new(loss))] {
            grants.record(&held, fate.clone());
            assert_eq!(grants.fate(&held), Some(fate));
        }
        assert_eq!(grants.fate(&ticket(&other, "a").await), None);
        assert_eq!(grants.fate(&ticket(&locker, "b").await), None);
    }

    #[tokio::test]
    async fn grants_in_use_stay_and_the_number_is_limited() {
        let locker = Locker::open("mem:").await.unwrap();
        let grants = Grants { kept: 4, ..Grants::default() };
        let (used, unused) = (ticket(&locker, "used").await, ticket(&locker, "unused").await);
        grants.record(&unused, Fate::Held);
        for number in 0..20 {
            grants.record(&used, Fate::Held);
            grants.record(&ticket(&locker, &number.to_string()).await, Fate::Held);
        }
        assert_eq!((grants.fate(&used), grants.fate(&unused)), (Some(Fate::Held), None));
        let generations = grants.generations();
        assert!(generations.young.len() + generations.old.len() <= 8);
    }
}
