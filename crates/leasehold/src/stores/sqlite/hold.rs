//! What the holder of a grant asks: renewal, release, and making the grant independent of its process.

use std::any::Any;
use std::time::Duration;

use super::database::Durability;
use super::machine::Machine;
use super::requests::Purpose;
use super::row::Row;
use super::{STORE_TIMEOUT, SqliteLeases};
use crate::clock::{Moment, StoreTime};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Grant, Id, Loss, LossReason, Released, Renewal, Token, deadline};
use crate::protocol::rules::{self, Attempt, Freed, Settled};

/// The state of a grant between calls.
///
/// A process that is copied while it runs (CRIU) continues as two processes with the same grant. A process that finds a
/// nonce that it did not write has lost the lock to its copy (rule 11).
#[derive(Clone, Debug, Default)]
pub(super) struct Memo {
    /// The nonce of the record. `None` if other processes may renew the grant, because it has a ticket.
    known: Option<Id>,
    /// The writes that were begun since. They may have been committed.
    attempts: Vec<Attempt>,
}

impl Memo {
    /// Returns the memo of a grant whose record has this nonce.
    pub(super) fn of(nonce: Id) -> Box<dyn Any + Send + Sync> {
        Box::new(Self { known: Some(nonce), attempts: Vec::new() })
    }

    #[cfg(test)]
    pub(super) fn copy_of(grant: &Grant) -> Box<dyn Any + Send + Sync> {
        Box::new(Self::read(grant))
    }

    fn read(grant: &Grant) -> Self {
        grant.memo.as_ref().and_then(|memo| memo.downcast_ref::<Self>()).cloned().unwrap_or_default()
    }

    /// Returns the memo of `grant`, and adds a write with `nonce` to the one in the grant.
    fn begin(grant: &mut Grant, nonce: Id, sent: Moment) -> Self {
        let memo = Self::read(grant);
        let attempt = Attempt { nonce, sent, token: grant.token, after: None, created: false, unknown: true };
        let attempts = memo.attempts.iter().copied().chain([attempt]).collect();
        grant.memo = Some(Box::new(Self { attempts, ..memo }));
        memo
    }
}

/// Returns a new nonce. Copies of a running machine may draw the same random numbers, but not at the same nanosecond of
/// both clocks.
pub(super) fn nonce(env: &Env, now: Moment) -> Id {
    Id::random(&env.random).at(now)
}

/// Returns `row` if it is still that of the grant with `id` and `token`. Otherwise returns why the grant was lost. The
/// token of a withdrawn claim is 0 and is not compared.
fn own(row: Option<Row>, id: Id, token: Token, memo: &Memo) -> Result<Row, Box<LossReason>> {
    let content = row.as_ref().map(Row::content);
    let settled = rules::settle_renewal(id, memo.known, 0, &memo.attempts, content.as_ref());
    if let Settled::Gone(reason) = settled {
        return Err(Box::new(reason));
    }
    let is_same = |row: &Row| token == Token::default() || row.record.token == token;
    let row = row.filter(is_same).ok_or_else(|| Box::new(LossReason::Ended))?;
    if matches!(settled, Settled::Foreign) { Err(Box::new(LossReason::RenewedElsewhere)) } else { Ok(row) }
}

