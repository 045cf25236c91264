//! Acquiring.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use leasehold::lease::{HolderInfo, Nested, Secret, Token, Ttl};
use leasehold::view::ms;
use leasehold::{Guard, Holder, Lock, LockName, Locks, Loss, LossReason, RwLock};
use tracing::Instrument as _;

use super::bodies::{AcquireRequest, Hold, HolderRequest};
use super::{MAX_COOLDOWN, report_each, token, tokens};
use crate::access::Right;
use crate::app::{App, Arrival, Shared};
use crate::body::{Payload, duration, lock_name};
use crate::capacity::StaysOpen;
use crate::grants::Fate;
use crate::problem::{Problem, ProblemType};
use crate::trace;
use crate::waits::{Outcome, Waiter};

/// Maximum time that a request may wait for a lock.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How long an acquisition keeps its place after a request has waited for it, if no other request follows.
const PLACE_TIMEOUT: Duration = Duration::from_secs(15);
/// How much longer than `wait` a request waits for the store's first response.
const FIRST_RESPONSE: Duration = Duration::from_secs(5);
/// Maximum length of a note.
const MAX_NOTE: usize = 200;
/// The header with the idempotency key.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const KEY_HELP: &str = "send the header Idempotency-Key with a new random value for each acquisition, such as $(uuidgen) (Debian: the package uuid-runtime)";
/// The length of an idempotency key.
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 16..=128;

/// Acquires a lock.
///
/// The header `Idempotency-Key` names this acquisition: 16 to 128 characters, new for each acquisition. To repeat a
/// request that got no response, send it with the same key: it gets the same hold. After that hold has ended, the key
/// cannot be used again. The field `claim` works in the same way.
#[utoipa::path(post, path = "/v1/holds", operation_id = "acquireHold", tag = "holds", request_body = AcquireRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "16 to 128 visible characters, new for each acquisition. Required without `claim`", min_length = 16, max_length = 128)),
    responses(
        (status = 201, description = "The lock is held", body = Hold),
        (status = 409, description = "The hold of this key has ended, or other writers were faster"),
        (status = 423, description = "Another holder has the lock"),
        (status = 501, description = "The store cannot do this")))]
pub(crate) async fn acquire(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    Payload(request): Payload<AcquireRequest>,
) -> Result<Response, Problem> {
    let key = headers.get(IDEMPOTENCY_KEY).map(HeaderValue::as_bytes);
    let hold = acquire_one(&app, &arrival, key, &request).await?;
    Ok((StatusCode::CREATED, Json(hold)).into_response())
}

/// Acquires a lock according to `request`, with this idempotency `key`.
pub(crate) async fn acquire_one(
    app: &App,
    arrival: &Arrival,
    key: Option<&[u8]>,
    request: &AcquireRequest,
) -> Result<Hold, Problem> {
    let outcome = granted(app, arrival, key, request).await;
    let is_new = outcome.as_ref().is_ok_and(|(_, is_new)| *is_new);
    app.metrics.acquired(&outcome, is_new.then(|| app.now().shortest_since(arrival.at)));
    outcome.map(|(hold, _)| hold)
}

