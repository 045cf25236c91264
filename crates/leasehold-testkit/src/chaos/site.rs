//! The servers of a scenario, which are killed and started again on the same data and port, and the ways of the workers
//! to them, on which requests and answers are harmed.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::Locker;
use leasehold::clock::{Clock, SystemClock};
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::plan::Kind;
use super::scenario::{Place, Scenario};
use crate::etcd::{Answers, Cluster, Wire};
use crate::http;
use crate::process::signal;
use crate::proxy::{Harm, Proxy};
use crate::servers::{below, set_by_test, through};

/// The bucket, or the table.
pub const STORE: &str = "leasehold-chaos";

/// A server that takes longer to start does not start.
const START: Duration = Duration::from_secs(90);

/// Servers, and a way to them for each worker.
#[derive(Debug)]
pub enum Site {
    /// A file, which nothing lies between.
    File(PathBuf),
    /// A server that speaks HTTP.
    Http {
        /// The server.
        server: tokio::sync::Mutex<Server>,
        /// The store URL, past the proxies.
        url: String,
        /// A proxy for each worker.
        proxies: Vec<Proxy>,
        /// And what is done to it.
        harms: Vec<Harms>,
    },
    /// A cluster of etcd.
    Etcd {
        /// The cluster.
        cluster: tokio::sync::Mutex<Cluster>,
        /// For each worker, a wire to each member.
        wires: Vec<Vec<Wire>>,
        /// And what is done to them.
        harms: Vec<Harms>,
    },
}

/// What is done to one worker's ways now. Of several the newest counts; when that is over, the newest of the others.
#[derive(Debug, Default)]
pub struct Harms(Mutex<Vec<(u64, Kind, Duration)>>);

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

impl Site {
    /// Starts what `scenario` needs, for so many workers, with its data below `folder`.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(scenario: &Scenario, workers: usize, folder: &Path) -> io::Result<Self> {
        match scenario.place {
            Place::Sqlite | Place::File => Ok(Self::File(folder.join("locks.db"))),
            Place::Etcd(members) => {
                let cluster = Cluster::start_below(folder, members).await;
                let mut wires = Vec::new();
                for _ in 0..workers {
                    let mut to_each = Vec::new();
                    for member in 0..members {
                        to_each.push(Wire::to(cluster.address(member)).await);
                    }
                    wires.push(to_each);
                }
                let harms = wires.iter().map(|_| Harms::default()).collect();
                Ok(Self::Etcd { cluster: tokio::sync::Mutex::new(cluster), wires, harms })
            }
            place => {
                let (server, url) = Server::start_with_store(place, folder).await?;
                let mut proxies = Vec::new();
                for _ in 0..workers {
                    proxies.push(Proxy::start(&server.address).await);
                }
                let harms = proxies.iter().map(|_| Harms::default()).collect();
                Ok(Self::Http { server: tokio::sync::Mutex::new(server), url, proxies, harms })
            }
        }
    }

    /// What worker `n` calls the store.
    pub fn url(&self, n: usize, scenario: &Scenario) -> String {
        match self {
            Self::File(path) if scenario.place == Place::File => path.display().to_string(),
            Self::File(path) => format!("sqlite:{}", path.display()),
            Self::Http { proxies, .. } if scenario.place == Place::Bucket => {
                format!("{}/{STORE}", proxies[n].address())
            }
            Self::Http { url, proxies, .. } => {
                let url = through(url, proxies[n].address());
                if scenario.options.is_empty() { url } else { format!("{url}&{}", scenario.options) }
            }
            Self::Etcd { wires, .. } => {
                let members: Vec<String> = wires[n].iter().map(|wire| wire.address().to_string()).collect();
                format!("etcd://{}/chaos/", members.join(","))
            }
        }
    }

    /// What can be done to the servers and to the ways to them.
    pub fn faults(&self, scenario: &Scenario) -> Vec<Kind> {
        let mut kinds = Vec::new();
        match self {
            Self::File(_) => {}
            Self::Http { .. } => {
                kinds.extend(Kind::TO_REQUESTS);
                kinds.push(Kind::StopServer);
                if matches!(scenario.place, Place::MinIo | Place::DynamoDbLocal) {
                    kinds.push(Kind::KillServer);
                }
            }
            Self::Etcd { wires, .. } => {
                kinds.extend(Kind::TO_CONNECTIONS);
                let alone = wires.first().is_some_and(|wires| wires.len() == 1);
                kinds.extend(if alone {
                    [Kind::StopServer, Kind::KillServer]
                } else {
                    [Kind::StopLeader, Kind::KillLeader]
                });
            }
        }
        kinds
    }

    /// Harms what worker `n` asks, for `duration`.
    pub async fn harm(&self, n: usize, kind: Kind, duration: Duration) {
        let harms = match self {
            Self::File(_) => return,
            Self::Http { harms, .. } | Self::Etcd { harms, .. } => &harms[n],
        };
        let number = harms.begin(kind, duration);
        self.apply(n, harms.newest());
        SystemClock.sleep(duration).await;
        harms.end(number);
        self.apply(n, harms.newest());
    }

    fn apply(&self, n: usize, newest: Option<(Kind, Duration)>) {
        match self {
            Self::File(_) => {}
            Self::Http { proxies, .. } => {
                proxies[n].every(newest.map_or(Harm::None, |(kind, lasts)| harm(kind, lasts)));
            }
            Self::Etcd { wires, .. } => {
                let answers = newest.map_or(Answers::Arrive, |(kind, lasts)| answers(kind, lasts));
                wires[n].iter().for_each(|wire| wire.let_answers(answers));
            }
        }
    }

    /// Stops the server, or the leader, for `duration`. One at a time.
    ///
    /// # Errors
    /// When it has no process.
    pub async fn stop(&self, duration: Duration) -> io::Result<()> {
        match self {
            Self::File(_) => {}
            Self::Http { server, .. } => {
                let server = server.lock().await;
                signal(&server.child, Signal::STOP)?;
                SystemClock.sleep(duration).await;
                signal(&server.child, Signal::CONT)?;
            }
            Self::Etcd { cluster, .. } => {
                let cluster = cluster.lock().await;
                let leader = cluster.leader().await;
                cluster.stop(leader);
                SystemClock.sleep(duration).await;
                cluster.go_on(leader);
            }
        }
        Ok(())
    }

    /// `kill -9` of the server, or the leader, and a start after `duration`. One at a time.
    ///
    /// # Errors
    /// When it does not start again.
    pub async fn kill(&self, duration: Duration) -> io::Result<()> {
        match self {
            Self::File(_) => {}
            Self::Http { server, .. } => {
                let mut server = server.lock().await;
                server.child.kill().await?;
                SystemClock.sleep(duration).await;
                server.child = server.run()?;
                server.answers().await?;
            }
            Self::Etcd { cluster, .. } => {
                let mut cluster = cluster.lock().await;
                let leader = cluster.leader().await;
                cluster.kill(leader).await;
                SystemClock.sleep(duration).await;
                cluster.restart(leader);
                cluster.leader().await;
            }
        }
        Ok(())
    }
}

