//! The values of leasehold's keys. They are JSON, which people can read with `etcdctl get`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::wire::KeyValue;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Claim, Holder, HolderInfo, Id, Token, Ttl, Waiter};

/// The format that this version writes, and the newest one that it reads.
const FORMAT: u64 = 1;

/// The value of the key of one claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Value {
    /// The format.
    pub(super) leasehold: u64,
    pub(super) state: Standing,
    /// The id of the claim.
    pub(super) claim: Id,
    /// The token, if the key has been written again since the grant. Otherwise the token is the key's mod revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<Token>,
    pub(super) ttl_ms: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) lock_delay_ms: u64,
    pub(super) holder: Holder,
    /// In the state [`Cooldown`](Standing::Cooldown): the length of the cooldown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cooldown_ms: Option<u64>,
}

/// The state of a claim. Being first in the queue is not enough to hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Standing {
    /// In the queue. The claim has not been granted the lock.
    Waiting,
    /// The claim holds the lock.
    Granted,
    /// Released with a cooldown, during which the lock cannot be granted.
    Cooldown,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Value {
    pub(super) fn of(claim: &Claim, state: Standing) -> Self {
        Self {
            leasehold: FORMAT,
            state,
            claim: claim.id,
            token: None,
            ttl_ms: claim.ttl.as_millis(),
            lock_delay_ms: millis(claim.lock_delay),
            holder: if state == Standing::Waiting { claim.waiter() } else { claim.holder.clone() },
            cooldown_ms: None,
        }
    }

    /// Returns the value of a grant with `token` whose key is written again.
    pub(super) fn with_token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Returns the value of a grant with `token` that was released with a cooldown of `cooldown`.
    pub(super) fn in_cooldown(mut self, token: Token, cooldown: Duration) -> Self {
        self.state = Standing::Cooldown;
        self.token = Some(token);
        self.cooldown_ms = Some(millis(cooldown));
        self
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, StoreError> {
        serde_json::to_vec(self).map_err(|error| {
            Fault::new(ErrorKind::Invalid, format!("the lock's value cannot be written: {error}"))
                .not_applied()
        })
    }

    /// Returns how long the lock may remain held after its value was read, unless the lease is renewed.
    fn lasts(&self) -> Duration {
        let lease = Duration::from_millis(self.ttl_ms.saturating_add(self.lock_delay_ms));
        self.cooldown_ms.map_or(lease, Duration::from_millis)
    }

    /// Returns the time to live of the claim's lease, in seconds.
    pub(super) fn lease_seconds(&self) -> i64 {
        whole_seconds(self.lasts())
    }

    /// Returns whether the value is complete: it has a format, a valid ttl and, in a cooldown, the length of the
    /// cooldown.
    fn is_whole(&self) -> bool {
        let rests = self.state != Standing::Cooldown || self.cooldown_ms.is_some();
        self.leasehold != 0 && self.ttl().is_some() && rests
    }

    pub(super) fn ttl(&self) -> Option<Ttl> {
        Ttl::from_millis(self.ttl_ms).ok()
    }
}

/// Rounds `duration` up to whole seconds, the unit of etcd's leases. Returns at least one.
pub(super) fn whole_seconds(duration: Duration) -> i64 {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX).max(1)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The owner of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Ours(Box<Value>),
    /// Another client, or a newer version of leasehold. The text describes the owner to users.
    Foreign(String),
}

/// Parses a key of a lock's queue.
pub(super) fn read(kv: &KeyValue) -> Owner {
    #[derive(Deserialize)]
    struct Tag {
        leasehold: u64,
    }
    match serde_json::from_slice::<Tag>(&kv.value) {
        Ok(Tag { leasehold }) if leasehold > FORMAT => {
            Owner::Foreign(format!("a key of leasehold's format {leasehold}, newer than this version reads"))
        }
        Ok(_) => match serde_json::from_slice::<Value>(&kv.value) {
            Ok(value) if value.is_whole() => Owner::Ours(Box::new(value)),
            _ => Owner::Foreign(format!("a damaged key of leasehold, {}", shown(&kv.key))),
        },
        Err(_) if kv.value.is_empty() => {
            Owner::Foreign(format!("another etcd client's key, {}", shown(&kv.key)))
        }
        Err(_) => Owner::Foreign(format!("a key that is not leasehold's, {}", shown(&kv.key))),
    }
}

fn shown(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    text.chars().map(|c| if crate::types::is_unprintable(c) { '\u{fffd}' } else { c }).take(300).collect()
}

/// Returns the token of the grant in `kv`. Returns `None` for a claim that waits.
pub(super) fn token(kv: &KeyValue, value: &Value) -> Option<Token> {
    match value.state {
        Standing::Waiting => None,
        Standing::Granted | Standing::Cooldown => {
            value.token.or_else(|| u64::try_from(kv.mod_revision).ok().and_then(Token::new))
        }
    }
}

/// Describes the first claim of the queue.
pub(super) fn held(kv: &KeyValue) -> HolderInfo {
    let mut held = HolderInfo::default();
    match read(kv) {
        Owner::Foreign(what) => held.foreign = Some(what),
        Owner::Ours(value) => {
            held.token = token(kv, &value);
            held.lease = Some(value.lasts());
            held.lapses_within = held.lease;
            held.in_cooldown = value.state == Standing::Cooldown;
            if held.in_cooldown {
                held.last_holder = Some(value.holder.of_the_past());
            } else {
                held.holder = Some(value.holder);
            }
        }
    }
    held
}

