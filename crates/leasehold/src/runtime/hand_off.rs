//! The rules of local hand-off: when and for how long tasks of one process may pass a lock on among themselves before
//! other processes get a turn. This module contains only the rules. The renewer passes the lock on, and the queue
//! determines the next task.
//!
//! The algorithm follows Dice, Marathe and Shavit, *Lock Cohorting* (PPoPP 2012). A cohort passes the global lock on
//! locally for a limited time, and then joins the end of the line of processes. On a store without such a line, a
//! process *backs off* after its *cohort period* until another process has had the lock, or until all waiters have had
//! time to poll once.

use std::time::Duration;

use tokio::runtime::{self, Handle};

use crate::clock::{Deadline, Moment};
use crate::lease::{Capabilities, Claim, Grant, Holder, MAX_TOKENS, PollInterval, State, Status, Token, Ttl};

/// A cohort period lasts at most the ttl divided by this number, so that it needs no renewal.
const PART_OF_TTL: u32 = 4;

/// A backoff lasts this many times the longest poll pause of the waiters. It is longer than the pause because the pause
/// is jittered and the request takes time.
const BACKOFF: f64 = 1.5;

/// The settings of an acquisition that other processes see, and the tokio runtime of its task. A task takes the lock
/// from another task only if both are equal: the lock is renewed in the runtime in which it was passed on, and that
/// runtime may shut down before the next holder's does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    ttl: Ttl,
    lock_delay: Duration,
    holder: Holder,
    runtime: Option<runtime::Id>,
}

impl Terms {
    pub(crate) fn of(claim: &Claim) -> Self {
        let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        Self { ttl: claim.ttl, lock_delay: claim.lock_delay, holder: claim.holder.clone(), runtime }
    }
}

/// The tokens of one grant.
#[derive(Debug)]
pub(crate) struct Tokens {
    first: Token,
    /// The latest token that was issued.
    last: Token,
    top: Token,
}

impl Tokens {
    /// Returns the tokens of `grant` and the first one to issue. This is the lowest token if other tasks follow, and
    /// otherwise the grant's own.
    pub(crate) fn of(grant: &Grant, others_follow: bool) -> (Token, Self) {
        let top = grant.token;
        let lowest = grant.after.filter(|_| others_follow).and_then(|after| {
            Token::new(after.get().saturating_add(1).max(top.get().saturating_sub(MAX_TOKENS - 1)))
        });
        let first = lowest.unwrap_or(top).min(top);
        (first, Self { first, last: first, top })
    }

    /// Returns how many tokens were issued.
    pub(crate) fn used(&self) -> u64 {
        self.last.get() - self.first.get() + 1
    }

    /// Returns whether all tokens were issued.
    pub(crate) fn is_used_up(&self) -> bool {
        self.last >= self.top
    }

    /// Issues the next token, which is higher than all earlier ones.
    pub(crate) fn next(&mut self) -> Option<Token> {
        let next = Token::new(self.last.get() + 1).filter(|next| *next <= self.top)?;
        self.last = next;
        Some(next)
    }
}

/// A process counts as alone after more than this many cohort periods without a sign of another process.
const LATELY: u32 = 2;

/// A process that counts as alone backs off after one in this many cohort periods, because other processes may be
/// waiting nevertheless.
const ALONE: u32 = 8;

/// Tracks how long this process has kept a lock from others, and decides when it backs off.
#[derive(Debug)]
pub(crate) struct CohortPolicy {
    /// When the cohort period began.
    began: Option<Moment>,
    /// The token of the latest grant.
    latest: Option<Token>,
    /// How many cohort periods have ended without a sign of another process.
    alone: u32,
    /// Until when this process backs off.
    backoff_until: Option<Deadline>,
    /// When the lock was released while no task here waited for it.
    left: Option<Moment>,
    /// How many tokens the next grant can use, estimated from the previous one.
    demand: u64,
    /// When this process last requested the lock, and since when it has requested it again and again without reading
    /// the line of waiters.
    last_request: Option<Moment>,
    busy_since: Option<Moment>,
}

impl Default for CohortPolicy {
    fn default() -> Self {
        Self {
            began: None,
            latest: None,
            alone: LATELY,
            backoff_until: None,
            left: None,
            demand: 1,
            last_request: None,
            busy_since: None,
        }
    }
}

