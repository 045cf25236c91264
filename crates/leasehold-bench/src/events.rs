//! The events that a contender reports, and the figures computed from them: rates, hand-offs, fairness, and overlaps of
//! two holders.

use crate::stats::{jain, percentile};

/// One acquisition, in microseconds on the machine's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) process: u32,
    pub(crate) task: u32,
    /// When acquire was called.
    pub(crate) requested: u64,
    /// When it returned.
    pub(crate) granted: u64,
    /// When release was called.
    pub(crate) releasing: u64,
    /// When it returned.
    pub(crate) released: u64,
}

impl Event {
    /// Parses the line `E TASK ASKED GRANTED RELEASING RELEASED`.
    pub(crate) fn read(line: &str, process: u32) -> Option<Self> {
        let mut numbers = line.strip_prefix("E ")?.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let task = u32::try_from(next()?).ok()?;
        let event = Self {
            process,
            task,
            requested: next()?,
            granted: next()?,
            releasing: next()?,
            released: next()?,
        };
        numbers.next().is_none().then_some(event)
    }

    fn who(&self) -> (u32, u32) {
        (self.process, self.task)
    }
}

/// The beginning and the end of the measured part of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Window {
    /// Returns the releases per second in the window.
    pub(crate) fn rate(self, events: &[Event]) -> f64 {
        let inside = events.iter().filter(|event| (self.from..self.until).contains(&event.released)).count();
        inside as f64 * 1e6 / (self.until - self.from).max(1) as f64
    }
}

/// Returns percentiles of the cycles that ended in the window, from the request to the end of the release, in
/// milliseconds.
pub(crate) fn cycles_ms(events: &[Event], window: Window, percents: [f64; 2]) -> [Option<f64>; 2] {
    let inside = events.iter().filter(|event| (window.from..window.until).contains(&event.released));
    let mut times: Vec<f64> = inside.map(|event| ms(event.requested, event.released)).collect();
    percents.map(|percent| percentile(&mut times, percent))
}

/// Counts how often the lock had two holders at the same time: a grant came before an earlier holder began its release.
pub(crate) fn overlaps(events: &[Event]) -> u64 {
    let mut held: Vec<(u64, u64)> = events.iter().map(|event| (event.granted, event.releasing)).collect();
    held.sort_unstable();
    let (mut until, mut count) = (0, 0);
    for (granted, releasing) in held {
        count += u64::from(granted < until);
        until = until.max(releasing);
    }
    count
}

/// Returns the times from the beginning of each release to the next grant, if that is in another process, in
/// milliseconds.
pub(crate) fn hand_offs_ms(events: &[Event], window: Window) -> Vec<f64> {
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_unstable_by_key(|event| event.granted);
    let pairs = sorted.windows(2).filter(|pair| pair[0].process != pair[1].process);
    let inside = pairs.filter(|pair| (window.from..window.until).contains(&pair[1].granted));
    // An overlap counts as zero here. `overlaps` counts it.
    inside.map(|pair| ms(pair[0].releasing, pair[1].granted)).collect()
}

/// Counts the grants that overtook another process, which had requested the lock at least `earlier_us` earlier and was
/// granted it later.
pub(crate) fn overtaken(events: &[Event], earlier_us: u64) -> u64 {
    let overtakes = |one: &Event, other: &Event| {
        other.process != one.process
            && other.requested + earlier_us <= one.requested
            && other.granted > one.granted
    };
    events.iter().filter(|one| events.iter().any(|other| overtakes(one, other))).count() as u64
}

fn ms(from: u64, until: u64) -> f64 {
    until.saturating_sub(from) as f64 / 1e3
}

/// How evenly the lock was shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fairness {
    /// Jain's fairness index over all tasks, and over all processes.
    pub(crate) tasks: Option<f64>,
    pub(crate) processes: Option<f64>,
    /// The number of tasks that were never granted the lock.
    pub(crate) starved: u64,
    /// The longest wait of a task, including waits that did not end.
    pub(crate) longest_wait_s: f64,
}

