//! The Lease object of a lock, and its conversion to and from a record.
//!
//! The fields of `spec` are Kubernetes' own, and show its clients who holds the lock. The record itself is in an
//! annotation. Other clients change `spec` and keep the annotations, so a second annotation contains a mark of the
//! `spec` that the record belongs to. The record is valid only while that mark matches. Otherwise, the lock belongs to
//! another client.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clock::{RATE_ERROR, micros};
use crate::error::{ErrorKind, Fault};
use crate::lease::{Holder, Token, Ttl, printable};
use crate::protocol::record::{self, Content, FORMAT, Record, RecordState};
use crate::protocol::records::{Found, foreign_id};
use crate::register::Version;

/// The record, in JSON.
pub(super) const RECORD: &str = "leasehold/record";
/// The [mark](Spec::mark) of the `spec` that was written with the record.
pub(super) const MARK: &str = "leasehold/record-of";
/// The name of the lock, if the object has another name.
pub(super) const NAME: &str = "leasehold/name";
/// The line of waiters, in a separate object.
pub(super) const LINE: &str = "leasehold/line";

/// How much longer other clients wait than the record states. They compare whole seconds, and the server's clock has a
/// limited resolution too, so the latest renewal can look the same as a renewal up to two seconds earlier.
const UNSEEN: Duration = Duration::from_secs(2);

/// How many seconds ahead of its time a renewal may be shown, so that each renewal shows a new second.
const MAX_AHEAD_S: u64 = 2;

/// The fields of a Lease that leasehold reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Lease {
    pub(super) metadata: Metadata,
    spec: Option<Spec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) resource_version: String,
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

/// The `spec` of a Lease. A write removes fields that are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i32>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i32>,
    #[serde(skip_serializing)]
    strategy: Option<String>,
}

impl Spec {
    /// Returns the text of the annotation [`MARK`], which distinguishes this state of the lock from all others.
    fn mark(&self) -> String {
        let time = self.renew_time.as_deref().unwrap_or("-");
        format!("{} {time} {}", self.lease_transitions.unwrap_or(0), self.holder())
    }

    fn holder(&self) -> &str {
        self.holder_identity.as_deref().unwrap_or("")
    }
}

/// The version of a Lease, with the values that the next write over it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Revision {
    pub(super) resource_version: String,
    transitions: i32,
    /// The second that `renewTime` shows.
    renewed_s: u64,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.resource_version, self.transitions, self.renewed_s)
    }
}

impl FromStr for Revision {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let mut words = text.split(' ');
        let mut parse = || {
            let resource_version = words.next().filter(|word| !word.is_empty())?.to_owned();
            let (transitions, renewed_s) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            words.next().is_none().then_some(Self { resource_version, transitions, renewed_s })
        };
        parse().ok_or_else(|| {
            Fault::new(ErrorKind::Invalid, format!("{text:?} is not the version of a Kubernetes Lease"))
        })
    }
}

impl Lease {
    /// Parses the body of a response.
    pub(super) fn of(body: &[u8]) -> Result<Self, Fault> {
        let lease = serde_json::from_slice::<Self>(body).ok();
        // Without a version, the next write would replace any state.
        lease.filter(|lease| !lease.metadata.resource_version.is_empty()).ok_or_else(|| {
            Fault::new(ErrorKind::Corrupt, "the server's response is not a Lease with a resourceVersion")
                .with_help("check that the endpoint is a Kubernetes API server")
        })
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }

    pub(super) fn version(&self) -> Version {
        let spec = self.spec.as_ref();
        let renewed = spec.and_then(|spec| spec.renew_time.as_deref()?.parse::<jiff::Timestamp>().ok());
        let revision = Revision {
            resource_version: self.metadata.resource_version.clone(),
            transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or(0),
            renewed_s: renewed.and_then(|time| u64::try_from(time.as_second()).ok()).unwrap_or(0),
        };
        Version::new(revision.to_string())
    }

    /// Returns whether the Lease names a holder.
    pub(super) fn is_held(&self) -> bool {
        self.spec.as_ref().is_some_and(|spec| !spec.holder().is_empty())
    }

    /// Returns the state of the lock. Never guesses: a Lease in an unknown form is foreign or an error.
    pub(super) fn found(&self) -> Result<Found, Fault> {
        Ok(Found { content: self.content()?, version: self.version(), line: None })
    }

    fn content(&self) -> Result<Content, Fault> {
        let nothing = Spec::default();
        let spec = self.spec.as_ref().unwrap_or(&nothing);
        if let Some(strategy) = &spec.strategy {
            let strategy = printable(strategy, 32);
            // The server chooses the holder of such a Lease by its own rules.
            let what = format!("a Lease of Kubernetes' coordinated leader election (strategy {strategy})");
            return Ok(Content::foreign(what));
        }
        match self.annotation(RECORD) {
            Some(text) if self.annotation(MARK) == Some(&spec.mark()) => record::parse(text.as_bytes()),
            earlier => Ok(others(spec, earlier)),
        }
    }
}