/// What a proxy does to each request. What is late is as late as the fault is long: so some is later than the lease.
fn harm(kind: Kind, duration: Duration) -> Harm {
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

/// What a wire does to answers; as late as above.
fn answers(kind: Kind, duration: Duration) -> Answers {
    match kind {
        Kind::DelayAnswers => Answers::ArriveAfter(duration),
        Kind::CutHolder => Answers::Cut,
        _ => Answers::AreLost,
    }
}

/// A server on a port of its own.
#[derive(Debug)]
pub struct Server {
    place: Place,
    address: String,
    folder: PathBuf,
    child: Child,
}

impl Server {
    /// Starts the server of `place`, with its data below `folder` and an empty bucket or table in it, [`STORE`]; and the
    /// store URL.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start_with_store(place: Place, folder: &Path) -> io::Result<(Self, String)> {
        let server = Self::start(place, folder).await?;
        let url = make_store(place, &server.address).await?;
        Ok((server, url))
    }

    /// The `host:port` that it listens on.
    pub fn address(&self) -> &str {
        &self.address
    }

    async fn start(place: Place, folder: &Path) -> io::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let child = run(place, &address, folder)?;
        let mut server = Self { place, address, folder: folder.to_owned(), child };
        server.answers().await?;
        Ok(server)
    }

    fn run(&self) -> io::Result<Child> {
        run(self.place, &self.address, &self.folder)
    }

    /// Waits until it takes connections.
    async fn answers(&mut self) -> io::Result<()> {
        let start = SystemClock.now();
        while TcpStream::connect(&self.address).await.is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("{:?} does not start: {status}", self.place)));
            }
            if SystemClock.now().longest_since(start) > START {
                return Err(io::Error::other(format!("{:?} takes no connections", self.place)));
            }
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

fn run(place: Place, address: &str, folder: &Path) -> io::Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("server.log"))?;
    let mut command = command(place, address, folder);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true).spawn()
}

