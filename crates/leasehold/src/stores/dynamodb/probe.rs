//! Does a server that only speaks DynamoDB's protocol check conditions, and in one step with the write?
//!
//! Asked once per table, before the first write; Amazon's own endpoints are not asked, since Amazon documents
//! it. A server that checks and writes in two steps grants one lock twice when two clients ask at the same moment, and
//! otherwise answers like a good one. So writes race for items of their own, which nobody else knows the keys of.
//!
//! What came of it stands in an item, the [`Marker`]. While that says that the server passed at this endpoint, a process
//! only makes sure that a condition that cannot hold is refused; while it says that the server was refused, the table is not
//! used until the doctor finds it good.

use std::time::Duration;

use aws_sdk_dynamodb::types::ReturnValue;
use futures_util::future::join_all;

use super::item::Item;
use super::{DynamoDb, PROBE, Updated, expression};
use crate::clock::StoreTime;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;
use crate::register::probe::evidence::{Marker, Standing};
use crate::register::records::Records;
use crate::register::retry::retry;

/// How long an examination may take.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// How many writes race. The attributes of a racing write keep a server that works in two steps between the two for
/// longer than its threads take to change (moto: 5 ms).
pub(super) const RACERS: usize = 16;

/// How many race at least on a server that does not answer so many in time. It takes the longer for both steps.
const LEAST_RACERS: usize = 4;

/// How many rounds a process makes before it uses a table for the first time: each is a race of creates, and one of
/// replaces. moto 5.2.5 lets two win in more than every second race.
pub(super) const ROUNDS: usize = 6;
/// How many the doctor makes, and the thorough one.
pub(super) const ROUNDS_DOCTOR: usize = 10;
pub(super) const ROUNDS_THOROUGH: usize = 40;

/// How often a round is tried whose answers are lost or put off, and the pause before the second try.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// How often the marker is written, when others write it at the same time.
const MARKER_TRIES: usize = 3;

impl DynamoDb {
    /// Makes sure that this server was examined and passed, or examines it.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        retry(self.env(), || self.refuses()).await?;
        let (marker, nonce) = retry(self.env(), || self.marker()).await?;
        let nonce = nonce.as_deref().unwrap_or("");
        match marker.standing(&self.standing_place(), nonce, self.requests.store_time()) {
            Standing::Passed { .. } => Ok(()),
            Standing::Refused { what } => Err(Fault::new(
                ErrorKind::Unsupported,
                format!("{} was found unsafe for locks: {what}", self.place.endpoint()),
            )
            .with_help("once the server is mended, `leasehold doctor` examines it again and admits it")
            .not_applied()),
            Standing::Unknown { .. } => self.examine_races(ROUNDS).await,
        }
    }

    /// Races writes in so many `rounds`, and notes what came of it for all who use the table.
    pub(super) async fn examine_races(&self, rounds: usize) -> Result<(), StoreError> {
        let mut outcome = Ok(());
        for _ in 0..rounds {
            outcome = self.round().await;
            if outcome.is_err() {
                break;
            }
        }
        let place = self.standing_place();
        let noted = match &outcome {
            Ok(()) => self.note(|marker, now, seen| marker.passed(&place, now, seen)).await,
            Err(error) if error.fault().kind == ErrorKind::Unsupported => {
                let what = error.fault().message.clone();
                self.note(|marker, now, _| marker.refused(&place, now, &what)).await
            }
            Err(_) => Ok(()),
        };
        if let Err(error) = noted {
            tracing::debug!(%error, "what came of the examination could not be noted: the next process examines again");
        }
        outcome
    }

    /// A write on a condition that cannot hold changes nothing, even where conditions are ignored.
    pub(super) async fn refuses(&self) -> Result<(), StoreError> {
        let never = Id::random(&self.env().random);
        match self.update(PROBE, expression::impossible(never), ReturnValue::None).await? {
            Updated::Refused(_) => Ok(()),
            Updated::Done(_) => {
                Err(self.unsafe_server("ignores conditions", "every lock would be granted to everybody"))
            }
        }
    }

    /// One race of each kind, tried again while the server is busy: with fewer racers, since they may be what it is busy with.
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
        // A key of its own, so that nobody else's writes are among those that race.
        let key = self.key(&format!("{PROBE}-race-{}", Id::random(&self.env().random)));
        let mut winner = None;
        let mut outcome = Ok(());
        // Nothing is there in the first race, and what its winner wrote in the second.
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
            // Without the permission it stays: an item that is no lock and that nobody reads.
            drop(self.delete(&key, expression::raced(winner)).await);
        }
        outcome
    }

    /// Of any number of writes that expect one state, a good server accepts at most one. The nonce of that one.
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
            // Those that were not answered were no racers.
            ([_], Some(error)) if answered < LEAST_RACERS => Err(error),
            ([winner], _) => Ok(*winner),
            // One whose answer was lost may have won.
            ([], Some(error)) => Err(error),
            ([], None) => {
                // Of a replace: a second create was accepted over the first, and its answer was lost.
                let (what, kind) = match seen {
                    Some(_) => ("does not keep what it has accepted", "replace it"),
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
                    "two clients that ask at the same moment could be granted the same lock",
                ))
            }
        }
    }

    fn unsafe_server(&self, what: &str, danger: &str) -> StoreError {
        Fault::new(ErrorKind::Unsupported, format!("{} {what}", self.place.endpoint()))
            .with_help(format!(
                "{danger}: use Amazon DynamoDB, or a server that checks conditions and writes in one step (DynamoDB Local does)"
            ))
            .not_applied()
    }

    /// What a verdict is about.
    fn standing_place(&self) -> String {
        format!("{}/{}", self.place.endpoint(), self.place.table)
    }

    /// What is known of this table's server, and the nonce of the item that says so.
    async fn marker(&self) -> Result<(Marker, Option<String>), StoreError> {
        let found = self.read_item(PROBE).await?.unwrap_or_default();
        let text = |found: &Item, name: &str| found.get(name).and_then(|value| value.as_s().ok().cloned());
        let fresh = Id::random(&self.env().random);
        let bytes = text(&found, "marker").unwrap_or_default();
        Ok((Marker::read(bytes.as_bytes(), fresh), text(&found, "nonce")))
    }

    /// Writes the marker with `change`, which is given the store's time and the nonce that is there.
    async fn note(
        &self,
        change: impl Fn(Marker, Option<StoreTime>, &str) -> Marker,
    ) -> Result<(), StoreError> {
        for _ in 0..MARKER_TRIES {
            let (marker, seen) = self.marker().await?;
            let fresh = Id::random(&self.env().random);
            let marker = change(marker, self.requests.store_time(), seen.as_deref().unwrap_or(""));
            let text = String::from_utf8_lossy(&marker.to_bytes()).into_owned();
            let written = expression::marker(text, fresh, seen.as_deref());
            if let Updated::Done(_) = self.update(PROBE, written, ReturnValue::None).await? {
                return Ok(());
            }
        }
        Ok(())
    }
}
