//! The client of a table on a [`MemoryServer`](crate::stores::memory::server::MemoryServer). It is MySQL's without SQL: the
//! connections, the columns, the conditions and how answers are read are the same.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Answer, Put, Request, STATEMENT, Statement};
use crate::clock::micros;
use crate::error::{Error, Fault, StoreError};
use crate::lease::StoreOptions;
use crate::protocol::RegisterLeases;
use crate::protocol::line::Line;
use crate::protocol::records::{Claims, Found, Refusal, Written};
use crate::protocol::rules::recorded;
use crate::register::{Body, Precondition, Register, Version, Write};
use crate::stores::database::Database;
use crate::stores::pool::{self, Purpose, Used};
use crate::stores::rows::number;
use crate::stores::table::{Connections, Kind, Stored, Table, Writing, here, outcome, withheld};
use crate::types::LockName;

const SERVER: Kind = Kind { name: "a table in memory", not_primary: "ask again" };

/// Opens leases in a table behind `network`.
///
/// # Errors
/// Outside of a runtime.
pub(in crate::stores::memory::server) fn leases(
    network: Arc<dyn Register>,
    failover_grace: Duration,
    options: StoreOptions,
) -> Result<RegisterLeases, Error> {
    let database = Database {
        hosts: Vec::new(),
        user: String::new(),
        password: None,
        name: String::new(),
        tls: None,
        table: "leasehold".to_owned(),
        failover_grace,
    };
    here(database, options, |connections| SimulatedTable { connections, network })
}

/// The table, for one client.
#[derive(Debug)]
struct SimulatedTable {
    connections: Connections<Session>,
    network: Arc<dyn Register>,
}

/// A connection to the server with this identity.
#[derive(Debug)]
struct Session {
    identity: u64,
    host: String,
    grants_from_us: i64,
}

impl pool::Session for Session {
    fn host(&self) -> &str {
        &self.host
    }

    fn has_table(&self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

impl SimulatedTable {
    /// Sends a statement.
    async fn send(
        &self,
        name: &str,
        session: Option<u64>,
        statement: Statement,
    ) -> Result<Answer, StoreError> {
        let mut body = Body::from(Bytes::new());
        let request = serde_json::to_string(&Request { session, statement });
        body.metadata.user.insert(STATEMENT.to_owned(), request.map_err(|error| SERVER.unreadable(&error))?);
        let answer = self.network.write(name, Precondition::Absent, body).await?;
        let Write::Committed(answer) = answer else { return Err(SERVER.unreadable(&"it is a conflict")) };
        serde_json::from_str(answer.as_str()).map_err(|error| SERVER.unreadable(&error))
    }

    async fn query(
        &self,
        used: &mut Used<Session>,
        name: &LockName,
        statement: Statement,
    ) -> Result<Answer, StoreError> {
        let mut running = used.begin()?;
        let began = running.began;
        let identity = running.session()?.identity;
        let answer = self.send(name.as_str(), Some(identity), statement).await;
        running.end(!matches!(answer, Err(StoreError::MaybeApplied(_))));
        let answer = answer?;
        if !answer.is_same {
            used.leave_server();
            return Err(SERVER.not_primary("another server was promoted").not_applied());
        }
        self.connections.note_clock(answer.now_us.cast_signed(), began);
        Ok(answer)
    }

    /// Sends one statement that may be repeated.
    async fn ask(self: &Arc<Self>, name: &LockName, statement: Statement) -> Result<Answer, StoreError> {
        self.query(&mut self.take(Purpose::Contend).await?, name, statement).await
    }
}

impl Answer {
    fn stored(&self) -> Option<Stored> {
        self.row.as_ref().map(|row| row.stored(self.now_us))
    }
}

#[async_trait]
impl Table for SimulatedTable {
    const KIND: Kind = SERVER;
    const CLAIMS: Claims = Claims::Free;
    const QUEUES_PERMITS: bool = true;
    type Session = Session;

    fn connections(&self) -> &Connections<Session> {
        &self.connections
    }

    async fn open(&self) -> Result<Session, StoreError> {
        let sent = self.env().now();
        let answer = self.send("a session", None, Statement::Begin).await.map_err(StoreError::of_read)?;
        self.connections.note_clock(answer.now_us.cast_signed(), sent);
        let Answer { identity, grants_from_us, .. } = answer;
        Ok(Session { identity, host: identity.to_string(), grants_from_us })
    }

    async fn note_primary(self: &Arc<Self>) -> Result<(), StoreError> {
        self.take(Purpose::Contend).await.map(drop)
    }

    async fn read(self: &Arc<Self>, name: &LockName) -> Result<Option<Found>, StoreError> {
        let answer = self.ask(name, Statement::Read).await?;
        answer.stored().map(|stored| stored.found(name.as_str(), self.table())).transpose()
    }

    async fn write(self: &Arc<Self>, writing: &Writing) -> Result<Written, StoreError> {
        let Writing { change, over, name, expect, record, columns, kept, prolongs, .. } = writing;
        let mut used = self.take((*change).into()).await?;
        let too_late_us = self.connections.too_late_us(writing, Duration::ZERO);
        let grants_from_us = used.session()?.grants_from_us;
        let refused = withheld(SERVER.name, &self.connections, writing, (&mut used, grants_from_us));
        if let Some(refused) = refused {
            return Ok(refused);
        }
        let put = Put {
            change: *change,
            over: over.map(|over| over.tokens),
            expect: expect.as_ref().map(|version| version.as_str().to_owned()),
            grant: record.grant.to_string(),
            version: columns.version.as_str().to_owned(),
            token: record.token.get(),
            served: number(record.served),
            size: recorded(record.size).map(number),
            is_open: columns.is_open,
            record: columns.record.clone(),
            history: columns.history.clone(),
            kept_us: number(micros(*kept)),
            prolongs_us: number(micros(*prolongs)),
            too_late_us,
        };
        let answer = self.query(&mut used, name, Statement::Write(Box::new(put))).await?;
        drop(used);
        let creates = over.is_none() && expect.is_none();
        if creates && !answer.is_done && answer.row.is_some() {
            return Ok(Written::Conflict(Refusal::Unexplained));
        }
        outcome(writing, answer.is_done, answer.stored(), self.table())
    }

    async fn discard(self: &Arc<Self>, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        let expect = version.as_str().to_owned();
        Ok(self.ask(name, Statement::Discard { expect }).await?.is_done)
    }

    async fn names(
        self: &Arc<Self>,
        _prefix: &str,
        _from: Option<&str>,
        _count: usize,
    ) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn is_shared(self: &Arc<Self>) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn read_line(self: &Arc<Self>, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let line = self.ask(name, Statement::Read).await?.stored().and_then(|stored| stored.line);
        line.map(|(line, version)| Ok((line.to_bytes().map_err(Fault::not_applied)?, version))).transpose()
    }

    async fn write_line(
        self: &Arc<Self>,
        name: &LockName,
        expect: Option<&Version>,
        line: &[u8],
    ) -> Result<bool, StoreError> {
        let back = Line::parse(line).map_err(Fault::not_applied)?.back();
        let expect = expect.map(|version| version.as_str().to_owned());
        let line = String::from_utf8_lossy(line).into_owned();
        Ok(self.ask(name, Statement::WriteLine { expect, line, back }).await?.is_done)
    }
}
