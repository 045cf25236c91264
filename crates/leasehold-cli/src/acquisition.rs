//! Acquires a lock for `run`, `once`, `elect` and `acquire`: the wait policy, the progress display, and the errors.

use std::time::Duration;

use clap::ValueEnum as _;
use leasehold::lease::{Claim, Ttl};
use leasehold::{Due, Error, ErrorKind, Guard, Holder, HolderInfo, Lock, LockName, Locker};

use crate::args::{ClaimArgs, ClientArgs, OnDeadlock, duration};
use crate::config::{Settings, Store};
use crate::context::{Note, clock, store_flag};
use crate::exit::{FAILED, Failure, HELD, TIMED_OUT};
use crate::mode::{CANCEL_TIMEOUT, Mode, WaitPolicy, acquire_all};
use crate::names::Names;
use crate::nesting;
use crate::output::{Output, human};
use crate::signals::{Signals, interrupted};
use crate::wait_progress::{HELD_BY_OUTER, USE_ANOTHER, WaitProgress};

/// A store may take this long to open, however short the wait for the lock. Usually it takes milliseconds, but a busy
/// machine may need longer.
const SHORTEST_OPENING_LIMIT: Duration = Duration::from_secs(5);

/// The value of `--note` that selects the command line.
const COMMAND_LINE: &str = "command-line";

/// A lock to acquire, or several locks, with their settings.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) names: Names,
    pub(crate) ttl: Duration,
    /// The limit of the hold.
    pub(crate) max_hold: Option<Duration>,
    pub(crate) wait_policy: WaitPolicy,
    pub(crate) conflict_code: Option<u8>,
    mode: Mode,
    owner: Option<String>,
    note: String,
    /// How long the store may take to respond, if it was given.
    store_timeout: Option<Duration>,
    /// The subcommand and, in `suffix`, its arguments after the lock name. For help texts.
    subcommand: &'static str,
    suffix: &'static str,
    for_ticket: bool,
    /// Whether to ignore the line of waiters.
    barges: bool,
    on_deadlock: OnDeadlock,
}

impl Request {
    pub(crate) fn new(
        settings: &Settings,
        names: Names,
        (claim, client): (&ClaimArgs, &ClientArgs),
        (ttl, max_hold): (Option<Duration>, Option<Duration>),
        note: Note,
        (subcommand, suffix): (&'static str, &'static str),
    ) -> Result<Self, Failure> {
        let text = |text: &str| Ok(text.to_owned());
        let ttl = settings.pick(ttl, "ttl", duration)?.unwrap_or(Ttl::DEFAULT.get());
        Ttl::new(ttl).map_err(Failure::bad_argument)?;
        let code =
            |text: &str| text.parse::<u8>().map_err(|_| "an exit code must be between 0 and 255".to_owned());
        Ok(Self {
            names,
            ttl,
            // Zero is no limit, to undo a limit of the configuration.
            max_hold: settings.pick(max_hold, "max-hold", duration)?.filter(|limit| !limit.is_zero()),
            wait_policy: wait_policy(settings, claim)?,
            conflict_code: settings.pick(claim.conflict_exit_code, "conflict-exit-code", code)?,
            owner: settings.pick(client.holder.owner.clone(), "owner", text)?,
            note: match settings.pick(client.holder.note.clone(), "note", text)? {
                None => note.name,
                Some(wanted) if wanted == COMMAND_LINE => note.command_line,
                Some(wanted) => wanted,
            },
            store_timeout: settings.pick(client.timeout.store_timeout, "store-timeout", duration)?,
            subcommand,
            suffix,
            for_ticket: false,
            barges: claim.barge,
            on_deadlock: settings
                .pick(claim.on_deadlock, "on-deadlock", |text| OnDeadlock::from_str(text, false))?
                .unwrap_or_default(),
            mode: Mode::Lock,
        })
    }

    /// Sets the mode.
    pub(crate) fn mode(self, mode: Mode) -> Result<Self, Failure> {
        if self.names.are_several() && mode != Mode::Lock {
            let message = format!("{} cannot be used with several locks", mode.option());
            return Err(Failure::usage(message).with_help("several locks are all held alone"));
        }
        Ok(Self { mode, ..self })
    }

    /// Makes the request wait without a limit, regardless of the settings.
    pub(crate) fn wait_forever(self) -> Self {
        Self { wait_policy: WaitPolicy::Forever, ..self }
    }

