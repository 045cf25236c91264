//! The description of a lock that Terraform sends with LOCK and shows if the state is locked.

use std::time::{Duration, UNIX_EPOCH};

use leasehold::HolderInfo;
use leasehold::clock::Moment;
use leasehold::lease::printable;
use serde::{Deserialize, Serialize};

/// The maximum number of characters of a lock's id. Terraform's are UUIDs.
const MAX_ID: usize = 60;

/// What Terraform says about a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct LockInfo {
    #[serde(rename = "ID")]
    pub(super) id: String,
    /// The kind of the operation: `OperationTypeApply`.
    pub(super) operation: String,
    /// Free text, in which leasehold says what it knows of the lease.
    pub(super) info: String,
    /// `user@host`
    pub(super) who: String,
    /// The version of Terraform.
    pub(super) version: String,
    /// RFC 3339. Terraform parses it, and does not accept an empty text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) created: String,
    pub(super) path: String,
}

impl LockInfo {
    /// Parses the body of a request. Returns `None` if it is not the description of a lock.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let info: Self = serde_json::from_slice(body).ok()?;
        let is_id = |id: &str| {
            !id.is_empty() && id.chars().count() <= MAX_ID && id.chars().all(|c| c.is_ascii_graphic())
        };
        is_id(&info.id).then_some(info)
    }

    /// Returns the note of the lock. It fits into the 200 characters that a record keeps, and people read it too.
    pub(super) fn note(&self) -> String {
        let part = |text: &str, most| printable(text, most).replace(',', ";");
        let (operation, who) = (part(&self.operation, 30), part(&self.who, 40));
        let (version, created) = (part(&self.version, 12), part(&self.created, 35));
        format!("{operation} by {who}, {version}, {created}, ID {}", self.id)
    }

    /// Reads a [note](Self::note).
    fn of_note(note: &str) -> Option<Self> {
        let (rest, id) = note.rsplit_once(", ID ")?;
        let (rest, created) = rest.rsplit_once(", ")?;
        let (rest, version) = rest.rsplit_once(", ")?;
        let (operation, who) = rest.split_once(" by ")?;
        let created = humantime::parse_rfc3339(created).map_or("", |_| created);
        let [id, operation, who, version, created] =
            [id, operation, who, version, created].map(str::to_owned);
        Some(Self { id, operation, who, version, created, ..Self::default() })
    }

    /// Describes the holder of a lock at `now`. The id of a holder that is no Terraform is its token.
    pub(super) fn of_holder(held: &HolderInfo, now: Moment) -> Self {
        let holder = held.holder.as_ref().or(held.last_holder.as_ref());
        let note = holder.and_then(|holder| holder.note.as_deref());
        let info = note.and_then(Self::of_note).unwrap_or_else(|| {
            let since =
                Duration::from_micros(now.wall_us()).saturating_sub(held.held_for.unwrap_or_default());
            Self {
                id: held.token.map_or_else(|| "none".to_owned(), |token| token.to_string()),
                operation: note.map_or_else(String::new, |note| printable(note, 120)),
                who: holder.map_or_else(String::new, |holder| format!("{}@{}", holder.name, holder.host)),
                created: humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string(),
                ..Self::default()
            }
        });
        let token = held.token.map(|token| format!("token {token}"));
        let left = held.lapses_within.map(|left| {
            let left = left.as_millis().div_ceil(1_000);
            match (held.reserved, held.in_cooldown) {
                (true, _) => format!("free, but reserved for this waiter for <= {left}s"),
                (_, true) => format!("in its cooldown for <= {left}s"),
                _ => format!("if that process is dead, the lease ends in <= {left}s"),
            }
        });
        let parts: Vec<_> = token.into_iter().chain(left).collect();
        Self { info: parts.join("; "), ..info }
    }

    /// Returns the description as JSON.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &str = r#"{"ID":"5b3b7a5e-9f0c-4b63-a6f8-8a7b1c2d3e4f","Operation":"OperationTypeApply","Info":"",
        "Who":"maria, ops@ci-7","Version":"1.9.0","Created":"2026-11-28T23:30:00.123456789Z","Path":""}"#;

    #[test]
    fn the_note_of_a_lock_says_what_terraform_shows() {
        let sent = LockInfo::parse(SENT.as_bytes()).unwrap();
        let note = sent.note();
        assert_eq!(
            note,
            "OperationTypeApply by maria; ops@ci-7, 1.9.0, 2026-11-28T23:30:00.123456789Z, \
             ID 5b3b7a5e-9f0c-4b63-a6f8-8a7b1c2d3e4f"
        );
        let read = LockInfo::of_note(&note).unwrap();
        assert_eq!(read, LockInfo { who: "maria; ops@ci-7".to_owned(), ..sent });
    }

    #[test]
    fn the_longest_note_keeps_the_id() {
        let long = || "é,\n".repeat(100);
        let info = LockInfo {
            id: "x".repeat(MAX_ID),
            operation: long(),
            who: long(),
            version: long(),
            created: long(),
            ..LockInfo::default()
        };
        let note = info.note();
        assert!(note.chars().count() <= 200, "{note}");
        let read = LockInfo::of_note(&note).unwrap();
        assert_eq!((read.id, read.created), (info.id, String::new()), "Terraform would refuse the time");
    }

    #[test]
    fn only_a_description_with_an_id_is_a_lock() {
        for wrong in ["", "x", "[]", "{}", r#"{"ID":""}"#, r#"{"ID":7}"#, r#"{"ID":"a b"}"#] {
            assert_eq!(LockInfo::parse(wrong.as_bytes()), None, "{wrong}");
        }
        let long = format!(r#"{{"ID":"{}"}}"#, "x".repeat(MAX_ID + 1));
        assert_eq!(LockInfo::parse(long.as_bytes()), None);
    }
}
