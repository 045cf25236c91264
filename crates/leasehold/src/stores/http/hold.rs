//! Acquiring, renewing, releasing and evicting.

use std::time::Duration;

use reqwest::header::IF_MATCH;
use serde_json::json;

use super::HttpLeases;
use super::answers::{Extended, Gone, Held, Over};
use super::client::{Answer, Request, duration};
use crate::clock::{Deadline, Moment};
use crate::error::{Error, Fault};
use crate::lease::{Claim, End, Grant, Id, Secret, Token, Ttl, deadline, secret_of};
use crate::native::{Claimed, Ended, Lease, Outcome, Renewed};
use crate::ticket::Ticket;
use crate::types::LockName;

/// The ttl of a grant that the server makes while this process waits. If the process is frozen, it does not confirm the
/// grant, and the next waiter is granted the lock after this time.
const UNCONFIRMED: Duration = Duration::from_secs(6);

/// The number of locks whose latest token is remembered.
const MAX_TOKENS: usize = 1_000;

impl HttpLeases {
    /// Sends one request for the lock. The server responds after `wait` at the latest. A grant after a wait has a short
    /// lease, and must be confirmed by a request without `wait`.
    pub(super) async fn acquire(&self, claim: &Claim, wait: Duration) -> Outcome<Claimed> {
        let holder = &claim.holder;
        let ttl = if wait.is_zero() { claim.ttl.get() } else { claim.ttl.get().min(UNCONFIRMED) };
        let mut body = json!({
            "lock": claim.name, "ttl": duration(ttl), "wait": duration(wait),
            "claim": secret(&claim.name, claim.id)?,
            "holder": { "name": holder.name, "host": holder.host, "pid": holder.pid, "value": holder.value },
            "note": holder.note, "lock_delay": duration(claim.lock_delay), "barge": claim.barges,
        });
        if let Some(limit) = holder.max_hold_ms {
            body["holder"]["max_hold_ms"] = limit.into();
        }
        if let Some(nested) = &claim.nested {
            body["holder"]["nested"] = json!(nested);
        }
        let request = Request::post("/v1/holds", body, format!("cannot acquire {}", claim.name));
        let sent = self.client.env.now();
        let held: Held = match self.client.send(&request).await? {
            Answer::Done(_, body) => self.client.read(&request, &body)?,
            Answer::Held(problem) => return Ok(Claimed::Held(problem.holder())),
            Answer::Spent(problem) => return Ok(Claimed::Lost(problem.loss(&claim.name))),
            _ => return Err(self.client.unexpected(&request)),
        };
        let doubt = |why: &str| self.client.incomprehensible(&request, why);
        let ticket: Ticket = held.ticket.parse().map_err(|_: Error| doubt("it has no ticket"))?;
        let granted = ticket.grant(sent);
        if held.lock != claim.name.as_str() || granted.name != claim.name {
            return Err(doubt("it grants another lock"));
        }
        if granted.id != claim.id || granted.ttl.get() != ttl {
            return Err(doubt("it is for another acquisition"));
        }
        // If the store has no tokens, the number in the ticket only identifies the grant.
        if self.capabilities.tokens && held.token != Some(granted.token) {
            return Err(doubt("its tokens differ"));
        }
        if granted.token == Token::default() || !self.rises(&claim.name, granted.token) {
            return Err(doubt("its token is lower than that of an earlier grant"));
        }
        Ok(Claimed::Granted(granted.token, self.lease(claim.ttl, sent, held.valid_ms)))
    }

    /// Returns the lease that the server reports as valid for `valid_ms`. This time counts from `sent`, when the request
    /// was sent. The lease is never longer than one that begins now.
    fn lease(&self, ttl: Ttl, sent: Moment, valid_ms: u64) -> Lease {
        let valid = Deadline::new(sent, Duration::from_millis(valid_ms));
        Lease { until: Some(valid.earliest(deadline(ttl, self.client.env.now()))), memo: None }
    }

    /// Returns whether `token` is not below that of an earlier grant of the lock, and remembers it.
    fn rises(&self, name: &LockName, token: Token) -> bool {
        let mut tokens = self.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if tokens.len() >= MAX_TOKENS && !tokens.contains_key(name) {
            tokens.clear();
        }
        let latest = tokens.entry(name.clone()).or_insert(token);
        let rises = *latest <= token || !self.capabilities.tokens;
        *latest = token.max(*latest);
        rises
    }

