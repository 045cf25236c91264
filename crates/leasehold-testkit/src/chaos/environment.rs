//! The servers of a scenario, and the faults on each worker's connection to them.

use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};

use super::plan::Kind;
use super::scenario::Scenario;
use super::servers::Servers;
use crate::servers::with_option;

/// The servers of a scenario, and the faults on the workers' connections to them.
#[derive(Debug)]
pub struct Environment {
    servers: Box<dyn Servers>,
    faults: Vec<Kind>,
    options: &'static str,
    /// The faults on each worker's connection.
    harms: Vec<Harms>,
}

/// The faults on one worker's connection. The newest fault applies. When it ends, the newest of the remaining ones
/// applies.
#[derive(Debug, Default)]
struct Harms(Mutex<Vec<(u64, Kind, Duration)>>);

impl Harms {
    fn begin(&self, kind: Kind, duration: Duration) -> u64 {
        let mut all = self.all();
        let number = all.last().map_or(0, |(number, ..)| number + 1);
        all.push((number, kind, duration));
        number
    }

    fn end(&self, number: u64) {
        self.all().retain(|(other, ..)| *other != number);
    }

    fn newest(&self) -> Option<(Kind, Duration)> {
        self.all().last().map(|(_, kind, duration)| (*kind, *duration))
    }

    fn all(&self) -> MutexGuard<'_, Vec<(u64, Kind, Duration)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Environment {
    /// Starts the servers that `scenario` needs, for `workers` workers, with their data below `folder`.
    ///
    /// # Errors
    /// When a server does not start.
    pub async fn start(scenario: &Scenario, workers: usize, folder: &Path) -> io::Result<Self> {
        let servers = (scenario.start)(folder, workers).await?;
        let faults = [servers.ways(), scenario.server_faults].concat();
        let harms = (0..workers).map(|_| Harms::default()).collect();
        Ok(Self { servers, faults, options: scenario.options, harms })
    }

    /// Returns the store URL for worker `n`.
    pub fn url(&self, n: usize) -> String {
        let url = self.servers.url(n);
        if self.options.is_empty() { url } else { with_option(&url, self.options) }
    }

    /// Returns the faults that can be applied to the servers and to the connections to them.
    pub fn faults(&self) -> &[Kind] {
        &self.faults
    }

    /// Applies a fault to the connection of worker `n` for `duration`.
    pub async fn harm(&self, n: usize, kind: Kind, duration: Duration) {
        let harms = &self.harms[n];
        let number = harms.begin(kind, duration);
        self.servers.harm(n, harms.newest());
        SystemClock.sleep(duration).await;
        harms.end(number);
        self.servers.harm(n, harms.newest());
    }

    /// Stops the server, or the cluster's leader, for `duration`. Concurrent calls run one after another.
    ///
    /// # Errors
    /// When the server has no process.
    pub async fn stop(&self, duration: Duration) -> io::Result<()> {
        self.servers.stop(duration).await
    }

    /// Kills the server, or the cluster's leader, with `kill -9`, and starts it again after `duration`. Concurrent
    /// calls run one after another.
    ///
    /// # Errors
    /// When the server does not start again.
    pub async fn kill(&self, duration: Duration) -> io::Result<()> {
        self.servers.kill(duration).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_one_network_fault_ends_no_other() {
        let (harms, lasts) = (Harms::default(), Duration::from_secs(1));
        let newest = || harms.newest().map(|(kind, _)| kind);
        let cut = harms.begin(Kind::CutHolder, lasts);
        let lost = harms.begin(Kind::LoseAnswers, lasts);
        harms.end(cut);
        assert_eq!(newest(), Some(Kind::LoseAnswers), "an older one ended");
        let unavailable = harms.begin(Kind::Unavailable, lasts);
        assert_eq!(newest(), Some(Kind::Unavailable));
        harms.end(unavailable);
        assert_eq!(newest(), Some(Kind::LoseAnswers), "an older one goes on");
        harms.end(lost);
        assert_eq!(newest(), None);
    }
}
