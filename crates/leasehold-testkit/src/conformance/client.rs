//! A client of the store under test, with assertions that the cases share.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Deadline, timeout};
use leasehold::env::Env;
use leasehold::lease::{AcquireOutcome, Claim, Evicted, Grant, LeaseStore, Released, Renewal, State, Ttl};
use leasehold::{ErrorKind, Guard, Holder, HolderInfo, LockName, Loss, LossReason, Status, Token};

use super::Harness;

/// A ttl for cases in which no lease lapses. Every store supports it.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A client of the storage under test. Its methods fail the case if the store does not respond as expected.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) store: Arc<dyn LeaseStore>,
    who: Holder,
    limit: Duration,
}

impl Client {
    /// Opens another client, whose holder is named `who`.
    pub(super) async fn open(harness: &dyn Harness, who: &str) -> Self {
        let mut holder = Holder::new(who, format!("{who}.example"), std::process::id());
        holder.note = Some(format!("note of {who}"));
        Self { store: harness.open().await, who: holder, limit: harness.limit() }
    }

    pub(super) fn env(&self) -> &Env {
        self.store.env()
    }

    pub(super) fn who(&self) -> &Holder {
        &self.who
    }

    /// Creates a new claim of this client.
    pub(super) fn claim(&self, name: &LockName, ttl: Duration) -> Claim {
        let mut claim = Claim::new(self.env(), name.clone(), Ttl::new(ttl).unwrap(), self.who.clone());
        // On a busy machine a server may be slow. That is not a fault of the store's client.
        claim.store_timeout = self.limit / 2;
        claim
    }

    pub(super) async fn attempt(&self, claim: &Claim) -> AcquireOutcome {
        self.within("try_acquire", self.store.try_acquire(claim)).await.unwrap()
    }

    /// Tries to acquire the lock, which must be granted.
    pub(super) async fn granted(&self, name: &LockName, ttl: Duration) -> Grant {
        self.granted_to(&self.claim(name, ttl)).await
    }

    /// Tries `claim`, which must be granted.
    pub(super) async fn granted_to(&self, claim: &Claim) -> Grant {
        // On a busy machine a grant may arrive after its lease has ended. The client has then released it.
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            match self.attempt(claim).await {
                AcquireOutcome::Granted(grant) => {
                    assert_eq!((&grant.name, grant.id, grant.ttl), (&claim.name, claim.id, claim.ttl));
                    return grant;
                }
                AcquireOutcome::Lost(Loss { reason: LossReason::Expired { .. }, .. }) => {}
                other => panic!("`{}` is free, and yet {other:?}", claim.name),
            }
        }
        panic!("`{}` is free, and {TRIES} grants came too late", claim.name);
    }

    /// Tries to acquire the lock, which must be refused because it is held.
    pub(super) async fn refused(&self, name: &LockName) -> HolderInfo {
        match self.attempt(&self.claim(name, LONG)).await {
            AcquireOutcome::Held(held) => held,
            other => panic!("`{name}` is held, and yet {other:?}"),
        }
    }

    /// Tries and waits until the lock is granted.
    pub(super) async fn wait(&self, name: &LockName, ttl: Duration) -> Grant {
        self.within("waiting for the lock", self.try_until_granted(name, ttl)).await
    }

    async fn try_until_granted(&self, name: &LockName, ttl: Duration) -> Grant {
        // On paused time, a store whose `changed` always completes at once would never reach the limit.
        const MAX_TRIES: usize = 100_000;
        let mut claim = self.claim(name, ttl);
        claim.waits = true;
        for _ in 0..MAX_TRIES {
            match self.store.try_acquire(&claim).await.unwrap() {
                AcquireOutcome::Granted(grant) => return grant,
                AcquireOutcome::Held(seen) => self.store.turn(&claim, &seen).await.unwrap(),
                // A slow server may have granted the lock without the response arriving in time.
                AcquireOutcome::Lost(_) => claim.id = self.claim(name, ttl).id,
            }
        }
        panic!("`changed` says that `{name}` is free and `try_acquire` that it is not, {MAX_TRIES} times")
    }

    /// Renews the lease, which must succeed.
    pub(super) async fn renewed(&self, grant: &mut Grant) {
        match self.within("renew", self.store.renew(grant)).await.unwrap() {
            Renewal::Renewed => {}
            Renewal::Lost(loss) => panic!("the lease was live, and yet {loss}"),
        }
    }

    /// Renews the lease, which must be lost.
    pub(super) async fn lost(&self, grant: &mut Grant) -> Loss {
        match self.within("renew", self.store.renew(grant)).await.unwrap() {
            Renewal::Renewed => panic!("the lease of token {} was gone, and yet it was renewed", grant.token),
            Renewal::Lost(loss) => {
                assert_eq!((&loss.name, loss.token), (&grant.name, grant.token));
                loss
            }
        }
    }

    pub(super) async fn release(&self, grant: &mut Grant) -> Released {
        self.release_with(grant, None).await
    }

    pub(super) async fn release_with(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Released {
        self.within("release", self.store.release(grant, cooldown)).await.unwrap()
    }

    pub(super) async fn evict(&self, name: &LockName, token: Token) -> Evicted {
        self.within("evict", self.store.evict(name, token, None)).await.unwrap()
    }

    pub(super) async fn inspect(&self, name: &LockName) -> Status {
        let status = self.within("inspect", self.store.inspect(name)).await.unwrap();
        assert_eq!(&status.name, name);
        status
    }

    pub(super) async fn assert_free(&self, name: &LockName) {
        assert_eq!(self.inspect(name).await.state, State::Free);
    }

    pub(super) async fn assert_held_by(&self, name: &LockName, grant: &Grant) {
        let status = self.inspect(name).await;
        assert_eq!(status.token, Some(grant.token));
        assert!(matches!(status.state, State::Held(_)), "{status:?}");
    }

    /// Asserts that the later of two grants has the higher token, if the store has tokens.
    pub(super) fn assert_rises(&self, earlier: Token, later: Token) {
        let rises = earlier < later || !self.store.capabilities().tokens;
        assert!(rises, "token {later} after {earlier}");
    }

    /// Returns the guard's token, or `None` if the store reports that it has none.
    pub(super) fn token(&self, guard: &Guard) -> Option<Token> {
        if self.store.capabilities().tokens {
            return Some(guard.token().unwrap());
        }
        assert_eq!(guard.token().unwrap_err().kind(), ErrorKind::Unsupported);
        None
    }

    /// Asserts that the loss was caused by an operator. A store without history cannot distinguish an eviction from a
    /// deletion by hand.
    pub(super) fn assert_ended(&self, loss: &Loss) {
        let forgetful = !self.store.capabilities().history && loss.reason == LossReason::Deleted;
        assert!(loss.reason.as_str() == "ended" || forgetful, "{loss}");
    }

    /// Asserts that the holder's deadline had passed by now, when another client was granted the lock.
    pub(super) fn assert_passed(&self, deadline: Deadline) {
        let left = deadline.remaining(self.env().now());
        assert!(
            left.is_zero(),
            "granted to another although its holder may believe in it for another {left:?}"
        );
    }

    /// Awaits `future`, which must complete within the harness's limit.
    pub(super) async fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        match timeout(&*self.env().clock, self.limit, future).await {
            Some(output) => output,
            None => panic!("{what} took longer than {:?}", self.limit),
        }
    }
}

pub(super) fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}
