//! The responses of the server. The server is not trusted, so the client checks that each response matches its request.

use serde::Deserialize;

use crate::lease::{HolderInfo, Loss, LossReason, Token};
use crate::types::LockName;
use crate::view::HolderView;

/// The server's description of its store, and the caller's rights.
#[derive(Debug, Deserialize)]
pub(super) struct Described {
    pub(super) version: String,
    pub(super) store: String,
    pub(super) tokens: bool,
    pub(super) cooldowns: bool,
    pub(super) history: bool,
    pub(super) principal: Option<String>,
    #[serde(default)]
    pub(super) rules: Vec<Rule>,
}

/// The caller's rights on the locks whose names begin with a prefix.
#[derive(Debug, Deserialize)]
pub(super) struct Rule {
    pub(super) prefix: String,
    pub(super) allow: Vec<String>,
}

/// A hold that was granted. Has no `Debug`, because the ticket is a secret.
#[derive(Deserialize)]
pub(super) struct Held {
    pub(super) ticket: String,
    pub(super) lock: String,
    pub(super) token: Option<Token>,
    pub(super) valid_ms: u64,
}

/// A hold that was renewed.
#[derive(Debug, Deserialize)]
pub(super) struct Extended {
    pub(super) lock: String,
    pub(super) token: Option<Token>,
    pub(super) valid_ms: u64,
}

/// A hold that was released, or an acquisition that was withdrawn.
#[derive(Debug, Deserialize)]
pub(super) struct Over {
    pub(super) lock: String,
    pub(super) released: bool,
    /// Whether an earlier request did so.
    #[serde(default)]
    pub(super) before: bool,
}

/// A grant that was evicted.
#[derive(Debug, Deserialize)]
pub(super) struct Gone {
    pub(super) lock: String,
    pub(super) token: Token,
}

/// Why a request was refused.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: String,
    pub(super) detail: Option<String>,
    pub(super) help: Vec<String>,
    held_by: Option<HolderView>,
    reason: Option<String>,
    token: Option<Token>,
}

impl Problem {
    /// Returns the type of the problem, such as `held`. It is empty if the response is not from a `leasehold serve`.
    pub(super) fn word(&self) -> &str {
        self.kind.strip_prefix("urn:leasehold:").unwrap_or_default()
    }

    /// Returns the holder of the lock.
    pub(super) fn holder(self) -> HolderInfo {
        self.held_by.map(HolderView::info).unwrap_or_default()
    }

    /// Returns how the lock `name` was lost.
    pub(super) fn loss(self, name: &LockName) -> Loss {
        Loss::new(name.clone(), self.token.unwrap_or_default(), self.loss_reason())
    }

    pub(super) fn loss_reason(self) -> LossReason {
        match self.reason.as_deref() {
            Some("expired") => LossReason::EXPIRED,
            Some("taken_over") => {
                LossReason::TakenOver { by: self.held_by.map(HolderView::info).unwrap_or_default().into() }
            }
            Some("deleted") => LossReason::Deleted,
            Some("renewed_elsewhere") => LossReason::RenewedElsewhere,
            Some("limit") => LossReason::Limit,
            _ => LossReason::Ended,
        }
    }
}

/// A page of a listing.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub(super) locks: Vec<Named>,
    /// The locks whose records the server cannot read. Older servers report an error instead.
    #[serde(default)]
    pub(super) unreadable: Vec<String>,
    pub(super) next: Option<String>,
}

/// A lock in a listing. The client uses only the name.
#[derive(Debug, Deserialize)]
pub(super) struct Named {
    pub(super) lock: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::view::LockDetail;

    const LOST: &str = r#"{"type":"urn:leasehold:lost","detail":"d","help":["h"],"reason":"taken_over","token":7,
        "held_by":{"holder":{"name":"alice","host":"h","pid":3},"token":8,"held_ms":5}}"#;

    fn name() -> LockName {
        LockName::new("a").unwrap()
    }

    proptest! {
        #[test]
        fn no_response_makes_the_parsers_panic(at in 0usize..200, byte in 32u8..127, text in ".{0,80}") {
            let mut bytes = LOST.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            for bytes in [bytes.as_slice(), text.as_bytes()] {
                let _ = serde_json::from_slice::<LockDetail>(bytes).map(|shown| shown.status(&name()));
                let _ = serde_json::from_slice::<Problem>(bytes).map(|problem| problem.loss(&name()));
                let _ = serde_json::from_slice::<Page>(bytes);
                let _ = serde_json::from_slice::<Held>(bytes).is_ok();
                let _ = serde_json::from_slice::<Described>(bytes);
            }
        }
    }
}
