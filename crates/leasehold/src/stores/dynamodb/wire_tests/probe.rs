//! Tests the examination of a server that speaks DynamoDB's protocol.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::*;
use crate::proof::cells::Races;
use crate::proof::{self, KEY};
use crate::stores::dynamodb::cells::PROFILE;

/// The flaw of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    IgnoresConditions,
    /// Accepts two creates of one item in a race.
    CreatesTwice,
    /// Accepts two replaces of one version in a race.
    ReplacesTwice,
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
        if seen.operation() == "scan" {
            return Reply::Answer(dated(ok(&json!({ "Items": [] }))));
        }
        let key = body["Key"]["key"]["S"].as_str().unwrap().to_owned();
        let is_race = key.contains("-race-");
        let mut cells = self.cells.lock().unwrap();
        let there = cells.get(&key).cloned();
        let text = |name: &str| body["ExpressionAttributeValues"][name]["S"].as_str().map(str::to_owned);
        if key == KEY
            && text(":marker").is_some()
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
            Flaw::CreatesTwice => {
                let creates = condition.starts_with("attribute_not_exists");
                holds || is_race && creates && there.as_ref().is_some_and(|there| there.earlier.is_none())
            }
            Flaw::ReplacesTwice => {
                let seen = text(":seen");
                holds
                    || is_race && seen.is_some() && there.as_ref().is_some_and(|there| there.earlier == seen)
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
                if *hang > 0 && is_race {
                    *hang -= 1;
                    return Reply::Hang;
                }
                ok(&json!({}))
            }
        }))
    }
}

async fn doctor(server: &Server) -> Examined {
    proof::examine_cells(&server.store(), false, Examined::default()).await
}

#[tokio::test]
async fn a_good_server_is_examined_once_for_all_processes() {
    let table = Table::new(Flaw::None);
    let server = table.serve().await;
    let store = server.store();
    store.trust().await.unwrap();
    store.trust().await.unwrap();
    let requests = server.requests();
    let Races { races, racers, .. } = PROFILE.first_use;
    // The marker is read, claimed and judged. Six other requests include the delete of their item.
    assert_eq!(requests.len(), 3 + 6 + races * (2 * racers + 1), "once for each process");
    assert_eq!(table.cells.lock().unwrap().len(), 1, "of the races nothing is left");

    server.store().trust().await.unwrap();
    let requests = server.requests();
    let operations: Vec<_> = requests.iter().map(Seen::operation).collect();
    assert_eq!(operations, ["getitem", "updateitem"], "another process goes by the marker");

    let amazon = DynamoDb { target: Target { endpoint: None, ..store.target.clone() }, ..server.store() };
    amazon.trust().await.unwrap();
    assert_eq!(server.requests().len(), 0, "Amazon's own is documented");
}

/// The doctor neither races nor marks it.
#[tokio::test]
async fn amazons_own_is_asked_one_by_one() {
    for (flaw, failed) in [(Flaw::None, false), (Flaw::IgnoresConditions, true)] {
        let table = Table::new(flaw);
        let server = table.serve().await;
        let store = server.store();
        let target = Target { endpoint: None, ..store.target.clone() };
        let amazon = DynamoDb { target, ..store };
        let examined = proof::examine_cells(&amazon, false, Examined::default()).await;
        assert_ne!(examined.is_sound(), failed, "{examined:?}");
        assert!(server.requests().len() < 30 && table.cells.lock().unwrap().is_empty(), "{examined:?}");
    }
}

#[tokio::test]
async fn every_flaw_is_refused_by_all_until_the_doctor_passes() {
    for (flaw, named) in [
        (Flaw::IgnoresConditions, "attribute_not_exists"),
        (Flaw::CreatesTwice, "creates (attribute_not_exists) at once, it accepted 2"),
        (Flaw::ReplacesTwice, "expect one version (#nonce = :seen) at once, it accepted 2"),
    ] {
        let table = Table::new(flaw);
        let server = table.serve().await;
        for _ in 0..2 {
            let error = server.store().trust().await.unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{flaw:?}: {error:?}");
            assert!(error.to_string().contains(named), "{flaw:?}: {error:?}");
            assert!(error.fault().help.is_some(), "{flaw:?}: {error:?}");
        }
        *table.flaw.lock().unwrap() = Flaw::None;
        let error = server.store().trust().await.unwrap_err();
        assert!(error.to_string().contains("found unsafe"), "{error:?}");
        let examined = doctor(&server).await;
        assert!(examined.is_sound(), "{examined:?}");
        server.store().trust().await.unwrap();
    }
}

/// An operator must not believe that a repaired server can be used again, or that an unsafe server is now refused.
#[tokio::test]
async fn the_doctor_reports_a_verdict_that_it_cannot_record() {
    for flaw in [Flaw::None, Flaw::CreatesTwice] {
        let table = Table::new(flaw);
        let server = table.serve().await;
        table.marker_errors.lock().unwrap().extend(["AccessDeniedException"]);
        let examined = doctor(&server).await;
        assert_eq!(examined.findings.last().unwrap().check, "record", "{flaw:?}: {examined:?}");
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
    assert_eq!(races.len(), PROFILE.first_use.races + 1, "one round was repeated with another key");
}