/// Acquires a lock. Also returns whether the grant is new. Otherwise, an earlier request received the same grant.
async fn granted(
    app: &App,
    arrival: &Arrival,
    key: Option<&[u8]>,
    request: &AcquireRequest,
) -> Result<(Hold, bool), Problem> {
    let names = names(request)?;
    names.iter().try_for_each(|name| arrival.require(Right::Acquire, name))?;
    let Some((name, others)) = names.split_first() else { return Err(Problem::invalid("`lock` is missing")) };
    // The key is not used if there is a claim, but an invalid key is an error.
    let key = key.map(idempotency_key).transpose()?;
    let claim = request.claim.as_deref().map(claim_secret).transpose()?;
    let wait = request.wait.as_deref().map_or(Ok(Duration::ZERO), |wait| duration("wait", wait, MAX_WAIT))?;
    let (wait, ttl) = (arrival.wait(wait), ttl(request)?);
    let is_single = request.permits.is_none() && !request.shared;
    if !is_single && !others.is_empty() {
        return Err(Problem::invalid("`locks` cannot be combined with `permits` or `shared`"));
    }
    let is_plain = is_single && others.is_empty();
    let secret = match (claim, key) {
        (Some(_), _) if !is_plain => {
            return Err(Problem::invalid(
                "`claim` cannot be combined with `permits`, `shared` or several `locks`",
            ));
        }
        (Some(claim), _) => Some(claim),
        (None, None) => {
            return Err(Problem::invalid("the header `Idempotency-Key` is missing").with_help(KEY_HELP));
        }
        // The mode consists of several locks, or the store does not record whether a key is spent. A repeated request
        // is then a new acquisition, and the first one lapses.
        (None, Some(_)) if !is_plain || !app.locker.capabilities().history => None,
        (None, Some(key)) => Some(app.claim_secret(&arrival.caller, name, key, ttl)?),
    };
    let lock = lock(app, arrival, name, request)?.ttl(ttl);
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    let counted =
        if wait.is_zero() { None } else { Some(app.capacity.waits.enter(&arrival.caller, Some(name))?) };
    let waiter = match secret {
        Some(secret) if !wait.is_zero() => Some(app.waits.join(name, secret.id(), |reporter| {
            let lock = lock.clone().on_wait(move |held| reporter.report(held));
            async move { repeatable(&lock, secret, Duration::MAX).await }.instrument(trace::waiting())
        })),
        Some(secret) => app.waits.find(name, secret.id()),
        None => None,
    };
    let held = async {
        match waiter {
            Some(waiter) => {
                let held = waited(app, name, (waiter, counted), wait, claim.is_some()).await?;
                // An earlier request with a shorter ttl waited for it.
                if held.0.ttl() < ttl {
                    hold(lock, others, request, secret, Duration::ZERO).await
                } else {
                    Ok(held)
                }
            }
            None => {
                let _counted = counted;
                hold(lock, others, request, secret, wait).await
            }
        }
    };
    // If the client disconnects, this future is dropped, which gives up the place among the waiters.
    let held = tokio::select! {
        biased;
        held = held => held?,
        () = app.stopping.cancelled() => return Err(stopping()),
    };
    let (ticket, deadline) = held;
    app.grants.record(&ticket, Fate::Held);
    let (now, token) = (app.now(), token(app, &ticket));
    // A client that waits repeats its request to take the grant. Others repeat a request that got no response.
    let is_new = !token.is_some_and(|token| app.feed.has_shown_grant(ticket.name(), token));
    if is_new {
        report_each(app, arrival, "acquired", &ticket).await;
    }
    let hold = Hold {
        lock: ticket.name().to_string(),
        token,
        tokens: tokens(app, &ticket),
        valid_ms: ms(arrival.valid(deadline, now)),
        ttl_ms: ms(ticket.ttl()),
        waited_ms: ms(now.shortest_since(arrival.at)),
        ticket: ticket.to_string(),
    };
    Ok((hold, is_new))
}

/// Returns the locks of `request`, in the order of acquisition.
fn names(request: &AcquireRequest) -> Result<Vec<LockName>, Problem> {
    if request.locks.is_empty() {
        if request.lock.is_empty() {
            return Err(Problem::invalid("`lock`, the name of the lock, is missing or empty"));
        }
        return Ok(vec![lock_name(&request.lock)?]);
    }
    if !request.lock.is_empty() {
        return Err(Problem::invalid("`lock` and `locks` cannot be combined"));
    }
    let names = request.locks.iter().map(|name| lock_name(name)).collect::<Result<_, _>>()?;
    Ok(Locks::in_order(names)?)
}

fn ttl(request: &AcquireRequest) -> Result<Duration, Problem> {
    let Some(ttl) = &request.ttl else { return Ok(Ttl::DEFAULT.get()) };
    let ttl = duration("ttl", ttl, Ttl::MAX)?;
    Ok(Ttl::new(ttl).map_err(leasehold::Error::from)?.get())
}

