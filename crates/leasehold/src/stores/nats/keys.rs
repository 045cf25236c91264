//! Maps register keys to subjects and back.
//!
//! A key of a bucket consists of letters, digits and `-/_=.`. All other bytes, and `=`, are written as `=` and two
//! hexadecimal digits. So is a dot that would leave a part between dots empty. Plain names stay readable.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'/').remove(b'_').remove(b'.');

/// The encoded dot.
const DOT: &str = "=2E";

/// The keys with one prefix in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) bucket: String,
    /// The subject of all keys without the key: `$KV.bucket.` or `$KV.bucket.prefix.`
    base: String,
}

impl Keys {
    pub(super) fn below(bucket: &str, prefix: &str) -> Self {
        let dot = if prefix.is_empty() { "" } else { "." };
        Self { bucket: bucket.to_owned(), base: format!("$KV.{bucket}.{prefix}{dot}") }
    }

    /// Returns the stream in which the server keeps the bucket.
    pub(super) fn stream(&self) -> String {
        format!("KV_{}", self.bucket)
    }

    /// Returns the subject of a register key.
    pub(super) fn subject(&self, key: &str) -> String {
        format!("{}{}", self.base, encoded(key))
    }

    /// Returns the pattern of the subjects of all keys.
    pub(super) fn all(&self) -> String {
        format!("{}>", self.base)
    }

    /// Returns the register key of a subject. Returns `None` for a subject that [`subject`](Self::subject) never
    /// returns.
    pub(super) fn register(&self, subject: &str) -> Option<String> {
        let text = subject.strip_prefix(&self.base)?;
        let key = percent_decode_str(&text.replace('=', "%")).decode_utf8().ok()?.into_owned();
        (encoded(&key) == text).then_some(key)
    }
}

/// What the server publishes a copy of, once it has stored it, and under which subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    /// The beginning of the subjects.
    pub(super) source: String,
    /// The beginning of the subjects of their copies.
    pub(super) destination: String,
}

impl Copies {
    /// Returns the copies of a new bucket.
    pub(super) fn made_for(keys: &Keys) -> Self {
        let [source, destination] = ["$KV", "leasehold"].map(|root| format!("{root}.{}.", keys.bucket));
        Self { source, destination }
    }

    /// Returns the subject of the copies of messages with `subject`.
    pub(super) fn of(&self, subject: &str) -> Option<String> {
        let Self { source, destination } = self;
        subject.strip_prefix(source.as_str()).map(|rest| format!("{destination}{rest}"))
    }
}

fn encoded(key: &str) -> String {
    let mut text = utf8_percent_encode(key, ENCODED).to_string().replace('%', "=");
    if text.starts_with('.') {
        text.replace_range(..1, DOT);
    }
    while text.contains("..") {
        text = text.replace("..", &format!(".{DOT}"));
    }
    if text.ends_with('.') {
        text.replace_range(text.len() - 1.., DOT);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_names_stand_for_themselves() {
        let keys = Keys::below("b", "team.locks");
        for (key, subject) in [
            ("deploy/prod.lock", "deploy/prod.lock"),
            ("v1.2_x-y.lock", "v1.2_x-y.lock"),
            (".leasehold", "=2Eleasehold"),
            ("a..b...", "a.=2Eb.=2E=2E"),
            ("a=b c", "a=3Db=20c"),
            ("ü*>$", "=C3=BC=2A=3E=24"),
        ] {
            assert_eq!(keys.subject(key), format!("$KV.b.team.locks.{subject}"));
            assert_eq!(keys.register(&keys.subject(key)).as_deref(), Some(key));
        }
        assert_eq!(Keys::below("b", "").subject("a.lock"), "$KV.b.a.lock");
    }

    #[test]
    fn subjects_that_are_not_ours_are_no_keys() {
        let keys = Keys::below("b", "p");
        for subject in [
            "$KV.b.a",
            "$KV.c.p.a",
            "$KV.b.p.=61",
            "$KV.b.p.=2f",
            "$KV.b.p.a=2Eb",
            "$KV.b.p.=",
            "$KV.b.p.=FF",
        ] {
            assert_eq!(keys.register(subject), None, "{subject}");
        }
    }

    proptest! {
        #[test]
        fn every_key_has_its_own_valid_subject(key in "[a.=/ü%*-]{1,12}|.{1,40}") {
            let keys = Keys::below("b", "p");
            let subject = keys.subject(&key);
            prop_assert_eq!(keys.register(&subject), Some(key));
            prop_assert!(subject.split('.').all(|token| !token.is_empty()));
            prop_assert!(subject[5..].bytes().all(|b| b.is_ascii_alphanumeric() || b"-/_=.".contains(&b)));
        }
    }
}