    /// Returns how long opening the store may take.
    pub(crate) fn opening_limit(&self) -> Option<Duration> {
        let wait = match self.wait_policy {
            WaitPolicy::Within(limit) => Some(opening_limit(limit)),
            WaitPolicy::Try | WaitPolicy::Forever => None,
        };
        [wait, self.store_timeout].into_iter().flatten().min()
    }

    fn store_timeout(&self) -> Duration {
        self.store_timeout.unwrap_or(Claim::DEFAULT_STORE_TIMEOUT)
    }

    /// Returns the permit number of the lock `held`, if a permit was requested.
    pub(crate) fn permit(&self, held: &LockName) -> Option<usize> {
        self.mode.permit(held)
    }

    /// Marks the lock as one that a ticket will hold.
    pub(crate) fn for_ticket(self) -> Self {
        Self { for_ticket: true, ..self }
    }

    /// Acquires the lock.
    pub(crate) async fn acquire(
        &self,
        locker: &Locker,
        store: &Store,
        output: &Output,
        signals: &mut Signals,
    ) -> Result<Guard, Failure> {
        let progress = WaitProgress::on(locker, self.names.clone()).mode(self.mode);
        let observer = progress.observer_of_several();
        let acquire = async |lock: Lock| match self.names.others() {
            [] => self.mode.acquire(lock, self.wait_policy).await,
            others => {
                let locks = lock.and(others.iter().map(LockName::as_str)).on_wait_for(observer);
                acquire_all(locks, self.wait_policy).await
            }
        };
        self.acquire_with(progress, locker, store, output, signals, acquire).await
    }

    /// Acquires the lock with `note` in place of its own. Signals do not interrupt it.
    #[cfg(feature = "serve")]
    pub(crate) async fn acquire_as(
        &self,
        note: String,
        locker: &Locker,
        output: &Output,
    ) -> leasehold::Result<Guard> {
        let progress = self.limited(WaitProgress::on(locker, self.names.clone()));
        let lock = self.lock(locker).note(note).on_wait(progress.observer());
        progress.show_during(output, self.mode.acquire(lock, self.wait_policy)).await
    }

    /// Campaigns without a time limit, and advertises `value`.
    pub(crate) async fn campaign(
        &self,
        value: Option<&str>,
        locker: &Locker,
        store: &Store,
        output: &Output,
        signals: &mut Signals,
    ) -> Result<Guard, Failure> {
        let acquire = async |lock: Lock| {
            let election = lock.election();
            let election = match value {
                Some(value) => election.value(value),
                None => election,
            };
            election.campaign().await.map(Guard::from)
        };
        let progress = WaitProgress::on(locker, self.names.clone()).once_per_holder();
        self.acquire_with(progress, locker, store, output, signals, acquire).await
    }

    /// Acquires the lock if the job is due. Waits for a run in progress, but not for the next period.
    pub(crate) async fn acquire_if_due(
        &self,
        period: Duration,
        locker: &Locker,
        store: &Store,
        output: &Output,
        signals: &mut Signals,
    ) -> Result<Due, Failure> {
        let acquire = async |lock: Lock| {
            let once = lock.once_per(period);
            match self.wait_policy {
                WaitPolicy::Try => once.try_acquire().await,
                WaitPolicy::Within(limit) => once.acquire_within(limit).await,
                WaitPolicy::Forever => once.acquire().await,
            }
        };
        let progress = WaitProgress::on(locker, self.names.clone());
        self.acquire_with(progress, locker, store, output, signals, acquire).await
    }

    async fn acquire_with<T>(
        &self,
        progress: WaitProgress,
        locker: &Locker,
        store: &Store,
        output: &Output,
        signals: &mut Signals,
        acquire: impl AsyncFnOnce(Lock) -> leasehold::Result<T>,
    ) -> Result<T, Failure> {
        let progress = self.limited(progress);
        let acquired = acquire(self.lock(locker).on_wait(progress.observer()));
        tokio::select! {
            biased;
            outcome = progress.show_during(output, acquired) => match outcome {
                Ok(acquired) => Ok(acquired),
                Err(error) => {
                    let has_waited = match error.kind() {
                        ErrorKind::Held => matches!(self.wait_policy, WaitPolicy::Within(_)),
                        kind => kind == ErrorKind::Deadlock,
                    };
                    if has_waited && locker.capabilities().fifo() {
                        // Allow time to leave the line of waiters. Otherwise other processes wait for this one.
                        clock(locker).sleep(CANCEL_TIMEOUT).await;
                    }
                    Err(self.failure(error, &progress, store, locker))
                }
            },
            failure = progress.deadlocked(), if self.gives_up() => {
                clock(locker).sleep(CANCEL_TIMEOUT).await;
                Err(failure)
            }
            signal = signals.next_ending() => {
                clock(locker).sleep(CANCEL_TIMEOUT).await;
                Err(interrupted(signal))
            }
        }
    }

