//! The line of the waiters for each lock, across processes, in order of arrival.
//!
//! The line can only delay grants. The row of a lock still decides whether it is granted ([`evidence`](super::evidence)), so
//! an error here costs time but not exclusion. A waiter whose process has died is removed when it is found. A waiter
//! that does not take a free lock within [`RESERVATION`], for example because its process is stopped, is passed over and
//! removed. It joins again at the end. In the second half of that time, the next waiters ([`ASKING`]) ask for the lock.
//! Those that do not ask are removed too. So several waiters whose death cannot be seen delay a grant only once.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row};

use super::POLL_INTERVAL;
use super::errors::SqliteError;
use super::evidence::nanos;
use super::machine::{Machine, Process};
use super::row::{from_json, json, signed};
use crate::clock::Moment;
use crate::lease::{self, Claim, Holder, HolderInfo, Id};
use crate::types::LockName;

/// How long a free lock is kept for its first waiter: the time of two polls, and one second for a busy machine.
pub(super) const RESERVATION: Duration =
    Duration::from_millis(2 * POLL_INTERVAL.max.as_millis() as u64 + 1_000);

/// How many waiters at the head of the line must ask in the second half of [`RESERVATION`]. They poll at least twice in it.
pub(super) const ASKING: usize = 6;

/// A waiter for a lock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Waiter {
    number: i64,
    pub(super) claim: Id,
    pub(super) holder: Holder,
    boot: String,
    joined_ns: u64,
    called_ns: Option<u64>,
    process: Option<Process>,
}

impl Waiter {
    /// Returns how much longer the free lock is kept for this waiter. Returns `None` if the waiter was not called yet.
    pub(super) fn reserved_for(&self, now: Moment) -> Option<Duration> {
        Some(RESERVATION.saturating_sub(self.kept(now)?))
    }

    /// Returns for how long the free lock has been kept for this waiter.
    fn kept(&self, now: Moment) -> Option<Duration> {
        Some(now.since_boot().saturating_sub(Duration::from_nanos(self.called_ns?)))
    }

    /// Returns the same as [`reserved_for`](Self::reserved_for), less the time for which `claim` has seen the lock kept for
    /// this waiter before claims that ignore the line took it.
    fn reserved_for_before(&self, claim: &Claim, now: Moment) -> Option<Duration> {
        let (called_ns, kept) = self.called_ns.zip(self.kept(now))?;
        Some(RESERVATION.saturating_sub(claim.place.kept(claim.id, self.claim, called_ns.into(), kept)))
    }

    fn is_gone(&self, machine: &Machine, now: Moment) -> bool {
        let latest_ns = self.called_ns.unwrap_or(self.joined_ns);
        machine.has_rebooted_since(&self.boot, latest_ns, nanos(now.since_boot()))
            || self.process.as_ref().is_some_and(|process| machine.is_dead(process))
    }

    /// Describes the lock to other claims while it is reserved for this waiter.
    fn as_holder(&self, now: Moment) -> HolderInfo {
        HolderInfo {
            holder: Some(self.holder.clone()),
            lapses_within: Some(self.reserved_for(now).unwrap_or(RESERVATION)),
            reserved: true,
            ..HolderInfo::default()
        }
    }
}

/// Whether a claim may take a free lock.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "only one value exists at a time, and only briefly")]
pub(super) enum MayTake {
    /// No other waiter is before the claim.
    Yes,
    /// The lock is kept for another waiter. `changed` tells whether a row was written.
    No { held: HolderInfo, changed: bool },
}

/// Determines whether `claim` may take the lock, which is free. Calls the first waiter. Removes waiters that are gone
/// or did not respond in time.
pub(super) fn may_take(
    connection: &Connection,
    claim: &Claim,
    machine: &Machine,
    now: Moment,
) -> Result<MayTake, SqliteError> {
    let mut changed = false;
    if claim.barges {
        return Ok(MayTake::Yes);
    }
    while let Some(first) = first(connection, &claim.name)? {
        if first.claim == claim.id {
            return Ok(MayTake::Yes);
        }
        // This must be checked first, because times of an earlier boot are not comparable with the clock.
        let is_gone = first.is_gone(machine, now);
        let is_late = !is_gone && first.reserved_for_before(claim, now).is_some_and(|left| left.is_zero());
        if is_gone || is_late {
            leave(connection, first.claim)?;
            // Only a whole reservation has given all other waiters the time to ask.
            if is_late && first.reserved_for(now).is_some_and(|left| left.is_zero()) {
                remove_absent(connection, claim, &first)?;
            }
            changed = true;
            continue;
        }
        if first.called_ns.is_none() {
            let mut call = connection.prepare_cached("UPDATE waiter SET called_ns = ? WHERE number = ?")?;
            call.execute((signed(nanos(now.since_boot())), first.number))?;
            changed = true;
        }
        return Ok(MayTake::No { held: first.as_holder(now), changed });
    }
    Ok(MayTake::Yes)
}

