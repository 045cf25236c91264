//! The state of locks: current and past holders, and how a lock was lost. For people, never for decisions.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::eviction::{Eviction, MAX_TEXT};
use super::id::Id;
use super::name::LockName;
use super::nested::{HeldLock, Nested};
use super::token::Token;

/// The holder of a lock, as it described itself. For people, never for decisions.
///
/// ```
/// use leasehold::Holder;
///
/// let mut holder = Holder::new("alice", "ci-7", 4121);
/// holder.note = Some("make deploy".to_owned());
/// assert_eq!(holder.to_string(), "alice@ci-7 pid 4121 \"make deploy\"");
/// assert_eq!(Holder::this_process().pid, std::process::id());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[cfg_attr(
    feature = "_schema",
    derive(utoipa::ToSchema),
    schema(description = "A holder or a waiter, as it described \
    itself. Text from others: show it as text, never as markup.")
)]
pub struct Holder {
    /// The name of a user or a service.
    pub name: String,
    /// The name of the holder's host. Empty if the holder uses another client.
    pub host: String,
    /// The holder's process id on that host. 0 if the lock is held by a ticket, which does not depend on a process.
    pub pid: u32,
    /// The purpose of the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The value that the holder advertises while it holds the lock. See [`Election::value`](crate::Election::value).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The limit of the hold in milliseconds, from the grant on. See [`Lock::max_hold`](crate::Lock::max_hold).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "max_hold_ms")]
    pub max_hold_ms: Option<u64>,
    /// For a waiter: the locks that it holds while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested: Option<Box<Nested>>,
}

/// The longest [limit](crate::Lock::max_hold) of a hold, and the longest [period](crate::OncePer) and cooldown.
pub(crate) const MAX_HOLD: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reads a limit. Ignores one that leasehold never writes, because not every language reads integers above 2^53.
fn max_hold_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let limit = Option::<u64>::deserialize(deserializer)?;
    Ok(limit.filter(|limit| Duration::from_millis(*limit) <= MAX_HOLD))
}

impl Holder {
    /// Describes the process `pid` of the user `name` on `host`.
    pub fn new(name: impl Into<String>, host: impl Into<String>, pid: u32) -> Self {
        Self { name: name.into(), host: host.into(), pid, ..Self::default() }
    }

    /// Describes this process: the user's name, the host's name and the process id, and nothing else.
    pub fn this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self::new(user_name(), host, std::process::id())
    }

    /// Returns the locks that this waiter holds while it waits. For people.
    pub fn holds(&self) -> &[HeldLock] {
        self.nested.as_ref().map_or(&[], |nested| &nested.holds)
    }

    /// Returns this holder for the history. Omits the value, which is outdated once the grant has ended.
    pub(crate) fn of_the_past(&self) -> Self {
        Self { value: None, ..self.clone() }
    }

    /// Returns whether the holder uses a client other than leasehold. Holders that use other clients have only a name.
    pub fn is_foreign(&self) -> bool {
        self.host.is_empty() && self.pid == 0
    }
}

impl Eviction {
    /// Creates an eviction by the user of this process, named `user@host`.
    pub fn by_this_process(reason: &str) -> Self {
        let Holder { name, host, .. } = Holder::this_process();
        Self::new(&format!("{name}@{host}"), reason)
    }
}

/// Writes `alice@ops-1: the machine is gone`.
impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.by, MAX_TEXT))?;
        match printable(&self.reason, MAX_TEXT) {
            reason if reason.is_empty() => Ok(()),
            reason => write!(f, ": {reason}"),
        }
    }
}

/// Returns `$LOGNAME` or `$USER`. If neither is set, as in a container, returns the system's name for the user.
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
    /// Writes `alice@ci-7 pid 4121 "make deploy"`. Never writes control characters, even if the record contains them.
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

/// Makes text from another machine safe to display. Replaces control characters, and characters that reorder or hide
/// text on a terminal. Keeps at most `most` characters.
///
/// ```
/// assert_eq!(leasehold::lease::printable("http://ci-7\u{1b}[2J", 12), "http://ci-7\u{fffd}");
/// ```
pub fn printable(text: &str, most: usize) -> String {
    text.chars().map(|c| if crate::types::is_unprintable(c) { '\u{fffd}' } else { c }).take(most).collect()
}

