//! How long it takes until another process is granted the lock of a killed holder: scenario e.

use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};

use super::{END, READY, Run, now_us, start};
use crate::environment::Way;
use crate::metrics::{RECOVERY_S, RECOVERY_TTLS};
use crate::program::Trouble;
use crate::results::Sample;
use crate::roster::Contender;

/// Short, because the measurement waits for it. Some clients support only whole seconds.
pub(super) const TTL: Duration = Duration::from_secs(3);

/// A client that is not granted the lock within this many ttls counts as never granted.
const NEVER: u32 = 5;

pub(super) async fn measure(
    run: &Run<'_>,
    contender: &Contender,
    lock: &str,
    round: usize,
    way: &Way<'_>,
) -> Result<Sample, Trouble> {
    let options = [("lock", lock.to_owned()), ("ttl-ms", TTL.as_millis().to_string())];
    let mut holder = start(contender, way, "hold", &options)?;
    holder.says("ready", READY).await?;
    let mut waiter = start(contender, way, "hold", &options)?;
    waiter.says("ready", READY).await?;
    holder.tell("go").await?;
    holder.says("granted", READY).await?;
    waiter.tell("go").await?;
    // Renewals come at fixed times after the grant. Each round kills the holder at a different point between two
    // renewals, which is the same for all contenders.
    let part = (round as f64 + 0.5) / f64::from(run.options.rounds(run.scenario));
    SystemClock.sleep(TTL + TTL.mul_f64(part)).await;
    let killed = now_us();
    holder.kill().await?;
    let granted = waiter.says("granted", TTL * NEVER).await;
    let granted: u64 = match granted {
        Ok(when) => when.parse().map_err(|_| Trouble::Failed(format!("{when:?} is not a time")))?,
        Err(Trouble::Failed(why)) if why.starts_with("it said nothing") => {
            return Err(Trouble::Cannot(format!("no other process is granted the lock within {NEVER} ttls")));
        }
        Err(trouble) => return Err(trouble),
    };
    let took = Duration::from_micros(granted.saturating_sub(killed));
    // If the lock was granted before the kill, there were two holders.
    let mut sample = Sample { violations: u64::from(granted < killed), ..Sample::default() };
    sample.note(RECOVERY_TTLS.name, Some(took.as_secs_f64() / TTL.as_secs_f64()));
    sample.note(RECOVERY_S.name, Some(took.as_secs_f64()));
    waiter.end(END).await?;
    Ok(sample)
}
