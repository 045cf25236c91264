//! A server that chaos is made on, and a wire to it for each worker.

use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::clock::{Clock, SystemClock};
use tokio::sync::Mutex;

use super::PostgresServer;
use crate::chaos::plan::Kind;
use crate::chaos::servers::Servers;
use crate::wire::{Answers, Wire, harmed};

#[derive(Debug)]
struct Wired {
    server: Mutex<PostgresServer>,
    /// The store URLs of the workers, by their wires.
    urls: Vec<String>,
    wires: Vec<Wire>,
}

pub(super) fn start(folder: &Path, workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move {
        let server = PostgresServer::start_below(folder).await?;
        let mut wires = Vec::new();
        for _ in 0..workers {
            wires.push(Wire::to(server.address()).await);
        }
        let urls = wires.iter().map(|wire| server.url_by(&wire.address().to_string())).collect();
        Ok(Box::new(Wired { server: Mutex::new(server), urls, wires }) as _)
    })
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
        server.go_on();
        Ok(())
    }

    async fn kill(&self, duration: Duration) -> io::Result<()> {
        let mut server = self.server.lock().await;
        server.kill().await?;
        SystemClock.sleep(duration).await;
        server.restart().await
    }
}