/// A lock that is held, or in a cooldown.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let lock = leasehold::Locker::open("mem:").await?.lock("deploy").owner("alice");
/// let guard = lock.acquire().await?;
/// let error = lock.try_acquire().await.unwrap_err();
/// let held = error.holder().unwrap();
/// assert_eq!(held.token, Some(guard.token()?));
/// assert_eq!(held.holder.as_ref().map(|holder| &*holder.name), Some("alice"));
/// println!("held by {held}, for at most {:?} unless it is renewed", held.lapses_within);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The holder. `None` if it is unknown (a foreign object, a lock in a cooldown, or a lock that another task of this
    /// process is acquiring).
    pub holder: Option<Holder>,
    /// The fencing token.
    pub token: Option<Token>,
    /// How long the lock has been held, on the store's clock. `None` if it is [reserved](Self::reserved).
    pub held_for: Option<Duration>,
    /// If the lock is [reserved](Self::reserved), how long it has been free, on the store's clock, if known.
    pub free_for: Option<Duration>,
    /// How much longer the lease can last unless it is renewed.
    pub lapses_within: Option<Duration>,
    /// The length of the whole lease or, in a cooldown, of the cooldown. `None` if the store does not record it.
    pub lease: Option<Duration>,
    /// How long ago the lease has lapsed, on the store's clock. `None` if it has not, or if that is unknown.
    pub lapsed_for: Option<Duration>,
    /// Whether the lock is in a cooldown: it was released with a cooldown
    /// ([`LeaseStore::release`](crate::lease::LeaseStore::release)), and cannot be granted yet.
    pub in_cooldown: bool,
    /// If the lock is in a cooldown, the previous holder. [`held_for`](Self::held_for) then counts from its grant or,
    /// if the store does not record that, from its release.
    pub last_holder: Option<Holder>,
    /// A description of the object that was found instead of a record of leasehold. If it is [withheld](Self::withheld),
    /// the reason.
    pub foreign: Option<String>,
    /// Whether the store grants no lock before [`lapses_within`](Self::lapses_within) has passed, because it may have
    /// lost a grant.
    pub withheld: bool,
    /// Whether the lock is free, but reserved for `holder`, which is the first in the line of waiters.
    pub reserved: bool,
    /// How many waiters of other processes are before this one. `None` if this waiter is not in the line, or if the
    /// store has no line. On etcd, also `None` if there are any, because counting them would take a request.
    pub ahead: Option<usize>,
    /// The waiter directly before this one in the line, without its [`value`](Holder::value). `None` if this waiter is
    /// the first, or if the waiter before it is unknown. That waiter may have died or given up since the line was read.
    pub waiter_ahead: Option<Holder>,
    /// The number of permits in the record of a permit. See [`Semaphore`](crate::Semaphore).
    pub size: Option<u64>,
}

impl HolderInfo {
    /// Returns whether the lock is held by a ticket, which does not depend on a process. See
    /// [`Lock::for_ticket`](crate::Lock::for_ticket).
    pub fn is_by_ticket(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.pid == 0 && !holder.is_foreign())
    }

    /// Returns the [limit](crate::Lock::max_hold) of the hold. Returns `None` if there is no limit, or no hold.
    pub fn max_hold(&self) -> Option<Duration> {
        let holder = self.holder.as_ref().filter(|_| !self.in_cooldown && !self.reserved)?;
        holder.max_hold_ms.map(Duration::from_millis)
    }

    /// Returns whether this process itself holds the lock, as far as the holder's host and process id tell. In
    /// containers, two processes can have the same.
    pub fn is_by_this_process(&self) -> bool {
        let this = Holder::this_process();
        self.holder.as_ref().is_some_and(|holder| holder.pid == this.pid && holder.host == this.host)
    }
}

impl fmt::Display for HolderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.holder, &self.foreign) {
            (Some(holder), _) if self.reserved => {
                return write!(f, "no process; it is reserved for {holder}, which is first in line");
            }
            (Some(holder), _) => holder.fmt(f)?,
            (None, Some(why)) if self.withheld => write!(f, "perhaps nobody ({why})")?,
            (None, Some(foreign)) => write!(f, "an unknown holder ({foreign})")?,
            (None, None) if self.in_cooldown => f.write_str("no process; the lock is in its cooldown")?,
            (None, None) => f.write_str("an unknown holder")?,
        }
        match self.token {
            Some(token) => write!(f, ", token {token}"),
            None => Ok(()),
        }
    }
}

/// The status of a lock.
///
/// ```
/// use leasehold::{LockName, Locker, State};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = Locker::open("mem:").await?;
/// let name = LockName::new("deploy")?;
/// assert_eq!(locker.inspect(&name).await?.token, None); // never granted
///
/// let guard = locker.lock("deploy").acquire().await?;
/// let status = locker.inspect(&name).await?;
/// assert!(matches!(status.state, State::Held(_)));
/// assert_eq!(status.token, Some(guard.token()?));
/// assert!(status.history.is_empty()); // no grant has ended yet
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The name of the lock.
    pub name: LockName,
    /// Whether the lock is free, held or in a cooldown.
    pub state: State,
    /// The token of the current or latest grant. `None` if there was none.
    pub token: Option<Token>,
    /// The latest grants that have ended, newest first.
    pub history: Vec<PastGrant>,
    /// The processes that wait in the line, at most 64, in the order in which they will get the lock. Empty if the
    /// store [keeps no order](crate::lease::Capabilities::fifo).
    pub waiters: Vec<Waiter>,
    /// For the first permit of a [`Semaphore`](crate::Semaphore) or of a [`RwLock`](crate::RwLock): how many permits
    /// there are. `None` if the record does not say it.
    pub size: Option<u64>,
}

