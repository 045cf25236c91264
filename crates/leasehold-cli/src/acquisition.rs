//! Asking for a lock, for `run`, `once` and `acquire`: how long to wait, what to show meanwhile, what to say in vain.

use std::time::Duration;

use leasehold::clock::timeout;
use leasehold::lease::{Claim, State, Ttl};
use leasehold::{Due, Error, ErrorKind, Guard, Held, Lock, LockName, Locker};

use crate::args::{ClaimArgs, duration};
use crate::config::{Settings, Store};
use crate::context::{Note, clock, store_flag};
use crate::exit::{FAILED, Failure, HELD, TIMED_OUT};
use crate::mode::{Mode, WaitPolicy};
use crate::output::{Output, human};
use crate::signals::{Signals, interrupted};
use crate::wait_progress::{HELD_BY_PARENT, WaitProgress, is_held_by_parent};

/// How long an acquisition that a signal broke off is given to take back what it acquired for; otherwise the lease lapses.
pub(crate) const CANCEL_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a store that has said nothing while we waited is given to say who has the lock.
const FINAL_INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The note that stands for the command line.
const COMMAND_LINE: &str = "command-line";

/// What is acquired for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) name: LockName,
    pub(crate) ttl: Duration,
    pub(crate) wait_policy: WaitPolicy,
    pub(crate) conflict_code: Option<u8>,
    mode: Mode,
    owner: Option<String>,
    note: String,
    /// How long a store may say nothing.
    store_timeout: Duration,
    /// `run`, `once` or `acquire`, and what follows the lock's name: for help.
    subcommand: &'static str,
    suffix: &'static str,
    for_ticket: bool,
}

impl Request {
    pub(crate) fn new(
        settings: &Settings,
        name: LockName,
        claim: &ClaimArgs,
        ttl: Option<Duration>,
        note: Note,
        (subcommand, suffix): (&'static str, &'static str),
    ) -> Result<Self, Failure> {
        let text = |text: &str| Ok(text.to_owned());
        let ttl = settings.pick(ttl, "ttl", duration)?.unwrap_or(Ttl::DEFAULT.get());
        Ttl::new(ttl).map_err(Failure::bad_argument)?;
        let code = |text: &str| text.parse::<u8>().map_err(|_| "an exit code is from 0 to 255".to_owned());
        Ok(Self {
            name,
            ttl,
            wait_policy: wait_policy(settings, claim)?,
            conflict_code: settings.pick(claim.conflict_exit_code, "conflict-exit-code", code)?,
            owner: settings.pick(claim.holder.owner.clone(), "owner", text)?,
            note: match settings.pick(claim.holder.note.clone(), "note", text)? {
                None => note.name,
                Some(wanted) if wanted == COMMAND_LINE => note.command_line,
                Some(wanted) => wanted,
            },
            store_timeout: settings
                .pick(claim.timeout.store_timeout, "store-timeout", duration)?
                .unwrap_or(Claim::DEFAULT_PATIENCE),
            subcommand,
            suffix,
            for_ticket: false,
            mode: Mode::Lock,
        })
    }

    /// The same, held with those whom `sharing` allows.
    pub(crate) fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The same, progress for as long as it takes, whatever the settings say.
    pub(crate) fn wait_forever(self) -> Self {
        Self { wait_policy: WaitPolicy::Forever, ..self }
    }

    /// The number of the permit that `held` is, when one was acquired for.
    pub(crate) fn permit(&self, held: &LockName) -> Option<usize> {
        self.mode.permit(held)
    }

    /// The same, for a lock that is handed on as a ticket.
    pub(crate) fn for_ticket(self) -> Self {
        Self { for_ticket: true, ..self }
    }

    /// Asks for it.
    pub(crate) async fn acquire(
        &self,
        locker: &Locker,
        store: &Store,
        output: &Output,
        signals: &mut Signals,
    ) -> Result<Guard, Failure> {
        let acquire = async |lock: Lock| self.mode.acquire(lock, self.wait_policy).await;
        let progress = WaitProgress::new(self.name.clone(), clock(locker)).mode(self.mode);
        self.acquire_with(progress, locker, store, output, signals, acquire).await
    }

