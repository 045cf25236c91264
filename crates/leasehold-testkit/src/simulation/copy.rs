//! A copy of a process that holds the lock. It has the state of the process, and renews by the same rules.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Register as _;
use leasehold::register::{Precondition, Write};
use serde_json::Value;

use super::LOCK;
use super::checker::process_of;
use super::plan::Store;
use super::world::World;

/// Copies the process with this seed, if it holds the lock. The copy lives until it loses the lock or has renewed a
/// few times.
pub(super) fn run(world: &Arc<World>, process: u64, seed: u64) {
    tokio::spawn(live(world.clone(), process, fastrand::Rng::with_seed(seed)));
}

async fn live(world: Arc<World>, process: u64, mut random: fastrand::Rng) {
    let register = &world.register.inner;
    let key = match world.plan.store {
        Store::Objects => LOCK.to_owned(),
        _ => format!("{LOCK}.lock"),
    };
    let Ok(Some(cell)) = register.read(&key).await else { return };
    let Ok(mut record) = serde_json::from_slice::<Value>(&cell.value) else { return };
    let note = record["holder"]["note"].as_str().unwrap_or_default();
    let is_its = process_of(note) == Some(process);
    if !is_its || record["state"] != "held" {
        return;
    }
    let mut version = cell.version;
    // The grant that created an object has the object's generation as its token.
    if record["token"].as_u64().unwrap_or(0) == 0 {
        record["token"] = version.as_str().parse::<u64>().unwrap_or(0).into();
    }
    for _ in 0..random.u32(1..5) {
        world.clock_sleep(world.plan.ttl.mul_f64(0.3 * random.f64())).await;
        if world.now() > world.plan.length.saturating_sub(Duration::from_secs(1)) {
            return;
        }
        record["heartbeat"] = (record["heartbeat"].as_u64().unwrap_or(0) + 1).into();
        record["nonce"] = format!("{:032x}", random.u128(..)).into();
        world.checker.sent_by_copy(record["nonce"].as_str().unwrap_or_default(), world.now());
        record["unconfirmed"] = false.into();
        if let Some(time) = register.store_time() {
            record["renewed_at_us"] = time.hi_us.into();
        }
        let body = record.to_string();
        match register.write(&key, Precondition::Version(&version), body.into()).await {
            Ok(Write::Committed(renewed)) => version = renewed,
            // The other process renewed first, so this one has lost the lock.
            _ => return,
        }
        world.checker.copy_renewed(LOCK, record["token"].as_u64().unwrap_or(0), &record["grant"]);
    }
}
