//! The transaction that grants a lock.

use rusqlite::Connection;

use super::calls;
use super::counter::Counter;
use super::database::{Changed, Durability, transact};
use super::errors::SqliteError;
use super::evidence::Evidence;
use super::hold::{Memo, nonce};
use super::machine::Machine;
use super::row::{self, Row};
use super::waiters::{self, MayTake};
use crate::clock::{Moment, StoreTime};
use crate::env::Env;
use crate::error::Fault;
use crate::lease::{AcquireOutcome, Claim, Grant, HolderInfo, Token};
use crate::protocol::record::{Record, RecordState};
use crate::protocol::rules::{self, Claimed};

/// Runs the transaction of an acquisition. If the grant must wait for the disk, runs the transaction a second time.
pub(super) fn acquire(
    connection: &mut Connection,
    claim: &Claim,
    machine: &Machine,
    env: &Env,
) -> Result<AcquireOutcome, SqliteError> {
    let joins = claim.waits && !claim.barges;
    if let Some(held) = refused(connection, claim, machine, env)? {
        return Ok(AcquireOutcome::Held(held));
    }
    let durabilities = [Durability::System, Durability::Disk];
    for durability in &durabilities[usize::from(must_reach_disk(claim, None))..] {
        let verdict = transact(connection, *durability, |transaction| {
            // Reads the clock while the write lock is held. So waiting for the write lock does not shorten the lease,
            // and no other process sees the grant before the commit.
            let now = env.now();
            let mut row = row::load(transaction, &claim.name)?;
            let evidence = Evidence::of(row.as_ref(), machine, now);
            let content = row.as_ref().map(Row::content);
            match evidence.judge(claim, content.as_ref()) {
                Claimed::Lost(loss) => Ok((Some(AcquireOutcome::Lost(loss)), None)),
                Claimed::Taken(mut held) => {
                    if let Some(row) = row.as_mut().filter(|_| evidence.just_died) {
                        row.note_death(now);
                        row::store(transaction, &claim.name, row)?;
                    }
                    let joined = joins && waiters::join(transaction, claim, machine, now)?;
                    waiters::add_place(transaction, claim, &mut held)?;
                    let changed = (evidence.just_died || joined).then_some(Changed);
                    Ok((Some(AcquireOutcome::Held(held)), changed))
                }
                Claimed::Ours(_) | Claimed::Grantable { .. } => {
                    let previous = row.as_ref().map(|row| &row.record);
                    let is_own = previous.is_some_and(|previous| is_own(claim, previous));
                    if !is_own
                        && let MayTake::No { mut held, changed } =
                            waiters::may_take(transaction, claim, machine, now)?
                    {
                        if joins {
                            waiters::answer(transaction, claim, machine, now)?;
                            waiters::add_place(transaction, claim, &mut held)?;
                        }
                        let changed = (changed || joins).then_some(Changed);
                        return Ok((Some(AcquireOutcome::Held(held)), changed));
                    }
                    let in_memory = *durability == Durability::System;
                    if in_memory && must_reach_disk(claim, row.as_ref()) {
                        return Ok((None, None));
                    }
                    // A lock without a row gets its token from the counter, so no floor is needed.
                    let time = if is_own { evidence.time } else { StoreTime::exactly(now.wall_us()) };
                    let (time, nonce) = (Some(time), nonce(env, now));
                    let mut record = match previous.filter(|_| is_own) {
                        // A late copy of a request must not change the token of a grant that its holder knows.
                        Some(own) => rules::granted_again(own, claim, time, nonce),
                        None => rules::grant(claim, previous, time, Some(0), nonce)?,
                    };
                    record.unconfirmed = false;
                    let mut after = None;
                    if previous.is_none_or(|previous| previous.token != record.token) {
                        let mut counter = Counter::load(transaction)?;
                        let least = previous.map_or(0, |previous| previous.token.get() + 1);
                        let minted = counter.mint(least, claim.tokens, machine, now)?;
                        if in_memory && minted.beyond_ceiling {
                            return Ok((None, None));
                        }
                        counter.store(transaction)?;
                        (record.token, after) = (minted.token, minted.after);
                    }
                    let grant = granted(claim, &record, after, now);
                    let row = match row.filter(|_| is_own) {
                        Some(row) => row.continued(record, machine, now),
                        None => {
                            let process = machine.me.clone().filter(|_| !claim.detached);
                            Row { process, ..Row::written(record, machine, now) }
                        }
                    };
                    row::store(transaction, &claim.name, &row)?;
                    waiters::leave(transaction, claim.id)?;
                    waiters::call_off(transaction, &claim.name)?;
                    Ok((Some(AcquireOutcome::Granted(grant)), Some(Changed)))
                }
            }
        })?;
        if let Some(verdict) = verdict {
            // The next waiter learns that it is the first, or that the free lock is kept for it.
            if !matches!(&verdict, AcquireOutcome::Held(held) if !held.reserved) {
                calls::call_first(connection, &claim.name);
            }
            return Ok(verdict);
        }
    }
    Err(Fault::unavailable("the token counter cannot be written to the disk").into())
}

/// Returns the refusal of `claim` if a read shows that nothing has to be written: the lock is held, and the claim is in
/// the line or does not join it. Otherwise the waiters would delay the holder's writes.
fn refused(
    connection: &mut Connection,
    claim: &Claim,
    machine: &Machine,
    env: &Env,
) -> Result<Option<HolderInfo>, SqliteError> {
    let snapshot = connection.transaction()?;
    let row = row::load(&snapshot, &claim.name)?;
    let evidence = Evidence::of(row.as_ref(), machine, env.now());
    let content = row.as_ref().map(Row::content);
    let claimed = evidence.judge(claim, content.as_ref());
    let (Claimed::Taken(mut held), false) = (claimed, evidence.just_died) else { return Ok(None) };
    waiters::add_place(&snapshot, claim, &mut held)?;
    let is_settled = held.ahead.is_some() || !claim.waits || claim.barges;
    Ok(Some(held).filter(|_| is_settled))
}

/// Returns whether a grant of `claim` over `row` must reach the disk before it may be used. A power failure ends the
/// leases of this machine's processes. It does not end a lease that another machine may hold, nor a lock delay.
pub(super) fn must_reach_disk(claim: &Claim, row: Option<&Row>) -> bool {
    claim.detached || !claim.lock_delay.is_zero() || row.is_some_and(Row::outlives_boot)
}

/// Returns whether `record` is a grant of `claim` that has not ended.
fn is_own(claim: &Claim, record: &Record) -> bool {
    record.grant == claim.id && record.state == RecordState::Held
}

fn granted(claim: &Claim, record: &Record, after: Option<Token>, sent: Moment) -> Grant {
    Grant {
        after,
        size: rules::recorded(record.size),
        // Other processes may have the grant of a repeatable claim too.
        memo: (!claim.repeatable).then(|| Memo::of(record.nonce)),
        ..Grant::new(claim, record.token, sent)
    }
}
