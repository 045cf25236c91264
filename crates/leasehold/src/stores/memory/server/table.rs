//! A table on the server, as MariaDB has it: a line of waiters beside the record, and conditions on columns. A statement is
//! sent in the metadata of a write too.

mod client;

use serde::{Deserialize, Serialize};

pub(super) use self::client::leases;
use super::{Live, MemoryServer, not_a_step};
use crate::clock::micros;
use crate::error::StoreError;
use crate::lease::Token;
use crate::protocol::line::Line;
use crate::protocol::record::{Content, Record};
use crate::protocol::records::Change;
use crate::register::Version;
use crate::stores::rows::{Cells, OURS, is_ours, version_of};
use crate::stores::table::Stored;

/// The name of the statement in the metadata of a request.
pub(super) const STATEMENT: &str = "statement";

/// A request on a row, over a session.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    /// The identity of the server with which the session began.
    session: Option<u64>,
    statement: Statement,
}

#[derive(Debug, Serialize, Deserialize)]
enum Statement {
    /// Begins a session. Records that the server is the primary.
    Begin,
    Read,
    Write(Box<Put>),
    /// Replaces the line `expect` by another, of which `back` is the last number.
    WriteLine {
        expect: Option<String>,
        line: String,
        back: u64,
    },
    Discard {
        expect: String,
    },
}

/// A write of a record: the values and the conditions of the statement that MariaDB gets.
#[derive(Debug, Serialize, Deserialize)]
struct Put {
    change: Change,
    /// For a grant over any free record, how many tokens it takes.
    over: Option<u64>,
    expect: Option<String>,
    grant: String,
    version: String,
    token: u64,
    served: i64,
    size: Option<i64>,
    is_open: bool,
    record: String,
    history: Option<String>,
    kept_us: i64,
    prolongs_us: i64,
    too_late_us: i64,
}

/// The response.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    now_us: u64,
    identity: u64,
    /// Whether the session began with this server. Otherwise nothing was done.
    is_same: bool,
    /// Whether something was written.
    is_done: bool,
    /// From when on the server grants locks.
    grants_from_us: i64,
    row: Option<Row>,
}

/// A row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Row {
    cells: Cells,
    is_open: bool,
    line: Option<String>,
    line_last: u64,
}

impl Row {
    /// Returns the row as it is read at `now_us`. The version of a line is its text.
    fn stored(&self, now_us: u64) -> Stored {
        let line = self.line.as_deref().map(|line| {
            let parsed = Line::parse(line.as_bytes()).unwrap_or_else(|_| Line::of(Vec::new()));
            (parsed, Version::new(line))
        });
        Stored { cells: Cells { now_us: now_us.cast_signed(), ..self.cells.clone() }, line }
    }

    /// See [`MemoryServer::pauses`].
    pub(super) fn pauses(&self) -> Vec<u64> {
        let line = self.line.as_deref().and_then(|line| Line::parse(line.as_bytes()).ok());
        let all = |line: Line| line.waiting(&Record::never_granted()).map(|waiter| waiter.polls_ms).collect();
        line.map_or_else(Vec::new, all)
    }

    /// Returns the record, unless another client has the lock.
    fn record(&self, now_us: u64) -> Option<Record> {
        match self.stored(now_us).found("", "").ok()?.content {
            Content::Record(record) if self.cells.version.is_some() => Some(*record),
            Content::Record(_) | Content::Foreign { .. } => None,
        }
    }

    fn has_version(&self, version: &str) -> bool {
        let Cells { version: there, locked_by, .. } = &self.cells;
        version_of(&Version::new(there.as_deref().unwrap_or_default()), locked_by).as_str() == version
    }

    /// Returns whether no other client has the lock.
    fn is_ended(&self, now_us: i64) -> bool {
        self.cells.locked_by.starts_with(OURS)
            || self.cells.until_us.is_some_and(|until_us| until_us <= now_us)
    }

    /// Returns whether a claim may take the lock unread.
    fn is_open_to(&self, put: &Put, tokens: u64, now_us: i64) -> bool {
        let Cells { version, token, served, record, history, .. } = &self.cells;
        let token = token.unwrap_or(0).cast_unsigned();
        let spent = [record, history].into_iter().flatten().any(|text| text.contains(&put.grant));
        self.is_open
            && version.is_some()
            && token > 0
            && token + tokens < Token::LIMIT
            && self.is_ended(now_us)
            && self.line_last <= served.unwrap_or(0).cast_unsigned()
            && !spent
    }

