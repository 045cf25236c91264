//! [`Ticket`]: a held lock as text, with which another process can renew and release it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::clock::{Deadline, Moment};
use crate::env::Env;
use crate::error::{Error, Fault};
use crate::lease::{Grant, PastGrant, Secret, Token, Ttl, deadline, secret_of};
use crate::types::LockName;
use crate::url::StoreUrl;
use crate::view::ms;

/// The prefix of a ticket's text: its kind and its format version.
const PREFIX: &str = "lh2_";

/// The most locks of one ticket: [`MAX_NAMES`](crate::Locks::MAX_NAMES), or those of an exclusive hold.
const MAX_LOCKS: usize = 64;

/// A held lock as text.
///
/// Anyone who has the text can renew and release the lock, so treat it as a password. `Debug` does not show it.
/// `Display` does, because that is its purpose. The text contains the [`Secret`](crate::lease::Secret) of the grant, of
/// which the store has only a digest.
///
/// A ticket names the store of its lock. Because anyone can write a ticket, leasehold never opens a store only because
/// a ticket names it. Open the store from your own configuration and pass the ticket to that [`Locker`](crate::Locker),
/// which refuses tickets of other stores. If you have several stores, use [`check_store`](Self::check_store) to find
/// the right one.
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
    secret: Secret,
    token: Token,
    ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_hold_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    /// The other locks of a hold of several locks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
    /// Whether the parts are locks of their own, and not the permits of an exclusive hold.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    several: bool,
}

/// A further lock of a ticket.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    lock: LockName,
    secret: Secret,
    token: Token,
}

impl Ticket {
    /// The maximum length of the text of a ticket, in bytes. That of 64 locks with the longest names is shorter, unless
    /// the URL of the store is longer than 8,000 bytes.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Creates a ticket. `store` is the identity of the store: its URL without login, credentials and settings.
    pub(crate) fn new(grant: &Grant, store: Option<String>) -> Result<Self, Fault> {
        Ok(Self {
            lock: grant.name.clone(),
            secret: secret_of(&grant.name, grant.id)?,
            token: grant.token,
            ttl_ms: grant.ttl.as_millis(),
            max_hold_ms: None,
            store,
            parts: Vec::new(),
            several: false,
        })
    }

    /// Returns one ticket for the locks of `tickets`, each of which is a ticket of one lock. `several` is whether the
    /// caller named each lock. `None` without a ticket.
    pub(crate) fn together(tickets: Vec<Self>, several: bool) -> Option<Self> {
        let mut tickets = tickets.into_iter();
        let first = tickets.next()?;
        let parts = tickets.map(|Self { lock, secret, token, .. }| Part { lock, secret, token });
        Some(Self { parts: parts.collect(), several, ..first })
    }

    /// Returns a ticket of each lock.
    pub(crate) fn each(&self) -> impl Iterator<Item = Self> {
        let parts = self.parts.iter().cloned();
        let parts = parts.map(|Part { lock, secret, token }| Self { lock, secret, token, ..self.first() });
        std::iter::once(self.first()).chain(parts)
    }

    fn first(&self) -> Self {
        Self { parts: Vec::new(), several: false, ..self.clone() }
    }

    /// Returns whether the caller named each of several locks.
    pub(crate) fn are_named(&self) -> bool {
        self.several
    }

    /// Returns whether the ticket holds more than one lock.
    pub(crate) fn is_of_several(&self) -> bool {
        !self.parts.is_empty()
    }

    pub(crate) fn with_max_hold(self, max_hold: Option<Duration>) -> Self {
        Self { max_hold_ms: max_hold.map(ms), ..self }
    }

    /// Returns the name of the lock, or of the first of several locks.
    pub fn name(&self) -> &LockName {
        &self.lock
    }

