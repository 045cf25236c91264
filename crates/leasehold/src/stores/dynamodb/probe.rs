//! Examines whether a server that speaks DynamoDB's protocol checks conditions, and does so in one step with the write.
//!
//! The examination runs once for each table, before the first write. Amazon's own endpoints are not examined, because
//! Amazon documents that they do. A server that checks and writes in two steps can grant one lock twice if two clients
//! contend at the same moment. Otherwise it responds like a good server. So the examination lets writes race for
//! separate items whose keys no other client knows.
//!
//! The result is recorded in an item, the [`Marker`]. If it records that the server passed at this endpoint, a process
//! only makes sure that the server refuses a condition that cannot hold. If it records that the server was found
//! unsafe, the table is not used until the server passes the doctor's examination.

use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;
use futures_util::future::join_all;

use super::item::Item;
use super::{DynamoDb, PROBE, Updated, expression};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;
use crate::protocol::records::Records;
use crate::register::probe::evidence::{self, Marker, Standing};
use crate::retry::retry;

/// The time limit of an examination.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// The number of racing writes. A racing write has so many attributes that a server that works in two steps spends more
/// time between them than its threads take to switch (moto: 5 ms).
pub(super) const RACERS: usize = 16;

/// The minimum number of racers, for a server that does not respond to more of them in time. Such a server also takes
/// longer for both steps.
const LEAST_RACERS: usize = 4;

/// The number of rounds before the first use of a table by a process. Each round is a race of creates and a race of
/// replaces. moto 5.2.5 lets two writes win in more than half of the races.
pub(super) const ROUNDS: usize = 6;
/// The number of rounds of the doctor, and that of the thorough doctor.
pub(super) const ROUNDS_DOCTOR: usize = 10;
pub(super) const ROUNDS_THOROUGH: usize = 40;

/// The maximum number of attempts at a round whose responses are lost or delayed, and the pause before the second
/// attempt.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