    /// Writes what `put` says.
    fn set(&mut self, put: &Put, now_us: i64) {
        let cells = &mut self.cells;
        let before = cells.token;
        if put.change == Change::Grant {
            let least = put.over.map_or(put.token, |tokens| before.unwrap_or(0).cast_unsigned() + tokens);
            cells.prev_token = before.filter(|_| put.over.is_some() || put.expect.is_some());
            cells.token = Some(now_us.max(least.cast_signed()));
        } else {
            cells.token = Some(put.token.cast_signed());
        }
        cells.until_us = Some(now_us.saturating_add(put.kept_us));
        cells.locked_by = format!("{OURS}{}", put.grant);
        cells.version = Some(put.version.clone());
        cells.written_us = Some(now_us);
        cells.record = Some(put.record.clone());
        cells.size = if put.over.is_some() { cells.size.or(put.size) } else { put.size };
        if put.over.is_none() {
            cells.served = Some(put.served);
            if put.history.is_some() {
                cells.history.clone_from(&put.history);
            }
        }
        self.is_open = put.is_open;
    }
}

impl MemoryServer {
    /// Executes a request on the row `name`.
    pub(super) fn answer(&self, name: &str, request: &str) -> Result<String, StoreError> {
        let Request { session, statement } = serde_json::from_str(request).map_err(|_| not_a_step())?;
        let mut live = self.live();
        let (now_us, before) = (self.now_us(&live), live.state.clone());
        let is_same = session.is_none_or(|session| session == live.identity);
        let is_done = is_same
            && match &statement {
                Statement::Begin => {
                    live.withholds(micros(self.failover_grace), now_us);
                    true
                }
                Statement::Read => false,
                Statement::Write(put) => self.put(&mut live, name, put, now_us),
                Statement::WriteLine { expect, line, back } => match live.state.table.get_mut(name) {
                    Some(row) if row.line == *expect => {
                        (row.line, row.line_last) = (Some(line.clone()), *back);
                        true
                    }
                    _ => false,
                },
                Statement::Discard { expect } => {
                    let is_there = live.state.table.get(name).is_some_and(|row| row.has_version(expect));
                    is_there && live.state.table.remove(name).is_some()
                }
            };
        if is_done {
            live.remember(self.env.now(), before);
        }
        let answer = Answer {
            now_us,
            identity: live.identity,
            is_same,
            is_done,
            grants_from_us: self.grants_from_us(&live),
            row: live.state.table.get(name).cloned(),
        };
        serde_json::to_string(&answer).map_err(|_| not_a_step())
    }

    /// Returns from when on the server that was recorded as the primary grants locks.
    fn grants_from_us(&self, live: &Live) -> i64 {
        let since_us = live.state.epoch.map_or(0, |(_, since_us)| since_us);
        if since_us == 0 { 0 } else { (since_us + micros(self.failover_grace)).cast_signed() }
    }

    /// Writes a record. Returns whether the row was as the statement requires.
    fn put(&self, live: &mut Live, name: &str, put: &Put, now_us: u64) -> bool {
        let (row, now) = (live.state.table.get(name), now_us.cast_signed());
        let is_right = match (row, put.over, &put.expect) {
            (Some(row), Some(tokens), _) => row.is_open_to(put, tokens, now),
            (Some(row), None, Some(version)) => {
                row.has_version(version)
                    && match put.change {
                        Change::Grant => is_ours(&Version::new(version.as_str())) || row.is_ended(now),
                        Change::Renew => row.cells.written_us.unwrap_or(0) + put.prolongs_us > now,
                        Change::Free => true,
                    }
            }
            (None, None, None) => true,
            _ => false,
        };
        let is_known = live.state.epoch.is_some_and(|(identity, _)| identity == live.identity)
            && self.grants_from_us(live) <= now;
        let may_grant = self.failover_grace.is_zero() || is_known;
        if !is_right || put.change == Change::Grant && !may_grant || now >= put.too_late_us {
            return false;
        }
        let before = row.and_then(|row| row.record(now_us));
        let row = live.state.table.entry(name.to_owned()).or_default();
        row.set(put, now);
        if let Some(after) = row.record(now_us) {
            self.commits(name, before.as_ref(), &after);
        }
        true
    }

    /// Takes the row `name` for another client, if it is there and nobody has it.
    pub(super) fn take_row(live: &mut Live, name: &str, now_us: u64, until_us: u64) -> bool {
        let Some(Row { cells, .. }) = live.state.table.get_mut(name) else { return false };
        let is_free = cells.until_us.is_none_or(|until_us| until_us <= now_us.cast_signed());
        if is_free {
            (cells.locked_by, cells.until_us) = ("another client".to_owned(), Some(until_us.cast_signed()));
        }
        is_free
    }
}
