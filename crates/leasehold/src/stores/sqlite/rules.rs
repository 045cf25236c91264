//! The rules. They derive a verdict and the next row from a row, a clock reading and this machine. They do no I/O,
//! except to check whether a process still runs.
//!
//! Every process that can open the file reads the same clock, so the age of a lease is a subtraction. The holder's span
//! is still shorter than the contender's, so the holder stops first.

use std::time::Duration;

use super::machine::Machine;
use super::record::{Cooldown, Counter, Hold, Record, State};
use crate::clock::{Moment, StoreTime, micros};
use crate::error::{ErrorKind, Fault};
use crate::lease::MAX_TOKENS;
use crate::lease::pacing;
use crate::lease::{
    self, Claim, End, Evicted, Eviction, HolderInfo, Id, Loss, LossReason, PastGrant, Released, Status, Token,
};
use crate::types::LockName;

/// The maximum number of past grants in a row.
const HISTORY: usize = 8;

/// How far ahead of the wall clock tokens are reserved, in microseconds, the unit of tokens. A commit waits for the disk
/// once in that time.
const RESERVE: u64 = 10_000_000;

/// How many tokens are reserved while tokens are ahead of the wall clock by [`RESERVE`] or more.
const SPARE: u64 = 1_000;

/// The current state of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Available.
    Free,
    /// Available, because the lease ended at this moment of the boot clock (`None`: in an earlier boot).
    Lapsed(Option<u64>),
    /// Not available for this long, unless it is renewed.
    Taken(Duration),
    /// The holder's process was just found dead. The lock delay counts from now, so the death must be written to the
    /// row.
    JustDied,
}

/// Returns the state of `record` at `now`.
pub(super) fn standing(record: &Record, machine: &Machine, now: Moment) -> Standing {
    match &record.state {
        State::Free => Standing::Free,
        State::Cooldown(cooldown) => match cooldown_left(record, cooldown, machine, now) {
            Duration::ZERO => Standing::Free,
            left => Standing::Taken(left),
        },
        State::Held(hold)
            if machine.has_rebooted_since(&hold.boot, hold.renewed_ns, nanos(now.since_boot())) =>
        {
            after_reboot(hold, now)
        }
        State::Held(hold) => in_this_boot(hold, machine, now),
    }
}

/// Returns the state of a hold from an earlier boot. Its process ended at the latest when this boot began, so the lock
/// delay counts from then.
fn after_reboot(hold: &Hold, now: Moment) -> Standing {
    match hold.lock_delay.saturating_sub(now.since_boot()) {
        Duration::ZERO => Standing::Lapsed(None),
        left => Standing::Taken(left),
    }
}

fn in_this_boot(hold: &Hold, machine: &Machine, now: Moment) -> Standing {
    let now_ns = nanos(now.since_boot());
    let lapse_ns = hold.renewed_ns.saturating_add(nanos(hold.ttl.contender_span()));
    let delay_ns = nanos(hold.lock_delay);
    let ended_ns = match hold.died_ns {
        Some(died_ns) => died_ns.min(lapse_ns),
        None if now_ns < lapse_ns
            && hold.process.as_ref().is_some_and(|process| machine.is_dead(process)) =>
        {
            if delay_ns > 0 {
                return Standing::JustDied;
            }
            now_ns
        }
        None => lapse_ns,
    };
    match ended_ns.saturating_add(delay_ns).saturating_sub(now_ns) {
        0 => Standing::Lapsed(Some(ended_ns)),
        left => Standing::Taken(Duration::from_nanos(left)),
    }
}

