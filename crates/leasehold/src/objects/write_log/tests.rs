//! Tests of the log and of its limits.

use std::time::Duration;

use super::*;
use crate::golden::{assert_written, golden};
use crate::lease::PollInterval;

fn capabilities(generations: bool) -> RegisterCapabilities {
    let poll_interval = PollInterval { min: Duration::ZERO, max: Duration::ZERO };
    RegisterCapabilities { store: "test", trusted: true, generations, metadata: Some(2_048), poll_interval }
}

fn nonce(number: u64) -> Nonce {
    Nonce(number)
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn foreign(version: &str) -> ObjectState {
    ObjectState::new(Version::new(version), Metadata::default()).unwrap()
}

fn after(base: &ObjectState, number: u64, version: &str) -> ObjectState {
    fenced_after(base, number, None, version, true)
}

fn fenced_after(
    base: &ObjectState,
    number: u64,
    token: Option<Token>,
    version: &str,
    generations: bool,
) -> ObjectState {
    let metadata = base.followed_by(nonce(number), token, &capabilities(generations)).unwrap();
    ObjectState::new(Version::new(version), metadata).unwrap()
}

fn verdict_on(base: &ObjectState, unknown: bool, now: &ObjectState) -> Verdict {
    verdict(base, &[nonce(1)], unknown, now, &capabilities(true))
}

#[test]
fn rule_1_our_nonce_is_found_below_those_of_others() {
    let base = foreign("1");
    let mut now = after(&base, 1, "2");
    for number in 2..=32 {
        assert_eq!(verdict_on(&base, true, &now), Verdict::Applied);
        assert_eq!(
            verdict_on(&base, false, &now),
            Verdict::Applied,
            "the response to a second copy is a conflict"
        );
        now = after(&now, number, &format!("{}", number + 1));
    }
    // After one more write, the log no longer contains it.
    let now = after(&now, 40, "40");
    assert_eq!(verdict_on(&base, true, &now), Verdict::Unknown);
}

#[test]
fn rule_2_a_write_is_sent_again_while_nothing_changed() {
    for base in [foreign("1"), after(&foreign("1"), 7, "2"), ObjectState::default()] {
        assert_eq!(verdict_on(&base, true, &base.clone()), Verdict::Again);
        assert_eq!(verdict_on(&base, false, &base.clone()), Verdict::Again);
    }
}

#[test]
fn rule_2_the_same_version_after_other_writes_is_a_change() {
    let base = after(&foreign("a"), 7, "b");
    let back = after(&after(&base, 8, "c"), 9, "b");
    assert_eq!(verdict(&base, &[nonce(1)], true, &back, &capabilities(false)), Verdict::Unknown);
    assert_eq!(verdict(&base, &[nonce(1)], false, &back, &capabilities(false)), Verdict::Never);
}

#[test]
fn rule_3_a_conflict_means_not_applied() {
    let base = foreign("1");
    for now in [foreign("2"), after(&base, 7, "2"), after(&foreign("5"), 7, "6"), ObjectState::default()] {
        assert_eq!(verdict_on(&base, false, &now), Verdict::Never);
    }
}

#[test]
fn rule_4_a_write_whose_base_was_replaced_can_never_apply() {
    for base in [foreign("1"), after(&foreign("0"), 7, "1")] {
        let now = after(&after(&base, 8, "2"), 9, "3");
        assert_eq!(verdict_on(&base, true, &now), Verdict::Never);
        let unsure = verdict(&base, &[nonce(1)], true, &now, &capabilities(false));
        assert_eq!(unsure, Verdict::Unknown, "where versions recur, it may have replaced it later");
    }
}

#[test]
fn rule_5_after_a_wipe_or_deletion_the_effect_is_unknown() {
    let base = after(&foreign("0"), 7, "1");
    for now in [foreign("9"), after(&foreign("9"), 8, "10"), ObjectState::default()] {
        assert_eq!(verdict_on(&base, true, &now), Verdict::Unknown);
    }
    // After a create, another client may have created the object after ours was deleted.
    let now = after(&ObjectState::default(), 8, "2");
    assert_eq!(verdict_on(&ObjectState::default(), true, &now), Verdict::Unknown);
    assert_eq!(verdict_on(&ObjectState::default(), false, &now), Verdict::Never);
}

#[test]
fn metadata_of_other_clients_is_kept() {
    let mut metadata = Metadata { content_type: Some("text/plain".into()), ..Metadata::default() };
    metadata.user.insert("owner".into(), "ann".into());
    let base = ObjectState::new(Version::new("1"), metadata).unwrap();
    let now = fenced_after(&base, 1, Some(token(5)), "2", true);
    assert_eq!(now.metadata.content_type.as_deref(), Some("text/plain"));
    assert_eq!(now.metadata.user["owner"], "ann");
    assert_eq!(now.metadata.user[TOKEN], "5");
    assert_eq!(now.metadata.user[LOG], format!("{:016x}-{}", 1, Fingerprint::of(base.version.as_ref())));
    assert!(!now.metadata.user.contains_key(SEEN));
    assert_eq!(after(&now, 2, "3").token, Some(token(5)), "an update leaves the token");
}

#[test]
fn the_write_log_never_exceeds_the_stores_limit() {
    for others in (0..2_048).step_by(50) {
        let mut metadata = Metadata::default();
        metadata.user.insert("o".into(), "x".repeat(others));
        let mut now = ObjectState::new(Version::new("0"), metadata).unwrap();
        for number in 1..100 {
            let next = now.followed_by(nonce(number), Some(token(number)), &capabilities(false));
            let Ok(metadata) = next else {
                let fault = next.unwrap_err();
                // Only the first writes can be refused: the later ones need no more space.
                assert!(others > 1_600 && fault.kind == ErrorKind::Unsupported, "{others}: {fault:?}");
                assert!(number < 20, "{others}: refused only after {number} tokens");
                break;
            };
            let bytes = metadata.user.iter().map(|(name, value)| name.len() + value.len() + NAME_OVERHEAD);
            assert!(bytes.sum::<usize>() <= 2_048, "{others} {number}");
            now = ObjectState::new(Version::new(number.to_string()), metadata).unwrap();
            assert!(now.log.len() >= LEAST_LOG.min(number as usize));
        }
    }
}

#[test]
fn a_lower_token_is_refused_and_an_equal_one_is_not() {
    let now = fenced_after(&foreign("1"), 1, Some(token(5)), "2", true);
    assert_eq!(now.refuses(Some(token(4))), Some(token(5)));
    assert_eq!(now.refuses(Some(token(5))), None);
    assert_eq!(now.refuses(Some(token(6))), None);
    assert_eq!(now.refuses(None), None);
    assert_eq!(foreign("1").refuses(Some(token(0))), None);
}

#[test]
fn a_version_of_a_lower_token_does_not_come_back() {
    let a = Version::new("a");
    let three = fenced_after(&foreign("a"), 1, Some(token(3)), "b", false);
    assert!(!foreign("a").lets_through(None, &a), "nothing is fenced");
    assert!(foreign("a").lets_through(Some(token(3)), &a));
    assert!(three.lets_through(Some(token(3)), &a), "an earlier holder without a token may have read it");
    assert!(three.lets_through(None, &a), "an update of a fenced object neither");
    assert!(three.lets_through(Some(token(5)), &Version::new("b")));
    assert!(!three.lets_through(Some(token(3)), &Version::new("b")), "the holder's own");
    let five = fenced_after(&three, 2, Some(token(5)), "c", false);
    let five = fenced_after(&five, 3, Some(token(5)), "d", false);
    assert!(["a", "b"].iter().all(|old| five.lets_through(Some(token(5)), &Version::new(*old))));
    assert!(!five.lets_through(Some(token(5)), &Version::new("c")));
    assert!(["a", "b", "c", "d"].iter().all(|old| five.lets_through(Some(token(6)), &Version::new(*old))));
}

#[test]
fn a_malformed_token_is_corrupt_and_a_malformed_log_is_empty() {
    let state = |name: &str, value: &str| {
        let mut metadata = Metadata::default();
        metadata.user.insert(name.into(), value.into());
        ObjectState::new(Version::new("1"), metadata)
    };
    for bad in ["x", "-1", "9007199254740992", "1 2", "\u{202e}"] {
        assert_eq!(state(TOKEN, bad).unwrap_err().kind, ErrorKind::Corrupt, "{bad}");
    }
    for bad in ["x", "0-0", "0000000000000001-0000000g", "0000000000000001-00000001 x", "é-é"] {
        assert!(state(LOG, bad).unwrap().log.is_empty(), "{bad}");
    }
    assert_eq!(state(LOG, "0000000000000001-00000001").unwrap().log.len(), 1);
}

#[test]
fn the_golden_write_logs_are_read_and_written() {
    let fenced = fenced_after(&foreign("\"a\""), 1, Some(token(41)), "\"b\"", false);
    let fenced = fenced_after(&fenced, 2, Some(token(42)), "\"c\"", false);
    let lines: Vec<_> = fenced.metadata.user.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_written("1-update-marks.txt", &lines.join("\n"));
    let mut metadata = Metadata::default();
    for line in golden("1-update-marks.txt").lines() {
        let (name, value) = line.split_once('=').unwrap();
        metadata.user.insert(name.to_owned(), value.to_owned());
    }
    let read = ObjectState::new(Version::new("\"c\""), metadata).unwrap();
    assert_eq!((read.token, &read.log, &read.seen), (Some(token(42)), &fenced.log, &fenced.seen));
    assert_eq!((read.log.len(), read.seen.len()), (2, 2));
}
