//! The client of a [`MemoryServer`](super::MemoryServer).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::{Answer, Limits, Outcome, POLL_INTERVAL, STEP, Step, not_a_step};
use crate::clock::{StoreClock, StoreTime, micros};
use crate::env::Env;
use crate::error::{Error, Fault, StoreError};
use crate::lease::{Capabilities, HolderInfo, Id, StoreOptions, attempt_limit};
use crate::protocol::RegisterLeases;
use crate::protocol::line::{Line, Waiter};
use crate::protocol::record::{Content, Record};
use crate::protocol::records::{Change, Claims, Found, Records, Refusal, Written};
use crate::register::{Body, Metadata, Precondition, Register, Version, Write};
use crate::types::LockName;

/// Opens leases on a [`MemoryServer`](super::MemoryServer) behind `network`.
pub fn leases(network: Arc<dyn Register>, options: StoreOptions) -> RegisterLeases {
    let (env, margin) = (options.env.clone(), options.margin);
    RegisterLeases::on(
        Arc::new(ServerRecords { network, env, margin, clock: StoreClock::default() }),
        options,
    )
}

/// Opens leases in a table on a [`MemoryServer`](super::MemoryServer) behind `network`, as they are on MariaDB.
///
/// # Errors
/// Without the feature `mysql`, and outside of a runtime.
pub fn leases_of_table(
    network: Arc<dyn Register>,
    failover_grace: Duration,
    options: StoreOptions,
) -> Result<RegisterLeases, Error> {
    #[cfg(feature = "mysql")]
    return super::table::leases(network, failover_grace, options);
    #[cfg(not(feature = "mysql"))]
    Err(Error::unsupported(format!("no table on {network:?} for {options:?} and {failover_grace:?}")))
}

/// The records of a [`MemoryServer`](super::MemoryServer), for one client.
#[derive(Debug)]
struct ServerRecords {
    network: Arc<dyn Register>,
    env: Env,
    margin: Duration,
    clock: StoreClock,
}

impl ServerRecords {
    async fn ask(&self, name: &LockName, step: &Step, record: Option<&Record>) -> Result<Answer, StoreError> {
        let sent = self.env.now();
        let bytes = record.map(Record::to_bytes).transpose().map_err(Fault::not_applied)?.unwrap_or_default();
        let mut metadata = Metadata::default();
        let step = serde_json::to_string(step).map_err(|_| not_a_step())?;
        metadata.user.insert(STEP.to_owned(), step);
        let body = Body { bytes, metadata };
        let Write::Committed(answer) = self.network.write(name.as_str(), Precondition::Absent, body).await?
        else {
            return Err(not_a_step());
        };
        let answer: Answer = serde_json::from_str(answer.as_str()).map_err(|_| not_a_step())?;
        self.clock.observe(answer.now_us, Duration::from_micros(1), sent, self.env.now());
        Ok(answer)
    }

    /// Returns the limits of a step that writes `record` over `before`.
    fn limits(&self, change: Change, record: &Record, before: Option<&Record>) -> Limits {
        let now_us = self.clock.bounds(self.env.now()).map_or(0, |time| time.lo_us);
        let too_late_us = now_us.saturating_add(micros(attempt_limit(record.ttl())));
        let kept_us = |record: &Record| micros(record.kept_for(self.margin));
        let prolonged_us = before.filter(|_| change == Change::Renew).map(kept_us);
        Limits { too_late_us, kept_us: kept_us(record), prolonged_us }
    }
}

impl Answer {
    fn found(self) -> Option<Found> {
        let line = Line::of(self.line);
        if let Some(us) = self.foreign_us {
            let history = self.record.map(|record| record.history).unwrap_or_default();
            let (what, lasts) = ("another client".to_owned(), Some(Duration::from_micros(us)));
            let content = Content::Foreign { what, lasts, history };
            return Some(Found { content, version: Version::new(""), line: Some(line) });
        }
        let (record, version) = match self.record {
            Some(record) => {
                let version = Version::new(record.nonce.to_string());
                (record, version)
            }
            None if line.is_empty() => return None,
            None => (Record::never_granted(), Version::new("")),
        };
        Some(Found { content: Content::Record(Box::new(record)), version, line: Some(line) })
    }

    fn refused(self) -> Written {
        match self.outcome {
            Outcome::Withheld { left_us } => {
                let lapses_within = Some(Duration::from_micros(left_us));
                let foreign = Some("it grants nothing until failover_grace is over".to_owned());
                let held = HolderInfo { foreign, lapses_within, withheld: true, ..HolderInfo::default() };
                Written::Withheld(Box::new(held))
            }
            _ => Written::Conflict(self.found().map_or(Refusal::Absent, Refusal::Found)),
        }
    }
}

#[async_trait]
impl Records for ServerRecords {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        Ok(self.ask(name, &Step::Read, None).await?.found())
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let change = Change::of(before, record);
        let expect = match expect {
            Precondition::Absent => None,
            Precondition::Version(version) => version.as_str().parse().ok(),
        };
        let step = Step::Write { expect, change, limits: self.limits(change, record, before) };
        let answer = self.ask(name, &step, Some(record)).await?;
        let renewed_at_us = Some(answer.now_us);
        Ok(match answer.outcome {
            Outcome::Done(_) => Written::Committed {
                record: Box::new(Record { renewed_at_us, ..record.clone() }),
                version: Version::new(record.nonce.to_string()),
            },
            Outcome::Refused | Outcome::Withheld { .. } => answer.refused(),
        })
    }

    async fn claim(
        &self,
        name: &LockName,
        record: &Record,
        tokens: u64,
        barges: bool,
    ) -> Result<Written, StoreError> {
        let step = Step::Claim { tokens, barges, limits: self.limits(Change::Grant, record, None) };
        let answer = self.ask(name, &step, Some(record)).await?;
        Ok(match answer {
            Answer { outcome: Outcome::Done(after), record: Some(record), .. } => {
                let version = Version::new(record.nonce.to_string());
                Written::Granted { record: Box::new(record), version, after }
            }
            answer => answer.refused(),
        })
    }

    fn claims(&self) -> Claims {
        Claims::InTurn
    }

    async fn join(
        &self,
        name: &LockName,
        waiter: &Waiter,
        most_ms: u64,
    ) -> Result<Option<Found>, StoreError> {
        Ok(self.ask(name, &Step::Join { waiter: waiter.clone(), most_ms }, None).await?.found())
    }

    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        self.ask(name, &Step::Leave { claim }, None).await.map(drop)
    }

    fn others_leave_no_trace(&self) -> bool {
        true
    }

    fn loses_writes(&self) -> bool {
        true
    }

    fn list(&self, _prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        stream::empty().boxed()
    }

    /// Learns the server's time.
    async fn prepare(&self) -> Result<(), StoreError> {
        if self.store_time().is_some() {
            return Ok(());
        }
        let Ok(unused) = LockName::new("unused") else { return Ok(()) };
        self.ask(&unused, &Step::Read, None).await.map(drop)
    }

    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("a server in memory", POLL_INTERVAL);
        capabilities.sizes = true;
        capabilities.line = Some("the server's memory");
        capabilities.permits_in_order = true;
        capabilities
    }
}