/// Returns the state of a lock of another client, which wrote `spec`. If there is a record from before that, it is
/// `earlier`.
///
/// The state is unconfirmed, because that record may be missing or outdated. The next grant takes its token from the
/// server's clock. `renewTime` does not come from the server's clock, so contenders rely only on their own observation.
fn others(spec: &Spec, earlier: Option<&str>) -> Content {
    let holder = spec.holder();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
    if !holder.is_empty() && seconds == 0 {
        let what = "a Lease with a holderIdentity, and without leaseDurationSeconds";
        return Content::foreign(what);
    }
    let lease = Duration::from_secs(seconds);
    let ttl = Ttl::new(lease.clamp(Ttl::MIN, Ttl::MAX)).unwrap_or_default();
    let acquired = spec.acquire_time.as_deref().unwrap_or("-");
    let Some(id) = foreign_id(&format!("{} {acquired}", spec.mark())) else {
        return Content::foreign("a Lease of another client");
    };
    let earlier = match earlier.map(|text| record::parse(text.as_bytes())) {
        Some(Ok(Content::Record(mut record))) => {
            // A held record without a time is the other client's state, as a waiter that marked it saw it. That client may
            // still hold the lock.
            if record.state != RecordState::Held || record.renewed_at_us.is_some() {
                record.remember_replaced();
            }
            Some(*record)
        }
        _ => None,
    };
    // The part of the lease that exceeds leasehold's longest ttl. Clock rate errors apply to this part too.
    let beyond_ms = seconds.saturating_mul(1_000).saturating_sub(ttl.as_millis());
    Content::Record(Box::new(Record {
        leasehold: FORMAT,
        state: if holder.is_empty() { RecordState::Free } else { RecordState::Held },
        token: earlier.as_ref().map_or(Token::default(), |record| record.token),
        // Each renewal by another client looks like a new grant, which shows that the client is alive.
        grant: id,
        heartbeat: 0,
        nonce: id,
        ttl_ms: ttl.as_millis(),
        lock_delay_ms: beyond_ms.saturating_mul(51) / 50,
        holder: Holder { name: holder.to_owned(), ..Holder::default() },
        granted_at_us: None,
        renewed_at_us: None,
        cooldown_ms: None,
        unconfirmed: true,
        awaited: earlier.as_ref().is_some_and(|record| record.awaited),
        served: earlier.as_ref().map_or(0, |record| record.served),
        size: earlier.as_ref().map_or(0, |record| record.size),
        history: earlier.map(|record| record.history).unwrap_or_default(),
    }))
}

/// Returns the `spec` that shows `record`. `over` has the revision that it is written over, and the record there.
pub(super) fn spec(record: &Record, over: Option<(&Revision, Option<&Record>)>) -> Result<Spec, Fault> {
    let (revision, before) = match over {
        Some((revision, before)) => (Some(revision), before),
        None => (None, None),
    };
    if record.renewed_at_us.is_none() && record.state != RecordState::Free {
        // Other clients would not see the renewals, and would take over.
        return Err(Fault::new(
            ErrorKind::Unsupported,
            "the server's responses contain no time (no `Date`), so a Lease cannot show when it was renewed",
        )
        .with_help("use a server, or a proxy in front of it, that sends the Date header"));
    }
    let same = before.filter(|before| before.grant == record.grant);
    let renews = same.is_some_and(|before| before.heartbeat != record.heartbeat);
    let shown_us = record.renewed_at_us.map(|renewed_us| match revision {
        Some(revision) if renews => next_shown(renewed_us, revision.renewed_s),
        _ => renewed_us,
    });
    let earlier = revision.map_or(0, |revision| revision.transitions);
    let transitions = if over.is_some() && same.is_none() { earlier.saturating_add(1) } else { earlier };
    let (holder, span) = match record.state {
        RecordState::Free => (String::new(), Duration::ZERO),
        RecordState::Held => (identity(record), record.span() + UNSEEN),
        RecordState::Cooldown => {
            let span = record.cooldown().mul_f64(1.0 + RATE_ERROR) + UNSEEN;
            (format!("cooldown after {}", identity(record)), span)
        }
    };
    // Shows a free lock as client-go does on a release: no holder, and one second.
    let seconds = micros(span).div_ceil(1_000_000).max(1);
    Ok(Spec {
        holder_identity: Some(holder),
        lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
        acquire_time: record.granted_at_us.map(time).transpose()?,
        renew_time: shown_us.map(time).transpose()?,
        lease_transitions: Some(transitions),
        strategy: None,
    })
}

/// Returns the time to show for a renewal at `renewed_us`, after a renewal that showed the second `shown_s`. Clients
/// compare whole seconds, so each renewal shows a later second. If renewals are frequent, that second is at most
/// [`MAX_AHEAD_S`] ahead.
fn next_shown(renewed_us: u64, shown_s: u64) -> u64 {
    let renewed_s = renewed_us / 1_000_000;
    let next_s = (shown_s + 1).min(renewed_s + MAX_AHEAD_S);
    if next_s > renewed_s { next_s * 1_000_000 } else { renewed_us }
}

/// Returns the holder for Kubernetes' tools. No other client uses this identity.
fn identity(record: &Record) -> String {
    let Holder { name, host, pid, .. } = &record.holder;
    let grant = record.grant.to_string();
    format!("{}@{}_{pid}_{}", printable(name, 64), printable(host, 64), grant.get(..8).unwrap_or(&grant))
}

fn time(us: u64) -> Result<String, Fault> {
    let time = i64::try_from(us).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    time.map(|time| format!("{time:.6}"))
        .ok_or_else(|| Fault::new(ErrorKind::Corrupt, "the server's clock does not show a valid date"))
}

/// Returns the annotations with `record` and, if `spec` is written with it, the mark of `spec`.
pub(super) fn annotations(record: &Record, spec: Option<&Spec>) -> Result<Value, Fault> {
    let bytes = record.to_bytes()?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(match spec {
        Some(spec) => json!({ RECORD: text, MARK: spec.mark() }),
        None => json!({ RECORD: text }),
    })
}

#[cfg(test)]
mod tests;
