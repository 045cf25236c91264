//! The parts of each store without its client: what it reads from outside, and its rules. For the fuzz targets and
//! `.ci/mutants`: an instrumented build of all clients takes many minutes, and a normal one many seconds for each
//! mutant.
#![allow(dead_code, reason = "only the functions that read are used here")]

pub(super) mod aws {
    pub(in crate::stores) mod access;
}

pub(super) mod azure {
    mod config;
    mod errors;
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
    mod login;
    mod rules;
    mod value;

    mod wire {
        /// As in the messages.
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
    mod errors;
    pub(in crate::stores) mod fuzzing;
}

pub(super) mod s3 {
    mod config;
    pub(in crate::stores) mod fuzzing;
    mod settings;
}
