//! The parts of each store that do not need its client library: its parsers and its rules. The fuzz targets and
//! `.ci/mutants` build only these parts, because an instrumented build of all client libraries takes many minutes, and
//! a normal build takes many seconds for each mutant.
#![allow(dead_code, reason = "only the parsers are used here")]

pub(super) mod aws {
    pub(in crate::stores) mod access;
}

pub(super) mod azure {
    mod config;
    pub(in crate::stores) mod fuzzing;
}

pub(crate) mod dynamodb {
    mod attribute;
    mod config;
    mod dialect;
    mod expression;
    pub(crate) mod fuzzing;
    mod item;

    use self::attribute::AttributeValue;
}

pub(crate) mod etcd {
    mod config;
    pub(crate) mod fuzzing;
    mod keys;
    mod rules;
    mod value;

    mod wire {
        /// Has the same fields as the gRPC message.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(super) struct KeyValue {
            pub(super) key: Vec<u8>,
            pub(super) create_revision: i64,
            pub(super) mod_revision: i64,
            pub(super) value: Vec<u8>,
            pub(super) lease: i64,
        }

        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct ResponseHeader {
            pub(super) revision: i64,
            pub(super) raft_term: u64,
        }

        #[derive(Debug, Default)]
        pub(super) struct RangeResponse {
            pub(super) header: Option<ResponseHeader>,
            pub(super) kvs: Vec<KeyValue>,
        }

        #[derive(Debug, Default)]
        pub(super) struct TxnResponse {
            pub(super) header: Option<ResponseHeader>,
            pub(super) succeeded: bool,
            pub(super) responses: Vec<ResponseOp>,
        }

        #[derive(Debug, Default)]
        pub(super) struct ResponseOp {
            pub(super) answer: Option<Answer>,
        }

        #[derive(Debug)]
        pub(super) enum Answer {
            Range(RangeResponse),
            Put(()),
            DeleteRange(()),
            Txn(TxnResponse),
        }
    }
}

pub(super) mod gcs {
    mod config;
    pub(in crate::stores) mod fuzzing;
}

pub(super) mod s3 {
    mod config;
    pub(in crate::stores) mod fuzzing;
    mod settings;
}
