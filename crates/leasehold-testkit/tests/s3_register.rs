//! The S3 register on real servers: the conditional writes on which all locks depend.
//!
//! `./test` starts the servers and names them in `LEASEHOLD_TEST_S3_MOTO` and `LEASEHOLD_TEST_S3_MINIO`: store URLs of
//! an existing bucket, with the credentials in `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`.

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use leasehold::ErrorKind;
use leasehold::doctor::{probe, probe_deletes};
use leasehold::env::Env;
use leasehold::lease::Id;
use leasehold::register::{Deleted, Metadata, Precondition, Register, Version, VersionedValue, Write};
use leasehold::stores::s3::S3Register;
use leasehold::url::StoreUrl;

/// How many clients race.
const RACERS: usize = 16;

/// Generates a test for each case on each server.
macro_rules! cases {
    ($($case:ident)*) => {
        mod moto { $(#[tokio::test] async fn $case() { super::$case(super::open("LEASEHOLD_TEST_S3_MOTO").await).await; })* }
        mod minio { $(#[tokio::test] async fn $case() { super::$case(super::open("LEASEHOLD_TEST_S3_MINIO").await).await; })* }
    };
}

cases! {
    a_key_is_created_read_replaced_and_deleted
    of_many_creates_exactly_one_wins
    of_many_replacements_of_one_version_exactly_one_wins
    a_counter_by_compare_and_set_is_exact
    a_missing_key_conflicts_with_an_expected_version
    unusual_names_are_read_back_unchanged
    every_response_shows_the_stores_clock
    the_probe_accepts_it_and_then_costs_two_requests
    many_probes_at_once_agree
}

/// Opens a register below a unique prefix.
async fn open(variable: &str) -> S3Register {
    open_at(variable, |url| url).await
}

async fn open_at(variable: &str, change: impl Fn(String) -> String) -> S3Register {
    let url = std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run ./test, which starts the servers and names them")
    });
    let (place, query) = url.split_once('?').expect("a store URL with an endpoint");
    let env = Env::system();
    let fresh = format!("{}/{}?{query}", place.trim_end_matches('/'), Id::random(&env.random));
    S3Register::open(StoreUrl::parse(&change(fresh)).unwrap(), env).await.unwrap()
}

fn body(text: impl Into<String>) -> Bytes {
    Bytes::from(text.into())
}

/// Returns the value as the store returns it if no metadata was given.
fn cell(text: &str, version: &Version) -> VersionedValue {
    let metadata = Metadata { content_type: Some("application/json".to_owned()), ..Metadata::default() };
    VersionedValue { value: body(text), version: version.clone(), metadata }
}

async fn put(register: &S3Register, key: &str, expect: Precondition<'_>, text: &str) -> Option<Version> {
    match register.write(key, expect, body(text).into()).await.unwrap() {
        Write::Committed(version) => Some(version),
        Write::Conflict => None,
    }
}

async fn a_key_is_created_read_replaced_and_deleted(register: S3Register) {
    let key = "deploy/prod.lock";
    assert_eq!(register.read(key).await.unwrap(), None);
    let v1 = put(&register, key, Precondition::Absent, "1").await.unwrap();
    assert_eq!(register.read(key).await.unwrap(), Some(cell("1", &v1)));
    assert_eq!(put(&register, key, Precondition::Absent, "2").await, None);
    let v2 = put(&register, key, Precondition::Version(&v1), "2").await.unwrap();
    assert_ne!(v1, v2);
    assert_eq!(put(&register, key, Precondition::Version(&v1), "3").await, None);
    assert_eq!(register.read(key).await.unwrap(), Some(cell("2", &v2)));
    match probe_deletes(&register).await {
        Ok(()) => {
            assert_eq!(register.delete(key, &v1).await.unwrap(), Deleted::Conflict);
            assert_eq!(register.delete(key, &v2).await.unwrap(), Deleted::Deleted);
            assert_eq!(register.read(key).await.unwrap(), None);
            put(&register, key, Precondition::Absent, "4")
                .await
                .expect("what was deleted can be created again");
        }
        // A store without conditional deletes is detected.
        Err(error) => assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}"),
    }
}

async fn of_many_creates_exactly_one_wins(register: S3Register) {
    for round in 0..4 {
        let key = format!("{round}.lock");
        let racers = (0..RACERS).map(|n| write_until_answered(&register, &key, None, n));
        let winners: Vec<_> = join_all(racers).await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1);
        assert_eq!(register.read(&key).await.unwrap().unwrap().version, winners[0]);
    }
}

async fn of_many_replacements_of_one_version_exactly_one_wins(register: S3Register) {
    let mut version = put(&register, "x.lock", Precondition::Absent, "start").await.unwrap();
    for _ in 0..4 {
        let racers = (0..RACERS).map(|n| write_until_answered(&register, "x.lock", Some(&version), n));
        let winners: Vec<_> = join_all(racers).await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1);
        version = winners.into_iter().next().unwrap();
        assert_eq!(register.read("x.lock").await.unwrap().unwrap().version, version);
    }
}

