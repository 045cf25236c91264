//! The Redis server of the chaos scenarios, and a wire to it for each worker.

use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::RedisServer;
use crate::chaos::plan::Kind;
use crate::chaos::servers::Servers;
use crate::launch::Launched;
use crate::tcp_proxy::{Answers, Wire, harmed};

#[derive(Debug)]
struct Wired {
    server: Mutex<Launched>,
    wires: Vec<Wire>,
}

/// Starts a server that keeps its data when it is killed.
pub(super) fn keeping(folder: &Path, workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    start(&RedisServer::KEEPING, folder, workers)
}

/// Starts a server that loses its data when it is killed.
pub(super) fn forgetting(folder: &Path, workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    start(&RedisServer::FORGETTING, folder, workers)
}

fn start<'a>(
    kind: &'static RedisServer,
    folder: &'a Path,
    workers: usize,
) -> BoxFuture<'a, io::Result<Box<dyn Servers>>> {
    Box::pin(async move {
        let server = Launched::start(kind, folder).await?;
        let mut wires = Vec::new();
        for _ in 0..workers {
            wires.push(Wire::to(server.address()).await);
        }
        Ok(Box::new(Wired { server: Mutex::new(server), wires }) as _)
    })
}

#[async_trait]
impl Servers for Wired {
    fn url(&self, n: usize) -> String {
        format!("redis://{}", self.wires[n].address())
    }

    fn ways(&self) -> &'static [Kind] {
        Kind::TO_CONNECTIONS
    }

    fn harm(&self, n: usize, harm: Option<(Kind, Duration)>) {
        self.wires[n].let_answers(harm.map_or(Answers::Arrive, |(kind, lasts)| harmed(kind, lasts)));
    }

    async fn stop(&self, duration: Duration) -> io::Result<()> {
        self.server.lock().await.stop(duration).await
    }

    async fn kill(&self, duration: Duration) -> io::Result<()> {
        self.server.lock().await.kill(duration).await
    }
}
