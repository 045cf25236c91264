//! Properties of the keys and values in a lock's queue that hold for any bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a property fails by panicking")]

use super::config::Location;
use super::keys::{Keys, Names};
use super::value::{Owner, Standing, held, read, token};
use super::wire::KeyValue;
use crate::error::Result;
use crate::fuzzing::assert_readable;
use crate::lease::{StoreOptions, Token, Ttl};
use crate::types::LockName;
use crate::url::StoreUrl;

pub(in crate::stores) fn reading(url: &StoreUrl, options: &mut StoreOptions) -> Result<String> {
    Location::from_url(url.clone(), options).map(|location| format!("{location:?}"))
}

/// Asserts that a value of leasehold is written back as it was read, and that any other value is an unknown holder
/// without a token.
///
/// The first line of `data` is the key, the second its mod revision, and the rest its value.
pub fn etcd_key(data: &[u8]) {
    let mut lines = data.splitn(3, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default().to_vec();
    let (key, revision, value) = (line(), line(), line());
    let mod_revision = String::from_utf8_lossy(&revision).parse().unwrap_or(7);
    let kv = KeyValue { key, create_revision: 5, mod_revision, value, lease: 9 };
    found_under_its_name(&kv.key);
    let shown = held(&kv);
    assert_readable(&shown.to_string());
    assert!(shown.token.is_none_or(|token| token.get() < Token::LIMIT));
    match read(&kv) {
        Owner::Foreign(what) => {
            assert!(what.chars().count() < 400, "{what}");
            assert_eq!((shown.foreign, shown.token, shown.holder), (Some(what), None, None));
        }
        Owner::Ours(ours) => {
            assert!(shown.foreign.is_none());
            let written = KeyValue { value: ours.to_bytes().unwrap(), ..kv.clone() };
            assert_eq!(read(&written), Owner::Ours(ours.clone()));
            assert!(ours.ttl().is_some_and(|ttl| ttl.get() >= Ttl::MIN));
            assert!(ours.lease_seconds() >= 1);
            assert!(ours.state != Standing::Waiting || token(&kv, &ours).is_none());
            assert_readable(&ours.holder.to_string());
            assert_eq!(ours.leasehold, 1, "neither newer nor of no format");
            assert!(ours.state != Standing::Cooldown || ours.cooldown_ms.is_some());
        }
    }
}

/// Asserts that a key that is listed as a lock's key is in that lock's queue.
fn found_under_its_name(key: &[u8]) {
    for keys in [Keys::new(String::new()), Keys::new("app/".to_owned())] {
        let Some(name) = keys.lock_of(key) else { continue };
        assert!(LockName::new(name.as_str()).is_ok());
        assert!(keys.is_in_line(&name, key));
        let line = keys.line(&name);
        assert!(*line.key <= *key && (*key < *line.end || *line.end == [0]), "{line:?}");
        let mut names = Names::default();
        assert_eq!(names.fresh(name.clone()).as_ref(), Some(&name));
        assert_eq!(names.fresh(name), None);
    }
}
