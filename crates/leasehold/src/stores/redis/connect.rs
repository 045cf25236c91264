//! The connection of a store. All requests share one connection, because the server runs one script at a time. It is
//! opened on demand, and replaced when it is lost or does not respond.

use std::convert::Infallible;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, ScriptInvocation, Value};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::answer::called;
use super::config::Location;
use super::errors;
use crate::clock::{Moment, RATE_ERROR, micros, timeout};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::printable;
use crate::stores::hosts::{Host, none_of};
use crate::stores::on_server::notifications::Calls;
use crate::stores::password::Password;
use crate::stores::tls::client_config;

/// The time limit of a connection to one server, including the TLS handshake and the login. A lost SYN is sent again
/// after one second.
const CONNECT_LIMIT: Duration = Duration::from_millis(2_500);

/// If no response arrives for this long after the first abandoned request was sent, later requests use another
/// connection.
const STALLED: Duration = Duration::from_millis(500);

/// The oldest supported version. Older servers do not check min-replicas-to-write for scripts, and have no permissions
/// for channels.
const OLDEST: (u32, u32) = (6, 2);

const SENTINEL_LOGIN: &str = "name the password of the Sentinels in the store URL: sentinel_password_env=NAME or sentinel_password_file=/PATH";

/// How to connect to the servers.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) location: Location,
}

impl Way {
    /// Prepares connections to the servers at `location`. Blocks, because it reads the files, so that one that cannot
    /// be read is an error before anything is locked.
    ///
    /// # Errors
    /// Invalid for a password or a TLS file that cannot be read.
    pub(super) fn to(location: Location) -> Result<Self, Error> {
        read(&location.password)?;
        read(&location.sentinel_password)?;
        location.tls.as_ref().map(|tls| client_config(tls, "Redis")).transpose()?;
        Ok(Self { location })
    }

    /// Connects to the first server that is the primary.
    pub(super) async fn connect(&self, env: &Env, calls: &Arc<Calls>) -> Result<Link, StoreError> {
        let mut failed = Vec::new();
        for host in &self.location.hosts {
            let link = match &self.location.master {
                None => self.connect_to(host, env, Some(calls)).await,
                Some(master) => self.connect_by(host, master, env, Some(calls)).await,
            };
            match link
                .and_then(|link| link.facts.check(&link.host).map(|()| link).map_err(Fault::not_applied))
            {
                Ok(link) => return Ok(link),
                Err(error) => failed.push(error),
            }
        }
        Err(none_of(failed))
    }

    /// Connects to any server, preferably the primary, even if it is unsuitable for locks.
    pub(super) async fn connect_to_any(&self, env: &Env) -> Result<Link, StoreError> {
        let (mut other, mut failed) = (None, Vec::new());
        for host in &self.location.hosts {
            let link = match &self.location.master {
                None => self.connect_to(host, env, None).await,
                Some(master) => self.connect_by(host, master, env, None).await,
            };
            match link {
                Ok(link) if link.facts.is_primary => return Ok(link),
                Ok(link) => other = Some(link),
                Err(error) => failed.push(error),
            }
        }
        other.ok_or_else(|| none_of(failed))
    }

    /// Asks a Sentinel for the primary and connects to it.
    async fn connect_by(
        &self,
        sentinel: &Host,
        master: &str,
        env: &Env,
        calls: Option<&Arc<Calls>>,
    ) -> Result<Link, StoreError> {
        let (user, password) = (&self.location.sentinel_user, &self.location.sentinel_password);
        let info = logging_in(user, password).await?;
        let denied = |error: StoreError| match error {
            StoreError::NotApplied(fault) if fault.kind == ErrorKind::Denied => {
                fault.with_help(SENTINEL_LOGIN).not_applied()
            }
            error => error,
        };
        let mut link = self.open(sentinel, info, env, None).await.map_err(denied)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(master);
        let asked = question.query_async::<Option<(String, u16)>>(&mut link.connection);
        match timeout(&*env.clock, CONNECT_LIMIT, asked).await {
            Some(Ok(Some((name, port)))) => self.connect_to(&Host { name, port }, env, calls).await,
            Some(Ok(None)) => Err(Fault::new(
                ErrorKind::Invalid,
                format!("the Sentinel {sentinel} has no primary named {master:?}"),
            )
            .with_help(
                "the option `master` is the name in the Sentinels' configuration: sentinel monitor NAME ...",
            )
            .not_applied()),
            Some(Err(error)) => {
                Err(denied(errors::of_connection(&error, &sentinel.to_string()).not_applied()))
            }
            None => {
                Err(Fault::unavailable(format!("the Sentinel {sentinel} does not respond")).not_applied())
            }
        }
    }

