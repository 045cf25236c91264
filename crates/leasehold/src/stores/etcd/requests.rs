//! The transactions: each transition of a lock is one of them, and its condition is what makes it safe.

use super::keys::Keyspace;
use super::wire::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, Op, PutRequest, RangeRequest,
    RequestOp, SortOrder, SortTarget, TxnRequest,
};

/// How many comparisons etcd takes in one transaction (`--max-txn-ops` is 128 unless set otherwise).
pub(super) const MOST_COMPARISONS: usize = 100;

/// A claim's own key, and what is to be written there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own<'a> {
    pub(super) key: &'a [u8],
    pub(super) lease: i64,
    pub(super) granted: &'a [u8],
    pub(super) waiting: &'a [u8],
}

impl Own<'_> {
    fn put(&self, value: &[u8]) -> RequestOp {
        put(self.key, value, self.lease)
    }
}

/// Nobody is there: granted. Else says who is first, what lies under the own key, and who is last; and, for a claim that
/// `waits`, gets in line. The answers come in this order.
pub(super) fn ask(line: &Keyspace, own: Own<'_>, waits: bool) -> TxnRequest {
    // A range without keys compares as a key of revision 0, and no key has that.
    let nobody = compare_range(line, CompareResult::Equal, 0);
    let mut failure = look(line, own.key, 0);
    if waits {
        let stand = TxnRequest {
            compare: vec![created(own.key, CompareResult::Equal, 0)],
            success: vec![own.put(own.waiting)],
            failure: Vec::new(),
        };
        failure.push(op(Op::Txn(stand)));
    }
    TxnRequest { compare: vec![nobody], success: vec![own.put(own.granted)], failure }
}

/// Gets in line, whoever is there: for locks among whose keys are those of other locks. Else gives what lies there.
pub(super) fn stand(own: Own<'_>) -> TxnRequest {
    TxnRequest {
        compare: vec![created(own.key, CompareResult::Equal, 0)],
        success: vec![own.put(own.waiting)],
        failure: vec![get(own.key)],
    }
}

/// The own key, created in `create`, still is as it was written in `revision`, and nobody came before: granted. Its
/// lease may have expired while it waited; then it is not there, and this fails. Else as [`ask`], with the one just
/// before the own key in place of the last.
pub(super) fn confirm(line: &Keyspace, own: Own<'_>, create: i64, revision: i64) -> TxnRequest {
    let mut request = confirm_alone(line, own, create, revision);
    request.compare.push(compare_range(line, CompareResult::Greater, create - 1));
    request
}

/// As [`confirm`], for a claim before which nobody can be any more.
pub(super) fn confirm_alone(line: &Keyspace, own: Own<'_>, create: i64, revision: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![unchanged(own.key, revision)],
        success: vec![own.put(own.granted)],
        failure: look(line, own.key, create - 1),
    }
}

/// The key as it was written in `revision` gets another value and lease. Else gives what lies there.
pub(super) fn rewrite(key: &[u8], revision: i64, value: &[u8], lease: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![unchanged(key, revision)],
        success: vec![put(key, value, lease)],
        failure: vec![get(key)],
    }
}

/// The key as it was written in `revision` is deleted, with `mark`, a key and its lease, written for its holder to find.
/// Else gives what lies there.
pub(super) fn end(key: &[u8], revision: i64, mark: Option<(&[u8], i64)>) -> TxnRequest {
    let mut success = vec![op(Op::DeleteRange(DeleteRangeRequest { key: key.to_vec() }))];
    success.extend(mark.map(|(mark, lease)| put(mark, b"ended by another", lease)));
    TxnRequest { compare: vec![unchanged(key, revision)], success, failure: vec![get(key)] }
}

/// The key is deleted, whatever lies there: one that nobody else knows of.
pub(super) fn remove(key: &[u8]) -> TxnRequest {
    let success = vec![op(Op::DeleteRange(DeleteRangeRequest { key: key.to_vec() }))];
    TxnRequest { compare: Vec::new(), success, failure: Vec::new() }
}

/// Whether each key still is as it was written in its revision (0: is not there). Else gives them all.
pub(super) fn check<'a>(keys: impl Iterator<Item = (&'a [u8], i64)> + Clone) -> TxnRequest {
    // Whole: without its value, etcd 3.7 leaves out a key's lease too.
    let failure = keys.clone().map(|(key, _)| get(key));
    TxnRequest {
        compare: keys.clone().map(|(key, revision)| unchanged(key, revision)).collect(),
        success: Vec::new(),
        // Not empty: a transaction of comparisons alone would not be linearizable.
        failure: failure.collect(),
    }
}

/// What became of a claim that is gone: its mark, and who is first now.
pub(super) fn post_mortem(mark: &[u8], line: &Keyspace) -> TxnRequest {
    TxnRequest {
        compare: Vec::new(),
        success: vec![get(mark), op(Op::Range(first(line)))],
        failure: Vec::new(),
    }
}

/// Who is first in line.
pub(super) fn first(line: &Keyspace) -> RangeRequest {
    sorted(line, SortOrder::Ascend)
}

/// A page of the keys from `key` on, without their values; with `create`, of those that were created by then.
pub(super) fn page(key: Vec<u8>, end: Vec<u8>, limit: i64, create: i64) -> RangeRequest {
    RangeRequest {
        key,
        range_end: end,
        limit,
        sort_order: SortOrder::None.into(),
        sort_target: SortTarget::Key.into(),
        keys_only: true,
        max_create_revision: create,
    }
}

pub(super) fn exactly(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// The first in line, the own key, the last that was created until `create` (0: of all).
fn look(line: &Keyspace, own: &[u8], create: i64) -> Vec<RequestOp> {
    let last =
        RangeRequest { keys_only: true, max_create_revision: create, ..sorted(line, SortOrder::Descend) };
    vec![op(Op::Range(first(line))), get(own), op(Op::Range(last))]
}

fn sorted(line: &Keyspace, order: SortOrder) -> RangeRequest {
    RangeRequest {
        key: line.key.clone(),
        range_end: line.end.clone(),
        limit: 1,
        sort_order: order.into(),
        sort_target: SortTarget::Create.into(),
        keys_only: false,
        max_create_revision: 0,
    }
}

fn op(op: Op) -> RequestOp {
    RequestOp { op: Some(op) }
}

fn get(key: &[u8]) -> RequestOp {
    op(Op::Range(exactly(key)))
}

fn put(key: &[u8], value: &[u8], lease: i64) -> RequestOp {
    op(Op::Put(PutRequest { key: key.to_vec(), value: value.to_vec(), lease }))
}

/// By the mod revision and not the create revision: whatever was written since was written by someone who knew more.
fn unchanged(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.to_vec(),
        with: Some(CompareWith::ModRevision(revision)),
        range_end: Vec::new(),
    }
}

fn created(key: &[u8], result: CompareResult, revision: i64) -> Compare {
    Compare {
        result: result.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        with: Some(CompareWith::CreateRevision(revision)),
        range_end: Vec::new(),
    }
}

fn compare_range(line: &Keyspace, result: CompareResult, revision: i64) -> Compare {
    Compare { range_end: line.end.clone(), ..created(&line.key, result, revision) }
}
