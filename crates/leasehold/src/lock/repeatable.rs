//! Repeatable acquisitions: a caller that got no response sends its request again, perhaps to another process.

use std::time::Duration;

use super::Lock;
use crate::clock::timeout;
use crate::error::{Error, Result};
use crate::lease::{AcquireOutcome, Claim, Grant, Renewal, Secret, deadline};
use crate::runtime::acquisition::{Acquisition, Wait, unknown_holder};
use crate::runtime::limit::Limit;
use crate::ticket::{HeldTicket, Ticket};

impl Lock {
    /// Acquires the lock as a [`Ticket`], under a `secret` that the caller draws, waiting for at most `limit`.
    ///
    /// This is for servers whose clients repeat a request that got no response, perhaps at another server. A call with
    /// the same secret, in any process, renews the same hold and returns it. Once that hold has ended, the secret is
    /// spent, and further calls fail with [`ErrorKind::Lost`](crate::ErrorKind::Lost). The store remembers the
    /// [ids](Secret::id) of spent secrets only as far back as the lock's [history](crate::Status::history) goes.
    ///
    /// A repeated call has the same ttl or a longer one, which then applies to the hold. The other settings must
    /// be the same.
    ///
    /// This process neither renews nor releases the lock. Only users of the ticket do. If no caller receives the
    /// ticket, the lease lapses after its ttl. Anyone who knows the secret can do everything that the ticket
    /// allows.
    ///
    /// Cancel safe: dropping the future gives up the place among the waiters. A grant that arrives later is returned to
    /// a repeated call, or lapses.
    ///
    /// # Errors
    /// - [`ErrorKind::Held`](crate::ErrorKind::Held) with the [holder](Error::holder): the lock was not acquired within
    ///   `limit`.
    /// - [`ErrorKind::Lost`](crate::ErrorKind::Lost): the secret is spent, or its grant came too late to be used.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the store
    ///   [keeps no history](crate::lease::Capabilities::history), so it cannot tell whether a secret is spent.
    /// - Otherwise, the same errors as [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use std::time::Duration; use leasehold::{ErrorKind, lease::Secret};
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locker = leasehold::Locker::open("mem:").await?;
    /// let (lock, secret) = (locker.lock("deploy"), Secret::new(locker.store().env()));
    /// let first = lock.acquire_ticket(secret, Duration::ZERO).await?;
    /// let again = lock.acquire_ticket(secret, Duration::ZERO).await?; // the first response was lost
    /// assert!(again.ticket().token() >= first.ticket().token());
    ///
    /// locker.release(again.ticket()).await?;
    /// let spent = lock.acquire_ticket(secret, Duration::ZERO).await.unwrap_err();
    /// assert_eq!(spent.kind(), ErrorKind::Lost);
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire_ticket(&self, secret: Secret, limit: Duration) -> Result<HeldTicket> {
        let lock = if self.for_another { self.clone() } else { self.clone().for_ticket() };
        let lock = lock.with_own_last_error();
        let claim = Claim { id: secret.id(), repeatable: true, ..lock.claim()? };
        let capabilities = lock.locker.store().capabilities();
        if !capabilities.history {
            let message = format!(
                "{} cannot determine whether the secret of an acquisition was used before",
                capabilities.store
            );
            return Err(
                Error::unsupported(message).with_help("acquire the lock without a secret of your own")
            );
        }
        let (name, queue) = (claim.name.clone(), lock.queue_of(&claim));
        let grant = match queue.try_turn() {
            Some(turn) if limit.is_zero() => {
                let request = lock.request(claim, Wait::No);
                Acquisition::in_turn(request, queue, turn).grant().await?
            }
            turn => {
                let env = lock.locker.store().env();
                let began = env.now();
                // The claim may already hold the lock, and tasks ahead of this one may be waiting for that very hold to
                // end.
                if turn.is_none() {
                    let most =
                        if limit.is_zero() { claim.store_timeout } else { limit.max(Claim::FIRST_RESPONSE) };
                    let held = timeout(&*env.clock, most, lock.own_hold(&claim)).await;
                    if let Some(held) = held.unwrap_or_else(|| Err(lock.unanswered(&name, most)))? {
                        return Ok(held);
                    }
                }
                let limit = limit.saturating_sub(env.now().longest_since(began));
                if limit.is_zero() {
                    return Err(match queue.seen() {
                        Some(held) => Error::held(&name, held),
                        None => unknown_holder(&name),
                    });
                }
                let request = lock.limited(limit).request(claim, Wait::Yes);
                let acquisition = match turn {
                    Some(turn) => Acquisition::in_turn(request, queue, turn),
                    None => Acquisition::enter(request, queue),
                };
                acquisition.grant().await?
            }
        };
        lock.held(&grant).await
    }

    /// Renews and returns the hold of `claim`, if the claim already holds the lock. Its ttl is at least that of
    /// `claim`.
    async fn own_hold(&self, claim: &Claim) -> Result<Option<HeldTicket>> {
        let store = self.locker.store();
        let status = store.inspect(&claim.name).await?;
        if Limit::is_over(&status.state) {
            // Must not be renewed. If it is the hold of this claim, the acquisition that follows reports the loss.
            return Ok(None);
        }
        let mut seen = status.token;
        while let Some(token) = seen {
            let mut grant = Grant::new(claim, token, store.env().now());
            if let Renewal::Lost(_) = store.renew(&mut grant).await? {
                return Ok(None);
            }
            // Some stores renew by the id alone. If the token was read before the claim was granted, it belongs to the
            // previous holder. Tokens only rise, so a token that is the same before and after the renewal belongs to
            // the renewed grant.
            seen = store.inspect(&claim.name).await?.token;
            if seen != Some(grant.token) {
                continue;
            }
            let env = store.env();
            if grant.deadline.remaining(env.now()) < deadline(claim.ttl, env.now()).remaining(env.now()) / 2 {
                // The hold has a shorter ttl. Only a repetition of the claim makes it longer.
                let AcquireOutcome::Granted(longer) = store.try_acquire(claim).await? else {
                    return Ok(None);
                };
                grant = longer;
            }
            return self.held(&grant).await.map(Some);
        }
        Ok(None)
    }

    async fn held(&self, grant: &Grant) -> Result<HeldTicket> {
        let opened = self.locker.opened();
        let ticket = Ticket::new(grant, opened.store_id.clone())?.with_max_hold(self.max_hold);
        let limit = Limit::of_ticket(&ticket, opened).await?;
        let deadline = Limit::of_lease(limit, grant.deadline);
        Limit::check(limit, &grant.name, grant.token, opened.store.env().now())?;
        Ok(HeldTicket::new(ticket, deadline, opened.store.env().clone()))
    }
}