/// How to start the server of `place`.
fn command(place: Place, address: &str, folder: &Path) -> Command {
    let (host, port) = address.split_once(':').unwrap_or((address, ""));
    let program = |variable| set_by_test(variable, "program");
    match place {
        Place::MinIo => {
            let mut minio = Command::new(program("LEASEHOLD_TEST_MINIO_SERVER"));
            minio.arg("server").arg(folder.join("minio")).args(["--address", address]);
            // Or it makes one in the home of whoever runs this.
            minio.arg("--certs-dir").arg(folder.join("certs"));
            minio.env("MINIO_ROOT_USER", program("AWS_ACCESS_KEY_ID"));
            minio.env("MINIO_ROOT_PASSWORD", program("AWS_SECRET_ACCESS_KEY"));
            minio.envs([("MINIO_BROWSER", "off"), ("MINIO_UPDATE", "off")]);
            minio
        }
        Place::DynamoDbLocal | Place::DynamoDbInMemory => {
            let jars = program("LEASEHOLD_TEST_DYNAMODB_LOCAL_JARS");
            let mut local = Command::new("java");
            local.arg(format!("-Djava.library.path={jars}")).args(["-cp", &format!("{jars}/*")]);
            local.arg(program("LEASEHOLD_TEST_DYNAMODB_LOCAL_SERVER"));
            local.args(["-sharedDb", "-disableTelemetry", "-port", port]);
            match place {
                Place::DynamoDbInMemory => local.arg("-inMemory"),
                _ => local.arg("-dbPath").arg(folder),
            };
            local
        }
        Place::FakeGcs => {
            let mut gcs = Command::new(program("LEASEHOLD_TEST_FAKE_GCS_SERVER"));
            gcs.args(["-scheme", "http", "-backend", "memory", "-host", host, "-port", port]);
            gcs.args([
                "-public-host",
                address,
                "-external-url",
                &format!("http://{address}"),
                "-log-level",
                "warn",
            ]);
            gcs
        }
        _ => {
            let mut moto = Command::new(program("LEASEHOLD_TEST_MOTO_PYTHON"));
            moto.arg(program("LEASEHOLD_TEST_MOTO_SERVER")).args(["-H", host, "-p", port]);
            moto
        }
    }
}

/// Makes the bucket or the table, and gives the store URL. Who takes connections may not be ready for that yet.
async fn make_store(place: Place, address: &str) -> io::Result<String> {
    let start = SystemClock.now();
    loop {
        match try_to_make_store(place, address).await {
            Err(_) if SystemClock.now().longest_since(start) < START => {
                SystemClock.sleep(Duration::from_millis(200)).await;
            }
            made => return made,
        }
    }
}

async fn try_to_make_store(place: Place, address: &str) -> io::Result<String> {
    let endpoint = format!("endpoint=http%3A%2F%2F{address}");
    match place {
        Place::FakeGcs => {
            let body = format!("{{\"name\": \"{STORE}\"}}");
            let header = "content-type: application/json\r\n";
            made(http::exchange(address, "POST", "/storage/v1/b?project=p", header, body.as_bytes()).await?)?;
            Ok(below(&format!("gs://{STORE}?{endpoint}&credentials=anonymous"), "chaos"))
        }
        Place::DynamoDbLocal | Place::DynamoDbInMemory | Place::DynamoDbMoto => {
            let url = format!("dynamodb://{STORE}?{endpoint}&region=us-east-1");
            Locker::open(&format!("{url}&create=true")).await.map_err(io::Error::other)?;
            Ok(url)
        }
        _ => {
            make_bucket(address).await?;
            Ok(below(&format!("s3://{STORE}?{endpoint}&region=us-east-1"), "chaos"))
        }
    }
}

fn made((status, body): (u16, Vec<u8>)) -> io::Result<()> {
    // Or an earlier try has made it, and its answer was lost.
    if status == 200 || status == 409 {
        return Ok(());
    }
    Err(io::Error::other(format!("no bucket: {status} {}", String::from_utf8_lossy(&body))))
}

async fn make_bucket(address: &str) -> io::Result<()> {
    let config = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
    let config = aws_sdk_s3::config::Builder::from(&config)
        .endpoint_url(format!("http://{address}"))
        .region(aws_sdk_s3::config::Region::new("us-east-1"))
        .force_path_style(true)
        .build();
    let created = aws_sdk_s3::Client::from_conf(config).create_bucket().bucket(STORE).send().await;
    match created {
        Err(error)
            if !error.as_service_error().is_some_and(|error| error.is_bucket_already_owned_by_you()) =>
        {
            Err(io::Error::other(format!("no bucket: {error:?}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_harm_that_ends_heals_no_other() {
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
