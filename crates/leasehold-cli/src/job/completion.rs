//! The end of a job: what happens to the lock, and what the report says.

use std::time::Duration;

use leasehold::clock::timeout;
use leasehold::{Error, ErrorKind, Guard, Locker, Released};

use super::{Job, Session, is_limit};
use crate::child::{self, Ended};
use crate::context::Context;
use crate::exit::{Exit, FAILED, Failure, LIMIT, LOST, of_child};
use crate::mode::CANCEL_TIMEOUT;
use crate::output::{human, json};
use crate::wait_progress::announce;

/// How long the release of a hold at its limit, or of the other locks after the loss of one, may take.
const RELEASE_AFTER_LOSS: Duration = Duration::from_secs(5);

/// What to do with the lock when the command has ended without a loss.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Completion {
    /// Release it.
    Release,
    /// Renew it, so that the ticket keeps it held.
    KeepHeld,
    /// Release it with a cooldown until `period` has passed since the grant. After a failed command, or one that was
    /// stopped at the limit of the hold, the cooldown applies only with `count_failures`.
    Cooldown { period: Duration, count_failures: bool },
}

/// How the lease ends after the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Release,
    /// The hold is at its limit.
    AtLimit,
    /// Keep the lock held by its ticket.
    Renewal,
    Cooldown(Duration),
}

impl Completion {
    /// Returns the cooldown after a command that ended as in `ended`, perhaps because the hold was `at_limit`.
    pub(super) fn cooldown(self, ended: &Result<Option<Ended>, Failure>, at_limit: bool) -> Option<Duration> {
        match (self, ended) {
            (Self::Cooldown { period, count_failures }, Ok(Some(ended))) => {
                let has_ended = !ended.stopped || at_limit;
                let succeeded = !ended.stopped && ended.status.success();
                Some(period).filter(|_| succeeded || (count_failures && has_ended))
            }
            (Self::Release | Self::KeepHeld, _) | (_, Ok(None) | Err(_)) => None,
        }
    }
}

impl Job {
    /// Releases or renews the lock, as `ending` says. Stores in `loss` a loss that only the store knew of. Returns
    /// the error if a cooldown could not be recorded.
    pub(super) async fn end_lease(
        &mut self,
        context: &Context,
        guard: Guard,
        loss: &mut Option<Error>,
        session: &mut Session,
        ending: Ending,
    ) -> Option<Error> {
        let (name, shown) = (guard.name().clone(), self.report.lock.clone());
        let locker = session.locker.clone();
        // Near its limit, the hold is almost over, but its lease is not. Neither are the leases of the locks that were held
        // together with the one that was lost.
        let is_over = guard.limit().is_some() || loss.is_some();
        let left = if is_over { guard.remaining().max(RELEASE_AFTER_LOSS) } else { guard.remaining() };
        let ended = async {
            match ending {
                Ending::Cooldown(period) => guard.release_with_cooldown(period).await,
                Ending::Renewal => renew_ticket(guard, &locker).await,
                Ending::AtLimit => guard.release_at_limit().await,
                Ending::Release => guard.release().await,
            }
        };
        let is_renewal = ending == Ending::Renewal;
        let has_cooldown = matches!(ending, Ending::Cooldown(_));
        let what = format!("the {} of {shown}", if is_renewal { "renewal" } else { "release" });
        let notice = |passed| {
            // Only a cooldown is tried until the lease ends. The store limits the other requests.
            let left = has_cooldown.then(|| left.saturating_sub(passed));
            (human::unanswered(&what, passed, left), json::unanswered(&name, passed, left))
        };
        let clock = session.clock.clone();
        let ended = announce(&context.output, &*clock, within_lease(ended, left, session), notice);
        let mut unrecorded = None;
        let ours = match ended.await {
            Ok(Released::Released) => true,
            // The limit passed before the release.
            Ok(Released::AlreadyLost) if ending == Ending::AtLimit => false,
            Ok(Released::AlreadyLost) => {
                // Another process ended the grant after the last renewal, while the command ran.
                let message = format!("lock `{shown}` was lost before the command ended");
                loss.get_or_insert_with(|| Error::new(ErrorKind::Lost, message));
                false
            }
            Err(error) if has_cooldown => {
                unrecorded = Some(error);
                false
            }
            Err(error) => {
                let what = match is_renewal {
                    true => "the lock of the ticket was not renewed",
                    false => "the lock was not released",
                };
                context.output.warning(&format!("{what} and stays held until its lease ends: {error}"));
                false
            }
        };
        self.report.released = Some(ours && !is_renewal);
        self.report.cooldown = has_cooldown.then_some(ours);
        unrecorded
    }

    /// Returns how leasehold ends if the run could not be recorded in the store. The exit code is never 0, because the
    /// command may run again in its period.
    pub(super) fn unrecorded(&mut self, context: &Context, error: &Error, exit: Exit) -> Exit {
        const AGAIN: &str = "the command may run again within its period";
        let result = if exit.code() == 0 { "succeeded" } else { "failed" };
        let message = format!(
            "`{}` {result}, but the run could not be recorded in the store: {error}",
            self.report.lock
        );
        if exit.code() != 0 {
            context.output.warning(&format!("{message}; {AGAIN}"));
            return exit;
        }
        context.output.failure(&Failure::new(FAILED, "not_recorded", message.clone()).with_help(AGAIN));
        self.report.outcome = "not_recorded".to_owned();
        self.report.exit_code = FAILED;
        self.report.message = Some(message);
        FAILED.into()
    }

