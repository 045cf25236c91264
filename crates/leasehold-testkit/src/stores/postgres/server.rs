//! A PostgreSQL server that a test starts, stops and kills.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Locker;
use leasehold::clock::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::psql;
use crate::launch::unprivileged::{folder_below, run, unprivileged};
use crate::launch::{Measured, Protocol, free_port};
use crate::servers::set_by_test;

/// How long a server may take to start.
const START: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(100);

/// A server with an empty table of locks, which is killed on drop.
#[derive(Debug)]
pub struct PostgresServer {
    folder: PathBuf,
    address: String,
    process: Option<Child>,
}

impl PostgresServer {
    /// Starts a server with its data below `folder`.
    ///
    /// # Errors
    /// When the server does not start.
    ///
    /// # Panics
    /// When `./test` has not set where PostgreSQL's programs are.
    pub async fn start_below(folder: &Path) -> io::Result<Self> {
        Self::start_with(folder, &[]).await
    }

    /// Starts a server with additional settings, such as `synchronous_commit=off`.
    ///
    /// # Errors
    /// When the server does not start.
    pub async fn start_with(folder: &Path, settings: &[&str]) -> io::Result<Self> {
        let data = folder_below(folder, "postgres").await?;
        let mut initdb = program("initdb");
        initdb.arg("--pgdata").arg(&data).args([
            "--username=leasehold",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-sync",
        ]);
        run(&mut initdb).await?;
        let port = format!("port={}", free_port()?);
        let set = [
            "listen_addresses=127.0.0.1",
            &port,
            "unix_socket_directories=",
            "fsync=off",
            "max_connections=200",
            // Keeps shared memory in the data folder. Otherwise, a killed server would leave shared memory segments
            // behind.
            "dynamic_shared_memory_type=mmap",
        ];
        let address = format!("127.0.0.1:{}", &port["port=".len()..]);
        let mut server = Self { folder: data, address, process: None };
        server.set(&set)?;
        server.set(settings)?;
        server.restart().await?;
        Ok(server)
    }

    /// Starts a standby of this server, with its data below `folder`. The standby copies asynchronously, unless
    /// `synchronous_standby_names` names it.
    ///
    /// # Errors
    /// When the standby does not start.
    pub async fn standby_below(&self, folder: &Path) -> io::Result<Self> {
        let data = folder_below(folder, "postgres").await?;
        let (host, port) = self.address.rsplit_once(':').unwrap_or((&self.address, ""));
        let mut backup = program("pg_basebackup");
        backup.args(["-h", host, "-p", port, "-U", "leasehold", "-R", "-X", "stream", "--checkpoint=fast"]);
        run(backup.arg("--no-sync").arg("-D").arg(&data)).await?;
        let port = free_port()?;
        let address = format!("{host}:{port}");
        let mut standby = Self { folder: data, address, process: None };
        standby.set(&[&format!("port={port}")])?;
        standby.start().await?;
        standby
            .until("SELECT pg_is_in_recovery() AND EXISTS (SELECT FROM pg_stat_wal_receiver)", "t")
            .await?;
        Ok(standby)
    }

    /// Stops this standby from copying. From then on, it receives nothing that the primary does.
    ///
    /// # Errors
    /// When the standby does not respond.
    pub async fn stop_copying(&self) -> io::Result<()> {
        psql(&self.url_by(&self.address), "ALTER SYSTEM SET primary_conninfo = ''").await;
        psql(&self.url_by(&self.address), "SELECT pg_reload_conf()").await;
        self.until("SELECT count(*) FROM pg_stat_wal_receiver", "0").await
    }

    /// Makes the standby a primary.
    ///
    /// # Errors
    /// When the standby does not become a primary.
    pub async fn promote(&self) -> io::Result<()> {
        psql(&self.url_by(&self.address), "SELECT pg_promote(wait => false)").await;
        self.until("SELECT pg_is_in_recovery()", "f").await
    }

    /// Waits until the result of `sql` is `answer`.
    async fn until(&self, sql: &str, answer: &str) -> io::Result<()> {
        let start = SystemClock.now();
        loop {
            let mut query = Command::new("psql");
            query.args(["-XAtqc", sql, &self.url_by(&self.address)]).stdin(Stdio::null()).kill_on_drop(true);
            let output = query.output().await?;
            if String::from_utf8_lossy(&output.stdout).trim_end() == answer {
                return Ok(());
            }
            if SystemClock.now().longest_since(start) > START {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(io::Error::other(format!("{sql} is not {answer}: {said}")));
            }
            SystemClock.sleep(PAUSE).await;
        }
    }

    /// Returns the `host:port` that the server listens on.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the store URL with the host `address`.
    pub fn url_by(&self, address: &str) -> String {
        format!("postgres://leasehold@{address}/postgres")
    }

    /// Adds settings, such as `fsync=on`, for the next start.
    ///
    /// # Errors
    /// When the settings cannot be written.
    pub fn set(&self, settings: &[&str]) -> io::Result<()> {
        let file = self.folder.join("postgresql.conf");
        let before = fs::read_to_string(&file)?;
        let lines: Vec<_> = settings.iter().map(|setting| line(setting)).collect();
        fs::write(&file, before + &lines.concat())
    }

    /// Starts the server without waiting until it responds.
    ///
    /// # Errors
    /// When the server cannot be started.
    pub async fn start(&mut self) -> io::Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.folder.with_extension("log"))?;
        let mut command = program("postgres");
        command.arg("-D").arg(&self.folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.process = Some(command.kill_on_drop(true).spawn()?);
        Ok(())
    }

    /// Starts the server, waits until it responds, and creates its table if there is none.
    ///
    /// # Errors
    /// When the server does not start.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.start().await?;
        let start = SystemClock.now();
        let locker = Locker::open(&self.url_by(&self.address)).await.map_err(io::Error::other)?;
        while let Err(error) = locker.init().await {
            if SystemClock.now().longest_since(start) > START {
                return Err(io::Error::other(format!("PostgreSQL does not start: {error}")));
            }
            // The server cannot start while a process of the previous, killed server still uses the shared memory.
            if self.process.as_mut().is_none_or(|process| !matches!(process.try_wait(), Ok(None))) {
                self.start().await?;
            }
            SystemClock.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Stops all processes of the server (SIGSTOP).
    pub fn stop(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Resumes all processes of the server.
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Kills all processes of the server with `kill -9`.
    ///
    /// # Errors
    /// When the server cannot be waited for.
    pub async fn kill(&mut self) -> io::Result<()> {
        // Stops the server first, so that it starts no other processes.
        self.stop();
        self.signal_all(Signal::KILL);
        match self.process.take() {
            Some(mut process) => process.wait().await.map(drop),
            None => Ok(()),
        }
    }

    /// Sends a signal to all processes of the server. Each has its own session, so they are found as children of the
    /// first.
    fn signal_all(&self, signal: Signal) {
        let Some(first) = self.process.as_ref().and_then(Child::id) else { return };
        let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
        for pid in [first].into_iter().chain(children) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // The process may just have ended.
                let _ = kill_process(pid, signal);
            }
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.signal_all(Signal::KILL);
    }
}

#[async_trait]
impl Measured for PostgresServer {
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
        Protocol::Postgres
    }
}

/// Returns a command that runs one of PostgreSQL's programs.
fn program(name: &str) -> Command {
    unprivileged(&Path::new(&set_by_test("LEASEHOLD_TEST_POSTGRES_PROGRAMS", "server's programs")).join(name))
}

fn line(setting: &str) -> String {
    let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
    format!("{name} = '{value}'\n")
}
