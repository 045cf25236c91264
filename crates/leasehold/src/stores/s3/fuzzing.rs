//! Parses a URL as a store and as an object, for the fuzzed properties.

use super::config::Location;
use crate::error::Result;
use crate::lease::StoreOptions;
use crate::url::StoreUrl;

pub(in crate::stores) fn readings(url: &StoreUrl, options: &mut StoreOptions) -> Vec<Result<String>> {
    vec![
        Location::from_url(url.clone(), options).map(|location| format!("{location:?}")),
        Location::of_object(url.clone()).map(|object| format!("{object:?}")),
    ]
}
