//! How long the first grant of a new lock takes: scenario j.

use super::{END_TIMEOUT, READY_TIMEOUT, granted, now_us, start};
use crate::environment::Connection;
use crate::metrics::{FIRST_MS, REQUESTS};
use crate::program::MeasureError;
use crate::results::Sample;
use crate::roster::Contender;
use crate::scenario::USUAL_TTL;

pub(super) async fn measure(
    contender: &Contender,
    lock: &str,
    connection: &mut Connection<'_>,
) -> Result<Sample, MeasureError> {
    let options = [("lock", lock.to_owned()), ("ttl-ms", USUAL_TTL.as_millis().to_string())];
    let mut program = start(contender, connection, "hold", &options)?;
    program.expect_line("ready", READY_TIMEOUT).await?;
    connection.begin_counting().await;
    let asked = now_us();
    program.send("go").await?;
    let granted = granted(&mut program, READY_TIMEOUT).await?;
    let mut sample = Sample::default();
    if let Some(requests) = connection.requests().await {
        sample.record(REQUESTS.name, Some(requests.values().sum::<u64>() as f64));
        sample.requests = requests;
    }
    sample.record(FIRST_MS.name, Some(granted.saturating_sub(asked) as f64 / 1e3));
    program.end(END_TIMEOUT).await?;
    Ok(sample)
}