/// Returns how much of a cooldown is left. Uses the boot clock if the boot id is the same, and this machine's wall clock
/// after a reboot. A cooldown outlives a reboot, and the wall clock is good enough, because a cooldown only protects a
/// period. Returns at most the full cooldown, counted from the start of this boot, because the wall clock may have been
/// years ahead when the cooldown began. If the boot ids differ and do not show whether the machine has rebooted, the
/// cooldown ends when one of the two clocks says so.
fn cooldown_left(record: &Record, cooldown: &Cooldown, machine: &Machine, now: Moment) -> Duration {
    let by_boot = Duration::from_nanos(cooldown.until_ns).saturating_sub(now.since_boot());
    if cooldown.boot == machine.boot {
        return by_boot;
    }
    let by_wall = Duration::from_micros(cooldown.until_us.saturating_sub(now.wall_us()));
    let past = record.history.iter().find(|past| past.token == record.token);
    let Some(began_us) = past.and_then(|past| past.until_us) else { return by_wall };
    let whole = Duration::from_micros(cooldown.until_us.saturating_sub(began_us));
    // `whole` is rounded down to a microsecond, so the cooldown may have begun earlier by that.
    let began_ns = cooldown.until_ns.saturating_sub(nanos(whole + Duration::from_micros(1)));
    let has_rebooted = machine.has_rebooted_since(&cooldown.boot, began_ns, nanos(now.since_boot()));
    by_wall.min(if has_rebooted { whole.saturating_sub(now.since_boot()) } else { by_boot })
}

/// The decision about a claim.
#[derive(Debug)]
pub(super) enum Decision {
    /// Grant it, with a new token of at least `least`. `history` is that of the row.
    Grant { least: u64, history: Vec<PastGrant> },
    /// The claim was granted before, and its grant is still valid. Contains the renewed row.
    Again(Record),
    /// The lock is held. Contains the row if it must be written.
    Held(HolderInfo, Option<Record>),
    /// The claim was granted before, and its grant has ended since.
    Lost(Loss),
}

/// Decides about `claim` by the row of its lock.
pub(super) fn judge(claim: &Claim, record: Option<Record>, machine: &Machine, now: Moment) -> Decision {
    let Some(mut record) = record else { return Decision::Grant { least: 0, history: Vec::new() } };
    if let Some(hold) = hold_of(Some(&mut record), claim.id) {
        renew(hold, machine, now);
        // Contenders use the ttl in the row, so it must cover the lease of each repetition of the claim.
        hold.ttl = hold.ttl.max(claim.ttl);
        return Decision::Again(record);
    }
    if let Some(past) = record.history.iter().find(|past| past.grant == claim.id) {
        return Decision::Lost(loss(&claim.name, claim.id, past.token, Some(&record), machine, now));
    }
    match standing(&record, machine, now) {
        Standing::Free => {}
        Standing::Lapsed(ended_ns) => end(&mut record, End::Lapsed, wall_of(ended_ns, now)),
        Standing::Taken(_) => return Decision::Held(held(&record, machine, now), None),
        Standing::JustDied => {
            note_death(&mut record, now);
            return Decision::Held(held(&record, machine, now), Some(record));
        }
    }
    Decision::Grant { least: record.token.get() + 1, history: record.history }
}

/// Records that the holder's process was found dead. The lock delay counts from then.
pub(super) fn note_death(record: &mut Record, now: Moment) {
    if let State::Held(hold) = &mut record.state {
        hold.died_ns = Some(nanos(now.since_boot()));
    }
}

/// Returns the row of a claim that is granted at `now` with `token`.
pub(super) fn granted(
    claim: &Claim,
    token: Token,
    history: Vec<PastGrant>,
    machine: &Machine,
    now: Moment,
) -> Record {
    let hold = Hold {
        grant: claim.id,
        holder: claim.holder.clone(),
        ttl: claim.ttl,
        lock_delay: claim.lock_delay,
        boot: machine.boot.clone(),
        granted_us: now.wall_us(),
        granted_ns: nanos(now.since_boot()),
        renewed_ns: nanos(now.since_boot()),
        died_ns: None,
        process: machine.me.clone().filter(|_| !claim.detached),
    };
    Record { token, history, state: State::Held(Box::new(hold)) }
}

/// A token that was never used before.
#[derive(Debug)]
pub(super) struct Minted {
    pub(super) token: Token,
    /// Tokens up to this one may have been used. The tokens between this one and `token` were never used, so they
    /// belong to this grant.
    pub(super) after: Option<Token>,
    /// Whether the counter must reach the disk before the token may be used.
    pub(super) beyond_ceiling: bool,
}

