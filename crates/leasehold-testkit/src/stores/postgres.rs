//! PostgreSQL: the server that `./test` starts, with a table for each test, and servers that a test starts itself.

pub mod server;

#[cfg(feature = "chaos")]
mod chaos;

use std::path::Path;
use std::process::Stdio;

use async_trait::async_trait;
use leasehold::LockName;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

pub use self::server::PostgresServer;
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
use crate::servers::{Server, parsed, unique, with_option};
pub use crate::servers::{make_table, table};
use crate::test_store::{Bench, Kind, Reaper, Storage, TestStore};

impl Server {
    /// PostgreSQL. The guides also use it as the resource that tokens protect.
    pub const POSTGRESQL: Self = Self { variable: "LEASEHOLD_TEST_POSTGRES" };
    /// pgbouncer in front of that server, with transaction pooling.
    pub const PGBOUNCER: Self = Self { variable: "LEASEHOLD_TEST_PGBOUNCER" };
}

impl Program {
    /// A peer: ShedLock's JDBC provider.
    pub const SHEDLOCK: Self = Self::peer("LEASEHOLD_TEST_PEER_SHEDLOCK", |url| {
        let server = parsed(url);
        let (host, user) = (server.authority().expect("a host"), server.user().expect("a user"));
        let jdbc = format!("jdbc:postgresql://{host}{}?user={user}", server.path());
        options(&[("--jdbc", &jdbc), ("--table", &table(url))])
    });
}

/// PostgreSQL.
#[derive(Debug)]
pub struct Postgres;

#[async_trait]
impl TestStore for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn storages(&self) -> &'static [Storage] {
        const {
            &[
                Storage::at("postgres", Server::POSTGRESQL, Kind::Shared),
                Storage::at("postgres_pgbouncer", Server::PGBOUNCER, Kind::Alone),
            ]
        }
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
        let sql = format!("DELETE FROM {} WHERE name = {} RETURNING 1", table(url), literal(name.as_str()));
        assert_eq!(psql(url, &sql).await, "1");
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        let sql =
            format!("SELECT row_to_json(t) FROM {} t WHERE name = {}", table(url), literal(name.as_str()));
        psql(url, &sql).await
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
                ..Scenario::store("postgres", replicated::alone::<PostgresServer>, FAULTS)
            },
            Scenario {
                options: "margin=0s&failover_grace=3s",
                promises: LOSES_WRITES,
                ..Scenario::store("postgres-failover", replicated::with_replica::<PostgresServer>, FAULTS)
            },
        ];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "PostgreSQL",
            scenarios: "abcdefij",
            server: Some(|folder: &Path| {
                Box::pin(async move { Ok(Box::new(PostgresServer::start_below(folder).await?) as _) })
            }),
        }
    }
}

/// Runs SQL with `psql` and returns its output.
///
/// # Panics
/// When `psql` fails.
pub async fn psql(url: &str, sql: &str) -> String {
    let server = url.split('?').next().unwrap_or(url);
    let mut child = Command::new("psql")
        .args(["-XAtq", "-v", "ON_ERROR_STOP=1", server])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("psql is there");
    let mut input = child.stdin.take().expect("it has an input");
    input.write_all(sql.as_bytes()).await.unwrap();
    drop(input);
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Quotes `text` as a string in SQL.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
