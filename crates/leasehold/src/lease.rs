//! Leases: what every store offers to the layers above, whatever it is made of.
//!
//! [`LeaseStore`] is implemented once for all registers ([`RegisterLeases`](crate::RegisterLeases)) and once for each
//! store with leases of its own. Renewal loops, loss detection and queues are not its business: see
//! [`Lock`](crate::Lock) and [`Guard`](crate::Guard).

use std::any::Any;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::clock::{Deadline, Moment, RATE_ERROR};
use crate::env::Env;
use crate::error::{Error, StoreError};
use crate::name::LockName;
use crate::random::Random;

/// A store that grants leases.
///
/// "Held" and "lost" are values, not errors. Every method is given its own limit in time by the store, resolves unknown
/// outcomes itself, and reports [`StoreError::MaybeApplied`] only when it ran out of time doing so.
#[async_trait]
pub trait LeaseStore: fmt::Debug + Send + Sync + 'static {
    /// Tries once to be granted the lock. Waits for nobody, but settles what was left unknown by a lost answer.
    ///
    /// Idempotent for one claim: called again with the same claim it never deadlocks on its own earlier attempt.
    /// Not cancel safe: a dropped call may still be granted, and ends by [`release`](Self::release) or by lapsing.
    /// [`Lock`](crate::Lock) never drops it.
    ///
    /// # Errors
    /// When the store could not be reached for as long as the claim's patience, or refuses.
    async fn try_acquire(&self, claim: &Claim) -> Result<Verdict, StoreError>;

    /// Prolongs `grant`, whose deadline is updated in place; never takes back what another was granted.
    ///
    /// Gives up at the grant's deadline. Safe to call again after an error or after being dropped.
    ///
    /// # Errors
    /// When no answer could be had. The grant's deadline then stands as it was.
    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError>;

    /// Ends `grant`; with `rest`, the lock is not to be granted for so long. Safe to call again after an error.
    ///
    /// # Errors
    /// When no answer could be had; the lease then lapses by itself.
    async fn release(&self, grant: &mut Grant, rest: Option<Duration>) -> Result<Released, StoreError>;

    /// Makes the grant outlive this process: from now on only its lease ends it, not the end of the process that the
    /// store may be able to see. Before handing a grant to another process.
    ///
    /// # Errors
    /// When no answer could be had.
    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        let _ = grant;
        Ok(())
    }

    /// Ends the grant with `token`, whoever has it: an operator's decision. Compare-and-set, never blind.
    ///
    /// # Errors
    /// When no answer could be had.
    async fn evict(&self, name: &LockName, token: Token) -> Result<Evicted, StoreError>;

    /// The state of one lock, now.
    ///
    /// # Errors
    /// When no answer could be had.
    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError>;

    /// The names of the locks that have a record, those starting with `prefix`, page by page.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>>;

    /// Completes when a lock that was seen as `seen` may have become free. May complete early; never misses a lapse.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// When no answer could be had for a while.
    async fn changed(&self, name: &LockName, seen: &Held) -> Result<(), StoreError>;

    /// Creates what the store needs: a table, a folder. Does nothing where nothing is needed or all is there.
    ///
    /// # Errors
    /// When it cannot be created.
    async fn init(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// What this store can and cannot do.
    fn capabilities(&self) -> Capabilities;

    /// The clock and the randomness that this store runs on.
    fn env(&self) -> &Env;
}

/// A fencing token: strictly greater than that of every earlier grant of the same lock. Below 2^53, so that JSON and
/// JavaScript keep it exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(u64);

impl Token {
    /// The first number that is not a token.
    pub const LIMIT: u64 = 1 << 53;

