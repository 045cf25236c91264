//! Who has a lock, who had it, and how it was lost: for people, never for decisions.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::name::LockName;
use super::terms::{Id, Token};

/// Who holds a lock, as the holder said it: for people, never for decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// A user's or a service's name.
    pub name: String,
    /// The host it runs on; empty for a holder that uses another client.
    pub host: String,
    /// Its process id there; 0 when it is held by a ticket, and no process has to live for it.
    pub pid: u32,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What it advertises while it holds the lock: see [`Election::value`](crate::Election::value).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

impl Holder {
    /// This process: the user's name, the host's name, the process id, no note, no value.
    pub fn this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { name: user_name(), host, pid: std::process::id(), note: None, value: None }
    }

    /// Whether it is the same process by the same name, whatever it is doing.
    pub(crate) fn is_same_process(&self, other: &Self) -> bool {
        (self.pid, &self.host, &self.name) == (other.pid, &other.host, &other.name)
    }

    /// Who it was once its grant is over: what it advertised does not hold any more.
    pub(crate) fn of_the_past(&self) -> Self {
        Self { value: None, ..self.clone() }
    }

    /// Whether it uses another client than leasehold, which gives its holders a name and nothing else.
    pub fn is_foreign(&self) -> bool {
        self.host.is_empty() && self.pid == 0
    }
}

/// `$LOGNAME` or `$USER`, or what the system calls the user, as in a container, where neither is set.
fn user_name() -> String {
    if let Some(name) =
        ["LOGNAME", "USER"].iter().find_map(|key| std::env::var(key).ok().filter(|name| !name.is_empty()))
    {
        return name;
    }
    let uid = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entry = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|entry| entry.get(2) == Some(&&*uid));
    entry.map_or_else(|| format!("uid {uid}"), |entry| entry[0].to_owned())
}

impl fmt::Display for Holder {
    /// `alice@ci-7 pid 4121 "make deploy"`, without control characters, whatever was written in the record.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_foreign() {
            return f.write_str(&printable(&self.name, 64));
        }
        write!(f, "{}@{} ", printable(&self.name, 64), printable(&self.host, 64))?;
        match self.pid {
            0 => f.write_str("by ticket")?,
            pid => write!(f, "pid {pid}")?,
        }
        match &self.note {
            Some(note) => write!(f, " \"{}\"", printable(note, 120)),
            None => Ok(()),
        }
    }
}

/// What another machine wrote, for people: without control characters, and those that reorder or hide text on a
/// terminal. At most `most` characters.
///
/// ```
/// assert_eq!(leasehold::lease::printable("http://ci-7\u{1b}[2J", 12), "http://ci-7\u{fffd}");
/// ```
pub fn printable(text: &str, most: usize) -> String {
    text.chars().map(|c| if crate::types::is_unprintable(c) { '\u{fffd}' } else { c }).take(most).collect()
}

/// A lock that somebody has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Who; `None` for a holder that is unknown (a foreign object, a resting lock, a lock that another task of this process is
    /// acquiring).
    pub holder: Option<Holder>,
    /// With which token.
    pub token: Option<Token>,
    /// For how long already, on the store's clock.
    pub held_for: Option<Duration>,
    /// How long the lease can still last from now unless it is renewed.
    pub lapses_within: Option<Duration>,
    /// Released, but not to be granted yet ([`LeaseStore::release`](crate::lease::LeaseStore::release) with a rest).
    pub resting: bool,
    /// Of a resting lock: who had it before. Then [`held_for`](Self::held_for) counts from that grant, or, where the
    /// store does not know it, from the release.
    pub last_holder: Option<Holder>,
    /// What stands where the record should be, when it is not leasehold's.
    pub foreign: Option<String>,
}