impl DynamoDb {
    /// Makes sure that this server was examined and passed, or examines it.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        retry(self.env(), || self.refuses()).await?;
        let (marker, nonce) = retry(self.env(), || self.marker()).await?;
        let nonce = nonce.as_deref().unwrap_or("");
        match marker.standing(&self.identity(), nonce, self.requests.store_time()) {
            Standing::Passed { .. } => Ok(()),
            Standing::Refused { what } => Err(self.refused_before(&what)),
            Standing::Unknown { .. } => {
                let verdict = self.races(ROUNDS).await;
                let recorded = self.record_verdict(&verdict, false).await;
                if let (Err(error), Err(why)) = (&verdict, &recorded) {
                    tracing::warn!(%why, "an unsafe server could not be recorded as such: {error}");
                }
                verdict.and(recorded)
            }
        }
    }

    fn refused_before(&self, what: &str) -> StoreError {
        let message = format!("{} was found unsafe for locks: {what}", self.target.endpoint());
        Fault::new(ErrorKind::Unsupported, message)
            .with_help(
                "after the server has been repaired, run `leasehold doctor`: if it passes, the server can be \
                used",
            )
            .not_applied()
    }

    /// Races writes in `rounds` rounds.
    pub(super) async fn races(&self, rounds: usize) -> Result<(), StoreError> {
        for _ in 0..rounds {
            self.round().await?;
        }
        Ok(())
    }

    /// Records the `verdict` of races for all users of the table, unless it is unknown. A refused server can pass only
    /// with `lifts`.
    pub(super) async fn record_verdict(
        &self,
        verdict: &Result<(), StoreError>,
        lifts: bool,
    ) -> Result<(), StoreError> {
        match verdict {
            Ok(()) => self.record(None, lifts).await,
            Err(error) if error.fault().kind == ErrorKind::Unsupported => {
                self.record(Some(&error.fault().message), lifts).await
            }
            Err(_) => Ok(()),
        }
    }

    /// Checks that a write on a condition that cannot hold is refused. The write changes nothing, even if the server
    /// ignores conditions.
    pub(super) async fn refuses(&self) -> Result<(), StoreError> {
        let never = Id::random(&self.env().random);
        match self.update(PROBE, expression::impossible(never), ReturnValue::None).await? {
            Updated::Refused(_) => Ok(()),
            Updated::Done(_) => {
                Err(self.unsafe_server("ignores conditions", "it would grant every lock to every client"))
            }
        }
    }

    /// Runs one race of each kind. While the server is busy, retries with fewer racers, because the racers may keep it
    /// busy.
    async fn round(&self) -> Result<(), StoreError> {
        let (mut pause, mut racers) = (FIRST_PAUSE, RACERS);
        for _ in 1..TRIES {
            match self.round_once(racers).await {
                Err(error) if error.is_transient() => {
                    self.env().sleep(pause.max(error.fault().retry_after.unwrap_or_default())).await;
                    pause *= 2;
                    racers = (racers / 2).max(LEAST_RACERS);
                }
                outcome => return outcome,
            }
        }
        self.round_once(racers).await
    }

    async fn round_once(&self, racers: usize) -> Result<(), StoreError> {
        // Uses a separate key, so that no writes of other clients are among the racers.
        let key = self.key(&format!("{PROBE}-race-{}", Id::random(&self.env().random)));
        let mut winner = None;
        let mut outcome = Ok(());
        // The first race begins without an item. The second begins with the item that the winner of the first wrote.
        for _ in 0..2 {
            match self.race(&key, winner, racers).await {
                Ok(won) => winner = Some(won),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if let Some(winner) = winner {
            // Without the permission to delete, the item remains. It is not a lock, and no client reads it.
            drop(self.delete(&key, expression::raced(winner)).await);
        }
        outcome
    }

    /// Races writes that expect the same state. A good server accepts at most one of them. Returns the nonce of the
    /// accepted write.
    async fn race(&self, key: &str, seen: Option<Id>, racers: usize) -> Result<Id, StoreError> {
        let writes = (0..racers).map(|_| async {
            let nonce = Id::random(&self.env().random);
            (nonce, self.update(key, expression::racing(nonce, seen), ReturnValue::None).await)
        });
        let (mut winners, mut trouble) = (Vec::new(), None);
        let mut answered = 0;
        for (nonce, outcome) in join_all(writes).await {
            answered += usize::from(outcome.is_ok());
            match outcome {
                Ok(Updated::Done(_)) => winners.push(nonce),
                Ok(Updated::Refused(_)) => {}
                Err(error) => trouble = Some(error),
            }
        }
        match (&winners[..], trouble) {
            // Writes that got no response do not count as racers.
            ([_], Some(error)) if answered < LEAST_RACERS => Err(error),
            ([winner], _) => Ok(*winner),
            // A write whose response was lost may have won.
            ([], Some(error)) => Err(error),
            ([], None) => {
                // In a race of replaces, this means that a second create was accepted over the first, and its response
                // was lost.
                let (what, kind) = match seen {
                    Some(_) => ("does not keep the writes that it has accepted", "replace it"),
                    None => ("refuses writes whose condition holds", "create one item"),
                };
                Err(self.unsafe_server(
                    &format!("{what}: of {racers} writes that raced to {kind}, it accepted none"),
                    "no lock could be kept",
                ))
            }
            (several, _) => {
                let kind = if seen.is_some() { "replace one item" } else { "create one item" };
                let accepted = several.len();
                Err(self.unsafe_server(
                    &format!(
                        "does not check conditions in one step with the write: of {racers} writes that raced to {kind}, it \
                         accepted {accepted}"
                    ),
                    "two clients that request a lock at the same time could be granted the same lock",
                ))
            }
        }
    }

    fn unsafe_server(&self, what: &str, danger: &str) -> StoreError {
        Fault::new(ErrorKind::Unsupported, format!("{} {what}", self.target.endpoint()))
            .with_help(format!(
                "{danger}: use Amazon DynamoDB, or a server that checks conditions and writes in one step (DynamoDB Local does)"
            ))
            .not_applied()
    }

    /// Returns the endpoint and the table that a verdict applies to.
    fn identity(&self) -> String {
        format!("{}/{}", self.target.endpoint(), self.target.table)
    }

    /// Returns the recorded examination of this table's server, and the nonce of the item that contains it.
    async fn marker(&self) -> Result<(Marker, Option<String>), StoreError> {
        let found = self.read_item(PROBE).await?.unwrap_or_default();
        let text = |found: &Item, name: &str| found.get(name).and_then(|value| value.as_s().ok().cloned());
        let fresh = Id::random(&self.env().random);
        let bytes = text(&found, "marker").unwrap_or_default();
        Ok((Marker::read(bytes.as_bytes(), fresh), text(&found, "nonce")))
    }

    /// Records that the server is `unsafe_`, or that it passed. A refused server can pass only with `lifts`.
    async fn record(&self, unsafe_: Option<&str>, lifts: bool) -> Result<(), StoreError> {
        evidence::record(self.env(), || async {
            let (marker, nonce) = self.marker().await?;
            let (seen, now) = (nonce.as_deref().unwrap_or(""), self.requests.store_time());
            let judged = marker
                .judge(&self.identity(), now, seen, unsafe_, lifts)
                .map_err(|what| self.refused_before(&what))?;
            let text = String::from_utf8_lossy(&judged.to_bytes()).into_owned();
            let written = expression::marker(text, Id::random(&self.env().random), nonce.as_deref());
            Ok(matches!(self.update(PROBE, written, ReturnValue::None).await?, Updated::Done(_)))
        })
        .await
    }
}
