//! `leasehold wait LOCK`: waits until the lock is free, without acquiring it.

use std::pin::pin;
use std::time::Duration;

use leasehold::clock::timeout;
use leasehold::lease::{Claim, State};

use crate::acquisition::opening_limit;
use crate::args::{WaitArgs, duration};
use crate::context::{self, Context};
use crate::exit::{FAILED, Failure, TIMED_OUT};
use crate::names::lock_name;
use crate::output::{human, json, print};
use crate::shell;
use crate::wait_progress::WaitProgress;

pub(super) async fn wait(context: &Context, args: WaitArgs) -> Result<u8, Failure> {
    let name = lock_name(&args.lock.lock)?;
    let given = context.settings.pick(args.wait, "wait", duration)?;
    // No request takes no time, so a limit of zero means one look at the lock.
    let looks_once = given == Some(Duration::ZERO);
    let limit = given.filter(|_| !looks_once);
    let store = context.store()?;
    let locker = context::open_for(&name, &store, given.map(opening_limit), &context.output).await?;
    let clock = context::clock(&locker);
    let waiting = WaitProgress::on(&locker, name.clone()).within(limit);
    let observer = waiting.observer();
    let free = waiting.show_during(&context.output, async {
        if looks_once {
            let status = locker.inspect(&name).await;
            return status.map(|status| matches!(status.state, State::Free | State::Lapsed(_)));
        }
        locker.wait_free(&name, &observer).await.map(|()| true)
    });
    let is_free = match limit {
        // The lock of a run around this process is not free until this process ends.
        None => tokio::select! {
            biased;
            free = free => free?,
            failure = waiting.deadlocked() => return Err(failure),
        },
        Some(limit) => {
            let mut free = pin!(free);
            let mut ended = timeout(&*clock, limit, free.as_mut()).await;
            if ended.is_none() && waiting.now().is_none() {
                ended = timeout(&*clock, Claim::FIRST_RESPONSE.saturating_sub(limit), free).await;
            }
            match ended {
                Some(free) => free?,
                None if waiting.now().is_none() => {
                    let within = human::span(limit.max(Claim::FIRST_RESPONSE));
                    let message = format!("lock `{name}`: the store did not respond within {within}");
                    return Err(Failure::new(FAILED, "unavailable", message));
                }
                None => false,
            }
        }
    };
    if !is_free {
        let message = match limit {
            None => format!("lock `{name}` is not free"),
            Some(limit) => format!("lock `{name}` did not become free within {}", human::span(limit)),
        };
        let (lock, flag) = (shell::last_argument(&name), context::store_flag(&store));
        return Err(Failure::new(TIMED_OUT, "timed_out", message)
            .with_help(format!("to see the holder: leasehold{flag} show {lock}")));
    }
    if context.output.json {
        print(&format!("{}\n", serde_json::Value::Object(json::object("free", &name))))?;
    }
    Ok(0)
}
