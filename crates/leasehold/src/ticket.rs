//! [`Ticket`]: a held lock as a piece of text, to be renewed and released by another process.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::clock::Moment;
use crate::error::Error;
use crate::lease::{Grant, Id, Token, Ttl, deadline};
use crate::name::LockName;

/// What a ticket's text starts with: its kind and its format.
const PREFIX: &str = "lh1_";

/// The longest text that is looked at.
const MAX_BYTES: usize = 8 * 1024;

/// A held lock as a piece of text.
///
/// Whoever has the text can renew and release the lock: treat it as a password. `Debug` does not show it; `Display`
/// does, since that is what it is for.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let ticket = locker.lock("deploy").acquire().await?.into_ticket().await?;
/// let text = ticket.to_string(); // to a file, or to another process
/// locker.release(&text.parse()?).await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    lock: LockName,
    grant: Id,
    token: Token,
    ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

impl Ticket {
    pub(crate) fn new(grant: &Grant, store: Option<String>) -> Self {
        Self {
            lock: grant.name.clone(),
            grant: grant.id,
            token: grant.token,
            ttl_ms: grant.ttl.as_millis(),
            store,
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.lock
    }

    /// The fencing token: that of the guard, or a higher one that nobody else is given. Where the store's protocol has none ([`Capabilities::tokens`](crate::lease::Capabilities::tokens)), a
    /// number that says which grant is meant, and no more.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The lease's time to live: it lapses so long after its last renewal.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// The URL of the store, without passwords, if the lock was acquired by way of one.
    pub fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// The grant, as far as the ticket knows: to be believed in only after a renewal.
    pub(crate) fn grant(&self, now: Moment) -> Grant {
        // Checked when the ticket was read.
        let ttl = Ttl::from_millis(self.ttl_ms).unwrap_or_default();
        Grant {
            name: self.lock.clone(),
            token: self.token,
            after: None,
            id: self.grant,
            ttl,
            deadline: deadline(ttl, now),
            memo: None,
        }
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_vec(self).map_err(|_| fmt::Error)?;
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }
}

impl FromStr for Ticket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // The text is a secret: no error repeats it.
        let flaw = |why: &str| {
            Error::invalid(format!("this is not a ticket: {why}")).with_help(format!(
                "a ticket is what `leasehold acquire` prints, one word that starts with {PREFIX}"
            ))
        };
        let text = text.trim();
        let encoded = text.strip_prefix(PREFIX).ok_or_else(|| flaw("it does not start as one"))?;
        if encoded.len() > MAX_BYTES {
            return Err(flaw("it is too long"));
        }
        let json = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| flaw("it is damaged"))?;
        let ticket: Self = serde_json::from_slice(&json).map_err(|_| flaw("it is damaged"))?;
        Ttl::from_millis(ticket.ttl_ms).map_err(|_| flaw("its ttl is out of range"))?;
        Ok(ticket)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("lock", &self.lock)
            .field("token", &self.token)
            .field("ttl", &self.ttl())
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::golden::{assert_written, golden};
    use crate::random::Random;

    fn ticket() -> Ticket {
        Ticket {
            lock: LockName::new("a/b").unwrap(),
            grant: Id::random(&Random::seeded(5)),
            token: Token::new(7).unwrap(),
            ttl_ms: 30_000,
            store: Some("s3://bucket".into()),
        }
    }

    #[test]
    fn a_ticket_is_read_back_and_does_not_show_its_secret() {
        let ticket = ticket();
        assert_eq!(format!(" {ticket}\n").parse::<Ticket>().unwrap(), ticket);
        assert!(!format!("{ticket:?}").contains(&ticket.grant.to_string()));
        let spoiled = ticket.to_string().replace("lh1_", "lh1_!");
        let error = spoiled.parse::<Ticket>().unwrap_err();
        assert!(!format!("{error:?}").contains(&spoiled[6..20]));
    }

    #[test]
    fn the_golden_ticket_is_read_and_written() {
        let ticket = Ticket { grant: "00112233445566778899aabbccddeeff".parse().unwrap(), ..ticket() };
        assert_written("1-ticket.txt", &ticket.to_string());
        assert_eq!(golden("1-ticket.txt").parse::<Ticket>().unwrap(), ticket);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,80}", at in 0usize..200, byte in 0u8..128) {
            let _ = text.parse::<Ticket>();
            let mut bytes = ticket().to_string().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = String::from_utf8_lossy(&bytes).parse::<Ticket>();
        }
    }
}