/// Returns the lock, with all settings of `request` except the ttl.
fn lock(app: &App, arrival: &Arrival, name: &LockName, request: &AcquireRequest) -> Result<Lock, Problem> {
    let mut lock = app.locker.lock(name.as_str()).for_ticket();
    if let Some(holder) = &request.holder {
        let HolderRequest { name, host, pid, value, max_hold_ms, nested } = holder;
        if nested.as_ref().is_some_and(|nested| nested.holds.len().max(nested.seen.len()) > Nested::MAX) {
            return Err(Problem::invalid(format!("`nested` has more than {} locks or cycles", Nested::MAX)));
        }
        // Others give up because of such an entry.
        let holds = nested.iter().flat_map(|nested| &nested.holds);
        holds.map(|held| &held.name).try_for_each(|name| arrival.require(Right::Acquire, name))?;
        let mut holder = Holder::new(name, host, *pid);
        (holder.value, holder.max_hold_ms) = (value.clone(), *max_hold_ms);
        holder.nested.clone_from(nested);
        lock = lock.on_behalf_of(holder);
    }
    if let Some(delay) = &request.lock_delay {
        lock = lock.lock_delay(duration("lock_delay", delay, Ttl::MAX)?);
    }
    if let Some(limit) = &request.max_hold {
        lock = lock.max_hold(duration("max_hold", limit, MAX_COOLDOWN)?);
    }
    if request.barge {
        lock = lock.barge();
    }
    if let Some(note) = &request.note {
        if note.chars().count() > MAX_NOTE {
            return Err(Problem::invalid(format!("`note` is longer than {MAX_NOTE} characters")));
        }
        lock = lock.note(note.clone());
    }
    if let Some(principal) = &arrival.caller.principal
        && (request.holder.is_none() || !arrival.caller.names_holders)
    {
        lock = lock.owner(principal.clone());
    }
    let most = leasehold::Semaphore::MAX_PERMITS;
    match request.permits {
        Some(permits) if !(1..=most).contains(&permits) => {
            Err(Problem::invalid(format!("`permits` is not between 1 and {most}")))
        }
        Some(_) if request.shared => Err(Problem::invalid("`permits` and `shared` cannot be combined")),
        _ if request.readers.is_some() && !request.shared => {
            Err(Problem::invalid("`readers` needs `shared`"))
        }
        _ => Ok(lock),
    }
}

pub(super) fn claim_secret(text: &str) -> Result<Secret, Problem> {
    // Do not repeat the text, because it is a secret.
    text.parse().map_err(|_| Problem::invalid("`claim` is not 32 lower-case hexadecimal digits"))
}

/// Acquires the lock according to `request`, with `secret` if there is one.
async fn hold(
    lock: Lock,
    others: &[LockName],
    request: &AcquireRequest,
    secret: Option<Secret>,
    wait: Duration,
) -> Outcome {
    if let Some(secret) = secret {
        return repeatable(&lock, secret, wait).await;
    }
    let guard = guard(lock, others, request, wait).await?;
    let deadline = guard.deadline()?;
    Ok((guard.into_ticket().await?, deadline))
}

async fn repeatable(lock: &Lock, secret: Secret, wait: Duration) -> Outcome {
    let held = lock.acquire_ticket(secret, wait).await.map_err(|error| {
        let Some(loss) = error.loss() else { return error.into() };
        spent(loss, &format!("the hold of this key has ended: {error}"))
    })?;
    Ok((held.ticket().clone(), held.deadline()))
}

/// Waits up to `wait` for an acquisition. With `keeps_place`, the acquisition continues for a while afterwards, because
/// a client with a claim repeats its request or withdraws the claim. Without a claim, a client does neither, and could
/// be granted a lock that it never uses.
async fn waited(
    app: &App,
    name: &LockName,
    (mut waiter, counted): (Waiter, Option<StaysOpen>),
    wait: Duration,
    keeps_place: bool,
) -> Outcome {
    tokio::select! {
        biased;
        outcome = waiter.outcome() => outcome.unwrap_or_else(|| Err(withdrawn(name))),
        () = app.sleep(wait) => {
            let problem = match waiter.holder() {
                Some(held) => leasehold::Error::held(name, held).into(),
                None if wait.is_zero() => leasehold::Error::held(name, HolderInfo::default()).into(),
                // The first request to the store is under way.
                None => tokio::select! {
                    biased;
                    response = waiter.first_response() => match response {
                        Some(Ok(outcome)) => return outcome,
                        Some(Err(held)) => leasehold::Error::held(name, held).into(),
                        None => return Err(withdrawn(name)),
                    },
                    () = app.sleep(FIRST_RESPONSE) => unknown(name, wait + FIRST_RESPONSE),
                },
            };
            if keeps_place {
                let env = app.locker.store().env().clone();
                tokio::spawn(async move {
                    // The next request takes over the place.
                    tokio::select! {
                        () = env.sleep(PLACE_TIMEOUT) => {}
                        () = waiter.another_joined() => {}
                    }
                    drop((waiter, counted));
                });
            }
            Err(problem)
        }
    }
}

