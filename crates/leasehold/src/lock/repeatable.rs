//! Acquisitions that may be repeated: a caller that got no response sends the request again, perhaps another process.

use std::time::Duration;

use super::Lock;
use crate::clock::timeout;
use crate::error::{Error, Result};
use crate::lease::{Claim, Grant, HolderInfo, Id, Renewal, deadline};
use crate::runtime::acquisition::{Acquisition, Wait};
use crate::runtime::task;
use crate::ticket::{HeldTicket, Ticket};

impl Lock {
    /// Acquires the lock as a [`Ticket`], under an `id` that the caller chose, waiting for at most `limit`.
    ///
    /// For servers whose clients repeat a request that got no response, perhaps at another server. A call with the same
    /// id, in any process, returns the same hold, renewed. Once that hold has ended, the id is spent: a further call
    /// fails with [`ErrorKind::Lost`](crate::ErrorKind::Lost). The store knows this for the lock's latest grants, as many
    /// as its [history](crate::Status::history) has.
    ///
    /// A repetition must have the same ttl. Further settings have no effect on a hold that exists.
    ///
    /// This process does not renew the lock, and never releases it: only the ticket's users do. If no caller gets the
    /// ticket, the lease lapses after its ttl. Anyone who knows the id has the rights of the ticket, so derive it from a
    /// secret.
    ///
    /// Cancel safe: dropping the future gives up the place among the waiters. A grant that arrives later is returned to
    /// a repetition, or lapses.
    ///
    /// # Errors
    /// - [`ErrorKind::Held`](crate::ErrorKind::Held) after the limit, with the [holder](Error::holder).
    /// - [`ErrorKind::Lost`](crate::ErrorKind::Lost): the id is spent, or its grant came too late to be used.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the store
    ///   [keeps no history](crate::lease::Capabilities::history), so it cannot tell whether an id is spent.
    /// - Otherwise as [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use std::time::Duration; use leasehold::{ErrorKind, lease::Id, random::Random};
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locker = leasehold::Locker::open("mem:").await?;
    /// let (lock, id) = (locker.lock("deploy"), Id::random(&Random::from_os()));
    /// let first = lock.acquire_ticket(id, Duration::ZERO).await?;
    /// let again = lock.acquire_ticket(id, Duration::ZERO).await?; // its response was lost, and the client repeats it
    /// assert!(again.ticket().token() >= first.ticket().token());
    ///
    /// locker.release(again.ticket()).await?;
    /// let spent = lock.acquire_ticket(id, Duration::ZERO).await.unwrap_err();
    /// assert_eq!(spent.kind(), ErrorKind::Lost);
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire_ticket(&self, id: Id, limit: Duration) -> Result<HeldTicket> {
        let lock = if self.for_another { self.clone() } else { self.clone().for_ticket() };
        let lock = lock.with_own_trouble();
        let claim = Claim { id, repeatable: true, ..lock.claim()? };
        let capabilities = lock.locker.store().capabilities();
        if !capabilities.history {
            let message = format!(
                "{} cannot determine whether the id of an acquisition was used before",
                capabilities.store
            );
            return Err(Error::unsupported(message).with_help("acquire the lock without an id"));
        }
        let (name, queue) = (claim.name.clone(), lock.queue(&claim.name));
        let grant = match queue.try_turn() {
            Some(turn) if limit.is_zero() => {
                let request = lock.request(claim, Wait::No);
                Acquisition::in_turn(request, queue, turn).grant().await?
            }
            turn => {
                // Tasks ahead of this one may wait for the very grant that this claim already has.
                if turn.is_none()
                    && let Some(held) = lock.own_hold(&claim).await?
                {
                    return Ok(held);
                }
                if limit.is_zero() {
                    return Err(match queue.seen() {
                        Some(held) => Error::held(&name, held),
                        None => lock.unknown_holder(&name),
                    });
                }
                let request = lock.request(claim, Wait::Yes);
                let acquisition = match turn {
                    Some(turn) => Acquisition::in_turn(request, queue.clone(), turn),
                    None => Acquisition::enter(request, queue.clone()),
                };
                let (clock, lock) = (lock.locker.store().env().clock.clone(), lock.clone());
                let mut acquisition = Box::pin(acquisition.grant());
                task::run(async move {
                    match timeout(&*clock, limit, acquisition.as_mut()).await {
                        Some(outcome) => outcome,
                        None => Err(match queue.seen() {
                            Some(held) => Error::held(&name, held),
                            None => lock.unanswered(&name, limit),
                        }),
                    }
                })
                .await?
            }
        };
        Ok(lock.held(&grant))
    }

    /// The hold of `claim`, renewed, if the claim holds the lock already.
    async fn own_hold(&self, claim: &Claim) -> Result<Option<HeldTicket>> {
        let store = self.locker.store();
        let mut seen = store.inspect(&claim.name).await?.token;
        while let Some(token) = seen {
            let mut grant = Grant {
                name: claim.name.clone(),
                token,
                after: None,
                id: claim.id,
                ttl: claim.ttl,
                deadline: deadline(claim.ttl, store.env().now()),
                memo: None,
            };
            if let Renewal::Lost(_) = store.renew(&mut grant).await? {
                return Ok(None);
            }
            // Some stores renew by the id alone. If the token was read before the claim was granted, it is that of the
            // holder before. Tokens rise, so the same token before and after the renewal is that of the renewed grant.
            seen = store.inspect(&claim.name).await?.token;
            if seen == Some(grant.token) {
                return Ok(Some(self.held(&grant)));
            }
        }
        Ok(None)
    }

    fn held(&self, grant: &Grant) -> HeldTicket {
        let opened = self.locker.opened();
        HeldTicket::new(
            Ticket::new(grant, opened.identity.clone()),
            grant.deadline,
            opened.store.env().clone(),
        )
    }

    /// The error while another task of this process acquires `name`, and the store has not responded to it yet.
    pub(super) fn unknown_holder(&self, name: &crate::LockName) -> Error {
        Error::held_as(
            format!("lock `{name}` is being acquired by another task of this process"),
            HolderInfo::default(),
        )
        .with_help("its holder is unknown: the store has not responded to that task yet")
    }
}