impl Held {
    /// Whether no process has to live for it: see [`Lock::for_ticket`](crate::Lock::for_ticket).
    pub fn is_by_ticket(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.pid == 0 && !holder.is_foreign())
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.holder, &self.foreign) {
            (Some(holder), _) => holder.fmt(f)?,
            (None, Some(foreign)) => write!(f, "an unknown holder ({foreign})")?,
            (None, None) if self.resting => f.write_str("nobody, but it rests")?,
            (None, None) => f.write_str("an unknown holder")?,
        }
        match self.token {
            Some(token) => write!(f, ", token {token}"),
            None => Ok(()),
        }
    }
}

/// The state of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Which lock.
    pub name: LockName,
    /// Free, held or resting.
    pub state: State,
    /// The token of the current or latest grant; `None` when there never was one.
    pub token: Option<Token>,
    /// The latest grants that are over, newest first.
    pub history: Vec<PastGrant>,
}

impl Status {
    /// The status of a lock of which nothing is known but its state.
    pub fn new(name: LockName, state: State) -> Self {
        Self { name, state, token: None, history: Vec::new() }
    }
}

/// Free, held or resting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Anybody may have it.
    Free,
    /// Somebody has it, or it rests ([`Held::resting`]).
    Held(Held),
    /// Its lease has lapsed, as far as the store's clock tells: the next who asks will have it.
    Lapsed(Held),
}

/// A grant that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastGrant {
    /// Its token.
    pub token: Token,
    /// The id of its claim.
    pub grant: Id,
    /// Who had it.
    pub holder: Holder,
    /// When it was granted, on the store's clock, in microseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_us: Option<u64>,
    /// When it ended, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<u64>,
    /// How it ended.
    pub end: End,
}

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// By its holder.
    Released,
    /// By time: another was granted the lock after the lease had lapsed.
    Lapsed,
    /// By an operator.
    Evicted,
}

/// How a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// Of which lock.
    pub name: LockName,
    /// The token that is worth nothing any more.
    pub token: Token,
    /// Why.
    pub reason: LossReason,
}

impl Loss {
    /// The loss of the grant of `name` with `token`.
    pub fn new(name: LockName, token: Token, reason: LossReason) -> Self {
        Self { name, token, reason }
    }
}

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ran out before it could be renewed; with the last trouble in renewing it, if there was any.
    Expired {
        /// What the store said to the last renewal.
        last_error: Option<String>,
    },
    /// The lease had lapsed and another was granted the lock.
    TakenOver {
        /// By whom.
        by: Held,
    },
    /// Somebody ended the grant: an eviction, or a release by another who has its ticket.
    Ended,
    /// The record is gone: deleted by hand.
    Deleted,
    /// Another than this process renewed the same grant, which has no ticket: this process, or its machine, was copied while it
    /// ran. Only one of the copies goes on to hold the lock.
    RenewedElsewhere,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock `{}` (token {}) was lost: ", self.name, self.token)?;
        match &self.reason {
            LossReason::Expired { last_error: None } => f.write_str("its lease was not renewed in time"),
            LossReason::Expired { last_error: Some(error) } => {
                write!(f, "its lease was not renewed in time: {error}")
            }
            LossReason::TakenOver { by } => write!(f, "its lease had lapsed and it is now held by {by}"),
            LossReason::Ended => f.write_str("it was evicted, or released through its ticket"),
            LossReason::Deleted => f.write_str("its record was deleted from the store"),
            LossReason::RenewedElsewhere => f.write_str(
                "another process renewed it: was this process or machine copied while it ran (a snapshot, CRIU)?",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_machine_wrote_is_printed_without_control_characters() {
        let holder = Holder {
            name: "a\u{1b}[31m\n".into(),
            host: "h\u{202e}".into(),
            pid: 7,
            note: Some("x\r".into()),
            value: None,
        };
        assert_eq!(holder.to_string(), "a\u{fffd}[31m\u{fffd}@h\u{fffd} pid 7 \"x\u{fffd}\"");
        assert_eq!(
            Holder { pid: 0, note: None, ..holder }.to_string(),
            "a\u{fffd}[31m\u{fffd}@h\u{fffd} by ticket"
        );
    }
}
