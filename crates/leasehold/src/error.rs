//! Errors: [`Error`] for users of the library, and [`StoreError`] for the interface between the library and its stores.

use std::fmt;
use std::time::Duration;

pub use crate::types::InvalidValue;
use crate::types::{HolderInfo, LockName, Loss, Token, is_unprintable, printable, span_up};

/// A [`Result`](std::result::Result) whose error is leasehold's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// An error, with its kind, a message, and advice.
///
/// Match on [`kind`](Self::kind). Show the `Display` text and the [`help`](Self::help) to people. Neither contains
/// secrets. If `main` returns an error, Rust prints its `Debug` text, which has both.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let lock = leasehold::Locker::open("mem:").await?.lock("deploy");
/// let guard = lock.acquire().await?;
/// let error = lock.try_acquire().await.unwrap_err();
/// assert_eq!(error.kind(), leasehold::ErrorKind::Held);
/// println!("{error}"); // names the holder
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    help: Vec<String>,
    held: Option<Box<HolderInfo>>,
    loss: Option<Box<Loss>>,
    refused_by: Option<Token>,
    sizes: Option<Sizes>,
    maybe_applied: bool,
    /// Whether other clients changed the record at every attempt, although the store responded.
    pub(crate) contended: bool,
    /// Whether the store responded that it has no room for another client.
    full: bool,
    source: Option<Source>,
}

/// Two numbers of permits or readers that differ: see [`Error::sizes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sizes {
    /// The number that the acquisition asked for.
    pub asked: u64,
    /// The number in the store.
    pub stored: u64,
}

/// The kinds of errors. Each calls for a different reaction.
///
/// ```
/// use leasehold::ErrorKind;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let lock = leasehold::Locker::open("mem:").await?.lock("deploy");
/// let guard = lock.acquire().await?;
/// let told = match lock.try_acquire().await.map_err(|error| error.kind()) {
///     Ok(_) => "acquired",
///     Err(ErrorKind::Held) => "another holder does the work",
///     Err(ErrorKind::Unavailable) => "try again later",
///     Err(_) => "show the error and its help",
/// };
/// assert_eq!(told, "another holder does the work");
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another holder has the lock. Wait, or do something else.
    Held,
    /// The lock was lost. Stop the work that it protected. Acquire the lock again to get a new token.
    Lost,
    /// The store cannot be reached or did not respond within the time limit. Try again later.
    Unavailable,
    /// The store refused the request because of its credentials or permissions.
    Denied,
    /// The input is invalid, such as a URL, a name or a duration.
    Invalid,
    /// The store or this build does not support the operation.
    Unsupported,
    /// The content of the store cannot be understood. Nothing was overwritten.
    Corrupt,
    /// Several waiters wait for each other, and this one has given up so that the others can go on. Stop the work under
    /// the locks that are held, and try again later. See [`Lock::while_holding`](crate::Lock::while_holding).
    Deadlock,
    /// Other writers changed the object during each attempt to update it. Try again later, or allow more attempts.
    Conflict,
}

