//! Compares these rules with those of the model (`crates/leasehold-model`) on all small inputs, so that the model's
//! proofs hold for this code.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use leasehold_model::decide;
use leasehold_model::rules::{Rules as ModelRules, Safeguards};
use leasehold_model::time;
use leasehold_model::world as model;

use super::*;
use crate::clock::Deadline;
use crate::env::Env;
use crate::lease::{Grant, Holder, Ttl};
use crate::runtime::hand_off::Tokens;

/// The claim that is judged, and another claim.
const OURS: u8 = 1;
const OTHERS: u8 = 2;
const RULES: Rules = Rules { store_clock: true, margin: Duration::from_secs(5), lapsed_is_over: false };

#[test]
fn the_model_judges_what_an_acquirer_reads_as_the_library_does() {
    let mut seen = HashSet::new();
    let all: Vec<_> =
        attempts().into_iter().map(|all| (all.iter().map(attempt).collect::<Vec<_>>(), all)).collect();
    for found in founds() {
        let content = found.map(content);
        for (sent, attempts) in &all {
            for (lapsed, repeatable) in [(false, false), (false, true), (true, false), (true, true)] {
                let theirs = decide::judge(
                    &ModelRules::ALL,
                    &Safeguards::ALL,
                    OURS,
                    attempts,
                    found.as_ref(),
                    lapsed,
                    repeatable,
                );
                let claim = Claim { repeatable, ..claim(OURS) };
                let unchanged_for = if lapsed { Ttl::DEFAULT.contender_span() } else { Duration::ZERO };
                let ours = match judge(&claim, sent, content.as_ref(), unchanged_for, None, RULES) {
                    Claimed::Ours(attempt) => decide::Claimed::Ours(known(attempts, &attempt)),
                    Claimed::Grantable { over, floor_from_clock } => {
                        assert_eq!(over.is_some(), found.is_some());
                        decide::Claimed::Grantable { floor_from_clock }
                    }
                    Claimed::Taken(_) => decide::Claimed::Taken,
                    Claimed::Lost(_) => decide::Claimed::Lost,
                };
                assert_eq!(ours, theirs, "{found:?} {attempts:?} lapsed: {lapsed}, repeatable: {repeatable}");
                seen.insert(std::mem::discriminant(&ours));
            }
        }
    }
    assert_eq!(seen.len(), 4, "each verdict was given");
}

#[test]
fn the_model_settles_renewals_and_releases_as_the_library_does() {
    let mut seen = HashSet::new();
    for found in founds() {
        let content = found.map(content);
        for attempts in attempts() {
            let sent: Vec<_> = attempts.iter().map(attempt).collect();
            for before in 1..4 {
                let theirs =
                    decide::settle_renewal(&ModelRules::ALL, OURS, before, &attempts, found.as_ref());
                let ours = match settle_renewal(id(OURS), Some(id(before)), 0, &sent, content.as_ref()) {
                    Settled::Applied(attempt) => decide::Settled::Applied(known(&attempts, &attempt)),
                    Settled::Earlier => decide::Settled::Earlier,
                    Settled::Foreign => decide::Settled::Foreign,
                    Settled::Gone(_) => decide::Settled::Gone,
                };
                assert_eq!(ours, theirs, "{found:?} {attempts:?} after {before}");
                seen.insert(std::mem::discriminant(&ours));
            }

            let again = settle_release(id(OURS), &sent, content.as_ref()) == Freed::StillOurs;
            assert_eq!(again, decide::still_ours(OURS, found.as_ref()), "{found:?} {attempts:?}");
        }
    }
    assert_eq!(seen.len(), 4, "each verdict was given");
}

