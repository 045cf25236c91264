//! The rules. They derive the meaning of a response of etcd for a claim. They do no I/O.

use super::keys::Keys;
use super::value::{self, Owner, Standing, Value};
use super::wire::{Answer, KeyValue, ResponseOp, TxnResponse};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Claim, HolderInfo, Id, LossReason, Token};
use crate::types::LockName;

/// A claim's place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The revision that created its key.
    pub(super) create: i64,
    /// The revision of the latest write to its key.
    pub(super) revision: i64,
    /// The key just before it, and the revision at which that key existed; `None` if unknown.
    pub(super) before: Option<(Vec<u8>, i64)>,
}

/// The meaning of a response to [`ask`](super::requests::ask) or [`confirm`](super::requests::confirm).
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "only one value exists at a time, and only briefly")]
pub(super) enum Step {
    /// Granted in this revision.
    Granted(i64),
    /// It may be our turn. This must be confirmed.
    Confirm(Place),
    /// Another claim is before us. Contains our place if we are in the queue.
    Held(HolderInfo, Option<Place>),
    /// Keys of other locks hide the key before ours. Contains our place if we are in the queue.
    Crowded(Option<Place>),
    /// We are no longer in the queue, or the key before ours is gone. Send the first request again.
    Again,
}

/// Determines the meaning of the response to a claim's request.
pub(super) fn step(keys: &Keys, claim: &Claim, answer: TxnResponse) -> Result<Step, StoreError> {
    let revision = answer.header.unwrap_or_default().revision;
    if answer.succeeded {
        return Ok(Step::Granted(revision));
    }
    let mut answers = answer.responses.into_iter();
    let first = next_key(&mut answers);
    let own = next_key(&mut answers);
    let last = next_key(&mut answers);
    let entered =
        matches!(answers.next(), Some(ResponseOp { answer: Some(Answer::Txn(txn)) }) if txn.succeeded);
    let place = match own {
        Some(own) => match own_standing(claim.id, &own)? {
            Standing::Cooldown => return Ok(Step::Held(value::held(&own), None)),
            Standing::Waiting | Standing::Granted => {
                Some(Place { create: own.create_revision, revision: own.mod_revision, before: None })
            }
        },
        None => entered.then_some(Place { create: revision, revision, before: None }),
    };
    Ok(step_in_line(keys, claim, first, last, place, revision))
}

fn step_in_line(
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
            let mut held = value::held(&first);
            if let Some(last) = last.filter(|last| last.create_revision < place.create) {
                if last.key == first.key {
                    // No key is between that of the holder and ours.
                    held.ahead = Some(0);
                } else {
                    held.waiter_ahead = value::waiter(&last).map(|waiter| waiter.holder);
                }
                place.before = Some((last.key, revision));
            }
            Step::Held(held, Some(place))
        }
    }
}

/// Returns the state in our own key. No other client has a reason to write there.
pub(super) fn own_standing(claim: Id, own: &KeyValue) -> Result<Standing, StoreError> {
    Ok(own_value(claim, own)?.state)
}

pub(super) fn own_value(claim: Id, own: &KeyValue) -> Result<Value, StoreError> {
    match value::read(own) {
        Owner::Ours(value) if value.claim == claim => Ok(*value),
        Owner::Ours(_) | Owner::Foreign(_) => Err(Fault::new(
            ErrorKind::Corrupt,
            "another client has overwritten the key of this process in etcd",
        )
        .with_help("nothing but leasehold and other lock clients may write below a lock's name")
        .not_applied()),
    }
}

/// Returns the token of a grant in `revision`.
pub(super) fn token_of(revision: i64) -> Result<Token, StoreError> {
    u64::try_from(revision).ok().and_then(Token::new).ok_or_else(|| {
        Fault::new(
            ErrorKind::Corrupt,
            format!("etcd's revision {revision} is not a fencing token: tokens are below 2^53"),
        )
        .not_applied()
    })
}

/// Returns why a grant whose key is gone was lost, according to its mark and to the first key of the queue.
pub(super) fn loss(keys: &Keys, name: &LockName, answer: TxnResponse) -> LossReason {
    let mut answers = answer.responses.into_iter();
    let mark = next_key(&mut answers);
    let first = next_key(&mut answers).filter(|first| keys.is_in_line(name, &first.key));
    LossReason::without_history(mark.is_some(), first.map(|first| value::held(&first)))
}

