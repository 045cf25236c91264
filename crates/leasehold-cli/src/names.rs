//! The locks of a command line: one, or several that are held together.

use std::ffi::{OsStr, OsString};
use std::fmt;

use leasehold::{LockName, Locks, Ticket};

use crate::exit::Failure;
use crate::shell;

/// At least one name, in the order of acquisition. `Display` separates them by commas.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    first: LockName,
    others: Vec<LockName>,
}

impl Names {
    pub(crate) fn parse(given: &[OsString]) -> Result<Self, Failure> {
        let names = given.iter().map(|name| lock_name(name)).collect::<Result<Vec<_>, _>>()?;
        Self::new(Locks::in_order(names).map_err(Failure::bad_argument)?)
    }

    /// Returns the locks of `ticket`.
    pub(crate) fn of(ticket: &Ticket) -> Self {
        let others = ticket.tokens().into_keys().filter(|name| name != ticket.name()).collect();
        Self { first: ticket.name().clone(), others }
    }

    fn new(names: Vec<LockName>) -> Result<Self, Failure> {
        let mut names = names.into_iter();
        let first = names.next().ok_or_else(|| Failure::usage("no lock name given"))?;
        Ok(Self { first, others: names.collect() })
    }

    pub(crate) const fn first(&self) -> &LockName {
        &self.first
    }

    /// Returns all names but the first.
    pub(crate) fn others(&self) -> &[LockName] {
        &self.others
    }

    pub(crate) fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LockName> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the names that are acquired before `name`.
    pub(crate) fn before(&self, name: &LockName) -> Vec<&LockName> {
        self.iter().take_while(|held| *held != name).collect()
    }

    /// Returns the names as the last arguments of a command line.
    pub(crate) fn as_arguments(&self) -> String {
        let others = self.others.iter().map(|name| format!(" {}", shell::quoted(name.as_str())));
        std::iter::once(shell::last_argument(&self.first)).chain(others).collect()
    }
}

/// Parses a lock name given on the command line.
pub(crate) fn lock_name(given: &OsStr) -> Result<LockName, Failure> {
    let Some(text) = given.to_str() else {
        return Err(Failure::usage(format!("lock name {:?} is not UTF-8", given.to_string_lossy()))
            .with_help(
                "a lock name has segments separated by `/` and at most 256 bytes, for example deploy/prod",
            ));
    };
    LockName::new(text).map_err(Failure::bad_argument)
}

impl From<LockName> for Names {
    fn from(first: LockName) -> Self {
        Self { first, others: Vec::new() }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.first.as_str())?;
        self.others.iter().try_for_each(|name| write!(f, ", {name}"))
    }
}
