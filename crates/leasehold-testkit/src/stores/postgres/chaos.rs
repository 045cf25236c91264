//! The PostgreSQL servers of the chaos scenarios, and a wire to the primary for each worker.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::clock::{Clock, SystemClock};
use tokio::sync::Mutex;

use super::PostgresServer;
use crate::chaos::plan::Kind;
use crate::chaos::servers::{Servers, harmed};
use crate::tcp_proxy::{Answers, Wire};

/// Longer than the lease of a worker.
const LAG: Duration = Duration::from_millis(2_500);

#[derive(Debug)]
struct Wired {
    server: Mutex<PostgresServer>,
    /// The asynchronous standby that replaces the server when it is killed.
    standby: Option<Mutex<Standby>>,
    /// The store URLs of the workers, through their wires.
    urls: Vec<String>,
    wires: Vec<Wire>,
}

#[derive(Debug)]
struct Standby {
    server: PostgresServer,
    /// The folder of the scenario, in which each standby has a folder.
    folder: PathBuf,
    /// The number of this standby.
    number: usize,
}

impl Standby {
    async fn of(primary: &PostgresServer, folder: &Path, number: usize) -> io::Result<Self> {
        let server = primary.standby_below(&folder.join(format!("standby-{number}"))).await?;
        Ok(Self { server, folder: folder.to_owned(), number })
    }
}

/// Starts one server, which restarts on its data when it is killed.
pub(super) fn alone(folder: &Path, workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move {
        let server = PostgresServer::start_below(folder).await?;
        Ok(wired(server, None, workers).await)
    })
}

/// Starts a primary with an asynchronous standby. When the primary is killed, the standby is promoted, without the
/// latest commits of the primary.
pub(super) fn with_standby(folder: &Path, workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move {
        let server = PostgresServer::start_below(folder).await?;
        let standby = Standby::of(&server, folder, 1).await?;
        Ok(wired(server, Some(standby), workers).await)
    })
}

async fn wired(server: PostgresServer, standby: Option<Standby>, workers: usize) -> Box<dyn Servers> {
    let mut wires = Vec::new();
    for _ in 0..workers {
        wires.push(Wire::to(server.address()).await);
    }
    let urls = wires.iter().map(|wire| server.url_by(&wire.address().to_string())).collect();
    Box::new(Wired { server: Mutex::new(server), standby: standby.map(Mutex::new), urls, wires })
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
        self.wires[n].let_answers(harm.map_or(Answers::Arrive, |(kind, lasts)| harmed(kind, lasts)));
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
        let Some(standby) = &self.standby else {
            server.kill().await?;
            SystemClock.sleep(duration).await;
            return server.restart().await;
        };
        let mut standby = standby.lock().await;
        standby.server.stop_copying().await?;
        // The standby misses everything that is granted or renewed during this pause. By its end, all leases that the
        // standby knows have lapsed.
        SystemClock.sleep(LAG + duration).await;
        server.kill().await?;
        standby.server.promote().await?;
        // Half of the workers connect to the new primary later. Until then, a holder among them cannot notice its
        // loss by a renewal.
        let lead = |from: usize| {
            self.wires.iter().skip(from).step_by(2).for_each(|wire| wire.lead_to(standby.server.address()))
        };
        lead(0);
        let following = Standby::of(&standby.server, &standby.folder, standby.number + 1).await?;
        lead(1);
        *server = std::mem::replace(&mut *standby, following).server;
        Ok(())
    }
}