    /// `None` from 2^53 on.
    pub const fn new(number: u64) -> Option<Self> {
        if number < Self::LIMIT { Some(Self(number)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Token {
    type Error = Error;

    fn try_from(number: u64) -> Result<Self, Error> {
        Self::new(number)
            .ok_or_else(|| Error::invalid(format!("{number} is no fencing token: it is not below 2^53")))
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// 128 random bits, written as 32 lower-case hexadecimal digits. Names one acquisition, or one attempt to write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(u128);

impl Id {
    /// A fresh one.
    pub fn random(random: &Random) -> Self {
        Self(random.bits())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Id {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digits =
            text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match u128::from_str_radix(text, 16) {
            Ok(bits) if digits => Ok(Self(bits)),
            _ => Err(Error::invalid("an id is 32 lower-case hexadecimal digits")),
        }
    }
}

impl TryFrom<String> for Id {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

/// A lease's time to live, with the safety distances of holder and contender that follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// The shortest ttl.
    pub const MIN: Duration = Duration::from_millis(500);
    /// The longest ttl.
    pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);
    /// 30 s.
    pub const DEFAULT: Ttl = Ttl(Duration::from_secs(30));

    /// Checks that `ttl` is between [`MIN`](Self::MIN) and [`MAX`](Self::MAX); cut to whole milliseconds.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming the limits.
    pub fn new(ttl: Duration) -> Result<Self, Error> {
        if (Self::MIN..=Self::MAX).contains(&ttl) {
            return Ok(Self(Duration::from_millis(ttl.as_millis() as u64)));
        }
        Err(Error::invalid(format!("a ttl of {ttl:?} is out of range"))
            .with_help("the ttl is between 500ms and 24h; a lease is renewed for as long as it is held, so 30s suits most"))
    }

    /// The same, from a record's milliseconds.
    pub fn from_millis(ms: u64) -> Result<Self, Error> {
        Self::new(Duration::from_millis(ms))
    }

    /// The time to live itself.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// In milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0.as_millis() as u64
    }

    /// How long a holder may believe in its lease, from before the first send: ttl (1 - rho) - delta.
    pub fn holder_span(self) -> Duration {
        self.0.mul_f64(1.0 - RATE_ERROR).saturating_sub(self.slack())
    }

    /// How long a contender must see no sign of life, from after an answer: ttl (1 + rho) + delta.
    pub fn contender_span(self) -> Duration {
        self.0.mul_f64(1.0 + RATE_ERROR) + self.slack()
    }

    /// delta: covers scheduling and rounding that rates do not.
    fn slack(self) -> Duration {
        (self.0 / 100).max(Duration::from_millis(50))
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Who holds a lock, as the holder said it: for people, never for decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// A user's or a service's name.
    pub name: String,
    /// The host it runs on.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Holder {
    /// This process: the user's name, the host's name, the process id, no note.
    pub fn this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { name: user_name(), host, pid: std::process::id(), note: None }
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
        let clean = |text: &str, most: usize| -> String {
            text.chars()
                .map(|c| if crate::name::is_unprintable(c) { '\u{fffd}' } else { c })
                .take(most)
                .collect()
        };
        write!(f, "{}@{} pid {}", clean(&self.name, 64), clean(&self.host, 64), self.pid)?;
        match &self.note {
            Some(note) => write!(f, " \"{}\"", clean(note, 120)),
            None => Ok(()),
        }
    }
}

/// One acquisition that wants to be granted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Of which lock.
    pub name: LockName,
    /// For how long at a time.
    pub ttl: Ttl,
    /// Names this acquisition; random.
    pub id: Id,
    /// Who wants it.
    pub holder: Holder,
    /// How much longer contenders wait after a lapse, never after a release.
    pub lock_delay: Duration,
    /// Whether the grant outlives the process that asks for it (see [`LeaseStore::detach`]).
    pub detached: bool,
    /// How long to put up with a store that does not answer before giving up.
    pub patience: Duration,
}

impl Claim {
    /// The patience of a claim that says nothing else.
    pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(15);

    /// A claim with a fresh id.
    pub fn new(env: &Env, name: LockName, ttl: Ttl, holder: Holder) -> Self {
        Self {
            name,
            ttl,
            id: Id::random(&env.random),
            holder,
            lock_delay: Duration::ZERO,
            detached: false,
            patience: Self::DEFAULT_PATIENCE,
        }
    }
}

/// A lease that was granted.
#[derive(Debug)]
pub struct Grant {
    /// Of which lock.
    pub name: LockName,
    /// Its fencing token.
    pub token: Token,
    /// The id of the claim it was granted for.
    pub id: Id,
    /// Its time to live.
    pub ttl: Ttl,
    /// When it ends for its holder unless renewed.
    pub deadline: Deadline,
    /// What the store needs to renew and release it; `None` for a grant that comes from a ticket.
    pub memo: Option<Box<dyn Any + Send + Sync>>,
}

/// The answer to [`LeaseStore::try_acquire`].
#[derive(Debug)]
pub enum Verdict {
    /// Yours, until the grant's deadline.
    Granted(Grant),
    /// Somebody has it, or it rests.
    Held(Held),
    /// We may have been granted it without hearing of it, and it has passed on to another since.
    Lost(Loss),
}

/// The answer to [`LeaseStore::renew`].
#[derive(Debug)]
pub enum Renewal {
    /// Prolonged: the grant's deadline was moved.
    Renewed,
    /// Gone for good.
    Lost(Loss),
}

/// The answer to [`LeaseStore::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was ours until now, and is free.
    Released,
    /// It was no longer ours.
    AlreadyLost,
}

/// The answer to [`LeaseStore::evict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The grant with that token is over.
    Evicted,
    /// It was not held with that token.
    Changed,
}

/// A lock that somebody has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Who; `None` for a holder that is unknown (a foreign object, a resting lock).
    pub holder: Option<Holder>,
    /// With which token.
    pub token: Option<Token>,
    /// For how long already, on the store's clock.
    pub held_for: Option<Duration>,
    /// How long the lease can still last from now unless it is renewed.
    pub lapses_within: Option<Duration>,
    /// Released, but not to be granted yet ([`LeaseStore::release`] with a rest).
    pub resting: bool,
    /// What stands where the record should be, when it is not leasehold's.
    pub foreign: Option<String>,
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
    pub history: Vec<Past>,
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
pub struct Past {
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
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock `{}` (token {}) was lost: ", self.name, self.token)?;
        match &self.reason {
            LossReason::Expired { last_error: None } => {
                f.write_str("its lease ran out before it was renewed")
            }
            LossReason::Expired { last_error: Some(error) } => {
                write!(f, "its lease ran out, because it could not be renewed: {error}")
            }
            LossReason::TakenOver { by } => write!(f, "its lease had lapsed and it is now held by {by}"),
            LossReason::Ended => f.write_str("it was evicted, or released through its ticket"),
            LossReason::Deleted => f.write_str("its record was deleted from the store"),
        }
    }
}

/// How often a waiter may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The pause before the first question.
    pub first: Duration,
    /// Pauses grow up to this.
    pub most: Duration,
}