    /// Returns whether the acquisition fails if it would wait for ever. A wait with a limit ends by itself.
    fn gives_up(&self) -> bool {
        self.wait_policy == WaitPolicy::Forever && self.on_deadlock == OnDeadlock::Fail
    }

    /// Makes `progress` show how long the store may take to respond.
    fn limited(&self, progress: WaitProgress) -> WaitProgress {
        progress.within(Some(match self.wait_policy {
            WaitPolicy::Within(limit) => limit.min(self.store_timeout()),
            WaitPolicy::Try | WaitPolicy::Forever => self.store_timeout(),
        }))
    }

    fn lock(&self, locker: &Locker) -> Lock {
        let lock = locker.lock(self.names.first().as_str()).ttl(self.ttl).store_timeout(self.store_timeout());
        let lock = match self.max_hold {
            Some(limit) => lock.max_hold(limit),
            None => lock,
        };
        let lock = if self.note.is_empty() { lock } else { lock.note(&self.note) };
        let lock = if self.for_ticket { lock.for_ticket() } else { lock };
        let lock = if self.barges { lock.barge() } else { lock };
        let outer = nesting::outer(locker).into_iter().filter(|outer| !outer.by_ticket);
        let lock = outer.fold(lock, |lock, outer| lock.while_other_holds(outer.lock, outer.token));
        let lock = lock.on_deadlock(match self.on_deadlock {
            OnDeadlock::Fail => leasehold::OnDeadlock::Fail,
            OnDeadlock::Wait => leasehold::OnDeadlock::Wait,
        });
        match &self.owner {
            Some(owner) => lock.owner(owner),
            None => lock,
        }
    }

    /// Returns the failure for an acquisition that showed `progress` and returned `error`.
    fn failure(&self, error: Error, progress: &WaitProgress, store: &Store, locker: &Locker) -> Failure {
        match (error.holder(), self.wait_policy) {
            (Some(held), _) => {
                let now = progress
                    .now()
                    .filter(|now| now.token == held.token && now.in_cooldown == held.in_cooldown);
                let held = now.unwrap_or_else(|| held.clone());
                self.held(&held, progress.held_by_outer(&held).is_some(), &error, store, locker)
            }
            (None, WaitPolicy::Within(_)) if error.kind() == ErrorKind::Unavailable => {
                self.no_holder_seen(&error)
            }
            // The library finds a wait for a plain lock of an outer run too: the words do not depend on who is first.
            (None, _) if error.kind() == ErrorKind::Deadlock => {
                progress.deadlock().unwrap_or_else(|| Failure::from(error))
            }
            // The command has not started, so nothing ran without the lock and this is not a loss.
            (None, _) => {
                let sizes = error.sizes();
                let failure = Failure { code: FAILED, ..Failure::from(error) };
                let Some(sizes) = sizes else { return failure };
                let readers = if matches!(self.mode, Mode::Permit(_)) { "" } else { " --readers" };
                let (flag, lock) = (store_flag(store), self.names.as_arguments());
                failure.with_help(format!(
                    "to resize it: leasehold{flag} resize{readers} {lock} {}",
                    sizes.asked
                ))
            }
        }
    }

    /// Returns the failure for a time limit that ended before the store reported a holder. A store that does not
    /// respond must not look like a held lock, because with `-E 0` the outage would stay unnoticed.
    fn no_holder_seen(&self, error: &Error) -> Failure {
        let unknown = match self.mode {
            Mode::Permit(_) => format!("whether a permit of `{}` is free is unknown", self.names),
            _ if self.names.are_several() => "whether all locks are free is unknown".to_owned(),
            _ => format!("the holder of lock `{}` is unknown", self.names),
        };
        let failure = Failure::new(FAILED, "unavailable", format!("{error}; {unknown}"));
        Failure { help: error.help().to_vec(), ..failure }
    }

