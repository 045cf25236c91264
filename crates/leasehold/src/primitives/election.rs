//! [`Election`]: one of several candidates leads, and everybody can find out who.
//!
//! An election is a lock: to lead is to hold it, and a term is its fencing token. What the leader advertises lies in the
//! record, beside who holds it.

mod observer;

use std::fmt;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use tokio_util::sync::CancellationToken;

use self::observer::{Observer, leader_of};
use crate::error::Result;
use crate::guard::Guard;
use crate::lease::{Held, Holder, Loss, Released, Token};
use crate::lock::{Lock, MAX_VALUE};
use crate::locker::Locker;
use crate::types::LockName;

/// An election: a handle that is cheap to clone, and the settings to campaign with.
///
/// Candidates [campaign](Self::campaign) and advertise a [value](Self::value), an address for instance; everybody else
/// [observes](Self::observe) who leads. At most one believes that it leads at any time, and every leader's term is
/// higher than those of all before it.
///
/// ```
/// use futures_util::StreamExt;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let election = locker.election("scheduler").value("http://10.0.0.7:8080");
/// let mut changes = election.observe();
/// assert_eq!(changes.next().await.unwrap()?, None); // nobody leads yet
///
/// let leadership = election.campaign().await?; // waits until it leads
/// println!("leading, term {}", leadership.term()?);
/// let leader = changes.next().await.unwrap()?.expect("somebody leads");
/// assert_eq!(leader.value.as_deref(), Some("http://10.0.0.7:8080"));
///
/// leadership.check()?; // still leading? local, no I/O
/// leadership.resign().await?; // a candidate that waits leads at once
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Election {
    lock: Lock,
}

impl Lock {
    /// The election with this name and these settings.
    #[must_use]
    pub fn election(self) -> Election {
        Election::new(self)
    }
}

impl Locker {
    /// The election called `name`, which is a lock of that name. Sends nothing; a bad name is reported by what is asked of
    /// it.
    pub fn election(&self, name: impl Into<String>) -> Election {
        self.lock(name).election()
    }
}

impl Election {
    /// The longest value that can be advertised, in characters.
    pub const MAX_VALUE: usize = MAX_VALUE;

    fn new(lock: Lock) -> Self {
        Self { lock: lock.not_handed_on() }
    }

    /// What this candidate advertises once it leads: the address at which it serves, for instance. At most
    /// [`MAX_VALUE`](Self::MAX_VALUE) characters, which [`campaign`](Self::campaign) checks; whoever can read the store
    /// can read it.
    #[must_use]
    pub fn value(self, value: impl Into<String>) -> Self {
        Self { lock: self.lock.value(value.into()) }
    }

    /// The lease's time to live: how long nobody leads after a leader died. 500 ms to 24 h, 30 s unless set.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl) }
    }

    /// What this candidate leads for: shown to people. At most 200 characters are kept.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { lock: self.lock.note(note) }
    }

    /// The candidate's name that others are shown, in place of the user's.
    #[must_use]
    pub fn owner(self, name: impl Into<String>) -> Self {
        Self { lock: self.lock.owner(name) }
    }

    /// How much longer nobody leads after a leader's lease lapsed (never after it resigned): see
    /// [`Lock::lock_delay`](crate::Lock::lock_delay).
    #[must_use]
    pub fn lock_delay(self, delay: Duration) -> Self {
        Self { lock: self.lock.lock_delay(delay) }
    }

    /// How long to put up with a store that does not answer, 15 s unless set.
    #[must_use]
    pub fn store_timeout(self, timeout: Duration) -> Self {
        Self { lock: self.lock.store_timeout(timeout) }
    }

    /// Calls `tell` whenever a campaign that waits learns who leads: for progress displays and logs.
    #[must_use]
    pub fn on_wait(self, tell: impl Fn(&Held) + Send + Sync + 'static) -> Self {
        Self { lock: self.lock.on_wait(tell) }
    }

    /// Completes when this candidate leads, however long that takes.
    ///
    /// Candidates of one process are served in the order of their arrival, those of different processes too where the
    /// store keeps a line ([`Capabilities::fifo`](crate::lease::Capabilities::fifo)).
    ///
    /// Cancel safe: dropping the future withdraws the candidate, and leaves no leader behind.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad name or ttl and for a value that is too long; what
    /// the store says. Trouble of the store that does not pass for as long as the [store timeout](Self::store_timeout) ends a
    /// campaign: a service campaigns again.
    pub async fn campaign(&self) -> Result<Leadership> {
        self.lock.acquire().await.map(Leadership)
    }

    /// Leads if nobody else does now.
    ///
    /// Cancel safe, as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`ErrorKind::Held`](crate::ErrorKind::Held) with [who leads](crate::Error::holder); otherwise as
    /// [`campaign`](Self::campaign).
    pub async fn try_campaign(&self) -> Result<Leadership> {
        self.lock.try_acquire().await.map(Leadership)
    }

    /// Who leads, by one look at the store; `None` when nobody does. Cancel safe.
    ///
    /// It was so a moment ago: whoever answers at the advertised address may lead no more, and should be asked for its
    /// term.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad name; what the store says.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let store = self.lock.locker().store();
        let status = store.inspect(&self.lock.checked_name()?).await?;
        Ok(leader_of(status.state, &store.capabilities()))
    }

    /// Who leads: first as it is now, and then every change, to another leader or to nobody (`None`). A leader whose
    /// lease has lapsed is nobody.
    ///
    /// Terms never fall, where the store's locks have tokens. Leaders that come and go between two looks at the store
    /// are not seen, and a leader may be told with a term that the store has granted and that did not reach it. Those looks cost a read each, and come at the store's [pace](crate::lease::Capabilities::pace) (on
    /// S3 one every other second); a store that [watches](crate::lease::Capabilities::watches) tells of changes at once.
    /// Each stream looks for itself: share one in a process.
    ///
    /// Cancel safe: nothing is lost when the future of the next item is dropped. Nothing is sent until it is polled.
    ///
    /// # Errors
    /// Trouble that passes is logged (`tracing`, at `warn`), and the stream goes on; until then the leader told last stands.
    /// Trouble that lasts ([`ErrorKind::Denied`](crate::ErrorKind::Denied),
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt)) is an item, once, and the stream goes on too: it may be mended.
    /// After a bad name the stream ends.
    pub fn observe(&self) -> BoxStream<'static, Result<Option<Leader>>> {
        let name = match self.lock.checked_name() {
            Ok(name) => name,
            Err(error) => return stream::iter([Err(error)]).boxed(),
        };
        let observer = Observer::new(self.lock.locker().store().clone(), name);
        stream::unfold(observer, async |mut observer| Some((observer.next().await, observer))).boxed()
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Election").field(&self.lock).finish()
    }
}