#[test]
fn the_model_writes_the_records_that_the_library_writes() {
    for over in founds() {
        let previous = over.map(record);
        let before = highest_before(previous.as_ref());
        assert_eq!(
            before,
            decide::highest_before(&Safeguards::ALL, over.as_ref()).map(token),
            "over {over:?}"
        );
        for floor in [0, 1, 9] {
            for tokens in 1..4 {
                let theirs = decide::grant(&Safeguards::ALL, OURS, over.as_ref(), floor, tokens, 7, 0);
                let claim = Claim { tokens: u64::from(tokens), ..claim(OURS) };
                let floor_us = Some(u64::from(floor));
                let repeated = Claim { repeatable: true, ..claim.clone() };
                let repeated = back(&grant(&repeated, previous.as_ref(), None, floor_us, id(7)).unwrap());
                match over.filter(|_| decide::is_kept(OURS, over.as_ref())) {
                    Some(own) => assert_eq!(repeated, decide::renewed(&own, 7, 0), "repeated over {over:?}"),
                    None => assert_eq!(repeated, theirs, "repeated over {over:?}"),
                }
                let ours = grant(&claim, previous.as_ref(), None, floor_us, id(7)).unwrap();
                assert_eq!(back(&ours), theirs, "over {over:?}, floor {floor}, {tokens} tokens");
                // The tokens that the holder's process issues, unless the floor has raised the token.
                let (first, all) = tokens_of(&ours, before);
                let theirs = decide::first_token(&Safeguards::ALL, over.as_ref(), &back(&ours), tokens - 1);
                assert_eq!(all.len() == 1, before.is_none() || ours.token.get() == before.unwrap().get() + 1);
                if all.len() <= usize::from(tokens) {
                    assert_eq!(first, token(theirs), "over {over:?}, floor {floor}, {tokens} tokens");
                }
            }
        }
        let Some((over, previous)) = over.zip(previous) else { continue };
        assert_eq!(back(&renewed(&previous, None, None, id(7))), decide::renewed(&over, 7, 0));
        for (end, evicted) in [(End::Released, false), (End::Evicted, true)] {
            let ours = freed(&previous, end, None, None, id(7));
            assert_eq!(back(&ours), decide::freed(&over, evicted, 7), "{over:?} {end:?}");
        }
    }
}

#[test]
fn the_model_s_spans_are_the_library_s_with_other_numbers() {
    for ms in [500, 1_000, 5_000, 30_000, 3_600_000, 86_400_000] {
        let ttl = Ttl::from_millis(ms).unwrap();
        let (seconds, slack) = (ttl.get().as_secs_f64(), (ttl.get().as_secs_f64() / 100.0).max(0.05));
        let near = |ours: Duration, theirs: f64| (ours.as_secs_f64() - theirs).abs() < 1e-6;
        assert!(near(ttl.holder_span(), time::holder_span(seconds, RATE_ERROR, slack)), "{ttl:?}");
        assert!(near(ttl.contender_span(), time::contender_span(seconds, RATE_ERROR, slack)), "{ttl:?}");
    }
}

#[test]
fn by_the_stores_clock_a_lease_lapses_a_margin_after_the_span() {
    let span = Ttl::DEFAULT.contender_span();
    let held = record(model::Record { held: true, token: 1, grant: OTHERS, ..model::Record::default() });
    let stamped = Record { renewed_at_us: Some(1_000_000_000), ..held };
    let tick = Duration::from_millis(1);
    for (unchanged_for, store, lapsed) in [
        (span - tick, Duration::ZERO, false),
        (span, Duration::ZERO, true),
        (Duration::ZERO, span + RULES.margin - tick, false),
        (Duration::ZERO, span + RULES.margin, true),
    ] {
        // Only the lower bound of the store's clock matters.
        let lo_us = 1_000_000_000 + micros(store);
        let now = StoreTime::between(lo_us, u64::MAX);
        let grantable = availability(&stamped, unchanged_for, Some(now), RULES) == Availability::Grantable;
        assert_eq!(grantable, lapsed, "unchanged_for {unchanged_for:?}, store {store:?}");
    }
}

/// Returns all small records, and `None`.
fn founds() -> Vec<Option<model::Record>> {
    let mut all = vec![None];
    for bits in 0..64_u8 {
        for token in 0..3 {
            for nonce in 1..4 {
                for heartbeat in 0..2 {
                    let bit = |i: u8| bits & (1 << i) != 0;
                    all.push(Some(model::Record {
                        held: bit(0),
                        token,
                        grant: if bit(1) { OURS } else { OTHERS },
                        heartbeat,
                        nonce,
                        unconfirmed: bit(2),
                        stamp: 0,
                        edition: 0,
                        ended: u16::from(bit(3)) << OURS | u16::from(bit(4)) << OTHERS,
                        // A grant that has lapsed has ended.
                        spent: u16::from(bit(3) || bit(5)) << OURS | u16::from(bit(4)) << OTHERS,
                    }));
                }
            }
        }
    }
    all
}

