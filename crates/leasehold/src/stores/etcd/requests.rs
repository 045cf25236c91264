//! The transactions. Each transition of a lock is one transaction, and its condition makes the transition safe.

use super::keys::Keyspace;
use super::wire::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, Op, PutRequest, RangeRequest,
    RequestOp, SortOrder, SortTarget, TxnRequest,
};

/// The maximum number of comparisons in a transaction. etcd's limit (`--max-txn-ops`) is 128 by default.
pub(super) const MAX_COMPARISONS: usize = 100;

/// A claim's own key, and the values to write there.
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

/// Grants the lock if the queue is empty. Otherwise returns the first key, the claim's own key and the last key, in
/// this order. A claim that `waits` also enters the queue, after these reads.
pub(super) fn ask(line: &Keyspace, own: Own<'_>, waits: bool) -> TxnRequest {
    // etcd compares a range without keys like a key of revision 0, and no key has that revision.
    let empty = compare_range(line, CompareResult::Equal, 0);
    let mut failure = read_line(line, own.key, 0);
    if waits {
        let enter = TxnRequest {
            compare: vec![created(own.key, CompareResult::Equal, 0)],
            success: vec![own.put(own.waiting)],
            failure: Vec::new(),
        };
        failure.push(op(Op::Txn(enter)));
    }
    TxnRequest { compare: vec![empty], success: vec![own.put(own.granted)], failure }
}

/// Enters the queue even if it is empty, for locks whose keys are mixed with those of other locks. If the own key
/// exists, returns it.
pub(super) fn enter_queue(own: Own<'_>) -> TxnRequest {
    TxnRequest {
        compare: vec![created(own.key, CompareResult::Equal, 0)],
        success: vec![own.put(own.waiting)],
        failure: vec![get(own.key)],
    }
}

/// Grants the lock if the own key, created in `create`, has not been written since `revision`, and no earlier key
/// exists. Fails if the claim's lease expired while it waited, because its key then no longer exists. A failed
/// transaction returns the same keys as [`ask`], except that the last key is the one just before the own key.
pub(super) fn confirm(line: &Keyspace, own: Own<'_>, create: i64, revision: i64) -> TxnRequest {
    let mut request = confirm_alone(line, own, create, revision);
    request.compare.push(compare_range(line, CompareResult::Greater, create - 1));
    request
}

/// Like [`confirm`], but without the check for earlier keys. For a claim for which no earlier key exists or can be
/// created.
pub(super) fn confirm_alone(line: &Keyspace, own: Own<'_>, create: i64, revision: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![unchanged(own.key, revision)],
        success: vec![own.put(own.granted)],
        failure: read_line(line, own.key, create - 1),
    }
}

/// Writes the key with another value and lease if it has not been written since `revision`. Otherwise returns the key.
pub(super) fn rewrite(key: &[u8], revision: i64, value: &[u8], lease: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![unchanged(key, revision)],
        success: vec![put(key, value, lease)],
        failure: vec![get(key)],
    }
}

/// Deletes the key if it has not been written since `revision`, and writes `mark`, a key and its lease, for the holder
/// to find. Otherwise returns the key.
pub(super) fn end(key: &[u8], revision: i64, mark: Option<(&[u8], i64)>) -> TxnRequest {
    let mut success = vec![op(Op::DeleteRange(DeleteRangeRequest { key: key.to_vec() }))];
    success.extend(mark.map(|(mark, lease)| put(mark, b"ended by another", lease)));
    TxnRequest { compare: vec![unchanged(key, revision)], success, failure: vec![get(key)] }
}

/// Deletes the key regardless of its content. For a key that no other client knows.
pub(super) fn remove(key: &[u8]) -> TxnRequest {
    let success = vec![op(Op::DeleteRange(DeleteRangeRequest { key: key.to_vec() }))];
    TxnRequest { compare: Vec::new(), success, failure: Vec::new() }
}

/// Checks that no key has been written since its revision (0: the key does not exist). If the check fails, returns all
/// keys.
pub(super) fn check<'a>(keys: impl Iterator<Item = (&'a [u8], i64)> + Clone) -> TxnRequest {
    // Includes the values, because etcd 3.7 omits the lease of a key if it omits the value.
    let failure = keys.clone().map(|(key, _)| get(key));
    TxnRequest {
        compare: keys.clone().map(|(key, revision)| unchanged(key, revision)).collect(),
        success: Vec::new(),
        // Must not be empty, because a transaction that only compares would not be linearizable.
        failure: failure.collect(),
    }
}

/// Reads the keys that show how a claim ended: its mark, and the first key of the queue.
pub(super) fn end_of_claim(mark: &[u8], line: &Keyspace) -> TxnRequest {
    TxnRequest {
        compare: Vec::new(),
        success: vec![get(mark), op(Op::Range(first(line)))],
        failure: Vec::new(),
    }
}

/// Reads the first key of the queue.
pub(super) fn first(line: &Keyspace) -> RangeRequest {
    sorted(line, SortOrder::Ascend)
}

/// Reads the oldest keys of a lock's queue, at most `limit`.
pub(super) fn oldest(line: &Keyspace, limit: usize) -> RangeRequest {
    RangeRequest { limit: i64::try_from(limit).unwrap_or(i64::MAX), ..first(line) }
}

/// Reads a page of the keys from `key` on, without their values. If `create` is not 0, reads only the keys that were
/// created up to this revision.
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

/// Reads the first key, the own key, and the last key that was created up to the revision `create` (0: any revision).
fn read_line(line: &Keyspace, own: &[u8], create: i64) -> Vec<RequestOp> {
    // Includes the value, which shows who waits directly before this claim.
    let last = RangeRequest { max_create_revision: create, ..sorted(line, SortOrder::Descend) };
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

/// Compares the mod revision and not the create revision, because a later write was made with later information.
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
