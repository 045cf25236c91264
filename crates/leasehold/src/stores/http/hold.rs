//! Acquiring, renewing, releasing and evicting.

use std::time::Duration;

use reqwest::header::IF_MATCH;
use serde_json::json;

use super::HttpLeases;
use super::answers::{Ended, Gone, Held, Renewed};
use super::client::{Answer, Request, duration};
use crate::clock::{Deadline, Moment};
use crate::error::{Error, Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Claim, End, Evicted, Grant, HolderInfo, Id, Loss, LossReason, ReleaseRequest, Released,
    Renewal, Secret, Token, Ttl, attempt_limit, deadline, secret_of,
};
use crate::retry::RetryBudget;
use crate::ticket::Ticket;
use crate::types::LockName;

/// The time limit of a release and of an eviction.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit of one request of a release or an eviction.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The ttl of a grant that the server makes while this process waits. If the process is frozen, it does not confirm the
/// grant, and the next waiter is granted the lock after this time.
const UNCONFIRMED: Duration = Duration::from_secs(6);

/// The number of locks whose latest token is remembered.
const MAX_TOKENS: usize = 1_000;

/// The response to an acquisition.
pub(super) enum Acquired {
    Granted(Grant),
    Held(HolderInfo),
    /// The claim is spent.
    Lost(Loss),
}

impl HttpLeases {
    pub(super) async fn acquired(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let limit = attempt_limit(claim.ttl);
        let mut budget =
            RetryBudget::new(&self.client.env, claim.store_timeout, limit).noting(&claim.last_error);
        // Whether an earlier request may have been granted. If so, the server finds the grant by the claim's id.
        let mut unknown = false;
        loop {
            match budget.request(self.acquire(claim, Duration::ZERO)).await {
                Ok(Acquired::Granted(grant)) => return Ok(self.in_time(claim, grant).await),
                // The server may still be working on the earlier request, so the claim must be withdrawn.
                Ok(Acquired::Held(_)) if unknown && !claim.waits => {
                    let message = "a request for the lock got no response, and may still be granted";
                    return Err(Fault::unavailable(message).maybe_applied());
                }
                Ok(Acquired::Held(held)) => return Ok(AcquireOutcome::Held(held)),
                Ok(Acquired::Lost(loss)) => {
                    if matches!(loss.reason, LossReason::Expired { .. }) {
                        self.give_back(claim).await;
                    }
                    return Ok(AcquireOutcome::Lost(loss));
                }
                Err(error) => {
                    unknown |= matches!(error, StoreError::MaybeApplied(_));
                    budget.pause_after(error).await.map_err(|error| error.if_maybe(unknown))?;
                }
            }
        }
    }