/// Returns the key in the next response. The response must be to a range of at most one key.
pub(super) fn next_key(answers: &mut impl Iterator<Item = ResponseOp>) -> Option<KeyValue> {
    match answers.next()?.answer? {
        Answer::Range(range) => range.kvs.into_iter().next(),
        Answer::Put(_) | Answer::DeleteRange(_) | Answer::Txn(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::wire::{RangeResponse, ResponseHeader};
    use super::*;
    use crate::clock::SystemClock;
    use crate::env::Env;
    use crate::lease::{Holder, Ttl};

    const NOW: i64 = 100;

    fn claim() -> Claim {
        let env = Env::seeded(Arc::new(SystemClock), 1);
        let holder = Holder { name: "me".into(), ..Holder::default() };
        let claim = Claim::new(&env, LockName::new("a").unwrap(), Ttl::DEFAULT, holder);
        // The id of a new claim depends on the time.
        Claim { id: Id::random(&env.random), ..claim }
    }

    fn keys() -> Keys {
        Keys::new("p/".into())
    }

    fn key(path: &str, create_revision: i64, value: Vec<u8>) -> KeyValue {
        KeyValue { key: path.into(), create_revision, mod_revision: create_revision, value, lease: 7 }
    }

    fn own(create_revision: i64, state: Standing) -> KeyValue {
        let key = keys().of_claim(&claim().name, claim().id);
        let value = Value::of(&claim(), state).to_bytes().unwrap();
        KeyValue { key, create_revision, mod_revision: create_revision, value, lease: 7 }
    }

    fn range(kv: Option<KeyValue>) -> ResponseOp {
        let range = RangeResponse { kvs: kv.into_iter().collect(), ..RangeResponse::default() };
        ResponseOp { answer: Some(Answer::Range(range)) }
    }

    /// Returns the step after a request whose condition did not hold.
    fn refused(
        first: Option<KeyValue>,
        own: Option<KeyValue>,
        last: Option<KeyValue>,
        entered: bool,
    ) -> Step {
        let nested = TxnResponse { succeeded: entered, ..TxnResponse::default() };
        let answer = TxnResponse {
            header: Some(ResponseHeader { revision: NOW, raft_term: 1 }),
            succeeded: false,
            responses: vec![
                range(first),
                range(own),
                range(last),
                ResponseOp { answer: Some(Answer::Txn(nested)) },
            ],
        };
        step(&keys(), &claim(), answer).unwrap()
    }

    fn foreign(create: i64) -> KeyValue {
        key("p/a/694d", create, Vec::new())
    }

    #[test]
    fn a_successful_transaction_grants_its_revision_as_token() {
        let header = Some(ResponseHeader { revision: NOW, raft_term: 1 });
        let answer = TxnResponse { header, succeeded: true, responses: Vec::new() };
        assert_eq!(step(&keys(), &claim(), answer).unwrap(), Step::Granted(NOW));
        assert_eq!(token_of(NOW).unwrap().get(), 100);
        assert!(token_of(1 << 53).is_err() && token_of(-1).is_err());
    }

    #[test]
    fn a_refused_try_takes_no_place_and_names_the_holder() {
        let Step::Held(held, None) = refused(Some(foreign(5)), None, Some(foreign(9)), false) else {
            panic!()
        };
        assert!(held.foreign.unwrap().contains("p/a/694d"));
    }

    #[test]
    fn a_waiter_is_placed_behind_the_last_in_line() {
        let last = key("p/a/7", 9, Vec::new());
        let Step::Held(_, Some(place)) = refused(Some(foreign(5)), None, Some(last.clone()), true) else {
            panic!()
        };
        assert_eq!(place, Place { create: NOW, revision: NOW, before: Some((last.key, NOW)) });
    }

    #[test]
    fn being_first_is_not_enough_it_must_be_confirmed() {
        for state in [Standing::Waiting, Standing::Granted] {
            let step = refused(Some(own(5, state)), Some(own(5, state)), None, false);
            assert_eq!(step, Step::Confirm(Place { create: 5, revision: 5, before: None }), "{state:?}");
        }
    }

    #[test]
    fn an_own_place_in_line_is_found_and_those_behind_are_ignored() {
        let mine = own(8, Standing::Waiting);
        let behind = key("p/a/9", 9, Vec::new());
        let found = refused(Some(foreign(5)), Some(mine.clone()), Some(behind), false);
        let Step::Held(_, Some(place)) = found else { panic!() };
        assert_eq!(
            (place.create, place.before),
            (8, None),
            "who is before us is not known from the last of all"
        );
        let found = refused(Some(foreign(5)), Some(mine), Some(foreign(5)), false);
        let Step::Held(_, Some(place)) = found else { panic!() };
        assert_eq!(place.before, Some((foreign(5).key, NOW)));
    }

    #[test]
    fn a_waiter_learns_who_is_directly_before_it() {
        let bob = Holder { name: "bob".into(), ..Holder::default() };
        let waits = Claim { holder: bob.clone(), ..another() };
        let last = key("p/a/7", 9, Value::of(&waits, Standing::Waiting).to_bytes().unwrap());
        for (last, ahead, behind) in
            [(foreign(5), Some(0), None), (last, None, Some(bob)), (key("p/a/7", 9, Vec::new()), None, None)]
        {
            let Step::Held(held, Some(_)) = refused(Some(foreign(5)), None, Some(last), true) else {
                panic!()
            };
            assert_eq!((held.ahead, held.waiter_ahead), (ahead, behind));
        }
    }

    #[test]
    fn the_own_key_does_not_count_as_the_key_before() {
        let mine = own(8, Standing::Waiting);
        let found = refused(Some(foreign(5)), Some(mine.clone()), Some(mine), false);
        let Step::Held(_, Some(place)) = found else { panic!() };
        assert_eq!((place.create, place.before), (8, None), "we do not wait for its end");
    }

    fn in_cooldown() -> KeyValue {
        let value =
            Value::of(&claim(), Standing::Granted).in_cooldown(token_of(5).unwrap(), Duration::from_secs(60));
        KeyValue { value: value.to_bytes().unwrap(), ..own(5, Standing::Granted) }
    }

    #[test]
    fn our_own_cooldown_holds_like_any_other() {
        let in_cooldown = in_cooldown();
        let Step::Held(held, None) = refused(Some(in_cooldown.clone()), Some(in_cooldown), None, false)
        else {
            panic!()
        };
        assert!(held.in_cooldown);
    }

    #[test]
    fn keys_of_other_locks_are_never_taken_for_this_ones() {
        let other = key("p/a/b/694d", 3, Vec::new());
        assert_eq!(refused(Some(other.clone()), None, Some(other.clone()), false), Step::Crowded(None));
        let place = Place { create: 8, revision: 8, before: None };
        let mine = own(8, Standing::Waiting);
        let step = refused(Some(other.clone()), Some(mine.clone()), Some(foreign(5)), false);
        assert_eq!(step, Step::Crowded(Some(place.clone())), "another claim may still be before us");
        let step = refused(Some(foreign(2)), Some(mine), Some(other), false);
        assert_eq!(step, Step::Crowded(Some(place)), "nor is another lock's key watched");
    }

    #[test]
    fn an_overwritten_key_is_not_a_grant() {
        for value in [Vec::new(), b"x".to_vec(), Value::of(&another(), Standing::Granted).to_bytes().unwrap()]
        {
            let kv = KeyValue { value, ..own(5, Standing::Granted) };
            let error = own_standing(claim().id, &kv).unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Corrupt);
        }
        assert_eq!(refused(None, None, None, false), Step::Again);
    }

    fn another() -> Claim {
        let env = Env::seeded(Arc::new(SystemClock), 2);
        Claim::new(&env, claim().name, Ttl::DEFAULT, Holder::default())
    }

    #[test]
    fn a_loss_reports_its_reason() {
        let told = |mark: Option<KeyValue>, first: Option<KeyValue>| {
            let answer = TxnResponse { responses: vec![range(mark), range(first)], ..TxnResponse::default() };
            loss(&keys(), &claim().name, answer)
        };
        let mark = key("p/./1", 9, Vec::new());
        assert_eq!(told(Some(mark), Some(foreign(9))), LossReason::Ended);
        assert!(matches!(told(None, Some(foreign(9))), LossReason::TakenOver { .. }));
        assert_eq!(told(None, Some(key("p/a/b/1", 9, Vec::new()))), LossReason::Deleted);
        assert_eq!(
            told(None, Some(in_cooldown())),
            LossReason::Deleted,
            "a lock in its cooldown was not taken over"
        );
        assert_eq!(told(None, None), LossReason::Deleted);
    }
}
