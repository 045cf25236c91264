//! The checker: asserts the invariants of a history in true time and in the order in which the store commits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold::Guard;

use super::History;

/// How something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// By one holder alone.
    Alone,
    /// By any number of holders together.
    Shared,
    /// By at most this many holders together.
    Permit(usize),
    /// Alone, together with other locks.
    Together,
}

/// Observes the whole history, which no process in it can do.
#[derive(Debug, Default)]
pub(super) struct Checker(Mutex<Checked>);

#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) history: History,
    locks: HashMap<String, Lock>,
    /// Before this moment, in true time, no process may start the job.
    pub(super) rests_until: Duration,
    /// Whether the history is over, so that no more faults occur.
    pub(super) concluded: bool,
    /// The value that the holder of each granted token advertises.
    pub(super) values: HashMap<u64, String>,
    /// All guards that exist or existed, and how they are held.
    pub(super) held: Vec<(Held, Weak<Guard>)>,
    /// The nonces of all committed writes.
    nonces: HashSet<String>,
    /// When each write was first sent, by its nonce.
    sent: HashMap<String, Duration>,
    /// When processes stood still with their clocks.
    stood_still: HashMap<u64, Vec<(Duration, Duration)>>,
    /// When cancelled claims must have ended, by their notes.
    cancelled: HashMap<String, Duration>,
    /// The highest token that the resource has accepted, and the writes that it has accepted.
    accepted: u64,
    effects: HashSet<String>,
    pub(super) violation: Option<(&'static str, String)>,
}

/// One lock.
#[derive(Debug, Default)]
struct Lock {
    /// The highest token whose check has passed.
    believed: u64,
    /// The highest committed token, and its grant.
    committed: u64,
    grant: String,
    /// When it was granted, in true time.
    granted: Duration,
    /// Another client has the lock until then.
    taken_until: Duration,
    /// Tokens up to this one come from records that were deleted by hand. They are exempt from mutual exclusion.
    deleted: u64,
    /// The grants, by the tokens of their records. Creates that were applied too late to be used are left out,
    /// because no check of them may pass.
    grants: BTreeMap<u64, Granted>,
    /// The grants that an operator ended. Their holders notice it when they renew.
    evicted: HashSet<u64>,
    /// The grants whose holders have noticed the loss, by token and acquisition, because another acquisition may try
    /// the same token.
    lost: HashSet<(u64, String)>,
    /// The tokens of all guards.
    given: HashSet<u64>,
    /// The tokens and acquisitions that copies of their processes have renewed.
    copied: HashSet<String>,
}

/// A grant of the store.
#[derive(Clone, Debug)]
struct Granted {
    /// The highest token committed before this grant. The tokens above it, up to the record's, belong to this grant.
    after: u64,
    /// The acquisition.
    id: String,
    /// The note of the holder that inspection shows.
    note: String,
    /// The latest moment, in true time, at which a check of the grant may pass.
    alive_until: Duration,
    /// When its latest write was sent.
    sent: Duration,
    /// How long checks of the grant may pass without another response.
    span: Duration,
    /// How many guards it was given to.
    given: usize,
}

/// Returns the process that acquires with `note`.
pub(super) fn process_of(note: &str) -> Option<u64> {
    u64::from_str_radix(note.split('-').next()?, 16).ok()
}

impl Lock {
    /// Returns the grant that `token` belongs to, and the token of its record.
    fn grant_of(&self, token: u64) -> Option<(u64, &Granted)> {
        let (top, grant) = self.grants.range(token..).next()?;
        (grant.after < token).then_some((*top, grant))
    }
}

