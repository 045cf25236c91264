//! How long it takes until another process is granted the lock of a killed holder: scenario e.

use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};

use super::{END_TIMEOUT, READY_TIMEOUT, Run, granted, now_us, start};
use crate::environment::Connection;
use crate::metrics::{RECOVERY_S, RECOVERY_TTLS};
use crate::program::MeasureError;
use crate::results::Sample;
use crate::roster::Contender;

/// Short, because the measurement waits for it. Some clients support only whole seconds.
pub(super) const TTL: Duration = Duration::from_secs(3);

/// A client that is not granted the lock within this many ttls counts as never granted.
const MAX_TTLS: u32 = 5;

pub(super) async fn measure(
    run: &Run<'_>,
    contender: &Contender,
    lock: &str,
    round: usize,
    connection: &Connection<'_>,
) -> Result<Sample, MeasureError> {
    let options = [("lock", lock.to_owned()), ("ttl-ms", TTL.as_millis().to_string())];
    let mut holder = start(contender, connection, "hold", &options)?;
    holder.expect_line("ready", READY_TIMEOUT).await?;
    let mut waiter = start(contender, connection, "hold", &options)?;
    waiter.expect_line("ready", READY_TIMEOUT).await?;
    holder.send("go").await?;
    holder.expect_line("granted", READY_TIMEOUT).await?;
    waiter.send("go").await?;
    // Renewals come at fixed times after the grant. Each round kills the holder at a different point between two
    // renewals, which is the same for all contenders.
    let part = (round as f64 + 0.5) / f64::from(run.options.rounds(run.scenario));
    SystemClock.sleep(TTL + TTL.mul_f64(part)).await;
    let killed = now_us();
    holder.kill().await?;
    let granted = match granted(&mut waiter, TTL * MAX_TTLS).await {
        Ok(when) => when,
        Err(MeasureError::Failed(why)) if why.starts_with("it printed nothing") => {
            return Err(MeasureError::Unsupported(format!(
                "no other process was granted the lock within {MAX_TTLS} ttls"
            )));
        }
        Err(error) => return Err(error),
    };
    let took = Duration::from_micros(granted.saturating_sub(killed));
    // If the lock was granted before the kill, there were two holders.
    let mut sample = Sample { violations: u64::from(granted < killed), ..Sample::default() };
    sample.record(RECOVERY_TTLS.name, Some(took.as_secs_f64() / TTL.as_secs_f64()));
    sample.record(RECOVERY_S.name, Some(took.as_secs_f64()));
    waiter.end(END_TIMEOUT).await?;
    Ok(sample)
}
