//! A Redis Cluster for chaos.

use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::Cluster;
use crate::chaos::servers::Servers;
use crate::stores::redis::RedisServer;

/// The lock of the workers, whose primary is stopped and killed.
const LOCK: &str = "chaos";

/// Longer than the cluster usually takes to promote a replica.
const FAILOVER: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Watched {
    cluster: Mutex<Cluster>,
    url: String,
}

/// Starts a cluster.
pub(crate) fn start(folder: &Path, _workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move {
        let cluster = Cluster::start(&RedisServer::MEMBER, folder).await?;
        let url = cluster.url();
        Ok(Box::new(Watched { cluster: Mutex::new(cluster), url }) as _)
    })
}

#[async_trait]
impl Servers for Watched {
    fn url(&self, _n: usize) -> String {
        self.url.clone()
    }

    async fn stop(&self, duration: Duration) -> io::Result<()> {
        let cluster = self.cluster.lock().await;
        let (primary, _) = cluster.pair_of(LOCK).await;
        cluster.stop(primary, duration).await
    }

    /// Kills the primary. It restarts after its replica had time to take its place, and becomes a replica.
    async fn kill(&self, duration: Duration) -> io::Result<()> {
        let mut cluster = self.cluster.lock().await;
        let (primary, _) = cluster.pair_of(LOCK).await;
        cluster.kill(primary, duration + FAILOVER).await
    }
}
