//! Stores the holder of a leased blob in the blob's metadata, because Azure does not report who holds a lease.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use reqwest::header::HeaderValue;
use serde::{Deserialize, Serialize};

use crate::lease::{Holder, HolderInfo, Id, Token};
use crate::register::Metadata;

/// The name of the metadata entry.
const NAME: &str = "leasehold-holder";

/// The characters that are percent-encoded. A header cannot contain control characters, and a signature with an
/// account's key would not cover repeated spaces.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// The maximum length of the entry, in bytes. All metadata of a blob together may have 8 KB.
const MAX_BYTES: usize = 6_000;

/// The holder of a blob's lease. It is valid only while the lease has its id, because other programs do not remove it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Signature {
    /// The id of the claim, which is also the id of the lease.
    pub(super) id: Id,
    holder: Holder,
}

impl Signature {
    pub(super) fn new(id: Id, holder: &Holder) -> Self {
        Self { id, holder: holder.clone() }
    }

    /// Returns the signature in `metadata`. Returns `None` if there is none or it cannot be read.
    pub(super) fn of(metadata: &Metadata) -> Option<Self> {
        let text = percent_decode_str(metadata.user.get(NAME)?).decode_utf8().ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Writes the signature into `metadata`. Omits the note and the value if they are too long.
    pub(super) fn write(self, metadata: &mut Metadata) {
        let text = self.text();
        let text = if text.len() <= MAX_BYTES {
            text
        } else {
            Self { holder: Holder { note: None, value: None, ..self.holder }, ..self }.text()
        };
        metadata.user.insert(NAME.to_owned(), text);
    }

    fn text(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        utf8_percent_encode(&json, ENCODED).to_string()
    }

    /// Returns the number of the grant.
    pub(super) fn number(&self) -> Token {
        number(self.id)
    }

    /// Returns the description of the holder.
    pub(super) fn shown(self) -> HolderInfo {
        HolderInfo { token: Some(self.number()), holder: Some(self.holder), ..HolderInfo::default() }
    }
}

/// Returns the id of the lease for the claim `id`. It is a GUID, as Azure requires.
pub(super) fn lease_id(id: Id) -> HeaderValue {
    let hex = id.to_string();
    let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    let parts: Vec<&str> = parts.iter().filter_map(|(from, to)| hex.get(*from..*to)).collect();
    // Digits and hyphens are always a valid header value.
    let mut value = HeaderValue::from_str(&parts.join("-")).unwrap_or(HeaderValue::from_static(""));
    // Anyone who knows the id can end the lease.
    value.set_sensitive(true);
    value
}

/// Returns the number of the claim's grant. It tells grants apart, but it is not a fencing token.
pub(super) fn number(id: Id) -> Token {
    // 13 hexadecimal digits have 52 bits.
    let digits = id.to_string().get(..13).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    digits.and_then(Token::new).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_written, golden, golden_record};
    use proptest::prelude::*;

    fn id(text: &str) -> Id {
        text.parse().unwrap()
    }

    #[test]
    fn a_lease_id_is_a_guid_and_a_number_tells_grants_apart() {
        let one = id("0123456789abcdef0123456789abcdef");
        assert_eq!(lease_id(one), "01234567-89ab-cdef-0123-456789abcdef");
        assert!(!format!("{:?}", lease_id(one)).contains("0123"));
        assert_eq!(number(one).get(), 0x1234_5678_9abc);
        assert!(number(id(&"f".repeat(32))).get() < Token::LIMIT);
    }

    #[test]
    fn the_first_format_is_still_read_and_written() {
        let mut metadata = Metadata::default();
        metadata.user.insert(NAME.to_owned(), golden("1-azure-lease.txt"));
        let record = golden_record("1-held.json");
        let signature = Signature::new(record.grant, &record.holder);
        assert_eq!(Signature::of(&metadata), Some(signature.clone()));
        assert_written("1-azure-lease.txt", &signature.text());
    }

    proptest! {
        #[test]
        fn every_holder_fits_into_a_header_and_comes_back(name in ".{0,60}", note in ".{0,200}", value in ".{0,1024}") {
            let holder = Holder { name, host: "h".into(), pid: 7, note: Some(note), value: Some(value), ..Holder::default() };
            let signature = Signature::new(id(&"a".repeat(32)), &holder);
            let mut metadata = Metadata::default();
            signature.clone().write(&mut metadata);
            let text = &metadata.user[NAME];
            prop_assert!(text.len() < 8_000 && text.bytes().all(|b| b.is_ascii_graphic()));
            let read = Signature::of(&metadata).unwrap();
            prop_assert_eq!((read.id, &read.holder.name), (signature.id, &holder.name));
            prop_assert!(read == signature || (read.holder.note.is_none() && text.len() < 2_000));
        }

        #[test]
        fn any_text_is_a_signature_or_none(text in ".{0,200}") {
            let mut metadata = Metadata::default();
            metadata.user.insert(NAME.to_owned(), text);
            prop_assert!(Signature::of(&metadata).is_none());
        }
    }
}