    /// Connects to `host` and reads its properties. The server's messages go to `calls`.
    async fn connect_to(
        &self,
        host: &Host,
        env: &Env,
        calls: Option<&Arc<Calls>>,
    ) -> Result<Link, StoreError> {
        let info = logging_in(&self.location.user, &self.location.password).await?;
        let calls = calls.filter(|_| self.location.notifies);
        let mut link = self.open(host, info.set_db(self.location.database.into()), env, calls).await?;
        let asked = async {
            let info: String = redis::cmd("INFO").query_async(&mut link.connection).await?;
            let time: (i64, i64) = redis::cmd("TIME").query_async(&mut link.connection).await?;
            Ok((info, time))
        };
        match timeout(&*env.clock, CONNECT_LIMIT, asked).await {
            Some(Ok((info, (seconds, us)))) => {
                link.facts = Facts::of(&info);
                let clock_us = u64::try_from(seconds * 1_000_000 + us).unwrap_or(0);
                link.note_clock(clock_us, env.now());
                Ok(link)
            }
            Some(Err(error)) => Err(errors::of_connection(&error, &link.host).not_applied()),
            None => Err(no_answer(host)),
        }
    }

    async fn open(
        &self,
        host: &Host,
        mut info: RedisConnectionInfo,
        env: &Env,
        calls: Option<&Arc<Calls>>,
    ) -> Result<Link, StoreError> {
        let location = self.location.clone();
        let tls = blocking(move || location.tls.as_ref().map(|tls| client_config(tls, "Redis")).transpose())
            .await?;
        let shown = host.to_string();
        let mut config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        if let Some(calls) = calls.cloned() {
            // In version 3 of the protocol, one connection carries both responses and messages.
            info = info.set_protocol(ProtocolVersion::RESP3);
            config = config.set_push_sender(move |message| {
                if let Some(key) = called(message) {
                    calls.call(&key);
                }
                Ok::<_, Infallible>(())
            });
        }
        let lost = |error: std::io::Error| {
            let message = format!("no connection to Redis at {shown}: {error}");
            match of_tls(&error) {
                Some(help) => Fault::new(ErrorKind::Invalid, message).with_help(help),
                None if error.kind() == std::io::ErrorKind::ConnectionRefused => Fault::unavailable(message)
                    .with_help("is the server running, and are the host and port right?"),
                None => Fault::unavailable(message),
            }
            .not_applied()
        };
        let refused = |error| errors::of_connection(&error, &shown).not_applied();
        let connecting = async {
            let stream = TcpStream::connect((host.name.as_str(), host.port)).await.map_err(lost)?;
            stream.set_nodelay(true).map_err(lost)?;
            match tls {
                Some(tls) => {
                    let name = ServerName::try_from(host.name.clone())
                        .map_err(|error| lost(std::io::Error::other(error)))?;
                    let stream =
                        TlsConnector::from(Arc::new(tls)).connect(name, stream).await.map_err(lost)?;
                    let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config)
                        .await
                        .map_err(refused)?;
                    Ok((connection, tokio::spawn(driver).abort_handle()))
                }
                None => {
                    let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config)
                        .await
                        .map_err(refused)?;
                    Ok((connection, tokio::spawn(driver).abort_handle()))
                }
            }
        };
        match timeout(&*env.clock, CONNECT_LIMIT, connecting).await {
            Some(opened) => opened.map(|(connection, driver)| Link {
                connection,
                driver,
                host: shown.clone(),
                facts: Facts::default(),
                clock: Mutex::new((0, env.now())),
                unanswered: Mutex::default(),
                listens: AtomicBool::default(),
            }),
            None => Err(no_answer(host)),
        }
    }
}

fn read(password: &Option<Password>) -> Result<Option<String>, Error> {
    password.as_ref().map(Password::read).transpose()
}