/// Sends one conditional write, and repeats it while the store reports that it did nothing (409, 503).
async fn write_until_answered(
    register: &S3Register,
    key: &str,
    expect: Option<&Version>,
    n: usize,
) -> Option<Version> {
    // Equal bodies have equal ETags. A racer that wrote the current body again would let a second racer win.
    let value = body(format!("racer {n} {}", Id::random(&register.env().random)));
    loop {
        let expect = expect.map_or(Precondition::Absent, Precondition::Version);
        match register.write(key, expect, value.clone().into()).await {
            Ok(Write::Committed(version)) => return Some(version),
            Ok(Write::Conflict) => return None,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    }
}

async fn a_counter_by_compare_and_set_is_exact(register: S3Register) {
    put(&register, "n.lock", Precondition::Absent, "0").await.unwrap();
    let count = async |_| {
        for _ in 0..5 {
            loop {
                // moto responds to some reads with 500 while others write.
                let cell = match register.read("n.lock").await {
                    Ok(cell) => cell.unwrap(),
                    Err(error) if error.is_transient() => continue,
                    Err(error) => panic!("{error:?}"),
                };
                let n: u32 = std::str::from_utf8(&cell.value).unwrap().parse().unwrap();
                if put(&register, "n.lock", Precondition::Version(&cell.version), &(n + 1).to_string())
                    .await
                    .is_some()
                {
                    break;
                }
            }
        }
    };
    join_all((0..8).map(count)).await;
    assert_eq!(register.read("n.lock").await.unwrap().unwrap().value, body("40"));
}

async fn a_missing_key_conflicts_with_an_expected_version(register: S3Register) {
    let version = put(&register, "x.lock", Precondition::Absent, "1").await.unwrap();
    assert_eq!(put(&register, "gone.lock", Precondition::Version(&version), "2").await, None);
    assert_eq!(register.read("gone.lock").await.unwrap(), None, "the refused write left nothing behind");
    if probe_deletes(&register).await.is_ok() {
        assert_eq!(register.delete("gone.lock", &version).await.unwrap(), Deleted::Conflict);
    }
}

async fn unusual_names_are_read_back_unchanged(register: S3Register) {
    let mut names = [
        "a b+c.lock",
        "100%.lock",
        "ü/日本/x=y&z.lock",
        "a:b@c,d;e!*'(){}[]|<>\"^`~#?.lock",
        "back\\slash.lock",
    ];
    for name in names {
        put(&register, name, Precondition::Absent, name).await.unwrap();
        assert_eq!(register.read(name).await.unwrap().unwrap().value, body(name));
        assert_eq!(register.list(name).try_collect::<Vec<_>>().await.unwrap(), [name]);
    }
    let mut listed = register.list("").try_collect::<Vec<_>>().await.unwrap();
    listed.sort();
    names.sort_unstable();
    assert_eq!(listed, names);
}

async fn every_response_shows_the_stores_clock(register: S3Register) {
    assert_eq!(register.store_time(), None);
    register.read("x.lock").await.unwrap();
    // The server and the test run on one machine and share its clock, so the true time lies within the bounds.
    let before = register.env().now().wall_us();
    let bounds = register.store_time().unwrap();
    let after = register.env().now().wall_us();
    assert!(bounds.lo_us <= after && before <= bounds.hi_us, "{before} {bounds:?} {after}");
}

async fn the_probe_accepts_it_and_then_costs_two_requests(register: S3Register) {
    probe(&register).await.unwrap();
    let marker = register.read(".leasehold-probe").await.unwrap().unwrap();
    probe(&register).await.unwrap();
    assert_eq!(register.read(".leasehold-probe").await.unwrap().unwrap(), marker, "nothing was written");
}

async fn many_probes_at_once_agree(register: S3Register) {
    for outcome in join_all((0..8).map(|_| probe(&register))).await {
        outcome.unwrap();
    }
}

#[tokio::test]
async fn a_missing_bucket_is_named() {
    for variable in ["LEASEHOLD_TEST_S3_MOTO", "LEASEHOLD_TEST_S3_MINIO"] {
        let nowhere = open_at(variable, |url| {
            let path = url.strip_prefix("s3://").unwrap();
            format!("s3://no-such-bucket-here{}", &path[path.find('/').unwrap()..])
        })
        .await;
        for error in [
            nowhere.read("x.lock").await.unwrap_err(),
            nowhere.write("x.lock", Precondition::Absent, body("x").into()).await.unwrap_err(),
            nowhere.list("").try_collect::<Vec<_>>().await.unwrap_err(),
        ] {
            assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error:?}");
            assert!(error.fault().help.as_ref().unwrap().contains("no-such-bucket-here"), "{error:?}");
        }
    }
}
