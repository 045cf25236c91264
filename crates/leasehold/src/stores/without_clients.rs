//! The parts of each store that parse external input, without its client. For the fuzz targets, because an instrumented
//! build of all clients takes many minutes.
#![allow(dead_code, reason = "only what reads is used here")]

pub(super) mod aws {
    pub(in crate::stores) mod access;
}

pub(crate) mod dynamodb {
    mod attribute;
    mod config;
    mod dialect;
    pub(crate) mod fuzzing;
    mod item;

    use self::attribute::AttributeValue;
}

pub(crate) mod etcd {
    mod config;
    pub(crate) mod fuzzing;
    mod keys;
    mod login;
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
