//! Tests the conversion of records to items and back, and the items of other clients.

use serde_json::Value as Json;

use super::super::fuzzing;
use super::*;
use crate::golden::{assert_written, golden as golden_file, golden_record};
use crate::protocol::record::parse;

const GOLDEN: &[&str] = &[
    include_str!("../../../../tests/records/1-held.json"),
    include_str!("../../../../tests/records/1-free.json"),
    include_str!("../../../../tests/records/1-cooldown.json"),
    include_str!("../../../../tests/records/1-leading.json"),
];

fn golden(json: &str) -> Record {
    match parse(json.as_bytes()).unwrap() {
        Content::Record(record) => *record,
        Content::Foreign { what, .. } => panic!("{what}"),
    }
}

pub(in super::super) fn record() -> Record {
    golden(GOLDEN[0])
}

/// Returns the item after a write of `record`.
pub(in super::super) fn item(record: &Record) -> Item {
    let (fitted, set) = fitted(record, "deploy/prod", Dialect::Java);
    let history = history_of(&fitted).map(|history| (HISTORY, history));
    let more = [(KEY, s("deploy/prod")), (TOKEN, n(record.token.get()))];
    set.into_iter().chain(more).chain(history).map(|(name, value)| (name.to_owned(), value)).collect()
}

fn read_record(item: &Item) -> Record {
    match read(item, Dialect::Java).unwrap().content {
        Content::Record(record) => *record,
        Content::Foreign { what, .. } => panic!("{what}"),
    }
}

/// Returns the item that AWS's Java client writes when it acquires a lock. It is a whole new item, without leasehold's
/// attributes.
fn java(version: &str) -> Item {
    Item::from([
        (KEY.to_owned(), s("deploy/prod")),
        (OWNER.to_owned(), s("ci-7.example_4e9d")),
        (LEASE.to_owned(), s("20000")),
        (VERSION.to_owned(), s(version)),
    ])
}

const THEIRS: &str = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";

#[test]
fn every_record_comes_back_as_it_was() {
    for json in GOLDEN {
        for unconfirmed in [false, true] {
            let record = Record { unconfirmed, ..golden(json) };
            let item = item(&record);
            let found = read(&item, Dialect::Java).unwrap();
            assert_eq!(found.content, Content::Record(Box::new(record.clone())), "{item:?}");
            assert_eq!(found.version, version_of(&record));
            let seen = Some((record.token, record.awaited));
            assert_eq!(expected(&found.version), (&*uuid(record.nonce), seen));
        }
    }
}

#[test]
fn our_item_has_what_the_java_and_go_clients_require() {
    let held = item(&record());
    // The Java client parses leaseDuration with Long.parseLong, and treats any isReleased as a release.
    assert_eq!(text(&held, LEASE), Some("31500"), "ttl and lock delay: they wait for no more than this");
    assert!(text(&held, OWNER).unwrap().starts_with("alice@ci-7 4121 "), "{held:?}");
    assert_eq!(text(&held, VERSION), Some("ffeeddcc-bbaa-9988-7766-554433221100"));
    assert!(!held.contains_key(RELEASED) && !held.contains_key("data"));

    let free = item(&golden(GOLDEN[1]));
    assert_eq!(text(&free, RELEASED), Some("1"));

    let in_cooldown = Record { cooldown_ms: Some(90_000), ..golden(GOLDEN[2]) };
    assert_eq!(in_cooldown.state, RecordState::Cooldown);
    let in_cooldown = item(&in_cooldown);
    assert!(!in_cooldown.contains_key(RELEASED), "they would take it at once");
    assert_eq!(text(&in_cooldown, LEASE), Some("90000"), "they wait for as long as it rests");

    let go: HashMap<_, _> = attributes(&record(), Dialect::Go).into_iter().collect();
    assert_eq!(go[LEASE], s("31500ms"));
}

/// The Java client's `getAllLocks` reads every item of the table.
#[test]
fn a_line_looks_like_a_released_lock_to_other_clients() {
    let line: Item = line("{}".to_owned(), record().nonce, Dialect::Java)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    assert_eq!(text(&line, LEASE), Some("30000"));
    assert!([OWNER, VERSION, RELEASED].iter().all(|name| text(&line, name).is_some()), "{line:?}");
    assert_eq!(read_line(&line), ("{}".to_owned(), Version::new(uuid(record().nonce))));
    assert_eq!(read_line(&Item::new()), (String::new(), Version::new("")));
}

