//! The locks that chaos is tried on: leasehold's, and those of [`naive`](super::naive).

use std::time::Duration;

use async_trait::async_trait;
use leasehold::clock::{SystemClock, timeout};
use leasehold::{Error, ErrorKind, Guard, Lock, Released, Token};

/// How to acquire.
#[derive(Clone, Copy, Debug)]
pub enum Attempt {
    /// If it is free.
    Try,
    /// Waiting so long at most.
    Wait(Duration),
    /// Waiting, and going away in the middle of it.
    Abandon(Duration),
}

/// How to end a hold.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// With a release, and waiting for its answer.
    Release,
    /// By dropping it.
    Drop,
}

/// Something that can be locked.
#[async_trait]
pub trait Contender: Send + Sync {
    /// Tries to acquire it; `None` when somebody else has it.
    async fn acquire(&self, attempt: Attempt) -> Result<Option<Box<dyn Hold>>, String>;
}

/// A lock that is held.
#[async_trait]
pub trait Hold: Send + Sync {
    /// Its token; 0 without one.
    fn token(&self) -> u64;
    /// Whether it believes that it is still held.
    fn check(&self) -> bool;
    /// Completes when it is told that it is not. Cancel safe.
    async fn lost(&self);
    /// Ends it, and says how that went.
    async fn end(self: Box<Self>, end: End) -> String;
}

/// A lock of leasehold's.
#[derive(Debug)]
pub struct Leasehold {
    /// The lock.
    pub lock: Lock,
    /// Whether the guard is asked if it still holds the lock, and its token passed on. One who does neither is a naive user of
    /// a good lock.
    pub checked: bool,
}

#[async_trait]
impl Contender for Leasehold {
    async fn acquire(&self, attempt: Attempt) -> Result<Option<Box<dyn Hold>>, String> {
        let guard = match attempt {
            Attempt::Try => self.lock.try_acquire().await,
            Attempt::Wait(limit) => self.lock.acquire_within(limit).await,
            Attempt::Abandon(after) => match timeout(&SystemClock, after, self.lock.acquire()).await {
                Some(guard) => guard,
                None => return Ok(None),
            },
        };
        match guard {
            Ok(guard) => Ok(Some(Box::new(HolderInfo { guard, checked: self.checked }))),
            Err(error) if error.kind() == ErrorKind::Held => Ok(None),
            Err(error) => Err(in_full(&error)),
        }
    }
}

/// With what caused it.
fn in_full(error: &Error) -> String {
    format!("{:?}: {error:#}", error.kind())
}

struct HolderInfo {
    guard: Guard,
    checked: bool,
}

#[async_trait]
impl Hold for HolderInfo {
    fn token(&self) -> u64 {
        // One who does not ask passes no token on either.
        if self.checked { self.guard.token().map_or(0, Token::get) } else { 0 }
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
