//! The transaction that grants a lock.

use rusqlite::Connection;

use super::calls;
use super::database::{Changed, Durability, transact};
use super::errors::SqliteError;
use super::heartbeats::Heartbeats;
use super::machine::Machine;
use super::record::{self, Counter};
use super::rules::{self, Decision, Minted};
use super::waiters::{self, MayTake};
use crate::clock::Moment;
use crate::env::Env;
use crate::error::Fault;
use crate::lease::{AcquireOutcome, Claim, Grant, HolderInfo, Token, deadline};

/// Runs the transaction of an acquisition. If the grant must wait for the disk, runs the transaction a second time.
pub(super) fn acquire(
    connection: &mut Connection,
    claim: &Claim,
    machine: &Machine,
    heartbeats: &Heartbeats,
    env: &Env,
) -> Result<AcquireOutcome, SqliteError> {
    let joins = claim.waits && !claim.barges;
    if let Some(held) = refused(connection, claim, machine, env)? {
        return Ok(AcquireOutcome::Held(held));
    }
    for durability in [Durability::System, Durability::Disk] {
        let verdict = transact(connection, durability, |transaction| {
            // Reads the clock while the write lock is held. So waiting for the write lock does not shorten the lease,
            // and no other process sees the grant before the commit.
            let now = env.now();
            let record = record::load(transaction, &claim.name)?;
            match rules::judge(claim, record, machine, now) {
                Decision::Lost(loss) => Ok((Some(AcquireOutcome::Lost(loss)), None)),
                Decision::Held(mut held, noted) => {
                    if let Some(noted) = &noted {
                        record::store(transaction, &claim.name, noted)?;
                    }
                    let joined = joins && waiters::join(transaction, claim, machine, now)?;
                    waiters::add_place(transaction, claim, &mut held)?;
                    Ok((Some(AcquireOutcome::Held(held)), (noted.is_some() || joined).then_some(Changed)))
                }
                Decision::Again(record) => {
                    begin(heartbeats, claim, now);
                    record::store(transaction, &claim.name, &record)?;
                    Ok((Some(granted(claim, record.token, None, now)), Some(Changed)))
                }
                Decision::Grant { least, history } => {
                    let may_take = waiters::may_take(transaction, claim, machine, now)?;
                    if let MayTake::No { mut held, changed } = may_take {
                        if joins {
                            waiters::answer(transaction, claim, machine, now)?;
                            waiters::add_place(transaction, claim, &mut held)?;
                        }
                        let changed = (changed || joins).then_some(Changed);
                        return Ok((Some(AcquireOutcome::Held(held)), changed));
                    }
                    let mut counter = Counter::load(transaction)?;
                    let minted = rules::next_token(&mut counter, least, claim.tokens, machine, now)?;
                    if durability == Durability::System && rules::must_reach_disk(claim, &minted) {
                        return Ok((None, None));
                    }
                    let Minted { token, after, .. } = minted;
                    counter.store(transaction)?;
                    let record = rules::granted(claim, token, history, machine, now);
                    begin(heartbeats, claim, now);
                    record::store(transaction, &claim.name, &record)?;
                    waiters::leave(transaction, claim.id)?;
                    waiters::call_off(transaction, &claim.name)?;
                    Ok((Some(granted(claim, token, after, now)), Some(Changed)))
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
    let record = record::load(&snapshot, &claim.name)?;
    let Decision::Held(mut held, None) = rules::judge(claim, record, machine, env.now()) else {
        return Ok(None);
    };
    waiters::add_place(&snapshot, claim, &mut held)?;
    let is_settled = held.ahead.is_some() || !claim.waits || claim.barges;
    Ok(Some(held).filter(|_| is_settled))
}

/// Records that this process has the grant, so that a renewal by a copy of the process is noticed. Does not record the
/// grant of a repeatable claim, because other processes may have the same grant.
fn begin(heartbeats: &Heartbeats, claim: &Claim, now: Moment) {
    if !claim.repeatable {
        heartbeats.begin(claim.id, rules::nanos(now.since_boot()));
    }
}

fn granted(claim: &Claim, token: Token, after: Option<Token>, sent: Moment) -> AcquireOutcome {
    AcquireOutcome::Granted(Grant {
        name: claim.name.clone(),
        token,
        after,
        id: claim.id,
        ttl: claim.ttl,
        deadline: deadline(claim.ttl, sent),
        memo: None,
    })
}
