//! The token counter of the file. It outlives every row.

use rusqlite::Connection;

use super::errors::SqliteError;
use super::machine::Machine;
use super::row::{signed, unsigned};
use crate::clock::Moment;
use crate::error::{ErrorKind, Fault};
use crate::lease::MAX_TOKENS;
use crate::lease::Token;

/// How far ahead of the wall clock tokens are reserved, in microseconds, the unit of tokens. A commit waits for the disk
/// once in that time.
const RESERVE: u64 = 10_000_000;

/// How many tokens are reserved while tokens are ahead of the wall clock by [`RESERVE`] or more.
const SPARE: u64 = 1_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    /// The highest token of all locks.
    pub(super) token: u64,
    /// Tokens up to this one may have been granted by commits that a power failure undid.
    pub(super) ceiling: u64,
    /// The boot in which the ceiling was set.
    pub(super) boot: String,
}

/// A token that was never used before.
#[derive(Debug)]
pub(super) struct Minted {
    pub(super) token: Token,
    /// Tokens up to this one may have been used. The tokens between this one and `token` were never used, so they
    /// belong to this grant.
    pub(super) after: Option<Token>,
    /// Whether the counter must reach the disk before the token may be used.
    pub(super) beyond_ceiling: bool,
}

impl Counter {
    /// Reads the counter. A counter that was deleted by hand starts again at the wall clock, as in a new file.
    pub(super) fn load(connection: &Connection) -> Result<Self, SqliteError> {
        let mut statement =
            connection.prepare_cached("SELECT token, ceiling, boot FROM counter WHERE id = 1")?;
        let mut rows = statement.query(())?;
        match rows.next()? {
            None => Ok(Self { token: 0, ceiling: 0, boot: String::new() }),
            Some(row) => Ok(Self {
                token: unsigned(row, "token")?,
                ceiling: unsigned(row, "ceiling")?,
                boot: row.get("boot")?,
            }),
        }
    }

    /// Writes the counter.
    pub(super) fn store(&self, connection: &Connection) -> Result<(), SqliteError> {
        let mut statement = connection.prepare_cached(
            "INSERT OR REPLACE INTO counter (id, token, ceiling, boot) VALUES (1, ?, ?, ?)",
        )?;
        statement.execute((signed(self.token), signed(self.ceiling), &self.boot))?;
        Ok(())
    }

    /// Returns a new token of at least `least`.
    ///
    /// Most commits do not wait for the disk, so a power failure can undo them. Their leases end with the boot, but their
    /// tokens must not be used again, even if the wall clock is wrong after the reboot. So no token is used above a ceiling
    /// that is on the disk, and a new boot starts above the ceiling. So does a container with its own boot id: if it and
    /// others acquire locks in turn, each turn uses up the reserve.
    pub(super) fn mint(
        &mut self,
        least: u64,
        tokens: u64,
        machine: &Machine,
        now: Moment,
    ) -> Result<Minted, Fault> {
        let room = tokens.clamp(1, MAX_TOKENS);
        let same_boot = self.boot == machine.boot;
        let highest = if same_boot { self.token } else { self.token.max(self.ceiling) };
        let lowest = least.max(highest.saturating_add(1));
        let number = lowest.saturating_add(room - 1).max(now.wall_us());
        let token = Token::new(number).ok_or_else(|| {
            Fault::new(
                ErrorKind::Corrupt,
                format!("the next token would be {number}, but tokens must be below 2^53"),
            )
            .with_help(
                "check the wall clock; if the number comes from the file, release all locks and use a new file",
            )
        })?;
        let beyond = !same_boot || number > self.ceiling;
        self.token = number;
        if beyond {
            self.ceiling = number.saturating_add(SPARE).max(now.wall_us().saturating_add(RESERVE));
            self.boot.clone_from(&machine.boot);
        }
        Ok(Minted { token, after: Token::new(lowest.saturating_sub(1)), beyond_ceiling: beyond })
    }
}

#[cfg(test)]
mod tests;