    /// Returns the failure for a held lock, with the holder and what the user can do.
    fn held(
        &self,
        held: &HolderInfo,
        by_outer: bool,
        error: &Error,
        store: &Store,
        locker: &Locker,
    ) -> Failure {
        let (code, kind) =
            if self.wait_policy == WaitPolicy::Try { (HELD, "held") } else { (TIMED_OUT, "timed_out") };
        let code = self.conflict_code.unwrap_or(code);
        let mut message = match (self.mode, self.names.others()) {
            // The library's message has the same words, but not for how long the lock is held.
            (Mode::Lock, []) => self.held_by(held),
            // If there can be several holders, it lists all of them. Of several locks, it names the one that is held.
            _ => error.to_string(),
        };
        if let WaitPolicy::Within(limit) = self.wait_policy {
            message = format!("{message}; timed out after {}", human::span(limit));
        }
        let failure = Failure::new(code, kind, message);
        if by_outer {
            return failure.with_help(format!("{HELD_BY_OUTER}; {USE_ANOTHER}"));
        }
        let dies_visibly = locker.capabilities().sees_dead_processes && is_on_this_host(held);
        self.with_help(failure, held, error, (store, dies_visibly))
    }

    fn held_by(&self, held: &HolderInfo) -> String {
        let mut message = match held.in_cooldown {
            true => format!("lock `{}` is in its cooldown", self.names),
            false => format!("lock `{}` is held by {}", self.names, human::holder(held)),
        };
        if let Some(time) = held.held_for.filter(|_| !held.in_cooldown) {
            message.push_str(&format!(" for {}", human::span(time)));
        }
        if let Some(token) = held.token {
            message.push_str(&format!(", token {token}"));
        }
        message
    }

    /// Adds help about `held`. `dies_visibly` says whether the store would know that the holder has died, unless it ran
    /// in another PID namespace.
    fn with_help(
        &self,
        failure: Failure,
        held: &HolderInfo,
        error: &Error,
        (store, dies_visibly): (&Store, bool),
    ) -> Failure {
        let (lock, flag) = (self.names.as_arguments(), store_flag(store));
        let longer = match self.wait_policy {
            WaitPolicy::Within(limit) => {
                format!(
                    "to wait longer: leasehold{flag} {} --wait {}",
                    self.subcommand,
                    human::span_up(limit * 2)
                )
            }
            _ => format!("to wait: leasehold{flag} {} --wait 10m", self.subcommand),
        };
        let mut failure = failure.with_help(format!("{longer}{} {lock}{}", self.mode, self.suffix));
        failure.help.extend(error.help().iter().filter(|_| held.lapses_within.is_none()).cloned());
        if let Some(left) = held.lapses_within {
            let left = human::span_up(left);
            let help = if held.in_cooldown {
                format!("the cooldown ends in <= {left}")
            } else if held.reserved {
                format!(
                    "if that process does not take the lock, it is reserved for <= {left} more; --barge ignores this"
                )
            } else if held.is_by_ticket() {
                format!("a ticket holds the lock; the lease ends in <= {left} unless the ticket is renewed")
            } else if dies_visibly {
                format!(
                    "when that process ends, the lock is free at once; if it ran in another container, in <= {left}"
                )
            } else {
                format!("if that process is dead, a process that waits gets the lock in <= {left}")
            };
            failure = failure.with_help(help);
        }
        if self.mode != Mode::Lock {
            return failure.with_help(format!("to list the holders: leasehold{flag} ls {lock}"));
        }
        if let Some(token) = held.token.filter(|_| !held.reserved && !self.names.are_several()) {
            let what = if held.in_cooldown {
                "to end the cooldown now"
            } else {
                "to evict the holder now (unsafe while it runs)"
            };
            failure = failure.with_help(format!("{what}: leasehold{flag} evict --token {token} {lock}"));
        }
        failure
    }
}

/// Returns whether a process of this host holds the lock. Containers have host names of their own.
fn is_on_this_host(held: &HolderInfo) -> bool {
    let this = Holder::this_process();
    held.holder.as_ref().is_some_and(|holder| holder.pid != 0 && holder.host == this.host)
}

/// Returns how long opening the store may take if the wait for a lock may take `wait`.
pub(crate) fn opening_limit(wait: Duration) -> Duration {
    wait.max(SHORTEST_OPENING_LIMIT)
}

/// Returns the wait policy. For both `try` and `wait`, an option takes precedence over a variable, and a variable over
/// the file.
fn wait_policy(settings: &Settings, claim: &ClaimArgs) -> Result<WaitPolicy, Failure> {
    // No request takes no time, so a limit of zero means one try.
    let within = |limit: Duration| if limit.is_zero() { WaitPolicy::Try } else { WaitPolicy::Within(limit) };
    if claim.try_once {
        return Ok(WaitPolicy::Try);
    }
    if let Some(limit) = claim.wait {
        return Ok(within(limit));
    }
    if Settings::switch(false, "try")? {
        return Ok(WaitPolicy::Try);
    }
    Ok(settings.pick(None, "wait", duration)?.map_or(WaitPolicy::Forever, within))
}
