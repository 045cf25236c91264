//! Tickets that anyone can write, and what they may cause.

use axum::response::IntoResponse as _;
use leasehold::Locker;
use leasehold::env::Env;
use serde_json::Value;

use super::*;
use crate::audit::Audit;
use crate::feed::paused_store;

const MINUTE: Duration = Duration::from_secs(60);

async fn mem() -> Locker {
    Locker::open("mem:").await.unwrap()
}

async fn ticket_of(locker: &Locker, name: &str) -> Ticket {
    locker.lock(name).ttl(10 * MINUTE).acquire().await.unwrap().into_ticket().await.unwrap()
}

/// Returns `ticket` with this `token`.
fn with_token(ticket: &Ticket, token: u64) -> Ticket {
    let mut altered = serde_json::to_value(ticket).unwrap();
    altered["token"] = token.into();
    serde_json::from_value(altered).unwrap()
}

async fn acquired(app: &App, arrival: &Arrival, name: &str) -> Ticket {
    let request = AcquireRequest::new(name.to_owned(), "10m".to_owned(), None);
    let hold = acquire::acquire_one(app, arrival, Some(b"0123456789abcdef"), &request).await.ok().unwrap();
    hold.ticket.parse().unwrap()
}

/// Returns the problem that a renewal causes, and that a release causes.
async fn refused(app: &App, arrival: &Arrival, ticket: &Ticket) -> [Problem; 2] {
    let text = ticket.to_string();
    let renewal = renew_one(app, arrival, &text).await.err().unwrap();
    let release = release_one(app, arrival, &text, None, false).await.err().unwrap();
    [renewal, release]
}

