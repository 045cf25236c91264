//! [`Election`]: one of several candidates leads, and every process can find out which.
//!
//! An election is a lock. The leader is the holder of the lock, and its term is the fencing token. The record stores
//! the value that the leader advertises, next to the holder.

mod observer;

use std::fmt;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use tokio_util::sync::CancellationToken;

use self::observer::{Observer, leader_of};
use crate::error::Result;
use crate::guard::Guard;
use crate::lease::{Holder, HolderInfo, Loss, Released, Token};
use crate::lock::{Lock, MAX_VALUE};
use crate::locker::Locker;
use crate::types::LockName;

/// A handle to an election, with the settings of a candidate. Cheap to clone.
///
/// Candidates [campaign](Self::campaign) and advertise a [value](Self::value), such as an address. Other processes
/// [observe](Self::observe) who leads. At any time, at most one candidate considers itself the leader. The term of
/// every leader is higher than all earlier terms.
///
/// ```
/// use futures_util::StreamExt;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let election = locker.election("scheduler").value("http://10.0.0.7:8080");
/// let mut changes = election.observe();
/// assert_eq!(changes.next().await.unwrap()?, None); // no leader yet
///
/// let leadership = election.campaign().await?; // waits until it leads
/// println!("leading, term {}", leadership.term()?);
/// let leader = changes.next().await.unwrap()?.expect("there is a leader");
/// assert_eq!(leader.value.as_deref(), Some("http://10.0.0.7:8080"));
///
/// leadership.check()?; // still leading? local, no I/O
/// leadership.resign().await?; // a waiting candidate leads at once
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Election {
    lock: Lock,
}

impl Lock {
    /// Returns an election with this name and these settings.
    #[must_use]
    pub fn election(self) -> Election {
        Election::new(self)
    }
}

impl Locker {
    /// Returns the election called `name`, which is a lock of that name. Sends no request. If the name is invalid, the
    /// methods of the election report it.
    #[must_use]
    pub fn election(&self, name: impl Into<String>) -> Election {
        self.lock(name).election()
    }
}

impl Election {
    /// The maximum length of an advertised value, in characters.
    pub const MAX_VALUE: usize = MAX_VALUE;

    fn new(lock: Lock) -> Self {
        // It matters more to have a new leader than which candidate leads. So no candidate waits for one that has died
        // in the line.
        Self { lock: lock.not_passed_on().barge() }
    }

    /// Sets the value that this candidate advertises while it leads, such as its address.
    ///
    /// The value may have at most [`MAX_VALUE`](Self::MAX_VALUE) characters. If it is longer,
    /// [`campaign`](Self::campaign) fails. Anyone who can read the store can read the value.
    #[must_use]
    pub fn value(self, value: impl Into<String>) -> Self {
        Self { lock: self.lock.value(value.into()) }
    }