    /// Returns the fencing token of each lock, by its name. There is one, except for [`Locks`](crate::Locks).
    pub fn tokens(&self) -> BTreeMap<LockName, Token> {
        let parts = self.parts.iter().filter(|_| self.several).map(|part| (part.lock.clone(), part.token));
        std::iter::once((self.lock.clone(), self.token)).chain(parts).collect()
    }

    /// Returns the name and the token of each lock that the ticket renews and releases. Unlike [`tokens`](Self::tokens),
    /// includes the permits of an exclusive hold.
    pub fn grants(&self) -> impl Iterator<Item = (&LockName, Token)> {
        let parts = self.parts.iter().map(|part| (&part.lock, part.token));
        std::iter::once((&self.lock, self.token)).chain(parts)
    }

    /// Returns the fencing token. It is the guard's token, or a higher one that is reserved for the same grant. If the
    /// store's protocol has no tokens ([`Capabilities::tokens`](crate::lease::Capabilities::tokens)), this is a number
    /// that only identifies the grant.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns the lease's time to live. The lease lapses this long after its last renewal.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// Returns the limit of the hold, from the grant on: see [`Lock::max_hold`](crate::Lock::max_hold).
    pub fn max_hold(&self) -> Option<Duration> {
        self.max_hold_ms.map(Duration::from_millis)
    }

    /// Returns the identity of the store, or `None` for a ticket that fits every store.
    pub(crate) fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// Removes the store from the ticket, so that every [`Locker`](crate::Locker) accepts it. Use this if the store has
    /// a different URL here than where the lock was acquired.
    #[must_use]
    pub fn without_store(self) -> Self {
        Self { store: None, ..self }
    }

    /// Returns whether `other` is a ticket of the same grant. Their ttl and the URL of their store may differ.
    pub fn is_of_same_grant(&self, other: &Self) -> bool {
        let grants = |ticket: &Self| (ticket.lock.clone(), ticket.secret, ticket.token, ticket.parts.clone());
        grants(self) == grants(other)
    }

    /// Returns whether `past`, from the [history](crate::Status::history) of the ticket's lock, is the grant of this
    /// ticket, or one of its grants.
    pub fn is_of(&self, past: &PastGrant) -> bool {
        self.each().any(|ticket| (ticket.secret.id(), ticket.token) == (past.grant, past.token))
    }

    /// Returns the grant that the ticket describes. It must be renewed before it counts as held.
    pub(crate) fn grant(&self, now: Moment) -> Grant {
        // The parser has checked the ttl.
        let ttl = Ttl::from_millis(self.ttl_ms).unwrap_or_default();
        Grant {
            name: self.lock.clone(),
            token: self.token,
            after: None,
            id: self.secret.id(),
            ttl,
            deadline: deadline(ttl, now),
            at_limit: false,
            size: None,
            memo: None,
        }
    }
}

/// A [`Ticket`] whose lock was just acquired or renewed, with the time until which the lock is certain to be held.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let ticket = locker.lock("deploy").ttl(Duration::from_secs(30)).acquire().await?.into_ticket().await?;
/// let held = locker.renew(&ticket).await?;
/// assert!(held.remaining() > Duration::from_secs(25));
/// assert_eq!(held.ticket(), &ticket);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct HeldTicket {
    ticket: Ticket,
    deadline: Deadline,
    env: Env,
}

impl HeldTicket {
    pub(crate) fn new(ticket: Ticket, deadline: Deadline, env: Env) -> Self {
        Self { ticket, deadline, env }
    }

    /// Returns the ticket, which contains the [token](Ticket::token) of the grant.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Returns the time until which the lock is certain to be held, on this machine's clocks.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Returns how long the lock is certain to be held from now on, without another renewal.
    pub fn remaining(&self) -> Duration {
        self.deadline.remaining(self.env.now())
    }

