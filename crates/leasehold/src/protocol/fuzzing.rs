//! Properties of records, markers and marks that hold for any bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a property reports a failure by a panic"
)]

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::line::Line;
use super::record::{Content, FORMAT, Record, RecordState, parse};
use crate::env::Env;
use crate::error::{ErrorKind, StoreError};
use crate::fuzzing::{NOW_US, StandingClock, assert_readable, assert_readable_fault, seed};
use crate::lease::{
    AcquireOutcome, Claim, Holder, Id, LeaseStore, Standing, State, StoreOptions, Token, Ttl,
};
use crate::objects::write_log::{Nonce, ObjectState};
use crate::proof::probe;
use crate::protocol::RegisterLeases;
use crate::random::Random;
use crate::register::{Body, Metadata, Precondition, Register, Version};
use crate::stores::memory::MemoryRegister;
use crate::types::LockName;

mod careless;

/// Checks that the numbers that a line of waiters writes into a lock's record stay readable, and that the line delays
/// no grant beyond the limit.
fn line(data: &[u8]) {
    let Ok(line) = Line::parse(data) else { return };
    let golden = include_bytes!("../../tests/records/1-free.json");
    let Ok(Content::Record(record)) = parse(golden) else { panic!("the golden record is not read") };
    let Standing { before, .. } = line.standing(Id::random(&Random::seeded(1)), &record);
    assert!(before.iter().all(|before| before.number < Token::LIMIT));
    let reservation = crate::lease::reservation(before.iter().map(|before| before.polls));
    assert!(reservation <= std::time::Duration::from_secs(100));
}

/// Checks that a record is written back as it was read, and that bytes that are not a record never count as free and
/// are never granted over or overwritten.
pub fn record(data: &[u8]) {
    line(data);
    match parse(data) {
        Ok(Content::Record(record)) => assert_round_trip(&record),
        Ok(Content::Foreign { what, .. }) => {
            assert_readable(&what);
            assert!(what.len() < 300, "{what}");
        }
        Err(fault) => assert_readable_fault(&fault),
    }
    if plain(data).is_some_and(|plain| number(&plain.leasehold).is_some_and(|format| format > FORMAT.into()))
    {
        assert_eq!(parse(data).unwrap_err().kind, ErrorKind::Unsupported);
    }
    let free = |plain: &Plain| plain.protocol.is_none() && plain.is_over();
    try_over("a.lock", data, false, RegisterLeases::new, free);
}

/// Checks the same property for objects that exist only while they are held.
pub fn existence_record(data: &[u8]) {
    let free = |plain: &Plain| {
        let is = |field: &Option<Value>, text: &str| field.as_ref().is_some_and(|field| field == text);
        is(&plain.protocol, "existence") && is(&plain.state, "held") && plain.is_over()
    };
    for by_content in [false, true] {
        try_over("a", data, by_content, RegisterLeases::by_existence, free);
    }
}

fn assert_round_trip(record: &Record) {
    let bytes = record.to_bytes().unwrap();
    assert_eq!(parse(&bytes).unwrap(), Content::Record(Box::new(record.clone())));
    assert_eq!(record.leasehold, FORMAT);
    assert!(record.token.get() < Token::LIMIT && record.heartbeat < Token::LIMIT);
    assert!(Ttl::from_millis(record.ttl_ms).is_ok());
    assert!(record.state != RecordState::Cooldown || record.cooldown_ms.is_some());
    assert_readable(&record.holder.to_string());
}

/// A record, parsed in the simplest way.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Plain {
    leasehold: Option<Value>,
    protocol: Option<Value>,
    state: Option<Value>,
    token: Option<Value>,
    ttl_ms: Option<Value>,
    lock_delay_ms: Option<Value>,
    renewed_at_us: Option<Value>,
    cooldown_ms: Option<Value>,
}

impl Plain {
    /// Returns whether the record itself says that the lock is free at `NOW_US`.
    fn is_over(&self) -> bool {
        let passed = |ms: Option<u128>| {
            let from = number(&self.renewed_at_us);
            from.zip(ms).is_some_and(|(from, ms)| from + ms * 1_000 <= u128::from(NOW_US))
        };
        let ttl_ms = || Some(number(&self.ttl_ms)? + number(&self.lock_delay_ms).unwrap_or(0));
        number(&self.leasehold) == Some(FORMAT.into())
            && match self.state.as_ref().and_then(Value::as_str) {
                Some("free") => true,
                Some("held") => passed(ttl_ms()),
                Some("cooldown") => passed(number(&self.cooldown_ms)),
                _ => false,
            }
    }
}

fn plain(data: &[u8]) -> Option<Plain> {
    serde_json::from_slice(data).ok()
}

fn number(field: &Option<Value>) -> Option<u128> {
    field.as_ref()?.as_u64().map(u128::from)
}