    /// Returns how leasehold ends if the state of the command is not the one that the lock protects. The exit code is
    /// never 0. A command that failed may have failed before it asked for a state, but not if it `has_locked` one.
    #[cfg(feature = "serve")]
    pub(super) fn elsewhere(
        &mut self,
        context: &Context,
        message: &str,
        has_locked: bool,
        exit: Exit,
    ) -> Exit {
        const HELP: &str = "the configuration needs: backend \"http\" {}, with nothing in it. Run commands that use no \
                            state without leasehold";
        if exit.code() != 0 {
            if has_locked {
                context.output.warning(message);
            }
            return exit;
        }
        context.output.failure(&Failure::new(FAILED, "state_elsewhere", message).with_help(HELP));
        self.report.outcome = "state_elsewhere".to_owned();
        self.report.exit_code = FAILED;
        self.report.message = Some(message.to_owned());
        FAILED.into()
    }

    /// Records in the report how the command ended, and returns how leasehold ends. `ended` is `None` if the lock was
    /// lost before the command started. `at_limit` is whether the command was stopped because of the limit of the hold.
    pub(super) fn conclude(
        &mut self,
        context: &Context,
        ended: Option<Ended>,
        loss: Option<Error>,
        at_limit: bool,
    ) -> Exit {
        // Another process may have ended the grant in the meantime.
        let at_limit = at_limit && loss.as_ref().is_none_or(is_limit);
        let report = &mut self.report;
        if let Some(ended) = &ended {
            report.command_exit_code = ended.status.code();
            report.command_signal = child::ending_signal(ended.status);
        }
        if let Some(ended) = ended.as_ref().filter(|ended| !ended.stopped && loss.is_none()) {
            if ended.left_behind && !context.output.quiet {
                context
                    .output
                    .warning("terminated processes that the command left running in its process group");
            }
            report.outcome = if ended.status.code().is_some() { "exited" } else { "signaled" }.to_owned();
            let exit = of_child(ended.status);
            report.exit_code = exit.code();
            return exit;
        }
        let message = loss.as_ref().map_or_else(
            || {
                // Use the same words as for a lease that has ended, because milliseconds decide which of the two comes
                // first.
                let token = report.token.map(|token| format!(" (token {token})")).unwrap_or_default();
                if let Some(limit) = self.max_hold.filter(|_| at_limit) {
                    let limit = human::span(limit);
                    return format!(
                        "lock `{}`{token} reached its limit: it may be held for {limit}",
                        report.lock
                    );
                }
                format!("lock `{}`{token} was lost: its lease was not renewed in time", report.lock)
            },
            ToString::to_string,
        );
        report.lost_reason = Some(match &loss {
            None if at_limit => "limit",
            None => "not_renewed",
            Some(error) => error.loss().map_or("ended", |loss| loss.reason.as_str()),
        });
        let (outcome, code) = if at_limit { ("limit", LIMIT) } else { ("lost", LOST) };
        report.outcome = outcome.to_owned();
        report.exit_code = code;
        report.message = Some(message.clone());
        context.output.failure(&Failure::new(code, outcome, message).with_help(match ended {
            None => "the command was not run",
            Some(ended) if ended.stopped => "the command was stopped; its last work may be incomplete",
            Some(_) => "the last work of the command may have run without the lock",
        }));
        code.into()
    }
}

/// Stops the renewals and renews the ticket once, so that its next user has a full ttl. Reports a loss in the same way
/// as a release.
async fn renew_ticket(guard: Guard, locker: &Locker) -> leasehold::Result<Released> {
    let renewed = async { locker.renew(&guard.into_ticket().await?).await };
    match renewed.await {
        Ok(_) => Ok(Released::Released),
        Err(error) if error.kind() == ErrorKind::Lost => Ok(Released::AlreadyLost),
        Err(error) => Err(error),
    }
}

/// Waits until the end of the lease is recorded. Gives up at a signal, or after `left`, when the lease has ended
/// anyway.
async fn within_lease(
    ended: impl Future<Output = leasehold::Result<Released>>,
    left: Duration,
    session: &mut Session,
) -> leasehold::Result<Released> {
    let Session { signals, clock, .. } = session;
    let mut ended = std::pin::pin!(ended);
    tokio::select! {
        biased;
        released = &mut ended => released,
        () = clock.sleep(left) => {
            Err(Error::new(ErrorKind::Unavailable, "the store did not respond before the lease ended"))
        }
        _ = signals.next_ending() => match timeout(&**clock, CANCEL_TIMEOUT, ended).await {
            Some(released) => released,
            None => Err(Error::new(ErrorKind::Unavailable, "interrupted by a signal")),
        },
    }
}