    /// Returns the ticket without its deadline.
    pub fn into_ticket(self) -> Ticket {
        self.ticket
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
        // The text is a secret, so no error repeats it.
        let flaw = |why: &str| {
            Error::invalid(format!("this is not a ticket: {why}")).with_help(format!(
                "a ticket is what `leasehold acquire` prints, one word that starts with {PREFIX}"
            ))
        };
        let text = text.trim();
        let encoded = text.strip_prefix(PREFIX).ok_or_else(|| flaw("it has the wrong prefix"))?;
        if text.len() > Self::MAX_BYTES {
            return Err(flaw("it is too long"));
        }
        let json = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| flaw("it is damaged"))?;
        let ticket: Self = serde_json::from_slice(&json).map_err(|_| flaw("it is damaged"))?;
        Ttl::from_millis(ticket.ttl_ms).map_err(|_| flaw("its ttl is out of range"))?;
        // No grant has this token. A release with it would withdraw a claim, for which no token is compared.
        if ticket
            .parts
            .iter()
            .map(|part| part.token)
            .chain([ticket.token])
            .any(|token| token == Token::default())
        {
            return Err(flaw("it has no token"));
        }
        if ticket.parts.len() >= MAX_LOCKS {
            return Err(flaw("it holds too many locks"));
        }
        ticket
            .store
            .as_deref()
            .map(StoreUrl::parse)
            .transpose()
            .map_err(|_| flaw("its store is not a URL"))?;
        Ok(ticket)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("lock", &self.lock)
            .field("token", &self.token)
            .field("parts", &self.parts.iter().map(|part| &part.lock).collect::<Vec<_>>())
            .field("ttl", &self.ttl())
            .field("store", &self.store.as_deref().and_then(|store| StoreUrl::parse(store).ok()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::golden::{assert_written, golden};

    fn ticket() -> Ticket {
        Ticket {
            lock: LockName::new("a/b").unwrap(),
            secret: Secret::new(&Env::system()),
            token: Token::new(7).unwrap(),
            ttl_ms: 30_000,
            max_hold_ms: None,
            store: Some("s3://bucket".into()),
            parts: Vec::new(),
            several: false,
        }
    }

    #[test]
    fn a_ticket_is_read_back_and_does_not_show_its_secret() {
        let ticket = ticket();
        assert_eq!(format!(" {ticket}\n").parse::<Ticket>().unwrap(), ticket);
        assert!(!format!("{ticket:?}").contains(&String::from(ticket.secret)));
        let spoiled = ticket.to_string().replace(PREFIX, "lh2_!");
        let error = spoiled.parse::<Ticket>().unwrap_err();
        assert!(!format!("{error:?}").contains(&spoiled[6..20]));
    }

    #[test]
    fn a_ticket_of_another_store_is_an_error_that_names_both() {
        let ticket = ticket();
        ticket.check_store("s3://bucket/?region=x").unwrap();
        let error = ticket.check_store("s3://id:hunter2@other").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(
            error.to_string().contains("s3://bucket,") && error.to_string().contains("s3://id:***@other")
        );
        assert!(!error.help().is_empty() && !format!("{error:?}").contains("hunter2"), "{error:?}");
        ticket.clone().without_store().check_store("s3://other").unwrap();
        assert!(ticket.check_store("no URL").is_err());

        let long =
            Ticket { store: Some(format!("s3://u:hunter2@b/{}", "x".repeat(5_000))), ..ticket.clone() };
        let error = long.check_store("mem:").unwrap_err();
        assert!(error.to_string().len() < 400 && !error.to_string().contains("hunter2"), "{error}");
        let damaged = Ticket { store: Some("hunter2".into()), ..ticket };
        let error = damaged.to_string().parse::<Ticket>().unwrap_err();
        assert!(
            error.to_string().contains("store") && !format!("{error:?}").contains("hunter2"),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn a_locker_takes_no_ticket_of_another_store() {
        let locker = crate::Locker::open("mem:").await.unwrap();
        let ticket = locker.lock("x").acquire().await.unwrap().into_ticket().await.unwrap();
        let other = Ticket { store: Some("s3://bucket".into()), ..ticket.clone() };
        let errors = [
            locker.renew(&other).await.unwrap_err(),
            locker.resume(&other).await.unwrap_err(),
            locker.release(&other).await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.kind() == crate::ErrorKind::Invalid), "{errors:?}");
        assert_eq!(locker.release(&ticket).await.unwrap(), crate::Released::Released);
    }

    #[test]
    fn the_longest_ticket_is_read_back() {
        // JSON escapes each of these characters with another one.
        let part = |number: usize| Ticket {
            lock: LockName::new(format!("{}{number:02}", "\"".repeat(LockName::MAX_BYTES - 2))).unwrap(),
            token: Token::new(Token::LIMIT - 1).unwrap(),
            ttl_ms: Ttl::MAX.as_millis().try_into().unwrap(),
            max_hold_ms: Some(ms(crate::types::MAX_HOLD)),
            store: Some(format!("s3://bucket/{}", "x".repeat(7_900))),
            ..ticket()
        };
        let longest = Ticket::together((0..MAX_LOCKS).map(part).collect(), true).unwrap();
        let text = longest.to_string();
        assert!(text.len() > 60_000 && text.len() <= Ticket::MAX_BYTES, "{}", text.len());
        assert_eq!(text.parse::<Ticket>().unwrap(), longest);
        let error = format!("{text}{}", "A".repeat(Ticket::MAX_BYTES)).parse::<Ticket>().unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }

    #[test]
    fn a_ticket_without_a_token_is_refused() {
        let forged = Ticket { token: Token::default(), ..ticket() }.to_string();
        assert!(forged.parse::<Ticket>().unwrap_err().to_string().contains("no token"));
    }

    #[tokio::test]
    async fn a_ticket_names_one_grant() {
        let locker = crate::Locker::open("mem:").await.unwrap();
        let ticket = locker.lock("x").acquire().await.unwrap().into_ticket().await.unwrap();
        let with_token = |token: u64| Ticket { token: Token::new(token).unwrap(), ..ticket.clone() };
        let (altered, forged) = (
            with_token(ticket.token.get() + 1),
            Ticket { secret: Secret::new(&Env::system()), ..ticket.clone() },
        );
        assert!(Ticket { ttl_ms: 1_000, ..ticket.clone() }.without_store().is_of_same_grant(&ticket));
        assert!(!altered.is_of_same_grant(&ticket) && !forged.is_of_same_grant(&ticket));
        locker.release(&ticket).await.unwrap();
        let history = locker.inspect(ticket.name()).await.unwrap().history;
        assert!(ticket.is_of(&history[0]) && !altered.is_of(&history[0]) && !forged.is_of(&history[0]));
    }

    #[test]
    fn the_golden_ticket_is_read_and_written() {
        let ticket = Ticket { secret: "00112233445566778899aabbccddeeff".parse().unwrap(), ..ticket() };
        assert_written("2-ticket.txt", &ticket.to_string());
        assert_eq!(golden("2-ticket.txt").parse::<Ticket>().unwrap(), ticket);
        let part = Ticket {
            lock: LockName::new("a/c").unwrap(),
            secret: "ffeeddccbbaa99887766554433221100".parse().unwrap(),
            token: Token::new(9).unwrap(),
            ..ticket.clone()
        };
        let several = Ticket::together(vec![ticket.clone(), part], true).unwrap();
        assert_written("2-ticket-several.txt", &several.to_string());
        assert_eq!(golden("2-ticket-several.txt").parse::<Ticket>().unwrap(), several);
        let limited = Ticket { max_hold_ms: Some(7_200_000), ..ticket };
        assert_written("2-ticket-limit.txt", &limited.to_string());
        assert_eq!(golden("2-ticket-limit.txt").parse::<Ticket>().unwrap(), limited);
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