/// Tokens are counted up from the one beside the line, at most one each 8 microseconds.
#[test]
fn a_next_token_is_above_the_clock_and_the_one_beside_the_line() {
    let now = StoreTime::between(1_000, 9_000);
    assert_eq!(token_above(None, now), (9_001, None));
    let with = |attributes: &[(&str, u64)]| {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), n(*value)));
        token_above(Some(&attributes.collect()), now)
    };
    assert_eq!(with(&[]), (9_001, None), "an item with a line alone");
    assert_eq!(with(&[(TOKEN, 500), (RENEWED, 400)]), (9_001, Some(500)));
    assert_eq!(with(&[(TOKEN, 8_000), (RENEWED, 400)]), (8_000 + 8_600 / 8 + 1, Some(8_000)));
    assert_eq!(with(&[(TOKEN, 9_500), (RENEWED, 9_400)]), (2_009_501, Some(9_500)), "the clock was set back");
    assert_eq!(with(&[(TOKEN, 9_500)]), (9_501, Some(9_500)));
}

#[test]
fn an_item_of_a_legacy_global_table_is_refused() {
    for name in ["aws:rep:deleting", "aws:rep:updatetime", "aws:rep:updateregion"] {
        for mut item in [item(&record()), java(THEIRS), Item::new()] {
            item.insert(name.to_owned(), s("x"));
            assert_eq!(read(&item, Dialect::Java).unwrap_err().kind, ErrorKind::Unsupported, "{name}");
        }
    }
}

#[test]
fn marks_of_waiters_are_read_in_any_clients_item() {
    let mut theirs = java(THEIRS);
    theirs.extend([(AWAITED.to_owned(), AttributeValue::Bool(true)), (SERVED.to_owned(), n(7))]);
    let record = read_record(&theirs);
    assert!(record.awaited && record.served == 7);
    for damaged in [s("7"), n(Token::LIMIT)] {
        let mut ours = item(&golden(GOLDEN[0]));
        ours.insert(SERVED.to_owned(), damaged.clone());
        assert!(read(&ours, Dialect::Java).is_err(), "{damaged:?}");
        theirs.insert(SERVED.to_owned(), damaged);
        assert_eq!(read_record(&theirs).served, 0);
    }
}

#[test]
fn another_clients_item_has_a_lease_but_no_trusted_token() {
    let theirs = read_record(&java(THEIRS));
    assert_eq!((theirs.state, theirs.ttl_ms, theirs.lock_delay_ms), (RecordState::Held, 20_000, 0));
    assert_eq!(theirs.holder.to_string(), "ci-7.example_4e9d");
    assert!(theirs.unconfirmed && theirs.renewed_at_us.is_none() && theirs.token == Token::default());

    let beaten = read_record(&java("3f2504e0-4f89-41d3-9a0c-0305e82c3302"));
    assert_ne!(theirs.grant, beaten.grant, "each heartbeat is a sign of life");
    assert_eq!(theirs, read_record(&java(THEIRS)), "and what does not change is none");

    let mut released = java(THEIRS);
    released.insert(RELEASED.to_owned(), s("1"));
    let free = read_record(&released);
    assert_eq!((free.state, free.unconfirmed), (RecordState::Free, true));
}

/// leasehold's attributes still exist after another client's UpdateItem, and after a PutItem of the Go client, which
/// copies the attributes that it has read.
#[test]
fn our_attributes_do_not_count_after_another_client_writes() {
    let mut stale = item(&record());
    for (name, value) in java(THEIRS) {
        stale.insert(name, value);
    }
    let theirs = read_record(&stale);
    assert_eq!((theirs.ttl_ms, theirs.lock_delay_ms), (20_000, 0));
    assert_eq!(theirs.holder.to_string(), "ci-7.example_4e9d");
    assert!(theirs.renewed_at_us.is_none(), "or their lease would lapse by our time of renewal");
    assert!(theirs.unconfirmed, "the token may be a copy of an old one");
    assert_ne!(theirs.grant, record().grant, "or we would take it for our own lease");
    assert_eq!(
        (theirs.token, &theirs.history[1..]),
        (record().token, &record().history[..]),
        "for people, and as a floor"
    );
    let replaced = &theirs.history[0];
    assert_eq!(
        (replaced.grant, replaced.end),
        (record().grant, End::Lapsed),
        "or its claim is granted again"
    );
}

#[test]
fn an_item_of_ours_that_was_marked_as_released_is_free() {
    let mut marked = item(&record());
    marked.insert(RELEASED.to_owned(), s("1"));
    let free = read_record(&marked);
    assert_eq!(free.state, RecordState::Free);
    assert_eq!(free.history[0].grant, record().grant, "or its claim is granted again");
}