impl CohortPolicy {
    /// Records a grant by the store.
    pub(crate) fn granted(&mut self, grant: &Grant, now: Moment) {
        self.latest = Some(grant.token);
        self.began.get_or_insert(now);
    }

    /// Records that another process holds the lock.
    pub(crate) fn refused(&mut self) {
        (self.began, self.backoff_until, self.alone) = (None, None, 0);
    }

    /// Returns whether another process holds the lock, or has held it since this one did, according to `status`. If so,
    /// the backoff ends. Called while this process does not hold the lock.
    pub(crate) fn saw(&mut self, status: &Status) -> bool {
        let others = matches!(status.state, State::Held(_)) || status.token > self.latest;
        if others {
            self.refused();
        }
        others
    }

    /// Returns whether the cohort period leaves time for another task. A cohort period is at most as long as the
    /// longest pause of a waiter.
    pub(crate) fn continues(&self, now: Moment, store: &Capabilities, ttl: Ttl) -> bool {
        let limit = store.poll_interval.max.min(ttl.get() / PART_OF_TTL);
        self.began.is_some_and(|began| now.longest_since(began) < limit)
    }

    /// Returns how many tokens to ask for if `in_queue` tasks are in the queue. If all tokens of a grant were used, the
    /// next grant gets twice as many, because the tasks that had the lock may be in the queue again.
    pub(crate) fn demand(&self, in_queue: u64) -> u64 {
        if in_queue > 1 { in_queue.max(self.demand).min(MAX_TOKENS) } else { 1 }
    }

    /// Records how many tokens were used of a grant that has ended.
    pub(crate) fn used(&mut self, tokens: &Tokens) {
        self.demand = tokens.used() * if tokens.is_used_up() { 2 } else { 1 };
    }

    /// Records that the lock was released at the store. `awaited` says whether more tasks of this process wait for it.
    pub(crate) fn released(&mut self, now: Moment, store: &Capabilities, ttl: Ttl, awaited: bool) {
        if store.fifo() {
            self.began = None;
        } else if !awaited {
            self.left = Some(now);
        } else if !self.continues(now, store, ttl) {
            self.back_off(now, store);
        }
    }

    /// Records that a task of this process is about to ask a store with a line of waiters for the lock. Returns whether
    /// to read the line first. A process that takes the lock again and again reads it once per longest poll pause,
    /// because the lock's record then changes too often for a distant waiter to mark it.
    pub(crate) fn reads_line(&mut self, now: Moment, poll_interval: PollInterval) -> bool {
        let is_busy = |last: &Moment| now.longest_since(*last) < poll_interval.max;
        let busy_since = self.last_request.filter(is_busy).and(self.busy_since).unwrap_or(now);
        let reads_line = now.longest_since(busy_since) >= poll_interval.max;
        (self.last_request, self.busy_since) = (Some(now), Some(if reads_line { now } else { busy_since }));
        reads_line
    }

    /// Records that a task of this process is about to ask for the lock.
    ///
    /// If the process asks for the lock again before another process could poll, its cohort period continues. Otherwise
    /// a process with a single task could keep all other processes out.
    pub(crate) fn requested(&mut self, now: Moment, store: &Capabilities, ttl: Ttl) {
        let Some(left) = self.left.take() else { return };
        if now.longest_since(left) >= store.poll_interval.min {
            self.began = None;
        } else if !self.continues(now, store, ttl) {
            self.back_off(now, store);
        }
    }

    /// Ends the cohort period and gives the waiters of other processes time to poll. If there has been no sign of
    /// another process lately, it does so only after one in [`ALONE`] cohort periods.
    fn back_off(&mut self, now: Moment, store: &Capabilities) {
        self.began = None;
        self.alone = self.alone.saturating_add(1);
        if self.alone <= LATELY || self.alone.is_multiple_of(ALONE) {
            self.backoff_until = Some(Deadline::new(now, store.poll_interval.max.mul_f64(BACKOFF)));
        }
    }