impl ErrorKind {
    /// Returns the kind as one word for labels and logs, such as `unavailable`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Lost => "lost",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Unsupported => "unsupported",
            Self::Corrupt => "corrupt",
            Self::Deadlock => "deadlock",
            Self::Conflict => "conflict",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// Creates an error with this `kind` and `message`, for stores and tools that are built on leasehold.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: clean(message.into()),
            help: Vec::new(),
            held: None,
            loss: None,
            refused_by: None,
            sizes: None,
            maybe_applied: false,
            contended: false,
            full: false,
            source: None,
        }))
    }

    /// Creates an error of kind [`ErrorKind::Invalid`]. The message should say what is invalid and why.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Creates an error of kind [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Creates an error of kind [`ErrorKind::Held`] for the lock `name`, for servers that tell their clients who holds
    /// it.
    pub fn held(name: &LockName, held: HolderInfo) -> Self {
        let message = match held.in_cooldown {
            true => format!("lock `{name}` is in its cooldown"),
            false => format!("lock `{name}` is held by {held}"),
        };
        Self::held_as(message, held)
    }

    /// Creates an error of kind [`ErrorKind::Held`] with this `message`, and with help for `held`.
    pub(crate) fn held_as(message: impl Into<String>, held: HolderInfo) -> Self {
        let mut error = Self::new(ErrorKind::Held, message);
        if let Some(left) = held.lapses_within.filter(|_| held.withheld) {
            error = error.with_help(format!(
                "locks are granted again in <= {}; a process that waits gets its lock then",
                span_up(left)
            ));
        } else if held.foreign.is_some() {
            error = error.with_help(
                "leasehold never takes over a lock of another client; find out which client wrote it",
            );
        } else if held.is_by_this_process() && !held.reserved {
            error = error.with_help(
                "this process itself holds the lock: a task that waits for a lock it holds waits for itself",
            );
        } else if let Some(left) = held.lapses_within.map(span_up) {
            error = error.with_help(if held.in_cooldown {
                format!("the cooldown ends in <= {left}")
            } else if held.reserved {
                format!("if that process does not take the lock, it is reserved for <= {left} more")
            } else if held.is_by_ticket() {
                format!("a ticket holds the lock: the lease ends in <= {left} unless the ticket is renewed")
            } else {
                format!("if that process is dead, its lease ends in <= {left}")
            });
        }
        error.0.held = Some(Box::new(held));
        error
    }

    pub(crate) fn lost(loss: Loss) -> Self {
        let mut error = Self::new(ErrorKind::Lost, loss.to_string());
        error.0.loss = Some(Box::new(loss));
        error
    }

    /// Creates the error for a write that was refused because the higher token `by` had written before.
    pub(crate) fn refused(message: impl Into<String>, by: Token) -> Self {
        let mut error = Self::new(ErrorKind::Lost, message);
        error.0.refused_by = Some(by);
        error
    }

    /// Creates the error for an acquisition that asked for another number of `what` (`permits`, `readers`) than the
    /// store has for `name`.
    pub(crate) fn other_size(name: &LockName, what: &str, asked: u64, stored: u64) -> Self {
        let mut error = Self::invalid(format!(
            "`{name}` has {stored} {what} in the store, and this acquisition asks for {asked}"
        ))
        .with_help(format!("ask for {stored}, or resize `{name}` while nobody holds it"));
        error.0.sizes = Some(Sizes { asked, stored });
        error
    }

    /// Marks the failed write as one that may have been applied or may be applied later.
    pub(crate) fn after_maybe_applied(mut self) -> Self {
        self.0.maybe_applied = true;
        self
    }

    /// Puts `subject` before the message.
    pub(crate) fn about(mut self, subject: &str) -> Self {
        self.0.message = clean(format!("{subject}: {}", self.0.message));
        self
    }

    /// Adds a line of advice.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.0.help.push(clean(help.into()));
        self
    }

    /// Sets the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Returns the kind of this error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns advice on what to do about the error, one line each. Empty if there is none.
    pub fn help(&self) -> &[String] {
        &self.0.help
    }

    /// Returns the holder of the lock, if the kind is [`ErrorKind::Held`].
    pub fn holder(&self) -> Option<&HolderInfo> {
        self.0.held.as_deref()
    }

    /// Returns how the lock was lost, if the kind is [`ErrorKind::Lost`].
    pub fn loss(&self) -> Option<&Loss> {
        self.0.loss.as_deref()
    }

    /// Returns the higher token that wrote before, if a [fenced write](crate::fence) was refused. The kind is then
    /// [`ErrorKind::Lost`].
    pub fn refused_by(&self) -> Option<Token> {
        self.0.refused_by
    }

    /// Returns the numbers of permits or readers, if an acquisition asked for another number than the store has. The
    /// kind is then [`ErrorKind::Invalid`].
    pub fn sizes(&self) -> Option<Sizes> {
        self.0.sizes
    }

    /// Returns whether the failed update or fenced write may have been applied, or may be applied later. If `false`, it
    /// was not applied and never will be.
    pub fn maybe_applied(&self) -> bool {
        self.0.maybe_applied
    }

    /// Returns whether other clients changed the record at every attempt, although the store was available.
    pub(crate) fn is_contended(&self) -> bool {
        self.0.contended
    }

    /// Returns whether the store responded that it has no room for another client.
    pub(crate) fn is_full(&self) -> bool {
        self.0.full
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

/// Prints what `main` shows if it returns the error: the message, its kind, the cause, and what to do. `{:#?}` prints
/// the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, message, help, source, .. } = &*self.0;
        if f.alternate() {
            let source = source.as_ref().map(ToString::to_string);
            let mut fields = f.debug_struct("Error");
            fields.field("kind", kind).field("message", message).field("help", help);
            return fields.field("source", &source).finish_non_exhaustive();
        }
        write!(f, "{message} ({kind})")?;
        if let Some(source) =
            source.as_ref().map(ToString::to_string).filter(|source| !message.contains(source))
        {
            write!(f, "\n  cause: {source}")?;
        }
        help.iter().try_for_each(|help| write!(f, "\n  help: {help}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

/// The error of a request to a store.
///
/// For safety, only one distinction matters: whether the request certainly had no effect. If a store does not know, it
/// returns [`MaybeApplied`](Self::MaybeApplied).
///
/// ```
/// use leasehold::error::{Fault, StoreError};
///
/// let error = Fault::unavailable("connection refused").maybe_applied();
/// assert!(error.is_transient());
/// assert!(matches!(error, StoreError::MaybeApplied(_)));
/// ```
#[derive(Debug)]
pub enum StoreError {
    /// The request certainly had no effect, and will never have one.
    NotApplied(Fault),
    /// The request may have had an effect, may have one later, or may never have one.
    MaybeApplied(Fault),
}

/// The cause of a [`StoreError`].
///
/// ```
/// # use std::time::Duration;
/// use leasehold::{Error, ErrorKind, error::Fault};
///
/// let busy = Fault::unavailable("503 Slow Down").with_retry_after(Duration::from_secs(2));
/// assert!(busy.not_applied().is_transient());
///
/// let denied = Fault::new(ErrorKind::Denied, "403 Forbidden").with_help("allow s3:PutObject");
/// let error = Error::from(denied);
/// assert_eq!((error.kind(), error.to_string()), (ErrorKind::Denied, "403 Forbidden".to_owned()));
/// assert_eq!(error.help(), ["allow s3:PutObject"]);
/// ```
#[derive(Debug)]
pub struct Fault {
    /// The kind of error. Only [`ErrorKind::Unavailable`] is retried, so a store returns it for everything that passes:
    /// no response, a busy server, a time limit. Its other kinds are `Denied`, `Invalid`, `Unsupported` and `Corrupt`.
    pub kind: ErrorKind,
    /// A message for people. Contains no secrets.
    pub message: String,
    /// Advice on what to do about it.
    pub help: Option<String>,
    /// How long the store asked clients to wait before their next request.
    pub retry_after: Option<Duration>,
    /// Whether other clients changed the record at every attempt.
    pub(crate) contended: bool,
    /// Whether the store has no room for another client.
    full: bool,
}

impl Fault {
    /// Creates a fault with this `kind` and `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: clean(message.into()),
            help: None,
            retry_after: None,
            contended: false,
            full: false,
        }
    }

    /// Creates a fault of kind [`ErrorKind::Unavailable`], which may be retried.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// Creates the fault of a write that met conflicts until its time limit. The store did respond, so a waiter does
    /// not count this time as an outage.
    pub(crate) fn contended(message: impl Into<String>) -> Self {
        Self { contended: true, ..Self::unavailable(message) }
    }

    /// Creates the fault of a store that has no room for another client. The store did respond, so a waiter keeps
    /// trying as long as after an earlier response.
    #[allow(dead_code, reason = "used by stores that are cargo features")]
    pub(crate) fn full(message: impl Into<String>) -> Self {
        Self { full: true, ..Self::unavailable(message) }
    }

    #[allow(dead_code, reason = "used by stores that are cargo features")]
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Sets advice on what to do about the fault.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(clean(help.into()));
        self
    }

    /// Sets how long the store asked clients to wait before their next request.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Returns the error of a request that certainly had no effect.
    pub fn not_applied(self) -> StoreError {
        StoreError::NotApplied(self)
    }

    /// Returns the error of a request that may have had an effect.
    pub fn maybe_applied(self) -> StoreError {
        StoreError::MaybeApplied(self)
    }
}

