//! leasehold's performance targets, and whether they are reached.

use crate::metrics::{Better, CPU, HAND_OFF_P50, MEMORY, Metric, OPS, REQUESTS, RUN_P50, STARVED, STREAMS};
use crate::results::{Block, LOCKS, Row};
use crate::roster::Role;
use crate::scenario::{Scenario, USUAL_LOCKS};
use crate::stats::Spread;

use super::table::number;

/// One target on one store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) place: String,
    pub(crate) target: String,
    pub(crate) measured: String,
    pub(crate) reached: bool,
}

/// Returns how many times better `ours` is than `other`, round by round. Above 1, `ours` is better.
pub(crate) fn times_better(ours: &Row, other: &Row, metric: &Metric) -> Option<Spread> {
    match metric.better {
        Better::More => ours.times(other, metric.name),
        Better::Less => other.times(ours, metric.name),
    }
}

/// Judges the targets of `scenario` by the medians in `blocks`.
pub(crate) fn judge(scenario: Scenario, blocks: &[&Block]) -> Vec<Verdict> {
    blocks.iter().flat_map(|block| judge_one(scenario, block)).collect()
}

fn judge_one(scenario: Scenario, block: &Block) -> Vec<Verdict> {
    let Some(ours) = block.ours() else { return Vec::new() };
    let store = block.store.as_str();
    let verdict = |target: &str, measured: Option<(f64, bool)>, unit: &str| {
        measured.map(|(value, reached)| Verdict {
            place: block.place(),
            target: target.to_owned(),
            measured: format!("{}{unit}", number(value)),
            reached,
        })
    };
    let value = |metric: &Metric| ours.spread(metric.name).map(|spread| spread.median);
    // Compare with the best contender of that role.
    let against = |role: Role, metric: &Metric| {
        let others = block.rows.iter().filter(|row| row.is(role));
        let times = others.filter_map(|row| Some(times_better(ours, row, metric)?.median));
        times.min_by(f64::total_cmp)
    };
    let at_most = |metric: &Metric, most: f64| value(metric).map(|value| (value, value <= most));
    let times =
        |role, metric: &Metric, least: f64| against(role, metric).map(|times| (times, times >= least));
    let none_starves = verdict("no task starves", at_most(&STARVED, 0.0), " starved");
    match scenario {
        Scenario::Uncontended => {
            // No lock can be faster than the conditional calls. With a server some milliseconds away, as most are, a
            // user waits for requests alone. On loopback, the work of the client is a part of the time.
            let (least, target) = match block.rtt_ms {
                0.0 => (0.9, "0.9 of the conditional calls' locks/s"),
                _ => (0.95, "0.95 of the conditional calls' locks/s"),
            };
            // The limit allows for rare renewals.
            [
                verdict("2 requests for each lock", at_most(&REQUESTS, 2.05), ""),
                verdict(target, times(Role::Conditional, &OPS, least), ""),
                None,
            ]
        }
        Scenario::Tasks if store == "s3" => [
            verdict(
                "a 50th of the plain loop's requests",
                times(Role::Peer, &REQUESTS, 50.0),
                " times fewer",
            ),
            verdict("20 times the plain loop's locks", times(Role::Peer, &OPS, 20.0), " times"),
            none_starves,
        ],
        Scenario::Tasks => [none_starves, None, None],
        Scenario::Processes => [
            verdict("a 5th of any peer's requests", times(Role::Peer, &REQUESTS, 5.0), " times fewer"),
            None,
            None,
        ],
        Scenario::HandOff if store == "etcd" => {
            let of_go = block.rows.iter().find(|row| row.contender == "etcd-go");
            let slower = of_go.and_then(|go| Some(ours.times(go, HAND_OFF_P50.name)?.median));
            [
                verdict(
                    "within 10 % of the Go client's hand-off",
                    slower.map(|ratio| (ratio, ratio <= 1.1)),
                    " of it",
                ),
                None,
                None,
            ]
        }
        Scenario::Many if store == "mem" && block.setting(LOCKS) <= USUAL_LOCKS => [
            verdict("less than 20 % of a core", at_most(&CPU, 20.0), " %"),
            verdict("less than 100 MB", at_most(&MEMORY, 100.0), " MB"),
            None,
        ],
        Scenario::Many if store == "etcd" => {
            [verdict("one stream of keep-alives", at_most(&STREAMS, 1.0), ""), None, None]
        }
        Scenario::Run if store == "sqlite" => {
            let flock = block.rows.iter().find(|row| row.contender == "flock");
            let slower = |ours: &Row| {
                let ratio = ours.times(flock?, RUN_P50.name)?.median;
                Some((ratio, ratio <= 3.0))
            };
            let by_default = block.rows.iter().find(|row| row.is(Role::OursByDefault)).and_then(slower);
            [
                verdict("at most 3 times flock, with the clients of all stores", slower(ours), " times"),
                verdict("at most 3 times flock, as it is built by default", by_default, " times"),
                None,
            ]
        }
        _ => [None, None, None],
    }
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{block, row};

    fn add(row: &mut Row, metric: &Metric, value: f64) {
        row.samples.iter_mut().flatten().for_each(|sample| sample.record(metric.name, Some(value)));
    }

    fn reached(block: &Block) -> Vec<bool> {
        let scenario = Scenario::named(&block.scenario).unwrap();
        judge(scenario, &[block]).iter().map(|verdict| verdict.reached).collect()
    }

    #[test]
    fn uncontended_is_compared_with_the_conditional_calls() {
        let case = |ours: f64, rtt_ms: f64| {
            let mut mine = row("leasehold", Role::Ours, OPS.name, &[ours]);
            add(&mut mine, &REQUESTS, 2.0);
            let rows = vec![
                mine,
                row("p", Role::Peer, OPS.name, &[1_000.0]),
                row("c", Role::Conditional, OPS.name, &[100.0]),
                // Calls without conditions are not a lock, however fast they are.
                row("l", Role::Limit, OPS.name, &[1_000.0]),
            ];
            reached(&block(Scenario::Uncontended, "s3", rtt_ms, rows))
        };
        assert_eq!(case(91.0, 0.0), [true, true]);
        assert_eq!(case(89.0, 0.0), [true, false]);
        assert_eq!(case(91.0, 5.0), [true, false]);
        assert_eq!(case(96.0, 5.0), [true, true]);
    }

    #[test]
    fn the_best_of_the_peers_counts() {
        let mut mine = row("leasehold", Role::Ours, REQUESTS.name, &[1.0]);
        add(&mut mine, &STARVED, 1.0);
        let rows = vec![
            mine,
            row("slow", Role::Peer, REQUESTS.name, &[100.0]),
            row("fast", Role::Peer, REQUESTS.name, &[4.0]),
        ];
        assert_eq!(reached(&block(Scenario::Processes, "s3", 0.0, rows.clone())), [false]);
        assert_eq!(reached(&block(Scenario::Tasks, "s3", 0.0, rows)), [false, false]);
    }

    #[test]
    fn targets_without_measurements_are_not_judged() {
        let rows = vec![row("leasehold", Role::Ours, "other", &[1.0])];
        for scenario in Scenario::ALL {
            assert_eq!(reached(&block(*scenario, "etcd", 0.0, rows.clone())), [] as [bool; 0]);
        }
    }

    #[test]
    fn run_is_judged_for_the_default_build_too() {
        let rows = vec![
            row("all stores", Role::Ours, RUN_P50.name, &[2.0]),
            row("one store", Role::OursByDefault, RUN_P50.name, &[4.0]),
            row("flock", Role::Peer, RUN_P50.name, &[1.0]),
            row("no lock", Role::Limit, RUN_P50.name, &[0.5]),
        ];
        assert_eq!(reached(&block(Scenario::Run, "sqlite", 0.0, rows)), [true, false]);
    }

    #[test]
    fn lower_is_better_for_durations() {
        let (ours, go) = (
            row("leasehold", Role::Ours, HAND_OFF_P50.name, &[1.05]),
            row("etcd-go", Role::Peer, HAND_OFF_P50.name, &[1.0]),
        );
        assert!(times_better(&ours, &go, &HAND_OFF_P50).unwrap().median < 1.0);
        assert_eq!(reached(&block(Scenario::HandOff, "etcd", 0.0, vec![ours, go])), [true]);
    }
}
