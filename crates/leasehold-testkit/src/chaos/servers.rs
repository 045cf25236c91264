//! The servers of a scenario, which can be killed and restarted on the same data and port, and the proxies between
//! them and the workers, which inject faults into requests and responses.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::plan::Kind;
use crate::launch::{Launch, Launched};
use crate::proxy::{Harm, Proxy};
use crate::servers::through;
use crate::tcp_proxy::{Answers, Wire};

/// Starts the servers of a scenario, with their data below a folder, and a proxy for each of the given number of
/// workers.
pub type Start = for<'a> fn(&'a Path, usize) -> BoxFuture<'a, io::Result<Box<dyn Servers>>>;

/// Servers, with a proxy for each worker.
#[async_trait]
pub trait Servers: fmt::Debug + Send + Sync {
    /// Returns the store URL through the proxy of worker `n`.
    fn url(&self, n: usize) -> String;

    /// Returns the faults that the proxies can inject.
    fn ways(&self) -> &'static [Kind] {
        &[]
    }

    /// Sets the fault that the proxy of worker `n` injects from now on; `None` stops it.
    fn harm(&self, _n: usize, _harm: Option<(Kind, Duration)>) {}

    /// Stops the server, or the cluster's leader, for `duration`. Concurrent calls run one after another.
    async fn stop(&self, _duration: Duration) -> io::Result<()> {
        Ok(())
    }

    /// Kills the server, or the cluster's leader, with `kill -9`, and starts it again after `duration`. Concurrent
    /// calls run one after another.
    async fn kill(&self, _duration: Duration) -> io::Result<()> {
        Ok(())
    }
}

/// One or more HTTP servers of one store, and a proxy for each worker.
#[derive(Debug)]
pub struct Http {
    servers: tokio::sync::Mutex<InTurn>,
    /// The store URL, without a proxy.
    url: String,
    proxies: Vec<Proxy>,
}

/// Servers that are stopped and killed in turn.
#[derive(Debug)]
struct InTurn {
    servers: Vec<Launched>,
    next: usize,
}

impl InTurn {
    fn take(&mut self) -> &mut Launched {
        let turn = self.next % self.servers.len();
        self.next += 1;
        &mut self.servers[turn]
    }
}

impl Http {
    /// Starts the server, with its data below `folder`, and the proxies.
    pub fn start<'a>(
        launch: &'static dyn Launch,
        folder: &'a Path,
        workers: usize,
    ) -> BoxFuture<'a, io::Result<Box<dyn Servers>>> {
        Self::start_replicas(launch, 1, folder, workers)
    }

    /// Starts `replicas` servers with the same data below `folder`. Each proxy forwards the requests of its worker to
    /// these servers in turn. Server faults hit one server at a time, in turn.
    pub fn start_replicas<'a>(
        launch: &'static dyn Launch,
        replicas: usize,
        folder: &'a Path,
        workers: usize,
    ) -> BoxFuture<'a, io::Result<Box<dyn Servers>>> {
        Box::pin(async move {
            let mut servers = vec![Launched::start(launch, folder).await?];
            while servers.len() < replicas {
                servers.push(Launched::start(launch, folder).await?);
            }
            let addresses: Vec<_> = servers.iter().map(|server| server.address().to_owned()).collect();
            let mut proxies = Vec::new();
            for _ in 0..workers {
                proxies.push(Proxy::before(addresses.clone()).await);
            }
            let url = servers[0].url().to_owned();
            let servers = tokio::sync::Mutex::new(InTurn { servers, next: 0 });
            Ok(Box::new(Self { servers, url, proxies }) as _)
        })
    }
}

#[async_trait]
impl Servers for Http {
    fn url(&self, n: usize) -> String {
        through(&self.url, self.proxies[n].address())
    }

    fn ways(&self) -> &'static [Kind] {
        Kind::TO_REQUESTS
    }

    fn harm(&self, n: usize, harm: Option<(Kind, Duration)>) {
        self.proxies[n].every(harm.map_or(Harm::None, |(kind, lasts)| harm_of(kind, lasts)));
    }

    async fn stop(&self, duration: Duration) -> io::Result<()> {
        self.servers.lock().await.take().stop(duration).await
    }

    async fn kill(&self, duration: Duration) -> io::Result<()> {
        self.servers.lock().await.take().kill(duration).await
    }
}

/// A server that does not speak HTTP, and a wire for each worker.
#[derive(Debug)]
pub(crate) struct Wired {
    server: tokio::sync::Mutex<Launched>,
    /// The store URL, without a wire.
    url: String,
    wires: Vec<Wire>,
}

impl Wired {
    /// Starts the server, with its data below `folder`, and the wires.
    pub(crate) fn start<'a>(
        launch: &'static dyn Launch,
        folder: &'a Path,
        workers: usize,
    ) -> BoxFuture<'a, io::Result<Box<dyn Servers>>> {
        Box::pin(async move {
            let server = Launched::start(launch, folder).await?;
            let mut wires = Vec::new();
            for _ in 0..workers {
                wires.push(Wire::to(server.address()).await);
            }
            let url = server.url().to_owned();
            Ok(Box::new(Self { server: tokio::sync::Mutex::new(server), url, wires }) as _)
        })
    }
}

#[async_trait]
impl Servers for Wired {
    fn url(&self, n: usize) -> String {
        through(&self.url, self.wires[n].address())
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

/// Returns what a proxy does to responses during a fault of `kind`. A delay is as long as the fault.
pub(crate) fn harmed(kind: Kind, duration: Duration) -> Answers {
    match kind {
        Kind::DelayAnswers => Answers::ArriveAfter(duration),
        Kind::CutHolder => Answers::Cut,
        _ => Answers::AreLost,
    }
}

/// Returns what the proxy does to each request. A delay is as long as the fault, so some requests arrive after the
/// lease has ended.
fn harm_of(kind: Kind, duration: Duration) -> Harm {
    match kind {
        Kind::LoseAnswers => Harm::AnswerLost,
        Kind::DelayRequests => Harm::Delayed(duration),
        Kind::DelayAnswers => Harm::AnswerDelayed(duration),
        Kind::DoubleRequests => Harm::Twice,
        Kind::GiveSecondAnswer => Harm::TwiceSecondAnswer,
        Kind::Unavailable => Harm::Status(503),
        _ => Harm::Cut,
    }
}