/// Adds `claim` to the end of the line, unless it is already in the line. Returns whether it was added.
pub(super) fn join(
    connection: &Connection,
    claim: &Claim,
    machine: &Machine,
    now: Moment,
) -> Result<bool, SqliteError> {
    let mut insert = connection.prepare_cached(
        "INSERT OR IGNORE INTO waiter (name, claim_id, holder, boot, joined_ns, asked_ns, process)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
    )?;
    let now_ns = signed(nanos(now.since_boot()));
    let added = insert.execute((
        claim.name.as_str(),
        claim.id.to_string(),
        json(&claim.waiter())?,
        &machine.boot,
        now_ns,
        now_ns,
        machine.me.as_ref().map(json).transpose()?,
    ))?;
    Ok(added > 0)
}

/// Adds `claim` to the line. If it is already there, records that it asked while the lock was free for another waiter.
pub(super) fn answer(
    connection: &Connection,
    claim: &Claim,
    machine: &Machine,
    now: Moment,
) -> Result<(), SqliteError> {
    if !join(connection, claim, machine, now)? {
        let mut update = connection.prepare_cached("UPDATE waiter SET asked_ns = ? WHERE claim_id = ?")?;
        update.execute((signed(nanos(now.since_boot())), claim.id.to_string()))?;
    }
    Ok(())
}

/// Removes the waiters that have not asked since the lock was first kept for `late`, as far as they are among the first
/// [`ASKING`]. Keeps `claim`, which asks now.
fn remove_absent(connection: &Connection, claim: &Claim, late: &Waiter) -> Result<(), SqliteError> {
    let mut delete = connection.prepare_cached(
        "DELETE FROM waiter WHERE name = ?1 AND asked_ns < ?2 AND claim_id <> ?3 AND number IN
         (SELECT number FROM waiter WHERE name = ?1 ORDER BY number LIMIT ?4)",
    )?;
    // `late` has left the line.
    let count = i64::try_from(ASKING).unwrap_or(i64::MAX) - 1;
    delete.execute((claim.name.as_str(), late.called_ns.map(signed), claim.id.to_string(), count))?;
    Ok(())
}

/// Reads the line of `name`, until `found` returns true for the claim and the process of a waiter.
pub(super) fn first_that(
    connection: &Connection,
    name: &LockName,
    found: impl Fn(Id, Option<&Process>) -> bool,
) -> Result<(), SqliteError> {
    let mut statement =
        connection.prepare_cached("SELECT claim_id, process FROM waiter WHERE name = ? ORDER BY number")?;
    let mut rows = statement.query([name.as_str()])?;
    while let Some(row) = rows.next()? {
        let process: Option<String> = row.get("process")?;
        let process = process.and_then(|text| from_json(&text).ok());
        if row.get::<_, String>("claim_id")?.parse().is_ok_and(|claim| found(claim, process.as_ref())) {
            break;
        }
    }
    Ok(())
}

/// Returns how many waiters are before `claim`, and whether it is in the line itself. If it is not, all are before it.
pub(super) fn place(connection: &Connection, claim: &Claim) -> Result<(usize, bool), SqliteError> {
    let mut own = connection.prepare_cached("SELECT number FROM waiter WHERE claim_id = ?")?;
    let number = own.query_row([claim.id.to_string()], |row| row.get::<_, i64>(0)).optional()?;
    let mut before =
        connection.prepare_cached("SELECT count(*) FROM waiter WHERE name = ? AND number < ?")?;
    let count: i64 = before.query_row((claim.name.as_str(), number.unwrap_or(i64::MAX)), |row| row.get(0))?;
    Ok((usize::try_from(count).unwrap_or(0), number.is_some()))
}

/// Removes `claim` from the line.
pub(super) fn leave(connection: &Connection, claim: Id) -> Result<(), SqliteError> {
    connection.prepare_cached("DELETE FROM waiter WHERE claim_id = ?")?.execute([claim.to_string()])?;
    Ok(())
}

/// Records that the lock is no longer free. Its first waiter must be called again when the lock is free again.
pub(super) fn call_off(connection: &Connection, name: &LockName) -> Result<(), SqliteError> {
    let mut update = connection
        .prepare_cached("UPDATE waiter SET called_ns = NULL WHERE name = ? AND called_ns IS NOT NULL")?;
    update.execute([name.as_str()])?;
    Ok(())
}

/// Empties the line of a lock.
pub(super) fn remove_all(connection: &Connection, name: &LockName) -> Result<(), SqliteError> {
    connection.execute("DELETE FROM waiter WHERE name = ?", [name.as_str()])?;
    Ok(())
}