/// To lead: from a won [campaign](Election::campaign) until it is lost or resigned.
///
/// Dropping it resigns in the background, without blocking, as with a [`Guard`]; outside a runtime it lapses by itself.
/// It ends no later than its lease, also when the network is down: before each step that only a leader may do,
/// [`check`](Self::check), and give the [`term`](Self::term) along with every write, so that the resource can refuse
/// those of earlier leaders.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let leadership = locker.election("scheduler").campaign().await?;
/// let work = tokio::spawn(leadership.cancellation().run_until_cancelled_owned(async { /* lead */ }));
/// tokio::select! {
///     loss = leadership.lost() => eprintln!("{loss}"),
///     _ = work => {}
/// }
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[must_use = "a leadership that is dropped is resigned"]
#[derive(Debug)]
pub struct Leadership(Guard);

impl Leadership {
    /// The election's name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// The term: a fencing token, greater than that of every leader before.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the store's protocol carries none, as
    /// [`Guard::token`].
    pub fn term(&self) -> Result<Token> {
        self.0.token()
    }

    /// Whether it still leads. Local, no I/O; reads the clock, so it is right also after a suspend.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost), for good: campaign again.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// How long it certainly leads without another renewal; zero once that is over. Local, no I/O.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Completes when the leadership is lost, no later than its lease ends. Cancel safe.
    pub async fn lost(&self) -> Loss {
        self.0.lost().await
    }

    /// A token that is cancelled as soon as it does not lead any more: lost or resigned.
    pub fn cancellation(&self) -> CancellationToken {
        self.0.cancellation()
    }

    /// Resigns, and says whether it led until now. A candidate that waits leads as soon as it hears of it, long before a
    /// ttl has passed.
    ///
    /// It does not lead any more when the request is sent: end the work first. Dropping the future goes on resigning in
    /// the background.
    ///
    /// # Errors
    /// When the store did not answer, as [`Guard::release`].
    pub async fn resign(self) -> Result<Released> {
        self.0.release().await
    }

    /// The lock that is held by leading: for what wants a guard.
    pub fn guard(&self) -> &Guard {
        &self.0
    }
}

impl From<Leadership> for Guard {
    /// The lock that is held by leading: whoever releases it resigns.
    fn from(leadership: Leadership) -> Self {
        leadership.0
    }
}

/// Who leads, as the store said it a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What it advertises: see [`Election::value`]. Another machine wrote it: check it before use.
    pub value: Option<String>,
    /// Who it is; `None` when something holds the lock that leasehold did not write.
    pub holder: Option<Holder>,
    /// Its term; `None` where the store's protocol carries no tokens, or the leader uses another client.
    pub term: Option<Token>,
}

impl fmt::Display for Leader {
    /// `alice@ci-7 pid 4121, term 7`, without control characters, whatever was written in the record.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holder {
            Some(holder) => holder.fmt(f)?,
            None => f.write_str("an unknown holder")?,
        }
        match self.term {
            Some(term) => write!(f, ", term {term}"),
            None => Ok(()),
        }
    }
}
