//! MySQL: the MariaDB server that `./test` starts, with a table for each test, and servers that a test starts itself.

pub mod server;

#[cfg(feature = "chaos")]
mod chaos;

use std::io;
use std::path::Path;
use std::process::Stdio;

use async_trait::async_trait;
use leasehold::LockName;
use tokio::process::Command;

pub use self::server::MariadbServer;
#[cfg(feature = "chaos")]
use crate::chaos::{
    plan::Kind as Fault,
    replicated,
    scenario::{LOSES_WRITES, Scenario},
};
use crate::conformance::Harness;
use crate::harness::Fresh;
use crate::launch::options;
use crate::peers::Program;
pub use crate::servers::table;
use crate::servers::{Server, make_table, parsed, unique, with_option};
use crate::test_store::{Bench, Kind, Reaper, Storage, TestStore};

impl Server {
    /// MariaDB.
    pub const MYSQL: Self = Self { variable: "LEASEHOLD_TEST_MYSQL" };
}

impl Program {
    /// A peer: ShedLock's JDBC provider on this store.
    pub const SHEDLOCK_ON_MYSQL: Self = Self::peer("LEASEHOLD_TEST_PEER_SHEDLOCK", |url| {
        let server = parsed(url);
        let (host, user) = (server.authority().expect("a host"), server.user().expect("a user"));
        let jdbc = format!("jdbc:mariadb://{host}{}?user={user}", server.path());
        options(&[("--jdbc", &jdbc), ("--table", &table(url))])
    });
}

/// MySQL.
#[derive(Debug)]
pub struct Mysql;

#[async_trait]
impl TestStore for Mysql {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn storages(&self) -> &'static [Storage] {
        const { &[Storage::at("mysql", Server::MYSQL, Kind::Shared)] }
    }

    /// Creates a separate table, as `leasehold init` does, and returns its URL.
    fn fresh_url(&self, storage: &Storage, _folder: &Path) -> String {
        let server = storage.server.expect("storage on a server").url();
        let url = with_option(&server, &format!("table=locks_{}", unique()));
        make_table(&url);
        url
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        let sql =
            format!("DELETE FROM {} WHERE name = {}; SELECT ROW_COUNT()", table(url), literal(name.as_str()));
        assert_eq!(query(url, &sql).await, "1");
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        let sql = format!("SELECT * FROM {} WHERE name = {}", table(url), literal(name.as_str()));
        query(url, &sql).await
    }

    fn reaper(&self) -> Reaper {
        Reaper::StoreClock
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        // A margin is only needed if the server's clock is set, and no test sets this clock.
        const FAULTS: &[Fault] = &[Fault::StopServer, Fault::KillServer];
        const ALL: &[Scenario] = &[
            Scenario {
                options: "margin=0s",
                ..Scenario::store("mysql", replicated::alone::<MariadbServer>, FAULTS)
            },
            Scenario {
                options: "margin=0s&failover_grace=3s",
                promises: LOSES_WRITES,
                ..Scenario::store("mysql-failover", replicated::with_replica::<MariadbServer>, FAULTS)
            },
        ];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "MariaDB",
            scenarios: "abcdefij",
            server: Some(|folder: &Path| {
                Box::pin(async move { Ok(Box::new(MariadbServer::start_below(folder).await?) as _) })
            }),
        }
    }
}

/// Runs SQL with MariaDB's client and returns its output: a line for each row, without the names of the columns.
///
/// # Panics
/// When the client fails.
pub async fn query(url: &str, sql: &str) -> String {
    asked(url, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Like [`query`].
///
/// # Errors
/// With what the client prints, if it fails.
pub async fn asked(url: &str, sql: &str) -> io::Result<String> {
    let server = parsed(url);
    let (host, port) = server.authority().and_then(|at| at.rsplit_once(':')).expect("a host and a port");
    let mut client = Command::new("mariadb");
    client.args(["--no-defaults", "--batch", "--skip-column-names", "--raw", "--host", host, "--port", port]);
    client.args([
        "--user",
        server.user().expect("a user"),
        server.path().trim_matches('/'),
        "--execute",
        sql,
    ]);
    let output = client.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Quotes `text` as a string in SQL.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
