//! The MariaDB servers of the chaos scenarios, and a wire to the primary for each worker.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::clock::{Clock, SystemClock};
use tokio::sync::Mutex;

use super::MariadbServer;
use crate::chaos::plan::Kind;
use crate::chaos::servers::{Servers, answers};
use crate::tcp_proxy::Wire;

/// Longer than the lease of a worker.
const LAG: Duration = Duration::from_millis(2_500);

#[derive(Debug)]
struct Wired {
    server: Mutex<MariadbServer>,
    /// The asynchronous replica that replaces the server when it is killed.
    replica: Option<Mutex<Replica>>,
    /// The store URLs of the workers, through their wires.
    urls: Vec<String>,
    wires: Vec<Wire>,
}

#[derive(Debug)]
struct Replica {
    server: MariadbServer,
    /// The folder of the scenario, in which each replica has a folder.
    folder: PathBuf,
    /// The number of this replica.
    number: usize,
}

impl Replica {
    async fn of(primary: &MariadbServer, folder: &Path, number: usize) -> io::Result<Self> {
        let own = folder.join(format!("replica-{number}"));
        std::fs::create_dir_all(&own)?;
        Ok(Self { server: primary.replica_below(&own).await?, folder: folder.to_owned(), number })
    }
}

/// Starts one server, which restarts on its data when it is killed.
pub(super) fn alone(folder: &Path, workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move { Ok(wired(MariadbServer::start_below(folder).await?, None, workers).await) })
}

/// Starts a primary with an asynchronous replica. When the primary is killed, the replica is promoted, without the
/// latest commits of the primary.
pub(super) fn with_replica(folder: &Path, workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move {
        let server = MariadbServer::start_below(folder).await?;
        let replica = Replica::of(&server, folder, 1).await?;
        Ok(wired(server, Some(replica), workers).await)
    })
}

async fn wired(server: MariadbServer, replica: Option<Replica>, workers: usize) -> Box<dyn Servers> {
    let mut wires = Vec::new();
    for _ in 0..workers {
        wires.push(Wire::to(server.address()).await);
    }
    let urls = wires.iter().map(|wire| server.url_by(&wire.address().to_string())).collect();
    Box::new(Wired { server: Mutex::new(server), replica: replica.map(Mutex::new), urls, wires })
}

#[async_trait]
impl Servers for Wired {
    fn url(&self, n: usize) -> String {
        self.urls[n].clone()
    }

    fn ways(&self) -> &'static [Kind] {
        Kind::TO_CONNECTIONS
    }

    fn harm(&self, n: usize, harm: Option<(Kind, Duration)>) {
        self.wires[n].let_answers(answers(harm));
    }

    async fn stop(&self, duration: Duration) -> io::Result<()> {
        let server = self.server.lock().await;
        server.stop();
        SystemClock.sleep(duration).await;
        server.resume();
        Ok(())
    }

    async fn kill(&self, duration: Duration) -> io::Result<()> {
        let mut server = self.server.lock().await;
        let Some(replica) = &self.replica else {
            server.kill().await?;
            SystemClock.sleep(duration).await;
            return server.restart().await;
        };
        let mut replica = replica.lock().await;
        replica.server.stop_copying().await;
        // The replica misses everything that is granted or renewed during this pause. By its end, all leases that the
        // replica knows have lapsed.
        SystemClock.sleep(LAG + duration).await;
        server.kill().await?;
        replica.server.promote().await;
        // Half of the workers connect to the new primary later. Until then, a holder among them cannot notice its
        // loss by a renewal.
        let lead = |from: usize| {
            self.wires.iter().skip(from).step_by(2).for_each(|wire| wire.lead_to(replica.server.address()))
        };
        lead(0);
        let following = Replica::of(&replica.server, &replica.folder, replica.number + 1).await?;
        lead(1);
        *server = std::mem::replace(&mut *replica, following).server;
        Ok(())
    }
}