/// Determines the next token.
///
/// Most commits do not wait for the disk, so a power failure can undo them. Their leases end with the boot, but their
/// tokens must not be used again, even if the wall clock is wrong after the reboot. So no token is used above a ceiling
/// that is on the disk, and a new boot starts above the ceiling. So does a container with its own boot id: if it and
/// others acquire locks in turn, each turn uses up the reserve.
pub(super) fn next_token(
    counter: &mut Counter,
    least: u64,
    tokens: u64,
    machine: &Machine,
    now: Moment,
) -> Result<Minted, Fault> {
    let room = tokens.clamp(1, MAX_TOKENS);
    let same_boot = counter.boot == machine.boot;
    let highest = if same_boot { counter.token } else { counter.token.max(counter.ceiling) };
    let lowest = least.max(highest.saturating_add(1));
    let number = lowest.saturating_add(room - 1).max(now.wall_us());
    let token = Token::new(number).ok_or_else(|| {
        Fault::new(
            ErrorKind::Corrupt,
            format!("the next token would be {number}, but tokens must be below 2^53"),
        )
        .with_help(
            "check the wall clock; if the number comes from the file, release all locks and use a new file",
        )
    })?;
    let beyond = !same_boot || number > counter.ceiling;
    counter.token = number;
    if beyond {
        counter.ceiling = number.saturating_add(SPARE).max(now.wall_us().saturating_add(RESERVE));
        counter.boot.clone_from(&machine.boot);
    }
    Ok(Minted { token, after: Token::new(lowest.saturating_sub(1)), beyond_ceiling: beyond })
}

/// Returns whether the grant of `claim` must reach the disk before it may be used. A power failure ends every lease, but
/// its lock delay continues after the reboot.
pub(super) fn must_reach_disk(claim: &Claim, minted: &Minted) -> bool {
    minted.beyond_ceiling || !claim.lock_delay.is_zero()
}

/// Renews `hold` at `now`.
pub(super) fn renew(hold: &mut Hold, machine: &Machine, now: Moment) {
    let now_ns = nanos(now.since_boot());
    if hold.boot != machine.boot {
        hold.boot.clone_from(&machine.boot);
        hold.granted_ns = now_ns;
    }
    hold.renewed_ns = now_ns;
    hold.died_ns = None;
    // If another process renews the grant, it was passed on. The death of the first process then no longer ends it.
    hold.process.take_if(|process| !machine.is_me(process));
}

/// Adds the running processes of `pids` to the holder, if the holder is this process. Returns the row if it changes.
pub(super) fn add_processes(record: Option<Record>, pids: &[u32], machine: &Machine) -> Option<Record> {
    let mut record = record?;
    let State::Held(hold) = &mut record.state else { return None };
    let process = hold.process.as_mut().filter(|process| machine.is_me(process))?;
    let running = machine.running(pids);
    let new: Vec<_> = running.into_iter().filter(|other| !process.others.contains(other)).collect();
    if new.is_empty() {
        return None;
    }
    process.others.extend(new);
    Some(record)
}

/// Returns whether the row's grant has `token`. The token of a withdrawn claim is 0 and is not compared.
pub(super) fn has_token(record: &Record, token: Token) -> bool {
    token == Token::default() || record.token == token
}

/// Returns the hold of `grant`, if it is the current one.
pub(super) fn hold_of(record: Option<&mut Record>, grant: Id) -> Option<&mut Hold> {
    match record.map(|record| &mut record.state) {
        Some(State::Held(hold)) if hold.grant == grant => Some(hold),
        _ => None,
    }
}

/// Returns how `grant`, which is no longer current, was lost.
pub(super) fn loss(
    name: &LockName,
    grant: Id,
    token: Token,
    record: Option<&Record>,
    machine: &Machine,
    now: Moment,
) -> Loss {
    let history = record.map(|record| &*record.history);
    let reason = LossReason::of(grant, history, record.map(|record| held(record, machine, now)));
    Loss::new(name.clone(), token, reason)
}

/// Ends `grant` at its holder's request, and gives the lock a cooldown of `cooldown`. Returns `None` if `grant` is not
/// the current one.
pub(super) fn release(
    record: Option<&Record>,
    grant: Id,
    cooldown: Option<Duration>,
    machine: &Machine,
    now: Moment,
) -> Option<Record> {
    let mut record = record?.clone();
    hold_of(Some(&mut record), grant)?;
    end(&mut record, End::Released, Some(now.wall_us()));
    if let Some(cooldown) = cooldown.filter(|cooldown| !cooldown.is_zero()) {
        record.state = State::Cooldown(Cooldown {
            boot: machine.boot.clone(),
            until_ns: nanos(now.since_boot()).saturating_add(nanos(cooldown)),
            until_us: now.wall_us().saturating_add(micros(cooldown)),
        });
    }
    Some(record)
}