fn withdrawn(name: &LockName) -> Problem {
    let loss = Loss::new(name.clone(), Token::default(), LossReason::Ended);
    spent(&loss, "the acquisition was withdrawn")
}

/// Returns the problem for a store that has not reported yet whether the lock is held.
fn unknown(name: &LockName, wait: Duration) -> Problem {
    let detail = format!("lock `{name}`: no response from the store within {wait:?}");
    Problem::new(ProblemType::Unavailable, detail).retry_after(Duration::from_secs(1))
}

fn spent(loss: &Loss, detail: &str) -> Problem {
    Problem::new(ProblemType::KeySpent, detail)
        .with_loss(loss)
        .with_help("use a new Idempotency-Key for each acquisition")
}

async fn guard(
    lock: Lock,
    others: &[LockName],
    request: &AcquireRequest,
    wait: Duration,
) -> leasehold::Result<Guard> {
    if !others.is_empty() {
        let locks = lock.and(others.iter().map(LockName::as_str));
        return if wait.is_zero() { locks.try_acquire().await } else { locks.acquire_within(wait).await };
    }
    let readers = request.readers.unwrap_or(RwLock::DEFAULT_READERS);
    match (request.permits, request.shared, wait.is_zero()) {
        (Some(permits), _, true) => lock.semaphore(permits).try_acquire().await,
        (Some(permits), _, false) => lock.semaphore(permits).acquire_within(wait).await,
        (None, true, true) => lock.rw_lock().readers(readers).try_shared().await,
        (None, true, false) => lock.rw_lock().readers(readers).shared_within(wait).await,
        (None, false, true) => lock.try_acquire().await,
        (None, false, false) => lock.acquire_within(wait).await,
    }
}

fn stopping() -> Problem {
    Problem::new(ProblemType::Stopping, "this server is shutting down")
        .with_help("repeat the request with the same Idempotency-Key, to any server on the same store")
        .retry_after(Duration::from_secs(1))
}

fn idempotency_key(key: &[u8]) -> Result<&str, Problem> {
    match std::str::from_utf8(key) {
        Ok(key) if KEY_LENGTH.contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(key)
        }
        _ => {
            Err(Problem::invalid("the header `Idempotency-Key` must have 16 to 128 visible ASCII characters")
                .with_help(KEY_HELP))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use async_trait::async_trait;
    use leasehold::Locker;
    use leasehold::clock::{Clock, Moment, TestClock};
    use leasehold::env::Env;
    use leasehold::lease::StoreOptions;
    use leasehold::observe::{Event, Observer};

    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    /// A clock on which, once a lock was granted, a second passes between two readings.
    #[derive(Debug, Default)]
    struct SlowMachine {
        clock: TestClock,
        granted: OnceLock<Moment>,
    }

    #[async_trait]
    impl Clock for SlowMachine {
        fn now(&self) -> Moment {
            if self.granted.get().is_some() {
                self.clock.suspend(Duration::from_secs(1));
            }
            self.clock.now()
        }

        async fn sleep(&self, duration: Duration) {
            self.clock.sleep(duration).await;
        }
    }

    impl Observer for SlowMachine {
        fn observe(&self, event: &Event<'_>) {
            if matches!(event, Event::Acquired { .. }) {
                let _ = self.granted.set(self.clock.now());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_reported_for_no_longer_than_its_lease() {
        let machine = Arc::new(SlowMachine::default());
        let mut options = StoreOptions::default();
        options.env = Env::seeded(machine.clone(), 1);
        let locker = Locker::open_with("mem:", options).await.unwrap().observed_by(machine.clone());
        let lock = locker.lock("a").ttl(TTL).for_ticket();
        let held = hold(lock, &[], &AcquireRequest::default(), None, Duration::ZERO).await;
        let Ok((_, deadline)) = held else { panic!("the lock is free") };
        let granted = *machine.granted.get().unwrap();
        assert!(deadline.remaining(granted) <= TTL, "{:?}", deadline.remaining(granted));
    }
}