/// What a store can and cannot do; shown to people and used to choose conformance cases.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's kind, for people: `S3`, `SQLite`.
    pub store: &'static str,
    /// Whether grants carry fencing tokens.
    pub tokens: bool,
    /// Whether waiters of different processes are served in the order of their arrival.
    pub fifo: bool,
    /// Whether a holder whose process has died on the same machine is succeeded at once.
    pub sees_dead_processes: bool,
    /// Whether waiters are told of a release, rather than asking.
    pub watches: bool,
    /// Whether release can leave the lock resting.
    pub rests: bool,
    /// How often a waiter asks.
    pub pace: Pace,
}

impl Capabilities {
    /// A store with tokens and rests, and nothing else.
    pub const fn new(store: &'static str, pace: Pace) -> Self {
        Self {
            store,
            tokens: true,
            fifo: false,
            sees_dead_processes: false,
            watches: false,
            rests: true,
            pace,
        }
    }
}

/// Settings that every store understands, from its URL or from code.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The clock and the randomness to run on.
    pub env: Env,
    /// Whether the store's own clock may end a dead holder's lease (`store_clock=off` says no: observation alone).
    pub store_clock: bool,
    /// How much the store's clock may be off between two of its answers (`margin=5s`).
    pub margin: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { env: Env::system(), store_clock: true, margin: Duration::from_secs(5) }
    }
}

/// The limit of one request to a store, so that several fit into a lease.
pub fn attempt_limit(ttl: Ttl) -> Duration {
    (ttl.get() / 4).clamp(Duration::from_millis(250), Duration::from_secs(5))
}

/// The deadline of a grant whose first request was sent at `sent`.
pub fn deadline(ttl: Ttl, sent: Moment) -> Deadline {
    Deadline::new(sent, ttl.holder_span())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_stops_before_any_contender_may_start_at_opposite_ends_of_the_rate_bound() {
        for ms in [500, 1_000, 30_000, 86_400_000] {
            let ttl = Ttl::from_millis(ms).unwrap();
            // A slow holder's clock shows holder_span when more true time has passed; a fast contender's shows
            // contender_span when less has.
            let holder_true = ttl.holder_span().div_f64(1.0 - RATE_ERROR);
            let contender_true = ttl.contender_span().div_f64(1.0 + RATE_ERROR);
            // Each side keeps its own slack, beyond what the rates can eat up.
            let slack = ttl.slack().mul_f64(0.99);
            assert!(holder_true <= ttl.get() - slack, "{ttl:?}");
            assert!(contender_true >= ttl.get() + slack, "{ttl:?}");
        }
    }

    #[test]
    fn ttl_and_token_have_limits() {
        for bad in
            [Duration::ZERO, Duration::from_millis(499), Duration::from_secs(365 * 86_400), Duration::MAX]
        {
            assert_eq!(Ttl::new(bad).unwrap_err().kind(), crate::ErrorKind::Invalid);
        }
        assert!(Token::new(Token::LIMIT).is_none());
        assert_eq!(Token::new(Token::LIMIT - 1).unwrap().get(), 9_007_199_254_740_991);
    }

    #[test]
    fn ids_are_read_back_and_nothing_else_is() {
        let id = Id::random(&Random::seeded(3));
        assert_eq!(id.to_string().parse::<Id>().unwrap(), id);
        for bad in ["", "0", "+123456789012345678901234567890123", "ABCDEF00000000000000000000000000", "é"] {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_another_machine_wrote_is_printed_without_control_characters() {
        let holder = Holder {
            name: "a\u{1b}[31m\n".into(),
            host: "h\u{202e}".into(),
            pid: 7,
            note: Some("x\r".into()),
        };
        assert_eq!(holder.to_string(), "a\u{fffd}[31m\u{fffd}@h\u{fffd} pid 7 \"x\u{fffd}\"");
    }
}