impl Status {
    /// Creates a status with only a name and a state, and the token that the state shows.
    pub fn new(name: LockName, state: State) -> Self {
        let token = state.holder().and_then(|held| held.token);
        Self { name, state, token, history: Vec::new(), waiters: Vec::new(), size: None }
    }

    /// Returns the token of the current grant or of the latest one.
    pub fn latest_token(&self) -> Option<Token> {
        self.state.holder().and_then(|held| held.token).or(self.token)
    }
}

/// A process that waits in the line of a lock.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// use leasehold::{Locker, RegisterLeases, env::Env, lease::StoreOptions, stores::memory::MemoryRegister};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let register = Arc::new(MemoryRegister::new(Env::system()));
/// let process = || Locker::new(Arc::new(RegisterLeases::new(register.clone(), StoreOptions::default())));
/// let (one, other) = (process(), process()); // two tasks of one process would be one waiter
/// let guard = one.lock("deploy").acquire().await?;
/// let waiting = tokio::spawn(async move { other.lock("deploy").owner("bob").acquire().await.map(drop) });
/// let first = loop {
///     if let Some(first) = one.inspect(guard.name()).await?.waiters.first() { break first.clone() }
///     tokio::time::sleep(Duration::from_millis(5)).await;
/// };
/// assert_eq!(first.holder.name, "bob");
/// guard.release().await?;
/// # waiting.abort();
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The process, as it described itself.
    pub holder: Holder,
    /// How long the process has been in the line, on the store's clock.
    pub waited: Option<Duration>,
}

impl Waiter {
    /// Creates a waiter that joined the line at an unknown time.
    pub fn new(holder: Holder) -> Self {
        Self { holder, waited: None }
    }
}

/// The state of a lock.
///
/// ```
/// use leasehold::{Locker, State};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = Locker::open("mem:").await?;
/// let guard = locker.lock("deploy").owner("alice").acquire().await?;
/// let told = match locker.inspect(guard.name()).await?.state {
///     State::Free => "free".to_owned(),
///     State::Held(held) if held.in_cooldown => "in its cooldown".to_owned(),
///     State::Held(held) => format!("held by {held}"),
///     State::Lapsed(held) => format!("not released by {held}"),
/// };
/// assert!(told.starts_with("held by alice@"));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The lock can be acquired.
    Free,
    /// The lock is held, or in a cooldown ([`HolderInfo::in_cooldown`]).
    Held(HolderInfo),
    /// The lease has lapsed by the store's clock. The next contender takes the lock over.
    Lapsed(HolderInfo),
}

impl State {
    /// Returns who has the lock, unless it is free.
    pub const fn holder(&self) -> Option<&HolderInfo> {
        match self {
            Self::Free => None,
            Self::Held(held) | Self::Lapsed(held) => Some(held),
        }
    }
}

/// A grant that has ended.
///
/// ```
/// use leasehold::{LockName, Locker};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = Locker::open("mem:").await?;
/// locker.lock("deploy").note("make deploy").with(async |_| ()).await?;
///
/// let status = locker.inspect(&LockName::new("deploy")?).await?;
/// for past in &status.history {
///     println!("{}, token {}: {:?}", past.holder, past.token, past.end);
/// }
/// assert_eq!(status.history[0].holder.note.as_deref(), Some("make deploy"));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "_schema", derive(utoipa::ToSchema), schema(description = "A grant that has ended."))]
#[non_exhaustive]
pub struct PastGrant {
    /// The fencing token.
    pub token: Token,
    /// The id of the claim that was granted.
    #[cfg_attr(feature = "_schema", schema(value_type = String))]
    pub grant: Id,
    /// The holder.
    pub holder: Holder,
    /// When the grant began, on the store's clock, in microseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_us: Option<u64>,
    /// When the grant ended, on the store's clock, in microseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<u64>,
    /// How the grant ended.
    pub end: End,
    /// For an evicted grant: who decided the eviction and why, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicted: Option<Eviction>,
}

impl PastGrant {
    /// Creates the entry of a history for a grant to `holder`. Nothing else is known about it.
    pub fn new(token: Token, grant: Id, holder: Holder, end: End) -> Self {
        Self { token, grant, holder, from_us: None, until_us: None, end, evicted: None }
    }
}

