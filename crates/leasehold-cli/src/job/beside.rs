//! A command that acquires its locks itself, from a backend of this process: `leasehold terraform`.

use std::sync::Arc;
use std::time::Duration;

use leasehold::LockName;
use leasehold_serve::StateBackend;

use super::completion::Ending;
use super::{Job, Session, is_limit, signal_error};
use crate::args::OnLost;
use crate::child::{self, Ended, Prepared};
use crate::context::Context;
use crate::exit::{Exit, Failure};

impl Job {
    /// Returns the name of the lock.
    pub(crate) fn lock(&self) -> &LockName {
        self.names.first()
    }

    /// Ends the command with one SIGINT, before SIGKILL.
    pub(crate) fn with_one_interrupt(mut self) -> Self {
        self.plan.one_interrupt = true;
        self
    }

    /// Returns how much of the lease remains when the command must have the responses to its requests, because it is
    /// about to be stopped.
    pub(crate) fn reserve(&self) -> Duration {
        let margin = self.plan.margin();
        match self.plan.on_lost {
            OnLost::None => Duration::ZERO,
            OnLost::Term | OnLost::Kill => self.plan.grace.max(margin) + margin,
        }
    }

    /// Runs the command, which acquires locks from `backend`, with these `variables`. Releases the lock that it leaves,
    /// and returns how leasehold ends.
    pub(crate) async fn run_beside(
        &mut self,
        context: &Context,
        session: &mut Session,
        backend: &Arc<StateBackend>,
        variables: Vec<(&'static str, String)>,
    ) -> Result<Exit, Failure> {
        let Session { clock, signals, .. } = session;
        signals.add_others(!child::is_interactive()).map_err(signal_error)?;
        let mut prepared = Prepared::start(&self.command, self.plan)?;
        backend.set_processes(prepared.prepare()?);
        let of_outer_run = ["LEASEHOLD_LOCK", "LEASEHOLD_TOKEN", "LEASEHOLD_TOKENS", "LEASEHOLD_PERMIT"]
            .map(|name| (name, None));
        let variables = variables.into_iter().map(|(name, value)| (name, Some(value)));
        let environment = variables.chain(of_outer_run).collect();
        let ended = self.launch(prepared, environment, backend, signals, &**clock, &context.output).await;
        // A signal that ended the command must not interrupt the release.
        signals.discard_pending();
        let stopped = matches!(&ended, Ok(Ended { stopped: true, .. }));
        let left = backend.close().await;
        self.report.token = left.token;
        let mut loss = left.loss;
        let mut at_limit = loss.as_ref().is_some_and(is_limit);
        if let Some(guard) = left.guard {
            let lost = guard.check().err();
            at_limit = self.is_at_limit(&guard, lost.as_ref(), stopped, &**clock);
            loss = loss.or(lost);
            let ending = if at_limit { Ending::AtLimit } else { Ending::Release };
            // Without a cooldown, there is nothing to record.
            let _ = self.end_lease(context, guard, &mut loss, session, ending).await;
        }
        let elsewhere = match (left.was_asked, left.was_unused) {
            (false, _) => Some("the command did not ask for its state: its state is elsewhere"),
            (true, true) => Some(
                "the command locked its state, but did not ask for it under the lock: its state is elsewhere, and was \
                 not fenced",
            ),
            (true, false) => None,
        };
        let exit = self.conclude(context, Some(ended?), loss, at_limit);
        Ok(match elsewhere {
            Some(message) => self.elsewhere(context, message, left.was_asked, exit),
            None => exit,
        })
    }
}