/// Returns the login. Reads the password again each time, because it may be replaced while the store is open.
async fn logging_in(
    user: &Option<String>,
    password: &Option<Password>,
) -> Result<RedisConnectionInfo, StoreError> {
    let password = password.clone();
    let password = blocking(move || read(&password)).await?;
    let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(user) = user {
        info = info.set_username(user);
    }
    if let Some(password) = password {
        info = info.set_password(password);
    }
    Ok(info)
}

fn no_answer(host: &Host) -> StoreError {
    Fault::unavailable(format!("no response from Redis at {host} within {CONNECT_LIMIT:.1?}")).not_applied()
}

/// Returns the help for an untrusted certificate. A retry would not help.
fn of_tls(error: &std::io::Error) -> Option<&'static str> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(_) => Some(
            "name the authority that signed the server's certificate with ca=FILE, and the server by a name in its certificate",
        ),
        _ => None,
    }
}

/// Reads files on a thread for blocking work.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, StoreError> {
    let read = tokio::task::spawn_blocking(read).await;
    let read = read.map_err(|_| Fault::unavailable("the program is ending").not_applied())?;
    read.map_err(|error| {
        let fault = Fault::new(error.kind(), error.to_string());
        match error.help().first() {
            Some(help) => fault.with_help(help),
            None => fault,
        }
        .not_applied()
    })
}

/// The properties that a server reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Redis or Valkey, with its version.
    pub(super) product: String,
    pub(super) version: (u32, u32),
    pub(super) is_primary: bool,
    pub(super) is_clustered: bool,
    /// Which keys the server deletes when its memory is full: `noeviction` for none.
    pub(super) policy: String,
    pub(super) has_memory_limit: bool,
    pub(super) replicas: u32,
    pub(super) has_append_only_file: bool,
}

impl Facts {
    fn of(info: &str) -> Self {
        let value = |key: &str| {
            let mut lines = info.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(name, _)| *name == key).map_or("", |(_, value)| value.trim())
        };
        let version = value("redis_version");
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        let product = match value("valkey_version") {
            "" => format!("Redis {}", printable(version, 20)),
            version => format!("Valkey {}", printable(version, 20)),
        };
        Self {
            product,
            version: (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)),
            is_primary: value("role") == "master",
            is_clustered: value("cluster_enabled") == "1",
            policy: value("maxmemory_policy").to_owned(),
            has_memory_limit: !matches!(value("maxmemory"), "" | "0"),
            replicas: value("connected_slaves").parse().unwrap_or(0),
            has_append_only_file: value("aof_enabled") == "1",
        }
    }

    /// Fails if locks are not safe on this server.
    pub(super) fn check(&self, host: &str) -> Result<(), Fault> {
        if self.is_clustered {
            return Err(errors::cluster());
        }
        if self.version < OLDEST {
            let (major, minor) = OLDEST;
            let message =
                format!("{host} is {}, and leasehold needs Redis {major}.{minor} or newer", self.product);
            return Err(Fault::new(ErrorKind::Unsupported, message));
        }
        if !self.is_primary {
            return Err(errors::not_primary(&format!("{host} is a replica")));
        }
        if self.evicts() {
            let message = format!(
                "{host} may delete locks when its memory is full: maxmemory-policy is {}",
                self.policy
            );
            return Err(Fault::new(ErrorKind::Unsupported, message)
                .with_help("set maxmemory-policy to noeviction, or use a server that is not a cache"));
        }
        Ok(())
    }

    /// Returns whether the server deletes keys that have not expired.
    pub(super) fn evicts(&self) -> bool {
        self.has_memory_limit && self.may_evict()
    }

    /// Returns whether the server would delete such keys if it had a memory limit.
    pub(super) fn may_evict(&self) -> bool {
        !matches!(self.policy.as_str(), "noeviction" | "")
    }
}

/// An open connection. It is closed when this is dropped.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    driver: AbortHandle,
    /// The server, for messages.
    pub(super) host: String,
    pub(super) facts: Facts,
    /// A reading of the server's clock, and the moment at which the response arrived.
    clock: Mutex<(u64, Moment)>,
    /// When the first abandoned request since the latest response was sent.
    unanswered: Mutex<Option<Moment>>,
    /// Whether the connection has a subscription, or was refused one.
    pub(super) listens: AtomicBool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Link {
    fn clock(&self) -> MutexGuard<'_, (u64, Moment)> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unanswered(&self) -> MutexGuard<'_, Option<Moment>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a lower bound of the server's clock at `now`.
    pub(super) fn clock_us(&self, now: Moment) -> u64 {
        let (read_us, at) = *self.clock();
        let passed = now.shortest_since(at).mul_f64(1.0 - RATE_ERROR);
        read_us.saturating_add(micros(passed))
    }

    /// Records the reading of the server's clock in a response that has just arrived.
    pub(super) fn note_clock(&self, clock_us: u64, now: Moment) {
        *self.clock() = (clock_us, now);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The connection of a store.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) way: Way,
    pub(super) env: Env,
    pub(super) calls: Arc<Calls>,
    current: Mutex<Option<Arc<Link>>>,
    opening: tokio::sync::Mutex<()>,
}

