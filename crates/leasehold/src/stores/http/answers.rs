//! The responses of the server. The server is not trusted, so the client checks that each response matches its request.

use std::time::Duration;

use serde::Deserialize;

use crate::lease::{
    End, Eviction, Holder, HolderInfo, Id, Loss, LossReason, PastGrant, State, Status, Token, Waiter,
};
use crate::types::LockName;

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
pub(super) struct Renewed {
    pub(super) lock: String,
    pub(super) token: Option<Token>,
    pub(super) valid_ms: u64,
}

/// A hold that was released, or an acquisition that was withdrawn.
#[derive(Debug, Deserialize)]
pub(super) struct Ended {
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
    held: Option<HeldBy>,
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
        self.held.map(HeldBy::info).unwrap_or_default()
    }

    /// Returns how the lock `name` was lost.
    pub(super) fn loss(self, name: &LockName, token: Option<Token>) -> Loss {
        let token = token.or(self.token).unwrap_or_default();
        let reason = match self.reason.as_deref() {
            Some("expired") => LossReason::Expired { last_error: None },
            Some("taken_over") => {
                LossReason::TakenOver { by: self.held.map(HeldBy::info).unwrap_or_default() }
            }
            Some("deleted") => LossReason::Deleted,
            Some("renewed_elsewhere") => LossReason::RenewedElsewhere,
            _ => LossReason::Ended,
        };
        Loss::new(name.clone(), token, reason)
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

/// The state of a lock.
#[derive(Debug, Deserialize)]
pub(super) struct Shown {
    lock: String,
    state: Word,
    token: Option<Token>,
    held: Option<HeldBy>,
    #[serde(default)]
    waiters: Vec<InLine>,
    #[serde(default)]
    history: Vec<Past>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Free,
    Held,
    Reserved,
    Cooldown,
    Lapsed,
}

impl Shown {
    /// Returns the status of the lock `name`, or `None` if the response is about another lock.
    pub(super) fn status(self, name: &LockName) -> Option<Status> {
        if self.lock != name.as_str() {
            return None;
        }
        let info = || self.held.map(HeldBy::info).unwrap_or_default();
        let state = match self.state {
            Word::Free => State::Free,
            Word::Held => State::Held(info()),
            Word::Reserved => State::Held(HolderInfo { reserved: true, ..info() }),
            Word::Cooldown => State::Held(HolderInfo { in_cooldown: true, ..info() }),
            Word::Lapsed => State::Lapsed(info()),
        };
        let mut status = Status::new(name.clone(), state);
        status.token = self.token;
        status.history = self.history.into_iter().map(Past::grant).collect();
        status.waiters = self.waiters.into_iter().map(InLine::waiter).collect();
        Some(status)
    }
}

/// The holder of a lock.
#[derive(Debug, Deserialize)]
struct HeldBy {
    holder: Option<Person>,
    token: Option<Token>,
    held_ms: Option<u64>,
    free_ms: Option<u64>,
    lapses_within_ms: Option<u64>,
    #[serde(default)]
    in_cooldown: bool,
    #[serde(default)]
    reserved: bool,
    foreign: Option<String>,
}

impl HeldBy {
    fn info(self) -> HolderInfo {
        let holder = self.holder.map(Person::holder);
        let (holder, last_holder) = if self.in_cooldown { (None, holder) } else { (holder, None) };
        HolderInfo {
            holder,
            last_holder,
            token: self.token,
            held_for: self.held_ms.map(Duration::from_millis),
            free_for: self.free_ms.map(Duration::from_millis),
            // The server rounded the time down.
            lapses_within: self.lapses_within_ms.map(|ms| Duration::from_millis(ms.saturating_add(1))),
            in_cooldown: self.in_cooldown,
            reserved: self.reserved,
            foreign: self.foreign,
            ahead: None,
            waiter_ahead: None,
        }
    }
}

/// A holder or a waiter.
#[derive(Debug, Deserialize)]
struct Person {
    name: String,
    host: String,
    pid: u32,
    note: Option<String>,
    value: Option<String>,
}

impl Person {
    fn holder(self) -> Holder {
        let Self { name, host, pid, note, value } = self;
        Holder { name, host, pid, note, value }
    }
}

#[derive(Debug, Deserialize)]
struct InLine {
    holder: Person,
    waited_ms: Option<u64>,
}

impl InLine {
    fn waiter(self) -> Waiter {
        Waiter { holder: self.holder.holder(), waited: self.waited_ms.map(Duration::from_millis) }
    }
}

#[derive(Debug, Deserialize)]
struct Past {
    token: Token,
    claim: Id,
    holder: Person,
    from_us: Option<u64>,
    until_us: Option<u64>,
    end: Ending,
    evicted: Option<EvictedFor>,
}

#[derive(Debug, Deserialize)]
struct EvictedFor {
    by: String,
    reason: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ending {
    Released,
    Lapsed,
    Evicted,
}

impl Past {
    fn grant(self) -> PastGrant {
        PastGrant {
            token: self.token,
            grant: self.claim,
            holder: self.holder.holder(),
            from_us: self.from_us,
            until_us: self.until_us,
            end: match self.end {
                Ending::Released => End::Released,
                Ending::Lapsed => End::Lapsed,
                Ending::Evicted => End::Evicted,
            },
            evicted: self.evicted.map(|why| Eviction::new(&why.by, &why.reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HELD: &str = r#"{"lock":"a","state":"held","token":7,"held":{"holder":{"name":"alice","host":"h","pid":3,
        "note":"n"},"token":7,"held_ms":5,"lapses_within_ms":9,"in_cooldown":false,"reserved":false},"waiters":[{"holder":
        {"name":"bob","host":"h","pid":4},"waited_ms":2}],"history":[{"token":6,"claim":"00112233445566778899aabbccddeeff",
        "holder":{"name":"eve","host":"h","pid":5},"from_us":1,"until_us":2,"end":"evicted","evicted":{"by":"root","reason":"r"}}],
        "more":1}"#;

    fn name() -> LockName {
        LockName::new("a").unwrap()
    }

    #[test]
    fn a_status_is_parsed_and_that_of_another_lock_refused() {
        let status = serde_json::from_str::<Shown>(HELD).unwrap().status(&name()).unwrap();
        let State::Held(held) = &status.state else { panic!("{status:?}") };
        assert_eq!(held.holder.as_ref().unwrap().to_string(), "alice@h pid 3 \"n\"");
        assert_eq!(held.lapses_within, Some(Duration::from_millis(10)));
        assert_eq!((status.waiters.len(), status.history[0].end), (1, End::Evicted));
        assert_eq!(status.history[0].evicted, Some(Eviction::new("root", "r")));
        let other = serde_json::from_str::<Shown>(&HELD.replace("\"lock\":\"a\"", "\"lock\":\"b\"")).unwrap();
        assert!(other.status(&name()).is_none());
        assert!(serde_json::from_str::<Shown>(&HELD.replace("\"held\",", "\"gone\",")).is_err());
        assert!(serde_json::from_str::<Shown>(&HELD.replace(":7", ":9007199254740992")).is_err());
    }

    #[test]
    fn a_cooldown_names_the_holder_before() {
        let text = HELD
            .replace("\"in_cooldown\":false", "\"in_cooldown\":true")
            .replace("\"held\",", "\"cooldown\",");
        let status = serde_json::from_str::<Shown>(&text).unwrap().status(&name()).unwrap();
        let State::Held(held) = status.state else { panic!("{status:?}") };
        assert!(held.in_cooldown && held.holder.is_none());
        assert_eq!(held.last_holder.unwrap().name, "alice");
    }

    proptest! {
        #[test]
        fn no_response_makes_the_parsers_panic(at in 0usize..500, byte in 32u8..127, text in ".{0,80}") {
            let mut bytes = HELD.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            for bytes in [bytes.as_slice(), text.as_bytes()] {
                let _ = serde_json::from_slice::<Shown>(bytes).map(|shown| shown.status(&name()));
                let _ = serde_json::from_slice::<Problem>(bytes).map(|problem| problem.loss(&name(), None));
                let _ = serde_json::from_slice::<Page>(bytes);
                let _ = serde_json::from_slice::<Held>(bytes).is_ok();
                let _ = serde_json::from_slice::<Described>(bytes);
            }
        }
    }
}
