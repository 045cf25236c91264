//! The messages of etcd's gRPC interface, version 3, as far as leasehold uses them. The field numbers are those of
//! `etcdserver/etcdserverpb/rpc.proto` and `mvcc/mvccpb/kv.proto`. The names are those of the protocol.
//!
//! Written by hand, because the generator needs a protobuf compiler, which a fresh machine does not have.

use prost::{Enumeration, Message, Oneof};

/// The header of every response.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ResponseHeader {
    /// The store's revision when the request was executed. For a write, the revision that it created.
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
    /// The term of the leader that the responding member followed.
    #[prost(uint64, tag = "4")]
    pub(super) raft_term: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub(super) sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub(super) sort_target: i32,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
    #[prost(int64, tag = "13")]
    pub(super) max_create_revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum SortOrder {
    None = 0,
    Ascend = 1,
    Descend = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum SortTarget {
    Key = 0,
    Create = 2,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    pub(super) deleted: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Op", tags = "1, 2, 3, 4")]
    pub(super) op: Option<Op>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(super) enum Op {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "Answer", tags = "1, 2, 3, 4")]
    pub(super) answer: Option<Answer>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(super) enum Answer {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Compare {
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub(super) result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(oneof = "CompareWith", tags = "5, 6")]
    pub(super) with: Option<CompareWith>,
    /// If set, the comparison must hold for every key in the range. A range without keys compares like one key of
    /// revision 0.
    #[prost(bytes = "vec", tag = "64")]
    pub(super) range_end: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum CompareResult {
    Equal = 0,
    Greater = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum CompareTarget {
    Version = 0,
    Create = 1,
    Mod = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub(super) enum CompareWith {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

/// `ttl` is in seconds. The client chooses `id`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

/// The remaining seconds, rounded down. Negative if there is no such lease.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct LeaseTimeToLiveResponse {
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct LeaseRevokeResponse {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

/// `ttl` is in seconds. It is 0 if there is no such lease.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct LeaseKeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchAsk", tags = "1, 2")]
    pub(super) ask: Option<WatchAsk>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(super) enum WatchAsk {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    /// The first key after the range. Empty for `key` alone.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
    #[prost(enumeration = "WatchFilter", repeated, tag = "5")]
    pub(super) filters: Vec<i32>,
    /// The client chooses it.
    #[prost(int64, tag = "7")]
    pub(super) watch_id: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum WatchFilter {
    NoPut = 0,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct WatchCancelRequest {
    #[prost(int64, tag = "1")]
    pub(super) watch_id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchResponse {
    #[prost(int64, tag = "2")]
    pub(super) watch_id: i64,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

/// A change of a key. Its content does not matter, because a waiter reads the key again.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Event {}

#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

impl std::fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateRequest").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateResponse").finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct StatusRequest {}

/// The status of one member.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct StatusResponse {
    #[prost(string, tag = "2")]
    pub(super) version: String,
    /// The member that this member considers the leader; 0 for none.
    #[prost(uint64, tag = "4")]
    pub(super) leader: u64,
    /// Errors, including alarms.
    #[prost(string, repeated, tag = "8")]
    pub(super) errors: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct MemberListRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) members: Vec<ClusterMember>,
}

/// A member of the cluster. Only the number of members matters.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ClusterMember {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
}