impl Links {
    pub(super) fn new(way: Way, env: Env) -> Self {
        let calls = Calls::new(env.clone());
        Self { way, env, calls, current: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn opened(&self) -> Option<Arc<Link>> {
        self.current().clone().filter(|link| !link.driver.is_finished())
    }

    /// Returns the connection to the primary. Opens it in a separate task, so that if the request is abandoned, the
    /// next request gets the connection.
    pub(super) async fn link(self: &Arc<Self>) -> Result<Arc<Link>, StoreError> {
        if let Some(link) = self.opened() {
            return Ok(link);
        }
        let (give, given) = oneshot::channel();
        let links = self.clone();
        tokio::spawn(async move {
            let _opening = links.opening.lock().await;
            let link = match links.opened() {
                Some(link) => Ok(link),
                None if give.is_closed() => return,
                None => links.way.connect(&links.env, &links.calls).await.map(Arc::new),
            };
            if let Ok(link) = &link {
                *links.current() = Some(link.clone());
            }
            let _ = give.send(link);
        });
        given.await.unwrap_or_else(|_| Err(Fault::unavailable("the program is ending").not_applied()))
    }

    /// Makes later requests use another connection. Requests that wait for a response on this one continue.
    fn give_up(&self, link: &Arc<Link>) {
        self.current().take_if(|current| Arc::ptr_eq(current, link));
    }

    pub(super) fn close(&self) {
        self.current().take();
    }

    /// Sends a script over `link`.
    pub(super) async fn invoke(
        &self,
        link: &Arc<Link>,
        script: &ScriptInvocation<'_>,
    ) -> Result<Value, StoreError> {
        let mut running = Running { links: self, link, began: self.env.now(), answered: false };
        let mut connection = link.connection.clone();
        let answer = script.invoke_async::<Value>(&mut connection).await;
        running.answered = true;
        link.unanswered().take();
        answer.map_err(|error| {
            if errors::is_of_this_server(&error) {
                self.give_up(link);
            }
            errors::of_request(&error)
        })
    }
}

/// A script that waits for its response.
struct Running<'a> {
    links: &'a Links,
    link: &'a Arc<Link>,
    began: Moment,
    answered: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let since = *self.link.unanswered().get_or_insert(self.began);
        if self.links.env.now().shortest_since(since) > STALLED {
            self.links.give_up(self.link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1\r\nmaxmemory:0\r\n\
        maxmemory_policy:allkeys-lru\r\nrole:master\r\nconnected_slaves:2\r\naof_enabled:1\r\ncluster_enabled:0\r\n";

    fn check(change: impl FnOnce(&mut Facts)) -> Result<(), Fault> {
        let mut facts = Facts::of(INFO);
        change(&mut facts);
        facts.check("h:1")
    }

    #[test]
    fn a_server_that_may_lose_locks_is_refused() {
        let facts = Facts::of(INFO);
        assert_eq!((facts.product.as_str(), facts.version, facts.replicas), ("Valkey 8.0.1", (7, 2), 2));
        assert!(facts.may_evict() && !facts.evicts() && facts.has_append_only_file);
        assert!(check(|_| ()).is_ok());
        assert!(check(|facts| facts.has_memory_limit = true).unwrap_err().message.contains("allkeys-lru"));
        assert_eq!(check(|facts| facts.is_clustered = true).unwrap_err().kind, ErrorKind::Unsupported);
        assert_eq!(check(|facts| facts.is_primary = false).unwrap_err().kind, ErrorKind::Unavailable);
        assert_eq!(check(|facts| facts.version = (6, 0)).unwrap_err().kind, ErrorKind::Unsupported);
        assert!(Facts::of("").check("h:1").is_err());
    }
}
