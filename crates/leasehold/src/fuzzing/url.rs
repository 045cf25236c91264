//! Properties of store URLs, and of their parsing by each store.

use super::{assert_readable, assert_readable_error};
use crate::error::Error;
use crate::stores::fuzzing::readings;
use crate::url::StoreUrl;

/// A password. The property puts it in every place where a URL may contain one.
const SECRET: &str = "hunter2-9f3k";

/// The displayed form of a URL parses to the same URL without its secrets. No output shows a secret.
///
/// The first line of `data` is the URL. The next two lines are the text before and after a password.
pub fn store_url(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.split('\n');
    let url = lines.next().unwrap_or_default();
    assert_round_trip(url);
    if text.contains("hunter2") {
        return;
    }
    let (before, after) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    for scheme in ["s3", "gs", "dynamodb", "etcd", "sqlite", "mem", "other"] {
        // The password is not percent-encoded, because users may not know that it must be.
        assert_hidden(&format!("{scheme}://user:{before}{SECRET}{after}@host1:2379/prefix"));
        assert_hidden(&format!("{scheme}://user:{before}{SECRET}{after}@host1/a?region=eu-west-1"));
    }
    if let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| !scheme.contains(':')) {
        assert_hidden(&format!("{scheme}://user:{SECRET}@{rest}"));
        let and = if rest.contains('?') { '&' } else { '?' };
        for option in ["secret_key", "password", "Secret", "token", "credentials", "api_key"] {
            assert_hidden(&format!("{url}{and}{option}={SECRET}"));
        }
    }
}

fn assert_round_trip(text: &str) {
    let url = match StoreUrl::parse(text) {
        Ok(url) => url,
        Err(error) => return assert_readable_error(&error),
    };
    let shown = url.to_string();
    assert_readable(&shown);
    let again = StoreUrl::parse(&shown).unwrap_or_else(|error| panic!("{shown:?}: {error:?}"));
    assert_eq!(again.to_string(), shown);
    if !shown.contains("***") {
        assert_eq!(again, url, "{shown:?}");
    }
    for reading in readings(&url) {
        match reading {
            Ok(shown) => assert_readable(&shown),
            Err(error) => assert_readable_error(&error),
        }
    }
}

fn assert_hidden(text: &str) {
    let hidden = |shown: String| assert!(!shown.contains(SECRET), "{text:?}: {shown}");
    let in_error = |error: Error| hidden(format!("{error} {error:?} {:?}", error.help()));
    match StoreUrl::parse(text) {
        Ok(url) => {
            hidden(url.to_string());
            hidden(format!("{url:?}"));
            for reading in readings(&url) {
                reading.map_or_else(in_error, hidden);
            }
        }
        Err(error) => in_error(error),
    }
}
