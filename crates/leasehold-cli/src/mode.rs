//! How a lock is held: alone, as a permit, shared or exclusive.

use std::fmt;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use leasehold::{Guard, Lock, LockName, Locks, RwLock};

/// How long an interrupted acquisition may take to withdraw its request. After that, the lease ends by itself.
pub(crate) const CANCEL_TIMEOUT: Duration = Duration::from_millis(500);

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    Try,
    Within(Duration),
    Forever,
}

/// How to hold a lock. `Display` writes the option that selects the mode, preceded by a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A plain lock.
    #[default]
    Lock,
    /// One of this many permits.
    Permit(usize),
    /// As one of this many readers.
    Shared(usize),
    /// As a writer, beside this many readers.
    Exclusive(usize),
}

impl Mode {
    /// Acquires a lock in this mode, with the name and the settings of `lock`.
    pub(crate) fn acquire(
        self,
        lock: Lock,
        wait_policy: WaitPolicy,
    ) -> BoxFuture<'static, leasehold::Result<Guard>> {
        match self {
            Self::Lock => async move {
                match wait_policy {
                    WaitPolicy::Try => lock.try_acquire().await,
                    WaitPolicy::Within(limit) => lock.acquire_within(limit).await,
                    WaitPolicy::Forever => lock.acquire().await,
                }
            }
            .boxed(),
            Self::Permit(permits) => async move {
                let semaphore = lock.semaphore(permits);
                match wait_policy {
                    WaitPolicy::Try => semaphore.try_acquire().await,
                    WaitPolicy::Within(limit) => semaphore.acquire_within(limit).await,
                    WaitPolicy::Forever => semaphore.acquire().await,
                }
            }
            .boxed(),
            Self::Shared(readers) => async move {
                let lock = lock.rw_lock().readers(readers);
                match wait_policy {
                    WaitPolicy::Try => lock.try_shared().await,
                    WaitPolicy::Within(limit) => lock.shared_within(limit).await,
                    WaitPolicy::Forever => lock.shared().await,
                }
            }
            .boxed(),
            Self::Exclusive(readers) => async move {
                let lock = lock.rw_lock().readers(readers);
                match wait_policy {
                    WaitPolicy::Try => lock.try_exclusive().await,
                    WaitPolicy::Within(limit) => lock.exclusive_within(limit).await,
                    WaitPolicy::Forever => lock.exclusive().await,
                }
            }
            .boxed(),
        }
    }

    /// Returns the option that selects the mode.
    pub(crate) fn option(self) -> String {
        self.to_string().trim().to_owned()
    }

    /// Describes what a waiter for `name` waits for.
    pub(crate) fn description(self, name: &LockName) -> String {
        match self {
            Self::Lock => name.to_string(),
            Self::Permit(1) => format!("{name} (the permit is held)"),
            Self::Permit(permits) => format!("{name} (all {permits} permits are held)"),
            Self::Shared(_) => format!("{name} (shared)"),
            Self::Exclusive(_) => format!("{name} (exclusive)"),
        }
    }

    /// Returns whether a process that acquires `name` in this mode must wait until the lock `held` is released. False
    /// if another permit or another reader could release first.
    pub(crate) fn is_blocked_by(self, name: &LockName, held: &str) -> bool {
        let Some(part) = held.strip_prefix(name.as_str()) else { return false };
        match self {
            Self::Lock | Self::Shared(_) => part.is_empty(),
            Self::Exclusive(_) => part.is_empty() || part.starts_with("/shared-"),
            Self::Permit(permits) => permits == 1 && part == "/permit-1",
        }
    }

    /// Returns the permit number of the lock `held`, or `None` in other modes.
    pub(crate) fn permit(self, held: &LockName) -> Option<usize> {
        let Self::Permit(_) = self else { return None };
        held.as_str().rsplit_once("/permit-")?.1.parse().ok()
    }
}

/// Acquires several locks together.
pub(crate) fn acquire_all(
    locks: Locks,
    wait_policy: WaitPolicy,
) -> BoxFuture<'static, leasehold::Result<Guard>> {
    async move {
        match wait_policy {
            WaitPolicy::Try => locks.try_acquire().await,
            WaitPolicy::Within(limit) => locks.acquire_within(limit).await,
            WaitPolicy::Forever => locks.acquire().await,
        }
    }
    .boxed()
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => Ok(()),
            Self::Permit(permits) => write!(f, " --permits {permits}"),
            Self::Shared(readers) => write!(f, " --shared{}", Readers(*readers)),
            Self::Exclusive(readers) => write!(f, " --exclusive{}", Readers(*readers)),
        }
    }
}

/// The option that sets the number of readers. Empty for the default.
struct Readers(usize);

impl fmt::Display for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            RwLock::DEFAULT_READERS => Ok(()),
            readers => write!(f, " --readers {readers}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_blocked_only_by_conflicting_locks() {
        let name = LockName::new("x").unwrap();
        let by = |mode: Mode| {
            let all = ["x", "x/shared-2", "x/permit-1", "x/y", "xy", "y"];
            all.into_iter().filter(|held| mode.is_blocked_by(&name, held)).collect::<Vec<_>>()
        };
        assert_eq!(by(Mode::Lock), ["x"]);
        // Another reader may release first.
        assert_eq!(by(Mode::Shared(8)), ["x"]);
        assert_eq!(by(Mode::Exclusive(8)), ["x", "x/shared-2"]);
        assert_eq!(by(Mode::Permit(1)), ["x/permit-1"]);
        assert_eq!(by(Mode::Permit(2)), [""; 0]);
    }
}
