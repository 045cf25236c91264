//! How the options of a URL are parsed.

use super::config::Location;
use crate::lease::StoreOptions;
use crate::stores::fuzzing::Reading;
use crate::url::StoreUrl;

pub(in crate::stores) fn readings(url: &StoreUrl, options: &mut StoreOptions) -> Vec<Reading> {
    vec![
        Location::from_url(url.clone(), options).map(|location| format!("{location:?}")),
        Location::of_object(url.clone()).map(|object| format!("{object:?}")),
    ]
}