    /// Sends one renewal. Returns the new deadline, or the loss.
    pub(super) async fn renewed(&self, grant: &Grant) -> Outcome<Renewed> {
        let body = json!({ "ticket": ticket(grant)? });
        let request = Request::post("/v1/holds/renew", body, format!("cannot renew {}", grant.name));
        let sent = self.client.env.now();
        let renewed: Extended = match self.client.send(&request).await? {
            Answer::Done(_, body) => self.client.read(&request, &body)?,
            Answer::Lost(problem) => return Ok(Renewed::Lost(problem.loss_reason())),
            _ => return Err(self.client.unexpected(&request)),
        };
        let has_token = !self.capabilities.tokens || renewed.token == Some(grant.token);
        if renewed.lock != grant.name.as_str() || !has_token {
            return Err(self.client.incomprehensible(&request, "it renews another hold"));
        }
        Ok(Renewed::Until(self.lease(grant.ttl, sent, renewed.valid_ms)))
    }

    /// Sends one release.
    pub(super) async fn released(&self, grant: &Grant, cooldown: Option<Duration>) -> Outcome<Ended> {
        let mut body = json!({ "ticket": ticket(grant)?, "cooldown": cooldown.map(duration) });
        if grant.at_limit {
            body["at_limit"] = true.into();
        }
        let request = Request::post("/v1/holds/release", body, format!("cannot release {}", grant.name));
        let over = match self.client.send(&request).await? {
            Answer::Done(_, body) => self.client.read::<Over>(&request, &body)?,
            Answer::Lost(_) => return Ok(Ended::Lost),
            _ => return Err(self.client.unexpected(&request)),
        };
        if over.lock != grant.name.as_str() {
            return Err(self.client.incomprehensible(&request, "it releases another lock"));
        }
        Ok(match over {
            // Another user of the ticket may have released it.
            Over { released: true, before: true, .. } => Ended::Gone,
            Over { released: true, .. } => Ended::Now,
            Over { released: false, .. } => Ended::Lost,
        })
    }

    /// Sends one request that withdraws the acquisition with the claim `id`.
    pub(super) async fn withdraw(&self, name: &LockName, id: Id) -> Outcome<Ended> {
        let body = json!({ "lock": name, "claim": secret(name, id)? });
        let request = Request::post("/v1/holds/withdraw", body, format!("cannot withdraw from {name}"));
        let (_, over): (_, Over) = self.client.ask(&request).await?;
        if over.lock != name.as_str() {
            return Err(self.client.incomprehensible(&request, "it is about another lock"));
        }
        Ok(if over.released { Ended::Now } else { Ended::Lost })
    }

    /// Sends one eviction.
    pub(super) async fn evicted(&self, name: &LockName, token: Token, reason: &str) -> Outcome<Ended> {
        let body = json!({ "lock": name, "reason": reason });
        let request = Request::post("/v1/evict", body, format!("cannot evict the holder of {name}"))
            .with_header(IF_MATCH, format!("\"{token}\""));
        let gone: Gone = match self.client.send(&request).await? {
            Answer::Done(_, body) => self.client.read(&request, &body)?,
            Answer::Changed => return Ok(Ended::Gone),
            _ => return Err(self.client.unexpected(&request)),
        };
        if gone.lock == name.as_str() && gone.token == token {
            return Ok(Ended::Now);
        }
        Err(self.client.incomprehensible(&request, "it is about another grant"))
    }

    /// Returns whether an eviction whose response was lost took effect.
    pub(super) async fn was_evicted(&self, name: &LockName, token: Token) -> Outcome<Ended> {
        let (status, _) = self.client.shown(name).await?;
        let evicted = status.history.iter().any(|past| past.token == token && past.end == End::Evicted);
        Ok(if evicted { Ended::Gone } else { Ended::Lost })
    }
}

/// Returns the ticket of a grant, which is valid for any URL of the server's store.
fn ticket(grant: &Grant) -> Outcome<String> {
    let ticket = Ticket::new(grant, None).map_err(Fault::not_applied)?;
    Ok(ticket.to_string())
}

/// Returns the secret of the claim `id`. The server has to know it, because it makes the ticket.
fn secret(name: &LockName, id: Id) -> Outcome<Secret> {
    secret_of(name, id).map_err(Fault::not_applied)
}
