//! Tests the examination of a server that speaks DynamoDB's protocol.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::*;
use crate::stores::dynamodb::probe::{RACERS, ROUNDS};

/// The flaw of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    IgnoresConditions,
    /// Accepts two creates of one item.
    CreatesTwice,
    /// Accepts two replaces of one version.
    ReplacesTwice,
    RefusesEverything,
}

/// The content of a key.
#[derive(Clone, Debug, Default)]
struct VersionedValue {
    nonce: String,
    /// The previous nonce.
    earlier: Option<String>,
    marker: Option<String>,
}

#[derive(Clone)]
struct Table {
    cells: Arc<Mutex<HashMap<String, VersionedValue>>>,
    flaw: Arc<Mutex<Flaw>>,
    /// The number of accepted writes that get no response. They take effect.
    hang: Arc<Mutex<usize>>,
    /// The errors with which the next writes of the marker are refused, the last first.
    marker_errors: Arc<Mutex<Vec<&'static str>>>,
}

impl Table {
    fn new(flaw: Flaw) -> Self {
        Self {
            cells: Arc::default(),
            flaw: Arc::new(Mutex::new(flaw)),
            hang: Arc::default(),
            marker_errors: Arc::default(),
        }
    }

    async fn serve(&self) -> Server {
        let table = self.clone();
        Server::start(move |seen| table.reply(seen)).await
    }

    fn reply(&self, seen: &Seen) -> Reply {
        let (body, dated) = (seen.json(), |body: String| body.replacen("\r\n", &format!("\r\n{DATE}"), 1));
        let key = body["Key"]["key"]["S"].as_str().unwrap().to_owned();
        let mut cells = self.cells.lock().unwrap();
        let there = cells.get(&key).cloned();
        let text = |name: &str| body["ExpressionAttributeValues"][name]["S"].as_str().map(str::to_owned);
        if text(":marker").is_some()
            && let Some(code) = self.marker_errors.lock().unwrap().pop()
        {
            return Reply::Answer(dated(refused("400 X", "", code)));
        }
        let condition = body["ConditionExpression"].as_str().unwrap_or("");
        let holds = match condition {
            condition if condition.starts_with("attribute_not_exists") => there.is_none(),
            "#nonce = :seen" => {
                there.as_ref().is_some_and(|there| Some(&there.nonce) == text(":seen").as_ref())
            }
            _ => false,
        };
        let accepted = match *self.flaw.lock().unwrap() {
            Flaw::None => holds,
            Flaw::IgnoresConditions => true,
            Flaw::RefusesEverything => false,
            Flaw::CreatesTwice => {
                let creates = condition.starts_with("attribute_not_exists");
                holds || creates && there.as_ref().is_some_and(|there| there.earlier.is_none())
            }
            Flaw::ReplacesTwice => {
                let seen = text(":seen");
                holds || seen.is_some() && there.as_ref().is_some_and(|there| there.earlier == seen)
            }
        };
        Reply::Answer(dated(match (seen.operation(), accepted) {
            ("getitem", _) => match there {
                Some(VersionedValue { nonce, marker, .. }) => {
                    let marker = marker.unwrap_or_default();
                    ok(&json!({"Item": {"key": {"S": key}, "nonce": {"S": nonce}, "marker": {"S": marker}}}))
                }
                None => ok(&json!({})),
            },
            (_, false) => conflict(&json!({})),
            ("deleteitem", true) => {
                cells.remove(&key);
                ok(&json!({}))
            }
            (_, true) => {
                let mut hang = self.hang.lock().unwrap();
                if let Some(nonce) = text(":nonce") {
                    let earlier = there.map(|there| there.nonce);
                    cells.insert(key, VersionedValue { nonce, earlier, marker: text(":marker") });
                }
                if *hang > 0 {
                    *hang -= 1;
                    return Reply::Hang;
                }
                ok(&json!({}))
            }
        }))
    }
}

/// Runs one round of the doctor's races, and records the result.
async fn doctor(server: &Server) -> Examined {
    let mut examined = Examined::default();
    server.store().examine_races(1, &mut examined).await;
    examined
}

#[tokio::test]
async fn a_good_server_is_examined_once_for_all_processes() {
    let table = Table::new(Flaw::None);
    let server = table.serve().await;
    let store = server.store();
    store.trust().await.unwrap();
    store.trust().await.unwrap();
    let requests = server.requests();
    assert_eq!(requests.len(), 2 + ROUNDS * (2 * RACERS + 1) + 2, "once for each process");
    let [never, ..] = &requests[..] else { panic!() };
    assert_eq!(never.json()["Key"], json!({"key": {"S": ".leasehold-probe"}}));
    assert_eq!(never.json().get("UpdateExpression"), None, "even a careless server has nothing to write");
    assert_eq!(table.cells.lock().unwrap().len(), 1, "of the races nothing is left");

    server.store().trust().await.unwrap();
    let requests = server.requests();
    let operations: Vec<_> = requests.iter().map(Seen::operation).collect();
    assert_eq!(operations, ["updateitem", "getitem"], "another process goes by the marker");

    let amazon = DynamoDb { target: Target { endpoint: None, ..store.target.clone() }, ..server.store() };
    amazon.trust().await.unwrap();
    assert_eq!(server.requests().len(), 0, "Amazon's own is documented");
}

