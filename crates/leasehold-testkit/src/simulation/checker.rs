//! The checker: what a history must never show, in true time and in the order in which the store commits.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold::Guard;
use leasehold::clock::RATE_ERROR;
use leasehold::lease::Ttl;

use super::History;
use super::games::Held;

/// Sees what nobody in the history sees.
#[derive(Debug, Default)]
pub(super) struct Checker(Mutex<Checked>);

#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) history: History,
    locks: HashMap<String, Lock>,
    /// Until then, in true time, nobody is to begin the job.
    pub(super) rests_until: Duration,
    /// Whether the history is over, and no more harm is to be done.
    pub(super) concluded: bool,
    /// What the holder of each token that was granted advertises.
    pub(super) values: HashMap<u64, String>,
    /// What anybody holds, or has held, and how.
    pub(super) held: Vec<(Held, Weak<Guard>)>,
    /// The nonces of all writes that the store committed.
    nonces: HashSet<String>,
    /// When claims that were cancelled must have ended, by their notes.
    cancelled: HashMap<String, Duration>,
    /// The highest token that the resource accepted, and the writes.
    accepted: u64,
    effects: HashSet<String>,
    pub(super) violation: Option<(&'static str, String)>,
}

/// One lock.
#[derive(Debug, Default)]
struct Lock {
    /// The highest token that anybody has believed in.
    believed: u64,
    /// The highest token that the store has committed, and in which grant.
    committed: u64,
    grant: String,
    /// Tokens up to this were granted by records that were deleted by hand: exclusion is given up for, for them.
    deleted: u64,
    /// Their grants were ended by an operator, and their holders find out when they renew.
    evicted: HashSet<u64>,
    /// Tokens of creates that landed too late to be used, and of which acquisitions. They may never believe in them.
    stillborn: HashSet<(u64, String)>,
    /// Until when each token may be believed in, in true time.
    alive_until: HashMap<u64, Duration>,
    /// The acquisition that each token was granted to.
    grants: HashMap<u64, String>,
    /// What holders were told is lost, as token and acquisition: others may try with the same token.
    lost: HashSet<(u64, String)>,
}

/// A grant, or its renewal, as it was written.
#[derive(Clone, Debug)]
pub(super) struct Write<'a> {
    pub(super) token: u64,
    /// Names the acquisition.
    pub(super) grant: &'a str,
    pub(super) ttl_ms: u64,
    /// Whether a create wrote it, and nobody has shown a sign of life since.
    pub(super) newborn: bool,
    pub(super) note: Option<&'a str>,
    pub(super) value: Option<&'a str>,
}

impl Checker {
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Checked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn violated(&self, invariant: &'static str, what: String) {
        self.lock().violates(invariant, what);
    }

    /// A check of the guard of `name` with `token`, acquired as `note`, has passed at `now`, in true time.
    pub(super) fn believed(&self, name: &str, token: u64, note: &str, now: Duration) {
        let mut checked = self.lock();
        checked.history.checks += 1;
        let lock = checked.of(name);
        let highest = lock.believed;
        lock.believed = highest.max(token);
        let excused = token <= lock.deleted || lock.evicted.contains(&token);
        if token < highest && !excused {
            checked.violates("I1", format!("token {token} of {name} is believed in after {highest} was"));
            return;
        }
        if lock.stillborn.contains(&(token, note.to_owned())) {
            let what = format!("token {token} of {name}, of a create that landed late, is believed in");
            checked.violates("I2", what);
            return;
        }
        match lock.alive_until.get(&token).copied() {
            None => checked.violates("I2", format!("token {token} of {name} was never granted")),
            Some(until) if now > until => {
                let late = now - until;
                checked.violates("I5", format!("token {token} of {name} is believed in {late:?} too long"));
            }
            Some(_) => {}
        }
    }

