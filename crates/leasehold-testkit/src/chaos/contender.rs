//! The locks under chaos: leasehold's, and the incorrect ones in [`naive`](super::naive).

use std::time::Duration;

use async_trait::async_trait;
use leasehold::clock::{SystemClock, timeout};
use leasehold::{Error, ErrorKind, Guard, Lock, Released};

/// How to acquire a lock.
#[derive(Clone, Copy, Debug)]
pub enum Attempt {
    /// Without waiting.
    Try,
    /// Waiting for at most this long.
    Wait(Duration),
    /// Waiting, and dropping the future after this long.
    Abandon(Duration),
}

/// How to end a hold.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Releases the lock and waits for the response.
    Release,
    /// Drops the guard.
    Drop,
}

/// A lock implementation.
#[async_trait]
pub trait Contender: Send + Sync {
    /// Tries to acquire the lock. Returns `None` if the lock is held or the attempt was abandoned.
    async fn acquire(&self, attempt: Attempt) -> Result<Option<Box<dyn Hold>>, String>;
}

/// A held lock.
#[async_trait]
pub trait Hold: Send + Sync {
    /// Returns the fencing token, or 0 if there is none.
    fn token(&self) -> u64;
    /// Returns whether the holder believes that it still holds the lock.
    fn check(&self) -> bool;
    /// Completes when the holder learns that it has lost the lock. Cancel safe.
    async fn lost(&self);
    /// Ends the hold and describes the result.
    async fn end(self: Box<Self>, end: End) -> String;
}

/// A leasehold lock.
#[derive(Debug)]
pub struct Leasehold {
    /// The lock.
    pub lock: Lock,
    /// The name of the lock.
    pub name: String,
    /// The names of further locks to hold together with it.
    pub others: Vec<String>,
    /// Whether the worker checks its guard and passes on its token. A worker that does neither misuses a correct
    /// lock.
    pub checked: bool,
}

#[async_trait]
impl Contender for Leasehold {
    async fn acquire(&self, attempt: Attempt) -> Result<Option<Box<dyn Hold>>, String> {
        let locks = self.lock.clone().and(&self.others);
        let alone = self.others.is_empty();
        let guard = match attempt {
            Attempt::Try if alone => self.lock.try_acquire().await,
            Attempt::Try => locks.try_acquire().await,
            Attempt::Wait(limit) if alone => self.lock.acquire_within(limit).await,
            Attempt::Wait(limit) => locks.acquire_within(limit).await,
            Attempt::Abandon(after) => {
                let acquisition =
                    async { if alone { self.lock.acquire().await } else { locks.acquire().await } };
                match timeout(&SystemClock, after, acquisition).await {
                    Some(guard) => guard,
                    None => return Ok(None),
                }
            }
        };
        match guard {
            Ok(guard) => {
                let tokens = guard.tokens().unwrap_or_default();
                let token = tokens.iter().find(|(name, _)| name.as_str() == self.name);
                let token = token.map_or(0, |(_, token)| token.get());
                Ok(Some(Box::new(GuardHold { guard, token, checked: self.checked })))
            }
            Err(error) if error.kind() == ErrorKind::Held => Ok(None),
            Err(error) => Err(in_full(&error)),
        }
    }
}

/// Returns the error's kind, and its message with all causes.
fn in_full(error: &Error) -> String {
    format!("{:?}: {error:#}", error.kind())
}

struct GuardHold {
    guard: Guard,
    /// The token of the lock, 0 if the store has no tokens.
    token: u64,
    checked: bool,
}

#[async_trait]
impl Hold for GuardHold {
    fn token(&self) -> u64 {
        // A worker that does not check its guard does not pass on its token either.
        if self.checked { self.token } else { 0 }
    }

    fn check(&self) -> bool {
        !self.checked || self.guard.check().is_ok()
    }

    async fn lost(&self) {
        if self.checked {
            self.guard.lost().await;
        } else {
            std::future::pending().await
        }
    }

    async fn end(self: Box<Self>, end: End) -> String {
        match end {
            End::Drop => "dropped".to_owned(),
            End::Release => match self.guard.release().await {
                Ok(Released::Released) => "released".to_owned(),
                Ok(_) => "lost before".to_owned(),
                Err(error) => format!("release failed: {}", in_full(&error)),
            },
        }
    }
}