    /// Sets the lease's time to live, which is how long there is no leader after a leader has died. Must be between 500
    /// ms and 24 h. Defaults to 30 s.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl) }
    }

    /// Sets a note that describes the purpose of this candidate, for people who inspect the lock. It is truncated to
    /// 200 characters.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { lock: self.lock.note(note) }
    }

    /// Sets the candidate's name that other processes see. Defaults to the user's name.
    #[must_use]
    pub fn owner(self, name: impl Into<String>) -> Self {
        Self { lock: self.lock.owner(name) }
    }

    /// Sets how much longer there is no leader after a leader's lease has lapsed. The delay does not apply after a
    /// leader has resigned. See [`Lock::lock_delay`](crate::Lock::lock_delay).
    #[must_use]
    pub fn lock_delay(self, delay: Duration) -> Self {
        Self { lock: self.lock.lock_delay(delay) }
    }

    /// Sets how long to retry while the store does not respond. The defaults are those of
    /// [`Lock::store_timeout`](crate::Lock::store_timeout).
    #[must_use]
    pub fn store_timeout(self, timeout: Duration) -> Self {
        Self { lock: self.lock.store_timeout(timeout) }
    }

    /// Calls `callback` whenever a waiting campaign learns which process leads. Useful for progress displays and logs.
    #[must_use]
    pub fn on_wait(self, callback: impl Fn(&HolderInfo) + Send + Sync + 'static) -> Self {
        Self { lock: self.lock.on_wait(callback) }
    }

    /// Waits until this candidate leads, for as long as it takes.
    ///
    /// The candidates of one process lead in the order of their arrival. On etcd, the candidates of different processes
    /// do so too. On other stores, the first candidate that finds the election free leads.
    ///
    /// Cancel safe: dropping the future withdraws the candidate and leaves no leader behind.
    ///
    /// # Errors
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the name or the ttl is invalid, or the value is too long.
    /// - Any error from the store. If errors last longer than the [store timeout](Self::store_timeout), the campaign
    ///   ends. A service should then campaign again.
    pub async fn campaign(&self) -> Result<Leadership> {
        self.lock.acquire().await.map(Leadership)
    }

    /// Waits until this candidate leads, for at most `limit`.
    ///
    /// Cancel safe, like [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`](crate::ErrorKind::Held), with [the leader](crate::Error::holder), if this candidate
    /// did not lead within `limit`. Otherwise, returns the same errors as [`campaign`](Self::campaign).
    pub async fn campaign_within(&self, limit: Duration) -> Result<Leadership> {
        self.lock.acquire_within(limit).await.map(Leadership)
    }

    /// Becomes the leader if there is no other leader now.
    ///
    /// Cancel safe, like [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`](crate::ErrorKind::Held), with [the leader](crate::Error::holder), if there is
    /// another leader. Otherwise, returns the same errors as [`campaign`](Self::campaign).
    pub async fn try_campaign(&self) -> Result<Leadership> {
        self.lock.try_acquire().await.map(Leadership)
    }

    /// Reads the current leader from the store. Returns `None` if there is no leader. Cancel safe.
    ///
    /// The result may be outdated: the process at the advertised address may no longer lead. So check its term.
    ///
    /// # Errors
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the name is invalid.
    /// - Any error from the store.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let store = self.lock.locker().store();
        let status = store.inspect(&self.lock.checked_name()?).await?;
        Ok(leader_of(status.state, &store.capabilities()))
    }

    /// Returns a stream of the current leader, and then of every change to another leader or to no leader (`None`). A
    /// leader whose lease has lapsed counts as no leader.
    ///
    /// If the store's locks have tokens, terms never decrease. A leader that comes and goes between two reads is not
    /// reported. The stream may report a term of which the leader does not know, because the store's response did not
    /// reach it.
    ///
    /// The stream reads the store at its [poll interval](crate::lease::Capabilities::poll_interval) (on S3, every two
    /// seconds). A store with [notifications](crate::lease::Capabilities::watches) reports changes at once. Each stream
    /// polls separately, so share one stream within a process.
    ///
    /// Cancel safe: dropping the future of the next item loses nothing. The stream sends no request until it is polled.
    ///
    /// # Errors
    /// - Transient errors are logged (`tracing`, level `warn`), and the stream continues. Until the next item, consider
    ///   the last reported leader current.
    /// - Lasting errors ([`ErrorKind::Denied`](crate::ErrorKind::Denied),
    ///   [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt)) are reported once, as an item. The stream continues,
    ///   because the cause may be repaired.
    /// - An invalid name is reported as an item, and the stream ends.
    pub fn observe(&self) -> BoxStream<'static, Result<Option<Leader>>> {
        self.observed(None)
    }

    /// Like [`observe`](Self::observe), but yields the leader after each read, even if it is the same, and reads again
    /// after `pause` at most. So the age of the latest item is the age of the state.
    pub fn observe_every(&self, pause: Duration) -> BoxStream<'static, Result<Option<Leader>>> {
        self.observed(Some(pause))
    }

    fn observed(&self, every: Option<Duration>) -> BoxStream<'static, Result<Option<Leader>>> {
        let name = match self.lock.checked_name() {
            Ok(name) => name,
            Err(error) => return stream::iter([Err(error)]).boxed(),
        };
        let observer = Observer::new(self.lock.locker().store().clone(), name, every);
        stream::unfold(observer, async |mut observer| Some((observer.next().await, observer))).boxed()
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Election").field(&self.lock).finish()
    }
}

