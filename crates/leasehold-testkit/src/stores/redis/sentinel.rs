//! Three Redis servers. Sentinels promote one of them when the primary fails.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::{RedisServer, answers, redis_cli, replicate};
use crate::chaos::servers::Servers;
use crate::launch::{Launched, free_port, program};

const SERVERS: usize = 3;
const SENTINELS: usize = 3;

#[derive(Debug)]
struct Watched {
    servers: Mutex<Vec<Launched>>,
    /// The addresses of the Sentinels.
    addresses: Vec<String>,
    _sentinels: Vec<Child>,
}

/// Starts a primary, its replicas, and the Sentinels.
pub(super) fn start(folder: &Path, _workers: usize) -> BoxFuture<'_, io::Result<Box<dyn Servers>>> {
    Box::pin(async move {
        let mut servers = Vec::new();
        for n in 0..SERVERS {
            let own = folder.join(format!("server-{n}"));
            std::fs::create_dir_all(&own)?;
            let server = Launched::start(&RedisServer::EVERY_SECOND, &own).await?;
            // A replaced primary stops accepting writes once it has no replica.
            redis_cli(server.url(), &["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
            servers.push(server);
        }
        let (host, port) = servers[0].address().rsplit_once(':').unwrap_or_default();
        for replica in &servers[1..] {
            replicate(replica.url(), Some(servers[0].address())).await;
        }
        answers(servers[0].url(), &["INFO", "replication"], |output| {
            output.matches("state=online").count() == 2
        })
        .await;
        let (mut sentinels, mut addresses) = (Vec::new(), Vec::new());
        for n in 0..SENTINELS {
            let own = folder.join(format!("sentinel-{n}"));
            std::fs::create_dir_all(&own)?;
            let free = free_port()?;
            let file = own.join("sentinel.conf");
            let settings = format!(
                "bind 127.0.0.1\nport {}\ndir {}\nsentinel monitor chaos {host} {port} 2\n\
                 sentinel down-after-milliseconds chaos 500\nsentinel failover-timeout chaos 2000\n",
                free,
                own.display()
            );
            std::fs::write(&file, settings)?;
            let log = std::fs::File::create(own.join("sentinel.log"))?;
            let mut command = Command::new(program("LEASEHOLD_TEST_REDIS_SENTINEL"));
            sentinels.push(command.arg(&file).stdin(Stdio::null()).stdout(log).kill_on_drop(true).spawn()?);
            addresses.push(format!("127.0.0.1:{free}"));
        }
        for sentinel in &addresses {
            let all = format!("{}", SENTINELS - 1);
            let knows = move |output: &str, what: &str| {
                let mut lines = output.lines().skip_while(|line| *line != what);
                lines.nth(1).is_some_and(|number| number == all)
            };
            answers(&format!("redis://{sentinel}"), &["SENTINEL", "master", "chaos"], move |output| {
                knows(output, "num-other-sentinels") && knows(output, "num-slaves")
            })
            .await;
        }
        Ok(Box::new(Watched { servers: Mutex::new(servers), addresses, _sentinels: sentinels }) as _)
    })
}

impl Watched {
    /// Returns the address of the primary, according to a Sentinel.
    async fn primary(&self) -> String {
        let url = format!("redis://{}", self.addresses[0]);
        redis_cli(&url, &["SENTINEL", "get-master-addr-by-name", "chaos"]).await.replace('\n', ":")
    }
}

#[async_trait]
impl Servers for Watched {
    fn url(&self, _n: usize) -> String {
        format!("redis://{}/0?master=chaos", self.addresses.join(","))
    }

    async fn stop(&self, duration: Duration) -> io::Result<()> {
        let servers = self.servers.lock().await;
        let primary = self.primary().await;
        match servers.iter().find(|server| server.address() == primary) {
            Some(server) => server.stop(duration).await,
            None => Ok(()),
        }
    }

    /// Kills the primary. It restarts after the Sentinels have had time to replace it, and becomes a replica.
    async fn kill(&self, duration: Duration) -> io::Result<()> {
        let mut servers = self.servers.lock().await;
        let primary = self.primary().await;
        let Some(server) = servers.iter_mut().find(|server| server.address() == primary) else {
            return Ok(());
        };
        server.kill(duration + FAILOVER).await?;
        redis_cli(server.url(), &["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
        Ok(())
    }
}

/// Longer than the Sentinels usually take to promote another server.
const FAILOVER: Duration = Duration::from_secs(2);