#[test]
fn the_time_a_version_was_seen_counts_for_that_version_only() {
    let seen = |version: &str| {
        let seen = Item::from([("version".to_owned(), s(version)), ("at".to_owned(), n(7))]);
        (SEEN.to_owned(), AttributeValue::M(seen))
    };
    for (version, renewed_at_us) in [(THEIRS, Some(7)), ("before", None)] {
        let mut theirs = java(THEIRS);
        theirs.extend([seen(version)]);
        assert_eq!(read_record(&theirs).renewed_at_us, renewed_at_us);
    }
    let silent = Record { renewed_at_us: None, ..record() };
    let mut ours = item(&silent);
    ours.extend([seen(&uuid(silent.nonce))]);
    assert_eq!(read_record(&ours).renewed_at_us, Some(7));
    let mut ours = item(&record());
    ours.extend([seen(&uuid(record().nonce))]);
    assert_eq!(read_record(&ours).renewed_at_us, record().renewed_at_us, "what its holder wrote is better");
}

#[test]
fn their_lease_durations_are_rounded_up_to_what_we_can_wait_for() {
    for (lease, ttl_ms, delay_ms) in [
        ("0", 500, 0),
        ("3", 500, 0),
        ("500", 500, 0),
        ("86400000", 86_400_000, 0),
        ("90000000", 86_400_000, 3_672_000),
    ] {
        let mut theirs = java(THEIRS);
        theirs.insert(LEASE.to_owned(), s(lease));
        let record = read_record(&theirs);
        assert_eq!((record.ttl_ms, record.lock_delay_ms), (ttl_ms, delay_ms), "{lease}");
    }
}

#[test]
fn an_item_that_is_not_clearly_a_lock_is_foreign() {
    let without = |name: &str| {
        let mut item = java(THEIRS);
        item.remove(name);
        item
    };
    let with = |name: &str, value: AttributeValue| {
        let mut item = java(THEIRS);
        item.insert(name.to_owned(), value);
        item
    };
    for item in [
        Item::new(),
        without(OWNER),
        without(VERSION),
        without(LEASE),
        with(OWNER, n(1)),
        with(VERSION, AttributeValue::Bool(true)),
        with(LEASE, n(20_000)),
        with(LEASE, s("soon")),
        with(LEASE, s("-1")),
    ] {
        let content = read(&item, Dialect::Java).unwrap().content;
        assert!(matches!(content, Content::Foreign { .. }), "{item:?}: {content:?}");
    }
}

#[test]
fn an_item_in_the_other_dialect_says_which_option_to_add() {
    let mut go = java("1763654400000000041:ABCDEFGH");
    go.insert(LEASE.to_owned(), s("20s"));
    let fault = read(&go, Dialect::Java).unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Invalid);
    assert!(fault.help.unwrap().contains("?dialect=go") && fault.message.contains("dynamolock"));
    assert!(fault.message.contains("\"20s\""), "{}", fault.message);
    let Content::Record(theirs) = read(&go, Dialect::Go).unwrap().content else { panic!("foreign") };
    assert_eq!(theirs.ttl_ms, 20_000);
    let fault = read(&java(THEIRS), Dialect::Go).unwrap_err();
    assert!(fault.help.unwrap().contains("?dialect=java"));
    // Items of leasehold can be read in either dialect, because only other clients read the `leaseDuration`.
    assert!(read(&item(&record()), Dialect::Go).is_ok());
}

#[test]
fn a_newer_format_asks_for_an_upgrade_and_damage_is_corrupt() {
    let with = |change: &dyn Fn(&mut Item, &mut Item)| {
        let mut item = item(&record());
        let AttributeValue::M(mut ours) = item.remove(OURS).unwrap() else { panic!("no map") };
        change(&mut item, &mut ours);
        item.insert(OURS.to_owned(), AttributeValue::M(ours));
        read(&item, Dialect::Java).unwrap_err()
    };
    let newer = with(&|_, ours| drop(ours.insert("format".to_owned(), n(2))));
    assert_eq!(newer.kind, ErrorKind::Unsupported);
    assert!(newer.help.unwrap().contains("upgrade"));
    type Damage = dyn Fn(&mut Item, &mut Item);
    let damages: [&Damage; 13] = [
        &|item, _| drop(item.remove(TOKEN)),
        &|item, _| drop(item.insert(TOKEN.to_owned(), n(Token::LIMIT))),
        &|item, _| drop(item.insert(TOKEN.to_owned(), AttributeValue::N("-1".to_owned()))),
        &|item, _| drop(item.remove(HOLDER)),
        &|item, _| drop(item.insert(HOLDER.to_owned(), s("{"))),
        &|item, _| drop(item.insert(RENEWED.to_owned(), s("now"))),
        &|item, _| drop(item.insert(HISTORY.to_owned(), s("[]"))),
        &|_, ours| drop(ours.remove("grant")),
        &|_, ours| drop(ours.insert("heartbeat".to_owned(), n(Token::LIMIT))),
        &|_, ours| drop(ours.insert("ttl".to_owned(), n(0))),
        &|_, ours| drop(ours.insert("cooldown".to_owned(), s("long"))),
        &|_, ours| drop(ours.remove("format")),
        &|_, ours| drop(ours.insert("format".to_owned(), n(0))),
    ];
    for (case, damage) in damages.into_iter().enumerate() {
        assert_eq!(with(damage).kind, ErrorKind::Corrupt, "damage {case}");
    }
}