/// A term as leader. It begins when a [campaign](Election::campaign) is won, and ends when the leadership is lost or
/// resigned.
///
/// The leadership ends no later than its lease, even if the network is down. Call [`check`](Self::check) before each
/// step that only a leader may do. Send the [`term`](Self::term) with every write, so that the resource can refuse
/// writes of earlier leaders.
///
/// Dropping this value resigns in the background, without blocking, as with a [`Guard`]. Outside a runtime, the lease
/// lapses instead.
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
    /// Returns the name of the election.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Returns the term, a fencing token that is greater than the term of every earlier leader.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the store's protocol has no tokens. See
    /// [`Guard::token`].
    pub fn term(&self) -> Result<Token> {
        self.0.token()
    }

    /// Checks that this candidate still leads. Local, no I/O.
    ///
    /// This reads the clock, so the result is also correct after a suspend.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the leadership was lost. A loss is final: campaign again.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Returns how long this candidate is certain to lead without another renewal. Returns zero if the term is over.
    /// Local, no I/O.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Waits until the leadership is lost, and returns the loss. Completes no later than the end of the lease. Cancel
    /// safe.
    pub async fn lost(&self) -> Loss {
        self.0.lost().await
    }

    /// Returns a cancellation token that is cancelled as soon as the leadership is lost or resigned.
    pub fn cancellation(&self) -> CancellationToken {
        self.0.cancellation()
    }

    /// Resigns, and reports whether the candidate led until now. A waiting candidate can lead as soon as it learns of
    /// this, long before a ttl has passed.
    ///
    /// The leadership is invalidated before the request is sent, so end the work first. If the future is dropped, the
    /// resignation continues in the background.
    ///
    /// # Errors
    /// Returns the same errors as [`Guard::release`].
    pub async fn resign(self) -> Result<Released> {
        self.0.release().await
    }

    /// Returns the guard of the lock that the leader holds.
    pub fn guard(&self) -> &Guard {
        &self.0
    }
}

impl From<Leadership> for Guard {
    /// Returns the guard of the lock that the leader holds. Releasing it resigns.
    fn from(leadership: Leadership) -> Self {
        leadership.0
    }
}

/// A leader, as reported by the store.
///
/// ```
/// # use std::net::SocketAddr;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let election = leasehold::Locker::open("mem:").await?.election("scheduler").value("10.0.0.7:8080");
/// let leadership = election.campaign().await?;
///
/// let leader = election.leader().await?.expect("there is a leader");
/// println!("{leader}"); // alice@ci-7 pid 4121, term 7
/// assert_eq!(leader.term, Some(leadership.term()?));
/// let address: Option<SocketAddr> = leader.value.and_then(|value| value.parse().ok());
/// assert_eq!(address, Some(SocketAddr::from(([10, 0, 0, 7], 8080))));
/// # leadership.resign().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The value that the leader advertises. See [`Election::value`]. Another machine wrote it, so validate it before
    /// use.
    pub value: Option<String>,
    /// The process that leads. `None` if the record of the lock was not written by leasehold.
    pub holder: Option<Holder>,
    /// The term. `None` if the store's protocol has no tokens, or if the leader uses another client.
    pub term: Option<Token>,
}

impl fmt::Display for Leader {
    /// Writes `alice@ci-7 pid 4121, term 7`. Never writes control characters, even if the record contains them.
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