/// How a grant ended.
///
/// ```
/// use leasehold::{Locker, lease::End};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = Locker::open("mem:").await?;
/// let guard = locker.lock("deploy").acquire().await?;
/// locker.evict(guard.name(), guard.token()?).await?;
/// assert_eq!(locker.inspect(guard.name()).await?.history[0].end, End::Evicted);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "_schema", derive(utoipa::ToSchema), schema(as = GrantEnd, description = "How a grant ended."))]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The holder released the lock.
    Released,
    /// The lease lapsed, and another process took over.
    Lapsed,
    /// An operator evicted the holder.
    Evicted,
    /// The hold reached its [limit](crate::Lock::max_hold).
    Limit,
}

impl End {
    /// Returns the end as one word, such as `released`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Lapsed => "lapsed",
            Self::Evicted => "evicted",
            Self::Limit => "limit",
        }
    }
}

/// The loss of a lock.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// # let mut options = leasehold::lease::StoreOptions::default();
/// # let clock = std::sync::Arc::new(leasehold::clock::TestClock::default());
/// # options.env = leasehold::env::Env::seeded(clock, 7);
/// # let locker = leasehold::Locker::open_with("mem:", options).await?;
/// let guard = locker.lock("deploy").acquire().await?;
/// locker.evict(guard.name(), guard.token()?).await?;
///
/// let loss = guard.lost().await; // the next renewal fails
/// assert_eq!(loss.name.as_str(), "deploy");
/// assert_eq!(loss.token, guard.token()?);
/// assert_eq!(guard.check().unwrap_err().loss(), Some(&loss));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The name of the lock.
    pub name: LockName,
    /// The token of the grant that was lost.
    pub token: Token,
    /// Why the lock was lost.
    pub reason: LossReason,
}

impl Loss {
    /// Creates the loss of the grant of `name` with `token`.
    pub fn new(name: LockName, token: Token, reason: LossReason) -> Self {
        Self { name, token, reason }
    }
}

/// Why a lock was lost.
///
/// ```
/// use leasehold::LossReason;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// # let mut options = leasehold::lease::StoreOptions::default();
/// # let clock = std::sync::Arc::new(leasehold::clock::TestClock::default());
/// # options.env = leasehold::env::Env::seeded(clock, 7);
/// # let locker = leasehold::Locker::open_with("mem:", options).await?;
/// let guard = locker.lock("deploy").acquire().await?;
/// locker.evict(guard.name(), guard.token()?).await?;
/// let told = match guard.lost().await.reason {
///     LossReason::Expired { last_error } => format!("not renewed in time: {last_error:?}"),
///     LossReason::TakenOver { by } => format!("now held by {by}"),
///     LossReason::Ended => "ended by another process".to_owned(),
///     other => format!("{other:?}"),
/// };
/// assert_eq!(told, "ended by another process");
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease was not renewed before its deadline.
    Expired {
        /// The error of the last renewal, if there was one.
        last_error: Option<String>,
    },
    /// The lease lapsed, and another process took over.
    TakenOver {
        /// The new holder.
        by: Box<HolderInfo>,
    },
    /// Another process ended the grant, by a release with its ticket, or by an eviction without a known reason.
    Ended,
    /// An operator evicted the holder.
    Evicted {
        /// Who did so, and why.
        why: Eviction,
    },
    /// The record was deleted by hand.
    Deleted,
    /// Another process renewed the grant without a ticket, because this process or its machine was copied while it ran.
    /// Only one of the copies keeps the lock.
    RenewedElsewhere,
    /// The hold reached its [limit](crate::Lock::max_hold).
    Limit,
}

impl LossReason {
    /// Returns the reason as one word for labels, such as `taken_over`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Expired { .. } => "expired",
            Self::TakenOver { .. } => "taken_over",
            Self::Ended | Self::Evicted { .. } => "ended",
            Self::Deleted => "deleted",
            Self::RenewedElsewhere => "renewed_elsewhere",
            Self::Limit => "limit",
        }
    }
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
            LossReason::Evicted { why } => write!(f, "it was evicted by {why}"),
            LossReason::Deleted => f.write_str("its record was deleted from the store"),
            LossReason::Limit => f.write_str("it was held for as long as its limit allows (max_hold)"),
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
    fn a_holder_is_printed_without_control_characters() {
        let holder = Holder {
            name: "a\u{1b}[31m\n".into(),
            host: "h\u{202e}".into(),
            pid: 7,
            note: Some("x\r".into()),
            ..Holder::default()
        };
        assert_eq!(holder.to_string(), "a\u{fffd}[31m\u{fffd}@h\u{fffd} pid 7 \"x\u{fffd}\"");
        assert_eq!(
            Holder { pid: 0, note: None, ..holder }.to_string(),
            "a\u{fffd}[31m\u{fffd}@h\u{fffd} by ticket"
        );
    }
}
