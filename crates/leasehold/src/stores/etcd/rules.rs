//! The rules: an answer of etcd in, what it means for a claim out. No input or output.

use super::keys::Keys;
use super::value::{self, Standing, Value, Who};
use super::wire::{Answer, KeyValue, ResponseOp, TxnResponse};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Claim, Held, Id, Loss, LossReason, Token};
use crate::name::LockName;

/// A claim's place in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// When it got in line: the revision that created its key.
    pub(super) create: i64,
    /// The revision that its key was written in last.
    pub(super) revision: i64,
    /// The key just before it, and the revision at which it was there; `None` when that is not known.
    pub(super) before: Option<(Vec<u8>, i64)>,
}

/// What an answer to [`ask`](super::requests::ask) or [`confirm`](super::requests::confirm) means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Granted in this revision.
    Granted(i64),
    /// It is our turn, or may be: confirm it.
    Confirm(Place),
    /// Somebody is before us; with our place if we are in line.
    Held(Held, Option<Place>),
    /// Keys of other locks stand in the way of seeing who is before us; with our place if we are in line.
    Crowded(Option<Place>),
    /// We are not in line any more, or what was there has gone: ask again.
    Again,
}

/// What the answer to a claim's request means.
pub(super) fn step(keys: &Keys, claim: &Claim, answer: TxnResponse) -> Result<Step, StoreError> {
    let revision = answer.header.unwrap_or_default().revision;
    if answer.succeeded {
        return Ok(Step::Granted(revision));
    }
    let mut answers = answer.responses.into_iter();
    let first = next_key(&mut answers);
    let own = next_key(&mut answers);
    let last = next_key(&mut answers);
    let stood = matches!(answers.next(), Some(ResponseOp { answer: Some(Answer::Txn(txn)) }) if txn.succeeded);
    let place = match own {
        Some(own) => match own_standing(claim.id, &own)? {
            Standing::Resting => return Ok(Step::Held(value::held(&own), None)),
            Standing::Waiting | Standing::Granted => {
                Some(Place { create: own.create_revision, revision: own.mod_revision, before: None })
            }
        },
        None => stood.then_some(Place { create: revision, revision, before: None }),
    };
    Ok(behind(keys, claim, first, last, place, revision))
}

fn behind(
    keys: &Keys,
    claim: &Claim,
    first: Option<KeyValue>,
    last: Option<KeyValue>,
    place: Option<Place>,
    revision: i64,
) -> Step {
    let in_line = |kv: &KeyValue| keys.is_in_line(&claim.name, &kv.key);
    let Some(first) = first else { return Step::Again };
    let Some(mut place) = place else {
        return if in_line(&first) { Step::Held(value::held(&first), None) } else { Step::Crowded(None) };
    };
    if first.create_revision == place.create {
        return Step::Confirm(place);
    }
    match last {
        _ if !in_line(&first) => Step::Crowded(Some(place)),
        Some(last) if last.create_revision < place.create && !in_line(&last) => Step::Crowded(Some(place)),
        last => {
            place.before = last
                .filter(|last| last.create_revision < place.create)
                .map(|last| (last.key, revision));
            Step::Held(value::held(&first), Some(place))
        }
    }
}

/// What our own key says. Nobody else has reason to write there.
pub(super) fn own_standing(claim: Id, own: &KeyValue) -> Result<Standing, StoreError> {
    Ok(own_value(claim, own)?.state)
}

pub(super) fn own_value(claim: Id, own: &KeyValue) -> Result<Value, StoreError> {
    match value::read(own) {
        Who::Ours(value) if value.claim == claim => Ok(*value),
        Who::Ours(_) | Who::Foreign(_) => {
            Err(Fault::new(ErrorKind::Corrupt, "somebody has overwritten our key in etcd")
                .with_help("nothing but leasehold and other lock clients may write below a lock's name")
                .not_applied())
        }
    }
}

/// The token of a grant that was made in `revision`.
pub(super) fn token_of(revision: i64) -> Result<Token, StoreError> {
    u64::try_from(revision).ok().and_then(Token::new).ok_or_else(|| {
        Fault::new(ErrorKind::Corrupt, format!("etcd's revision {revision} is no fencing token: they are below 2^53"))
            .not_applied()
    })
}

/// How a grant whose key is gone was lost: told by its mark, and by who is first now.
pub(super) fn loss(keys: &Keys, name: &LockName, token: Token, answer: TxnResponse) -> Loss {
    let mut answers = answer.responses.into_iter();
    let mark = next_key(&mut answers);
    let first = next_key(&mut answers).filter(|first| keys.is_in_line(name, &first.key));
    let reason = match first.map(|first| value::held(&first)) {
        _ if mark.is_some() => LossReason::Ended,
        Some(held) if !held.resting => LossReason::TakenOver { by: held },
        Some(_) | None => LossReason::Deleted,
    };
    Loss::new(name.clone(), token, reason)
}

/// The key of the next answer, which is to a range of at most one.
pub(super) fn next_key(answers: &mut impl Iterator<Item = ResponseOp>) -> Option<KeyValue> {
    match answers.next()?.answer? {
        Answer::Range(range) => range.kvs.into_iter().next(),
        Answer::Put(_) | Answer::DeleteRange(_) | Answer::Txn(_) => None,
    }
}
