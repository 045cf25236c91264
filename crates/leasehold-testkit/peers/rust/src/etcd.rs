//! The common part of the contenders that use etcd-client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::interval;

/// A lease that is kept alive three times per ttl. etcd-client leaves this to the program.
pub struct Lease {
    pub id: i64,
    pub lost: Arc<AtomicBool>,
    _beats: JoinSet<()>,
}

impl Lease {
    pub async fn grant(mut client: etcd_client::Client, ttl: u32) -> Result<Self> {
        let id = client.lease_grant(i64::from(ttl), None).await?.id();
        let lost = Arc::new(AtomicBool::new(false));
        let mut beats = JoinSet::new();
        beats.spawn({
            let lost = lost.clone();
            async move {
                let _ = keep_alive(client, id, Duration::from_secs(ttl.into()) / 3).await;
                lost.store(true, Ordering::Relaxed);
            }
        });
        Ok(Self { id, lost, _beats: beats })
    }
}

/// Keeps the lease alive. Completes when the lease is gone.
async fn keep_alive(mut client: etcd_client::Client, id: i64, period: Duration) -> Result<()> {
    let (mut keeper, mut answers) = client.lease_keep_alive(id).await?;
    let mut beats = interval(period);
    // The first tick completes immediately.
    beats.tick().await;
    loop {
        beats.tick().await;
        keeper.keep_alive().await?;
        if answers.message().await?.context("the stream has ended")?.ttl() <= 0 {
            return Ok(());
        }
    }
}
