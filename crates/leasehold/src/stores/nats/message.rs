//! What JetStream responds.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::errors::{self, Refusal};
use super::keys::Keys;
use crate::error::{Fault, StoreError};

/// The header that marks a key as deleted.
pub(super) const OPERATION: &str = "KV-Operation";

/// Returns what a response contains, or the error in it.
pub(super) fn answer<T: DeserializeOwned>(payload: &[u8], keys: &Keys) -> Result<Result<T, Refusal>, Fault> {
    #[derive(Deserialize)]
    struct Refused {
        error: Refusal,
    }
    match serde_json::from_slice(payload) {
        Ok(Refused { error }) => Ok(Err(error)),
        Err(_) => serde_json::from_slice(payload).map(Ok).map_err(|_| errors::unreadable(&keys.bucket)),
    }
}

/// The last message with a subject.
#[derive(Debug)]
pub(super) struct Last {
    pub(super) revision: u64,
    /// When the leader of the stream stored it, in microseconds since the Unix epoch, if the response says so.
    pub(super) stored_us: Option<u64>,
    /// `None` if the message marks the key as deleted.
    pub(super) value: Option<Bytes>,
}

impl Last {
    /// Reads the response to `STREAM.MSG.GET`. Returns `None` if there is no message.
    pub(super) fn of(payload: &[u8], keys: &Keys) -> Result<Option<Self>, StoreError> {
        #[derive(Deserialize)]
        struct Found {
            message: Message,
        }
        #[derive(Deserialize)]
        struct Message {
            seq: u64,
            #[serde(default)]
            hdrs: String,
            #[serde(default)]
            data: String,
            time: Option<String>,
        }
        let message = match answer(payload, keys).map_err(Fault::not_applied)? {
            Ok(Found { message }) => message,
            Err(refusal) if refusal.is_absence() => return Ok(None),
            Err(refusal) => return Err(refusal.error(&keys.bucket)),
        };
        let decoded =
            |text: &str| STANDARD.decode(text).map_err(|_| errors::unreadable(&keys.bucket).not_applied());
        let headers = decoded(&message.hdrs)?;
        let headers = String::from_utf8_lossy(&headers);
        let mut headers = headers.lines().filter_map(|line| line.split_once(':'));
        let is_marker = headers.any(|(name, value)| match name {
            OPERATION => ["DEL", "PURGE"].contains(&value.trim()),
            // Of a server that deleted a message itself.
            _ => name == "Nats-Marker-Reason",
        });
        let value = if is_marker { None } else { Some(Bytes::from(decoded(&message.data)?)) };
        let stored_us = message.time.as_deref().and_then(micros);
        Ok(Some(Self { revision: message.seq, stored_us, value }))
    }
}

/// Reads a time, in microseconds since the Unix epoch.
pub(super) fn micros(time: &str) -> Option<u64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    u64::try_from(time.as_microsecond()).ok()
}

/// Returns the record of a lease as if it had been renewed when it was stored, if that is later. A holder whose machine
/// was paused together with its clocks may write a time that is too early, and the response to its write has no time that
/// would tell it so.
pub(super) fn renewed_when_stored(value: Bytes, stored_us: u64) -> Bytes {
    const RENEWED: &str = "renewed_at_us";
    let Ok(Value::Object(mut record)) = serde_json::from_slice(&value) else { return value };
    let said_us = record.get(RENEWED).and_then(Value::as_u64);
    if record.get("state").is_none_or(|state| state != "held") || said_us.is_none_or(|us| us >= stored_us) {
        return value;
    }
    record.insert(RENEWED.to_owned(), stored_us.into());
    Value::Object(record).to_string().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bucket::Bucket;
    use super::*;

    const FOUND: &str =
        r#"{"message":{"subject":"$KV.b.x","seq":7,"data":"e30=","time":"2026-01-01T00:00:00Z"}}"#;
    const INFO: &str = r#"{"config":{"name":"KV_b","max_age":0},"ts":"2026-01-01T00:00:00.5Z","total":1,
        "state":{"subjects":{"$KV.b.x":1}}}"#;

    fn read(payload: &[u8]) {
        let keys = Keys::below("b", "");
        let _ = Last::of(payload, &keys);
        if let Ok(Ok(bucket)) = answer::<Bucket>(payload, &keys) {
            let _ = (bucket.time_us(), bucket.check(&keys).is_ok(), bucket.subjects());
        }
    }

    #[test]
    fn responses_are_read() {
        let keys = Keys::below("b", "");
        let last = Last::of(FOUND.as_bytes(), &keys).unwrap().unwrap();
        assert_eq!((last.revision, last.value.as_deref()), (7, Some(&b"{}"[..])));
        assert_eq!(last.stored_us, Some(1_767_225_600_000_000));
        let bucket: Bucket = answer(INFO.as_bytes(), &keys).unwrap().unwrap();
        assert_eq!(bucket.time_us(), Some(1_767_225_600_500_000));
        assert_eq!(bucket.subjects(), ["$KV.b.x"]);
        let none = br#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#;
        assert!(Last::of(none, &keys).unwrap().is_none());
        let missing = br#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#;
        assert!(Last::of(missing, &keys).unwrap_err().fault().help.is_some());
    }

    #[test]
    fn a_lease_counts_as_renewed_when_it_was_stored() {
        let read = |value: &'static str| renewed_when_stored(value.into(), 9);
        assert_eq!(read(r#"{"renewed_at_us":5,"state":"held"}"#), r#"{"renewed_at_us":9,"state":"held"}"#);
        // Other times mean something else, and a server whose clock is behind proves nothing.
        for same in [
            r#"{"renewed_at_us":5,"state":"cooldown"}"#,
            r#"{"renewed_at_us":10,"state":"held"}"#,
            r#"{"state":"held"}"#,
            r#"["held"]"#,
            "no record",
        ] {
            assert_eq!(read(same), same);
        }
    }

    proptest! {
        #[test]
        fn no_response_causes_a_panic(text in ".{0,60}", at in 0_usize..120, byte: u8) {
            read(text.as_bytes());
            for whole in [FOUND, INFO] {
                let mut changed = whole.as_bytes().to_vec();
                if let Some(place) = changed.get_mut(at) {
                    *place = byte;
                }
                read(&changed);
            }
        }
    }
}