/// A grant, or its renewal, as it was written.
#[derive(Clone, Debug)]
pub(super) struct Write<'a> {
    pub(super) token: u64,
    /// The acquisition's id.
    pub(super) grant: &'a str,
    /// The write's nonce, if writes have one.
    pub(super) nonce: &'a str,
    pub(super) ttl_ms: u64,
    /// Whether a create wrote the grant and it has not been renewed since.
    pub(super) unconfirmed: bool,
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

    /// Records that a check of the guard of `name` with `token`, acquired with `note`, passed at `now`, in true time.
    pub(super) fn believed(&self, name: &str, token: u64, note: &str, now: Duration) {
        let mut checked = self.lock();
        checked.history.checks += 1;
        let lock = checked.of(name);
        let highest = lock.believed;
        lock.believed = highest.max(token);
        let grant = lock.grant_of(token).map(|(top, grant)| (top, grant.clone()));
        let evicted = grant.as_ref().is_some_and(|(top, _)| lock.evicted.contains(top));
        let deleted = token <= lock.deleted;
        // The time that the holder's clocks have missed since it sent its latest renewal. Time that they missed
        // earlier also counts, as long as the holder may not have received the response to that renewal.
        let missed = grant.as_ref().map_or(Duration::ZERO, |(_, grant)| checked.missed(grant, now));
        let excused = deleted || evicted || !missed.is_zero();
        if now < checked.of(name).taken_until && !excused {
            checked.violates(
                "I1",
                format!("token {token} of {name} is believed in while another client has it"),
            );
        }
        if token < highest && !excused {
            checked.violates("I1", format!("token {token} of {name} is believed in after {highest} was"));
            return;
        }
        match grant {
            None => checked.violates("I2", format!("token {token} of {name} was never granted")),
            Some((_, grant)) if grant.note != note => {
                let what = format!("token {token} of {name}, believed in by {note}, is of {}", grant.note);
                checked.violates("I2", what);
            }
            Some((_, grant)) if now > grant.alive_until + missed => {
                let late = now - grant.alive_until - missed;
                checked.violates("I5", format!("token {token} of {name} is believed in {late:?} too long"));
            }
            Some(_) => {}
        }
    }

    /// Records that a check of a guard of this many locks has passed.
    pub(super) fn hold_of(&self, locks: usize) {
        let mut checked = self.lock();
        checked.history.most = checked.history.most.max(locks);
    }

    /// Records that a task that acquires with `note` is given a guard of `name` with `token`.
    pub(super) fn given(&self, name: &str, token: u64, note: &str) {
        let mut checked = self.lock();
        let lock = checked.of(name);
        let unique = lock.given.insert(token);
        let grant = lock.grant_of(token).map(|(top, grant)| (top, grant.id.clone()));
        let is_lost = grant.as_ref().is_some_and(|grant| lock.lost.contains(grant));
        let before = grant.and_then(|(top, _)| lock.grants.get_mut(&top)).map_or(0, |grant| {
            grant.given += 1;
            grant.given - 1
        });
        checked.history.handed += usize::from(before > 0);
        if !unique {
            checked.violates("I2", format!("token {token} of {name} is given out again, to {note}"));
        } else if is_lost {
            checked.violates("I6", format!("token {token} of {name} is given to {note} after it was lost"));
        }
    }

    /// Records that a process has waited this long in a rush. The limit is `bound`.
    pub(super) fn waited(&self, waited: Duration, bound: Option<Duration>) {
        let mut checked = self.lock();
        checked.history.waited = checked.history.waited.max(waited);
        if let Some(bound) = bound.filter(|bound| waited > *bound) {
            checked.violates("F1", format!("a process waits for {waited:?}, and {bound:?} are enough"));
        }
    }

    /// Records that the store committed `write`, a grant or renewal of `name`, at `now` in true time.
    pub(super) fn committed(&self, name: &str, write: &Write<'_>, now: Duration) {
        let mut checked = self.lock();
        let until = now + longest_belief(write.ttl_ms);
        let grant = format!("{}/{}", write.token, write.grant);
        let sent = checked.sent.get(write.nonce).copied().unwrap_or(now);
        let failed_over = checked.history.failovers > 0;
        let lock = checked.of(name);
        let known = lock.grants.get(&write.token).is_some_and(|granted| granted.id == write.grant);
        if known && failed_over {
            // The failover has lost the end of this grant and the grants after it, and a renewal that was sent
            // before the end arrives. If the end was an eviction, checks of the grant are excused, as documented.
            lock.grant.clone_from(&grant);
        }
        if grant == lock.grant && write.unconfirmed {
            // A late copy of the create arrived after the record was deleted by hand. It prolongs nothing.
            return;
        }
        if grant == lock.grant {
            // A renewal.
            let copied = lock.copied.contains(&grant);
            if let Some(grant) = lock.grants.get_mut(&write.token).filter(|grant| grant.id == write.grant) {
                (grant.alive_until, grant.sent, grant.span) = (until, sent, until - now);
            }
            if copied {
                let what = format!("token {} of {name} is renewed after a copy has renewed it", write.token);
                checked.violates("I10", what);
            }
            return;
        }
        (lock.grant, lock.granted) = (grant, now);
        let highest = lock.committed;
        if write.token > highest {
            lock.committed = write.token;
            let (id, note) = (write.grant.to_owned(), write.note.unwrap_or_default().to_owned());
            let grant =
                Granted { after: highest, id, note, alive_until: until, sent, span: until - now, given: 0 };
            lock.grants.insert(write.token, grant);
        }
        checked.history.grants += 1;
        if let Some(value) = write.value {
            checked.values.insert(write.token, value.to_owned());
        }
        if write.token <= highest && !write.unconfirmed {
            let token = write.token;
            checked.violates("I2", format!("token {token} of {name} is granted after {highest} was"));
        }
    }

    /// Records that the store committed a write with `nonce` to `key`.
    pub(super) fn applied(&self, key: &str, nonce: &str) {
        let mut checked = self.lock();
        if !checked.nonces.insert(format!("{key}/{nonce}")) {
            checked.violates("I4", format!("one write of {key} had its effect twice: {nonce}"));
        }
    }

    /// Records that a process sends `write`, a grant or renewal of `name`, at `now`.
    pub(super) fn sends(&self, name: &str, write: &Write<'_>, now: Duration) {
        let mut checked = self.lock();
        let token = write.token;
        checked.sent.entry(write.nonce.to_owned()).or_insert(now);
        if checked.of(name).lost.contains(&(token, write.grant.to_owned())) {
            checked.violates("I6", format!("token {token} of {name} is prolonged after it was lost"));
        }
        let note = write.note.unwrap_or_default();
        if checked.cancelled.get(note).is_some_and(|until| now > *until) {
            checked.violates("I8", format!("acquisition {note} of {name} was cancelled, and goes on"));
        }
    }

    /// Records that a copy of a process sends a write with `nonce` at `now`.
    pub(super) fn sent_by_copy(&self, nonce: &str, now: Duration) {
        self.lock().sent.insert(nonce.to_owned(), now);
    }

    /// Records that the machine of the process with this seed stood still with its clocks.
    pub(super) fn stood_still(&self, process: u64, from: Duration, to: Duration) {
        let mut checked = self.lock();
        checked.history.stood_still += 1;
        checked.stood_still.entry(process).or_default().push((from, to));
    }

    /// Records that a copy of the holder of `token` has renewed its grant.
    pub(super) fn copy_renewed(&self, name: &str, token: u64, grant: &serde_json::Value) {
        let mut checked = self.lock();
        checked.history.copied += 1;
        let copied = format!("{token}/{}", grant.as_str().unwrap_or_default());
        checked.of(name).copied.insert(copied);
    }

    /// Records that the holder of `token` noticed the loss.
    pub(super) fn lost(&self, name: &str, token: u64) {
        let mut checked = self.lock();
        let lock = checked.of(name);
        let grant = lock.grant_of(token);
        let handed = grant.is_some_and(|(_, grant)| grant.given > 1);
        let grant = grant.map_or((token, String::new()), |(top, grant)| (top, grant.id.clone()));
        let news = lock.lost.insert(grant);
        checked.history.losses += usize::from(news);
        checked.history.handed_lost += usize::from(news && handed);
    }

    /// Records that an acquisition was given up. If it has a note that no other acquisition has, nothing with that
    /// note may be sent after `until`.
    pub(super) fn cancelled(&self, note: Option<&str>, until: Duration) {
        let mut checked = self.lock();
        checked.history.cancelled += 1;
        if let Some(note) = note {
            checked.cancelled.insert(note.to_owned(), until);
        }
    }

    /// Records that an operator is about to evict the holder of the grant with `token` in its record. If another client
    /// has the lock, with that token beside it, this evicts that client.
    pub(super) fn evicting(&self, name: &str, token: u64) {
        let mut checked = self.lock();
        let lock = checked.of(name);
        lock.evicted.insert(token);
        lock.taken_until = Duration::ZERO;
    }

    /// Returns when `name` was granted last.
    pub(super) fn granted_last(&self, name: &str) -> Duration {
        self.lock().of(name).granted
    }

    /// Returns whether `process` has the latest grant of `name`, and nobody has ended it.
    pub(super) fn is_latest(&self, name: &str, process: u64, now: Duration) -> bool {
        let mut checked = self.lock();
        let lock = checked.of(name);
        let latest = lock.grants.last_key_value().filter(|(token, grant)| {
            **token > lock.deleted
                && !lock.evicted.contains(*token)
                && process_of(&grant.note) == Some(process)
        });
        latest.is_some() && now >= lock.taken_until
    }

    /// Records that an operator has deleted the record of `name` by hand, or another client's lock.
    pub(super) fn deleted(&self, name: &str) {
        let mut checked = self.lock();
        checked.history.deleted += 1;
        let lock = checked.of(name);
        (lock.deleted, lock.taken_until) = (lock.committed, Duration::ZERO);
    }

    /// Records that another client takes the lock of `name`, in true time until `until`. No check of an earlier grant
    /// may pass after that, and no check of any grant until then.
    pub(super) fn taken(&self, name: &str, until: Duration) {
        let mut checked = self.lock();
        checked.history.taken += 1;
        let lock = checked.of(name);
        lock.taken_until = until;
        lock.believed = lock.believed.max(lock.committed + 1);
    }

    /// Records that the other client has the lock of `name` until `until`, because it has renewed or released it.
    pub(super) fn taken_until(&self, name: &str, until: Duration) {
        self.lock().of(name).taken_until = until;
    }

    /// Records that the resource has accepted a write of `content` with `token`.
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

    /// Records that `sent` requests were sent in a history without faults. `budget` are allowed.
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

    /// Returns how much true time the clocks of the process with `grant` have missed without its knowledge at `now`.
    fn missed(&self, grant: &Granted, now: Duration) -> Duration {
        let pauses = process_of(&grant.note).and_then(|process| self.stood_still.get(&process));
        let pauses = pauses.map_or(&[][..], Vec::as_slice);
        let missed = pauses.iter().map(|(from, to)| {
            // A grant from before the pause ends within one span of the holder's own time.
            if *to + grant.span > now { *to - *from } else { to.saturating_sub(grant.sent.max(*from)) }
        });
        missed.sum()
    }

    pub(super) fn violates(&mut self, invariant: &'static str, what: String) {
        self.violation.get_or_insert((invariant, what));
    }
}

/// Returns how long, in true time, checks of a grant may pass if the grant was committed in the instant in which it
/// was sent and its holder has the slowest clock within the bound. On that clock, this is ttl (1 - rho) - delta. It
/// is computed from the documented numbers, not with the code under test.
fn longest_belief(ttl_ms: u64) -> Duration {
    let ttl = Duration::from_millis(ttl_ms);
    let delta = (ttl / 100).max(Duration::from_millis(50));
    (ttl.mul_f64(0.995) - delta).div_f64(0.995) + Duration::from_millis(1)
}

#[cfg(test)]
mod tests;