impl StoreError {
    /// Returns the cause.
    pub fn fault(&self) -> &Fault {
        match self {
            Self::NotApplied(fault) | Self::MaybeApplied(fault) => fault,
        }
    }

    /// Returns whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        self.fault().kind == ErrorKind::Unavailable
    }

    /// Returns the error of a request that changes nothing, or has changed nothing.
    pub(crate) fn of_read(self) -> Self {
        match self {
            Self::NotApplied(fault) | Self::MaybeApplied(fault) => fault.not_applied(),
        }
    }

    /// Converts the error of the latest request to the error of the whole operation. `applied` means that an earlier
    /// request may have been applied.
    #[allow(dead_code, reason = "used by stores that are cargo features")]
    pub(crate) fn if_maybe(self, applied: bool) -> Self {
        match self {
            Self::NotApplied(fault) if applied => fault.maybe_applied(),
            error => error,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fault().message)
    }
}

impl std::error::Error for StoreError {}

/// Replaces unprintable characters. Errors are shown on terminals, and they repeat text from elsewhere: from records,
/// URLs and responses of the store.
fn clean(text: String) -> String {
    if text.contains(is_unprintable) { printable(&text, text.len()) } else { text }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) = error;
        let mut error = Self::new(fault.kind, fault.message);
        error.0.help.extend(fault.help);
        error.0.contended = fault.contended;
        error.0.full = fault.full;
        error
    }
}