/// Returns the first waiter for `name`. Removes rows that cannot be read, because they are not worth an error.
fn first(connection: &Connection, name: &LockName) -> Result<Option<Waiter>, SqliteError> {
    loop {
        let mut statement =
            connection.prepare_cached("SELECT * FROM waiter WHERE name = ? ORDER BY number LIMIT 1")?;
        let first = statement.query_row([name.as_str()], |row| Ok((row.get("number")?, parse(row))));
        match first.optional()? {
            None => return Ok(None),
            Some((_, Ok(waiter))) => return Ok(Some(waiter)),
            Some((number, Err(_))) => {
                let number: i64 = number;
                connection.prepare_cached("DELETE FROM waiter WHERE number = ?")?.execute([number])?;
            }
        }
    }
}

/// Returns how long the free lock is kept for a waiter other than `claim`, as far as a read shows this. Returns `None`
/// if `claim` should ask for the lock. It should ask if it is first, if the first waiter must be called or removed, or
/// if the first waiter is late and `claim` must show that it still waits.
pub(super) fn kept_for(
    connection: &Connection,
    claim: &Claim,
    machine: &Machine,
    now: Moment,
) -> Result<Option<Duration>, SqliteError> {
    let mut statement =
        connection.prepare_cached("SELECT * FROM waiter WHERE name = ? ORDER BY number LIMIT 1")?;
    let first = statement.query_row([claim.name.as_str()], |row| Ok(parse(row))).optional()?;
    let Some(Ok(first)) = first.filter(|_| !claim.barges) else { return Ok(None) };
    if first.claim == claim.id || first.is_gone(machine, now) {
        return Ok(None);
    }
    let left = first.reserved_for_before(claim, now);
    let Some((left, called_ns)) = left.zip(first.called_ns) else { return Ok(None) };
    if left.is_zero() || claim.waits && left <= RESERVATION / 2 && !has_asked(connection, claim, called_ns)? {
        return Ok(None);
    }
    Ok(Some(left))
}

/// Adds to `held`, the refusal of `claim`, how many waiters are before the claim and who the last of them is. Adds
/// nothing if the claim is not in the line.
pub(super) fn add_place(
    connection: &Connection,
    claim: &Claim,
    held: &mut HolderInfo,
) -> Result<(), SqliteError> {
    let mut own = connection.prepare_cached("SELECT number FROM waiter WHERE claim_id = ?")?;
    let Some(number) = own.query_row([claim.id.to_string()], |row| row.get::<_, i64>(0)).optional()? else {
        return Ok(());
    };
    // In a query with `max`, SQLite takes the column `holder` from the row with the maximum.
    let mut before = connection
        .prepare_cached("SELECT count(*), holder, max(number) FROM waiter WHERE name = ? AND number < ?")?;
    let (count, last) = before.query_row((claim.name.as_str(), number), |row| {
        // A holder that cannot be read is not worth an error.
        Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1).unwrap_or_default()))
    })?;
    held.ahead = usize::try_from(count).ok();
    let last = last.and_then(|last| from_json::<Holder>(&last).ok());
    held.waiter_ahead = last.map(|last| last.of_the_past());
    Ok(())
}

/// Returns the waiters for `name`, to show them to users. Leaves out rows that cannot be read.
pub(super) fn all(
    connection: &Connection,
    name: &LockName,
    machine: &Machine,
    now: Moment,
) -> Result<Vec<lease::Waiter>, SqliteError> {
    let mut statement =
        connection.prepare_cached("SELECT * FROM waiter WHERE name = ? ORDER BY number LIMIT 64")?;
    let rows = statement.query_map([name.as_str()], |row| Ok(parse(row)))?;
    let waiters = rows.filter_map(|row| row.ok()?.ok()).filter(|waiter| !waiter.is_gone(machine, now));
    let shown = waiters.map(|waiter| {
        let mut shown = lease::Waiter::new(waiter.holder);
        shown.waited = Some(now.since_boot().saturating_sub(Duration::from_nanos(waiter.joined_ns)));
        shown
    });
    Ok(shown.collect())
}

/// Returns whether `claim` is in the line and has asked since `since_ns`.
fn has_asked(connection: &Connection, claim: &Claim, since_ns: u64) -> Result<bool, SqliteError> {
    let mut statement =
        connection.prepare_cached("SELECT count(*) FROM waiter WHERE claim_id = ? AND asked_ns >= ?")?;
    let rows: i64 = statement.query_row((claim.id.to_string(), signed(since_ns)), |row| row.get(0))?;
    Ok(rows > 0)
}

fn parse(row: &Row<'_>) -> Result<Waiter, SqliteError> {
    let garbled = |error: crate::InvalidValue| SqliteError::Garbled(error.to_string());
    let nanos = |number: i64| u64::try_from(number).unwrap_or(0);
    Ok(Waiter {
        number: row.get("number")?,
        claim: row.get::<_, String>("claim_id")?.parse().map_err(garbled)?,
        holder: from_json(&row.get::<_, String>("holder")?)?,
        boot: row.get("boot")?,
        joined_ns: nanos(row.get("joined_ns")?),
        called_ns: row.get::<_, Option<i64>>("called_ns")?.map(nanos),
        process: row.get::<_, Option<String>>("process")?.map(|text| from_json(&text)).transpose()?,
    })
}
