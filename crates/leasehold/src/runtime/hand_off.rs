//! The rules of local hand-off: when tasks of one process may pass a lock on among themselves, and for how long, before
//! other processes get a turn. Rules only: the renewer passes the lock on, and the queue determines the next task.
//!
//! After Dice, Marathe and Shavit, *Lock Cohorting* (PPoPP 2012): a cohort passes the global lock on locally, a limited
//! number of times. Between processes there is only polling, and no queue at whose end the cohort could line up. So
//! after its *cohort period* a process *backs off* until another process has had the lock, or all waiters have had time
//! to poll once.

use std::time::Duration;

use crate::clock::{Deadline, Moment};
use crate::lease::{Claim, Grant, Holder, HolderInfo, PollInterval, State, Status, Token, Ttl};

/// The largest number of tokens of one grant.
pub(crate) const MOST_TOKENS: u64 = 1_024;

/// A cohort period lasts at most the ttl divided by this, so that it needs no renewal.
const PART_OF_TTL: u32 = 4;

/// The more other processes there are, the shorter is a cohort period. But it lasts at least this many of the shortest
/// poll pauses, to make up for the time in which no process has the lock.
const SHORTEST: f64 = 2.5;

/// While no other process has been seen, one cohort period in this many is followed by a backoff, because other
/// processes may be waiting nevertheless.
const ALONE: u32 = 8;

/// The number of other processes that is expected until more is known, so that the first cohort periods of a process
/// are short. The first backoffs are short too: `FIRST_BACKOFF` times the shortest poll pause, because waiters behind a
/// short hold poll soon.
const EXPECTED: u32 = 3;
const FIRST_BACKOFF: u32 = 3;

/// A backoff lasts this many times the longest poll pause of the waiters, because that pause is jittered and the
/// request takes time.
const BACKOFF: f64 = 1.5;

/// The settings of an acquisition that other processes see. A task takes the lock from another task only if both have
/// the same settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    ttl: Ttl,
    lock_delay: Duration,
    holder: Holder,
}