/// Returns `Released::Released` if the history shows that the holder released `grant`.
pub(super) fn was_released(record: Option<&Record>, grant: Id) -> Released {
    Released::of(grant, record.map(|record| &*record.history).unwrap_or_default())
}

/// Ends the grant or the cooldown with `token` at an operator's request.
pub(super) fn evict(
    record: Option<Record>,
    token: Token,
    why: Option<&Eviction>,
    now: Moment,
) -> (Evicted, Option<Record>) {
    match record {
        Some(mut record) if record.token == token && record.state != State::Free => {
            end(&mut record, End::Evicted, Some(now.wall_us()));
            // The grant of a lock in a cooldown is already in the history, as released. It is not marked as evicted.
            if let Some(past) = record.history.first_mut().filter(|past| past.end == End::Evicted) {
                past.evicted = why.cloned();
            }
            (Evicted::Evicted, Some(record))
        }
        _ => (Evicted::Changed, None),
    }
}

/// Frees the row and records how its grant ended.
fn end(record: &mut Record, end: End, until_us: Option<u64>) {
    if let State::Held(hold) = std::mem::replace(&mut record.state, State::Free) {
        record.history.insert(
            0,
            PastGrant {
                token: record.token,
                grant: hold.grant,
                holder: hold.holder.of_the_past(),
                from_us: Some(hold.granted_us),
                until_us,
                end,
                evicted: None,
            },
        );
        record.history.truncate(HISTORY);
    }
}

/// Returns the lock's status for inspection.
pub(super) fn status(name: LockName, record: Option<Record>, machine: &Machine, now: Moment) -> Status {
    let Some(record) = record else { return Status::new(name, lease::State::Free) };
    let state = match standing(&record, machine, now) {
        Standing::Free => lease::State::Free,
        Standing::Lapsed(_) => lease::State::Lapsed(held(&record, machine, now)),
        Standing::Taken(_) | Standing::JustDied => lease::State::Held(held(&record, machine, now)),
    };
    let mut status = Status::new(name, state);
    status.token = Some(record.token);
    status.history = record.history;
    status
}

/// Describes the holder for inspection. In a cooldown, describes the last holder.
fn held(record: &Record, machine: &Machine, now: Moment) -> HolderInfo {
    let mut held = HolderInfo { token: Some(record.token), ..HolderInfo::default() };
    held.lapses_within = Some(match standing(record, machine, now) {
        Standing::Taken(left) => left,
        Standing::JustDied => match &record.state {
            State::Held(hold) => hold.lock_delay,
            State::Free | State::Cooldown(_) => Duration::ZERO,
        },
        Standing::Free | Standing::Lapsed(_) => Duration::ZERO,
    });
    match &record.state {
        State::Held(hold) => {
            held.holder = Some(hold.holder.clone());
            held.held_for = Some(if hold.boot == machine.boot {
                now.since_boot().saturating_sub(Duration::from_nanos(hold.granted_ns))
            } else {
                Duration::from_micros(now.wall_us().saturating_sub(hold.granted_us))
            });
        }
        State::Cooldown(_) | State::Free => {
            held.in_cooldown = true;
            if let Some(past) = record.history.iter().find(|past| past.token == record.token) {
                held.last_holder = Some(past.holder.clone());
                held.held_for =
                    past.from_us.map(|us| Duration::from_micros(now.wall_us().saturating_sub(us)));
            }
        }
    }
    held
}

/// Returns how long the lock has been held.
pub(super) fn held_for(record: &Record, now: Moment) -> Duration {
    match &record.state {
        State::Held(hold) => pacing::held_for(Some(hold.granted_us), Some(StoreTime::exactly(now.wall_us()))),
        State::Cooldown(_) | State::Free => Duration::ZERO,
    }
}

/// Returns the wall clock at an earlier moment of this boot.
fn wall_of(boot_ns: Option<u64>, now: Moment) -> Option<u64> {
    let ago = now.since_boot().saturating_sub(Duration::from_nanos(boot_ns?));
    Some(now.wall_us().saturating_sub(micros(ago)))
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
