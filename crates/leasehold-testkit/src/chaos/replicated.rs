//! The servers of a database with asynchronous replication, and a wire to the primary for each worker.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::clock::{Clock, SystemClock};
use tokio::sync::Mutex;

use super::plan::Kind;
use super::servers::{Servers, answers};
use crate::launch::Measured;
use crate::tcp_proxy::Wire;

/// Longer than the lease of a worker.
const LAG: Duration = Duration::from_millis(2_500);

/// A server of the database.
#[async_trait]
pub trait Server: Measured + fmt::Debug + Sized + 'static {
    /// Starts a primary with its data in `folder`.
    async fn primary(folder: &Path) -> io::Result<Self>;

    /// Starts an asynchronous replica of this server with its data in `folder`, and waits until it has copied everything.
    async fn replica(&self, folder: &Path) -> io::Result<Self>;

    /// Stops the processes of the server, which keep their connections.
    fn stop(&self);

    /// Continues the processes.
    fn resume(&self);

    /// Kills the server with `kill -9`.
    async fn kill(&mut self) -> io::Result<()>;

    /// Starts the server on its data after it was killed.
    async fn restart(&mut self) -> io::Result<()>;

    /// Makes this replica copy nothing more.
    async fn stop_copying(&self) -> io::Result<()>;

    /// Makes this replica a primary.
    async fn promote(&self) -> io::Result<()>;
}

#[derive(Debug)]
struct Wired<S> {
    server: Mutex<S>,
    /// The asynchronous replica that replaces the server when it is killed.
    replica: Option<Mutex<Replica<S>>>,
    /// The store URLs of the workers, through their wires.
    urls: Vec<String>,
    wires: Vec<Wire>,
}

#[derive(Debug)]
struct Replica<S> {
    server: S,
    /// The folder of the scenario, in which each replica has a folder.
    folder: PathBuf,
    /// The number of this replica.
    number: usize,
}

impl<S: Server> Replica<S> {
    async fn of(primary: &S, folder: &Path, number: usize) -> io::Result<Self> {
        let server = primary.replica(&folder.join(format!("replica-{number}"))).await?;
        Ok(Self { server, folder: folder.to_owned(), number })
    }
}

/// Starts one server, which restarts on its data when it is killed.
pub fn alone<S: Server>(folder: &Path, workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move { Ok(wired(S::primary(folder).await?, None, workers).await) })
}

/// Starts a primary with an asynchronous replica. When the primary is killed, the replica is promoted, without the
/// latest commits of the primary.
pub fn with_replica<S: Server>(folder: &Path, workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move {
        let server = S::primary(folder).await?;
        let replica = Replica::of(&server, folder, 1).await?;
        Ok(wired(server, Some(replica), workers).await)
    })
}

async fn wired<S: Server>(server: S, replica: Option<Replica<S>>, workers: usize) -> Box<dyn Servers> {
    let mut wires = Vec::new();
    for _ in 0..workers {
        wires.push(Wire::to(server.address()).await);
    }
    let urls = wires.iter().map(|wire| server.url(&wire.address().to_string())).collect();
    Box::new(Wired { server: Mutex::new(server), replica: replica.map(Mutex::new), urls, wires })
}

#[async_trait]
impl<S: Server> Servers for Wired<S> {
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
        replica.server.stop_copying().await?;
        // The replica misses everything that is granted or renewed during this pause. By its end, all leases that the
        // replica knows have lapsed.
        SystemClock.sleep(LAG + duration).await;
        server.kill().await?;
        replica.server.promote().await?;
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