#[test]
fn history_is_cut_to_one_write_unit_but_never_below_a_minimum() {
    let many = |note: Option<String>| {
        let mut record = record();
        let mut past = record.history[0].clone();
        past.holder.note = note;
        record.history = vec![past; 8];
        record
    };
    let fits = item(&many(None));
    let kept = fits[HISTORY].as_l().unwrap().len();
    assert!((LEAST_HISTORY..8).contains(&kept), "{kept}");
    assert!(bytes(&fits) <= WRITE_UNIT_BYTES, "{}", bytes(&fits));
    let long = item(&many(Some("x".repeat(500))));
    assert_eq!(long[HISTORY].as_l().unwrap().len(), LEAST_HISTORY, "the history is kept, whatever it costs");
}

fn bytes(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + size(value)).sum()
}

#[test]
fn as_many_past_grants_are_kept_as_fit_and_no_fewer() {
    let mut full = 0;
    for note in 0..120 {
        let mut record = record();
        record.history = vec![record.history[0].clone(); 8];
        record.holder.note = Some("x".repeat(note));
        let item = item(&record);
        let kept = item[HISTORY].as_l().unwrap().len();
        let with_one_more = bytes(&item) + 1 + size(&past(&record.history[0]));
        assert!(with_one_more > WRITE_UNIT_BYTES, "{note}: {with_one_more}");
        assert!(bytes(&item) <= WRITE_UNIT_BYTES || kept == LEAST_HISTORY, "{note}: {}", bytes(&item));
        full += usize::from(bytes(&item) == WRITE_UNIT_BYTES && kept > LEAST_HISTORY);
    }
    assert!(full > 0, "one length fills the write unit to the last byte");
}

/// The sizes are from <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/CapacityUnitCalculations.html>.
#[test]
fn sizes_are_counted_as_dynamodb_counts_them() {
    for (value, bytes) in [
        (s("four"), 4),
        (AttributeValue::N("123".to_owned()), 3),
        (AttributeValue::N("1234".to_owned()), 3),
        (AttributeValue::Bool(true), 1),
        (AttributeValue::M(Item::new()), 3),
        (AttributeValue::M(Item::from([("ab".to_owned(), s("four")), ("c".to_owned(), n(7))])), 3 + 7 + 4),
        (AttributeValue::L(Vec::new()), 3),
        (AttributeValue::L(vec![s("four"), n(7)]), 3 + 5 + 3),
    ] {
        assert_eq!(size(&value), bytes, "{value:?}");
    }
}

#[test]
fn every_end_of_a_past_grant_comes_back() {
    let mut ended = record();
    let past = ended.history[0].clone();
    ended.history =
        [End::Released, End::Lapsed, End::Evicted].map(|end| PastGrant { end, ..past.clone() }).into();
    ended.history[2].evicted = Some(crate::lease::Eviction::new("bob", "the machine is gone"));
    assert_eq!(read_record(&item(&ended)).history, ended.history);
}

#[test]
fn another_clients_version_is_hashed_with_fnv_1a() {
    for (version, id) in [
        ("", "6c62272e07bb014262b821756295c58d"),
        ("a", "d228cb696f1a8caf78912b704e4a8964"),
        ("foobar", "343e1662793c64bf6f0d3597ba446f18"),
    ] {
        assert_eq!(foreign_id(version).unwrap().to_string(), id);
    }
}

#[test]
fn the_golden_items_are_read_and_written() {
    for state in ["held", "free", "cooldown"] {
        let record = golden_record(&format!("1-{state}.json"));
        let name = format!("1-dynamodb-{state}.json");
        assert_written(&name, &fuzzing::to_json(&item(&record)).to_string());
        let Ok(Json::Object(json)) = serde_json::from_str(&golden_file(&name)) else { panic!("{name}") };
        assert_eq!(read_record(&fuzzing::map(&json).unwrap()), record);
    }
}