impl From<InvalidValue> for Error {
    fn from(invalid: InvalidValue) -> Self {
        let error = Self::invalid(invalid.to_string());
        match invalid.help() {
            Some(help) => error.with_help(help),
            None => error,
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.not_applied().into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// No other client has it, so there is none to look for.
    #[test]
    fn a_lock_that_the_store_withholds_is_worth_a_wait() {
        let (name, why) = (LockName::new("x").unwrap(), Some("it was promoted".to_owned()));
        let left = Some(Duration::from_secs(60));
        let held = HolderInfo { foreign: why, lapses_within: left, ..HolderInfo::default() };
        let withheld = Error::held(&name, HolderInfo { withheld: true, ..held.clone() });
        assert_eq!(withheld.to_string(), "lock `x` is held by perhaps nobody (it was promoted)");
        let help = withheld.help().concat();
        assert!(help.contains("<= 1m") && !help.contains("another client"), "{help}");
        let foreign = Error::held(&name, held);
        assert!(foreign.to_string().contains("an unknown holder"), "{foreign}");
        assert!(foreign.help().concat().contains("another client"), "{foreign:?}");
    }

    #[test]
    fn an_error_message_contains_no_control_characters() {
        let hostile = "\u{1b}[2J\u{202e}\n";
        let error = Error::invalid(hostile).with_help(hostile);
        let fault = Fault::unavailable(hostile).with_help(hostile);
        for text in [error.to_string(), error.help().concat(), fault.message, fault.help.unwrap()] {
            assert_eq!(text, "\u{fffd}[2J\u{fffd}\u{fffd}");
        }
    }

    #[test]
    fn main_prints_the_message_and_what_to_do() {
        let source = std::io::Error::other("the file is gone");
        let error = Error::invalid("`x` is no store").with_source(source).with_help("try `mem:`");
        let printed = "`x` is no store (invalid)\n  cause: the file is gone\n  help: try `mem:`";
        assert_eq!(format!("{error:?}"), printed);
        assert!(format!("{error:#?}").starts_with("Error {\n    kind: Invalid,"), "{error:#?}");
    }
}
