//! Maps register keys to object keys and back.
//!
//! All characters except `/` and RFC 3986's unreserved characters are percent-encoded. So no store, proxy or tool
//! interprets any part of a key, and each object key stands for exactly one register key.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The keys below one prefix of a bucket.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Keys {
    /// Empty, or ends with `/`. Not encoded, because the user's prefix may already exist, and policies may name it.
    base: String,
    encoded: bool,
}

impl Keys {
    /// Returns the keys below `prefix`, which has no `/` at either end. An empty prefix stands for the whole bucket.
    pub(in crate::stores) fn below(prefix: &str) -> Self {
        Self { base: if prefix.is_empty() { String::new() } else { format!("{prefix}/") }, encoded: true }
    }

    /// Like [`below`](Self::below), but object keys equal the register keys, to share objects with other clients.
    pub(in crate::stores) fn verbatim(prefix: &str) -> Self {
        Self { encoded: false, ..Self::below(prefix) }
    }

    /// Returns the object key for the register key `key`. For a prefix of register keys, returns the prefix of their
    /// object keys.
    pub(in crate::stores) fn object(&self, key: &str) -> String {
        if self.encoded {
            format!("{}{}", self.base, utf8_percent_encode(key, ENCODED))
        } else {
            format!("{}{key}", self.base)
        }
    }

    /// Returns the register key for the object key `object`. Returns `None` for an object key that
    /// [`object`](Self::object) never returns.
    pub(in crate::stores) fn register(&self, object: &str) -> Option<String> {
        let encoded = object.strip_prefix(&self.base)?;
        if !self.encoded {
            return Some(encoded.to_owned());
        }
        let key = percent_decode_str(encoded).decode_utf8().ok()?;
        // `%61` also decodes to `a`, but leasehold never encodes `a`. Two objects must not have the same register key.
        (utf8_percent_encode(&key, ENCODED).to_string() == encoded).then(|| key.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_unreserved_characters_and_slashes_stand_for_themselves() {
        let keys = Keys::below("my locks");
        for (key, object) in [
            ("deploy/prod.lock", "my locks/deploy/prod.lock"),
            ("a b+c.lock", "my locks/a%20b%2Bc.lock"),
            ("50%/ü~_-.lock", "my locks/50%25/%C3%BC~_-.lock"),
            (".leasehold-probe", "my locks/.leasehold-probe"),
        ] {
            assert_eq!(keys.object(key), object);
            assert_eq!(keys.register(object).as_deref(), Some(key));
        }
        assert_eq!(Keys::below("").object("a.lock"), "a.lock");
    }

    #[test]
    fn verbatim_keys_are_left_as_they_are() {
        let keys = Keys::verbatim("p");
        for key in ["x.lock", "a b%20", "ü/x"] {
            assert_eq!(keys.object(key), format!("p/{key}"));
            assert_eq!(keys.register(&keys.object(key)).as_deref(), Some(key));
        }
        assert_eq!(keys.register("q/x"), None);
    }

    #[test]
    fn objects_that_are_not_ours_are_no_keys() {
        let keys = Keys::below("p");
        for object in
            ["q/a.lock", "p", "pa.lock", "p/a b.lock", "p/%61.lock", "p/%2f", "p/%FF.lock", "p/%zz", "p/%"]
        {
            assert_eq!(keys.register(object), None, "{object}");
        }
    }

    proptest! {
        #[test]
        fn every_key_survives_encoding_and_prefixes_stay_prefixes(key in ".{0,40}", more in ".{0,10}") {
            let keys = Keys::below("a/b");
            let object = keys.object(&format!("{key}{more}"));
            prop_assert!(object.starts_with(&keys.object(&key)));
            prop_assert!(object.bytes().all(|b| b.is_ascii_graphic()));
            prop_assert_eq!(keys.register(&object), Some(format!("{}{}", key, more)));
        }
    }
}
