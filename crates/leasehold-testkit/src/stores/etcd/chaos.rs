//! The etcd clusters of the chaos scenarios.

use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::clock::{Clock, SystemClock};
use tokio::sync::Mutex;

use super::Cluster;
use crate::chaos::plan::Kind;
use crate::chaos::servers::{Servers, harmed};
use crate::tcp_proxy::{Answers, Wire};

/// A cluster, and for each worker a wire to each member.
#[derive(Debug)]
struct Wired {
    cluster: Mutex<Cluster>,
    wires: Vec<Vec<Wire>>,
}

/// Starts a cluster with this many members.
pub(super) fn start(
    members: usize,
    folder: &Path,
    workers: usize,
) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move {
        let cluster = Cluster::start_below(folder, members).await;
        let mut wires = Vec::new();
        for _ in 0..workers {
            let mut to_each = Vec::new();
            for member in 0..members {
                to_each.push(Wire::to(cluster.address(member)).await);
            }
            wires.push(to_each);
        }
        Ok(Box::new(Wired { cluster: Mutex::new(cluster), wires }) as _)
    })
}

#[async_trait]
impl Servers for Wired {
    fn url(&self, n: usize) -> String {
        let members: Vec<String> = self.wires[n].iter().map(|wire| wire.address().to_string()).collect();
        format!("etcd://{}/chaos/", members.join(","))
    }

    fn ways(&self) -> &'static [Kind] {
        Kind::TO_CONNECTIONS
    }

    fn harm(&self, n: usize, harm: Option<(Kind, Duration)>) {
        let answers = harm.map_or(Answers::Arrive, |(kind, lasts)| harmed(kind, lasts));
        self.wires[n].iter().for_each(|wire| wire.let_answers(answers));
    }

    async fn stop(&self, duration: Duration) -> io::Result<()> {
        let cluster = self.cluster.lock().await;
        let leader = cluster.leader().await;
        cluster.stop(leader);
        SystemClock.sleep(duration).await;
        cluster.resume(leader);
        Ok(())
    }

    async fn kill(&self, duration: Duration) -> io::Result<()> {
        let mut cluster = self.cluster.lock().await;
        let leader = cluster.leader().await;
        cluster.kill(leader).await;
        SystemClock.sleep(duration).await;
        cluster.restart(leader);
        cluster.leader().await;
        Ok(())
    }
}