    /// The store committed, at `now` in true time, that `write` holds `name`.
    pub(super) fn committed(&self, name: &str, write: &Write<'_>, now: Duration) {
        let mut checked = self.lock();
        // The latest that its holder can believe in it: had it been sent at this instant, by the slowest clock.
        let ttl = Ttl::from_millis(write.ttl_ms).unwrap_or_default();
        let until = now + ttl.holder_span().div_f64(1.0 - RATE_ERROR) + Duration::from_millis(1);
        let grant = format!("{}/{}", write.token, write.grant);
        let lock = checked.of(name);
        lock.alive_until.insert(write.token, until);
        if grant == lock.grant {
            return; // A renewal.
        }
        lock.grant = grant;
        lock.grants.insert(write.token, write.grant.to_owned());
        let highest = lock.committed;
        if write.token > highest {
            lock.committed = write.token;
        } else if write.newborn {
            lock.stillborn.insert((write.token, write.note.unwrap_or_default().to_owned()));
        }
        checked.history.grants += 1;
        if let Some(value) = write.value {
            checked.values.insert(write.token, value.to_owned());
        }
        if write.token <= highest && !write.newborn {
            let token = write.token;
            checked.violates("I2", format!("token {token} of {name} is granted after {highest} was"));
        }
    }

    /// The store committed a write with `nonce`, of whatever.
    pub(super) fn applied(&self, key: &str, nonce: &str) {
        let mut checked = self.lock();
        if !checked.nonces.insert(format!("{key}/{nonce}")) {
            checked.violates("I4", format!("one write of {key} had its effect twice: {nonce}"));
        }
    }

    /// Somebody sends, at `now`, that `write` is to hold `name`, for the first time or on.
    pub(super) fn sends(&self, name: &str, write: &Write<'_>, now: Duration) {
        let mut checked = self.lock();
        let token = write.token;
        if checked.of(name).lost.contains(&(token, write.grant.to_owned())) {
            checked.violates("I6", format!("token {token} of {name} is prolonged after it was lost"));
        }
        let note = write.note.unwrap_or_default();
        if checked.cancelled.get(note).is_some_and(|until| now > *until) {
            checked.violates("I8", format!("acquisition {note} of {name} was cancelled, and goes on"));
        }
    }

    /// The holder of `token` was told that it is lost.
    pub(super) fn lost(&self, name: &str, token: u64) {
        let mut checked = self.lock();
        let lock = checked.of(name);
        let grant = lock.grants.get(&token).cloned().unwrap_or_default();
        let news = lock.lost.insert((token, grant));
        checked.history.losses += usize::from(news);
    }

    /// The acquisition with this note was given up, and nothing of it may go on after `until`.
    pub(super) fn cancelled(&self, note: &str, until: Duration) {
        let mut checked = self.lock();
        checked.history.cancelled += 1;
        checked.cancelled.insert(note.to_owned(), until);
    }

    /// An operator is about to evict the holder of `token`.
    pub(super) fn evicting(&self, name: &str, token: u64) {
        self.lock().of(name).evicted.insert(token);
    }

    /// An operator has deleted the record of `name` by hand.
    pub(super) fn deleted(&self, name: &str) {
        let mut checked = self.lock();
        checked.history.deleted += 1;
        let lock = checked.of(name);
        lock.deleted = lock.committed;
    }

    /// The resource has accepted a write with `token`, which carries `content`.
    pub(super) fn accepted(&self, token: u64, content: &str) {
        let mut checked = self.lock();
        checked.history.accepted += 1;
        let highest = checked.accepted;
        checked.accepted = highest.max(token);
        if token < highest {
            checked.violates("I3", format!("the resource accepted token {token} after {highest}"));
        }
        if !checked.effects.insert(content.to_owned()) {
            checked.violates("I4", format!("one write of the resource had its effect twice: {content}"));
        }
    }

    /// In a history in which nothing went wrong, `sent` requests were sent where `budget` are enough.
    pub(super) fn spent(&self, sent: usize, budget: usize) {
        if sent > budget {
            self.violated("I9", format!("{sent} requests were sent, and {budget} are enough"));
        }
    }
}

impl Checked {
    fn of(&mut self, name: &str) -> &mut Lock {
        self.locks.entry(name.to_owned()).or_default()
    }

    pub(super) fn violates(&mut self, invariant: &'static str, what: String) {
        self.violation.get_or_insert((invariant, what));
    }
}

#[cfg(test)]
mod tests;
