//! A MariaDB server that a test starts, stops and kills.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Locker;
use leasehold::clock::{Clock, SystemClock};
use rustix::process::Signal;
use tokio::process::Child;

use super::query;
use crate::launch::unprivileged::{folder_below, run, unprivileged};
use crate::launch::{Measured, Protocol, free_port};
use crate::process;
use crate::servers::set_by_test;

/// How long a server may take to start.
const START: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(100);

/// What the server runs at each start. A replica does not copy it.
const INIT: &str = "SET SESSION sql_log_bin = 0, autocommit = 1;
SET SESSION TRANSACTION READ WRITE;
CREATE DATABASE IF NOT EXISTS locks;
CREATE USER IF NOT EXISTS leasehold@'%';
GRANT ALL ON *.* TO leasehold@'%' WITH GRANT OPTION;
";

/// A server with an empty table of locks, which is killed on drop.
#[derive(Debug)]
pub struct MariadbServer {
    folder: PathBuf,
    address: String,
    settings: Vec<String>,
    process: Option<Child>,
}

impl MariadbServer {
    /// Starts a server with its data below `folder`.
    ///
    /// # Errors
    /// When the server does not start.
    ///
    /// # Panics
    /// When `./test` has not set where MariaDB's server is.
    pub async fn start_below(folder: &Path) -> io::Result<Self> {
        Self::start_with(folder, &[]).await
    }

    /// Starts a server with additional settings, such as `autocommit=0`.
    ///
    /// # Errors
    /// When the server does not start.
    pub async fn start_with(folder: &Path, settings: &[&str]) -> io::Result<Self> {
        let mut server = Self::prepared(folder, settings).await?;
        server.restart().await?;
        Ok(server)
    }

    /// Starts an asynchronous replica of this server, with its data below `folder`.
    ///
    /// # Errors
    /// When the replica does not start.
    pub async fn replica_below(&self, folder: &Path) -> io::Result<Self> {
        let (host, port) = self.address.rsplit_once(':').unwrap_or((&self.address, ""));
        let id = format!("server-id={port}");
        let mut replica = Self::prepared(folder, &[&id, "read-only=ON"]).await?;
        replica.start()?;
        replica.answers().await?;
        let follow = format!(
            "CHANGE MASTER TO MASTER_HOST='{host}', MASTER_PORT={port}, MASTER_USER='leasehold', \
             MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1; START SLAVE"
        );
        query(&replica.url_by(&replica.address), &follow).await;
        let start = SystemClock.now();
        while query(&replica.url_by(&replica.address), "SHOW TABLES").await.is_empty() {
            if SystemClock.now().longest_since(start) > START {
                return Err(io::Error::other("the replica copies nothing"));
            }
            SystemClock.sleep(PAUSE).await;
        }
        Ok(replica)
    }

    /// Stops this replica from copying. From then on, it receives nothing that the primary does.
    pub async fn stop_copying(&self) {
        query(&self.url_by(&self.address), "STOP SLAVE").await;
    }

    /// Makes the replica a primary.
    pub async fn promote(&self) {
        query(&self.url_by(&self.address), "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0").await;
    }

    async fn prepared(folder: &Path, settings: &[&str]) -> io::Result<Self> {
        let data = folder_below(folder, "mariadb").await?;
        let install = ["--skip-test-db", "--auth-root-authentication-method=normal"];
        let mut installer = unprivileged(Path::new("mariadb-install-db"));
        installer.arg("--no-defaults");
        for option in ["datadir", "tmpdir"] {
            installer.arg(format!("--{option}={}", data.display()));
        }
        run(installer.args(install)).await?;
        fs::write(data.with_extension("sql"), INIT)?;
        let settings = settings.iter().map(|setting| format!("--{setting}")).collect();
        Ok(Self { folder: data, address: format!("127.0.0.1:{}", free_port()?), settings, process: None })
    }

    /// Returns the `host:port` that the server listens on.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the store URL.
    pub fn url(&self) -> String {
        self.url_by(&self.address)
    }

    /// Returns the store URL with the host `address`.
    pub fn url_by(&self, address: &str) -> String {
        format!("mysql://leasehold@{address}/locks?table=leasehold")
    }

    /// Starts the server without waiting until it responds.
    ///
    /// # Errors
    /// When the server cannot be started.
    pub fn start(&mut self) -> io::Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.folder.with_extension("log"))?;
        let folder = self.folder.display();
        let port = self.address.rsplit_once(':').map_or("", |(_, port)| port);
        let mut command = unprivileged(Path::new(&set_by_test("LEASEHOLD_TEST_MARIADB_SERVER", "server")));
        command
            .arg("--no-defaults")
            .arg(format!("--datadir={folder}"))
            .arg(format!("--init-file={folder}.sql"));
        command.arg("--bind-address=127.0.0.1").arg(format!("--port={port}"));
        command.args(["--socket=socket", "--pid-file=pid", "--skip-name-resolve", "--max-connections=200"]);
        command.args([
            "--tmpdir=.",
            "--log-bin=binlog",
            "--log-slave-updates",
            "--innodb-buffer-pool-size=16M",
            "--innodb-log-file-size=8M",
        ]);
        command.args(&self.settings).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.process = Some(command.kill_on_drop(true).spawn()?);
        Ok(())
    }

    async fn answers(&mut self) -> io::Result<()> {
        let start = SystemClock.now();
        while super::asked(&self.url(), "SELECT 1").await.is_err() {
            let ended = self.process.as_mut().is_none_or(|process| !matches!(process.try_wait(), Ok(None)));
            if ended || SystemClock.now().longest_since(start) > START {
                let log = fs::read_to_string(self.folder.with_extension("log")).unwrap_or_default();
                let end: Vec<_> = log.lines().rev().take(20).collect();
                return Err(io::Error::other(format!("MariaDB does not start: {end:#?}")));
            }
            SystemClock.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Starts the server, waits until it responds, and creates its table if there is none.
    ///
    /// # Errors
    /// When the server does not start.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.start()?;
        self.answers().await?;
        let locker = Locker::open(&self.url()).await.map_err(io::Error::other)?;
        locker.init().await.map_err(io::Error::other)
    }

    /// Stops the server (SIGSTOP).
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the server.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the server with `kill -9`.
    ///
    /// # Errors
    /// When the server cannot be waited for.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.signal(Signal::KILL);
        match self.process.take() {
            Some(mut process) => process.wait().await.map(drop),
            None => Ok(()),
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            // The process may just have ended.
            let _ = process::signal(process, signal);
        }
    }
}

#[async_trait]
impl Measured for MariadbServer {
    fn address(&self) -> &str {
        &self.address
    }

    fn url(&self, proxy: &str) -> String {
        self.url_by(proxy)
    }

    fn options(&self, proxy: &str) -> Vec<String> {
        crate::launch::options(&[("--endpoint", proxy)])
    }

    fn protocol(&self) -> Protocol {
        Protocol::Mysql
    }
}
