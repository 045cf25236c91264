//! What this machine knows about a lease in addition to its record: the exact age by the clock that all processes
//! share, and whether the holder's process has ended. The rules of the [protocol](crate::protocol::rules) decide on it.

use std::time::Duration;

use super::machine::Machine;
use super::row::Row;
use crate::clock::{Moment, StoreTime, micros};
use crate::lease::{self, Claim, pacing};
use crate::protocol::record::{Content, Record, RecordState};
use crate::protocol::rules::{self, Availability, Claimed, Rules};

/// Held locks lapse by their age on the boot clock. Only cooldowns, which outlive a reboot, end by the time of the record.
const RULES: Rules = Rules { store_clock: false, margin: Duration::ZERO, lapsed_is_over: false };

/// Whether a lock is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Free,
    /// Not for this long, unless it is renewed.
    Taken(Duration),
    /// Not yet, because its holder was just found dead and the lock delay counts from now.
    JustDied,
}

/// The evidence about a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    /// For how long the lease has not been renewed. If its holder has ended, the lease was over at that moment, so it
    /// counts as unchanged for its whole span before that.
    pub(super) unchanged_for: Duration,
    /// The time on the clock of the record: the wall clock when the lock was granted, and the time since.
    pub(super) time: StoreTime,
    /// Whether the holder's process was just found dead. The lock delay counts from now, so the death must be written
    /// to the row.
    pub(super) just_died: bool,
}

impl Evidence {
    /// Returns the evidence about `row` at `now`.
    pub(super) fn of(row: Option<&Row>, machine: &Machine, now: Moment) -> Self {
        let time = StoreTime::exactly(now.wall_us());
        let nothing = Self { unchanged_for: Duration::ZERO, time, just_died: false };
        let Some(row) = row else { return nothing };
        let (time, span) = (row.time(machine, now), row.record.ttl().contender_span());
        match row.record.state {
            RecordState::Free | RecordState::Cooldown => Self { time, ..nothing },
            // If it was a process of this machine, it ended at the latest when this boot began. A grant without a process
            // may be held on another machine. Nobody has renewed it since this boot began.
            RecordState::Held if row.is_of_earlier_boot(machine, now) => {
                let ended = if row.process.is_some() { span } else { Duration::ZERO };
                Self { unchanged_for: ended + now.since_boot(), time, just_died: false }
            }
            RecordState::Held => {
                let age = row.age(now);
                let dead_for = match (row.died_ns, &row.process) {
                    (Some(died_ns), _) => {
                        Some(now.since_boot().saturating_sub(Duration::from_nanos(died_ns)))
                    }
                    (None, Some(process)) if age < span && machine.is_dead(process) => Some(Duration::ZERO),
                    (None, _) => None,
                };
                let unchanged_for = dead_for.map_or(age, |dead_for| age.max(span + dead_for));
                let is_new = dead_for.is_some() && row.died_ns.is_none();
                Self { unchanged_for, time, just_died: is_new && row.record.lock_delay_ms > 0 }
            }
        }
    }

    /// Judges what was read for `claim`.
    pub(super) fn judge<'a>(&self, claim: &Claim, found: Option<&'a Content>) -> Claimed<'a> {
        rules::judge(claim, &[], found, self.unchanged_for, Some(self.time), RULES)
    }

    /// Returns the standing of the lock with `record`.
    pub(super) fn standing(&self, record: &Record) -> Standing {
        match rules::availability(record, self.unchanged_for, Some(self.time), RULES) {
            Availability::Grantable => Standing::Free,
            Availability::Taken { .. } if self.just_died => Standing::JustDied,
            Availability::Taken { lapses_within } => Standing::Taken(lapses_within),
        }
    }

    /// Describes the lock for people.
    pub(super) fn state(&self, row: Option<&Row>) -> lease::State {
        rules::state(row.map(Row::content).as_ref(), self.unchanged_for, Some(self.time), RULES)
    }

    /// Returns how long the lock has been held.
    pub(super) fn held_for(&self, record: &Record) -> Duration {
        match record.state {
            RecordState::Held => pacing::held_for(record.granted_at_us, Some(self.time)),
            RecordState::Free | RecordState::Cooldown => Duration::ZERO,
        }
    }
}

impl Row {
    /// Returns the time since the record was written, on the boot clock.
    fn age(&self, now: Moment) -> Duration {
        now.since_boot().saturating_sub(Duration::from_nanos(self.renewed_ns))
    }

    /// Returns whether the lease may continue when this machine's boot ends, because a process of another machine may
    /// hold it. Its grant, release and eviction must then reach the disk, and so must a grant over it.
    pub(super) fn outlives_boot(&self) -> bool {
        self.record.state == RecordState::Held && self.process.is_none()
    }

    fn is_of_earlier_boot(&self, machine: &Machine, now: Moment) -> bool {
        machine.has_rebooted_since(&self.boot, self.renewed_ns, nanos(now.since_boot()))
    }

    /// Returns the time on the clock of the record: the time when it was written, and its age. A step of the wall clock
    /// has no effect on it.
    ///
    /// After a reboot, this is the wall clock. A cooldown outlives a reboot, and the wall clock is good enough for it,
    /// because it only protects a period. It lasts at most as long as asked, counted from the start of this boot,
    /// because the wall clock may have been years ahead when the cooldown began. If the boot ids differ and do not show
    /// whether the machine has rebooted, the later time counts for a cooldown, and the boot clock for a lease.
    pub(super) fn time(&self, machine: &Machine, now: Moment) -> StoreTime {
        let written_us = self.record.renewed_at_us.unwrap_or(0);
        let after = |time: Duration| written_us.saturating_add(micros(time));
        let (by_boot, by_wall) = (after(self.age(now)), now.wall_us());
        let is_cooldown = self.record.state == RecordState::Cooldown;
        StoreTime::exactly(match self.is_of_earlier_boot(machine, now) {
            true if is_cooldown => by_wall.max(after(now.since_boot())),
            true => by_wall,
            false if is_cooldown && self.boot != machine.boot => by_wall.max(by_boot),
            false => by_boot,
        })
    }

    /// Returns the row of a record that this process has written at `now`.
    pub(super) fn written(record: Record, machine: &Machine, now: Moment) -> Self {
        let renewed_ns = nanos(now.since_boot());
        Self { record, boot: machine.boot.clone(), renewed_ns, died_ns: None, process: None }
    }

    /// Returns the row with a `record` that continues its grant, written at `now`. If another process renews the grant,
    /// it was passed on. The death of the first process then no longer ends it.
    pub(super) fn continued(self, record: Record, machine: &Machine, now: Moment) -> Self {
        let process = self.process.filter(|process| machine.is_me(process));
        Self { process, ..Self::written(record, machine, now) }
    }

    /// Records that the holder's process was found dead. The lock delay counts from then.
    pub(super) fn note_death(&mut self, now: Moment) {
        self.died_ns = Some(nanos(now.since_boot()));
    }

    /// Adds the running processes of `pids` to the holder, if the holder is this process. Returns whether any is new.
    pub(super) fn add_processes(&mut self, pids: &[u32], machine: &Machine) -> bool {
        let is_held = self.record.state == RecordState::Held;
        let Some(process) = self.process.as_mut().filter(|process| is_held && machine.is_me(process)) else {
            return false;
        };
        let before = process.others.len();
        for other in machine.running(pids) {
            if !process.others.contains(&other) {
                process.others.push(other);
            }
        }
        process.others.len() > before
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
