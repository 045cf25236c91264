//! Connects to the servers that a store URL names.

use std::sync::Arc;

use async_nats::ConnectOptions;

use super::bucket::{self, Bucket};
use super::config::{Location, Login};
use super::errors::{self, Refusal};
use super::link::{Events, Link, Way};
use super::links::Links;
use crate::clock::timeout;
use crate::error::{Error, Fault, StoreError};
use crate::stores::hosts::{CONNECT_LIMIT, Host, first_of};
use crate::stores::tls::{blocking, client_config};
use crate::url::unreadable_file;

impl Links {
    /// Connects to the first server that describes the bucket in time. Returns the description too. A server that is
    /// cut off from its cluster accepts connections, but does not respond, or knows no leader.
    pub(super) async fn connect(&self) -> Result<(Link, Result<Bucket, Refusal>), StoreError> {
        let connect = |host| async move {
            let connecting = async {
                let mut link = self.connect_to(host).await?;
                let answer = bucket::ask(&link, &self.location.keys).await?;
                link.copies = answer.as_ref().ok().and_then(Bucket::copies);
                Ok((link, answer))
            };
            let connected = timeout(&*self.env.clock, CONNECT_LIMIT, connecting).await;
            let connected = connected.unwrap_or_else(|| Err(no_response(host)));
            connected.inspect(|_| self.accepted.note()).map_err(|error| self.accepted.judge(error))
        };
        first_of(&self.location.hosts, connect).await
    }

    async fn connect_to(&self, host: &Host) -> Result<Link, StoreError> {
        let shown = host.to_string();
        if let Some(carrier) = &self.carrier {
            return Ok(Link::new(Way::Carried(carrier.clone()), Arc::default(), shown));
        }
        let location = self.location.clone();
        let options = blocking(move || options(&location)).await?;
        let events = Arc::<Events>::default();
        let noted = events.clone();
        let options = options.event_callback(move |event| {
            noted.note(event);
            std::future::ready(())
        });
        let client = options.connect(format!("nats://{shown}")).await;
        let client = client.map_err(|error| errors::of_connection(&error, &shown).not_applied())?;
        Ok(Link::new(Way::Client(client), events, shown))
    }
}

fn no_response(host: &Host) -> StoreError {
    Fault::unavailable(format!("no response from NATS at {host} within {CONNECT_LIMIT:.1?}"))
        .with_help("is the server running, and has its cluster elected a leader of the bucket?")
        .not_applied()
}

/// Returns the options of the client. Reads the files. Blocks.
///
/// # Errors
/// Invalid for a login or a TLS file that cannot be read.
///
/// The client must not keep requests while it is not connected, and send them later: after a loss, the store opens
/// another connection with another client. The client cannot be told to give up at once, so it tries once to connect
/// again. What it then sends has expectations, like every write, and its result counts as unknown.
pub(super) fn options(location: &Location) -> Result<ConnectOptions, Error> {
    let tls = location.tls.clone();
    let is_required = tls.is_some();
    let options = ConnectOptions::new()
        .name("leasehold")
        .max_reconnects(1)
        .ignore_discovered_servers()
        .request_timeout(None)
        // How many values may wait for a waiter that does not look. It misses further ones, and polls.
        .subscription_capacity(16)
        .connection_timeout(CONNECT_LIMIT)
        .require_tls(is_required)
        // Also for a server that demands TLS, although the store URL does not.
        .tls_client_config(client_config(&tls.unwrap_or_default(), "NATS")?);
    let read = |option: &str, file: &str, what: &str| {
        std::fs::read_to_string(file).map_err(|error| unreadable_file(option, file, what, &error))
    };
    Ok(match &location.login {
        Login::None => options,
        Login::Password(user, password) => {
            let password = password.read()?;
            match user.clone() {
                Some(user) => options.user_and_password(user, password),
                None => options.token(password),
            }
        }
        Login::Credentials(file) => {
            const WHAT: &str = "a file with a JWT and the seed of its nkey, as nsc writes it";
            let text = read("creds_file", file, WHAT)?;
            // The parser's error could contain a part of the file.
            options.credentials(&text).map_err(|_| {
                Error::invalid(format!(
                    "the option `creds_file` names {file:?}, which is not a credentials file"
                ))
                .with_help(format!("it is the path of {WHAT}"))
            })?
        }
        Login::Nkey(file) => {
            options.nkey(read("nkey_file", file, "a file with the seed of an nkey")?.trim_end().to_owned())
        }
    })
}
