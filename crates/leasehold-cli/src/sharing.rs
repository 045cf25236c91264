//! With whom a lock is held: alone, as one of so many permits, or shared.

use std::fmt;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use leasehold::{Guard, Lock, LockName};

use crate::args::SharingArgs;

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    Try,
    Within(Duration),
    Forever,
}

/// What is taken of a name. Its text is the flag that asks for it, with a space before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The lock.
    #[default]
    Lock,
    /// One of so many permits.
    Permit(usize),
    /// A hold beside other shared ones.
    Shared,
    /// The hold beside no other, shared ones included.
    Exclusive,
}

impl Sharing {
    pub(crate) fn of(args: &SharingArgs) -> Self {
        match args.permits {
            Some(permits) => Self::Permit(permits.into()),
            None if args.shared => Self::Shared,
            None if args.exclusive => Self::Exclusive,
            None => Self::Lock,
        }
    }

    /// Asks for it with the name and the settings of `lock`.
    pub(crate) fn ask(self, lock: Lock, patience: Patience) -> BoxFuture<'static, leasehold::Result<Guard>> {
        match self {
            Self::Lock => async move {
                match patience {
                    Patience::Try => lock.try_acquire().await,
                    Patience::Within(limit) => lock.acquire_within(limit).await,
                    Patience::Forever => lock.acquire().await,
                }
            }
            .boxed(),
            Self::Permit(permits) => async move {
                let semaphore = lock.semaphore(permits);
                match patience {
                    Patience::Try => semaphore.try_acquire().await,
                    Patience::Within(limit) => semaphore.acquire_within(limit).await,
                    Patience::Forever => semaphore.acquire().await,
                }
            }
            .boxed(),
            Self::Shared => async move {
                let lock = lock.rw_lock();
                match patience {
                    Patience::Try => lock.try_shared().await,
                    Patience::Within(limit) => lock.shared_within(limit).await,
                    Patience::Forever => lock.shared().await,
                }
            }
            .boxed(),
            Self::Exclusive => async move {
                let lock = lock.rw_lock();
                match patience {
                    Patience::Try => lock.try_exclusive().await,
                    Patience::Within(limit) => lock.exclusive_within(limit).await,
                    Patience::Forever => lock.exclusive().await,
                }
            }
            .boxed(),
        }
    }

    /// What is waited for when `name` is held as it is asked for here, for people.
    pub(crate) fn awaited(self, name: &LockName) -> String {
        match self {
            Self::Lock => name.to_string(),
            Self::Permit(1) => format!("{name} (its permit is held)"),
            Self::Permit(permits) => format!("{name} (all {permits} permits are held)"),
            Self::Shared => format!("{name} (shared)"),
            Self::Exclusive => format!("{name} (exclusive)"),
        }
    }

    /// Whether who asks for this of `name` is kept waiting for as long as `held` is: the lock that stands in its way, and
    /// not one of several that would do.
    pub(crate) fn is_kept_out_by(self, name: &LockName, held: &str) -> bool {
        let Some(part) = held.strip_prefix(name.as_str()) else { return false };
        match self {
            Self::Lock | Self::Shared => part.is_empty(),
            Self::Exclusive => part.is_empty() || part.starts_with("/shared-"),
            Self::Permit(permits) => permits == 1 && part == "/permit-1",
        }
    }

    /// The number of the permit that `held` is.
    pub(crate) fn permit(self, held: &LockName) -> Option<usize> {
        let Self::Permit(_) = self else { return None };
        held.as_str().rsplit_once("/permit-")?.1.parse().ok()
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => Ok(()),
            Self::Permit(permits) => write!(f, " --permits {permits}"),
            Self::Shared => f.write_str(" --shared"),
            Self::Exclusive => f.write_str(" --exclusive"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_be_had_beside_it_is_kept_out() {
        let name = LockName::new("x").unwrap();
        let by = |sharing: Sharing| {
            let all = ["x", "x/shared-2", "x/permit-1", "x/y", "xy", "y"];
            all.into_iter().filter(|held| sharing.is_kept_out_by(&name, held)).collect::<Vec<_>>()
        };
        assert_eq!(by(Sharing::Lock), ["x"]);
        // Another slot may become free.
        assert_eq!(by(Sharing::Shared), ["x"]);
        assert_eq!(by(Sharing::Exclusive), ["x", "x/shared-2"]);
        assert_eq!(by(Sharing::Permit(1)), ["x/permit-1"]);
        assert_eq!(by(Sharing::Permit(2)), [""; 0]);
    }
}
