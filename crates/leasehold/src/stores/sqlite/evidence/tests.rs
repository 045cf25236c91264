//! Tests of the evidence at its limits, where one nanosecond decides. `sqlite/tests` has tests of the store itself.

use super::super::machine::Process;
use super::*;
use crate::golden::golden_record;

fn machine() -> Machine {
    let me = Process { namespace: "pid:[1]".into(), pid: 4121, start: 77, others: Vec::new() };
    Machine { boot: "boot 1".into(), me: Some(me) }
}

fn written(record: Record, machine: &Machine, now: Moment) -> Row {
    let now_us = Some(now.wall_us());
    Row::written(Record { granted_at_us: now_us, renewed_at_us: now_us, ..record }, machine, now)
}

fn held(lock_delay_ms: u64, machine: &Machine, now: Moment) -> Row {
    written(Record { lock_delay_ms, ..golden_record("1-held.json") }, machine, now)
}

fn standing(row: &Row, machine: &Machine, now: Moment) -> Standing {
    Evidence::of(Some(row), machine, now).standing(&row.record)
}

/// Returns the row of a holder whose process has ended.
#[cfg(target_os = "linux")]
fn of_the_dead(lock_delay_ms: u64, now: Moment) -> (Row, Machine) {
    let machine = Machine::this().unwrap();
    let me = machine.me.clone().unwrap();
    // This process started later, so the earlier process with its id has ended.
    let process = Some(Process { start: me.start.wrapping_sub(1), ..me });
    (Row { process, ..held(lock_delay_ms, &machine, now) }, machine)
}

/// The moment at which the lease of [`held`] ends if it was written at 0.
#[cfg(target_os = "linux")]
fn lapse() -> u64 {
    nanos(golden_record("1-held.json").ttl().contender_span())
}

#[cfg(target_os = "linux")]
#[test]
fn a_death_need_not_be_written_without_a_delay() {
    let (row, machine) = of_the_dead(0, Moment::from_raw(0, 0));
    assert_eq!(standing(&row, &machine, Moment::from_raw(1, 0)), Standing::Free);
    let (row, machine) = of_the_dead(1, Moment::from_raw(0, 0));
    assert_eq!(standing(&row, &machine, Moment::from_raw(1, 0)), Standing::JustDied);
}

#[cfg(target_os = "linux")]
#[test]
fn a_death_need_not_be_written_once_the_lease_has_lapsed() {
    let (row, machine) = of_the_dead(5_000, Moment::from_raw(0, 0));
    let lapsed = Moment::from_raw(lapse(), 0);
    assert_eq!(standing(&row, &machine, lapsed), Standing::Taken(Duration::from_secs(5)));
    let before = Moment::from_raw(lapse() - 1, 0);
    assert_eq!(standing(&row, &machine, before), Standing::JustDied);
}

#[cfg(target_os = "linux")]
#[test]
fn a_lock_delay_counts_from_the_noted_death_or_the_lapse() {
    let (mut row, machine) = of_the_dead(5_000, Moment::from_raw(0, 0));
    row.note_death(Moment::from_raw(1_000_000_000, 0));
    let later = |ns| Moment::from_raw(ns, 0);
    assert_eq!(standing(&row, &machine, later(2_000_000_000)), Standing::Taken(Duration::from_secs(4)));
    assert_eq!(standing(&row, &machine, later(6_000_000_000 - 1)), Standing::Taken(Duration::from_nanos(1)));
    assert_eq!(standing(&row, &machine, later(6_000_000_000)), Standing::Free);
    // A death that was noted after the lapse does not prolong the delay.
    row.note_death(later(lapse() + 1_000_000_000));
    assert_eq!(standing(&row, &machine, later(lapse() + 5_000_000_000)), Standing::Free);
}

#[test]
fn a_lock_delay_of_an_earlier_boot_counts_from_its_end() {
    let row = held(5_000, &machine(), Moment::from_raw(7_000_000_000, 0));
    let another = Machine { boot: "boot 2".into(), ..machine() };
    // The lease of a process ended with its boot. A lease that another machine may hold counts from this boot.
    let of_a_process = Row { process: machine().me, ..row.clone() };
    for (row, lease) in [(of_a_process, Duration::ZERO), (row.clone(), row.record.ttl().contender_span())] {
        let free = nanos(lease) + 5_000_000_000;
        let standing = |ns| standing(&row, &another, Moment::from_raw(ns, 0));
        assert_eq!(standing(free - 1), Standing::Taken(Duration::from_nanos(1)));
        assert_eq!(standing(free), Standing::Free);
    }
}

#[test]
fn the_age_of_a_hold_of_another_boot_is_by_the_wall_clock() {
    let row = held(0, &machine(), Moment::from_raw(100_000_000_000, 0));
    // 9 seconds on the boot clock, 50 on the wall clock.
    let now = Moment::from_raw(109_000_000_000, 50_000_000_000);
    let another = Machine { boot: "boot 2".into(), ..machine() };
    for (machine, seconds) in [(machine(), 9), (another, 50)] {
        let evidence = Evidence::of(Some(&row), &machine, now);
        assert_eq!(evidence.held_for(&row.record), Duration::from_secs(seconds));
        let (lease::State::Held(held) | lease::State::Lapsed(held)) = evidence.state(Some(&row)) else {
            panic!("free");
        };
        assert_eq!(held.held_for, Some(Duration::from_secs(seconds)));
    }
    let free = written(golden_record("1-free.json"), &machine(), Moment::from_raw(0, 0));
    assert_eq!(Evidence::of(Some(&free), &machine(), now).held_for(&free.record), Duration::ZERO);
}
