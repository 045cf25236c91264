//! Connects to the servers that a store URL names.

use std::collections::HashMap;
use std::convert::Infallible;
use std::str::FromStr;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::answer::{called, unreadable};
use super::config::Location;
use super::errors;
use super::link::Link;
use super::server::ServerInfo;
use super::slots::Slots;
use crate::clock::{StoreClock, timeout};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::stores::certificates;
use crate::stores::hosts::{CONNECT_LIMIT, Host, first_of, primary_of};
use crate::stores::notifications::Calls;
use crate::stores::password::{Accepted, Password};
use crate::stores::tls::{blocking, client_config};

const SENTINEL_LOGIN: &str = "name the password of the Sentinels in the store URL: sentinel_password_env=NAME or sentinel_password_file=/PATH";

/// The help for a server that does not complete a TLS handshake, and for one that does not respond in plain text.
const PLAIN: &str = "if the server does not use TLS on this port, write redis:// and not rediss:// (and leave out `tls`, `ca`, `cert` and `key`)";
const ENCRYPTED: &str = "if the server uses TLS on this port, write rediss:// and not redis://";

/// The help for a server of a cluster whose certificate is for other hosts.
const OTHER_NAME: &str = "use hosts that the certificates name: in the store URL, and in what the cluster reports about its servers (cluster-announce-hostname NAME, cluster-preferred-endpoint-type hostname)";

/// How to connect to the servers.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) location: Location,
    accepted: Accepted,
}

impl Connector {
    /// Prepares connections to the servers at `location`. Blocks, because it reads the files, so that one that cannot
    /// be read is an error before anything is locked.
    ///
    /// # Errors
    /// Invalid for a password or a TLS file that cannot be read.
    pub(super) fn to(location: Location) -> Result<Self, Error> {
        read(&location.password)?;
        read(&location.sentinel_password)?;
        location.tls.as_ref().map(|tls| client_config(tls, "Redis")).transpose()?;
        Ok(Self { location, accepted: Accepted::default() })
    }

    /// Returns how to connect to `host` alone.
    pub(super) fn only(&self, host: &Host) -> Self {
        let mut only = self.clone();
        only.location.hosts = vec![host.clone()];
        only
    }

    /// Asks `host` for the slots of its cluster.
    pub(super) async fn slots(&self, host: &Host, env: &Env) -> Result<Slots, StoreError> {
        let info = logging_in(&self.location.user, &self.location.password).await?;
        let mut link = self.open(host, info, env, None).await.map_err(|error| self.accepted.judge(error))?;
        let mut question = redis::cmd("CLUSTER");
        let asked = question.arg("SLOTS").query_async(&mut link.connection);
        match timeout(&*env.clock, CONNECT_LIMIT, asked).await {
            Some(Ok(answer)) => Slots::of(answer, host).ok_or_else(|| unreadable().not_applied()),
            Some(Err(error)) => Err(self.refused(&error, host)),
            None => Err(no_answer(host, self.location.tls.is_some())),
        }
    }

    /// Connects to the first server that is the primary.
    pub(super) async fn connect(
        &self,
        env: &Env,
        calls: &Arc<Calls>,
        clock: &StoreClock,
    ) -> Result<Link, StoreError> {
        let link = first_of(&self.location.hosts, |host| async move {
            let link = self.connect_at(host, env, Some(calls)).await;
            let link = link.map_err(|error| self.accepted.judge(error))?;
            self.accepted.note();
            let checked = link.server.check(&link.host.to_string(), self.location.cluster);
            checked.map_err(Fault::not_applied)?;
            Ok(link)
        })
        .await?;
        let (clock_us, sent) = link.time;
        clock.observe_us(clock_us, sent, env.now());
        Ok(link)
    }

    /// Connects to any server, preferably the primary, even if it is unsuitable for locks.
    pub(super) async fn connect_to_any(&self, env: &Env) -> Result<Link, StoreError> {
        let connect = |host| self.connect_at(host, env, None);
        primary_of(&self.location.hosts, ("Redis", env), connect, |link| link.server.is_primary).await
    }