impl Terms {
    pub(crate) fn of(claim: &Claim) -> Self {
        Self { ttl: claim.ttl, lock_delay: claim.lock_delay, holder: claim.holder.clone() }
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
    /// The tokens of `grant`, and the first one to issue: the lowest if other tasks follow, otherwise the grant's own.
    pub(crate) fn of(grant: &Grant, others_follow: bool) -> (Token, Self) {
        let top = grant.token;
        let lowest = grant.after.filter(|_| others_follow).and_then(|after| {
            Token::new(after.get().saturating_add(1).max(top.get().saturating_sub(MOST_TOKENS - 1)))
        });
        let first = lowest.unwrap_or(top).min(top);
        (first, Self { first, last: first, top })
    }

    /// How many tokens were issued.
    pub(crate) fn used(&self) -> u64 {
        self.last.get() - self.first.get() + 1
    }

    /// Whether all tokens were issued.
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

/// After this many cohort periods without a sign of another process, none is assumed to exist.
const LATELY: u32 = 2;

/// How long this process has kept a lock from others, and when it backs off.
#[derive(Debug)]
pub(crate) struct CohortPolicy {
    began: Option<Moment>,
    /// The token of the latest grant.
    latest: Option<Token>,
    /// Other processes that were seen to hold the lock since this one held it, up to [`MOST_OTHERS`].
    others: Vec<Holder>,
    /// How many other processes took turns with this one when the cohort period began. If there were none, half as many
    /// are expected as before.
    beside: u32,
    /// Whether another process was ever seen.
    met: bool,
    /// How many cohort periods have ended since another process was last seen.
    alone: u32,
    /// Until when this process backs off.
    backoff_until: Option<Deadline>,
    /// When the lock was last granted, and when it was released while no task here waited for it.
    granted: Option<Moment>,
    left: Option<Moment>,
    /// How many tokens the next grant can use, judging by the previous one.
    demand: u64,
    /// When this process asked for the lock last, and since when it has done so again and again without a look at the line
    /// of waiters.
    asked: Option<Moment>,
    busy_since: Option<Moment>,
}

/// More other processes than this do not shorten a cohort period any further.
const MOST_OTHERS: usize = 16;

impl Default for CohortPolicy {
    fn default() -> Self {
        Self {
            began: None,
            latest: None,
            others: Vec::new(),
            beside: 2 * EXPECTED,
            met: false,
            alone: 0,
            backoff_until: None,
            granted: None,
            left: None,
            demand: 1,
            asked: None,
            busy_since: None,
        }
    }
}

impl CohortPolicy {
    /// Records a grant of the store.
    pub(crate) fn granted(&mut self, grant: &Grant, now: Moment) {
        // Another process was granted the lock in between.
        let missed = self.latest.zip(grant.after).is_some_and(|(latest, after)| latest != after);
        if missed {
            self.met_another();
        }
        self.latest = Some(grant.token);
        self.granted = Some(now);
        if self.began.is_none() {
            self.began = Some(now);
            let seen = (self.others.len() as u32).max(u32::from(missed));
            self.beside = if seen > 0 { seen } else { self.beside / 2 };
            self.others.clear();
        }
    }

    /// Records that another process holds the lock.
    pub(crate) fn refused(&mut self, held: &HolderInfo) {
        self.let_in();
        if let Some(holder) = &held.holder
            && self.others.len() < MOST_OTHERS
            && !self.others.iter().any(|other| other.is_same_process(holder))
        {
            self.others.push(holder.clone());
        }
    }

    /// Whether another process holds the lock, or has held it since this one did, according to `status`. In that case
    /// the backoff ends. Called while this process does not hold the lock.
    pub(crate) fn saw(&mut self, status: &Status) -> bool {
        let others = matches!(status.state, State::Held(_)) || status.token > self.latest;
        if others {
            self.let_in();
        }
        others
    }

    fn let_in(&mut self) {
        self.met_another();
        self.began = None;
        self.backoff_until = None;
    }

    fn met_another(&mut self) {
        (self.met, self.alone) = (true, 0);
    }

    /// Whether the cohort period leaves time for another task.
    pub(crate) fn goes_on(&self, now: Moment, poll_interval: PollInterval, ttl: Ttl) -> bool {
        let share = (poll_interval.max / (1 + self.beside))
            .max(poll_interval.min.mul_f64(SHORTEST))
            .min(poll_interval.max);
        let limit = share.min(ttl.get() / PART_OF_TTL);
        self.began.is_some_and(|began| now.longest_since(began) < limit)
    }

    /// How many tokens to ask for if `in_line` tasks are in the queue. If all tokens of a grant were used, the next
    /// grant gets twice as many, because the tasks that had the lock are in the queue again.
    pub(crate) fn demand(&self, in_line: u64) -> u64 {
        if in_line > 1 { in_line.max(self.demand).min(MOST_TOKENS) } else { 1 }
    }

    /// Records how many tokens were used of a grant that has ended.
    pub(crate) fn used(&mut self, tokens: &Tokens) {
        self.demand = tokens.used() * if tokens.is_used_up() { 2 } else { 1 };
    }

    /// Records that the lock was released at the store. `awaited` says whether more tasks of this process wait for it.
    pub(crate) fn released(&mut self, now: Moment, poll_interval: PollInterval, ttl: Ttl, awaited: bool) {
        if !awaited {
            self.left = Some(now);
        } else if !self.goes_on(now, poll_interval, ttl) {
            let seldom = poll_interval.max.mul_f64(BACKOFF);
            self.leave(now, poll_interval, Some(FIRST_BACKOFF * poll_interval.min), seldom);
        }
    }

    /// The same for a store that has a queue across processes. There is no backoff there, because the queue serves all
    /// processes.
    pub(crate) fn released_in_line(&mut self) {
        self.began = None;
    }

    /// Records that a task of this process is about to ask a store with a line of waiters for the lock. Returns whether to
    /// look at the line first: once in each longest poll pause, if the process takes the lock again and again. Then the
    /// lock's record changes too often for a distant waiter to mark it.
    pub(crate) fn looks(&mut self, now: Moment, poll_interval: PollInterval) -> bool {
        let is_busy = |asked: &Moment| now.longest_since(*asked) < poll_interval.max;
        let busy_since = self.asked.filter(is_busy).and(self.busy_since).unwrap_or(now);
        let looks = now.longest_since(busy_since) >= poll_interval.max;
        (self.asked, self.busy_since) = (Some(now), Some(if looks { now } else { busy_since }));
        looks
    }

    /// Records that a task of this process is about to ask for the lock.
    ///
    /// A process that released the lock and asks for it again before another process could poll has not been away.
    /// Otherwise a process with a single task could keep all others out for as long as it continues.
    pub(crate) fn wanted(&mut self, now: Moment, poll_interval: PollInterval, ttl: Ttl) {
        let Some(left) = self.left.take() else { return };
        if now.longest_since(left) >= poll_interval.min {
            self.began = None;
        } else if !self.goes_on(now, poll_interval, ttl) {
            // A waiter polls again after about half the length of the hold.
            let hold = self.granted.map_or(Duration::ZERO, |granted| left.longest_since(granted));
            let seldom =
                (FIRST_BACKOFF * poll_interval.min).max(hold).min(poll_interval.max.mul_f64(BACKOFF));
            self.leave(now, poll_interval, None, seldom);
        }
    }

    /// Ends a cohort period and determines the backoff. If other processes were seen lately, the backoff gives them
    /// time to poll. If none was ever seen, it is `first` after the first cohort periods. In all other cases it is
    /// `seldom` after one cohort period in [`ALONE`], and there is no backoff after the others.
    fn leave(&mut self, now: Moment, poll_interval: PollInterval, first: Option<Duration>, seldom: Duration) {
        self.began = None;
        self.alone = self.alone.saturating_add(1);
        let backoff = match self.alone {
            ..=LATELY if self.met => Some(poll_interval.max.mul_f64(BACKOFF)),
            ..=LATELY => first,
            alone => alone.is_multiple_of(ALONE).then_some(seldom),
        };
        self.backoff_until = backoff.map(|backoff| Deadline::new(now, backoff));
    }

    /// For how long this process still backs off.
    pub(crate) fn backoff(&self, now: Moment) -> Duration {
        self.backoff_until.map_or(Duration::ZERO, |until| until.remaining(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Deadline;
    use crate::lease::Id;
    use crate::random::Random;
    use crate::types::LockName;

    const POLL_INTERVAL: PollInterval =
        PollInterval { min: Duration::from_millis(250), max: Duration::from_secs(2) };

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
            memo: None,
        }
    }

    #[test]
    fn a_release_to_a_store_with_a_queue_ends_the_cohort_period() {
        let mut policy = CohortPolicy::default();
        policy.granted(&grant(1, None), at(0));
        assert!(policy.goes_on(at(1), POLL_INTERVAL, Ttl::DEFAULT));
        policy.released_in_line();
        assert!(!policy.goes_on(at(1), POLL_INTERVAL, Ttl::DEFAULT));
    }

    #[test]
    fn a_busy_process_looks_at_the_line_once_per_longest_pause() {
        let mut policy = CohortPolicy::default();
        let looks: Vec<_> =
            (0..=60).map(|n| n * 100).filter(|ms| policy.looks(at(*ms), POLL_INTERVAL)).collect();
        assert_eq!(looks, [2_000, 4_000, 6_000]);
        // Waiters have time to mark the record of a process that asks seldom.
        assert!((4..100).all(|n| !policy.looks(at(n * 2_000), POLL_INTERVAL)));
    }

    /// A lock that the process with this id holds.
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
        assert_eq!((many.len() as u64, many.last()), (MOST_TOKENS, Some(&1_000_000)));
        // A token that goes back, which no store returns.
        assert_eq!(tokens(9, Some(9), true), [9]);
        assert_eq!(tokens(0, None, true), [0]);
    }

    /// Runs `count` cohort periods, each as long as possible. Returns the backoff after each, in milliseconds.
    fn backoffs(policy: &mut CohortPolicy, count: usize, awaited: bool, others_between: bool) -> Vec<u64> {
        let (mut now, mut token) = (0, 10);
        let mut backoffs = Vec::new();
        for _ in 0..count {
            let after = if others_between { token + 3 } else { token };
            token += 10;
            policy.granted(&grant(token, Some(after)), at(now));
            while policy.goes_on(at(now), POLL_INTERVAL, Ttl::DEFAULT) {
                now += 100;
            }
            policy.released(at(now), POLL_INTERVAL, Ttl::DEFAULT, awaited);
            let backoff = policy.backoff(at(now)).as_millis() as u64;
            backoffs.push(backoff);
            now += backoff + 10;
        }
        backoffs
    }

    #[test]
    fn a_long_cohort_period_is_followed_by_a_backoff() {
        let alone = backoffs(&mut CohortPolicy::default(), 20, true, false);
        assert_eq!(alone[..2], [750, 750], "short ones at first");
        assert_eq!(alone.iter().filter(|backoff| **backoff == 3_000).count(), 2, "one in eight: {alone:?}");
        assert_eq!(alone.iter().filter(|backoff| **backoff > 0).count(), 4);
        let among_others = backoffs(&mut CohortPolicy::default(), 20, true, true);
        assert!(among_others[1..].iter().all(|backoff| *backoff == 3_000), "{among_others:?}");
        let unawaited = backoffs(&mut CohortPolicy::default(), 20, false, true);
        assert!(unawaited.iter().all(|backoff| *backoff == 0), "no task here waits for it: {unawaited:?}");
    }

    /// The backoffs of a task that holds the lock for 100 ms and takes it again `gap_ms` after each release, for 100
    /// cohort periods.
    fn backoffs_of_one_task(policy: &mut CohortPolicy, gap_ms: u64, others_between: bool) -> Vec<u64> {
        let (mut now, mut token) = (0, 10);
        let mut backoffs = Vec::new();
        while now < 200_000 {
            policy.wanted(at(now), POLL_INTERVAL, Ttl::DEFAULT);
            let backoff = policy.backoff(at(now)).as_millis() as u64;
            backoffs.extend(Some(backoff).filter(|backoff| *backoff > 0));
            now += backoff;
            let after = if others_between { token + 3 } else { token };
            token += 10;
            policy.granted(&grant(token, Some(after)), at(now));
            policy.released(at(now + 100), POLL_INTERVAL, Ttl::DEFAULT, false);
            now += 100 + gap_ms;
        }
        backoffs
    }

    #[test]
    fn a_return_before_others_could_poll_continues_the_period() {
        let alone = backoffs_of_one_task(&mut CohortPolicy::default(), 1, false);
        // Of 100 cohort periods, one in eight is followed by a backoff that lets a waiter behind a short hold poll.
        assert!((11..=13).contains(&alone.len()) && alone.iter().all(|backoff| *backoff == 750), "{alone:?}");
        let among_others = backoffs_of_one_task(&mut CohortPolicy::default(), 1, true);
        assert!(among_others.len() > 30 && among_others.iter().all(|backoff| *backoff == 3_000));
        assert!(
            backoffs_of_one_task(&mut CohortPolicy::default(), 250, true).is_empty(),
            "others could look"
        );
    }

    #[test]
    fn beside_others_a_cohort_period_is_shorter_by_their_number() {
        // At first, three other processes are expected, of which there is no sign later.
        for (others, length_ms) in [(0, 1_000), (1, 1_000), (3, 625), (100, 625)] {
            let mut policy = CohortPolicy::default();
            policy.granted(&grant(10, Some(9)), at(0));
            policy.released(at(2_000), POLL_INTERVAL, Ttl::DEFAULT, true);
            // A process that is seen twice counts once.
            for pid in (0..others).chain(0..others) {
                policy.refused(&held(pid));
            }
            policy.granted(&grant(12, Some(10)), at(5_000));
            assert!(policy.goes_on(at(5_000 + length_ms - 1), POLL_INTERVAL, Ttl::DEFAULT), "{others}");
            assert!(!policy.goes_on(at(5_000 + length_ms), POLL_INTERVAL, Ttl::DEFAULT), "{others}");
            if others == 0 {
                policy.released(at(7_000), POLL_INTERVAL, Ttl::DEFAULT, true);
                policy.granted(&grant(14, Some(12)), at(10_000));
                assert!(policy.goes_on(at(11_999), POLL_INTERVAL, Ttl::DEFAULT));
            }
        }
        // No other process was seen, but the record shows that one was granted the lock.
        let mut policy = CohortPolicy::default();
        policy.granted(&grant(10, Some(9)), at(0));
        policy.released(at(2_000), POLL_INTERVAL, Ttl::DEFAULT, true);
        policy.granted(&grant(20, Some(15)), at(5_000));
        assert!(!policy.goes_on(at(6_000), POLL_INTERVAL, Ttl::DEFAULT));
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
            policy.refused(&held(7));
            policy.granted(&grant(10, Some(9)), at(0));
            policy.released(at(2_000), POLL_INTERVAL, Ttl::DEFAULT, true);
            assert_eq!(policy.backoff(at(2_000)), Duration::from_secs(3));
            assert_eq!(policy.saw(&seen), others, "{seen:?}");
            assert_eq!(policy.backoff(at(2_000)).is_zero(), others, "{seen:?}");
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
            "at least for who is in line, and never for more than fit"
        );
        assert_eq!(policy.demand(1), 1, "alone, it needs no more than one");
    }

    #[test]
    fn short_grants_in_a_row_are_one_cohort_period() {
        let mut policy = CohortPolicy::default();
        for ms in [0, 200, 400, 600] {
            assert!(policy.backoff(at(ms)).is_zero());
            policy.granted(&grant(10 + ms, Some(9)), at(ms));
            assert!(policy.goes_on(at(ms + 20), POLL_INTERVAL, Ttl::DEFAULT));
            policy.released(at(ms + 150), POLL_INTERVAL, Ttl::DEFAULT, true);
        }
        assert!(!policy.backoff(at(750)).is_zero());
        // With a short ttl, a cohort period is a fraction of the ttl.
        policy.granted(&grant(5_000, Some(4_000)), at(10_000));
        assert!(!policy.goes_on(at(10_300), POLL_INTERVAL, Ttl::from_millis(1_000).unwrap()));
        policy.refused(&held(7));
        assert!(!policy.goes_on(at(10_000), POLL_INTERVAL, Ttl::DEFAULT));
    }
}