/// Describes a claim behind the first one. Returns `None` for other clients' keys.
pub(super) fn waiter(kv: &KeyValue) -> Option<Waiter> {
    match read(kv) {
        Owner::Ours(value) => Some(Waiter::new(value.holder.of_the_past())),
        Owner::Foreign(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;
    use crate::golden::{assert_written, golden, golden_record};
    use crate::types::LockName;

    /// The golden value of format 1. Keys with this value must stay readable forever.
    const GOLDEN: &str = r#"{"leasehold":1,"state":"granted","claim":"000102030405060708090a0b0c0d0e0f","ttl_ms":30000,"holder":{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"}}"#;

    fn kv(value: &str) -> KeyValue {
        KeyValue {
            key: b"a/000102030405060708090a0b0c0d0e0f".to_vec(),
            create_revision: 5,
            mod_revision: 7,
            value: value.into(),
            lease: 9,
        }
    }

    #[test]
    fn leases_are_rounded_up_to_whole_seconds() {
        for (ms, seconds) in [(0, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(ms)), seconds, "{ms}");
        }
        assert_eq!(whole_seconds(Duration::MAX), i64::MAX);
    }

    #[test]
    fn the_golden_value_is_read_and_written() {
        let Owner::Ours(value) = read(&kv(GOLDEN)) else { panic!() };
        assert_eq!(String::from_utf8(value.to_bytes().unwrap()).unwrap(), GOLDEN);
        let held = held(&kv(GOLDEN));
        assert_eq!(held.holder.unwrap().name, "alice");
        assert_eq!(held.token, Token::new(7), "the mod revision, where no other token is written");
        assert_eq!(held.lapses_within, Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_waiter_is_shown_if_its_key_is_leaseholds() {
        let shown = |text| waiter(&kv(text)).map(|waiter| waiter.holder.name);
        assert_eq!(shown(GOLDEN), Some("alice".to_owned()));
        assert_eq!([shown(""), shown("{}")], [None, None]);
    }

    #[test]
    fn the_golden_values_are_read_and_written() {
        let held = golden_record("1-held.json");
        let granted = Value {
            leasehold: FORMAT,
            state: Standing::Granted,
            claim: held.grant,
            token: None,
            ttl_ms: held.ttl_ms,
            lock_delay_ms: held.lock_delay_ms,
            holder: held.holder,
            cooldown_ms: None,
        };
        let waiting = Value { state: Standing::Waiting, ..granted.clone() };
        let in_cooldown = granted.clone().in_cooldown(Token::new(41).unwrap(), Duration::from_secs(60));
        for (name, value) in [
            ("1-etcd-granted.json", granted),
            ("1-etcd-waiting.json", waiting),
            ("1-etcd-cooldown.json", in_cooldown),
        ] {
            assert_written(name, std::str::from_utf8(&value.to_bytes().unwrap()).unwrap());
            assert_eq!(read(&kv(&golden(name))), Owner::Ours(Box::new(value)));
        }
    }

    #[test]
    fn the_value_of_a_leader_is_read_and_written() {
        let golden = GOLDEN.replace("make deploy\"}", "make deploy\",\"value\":\"http://10.0.0.7:8080\"}");
        let Owner::Ours(value) = read(&kv(&golden)) else { panic!() };
        assert_eq!(String::from_utf8(value.to_bytes().unwrap()).unwrap(), golden);
        let advertised = held(&kv(&golden)).holder.unwrap().value;
        assert_eq!(advertised.as_deref(), Some("http://10.0.0.7:8080"));
    }

    #[test]
    fn a_foreign_value_is_an_unknown_holder() {
        let newer = GOLDEN.replace("\"leasehold\":1", "\"leasehold\":2");
        for (value, says) in [
            ("", "another etcd client"),
            ("x", "not leasehold's"),
            ("{}", "not leasehold's"),
            (r#"{"leasehold":1}"#, "damaged"),
            (&GOLDEN.replace("30000", "1"), "damaged"),
            (&GOLDEN.replace("\"leasehold\":1", "\"leasehold\":0"), "damaged"),
            (&GOLDEN.replace("granted", "cooldown"), "damaged"),
            (&newer, "newer"),
        ] {
            let held = held(&kv(value));
            assert!(held.foreign.as_ref().is_some_and(|what| what.contains(says)), "{value}: {held:?}");
            assert!(held.token.is_none() && held.holder.is_none(), "{held:?}");
        }
    }

    #[test]
    fn tokens_and_leases_follow_the_state() {
        let env = Env::seeded(std::sync::Arc::new(crate::clock::SystemClock), 1);
        let ttl = Ttl::from_millis(1_500).unwrap();
        let mut claim = Claim::new(&env, LockName::new("a").unwrap(), ttl, Holder::default());
        claim.lock_delay = Duration::from_millis(1_501);
        let waiting = Value::of(&claim, Standing::Waiting);
        assert_eq!(token(&kv(""), &waiting), None);
        assert_eq!(waiting.lease_seconds(), 4, "3.001 s, rounded up");
        let granted = Value::of(&claim, Standing::Granted).with_token(Token::new(3).unwrap());
        assert_eq!(token(&kv(""), &granted), Token::new(3), "a stored token takes precedence");
        let in_cooldown = granted.in_cooldown(Token::new(3).unwrap(), Duration::from_secs(60));
        let shown = held(&kv(std::str::from_utf8(&in_cooldown.to_bytes().unwrap()).unwrap()));
        assert!(shown.in_cooldown && shown.holder.is_none(), "{shown:?}");
        assert_eq!(shown.lapses_within, Some(Duration::from_secs(60)));
        assert_eq!(shown.last_holder, Some(Holder::default()));
    }
}