    /// Connects to `host`, or to the primary that it names if it is a Sentinel.
    async fn connect_at(
        &self,
        host: &Host,
        env: &Env,
        calls: Option<&Arc<Calls>>,
    ) -> Result<Link, StoreError> {
        match &self.location.master {
            None => self.connect_to(host, env, calls).await,
            Some(master) => self.connect_by(host, master, env, calls).await,
        }
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
            Some(Err(error)) => Err(denied(self.refused(&error, sentinel))),
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
            let mut server = ServerInfo::of(&info);
            if server.replicas > 0 {
                server.max_lag =
                    setting(&mut link.connection, "min-replicas-max-lag").await?.filter(|lag: &u64| *lag > 0);
            }
            let sent = env.now();
            let time: (i64, i64) = redis::cmd("TIME").query_async(&mut link.connection).await?;
            Ok((server, time, sent))
        };
        match timeout(&*env.clock, CONNECT_LIMIT, asked).await {
            Some(Ok((server, (seconds, us), sent))) => {
                link.server = server;
                link.time = (u64::try_from(seconds * 1_000_000 + us).unwrap_or(0), sent);
                Ok(link)
            }
            Some(Err(error)) => Err(self.refused(&error, &link.host)),
            None => Err(no_answer(host, self.location.tls.is_some())),
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
            match error.kind() {
                std::io::ErrorKind::ConnectionRefused => Fault::unavailable(message)
                    .with_help("is the server running, and are the host and port right?"),
                _ => Fault::unavailable(message),
            }
            .not_applied()
        };
        let no_handshake = |error: std::io::Error| {
            let why = error.to_string();
            let message = format!("no connection to Redis at {shown}: {why}");
            // A retry would not help against an untrusted certificate.
            let other_name =
                || (self.location.cluster && certificates::is_for_others(&why)).then_some(OTHER_NAME);
            match other_name().or_else(|| certificates::help_for_both(&why)) {
                Some(help) => Fault::new(ErrorKind::Invalid, message).with_help(help),
                None => Fault::unavailable(message).with_help(PLAIN),
            }
            .not_applied()
        };
        let refused = |error| self.refused(&error, host);
        let connecting = async {
            let stream = TcpStream::connect((host.name.as_str(), host.port)).await.map_err(lost)?;
            stream.set_nodelay(true).map_err(lost)?;
            match tls {
                Some(tls) => {
                    let name = ServerName::try_from(host.name.clone())
                        .map_err(|error| lost(std::io::Error::other(error)))?;
                    let stream = TlsConnector::from(Arc::new(tls))
                        .connect(name, stream)
                        .await
                        .map_err(no_handshake)?;
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
            Some(opened) => {
                opened.map(|(connection, driver)| Link::new(connection, driver, host.clone(), env.now()))
            }
            None => Err(no_answer(host, self.location.tls.is_some())),
        }
    }

    /// Returns the error of a connection to `host` that could not be opened, or of the first question on it.
    fn refused(&self, error: &RedisError, host: &Host) -> StoreError {
        let fault = errors::of_connection(error, &host.to_string());
        // A server with TLS closes the connection, or sends a TLS alert.
        let may_be_tls =
            self.location.tls.is_none() && error.code().is_none() && fault.kind == ErrorKind::Unavailable;
        if may_be_tls { fault.with_help(ENCRYPTED) } else { fault }.not_applied()
    }
}

/// Returns a setting of the server. Returns `None` if the user may not read it.
pub(super) async fn setting<T: FromStr>(
    connection: &mut MultiplexedConnection,
    name: &str,
) -> Result<Option<T>, RedisError> {
    let mut question = redis::cmd("CONFIG");
    match question.arg("GET").arg(name).query_async::<HashMap<String, String>>(connection).await {
        Ok(found) => Ok(found.get(name).and_then(|value| value.parse().ok())),
        Err(error) if error.code().is_some() => Ok(None),
        Err(error) => Err(error),
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

fn no_answer(host: &Host, is_tls: bool) -> StoreError {
    let fault = Fault::unavailable(format!("no response from Redis at {host} within {CONNECT_LIMIT:.1?}"));
    fault.with_help(if is_tls { PLAIN } else { ENCRYPTED }).not_applied()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    #[tokio::test]
    async fn a_wrong_scheme_is_named_with_the_right_one() {
        for (scheme, reply, help) in [
            ("redis", &b"\x15\x03\x03\x00\x02\x02\x46"[..], "write rediss://"), // a TLS alert
            ("redis", b"", "write rediss://"),
            ("rediss", b"-ERR unknown command\r\n", "write redis://"),
            ("rediss", b"", "write redis://"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    stream.read_buf(&mut Vec::with_capacity(1_024)).await.unwrap();
                    stream.write_all(reply).await.unwrap();
                }
            });
            let url = StoreUrl::parse(&format!("{scheme}://127.0.0.1:{port}")).unwrap();
            let location = Location::from_url(url, &mut StoreOptions::default()).unwrap();
            let env = Env::system();
            let connector = Connector::to(location).unwrap();
            let opened = connector.connect(&env, &Calls::new(env.clone()), &StoreClock::default()).await;
            let slots = connector.slots(&connector.location.hosts[0], &env).await;
            for error in [opened.map(drop).unwrap_err(), slots.map(drop).unwrap_err()] {
                let told = error.fault().help.clone().unwrap_or_default();
                assert!(error.is_transient() && told.contains(help), "{scheme} {reply:?}: {error:?}");
            }
        }
    }
}
