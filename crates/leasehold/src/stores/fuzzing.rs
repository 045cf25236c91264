//! Checks of the URL parsers of the stores and of object keys, for the fuzz targets and for tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a property fails by panicking")]

use crate::error::Result;
use crate::lease::StoreOptions;
use crate::types::LockName;
use crate::url::StoreUrl;

/// Returns the settings that the store of `url` parses from it, in `Debug` form. Parses `url` as a store and, if the
/// store keeps objects, also as an object.
pub(crate) fn readings(url: &StoreUrl) -> Vec<Result<String>> {
    let mut options = StoreOptions::default();
    match url.scheme() {
        "mem" => vec![super::memory::open(url.clone(), options).map(|_| String::new())],
        #[cfg(any(fuzzing, feature = "s3"))]
        "s3" => super::s3::fuzzing::readings(url, &mut options),
        #[cfg(any(fuzzing, feature = "gcs"))]
        "gs" => super::gcs::fuzzing::readings(url, &mut options),
        #[cfg(any(fuzzing, feature = "azure"))]
        "azblob" => super::azure::fuzzing::readings(url, &mut options),
        #[cfg(any(fuzzing, feature = "dynamodb"))]
        "dynamodb" => vec![super::dynamodb::fuzzing::reading(url, &mut options)],
        #[cfg(any(fuzzing, feature = "etcd"))]
        "etcd" => vec![super::etcd::fuzzing::reading(url, &mut options)],
        #[cfg(feature = "sqlite")]
        "sqlite" => vec![super::sqlite::fuzzing::reading(url)],
        _ => vec![url.clone().checked(&mut options).map(|_| String::new())],
    }
}

/// Asserts that the object of `name` belongs to no other name, and that a listing finds it.
#[allow(unused_variables, reason = "with the features of stores of objects")]
pub(crate) fn assert_is_kept_by_objects(name: &LockName) {
    #[cfg(any(fuzzing, feature = "_bucket"))]
    for keys in [super::buckets::Keys::below("a/b"), super::buckets::Keys::verbatim("")] {
        let object = keys.object(name.as_str());
        assert!(object.len() <= 1_024 - ".lock".len(), "{object}");
        assert_eq!(keys.register(&object).as_deref(), Some(name.as_str()));
    }
}
