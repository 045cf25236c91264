//! `leasehold wait LOCK`: waits until the lock is free, without acquiring it.

use std::time::Duration;

use leasehold::clock::timeout;

use crate::args::{WaitArgs, duration};
use crate::context::{self, Context};
use crate::exit::{FAILED, Failure, TIMED_OUT};
use crate::output::{human, json, print};
use crate::wait_progress::WaitProgress;

pub(super) async fn wait(context: &Context, args: WaitArgs) -> Result<u8, Failure> {
    let name = context::lock_name(&args.lock.lock)?;
    let limit = context.settings.pick(args.wait, "wait", duration)?;
    let locker = context::open(&context.store()?).await?;
    let clock = context::clock(&locker);
    let waiting = WaitProgress::new(name.clone(), clock.clone()).within(limit.unwrap_or(Duration::MAX));
    let observer = waiting.observer();
    let free = waiting.show_during(&context.output, locker.wait_free(&name, &observer));
    match limit {
        None => free.await?,
        Some(limit) => timeout(&*clock, limit, free).await.ok_or_else(|| {
            if waiting.now().is_none() {
                let message =
                    format!("lock `{name}`: the store did not respond within {}", human::span(limit));
                return Failure::new(FAILED, "unavailable", message);
            }
            let message = format!("lock `{name}` did not become free within {}", human::span(limit));
            Failure::new(TIMED_OUT, "timed_out", message)
                .with_help(format!("to see the holder: leasehold show {}", human::quoted(name.as_str())))
        })??,
    }
    if context.output.json {
        print(&format!("{}\n", serde_json::Value::Object(json::object("free", &name))))?;
    }
    Ok(0)
}
