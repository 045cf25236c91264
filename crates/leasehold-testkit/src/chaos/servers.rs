//! The servers of a scenario, which can be killed and restarted on the same data and port, and the proxies between
//! them and the workers, which inject faults into requests and answers.

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

/// Starts the servers of a scenario, with their data below a folder, and a proxy for each of the given number of
/// workers.
pub type Start = for<'a> fn(&'a Path, usize) -> BoxFuture<'a, io::Result<Box<dyn Servers>>>;

/// Servers, with a proxy for each worker.
#[async_trait]
pub trait Servers: fmt::Debug + Send + Sync {
    /// The store URL through the proxy of worker `n`.
    fn url(&self, n: usize) -> String;

    /// The faults that the proxies can inject.
    fn ways(&self) -> &'static [Kind] {
        &[]
    }

    /// Sets the fault that the proxy of worker `n` injects from now on; `None` stops it.
    fn harm(&self, _n: usize, _harm: Option<(Kind, Duration)>) {}

    /// Stops the server, or the cluster's leader, for `duration`. Only one call at a time.
    async fn stop(&self, _duration: Duration) -> io::Result<()> {
        Ok(())
    }

    /// Kills the server, or the cluster's leader, with `kill -9`, and starts it again after `duration`. Only one call
    /// at a time.
    async fn kill(&self, _duration: Duration) -> io::Result<()> {
        Ok(())
    }
}

/// A server that speaks HTTP, and a proxy for each worker.
#[derive(Debug)]
pub struct Http {
    server: tokio::sync::Mutex<Launched>,
    /// The store URL, without a proxy.
    url: String,
    proxies: Vec<Proxy>,
}

impl Http {
    /// Starts the server, with its data below `folder`, and the proxies.
    pub fn start<'a>(
        launch: &'static dyn Launch,
        folder: &'a Path,
        workers: usize,
    ) -> BoxFuture<'a, io::Result<Box<dyn Servers>>> {
        Box::pin(async move {
            let server = Launched::start(launch, folder).await?;
            let mut proxies = Vec::new();
            for _ in 0..workers {
                proxies.push(Proxy::start(server.address()).await);
            }
            let url = server.url().to_owned();
            Ok(Box::new(Self { server: tokio::sync::Mutex::new(server), url, proxies }) as _)
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
        self.server.lock().await.stop(duration).await
    }

    async fn kill(&self, duration: Duration) -> io::Result<()> {
        self.server.lock().await.kill(duration).await
    }
}

/// What the proxy does to each request. A delay lasts as long as the fault, so some requests arrive after the lease.
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