    /// Sends one request for the lock. The server responds after `wait` at the latest. A grant after a wait has a short
    /// lease, and must be confirmed by a request without `wait`.
    pub(super) async fn acquire(&self, claim: &Claim, wait: Duration) -> Result<Acquired, StoreError> {
        let holder = &claim.holder;
        let ttl = if wait.is_zero() { claim.ttl.get() } else { claim.ttl.get().min(UNCONFIRMED) };
        let body = json!({
            "lock": claim.name, "ttl": duration(ttl), "wait": duration(wait),
            "claim": secret(&claim.name, claim.id)?,
            "holder": { "name": holder.name, "host": holder.host, "pid": holder.pid, "value": holder.value },
            "note": holder.note, "lock_delay": duration(claim.lock_delay), "barge": claim.barges,
        });
        let request = Request::post("/v1/holds", body, format!("cannot acquire {}", claim.name));
        let sent = self.client.env.now();
        let held: Held = match self.client.send(&request).await? {
            Answer::Done(_, body) => self.client.read(&request, &body)?,
            Answer::Held(problem) => return Ok(Acquired::Held(problem.holder())),
            Answer::Spent(problem) => return Ok(Acquired::Lost(problem.loss(&claim.name, None))),
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
        let deadline = self.deadline(claim.ttl, sent, held.valid_ms);
        Ok(Acquired::Granted(Grant { deadline, ..granted }))
    }

    /// Returns the deadline of a lease that the server reports as valid for `valid_ms`. This time counts from `sent`,
    /// when the request was sent. The lease is never longer than one that begins now.
    fn deadline(&self, ttl: Ttl, sent: Moment, valid_ms: u64) -> Deadline {
        let valid = Deadline::new(sent, Duration::from_millis(valid_ms));
        valid.earliest(deadline(ttl, self.client.env.now()))
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

    /// Returns the grant. If its deadline passed before the response arrived, gives the grant back and reports a loss.
    /// The grant is lost whether or not that succeeds, because the claim is not used again and the lease lapses.
    async fn in_time(&self, claim: &Claim, grant: Grant) -> AcquireOutcome {
        if !grant.deadline.passed(self.client.env.now()) {
            return AcquireOutcome::Granted(grant);
        }
        self.give_back(claim).await;
        AcquireOutcome::Lost(grant.came_too_late())
    }

    /// Ends the grant of `claim`, unless a repetition of the claim may have it.
    async fn give_back(&self, claim: &Claim) {
        if claim.repeatable {
            return;
        }
        let budget = RetryBudget::new(&self.client.env, ATTEMPT, ATTEMPT);
        if let Err(error) = budget.request(self.withdraw(&claim.name, claim.id)).await {
            tracing::debug!(lock = %claim.name, %error, "a grant that came too late could not be released; it will \
                lapse");
        }
    }

    pub(super) async fn renewed(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let env = &self.client.env;
        let left = grant.deadline.remaining(env.now());
        if left.is_zero() {
            return Ok(grant.lost(LossReason::EXPIRED));
        }
        let mut budget = RetryBudget::new(env, left, attempt_limit(grant.ttl));
        loop {
            match budget.request(self.renew_once(grant)).await {
                Ok(Ok(prolonged)) => {
                    let now = env.now();
                    // A response that arrives after the end of the lease does not prolong it.
                    if grant.deadline.passed(now) || prolonged.passed(now) {
                        return Ok(grant.lost(LossReason::EXPIRED));
                    }
                    grant.deadline = prolonged;
                    return Ok(Renewal::Renewed);
                }
                Ok(Err(loss)) => return Ok(Renewal::Lost(loss)),
                Err(error) => {
                    if let Err(error) = budget.pause_after(error).await {
                        if grant.deadline.passed(env.now()) {
                            return Ok(
                                grant.lost(LossReason::Expired { last_error: Some(error.to_string()) })
                            );
                        }
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Sends one renewal. Returns the new deadline, or the loss.
    async fn renew_once(&self, grant: &Grant) -> Result<Result<Deadline, Loss>, StoreError> {
        let body = json!({ "ticket": ticket(grant)? });
        let request = Request::post("/v1/holds/renew", body, format!("cannot renew {}", grant.name));
        let sent = self.client.env.now();
        let renewed: Renewed = match self.client.send(&request).await? {
            Answer::Done(_, body) => self.client.read(&request, &body)?,
            Answer::Lost(problem) => return Ok(Err(problem.loss(&grant.name, Some(grant.token)))),
            _ => return Err(self.client.unexpected(&request)),
        };
        let has_token = !self.capabilities.tokens || renewed.token == Some(grant.token);
        if renewed.lock != grant.name.as_str() || !has_token {
            return Err(self.client.incomprehensible(&request, "it renews another hold"));
        }
        Ok(Ok(self.deadline(grant.ttl, sent, renewed.valid_ms)))
    }

    pub(super) async fn released(
        &self,
        grant: &mut Grant,
        cooldown: Option<Duration>,
    ) -> Result<Released, StoreError> {
        let withdraws = grant.token == Token::default();
        let mut asked_before = grant.memo.replace(Box::new(ReleaseRequest)).is_some();
        let mut budget = RetryBudget::new(&self.client.env, STORE_TIMEOUT, ATTEMPT);
        loop {
            let answer = if withdraws {
                budget.request(self.withdraw(&grant.name, grant.id)).await
            } else {
                budget.request(self.release_once(grant, cooldown, asked_before)).await
            };
            match answer {
                Ok(released) => return Ok(released),
                Err(error) => {
                    asked_before |= matches!(error, StoreError::MaybeApplied(_));
                    budget.pause_after(error).await.map_err(|error| error.if_maybe(asked_before))?;
                }
            }
        }
    }

    /// Sends one release. With `asked_before`, an earlier release may have taken effect.
    async fn release_once(
        &self,
        grant: &Grant,
        cooldown: Option<Duration>,
        asked_before: bool,
    ) -> Result<Released, StoreError> {
        let body = json!({ "ticket": ticket(grant)?, "cooldown": cooldown.map(duration) });
        let request = Request::post("/v1/holds/release", body, format!("cannot release {}", grant.name));
        let ended = match self.client.send(&request).await? {
            Answer::Done(_, body) => self.client.read::<Ended>(&request, &body)?,
            Answer::Lost(_) => return Ok(Released::AlreadyLost),
            _ => return Err(self.client.unexpected(&request)),
        };
        if ended.lock != grant.name.as_str() {
            return Err(self.client.incomprehensible(&request, "it releases another lock"));
        }
        // Another user of the ticket may have released it.
        let is_ours = ended.released && (!ended.before || asked_before);
        Ok(if is_ours { Released::Released } else { Released::AlreadyLost })
    }

    /// Sends one request that withdraws the acquisition with the claim `id`.
    async fn withdraw(&self, name: &LockName, id: Id) -> Result<Released, StoreError> {
        let body = json!({ "lock": name, "claim": secret(name, id)? });
        let request = Request::post("/v1/holds/withdraw", body, format!("cannot withdraw from {name}"));
        let (_, ended): (_, Ended) = self.client.ask(&request).await?;
        if ended.lock != name.as_str() {
            return Err(self.client.incomprehensible(&request, "it is about another lock"));
        }
        Ok(if ended.released { Released::Released } else { Released::AlreadyLost })
    }

    pub(super) async fn evicted(
        &self,
        name: &LockName,
        token: Token,
        reason: &str,
    ) -> Result<Evicted, StoreError> {
        let body = json!({ "lock": name, "reason": reason });
        let request = Request::post("/v1/evict", body, format!("cannot evict the holder of {name}"))
            .with_header(IF_MATCH, format!("\"{token}\""));
        let mut budget = RetryBudget::new(&self.client.env, STORE_TIMEOUT, ATTEMPT);
        let mut unknown = false;
        loop {
            match budget.request(self.client.send(&request)).await {
                Ok(Answer::Done(_, body)) => {
                    let gone: Gone = self.client.read(&request, &body)?;
                    if gone.lock == name.as_str() && gone.token == token {
                        return Ok(Evicted::Evicted);
                    }
                    return Err(self.client.incomprehensible(&request, "it is about another grant"));
                }
                Ok(Answer::Changed) if unknown => return self.was_evicted(name, token).await,
                Ok(Answer::Changed) => return Ok(Evicted::Changed),
                Ok(_) => return Err(self.client.unexpected(&request)),
                Err(error) => {
                    unknown |= matches!(error, StoreError::MaybeApplied(_));
                    budget.pause_after(error).await.map_err(|error| error.if_maybe(unknown))?;
                }
            }
        }
    }

    /// Returns whether an eviction whose response was lost took effect.
    async fn was_evicted(&self, name: &LockName, token: Token) -> Result<Evicted, StoreError> {
        let budget = RetryBudget::new(&self.client.env, ATTEMPT, ATTEMPT);
        let (status, _) =
            budget.request(self.client.shown(name)).await.map_err(|error| error.if_maybe(true))?;
        let evicted = status.history.iter().any(|past| past.token == token && past.end == End::Evicted);
        Ok(if evicted { Evicted::Evicted } else { Evicted::Changed })
    }
}

/// Returns the ticket of a grant, which is valid for any URL of the server's store.
fn ticket(grant: &Grant) -> Result<String, StoreError> {
    let ticket = Ticket::new(grant, None).map_err(Fault::not_applied)?;
    Ok(ticket.to_string())
}

/// Returns the secret of the claim `id`. The server has to know it, because it makes the ticket.
fn secret(name: &LockName, id: Id) -> Result<Secret, StoreError> {
    secret_of(name, id).map_err(Fault::not_applied)
}
