//! A running `leasehold serve`. Gives access to its locks without the credentials of its store.
//!
//! The lock logic runs on the server. This client identifies each acquisition by its claim's id, repeats requests that
//! got no response, counts each lease from before its request, and checks that each response matches its request.
//! `docs/stores/http.md` describes the setup and the limits.

mod answers;
mod client;
mod config;
mod examine;
mod hold;
mod listing;
mod wait;
#[cfg(test)]
mod wire_tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use self::answers::Described;
use self::client::Client;
use self::config::Config;
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault};
use crate::lease::{
    Capabilities, Claim, Eviction, Grant, LeaseStore, PollInterval, Status, StoreOptions, Token,
};
use crate::native::{Ask, Claimed, Ended, NativeLeases, NativeStore, Outcome, Renewed};
use crate::retry::{RetryBudget, repeated};
use crate::types::LockName;
use crate::url::StoreUrl;

/// The server waits on behalf of a waiter. The client polls only where the server does not wait.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(200), max: Duration::from_secs(5) };

/// Opens `https://host` or `http://host:7420`, and asks the server for the capabilities of its store.
///
/// The bearer token comes from the variable `LEASEHOLD_HTTP_TOKEN`, or from the file that the option `token_file`
/// names, which is read again for each request. `ca` names a PEM file of additional trusted authorities, and `proxy`
/// names an HTTP proxy. `http:` to another machine needs `plaintext=on`. The common options `store_clock` and `margin`
/// have no effect, because the server reads its store's clock.
///
/// ```no_run
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("https://locks.example.com").await?;
/// let guard = locker.lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// Invalid for a URL or a token that cannot be used. Unavailable if the server does not respond. Denied if it does not
/// know the token. Unsupported if it is not a `leasehold serve` that this client supports, or if its store keeps no
/// history.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let config = Config::from_url(url, &mut options)?;
    let client = Client::new(config, options.env)?;
    let mut budget = RetryBudget::of_question_within(&client.env, options.open_timeout);
    let described = repeated(&mut budget, || client.described()).await?;
    Ok(Arc::new(NativeStore::new(HttpLeases::new(client, described)?)))
}

/// The leases of one server.
struct HttpLeases {
    client: Client,
    capabilities: Capabilities,
    /// The highest token of each lock that was granted lately.
    tokens: Mutex<HashMap<LockName, Token>>,
}

impl HttpLeases {
    fn new(client: Client, described: Described) -> Result<Self, Error> {
        if !described.history {
            let server = &client.config.base;
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the store of {server} keeps no history, so a repeated request could not be recognised"
                ),
            )
            .with_help("open that store directly, or use another store for the server"));
        }
        let mut capabilities = Capabilities::new("leasehold serve", POLL_INTERVAL);
        capabilities.tokens = described.tokens;
        capabilities.cooldowns = described.cooldowns;
        capabilities.watches = true;
        Ok(Self { client, capabilities, tokens: Mutex::default() })
    }
}

impl fmt::Debug for HttpLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HttpLeases").field(&self.client.config.base).finish()
    }
}

#[async_trait]
impl NativeLeases for HttpLeases {
    type Position = String;

    fn env(&self) -> &Env {
        &self.client.env
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn claim(&self, claim: &Claim, ask: &mut Ask<'_>) -> Outcome<Claimed> {
        let claimed = ask.request(self.acquire(claim, Duration::ZERO)).await?;
        if ask.again && !claim.waits && matches!(claimed, Claimed::Held(_)) {
            // The server may still be working on the earlier request, so the claim must be withdrawn.
            let message = "a request for the lock got no response, and may still be granted";
            return Err(Fault::unavailable(message).maybe_applied());
        }
        Ok(claimed)
    }

    async fn renew(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Renewed> {
        ask.request(self.renewed(grant)).await
    }

    async fn end(&self, grant: &Grant, cooldown: Option<Duration>, ask: &mut Ask<'_>) -> Outcome<Ended> {
        match grant.token == Token::default() {
            true => ask.request(self.withdraw(&grant.name, grant.id)).await,
            false => ask.request(self.released(grant, cooldown)).await,
        }
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
        ask: &mut Ask<'_>,
    ) -> Outcome<Ended> {
        let reason = why.map_or("no reason was given", |why| why.reason.as_str());
        match ask.request(self.evicted(name, token, reason)).await? {
            Ended::Gone if ask.again => ask.request(self.was_evicted(name, token)).await,
            ended => Ok(ended),
        }
    }

    async fn status(&self, name: &LockName, ask: &mut Ask<'_>) -> Outcome<Status> {
        Ok(ask.read(|| self.client.shown(name)).await?.0)
    }

    async fn names(
        &self,
        prefix: &str,
        from: Option<String>,
        ask: &mut Ask<'_>,
    ) -> Outcome<(Vec<LockName>, Option<String>)> {
        self.page(prefix, from, ask).await
    }

    /// Returns true for a claim that waits, because the server may grant it the lock although the response is lost.
    fn may_have_place(&self, claim: &Claim) -> bool {
        claim.waits
    }
}

#[async_trait]
impl Diagnose for HttpLeases {
    async fn examine(&self, _: &Examination) -> Examined {
        self.examined().await
    }
}