/// A table that was copied to another server includes the marker.
#[tokio::test]
async fn a_marker_of_another_endpoint_does_not_count() {
    let table = Table::new(Flaw::None);
    table.serve().await.store().trust().await.unwrap();
    *table.flaw.lock().unwrap() = Flaw::ReplacesTwice;
    let error = table.serve().await.store().trust().await.unwrap_err();
    assert!(error.to_string().contains("replace one item"), "{error:?}");
}

#[tokio::test]
async fn every_flaw_is_refused_by_all_until_the_doctor_passes() {
    for (flaw, named) in [
        (Flaw::IgnoresConditions, "ignores conditions"),
        (Flaw::CreatesTwice, "create one item, it accepted 2"),
        (Flaw::ReplacesTwice, "replace one item, it accepted 2"),
        (Flaw::RefusesEverything, "whose condition holds"),
    ] {
        let table = Table::new(flaw);
        let server = table.serve().await;
        // A verdict on a server that refuses all writes cannot be recorded, and each attempt lasts for seconds.
        let times = if flaw == Flaw::RefusesEverything { 1 } else { 3 };
        for _ in 0..times {
            let store = server.store();
            for _ in 0..times.min(2) {
                let error = store.trust().await.unwrap_err();
                assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{flaw:?}: {error:?}");
                assert!(error.to_string().contains(named), "{flaw:?}: {error:?}");
                assert!(error.fault().help.is_some(), "{flaw:?}: {error:?}");
            }
        }
        *table.flaw.lock().unwrap() = Flaw::None;
        let refused = server.store().trust().await.is_err();
        assert_eq!(refused, matches!(flaw, Flaw::CreatesTwice | Flaw::ReplacesTwice), "{flaw:?}: as noted");
        assert!(doctor(&server).await.is_sound());
        server.store().trust().await.unwrap();
    }
}

/// Of two processes that examine an unsafe server at the same time, one may find it and the other may not.
#[tokio::test]
async fn only_the_doctor_lifts_a_refusal() {
    let table = Table::new(Flaw::CreatesTwice);
    let server = table.serve().await;
    let other = server.store().races(1).await;
    assert!(other.is_err());
    *table.flaw.lock().unwrap() = Flaw::None;
    let store = server.store();
    let passed = store.races(1).await;
    store.record_verdict(&other, false).await.unwrap();
    let error = store.record_verdict(&passed, false).await.unwrap_err();
    assert!(error.to_string().contains("found unsafe"), "{error:?}");
    server.store().trust().await.unwrap_err();
    assert!(doctor(&server).await.is_sound());
    server.store().trust().await.unwrap();
}

#[tokio::test]
async fn a_busy_server_only_delays_the_record_of_a_verdict() {
    let table = Table::new(Flaw::CreatesTwice);
    let server = table.serve().await;
    *table.marker_errors.lock().unwrap() = vec!["ThrottlingException"; 2];
    server.store().trust().await.unwrap_err();
    *table.flaw.lock().unwrap() = Flaw::None;
    assert!(server.store().trust().await.unwrap_err().to_string().contains("found unsafe"));
}

#[tokio::test]
async fn a_refusal_by_the_doctor_replaces_an_earlier_verdict() {
    let table = Table::new(Flaw::None);
    let server = table.serve().await;
    server.store().trust().await.unwrap();
    *table.flaw.lock().unwrap() = Flaw::CreatesTwice;
    server.store().trust().await.unwrap();
    assert!(!doctor(&server).await.is_sound());
    let error = server.store().trust().await.unwrap_err();
    assert!(error.to_string().contains("found unsafe"), "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("doctor"), "{error:?}");
}

/// An operator must not believe that a repaired server can be used again, or that an unsafe server is now refused.
#[tokio::test]
async fn the_doctor_reports_a_verdict_that_it_cannot_record() {
    for flaw in [Flaw::None, Flaw::CreatesTwice] {
        let table = Table::new(flaw);
        let server = table.serve().await;
        table.marker_errors.lock().unwrap().push("AccessDeniedException");
        let examined = doctor(&server).await;
        let checks: Vec<_> = examined.findings.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, ["atomic-race", "record"], "{flaw:?}: {examined:?}");
        assert_eq!(examined.is_sound(), flaw == Flaw::None, "{flaw:?}: {examined:?}");
    }
}

/// If the server is restarted or busy while a process waits for a lock, the process asks again and does not give up.
#[tokio::test]
async fn an_examination_without_a_response_is_repeated() {
    let table = Table::new(Flaw::None);
    // The response of the only winner of the first race is lost, so the state of the item is unknown.
    *table.hang.lock().unwrap() = 1;
    let server = table.serve().await;
    server.store().trust().await.unwrap();
    let keys: Vec<_> =
        server.requests().iter().map(|seen| seen.json()["Key"]["key"]["S"].to_string()).collect();
    let races: HashSet<_> = keys.iter().filter(|key| key.contains("-race-")).collect();
    assert_eq!(races.len(), ROUNDS + 1, "one round was repeated with another key");
}