    /// Returns for how long this process still backs off.
    pub(crate) fn backoff(&self, now: Moment) -> Duration {
        self.backoff_until.map_or(Duration::ZERO, |until| until.remaining(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Deadline;
    use crate::lease::{HolderInfo, Id};
    use crate::random::Random;
    use crate::types::LockName;

    const POLL_INTERVAL: PollInterval =
        PollInterval { min: Duration::from_millis(250), max: Duration::from_secs(2) };

    /// Returns the capabilities of a store without a line of waiters.
    fn store() -> Capabilities {
        Capabilities::new("x", POLL_INTERVAL)
    }

    fn at(ms: u64) -> Moment {
        Moment::from_raw(ms * 1_000_000, ms as i64 * 1_000_000)
    }

    fn grant(token: u64, after: Option<u64>) -> Grant {
        Grant {
            name: LockName::new("x").unwrap(),
            token: Token::new(token).unwrap(),
            after: after.and_then(Token::new),
            id: Id::random(&Random::seeded(1)),
            ttl: Ttl::DEFAULT,
            deadline: Deadline::new(at(0), Duration::from_secs(29)),
            at_limit: false,
            size: None,
            memo: None,
        }
    }

    #[test]
    fn a_cohort_period_is_a_fraction_of_the_ttl() {
        for (ttl_ms, limit_ms) in [(30_000, 2_000), (1_000, 250)] {
            let (store, ttl) = (store(), Ttl::from_millis(ttl_ms).unwrap());
            let mut policy = CohortPolicy::default();
            assert!(!policy.continues(at(0), &store, ttl));
            policy.granted(&grant(1, None), at(0));
            // Several short grants in a row form one period.
            policy.granted(&grant(2, Some(1)), at(limit_ms - 1));
            assert!(policy.continues(at(limit_ms - 1), &store, ttl));
            assert!(!policy.continues(at(limit_ms), &store, ttl));
        }
    }

    #[test]
    fn a_release_to_a_store_with_a_line_ends_the_cohort_period() {
        let store = Capabilities { line: Some("here"), ..store() };
        for awaited in [false, true] {
            let mut policy = CohortPolicy::default();
            policy.granted(&grant(1, None), at(0));
            policy.released(at(1_000), &store, Ttl::DEFAULT, awaited);
            assert!(!policy.continues(at(1_000), &store, Ttl::DEFAULT));
            policy.requested(at(5_000), &store, Ttl::DEFAULT);
            assert!(policy.backoff(at(5_000)).is_zero());
        }
    }

    #[test]
    fn a_return_after_others_could_poll_begins_a_period() {
        let mut policy = CohortPolicy::default();
        policy.granted(&grant(1, None), at(0));
        policy.released(at(100), &store(), Ttl::DEFAULT, false);
        policy.requested(at(350), &store(), Ttl::DEFAULT);
        policy.granted(&grant(2, None), at(350));
        assert_eq!([2_349, 2_350].map(|ms| policy.continues(at(ms), &store(), Ttl::DEFAULT)), [true, false]);
    }

    #[test]
    fn a_busy_process_looks_at_the_line_once_per_longest_pause() {
        let mut policy = CohortPolicy::default();
        let reads: Vec<_> =
            (0..=60).map(|n| n * 100).filter(|ms| policy.reads_line(at(*ms), POLL_INTERVAL)).collect();
        assert_eq!(reads, [2_000, 4_000, 6_000]);
        // Waiters have time to mark the record if the process seldom asks for the lock.
        assert!((4..100).all(|n| !policy.reads_line(at(n * 2_000), POLL_INTERVAL)));
    }

    /// Returns the information on a lock that the process `pid` holds.
    fn held(pid: u32) -> HolderInfo {
        HolderInfo { holder: Some(Holder { pid, ..Holder::this_process() }), ..HolderInfo::default() }
    }

    fn tokens(token: u64, after: Option<u64>, others_follow: bool) -> Vec<u64> {
        let (first, mut tokens) = Tokens::of(&grant(token, after), others_follow);
        let mut all = vec![first.get()];
        while let Some(next) = tokens.next() {
            all.push(next.get());
        }
        assert!(tokens.is_used_up());
        assert_eq!(tokens.used(), all.len() as u64);
        all
    }

    #[test]
    fn a_grant_has_the_tokens_above_the_previous_up_to_its_own() {
        assert_eq!(tokens(9, Some(5), true), [6, 7, 8, 9]);
        assert_eq!(tokens(9, Some(8), true), [9]);
        assert_eq!(tokens(9, None, true), [9]);
        assert_eq!(tokens(9, Some(5), false), [9], "alone, it has the token that the store shows");
        let many = tokens(1_000_000, Some(5), true);
        assert_eq!((many.len() as u64, many.last()), (MAX_TOKENS, Some(&1_000_000)));
        // A token that does not rise, which no store returns.
        assert_eq!(tokens(9, Some(9), true), [9]);
        assert_eq!(tokens(0, None, true), [0]);
    }

    /// Returns the backoffs after 20 cohort periods, in milliseconds. If `others`, another process is seen before each
    /// period.
    fn backoffs(policy: &mut CohortPolicy, awaited: bool, others: bool) -> Vec<u64> {
        let (mut now, mut backoffs) = (0, Vec::new());
        for token in 1..=20 {
            if others {
                policy.refused();
            }
            policy.granted(&grant(token, None), at(now));
            policy.released(at(now + 1_999), &store(), Ttl::DEFAULT, awaited);
            assert!(policy.backoff(at(now + 1_999)).is_zero(), "the period goes on");
            policy.granted(&grant(token, None), at(now + 1_999));
            now += 2_000;
            policy.released(at(now), &store(), Ttl::DEFAULT, awaited);
            let backoff = policy.backoff(at(now)).as_millis() as u64;
            backoffs.push(backoff);
            now += backoff + 300;
        }
        backoffs
    }

    #[test]
    fn a_long_cohort_period_is_followed_by_a_backoff() {
        let among_others = backoffs(&mut CohortPolicy::default(), true, true);
        assert!(among_others.iter().all(|backoff| *backoff == 3_000), "{among_others:?}");
        let alone = backoffs(&mut CohortPolicy::default(), true, false);
        assert_eq!(alone.iter().filter(|backoff| **backoff == 3_000).count(), 2, "one in eight: {alone:?}");
        let unawaited = backoffs(&mut CohortPolicy::default(), false, true);
        assert!(unawaited.iter().all(|backoff| *backoff == 0), "no task here waits for it: {unawaited:?}");
    }

    #[test]
    fn a_return_before_others_could_poll_continues_the_period() {
        for (gap_ms, others, least) in [(1, true, 18), (1, false, 5), (250, true, 0)] {
            let (mut policy, mut now, mut count) = (CohortPolicy::default(), 0, 0);
            while now < 100_000 {
                policy.requested(at(now), &store(), Ttl::DEFAULT);
                let backoff = policy.backoff(at(now)).as_millis() as u64;
                count += u64::from(backoff > 0);
                now += backoff;
                if backoff > 0 && others {
                    policy.refused();
                }
                policy.granted(&grant(now + 1, None), at(now));
                policy.released(at(now + 100), &store(), Ttl::DEFAULT, false);
                now += 100 + gap_ms;
            }
            assert!(
                (least..least.max(1) * 3 / 2).contains(&count),
                "{count} backoffs: {gap_ms} ms, {others}"
            );
        }
    }

    #[test]
    fn a_backoff_is_over_when_another_has_or_had_the_lock() {
        let status = |state: State, token: u64| {
            let mut status = Status::new(LockName::new("x").unwrap(), state);
            status.token = Token::new(token);
            status
        };
        for (seen, others) in [
            (status(State::Free, 10), false),
            (status(State::Free, 9), false),
            (status(State::Lapsed(held(7)), 11), true),
            (status(State::Free, 11), true),
            (status(State::Held(held(7)), 10), true),
        ] {
            let mut policy = CohortPolicy::default();
            policy.granted(&grant(10, Some(9)), at(0));
            policy.alone = 0;
            policy.released(at(8_000), &store(), Ttl::DEFAULT, true);
            assert_eq!(policy.backoff(at(8_000)), Duration::from_secs(3));
            assert_eq!(policy.saw(&seen), others, "{seen:?}");
            assert_eq!(policy.backoff(at(8_000)).is_zero(), others, "{seen:?}");
        }
    }

    #[test]
    fn using_up_all_tokens_doubles_those_of_the_next_grant() {
        let mut policy = CohortPolicy::default();
        assert_eq!((policy.demand(1), policy.demand(8)), (1, 8));
        let mut demanded = Vec::new();
        for used in [8, 16, 32, 5, 5, 1_024, 1_024] {
            let (_, mut tokens) = Tokens::of(&grant(2_000, Some(2_000 - policy.demand(8).max(used))), true);
            for _ in 1..used {
                tokens.next().unwrap();
            }
            policy.used(&tokens);
            demanded.push(policy.demand(8));
        }
        assert_eq!(
            demanded,
            [16, 32, 64, 8, 8, 1_024, 1_024],
            "at least one token per task in the queue, and at most MAX_TOKENS"
        );
        assert_eq!(policy.demand(1), 1, "alone, it needs no more than one");
    }
}