/// Tries to acquire the lock whose key has the content `data`. Checks that it is granted only if `free` returns true,
/// and only with a higher token, and that the content otherwise stays as it is.
fn try_over(
    key: &str,
    data: &[u8],
    by_content: bool,
    leases: impl Fn(Arc<dyn Register>, StoreOptions) -> RegisterLeases,
    free: impl Fn(&Plain) -> bool,
) {
    let env = Env::seeded(Arc::new(StandingClock::default()), seed(data));
    let register = match by_content {
        true => MemoryRegister::by_content(env.clone()),
        false => MemoryRegister::new(env.clone()),
    };
    let register = Arc::new(register);
    let leases = leases(register.clone(), StoreOptions { env: env.clone(), ..StoreOptions::default() });
    let name = LockName::new("a").unwrap();
    let claim = Claim::new(&env, name.clone(), Ttl::DEFAULT, Holder::default());
    run(async {
        register
            .write(key, Precondition::Absent, Body::from(bytes::Bytes::copy_from_slice(data)))
            .await
            .unwrap();
        let before = register.read(key).await.unwrap();
        let free = plain(data).is_some_and(|plain| free(&plain));
        match leases.inspect(&name).await {
            Ok(status) => {
                assert!(free || matches!(status.state, State::Held(_)), "{status:?}");
                if let State::Held(held) | State::Lapsed(held) = &status.state {
                    assert_readable(&held.to_string());
                }
            }
            Err(error) => assert_readable_fault(error.fault()),
        }
        match leases.try_acquire(&claim).await {
            Ok(AcquireOutcome::Granted(grant)) => {
                assert!(free, "granted over {:?}", String::from_utf8_lossy(data));
                let token = plain(data).and_then(|plain| number(&plain.token)).unwrap_or(0);
                assert!(u128::from(grant.token.get()) > token || by_content, "{}", grant.token);
            }
            Ok(AcquireOutcome::Held(held)) => {
                assert_readable(&held.to_string());
                assert_eq!(register.read(key).await.unwrap(), before);
            }
            Ok(AcquireOutcome::Lost(loss)) => panic!("{loss:?}"),
            Err(error) => {
                assert!(matches!(error, StoreError::NotApplied(_)), "{error:?}");
                assert_readable_fault(error.fault());
                assert_eq!(register.read(key).await.unwrap(), before);
            }
        }
    });
}

/// Checks that no marker makes a careless store trusted, and that a good store is refused only if the marker says that
/// this store was found unsafe.
pub fn probe_marker(data: &[u8]) {
    let env = Env::seeded(Arc::new(StandingClock::default()), seed(data));
    let good = MemoryRegister::new(env.clone());
    let careless = careless::Careless(MemoryRegister::new(env));
    run(async {
        for register in [&good, &careless.0] {
            let marker = Body::from(bytes::Bytes::copy_from_slice(data));
            register.write(".leasehold-probe", Precondition::Absent, marker).await.unwrap();
        }
        match probe(&good).await {
            Ok(()) => {}
            Err(error) => assert!(error.to_string().contains("was examined and found unsafe"), "{error:?}"),
        }
        let refused = probe(&careless).await.unwrap_err();
        assert_eq!(refused.fault().kind, ErrorKind::Unsupported, "{refused:?}");
    });
}

/// Checks that a write over an object with any metadata leaves marks that read back as written and fit into the store's
/// limit, and a token that refuses every lower one.
///
/// The lines of `data` are the token, the log, the versions seen, and then the metadata of other clients as
/// `name=value`.
pub fn update_marks(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut metadata = Metadata::default();
    let mut lines = text.split('\n');
    for name in ["leasehold-token", "leasehold-log", "leasehold-seen"] {
        let value = lines.next().unwrap_or_default().to_owned();
        metadata.user.insert(name.to_owned(), value);
    }
    for (name, value) in
        lines.filter_map(|line| line.split_once('=')).filter(|(name, _)| !name.starts_with("leasehold-"))
    {
        metadata.user.insert(name.to_owned(), value.to_owned());
    }
    let state = match ObjectState::new(Version::new("1"), metadata) {
        Ok(state) => state,
        Err(fault) => {
            assert_eq!(fault.kind, ErrorKind::Corrupt);
            return assert_readable_fault(&fault);
        }
    };
    let found = state.token.map_or(0, Token::get);
    assert!(found < Token::LIMIT);
    assert_eq!(state.token.is_some(), !text.split('\n').next().unwrap_or_default().is_empty());
    for generations in [false, true] {
        for token in [None, Token::new(found), Token::new(found + 1)] {
            followed(&state, token, generations, seed(data));
        }
    }
}

fn followed(state: &ObjectState, token: Option<Token>, generations: bool, seed: u64) {
    const MOST: usize = 2_048;
    let mut capabilities = MemoryRegister::new(Env::system()).capabilities();
    (capabilities.generations, capabilities.metadata) = (generations, Some(MOST));
    let nonce = Nonce::random(&Random::seeded(seed));
    let metadata = match state.followed_by(nonce, token, &capabilities) {
        Ok(metadata) => metadata,
        Err(fault) => {
            assert_eq!(fault.kind, ErrorKind::Unsupported);
            return assert_readable_fault(&fault);
        }
    };
    let bytes: usize = metadata.user.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(bytes <= MOST, "{bytes}");
    for (name, value) in state.metadata.user.iter().filter(|(name, _)| !name.starts_with("leasehold-")) {
        assert_eq!(metadata.user.get(name), Some(value));
    }
    let next = ObjectState::new(Version::new("2"), metadata).unwrap();
    assert_eq!(next.token, token.or(state.token));
    assert_eq!(
        crate::objects::write_log::verdict(state, &[nonce], true, &next, &capabilities),
        crate::objects::write_log::Verdict::Applied
    );
    if let Some(token) = next.token {
        assert!(token.get() == 0 || next.refuses(Token::new(token.get() - 1)) == Some(token));
        assert_eq!(next.refuses(Some(token)), None);
    }
}

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().build().unwrap();
}

/// Runs `future` to its end. The futures wait only for the clock, and its sleeps end at once.
fn run<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}