impl SqliteLeases {
    pub(super) async fn renew_grant(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let began = self.env.now();
        let (left, valid) = (grant.deadline.remaining(began), grant.deadline);
        if left.is_zero() {
            return Ok(grant.lost(LossReason::EXPIRED));
        }
        let (id, token, size, nonce) = (grant.id, grant.token, grant.size, nonce(&self.env, began));
        let memo = Memo::begin(grant, nonce, began);
        let known = memo.known.map(|_| nonce);
        let step = move |row, machine: &Machine, now: Moment| match own(row, id, token, &memo) {
            // The request waited for the file for so long that the guard was lost.
            Ok(_) if valid.passed(now) => (Err(Box::new(LossReason::EXPIRED)), None),
            Ok(row) => {
                let record = rules::renewed(&row.record, size, Some(row.time(machine, now)), nonce);
                (Ok((record.ttl(), now)), Some(row.continued(record, machine, now)))
            }
            Err(reason) => (Err(reason), None),
        };
        let renewed = self.change(&grant.name, left, Purpose::Renew, Durability::System, step).await;
        let now = self.env.now();
        let prolonged = match renewed {
            Ok(Ok((ttl, at))) => deadline(ttl, at),
            Ok(Err(reason)) => return Ok(grant.lost(*reason)),
            // The request waited for the file for longer than the lease lasted.
            Err(error) if grant.deadline.passed(now) => {
                let last_error = Some(error.to_string());
                return Ok(grant.lost(LossReason::Expired { last_error }));
            }
            Err(error) => return Err(error),
        };
        grant.memo = Some(Box::new(Memo { known, attempts: Vec::new() }));
        // A response that arrives after the end of the lease does not extend it.
        if grant.deadline.passed(now) || prolonged.passed(now) {
            return Ok(grant.lost(LossReason::EXPIRED));
        }
        grant.deadline = prolonged;
        Ok(Renewal::Renewed)
    }

    pub(super) async fn release_grant(
        &self,
        grant: &mut Grant,
        cooldown: Option<Duration>,
    ) -> Result<Released, StoreError> {
        if grant.token == Token::default() {
            // The grant stands for a withdrawn claim, which no longer waits.
            self.leave(&grant.name, grant.id).await?;
        }
        let began = self.env.now();
        let (id, token, size, nonce) = (grant.id, grant.token, grant.size, nonce(&self.env, began));
        let (memo, end) = (Memo::begin(grant, nonce, began), grant.end());
        let is_shared = memo.known.is_none();
        let cooldown = cooldown.filter(|cooldown| !cooldown.is_zero());
        let step = move |row: Option<Row>, machine: &Machine, now: Moment| {
            let content = row.as_ref().map(Row::content);
            match rules::settle_release(id, &memo.attempts, content.as_ref()) {
                Freed::StillOurs => match own(row, id, token, &memo) {
                    Ok(row) => {
                        let wall = Some(StoreTime::exactly(now.wall_us()));
                        let mut record = rules::freed(&row.record, end, cooldown, wall, nonce);
                        record.size = size.unwrap_or(record.size);
                        (Released::Released, Some(Row::written(record, machine, now)))
                    }
                    Err(_) => (Released::AlreadyLost, None),
                },
                // An earlier release was applied. Without one, another process with the ticket has released the grant.
                Freed::Applied if !memo.attempts.is_empty() => (Released::Released, None),
                Freed::Applied | Freed::Gone => (Released::AlreadyLost, None),
            }
        };
        // If a power failure undoes a release, the lease still ends with the boot, unless others may renew it. If it undoes
        // a cooldown, a job could run twice in its period.
        let is_lasting = cooldown.is_some() || is_shared;
        let durability = if is_lasting { Durability::Disk } else { Durability::System };
        self.change(&grant.name, STORE_TIMEOUT, Purpose::Release, durability, step).await
    }

    pub(super) async fn detach_grant(&self, grant: &mut Grant) -> Result<(), StoreError> {
        let (id, token, memo) = (grant.id, grant.token, Memo::read(grant));
        let step = move |row, _: &Machine, _| match own(row, id, token, &memo) {
            Ok(row) => (Ok(()), Some(Row { process: None, ..row })),
            Err(reason) => (Err(reason), None),
        };
        let detached =
            self.change(&grant.name, STORE_TIMEOUT, Purpose::Release, Durability::Disk, step).await?;
        if let Err(reason) = detached {
            let loss = Loss::new(grant.name.clone(), token, *reason);
            return Err(Fault::new(ErrorKind::Lost, loss.to_string()).not_applied());
        }
        // From now on any process with the ticket may renew the grant.
        grant.memo = None;
        Ok(())
    }
}