    /// Campaigns for it, however long that takes, and advertises `value`.
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
        let progress = WaitProgress::new(self.name.clone(), clock(locker)).once_per_holder();
        self.acquire_with(progress, locker, store, output, signals, acquire).await
    }

    /// Asks for it if what is to be done once per `period` is due. Waits for who does it now, and not for the next period.
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
        let progress = WaitProgress::new(self.name.clone(), clock(locker));
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
        let progress = progress.within(match self.wait_policy {
            WaitPolicy::Within(limit) => limit.min(self.store_timeout),
            WaitPolicy::Try | WaitPolicy::Forever => self.store_timeout,
        });
        let acquired = acquire(self.lock(locker).on_wait(progress.observer()));
        tokio::select! {
            biased;
            outcome = progress.show_during(output, acquired) => match outcome {
                Ok(acquired) => Ok(acquired),
                Err(error) => Err(self.failure(error, locker, store).await),
            },
            signal = signals.next_ending() => {
                clock(locker).sleep(CANCEL_TIMEOUT).await;
                Err(interrupted(signal))
            }
        }
    }

    fn lock(&self, locker: &Locker) -> Lock {
        let lock = locker.lock(self.name.as_str()).ttl(self.ttl).store_timeout(self.store_timeout);
        let lock = if self.note.is_empty() { lock } else { lock.note(&self.note) };
        let lock = if self.for_ticket { lock.for_ticket() } else { lock };
        match &self.owner {
            Some(owner) => lock.owner(owner),
            None => lock,
        }
    }

    /// What came of it instead of the lock.
    async fn failure(&self, error: Error, locker: &Locker, store: &Store) -> Failure {
        match (error.holder(), self.wait_policy) {
            (Some(held), _) => self.held(held, &error, store),
            (None, WaitPolicy::Within(limit)) if error.kind() == ErrorKind::Unavailable => {
                self.no_holder_seen(error, limit, locker, store).await
            }
            // Before the command was started: nothing ran without the lock.
            (None, _) => Failure { code: FAILED, ..Failure::from(error) },
        }
    }

    /// The time was up before anything was heard of a holder. A store that does not answer must not look like a lock
    /// that is held: with `-E 0` nobody would ever learn of it.
    async fn no_holder_seen(&self, error: Error, limit: Duration, locker: &Locker, store: &Store) -> Failure {
        let silent = |what: &str| {
            let message = format!("lock `{}`: {what}, and nothing was heard of a holder", self.name);
            Failure::new(FAILED, "unavailable", message)
        };
        if matches!(self.mode, Mode::Permit(_)) {
            return silent("the store did not say in time whether a permit is free");
        }
        // A short limit may be shorter than a request takes; a long one was long enough.
        match timeout(
            &*clock(locker),
            FINAL_INSPECT_TIMEOUT.saturating_sub(limit),
            locker.inspect(&self.name),
        )
        .await
        {
            None => {
                let failure = Failure::new(
                    FAILED,
                    "unavailable",
                    format!("{error}, and nothing was heard of a holder"),
                );
                Failure { help: error.help().to_vec(), ..failure }
            }
            Some(Err(error)) => Failure { code: FAILED, ..Failure::from(error) },
            Some(Ok(status)) => match &status.state {
                State::Held(held) => self.held(held, &error, store),
                _ => silent("it is free, but the store did not grant it in time"),
            },
        }
    }

    /// Who has it, and what to do about that.
    fn held(&self, held: &Held, error: &Error, store: &Store) -> Failure {
        let (code, kind) =
            if self.wait_policy == WaitPolicy::Try { (HELD, "held") } else { (TIMED_OUT, "timed_out") };
        let code = self.conflict_code.unwrap_or(code);
        let mut message = match (self.mode, held.token) {
            // Of several who have it, the library knows.
            (Mode::Permit(_) | Mode::Shared | Mode::Exclusive, _) if error.kind() == ErrorKind::Held => {
                error.to_string()
            }
            (_, Some(token)) => format!("{}, token {token}", self.held_by(held)),
            (_, None) => self.held_by(held),
        };
        if let WaitPolicy::Within(limit) = self.wait_policy {
            message = format!("{message}; waited {}", human::span(limit));
        }
        let failure = Failure::new(code, kind, message);
        if is_held_by_parent(&self.name, self.mode, held) {
            return failure
                .with_help(format!("{HELD_BY_PARENT}; leave out the inner run, or give it another lock"));
        }
        self.with_help(failure, held, error, store)
    }

    fn held_by(&self, held: &Held) -> String {
        if held.resting {
            return format!("lock `{}` rests", self.name);
        }
        format!("lock `{}` is held by {}", self.name, human::short_holder(held))
    }

    /// What to do about `held`.
    fn with_help(&self, failure: Failure, held: &Held, error: &Error, store: &Store) -> Failure {
        let (lock, flag) = (human::quoted(self.name.as_str()), store_flag(store));
        let longer = match self.wait_policy {
            WaitPolicy::Within(limit) => {
                format!(
                    "wait longer: leasehold{flag} {} --wait {}",
                    self.subcommand,
                    human::span_up(limit * 2)
                )
            }
            _ => format!("wait for it: leasehold{flag} {} --wait 10m", self.subcommand),
        };
        let mut failure = failure.with_help(format!("{longer} {lock}{}{}", self.mode, self.suffix));
        failure.help.extend(error.help().iter().filter(|_| held.lapses_within.is_none()).cloned());
        if let Some(left) = held.lapses_within {
            let left = left.as_millis().div_ceil(1_000);
            let help = if held.resting {
                format!("it may be had again in <= {left}s")
            } else if held.is_by_ticket() {
                format!("it is held by a ticket, and ends by itself in <= {left}s unless that is renewed")
            } else {
                format!("if that process is dead, the lease ends by itself in <= {left}s")
            };
            failure = failure.with_help(help);
        }
        if self.mode != Mode::Lock {
            return failure.with_help(format!("who has what: leasehold{flag} ls {lock}"));
        }
        if let Some(token) = held.token {
            let what =
                if held.resting { "to end its rest now" } else { "to evict it now (unsafe while it runs)" };
            failure = failure.with_help(format!("{what}: leasehold{flag} break {lock} --token {token}"));
        }
        failure
    }
}

/// What stands nearer wins: a flag over a variable over the file, whichever of the two settings it is.
fn wait_policy(settings: &Settings, claim: &ClaimArgs) -> Result<WaitPolicy, Failure> {
    if claim.try_once {
        return Ok(WaitPolicy::Try);
    }
    if let Some(limit) = claim.wait {
        return Ok(WaitPolicy::Within(limit));
    }
    if Settings::switch(false, "try")? {
        return Ok(WaitPolicy::Try);
    }
    Ok(settings.pick(None, "wait", duration)?.map_or(WaitPolicy::Forever, WaitPolicy::Within))
}