impl Fairness {
    /// Computes the fairness of a run of `processes` with `tasks` each, from `begin` to `end`.
    pub(crate) fn of(events: &[Event], processes: u32, tasks: u32, begin: u64, end: u64) -> Self {
        let place = |(process, task): (u32, u32)| (process * tasks + task) as usize;
        let count = (processes * tasks) as usize;
        let (mut shares, mut waits_since) = (vec![0_u64; count], vec![begin; count]);
        let mut longest = 0;
        for event in events {
            let Some(share) = shares.get_mut(place(event.who())) else { continue };
            *share += 1;
            longest = longest.max(event.granted.saturating_sub(event.requested));
            let since = &mut waits_since[place(event.who())];
            *since = (*since).max(event.released);
        }
        let still = waits_since.iter().map(|since| end.saturating_sub(*since)).max().unwrap_or(0);
        let of_processes: Vec<u64> =
            shares.chunks((tasks as usize).max(1)).map(|shares| shares.iter().sum()).collect();
        Self {
            tasks: jain(&shares),
            processes: jain(&of_processes),
            starved: shares.iter().filter(|share| **share == 0).count() as u64,
            longest_wait_s: longest.max(still) as f64 / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(process: u32, task: u32, times: [u64; 4]) -> Event {
        let [requested, granted, releasing, released] = times;
        Event { process, task, requested, granted, releasing, released }
    }

    #[test]
    fn lines_are_read_and_others_are_refused() {
        assert_eq!(Event::read("E 3 10 20 30 40", 2), Some(event(2, 3, [10, 20, 30, 40])));
        for wrong in
            ["", "done", "E", "E 1 2 3 4", "E 1 2 3 4 5 6", "E a 2 3 4 5", "E -1 2 3 4 5", "F 1 2 3 4 5"]
        {
            assert_eq!(Event::read(wrong, 0), None, "{wrong:?}");
        }
    }

    #[test]
    fn concurrent_holds_overlap_and_adjacent_ones_do_not() {
        let one_after_the_other = [event(0, 0, [0, 10, 20, 25]), event(1, 0, [0, 20, 30, 35])];
        assert_eq!(overlaps(&one_after_the_other), 0);
        assert_eq!(overlaps(&[event(1, 0, [0, 19, 30, 35]), event(0, 0, [0, 10, 20, 25])]), 1);
        // Both short holds lie within the long one, and the second short hold does not directly follow the long one.
        let within =
            [event(0, 0, [0, 10, 100, 101]), event(1, 0, [0, 20, 30, 31]), event(2, 0, [0, 40, 50, 51])];
        assert_eq!(overlaps(&within), 2);
        assert_eq!(overlaps(&[]), 0);
    }

    #[test]
    fn hand_offs_are_those_between_processes() {
        let events = [
            event(0, 0, [0, 1_000, 2_000, 2_100]),
            event(0, 1, [0, 2_200, 3_000, 3_100]), // of the same process
            event(1, 0, [0, 3_500, 4_000, 4_100]),
            event(0, 0, [2_100, 9_000, 9_100, 9_200]), // too late
        ];
        assert_eq!(hand_offs_ms(&events, Window { from: 0, until: 5_000 }), [0.5]);
    }

    #[test]
    fn a_grant_before_those_who_asked_earlier_is_out_of_order() {
        let in_order = [event(0, 0, [0, 50, 60, 61]), event(1, 0, [40, 70, 80, 81])];
        assert_eq!(overtaken(&in_order, 10), 0);
        let last = event(2, 0, [20, 65, 66, 67]);
        assert_eq!(overtaken(&[in_order[0], in_order[1], last], 10), 0);
        assert_eq!(overtaken(&[event(0, 0, [0, 90, 95, 96]), in_order[1], last], 10), 2);
        assert_eq!(overtaken(&[event(0, 0, [0, 90, 95, 96]), in_order[1], last], 30), 1);
    }

    #[test]
    fn rates_count_what_ended_within_the_window() {
        let events: Vec<_> = (0..10).map(|n| event(0, 0, [n * 100, n * 100, n * 100, n * 100])).collect();
        let window = Window { from: 200, until: 700 };
        assert_eq!(window.rate(&events), 10_000.0);
        assert_eq!(cycles_ms(&events, window, [50.0, 99.0]), [Some(0.0), Some(0.0)]);
    }

    #[test]
    fn a_wait_that_has_not_ended_counts() {
        let events =
            [event(0, 0, [0, 1_000_000, 1_500_000, 2_000_000]), event(1, 0, [0, 3_000_000, 0, 3_100_000])];
        let fairness = Fairness::of(&events, 2, 2, 0, 10_000_000);
        assert_eq!(fairness.starved, 2);
        assert_eq!(fairness.longest_wait_s, 10.0, "of those that were granted nothing");
        assert_eq!((fairness.tasks, fairness.processes), (Some(0.5), Some(1.0)));
        let fairness = Fairness::of(&events, 2, 1, 0, 4_000_000);
        assert_eq!((fairness.starved, fairness.longest_wait_s), (0, 3.0));
    }
}