/// Returns all lists of at most two attempts.
fn attempts() -> Vec<Vec<model::Attempt>> {
    let one = |nonce| {
        (0..8_u8).map(move |bits| model::Attempt {
            nonce,
            age: 0,
            token: 1 + (bits & 1),
            first: 1 + (bits & 1),
            created: bits & 2 != 0,
            unknown: bits & 4 != 0,
        })
    };
    let two = one(1).flat_map(|first| one(2).map(move |second| vec![first, second]));
    std::iter::once(Vec::new()).chain(one(1).map(|one| vec![one])).chain(two).collect()
}

fn id(number: u8) -> Id {
    static ALL: LazyLock<Vec<Id>> =
        LazyLock::new(|| (0..=u8::MAX).map(|number| format!("{number:032x}").parse().unwrap()).collect());
    ALL[usize::from(number)]
}

fn number(id: Id) -> u8 {
    u8::from_str_radix(&id.to_string(), 16).unwrap()
}

fn claim(grant: u8) -> Claim {
    static CLAIM: LazyLock<Claim> = LazyLock::new(|| {
        let name = crate::LockName::new("x").unwrap();
        Claim::new(&Env::system(), name, Ttl::DEFAULT, Holder::this_process())
    });
    Claim { id: id(grant), ..CLAIM.clone() }
}

fn attempt(attempt: &model::Attempt) -> Attempt {
    Attempt {
        nonce: id(attempt.nonce),
        sent: Moment::from_raw(0, 0),
        token: token(attempt.token),
        after: None,
        created: attempt.created,
        unknown: attempt.unknown,
    }
}

/// Returns the first token of the grant in `record`, and all its tokens.
fn tokens_of(record: &Record, after: Option<Token>) -> (Token, Vec<Token>) {
    let grant = Grant {
        name: crate::LockName::new("x").unwrap(),
        token: record.token,
        after,
        id: record.grant,
        ttl: Ttl::DEFAULT,
        deadline: Deadline::new(Moment::from_raw(0, 0), Duration::ZERO),
        at_limit: false,
        size: None,
        memo: None,
    };
    let (first, mut rest) = Tokens::of(&grant, true);
    (first, std::iter::once(first).chain(std::iter::from_fn(|| rest.next())).collect())
}

fn known(attempts: &[model::Attempt], found: &Attempt) -> model::Attempt {
    *attempts.iter().find(|attempt| id(attempt.nonce) == found.nonce).unwrap()
}

fn token(token: u8) -> Token {
    Token::new(u64::from(token)).unwrap()
}

fn content(found: model::Record) -> Content {
    Content::Record(Box::new(record(found)))
}

fn record(found: model::Record) -> Record {
    let mut record = blank(&claim(found.grant), token(found.token), id(found.nonce));
    record.heartbeat = u64::from(found.heartbeat);
    record.unconfirmed = found.unconfirmed;
    for grant in [OURS, OTHERS].into_iter().filter(|grant| found.has_seen_the_end_of(*grant)) {
        let before = blank(&claim(grant), token(0), id(0));
        let end = if found.remembers(grant) { End::Lapsed } else { End::Released };
        record.remember(past(&before, end, None));
    }
    if !found.held {
        record.state = RecordState::Free;
    }
    record
}

fn back(record: &Record) -> model::Record {
    let bits = |past: &PastGrant| 1 << number(past.grant);
    let ended = record.history.iter().filter(|past| past.end != End::Released);
    model::Record {
        held: record.state == RecordState::Held,
        token: u8::try_from(record.token.get()).unwrap(),
        grant: number(record.grant),
        heartbeat: u8::try_from(record.heartbeat).unwrap(),
        nonce: number(record.nonce),
        unconfirmed: record.unconfirmed,
        stamp: 0,
        edition: 0,
        ended: ended.fold(0, |ended, past| ended | bits(past)),
        spent: record.history.iter().fold(0, |spent, past| spent | bits(past)),
    }
}