fn losses(app: &App) -> u64 {
    let text = app.metrics.text(&app.capacity);
    let values = text.lines().filter(|line| line.starts_with("leasehold_losses_total"));
    values.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

async fn body(problem: Problem) -> Value {
    let body = axum::body::to_bytes(problem.into_response().into_body(), usize::MAX).await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn a_forged_ticket_is_reported_only_as_refused() {
    let (locker, other, folder) = (mem().await, mem().await, tempfile::tempdir().unwrap());
    let path = folder.path().join("audit.jsonl");
    let app = App::on(&locker, Some(Audit::open(&path, &Env::system()).unwrap()));
    let arrival = app.arrival(false).await;
    let viewer = app.feed.view(vec![String::new()], None);
    let held = acquired(&app, &arrival, "a").await;
    let token = held.token().get();
    // A lock that never existed; the token of the holder with another id; the id of the holder with another token.
    let forged = [
        with_token(&ticket_of(&other, "phantom").await, 987_654_321),
        with_token(&ticket_of(&other, "a").await, token),
        with_token(&held, token + 1),
    ];
    for ticket in &forged {
        for problem in refused(&app, &arrival, ticket).await {
            assert_eq!((problem.word(), problem.outcome()), ("lost", "unknown"));
            let body = body(problem).await;
            assert!(body.get("token").is_none() && !body.to_string().contains("987654321"), "{body}");
        }
    }
    assert_eq!(losses(&app), 0);
    let kinds: Vec<_> = app.feed.latest().iter().map(|numbered| numbered.event.kind).collect();
    assert_eq!(kinds, ["acquired"]);
    assert!(app.feed.seen_one(&LockName::new("phantom").unwrap()).is_none());
    drop(viewer);
    app.audit.as_ref().unwrap().flush().await;
    let text = std::fs::read_to_string(path).unwrap();
    let count = |kind: &str| text.lines().filter(|line| line.contains(kind)).count();
    assert_eq!(
        (count(r#""type":"acquired""#), count(r#""type":"refused""#), text.lines().count()),
        (1, 6, 7)
    );
    assert!(!text.contains("987654321"), "{text}");
    release_one(&app, &arrival, &held.to_string(), None, false).await.ok().unwrap();
}

#[tokio::test]
async fn the_loss_of_a_known_grant_is_reported_once() {
    let locker = mem().await;
    let app = App::on(&locker, None);
    let arrival = app.arrival(false).await;
    let held = acquired(&app, &arrival, "a").await;
    locker.evict(held.name(), held.token()).await.unwrap();
    // Another server knows the grant from the history of the lock.
    for app in [app, App::on(&locker, None)] {
        for _ in 0..3 {
            for problem in refused(&app, &arrival, &held).await {
                assert_eq!(problem.outcome(), "lost");
                assert_eq!(body(problem).await["token"], held.token().get());
            }
        }
        assert_eq!(losses(&app), 1);
    }
    // The server still knows a grant whose record is gone.
    let app = App::on(&locker, None);
    let held = acquired(&app, &arrival, "b").await;
    locker.evict(held.name(), held.token()).await.unwrap();
    locker.sweep(held.name(), Duration::ZERO, false).await.unwrap();
    assert_eq!(renew_one(&app, &arrival, &held.to_string()).await.err().unwrap().outcome(), "lost");
    assert_eq!(losses(&app), 1);
}

#[tokio::test]
async fn a_repeated_release_is_not_a_loss() {
    let locker = mem().await;
    let app = App::on(&locker, None);
    let arrival = app.arrival(false).await;
    let held = acquired(&app, &arrival, "a").await;
    for (app, before) in [(&app, false), (&app, true), (&App::on(&locker, None), true)] {
        let released = release_one(app, &arrival, &held.to_string(), None, false).await.ok().unwrap();
        assert_eq!((released.released, released.before), (true, before));
        assert_eq!(losses(app), 0);
    }
}

#[tokio::test]
async fn several_locks_are_released_only_if_none_was_lost() {
    let locker = mem().await;
    let several = async || {
        let guard = locker.lock("a").ttl(10 * MINUTE).and(["b", "c"]).acquire().await.unwrap();
        guard.into_ticket().await.unwrap()
    };
    for lost in ["a", "b", "c"] {
        let held = several().await;
        let name = LockName::new(lost).unwrap();
        let token = held.tokens()[&name];
        locker.evict(&name, token).await.unwrap();
        // The first request releases the others.
        for app in [App::on(&locker, None), App::on(&locker, None)] {
            let (arrival, text) = (app.arrival(false).await, held.to_string());
            let _viewer = app.feed.view(vec![String::new()], None);
            for _ in 0..2 {
                let problem = release_one(&app, &arrival, &text, None, false).await.err().unwrap();
                assert_eq!((problem.word(), problem.outcome()), ("lost", "lost"));
                assert_eq!(body(problem).await["token"], token.get());
            }
            let events = app.feed.latest();
            let events: Vec<_> = events
                .iter()
                .map(|event| (event.event.kind, &*event.event.lock, event.event.token))
                .collect();
            assert_eq!(events, [("lost", lost, Some(token.get()))]);
        }
    }
    let held = several().await.to_string();
    for before in [false, true] {
        let app = App::on(&locker, None);
        let released = release_one(&app, &app.arrival(false).await, &held, None, false).await.ok().unwrap();
        assert_eq!((released.released, released.before), (true, before));
    }
}

#[tokio::test(start_paused = true)]
async fn failed_requests_are_limited_and_valid_ones_are_not() {
    let (locker, other) = (paused_store().await, mem().await);
    let app = App::on(&locker, None);
    let arrival = async || app.arrival(false).await;
    let caller = arrival().await.caller;
    let known = acquired(&app, &arrival().await, "known").await.to_string();
    let unknown = ticket_of(&locker, "unknown").await.to_string();
    let forged = ticket_of(&other, "forged").await.to_string();
    let outcome = |renewal: Renewal| match renewal {
        Renewal::Renewed(_) => "renewed".to_owned(),
        Renewal::Failed(problem) => problem.word().to_owned(),
    };
    let batch = async |tickets: Vec<String>| -> Vec<String> {
        let request = Payload(RenewAllRequest { tickets });
        let renewed = renew_all(State(app.clone()), arrival().await, request).await.ok().unwrap();
        renewed.0.results.into_iter().map(outcome).collect()
    };
    let count = |outcomes: &[String], word: &str| outcomes.iter().filter(|outcome| *outcome == word).count();
    let mut all = Vec::new();
    for _ in 0..5 {
        all.extend(batch(vec![forged.clone(); MAX_RENEWALS]).await);
    }
    let (lost, refused) = (count(&all, "lost"), count(&all, "too-many-requests"));
    assert!((200..=270).contains(&lost) && lost + refused == 500, "{lost} lost, {refused} refused");
    // The store got no more requests than that.
    let text = app.metrics.text(&app.capacity);
    assert!(text.contains(&format!(r#"operation="renew",outcome="lost"}} {lost}"#)), "{text}");
    let exhaust = || while app.limits.attempt(caller.name(), app.now()).is_ok() {};
    exhaust();
    let began = app.now();
    let release = release_one(&app, &arrival().await, &forged, None, false).await.err().unwrap();
    assert_eq!(release.word(), "lost");
    assert!(app.now().shortest_since(began) >= PAUSE, "the release was not counted");
    exhaust();
    let request = WithdrawRequest { lock: "a".to_owned(), claim: "0123456789abcdef".repeat(2) };
    let withdrawn = withdraw(State(app.clone()), arrival().await, Payload(request)).await.err().unwrap();
    assert_eq!(withdrawn.word(), "too-many-requests");

    assert_eq!(batch(vec![known.clone(); MAX_RENEWALS]).await, vec!["renewed"; MAX_RENEWALS]);
    // A ticket that this server has not seen must wait, because it may be forged.
    exhaust();
    let began = app.now();
    assert_eq!(batch(vec![unknown; MAX_RENEWALS]).await, vec!["renewed"; MAX_RENEWALS]);
    assert!(app.now().shortest_since(began) >= PAUSE);
}

/// After a restart, a server knows no grant.
#[tokio::test(start_paused = true)]
async fn many_unknown_tickets_are_renewed_if_they_are_valid() {
    let locker = paused_store().await;
    let app = App::on(&locker, None);
    let arrival = app.arrival(false).await;
    let mut tickets = Vec::new();
    for number in 0..310 {
        tickets.push(ticket_of(&locker, &number.to_string()).await.to_string());
    }
    let renewals = tickets.iter().map(|ticket| renew_one(&app, &arrival, ticket));
    let renewed = futures_util::future::join_all(renewals).await;
    assert_eq!(renewed.iter().filter(|renewed| renewed.is_ok()).count(), 310);
}

#[tokio::test]
async fn a_grant_that_ended_uses_up_no_limit_and_is_lost_once() {
    let locker = mem().await;
    let app = App::on(&locker, None);
    let arrival = app.arrival(false).await;
    let (dead, valid) = (ticket_of(&locker, "dead").await, ticket_of(&locker, "valid").await);
    locker.evict(dead.name(), dead.token()).await.unwrap();
    let text = dead.to_string();
    let renewals = (0..MAX_RENEWALS).map(|_| renew_one(&app, &arrival, &text));
    for renewal in futures_util::future::join_all(renewals).await {
        assert_eq!(renewal.err().unwrap().outcome(), "lost");
    }
    assert_eq!(losses(&app), 1, "many requests learned of it at once");
    for _ in 0..300 {
        assert_eq!(renew_one(&app, &arrival, &text).await.err().unwrap().outcome(), "lost");
    }
    assert!(renew_one(&app, &arrival, &valid.to_string()).await.is_ok());
}
