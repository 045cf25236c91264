//! Reserving a lock: who may reserve it, what is refused, and where the ticket is kept.

use super::{Page, ask, get, is_held, refused_from_other_sites, refused_without_session, session, sign_in};
use crate::serve::access::with_access;
use crate::serve::{Server, key_of};
use crate::support::{Sandbox, wait_until};

/// Returns the form that reserves a lock for `ttl`.
pub(super) fn form(ttl: &str, note: &str) -> String {
    format!("action=reserve&key={}&ttl={ttl}&note={note}", key_of("form"))
}

/// Sends `form` from the page of `lock`.
fn send(server: &Server, lock: &str, cookie: &str, form: &str) -> Page {
    ask(server, &format!("POST /ui/lock/{lock}"), cookie, form)
}

/// Reserves `lock` for an hour. Returns the cookies of the session and of the reservation.
fn reserve(server: &Server, lock: &str, session: &str) -> String {
    let page = send(server, lock, session, &form("1h", "by+hand")).expect(303);
    format!("{session}; {}", page.cookie())
}

fn page(server: &Server, lock: &str, cookie: &str) -> String {
    ask(server, &format!("GET /ui/lock/{lock}"), cookie, "").expect(200).text
}

const RENEW: &str = "action=renew";
const RELEASE: &str = "action=release";

#[test]
fn a_reservation_is_a_hold_that_its_page_renews_and_releases() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let session = sign_in(&server);
    let free = page(&server, "deploy", &session);
    assert!(free.contains("Acquire the lock for manual work") && !free.contains("Held by you"));

    let reserved = send(&server, "deploy", &session, &form("1h", "fix+the+disk")).expect(303);
    assert_eq!(reserved.header("location"), Some("/ui/lock/deploy"));
    let attributes = reserved.header("set-cookie").unwrap().split_once(';').unwrap().1.to_owned();
    assert_eq!(attributes, " Path=/ui/lock/deploy; Max-Age=7200; HttpOnly; SameSite=Strict");
    let state = server.state("deploy");
    assert_eq!((&state["state"], &state["held_by"]["holder"]["name"]), (&"held".into(), &"operator".into()));
    assert_eq!(state["held_by"]["holder"]["note"], "fix the disk");
    let left = state["held_by"]["lapses_within_ms"].as_u64().unwrap();
    assert!((3_500_000..3_800_000).contains(&left), "{left}");
    sandbox.run("run -n deploy -- true").expect(123);

    // Send the form again, as a second click does. The result is the same hold.
    send(&server, "deploy", &session, &form("1h", "fix+the+disk")).expect(303);
    assert_eq!(server.state("deploy")["token"], state["token"]);

    let cookies = format!("{session}; {}", reserved.cookie());
    let own = page(&server, "deploy", &cookies);
    for wanted in ["Held by you", "value=\"renew\"", "value=\"release\""] {
        assert!(own.contains(wanted), "{wanted}: {own}");
    }
    let other = page(&server, "deploy", &session);
    assert!(!other.contains("Held by you") && !other.contains("value=\"release\""), "{other}");

    let renewed = send(&server, "deploy", &cookies, RENEW).expect(303);
    assert_eq!(server.state("deploy")["token"], state["token"]);
    let cookies = format!("{session}; {}", renewed.cookie());
    let released = send(&server, "deploy", &cookies, RELEASE).expect(303);
    assert!(released.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(server.state("deploy")["state"], "free");
    // Send the form that reserved the lock again, from the browser's history.
    let spent = send(&server, "deploy", &session, &form("1h", "fix+the+disk")).expect(409);
    assert!(spent.text.contains("the hold has ended") && spent.text.contains("value=\"fix the disk\""));
    assert!(!is_held(&server, "deploy"));
}

#[test]
fn reserving_needs_a_session() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    // Without a session, the caller has the right to acquire but no name.
    assert!(!page(&server, "deploy", "").contains("value=\"reserve\""));
    assert!(page(&server, "deploy", "").contains("/ui/sign-in?to=/ui/lock/deploy"));
    refused_without_session(&server, "POST /ui/lock/deploy", &form("1h", ""));
    assert!(!is_held(&server, "deploy"));
}

#[test]
fn a_form_of_another_site_reserves_and_releases_nothing() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let cookies = reserve(&server, "deploy", &sign_in(&server));
    for (lock, form) in [("free", &*form("1h", "")), ("deploy", RENEW), ("deploy", RELEASE)] {
        refused_from_other_sites(&server, &format!("POST /ui/lock/{lock}"), &cookies, form);
    }
    assert!(!is_held(&server, "free") && is_held(&server, "deploy"));
}

/// Starts a server with two principals that may acquire locks below `ci/`, and one that may only see them. Their tokens
/// are `test`, `other` and `reader`.
fn with_principals(sandbox: &Sandbox) -> Server {
    let tokens = [("ci", "test"), ("other", "other"), ("reader", "reader")];
    let rules: [(&str, &str, &[&str]); 4] = [
        ("ci", "ci/", &["read", "acquire"]),
        ("other", "ci/", &["read", "acquire"]),
        ("other", "unseen/", &["acquire"]),
        ("reader", "ci/", &["read"]),
    ];
    with_access(sandbox, &tokens, &rules, "--ui rw")
}

#[test]
fn reserving_needs_the_right_to_acquire() {
    let sandbox = Sandbox::new();
    let server = with_principals(&sandbox);
    let (ci, reader) = (session(&server, "test"), session(&server, "reader"));
    assert!(!page(&server, "ci/build", &reader).contains("value=\"reserve\""));
    send(&server, "ci/build", &reader, &form("1h", "")).expect(403);
    send(&server, "prod", &ci, &form("1h", "")).expect(403);
    send(&server, "unseen/x", &session(&server, "other"), &form("1h", "")).expect(403);
    assert!(sandbox.run("ls").expect(0).stdout.trim().is_empty(), "nothing is held");
    send(&server, "ci/build", &ci, &form("1h", "")).expect(303);
    assert!(page(&server, "ci/build", &reader).contains("<b>ci</b>"), "in the name of the principal");
}

#[test]
fn a_reservation_is_valid_only_for_its_principal_and_lock() {
    let sandbox = Sandbox::new();
    let server = with_principals(&sandbox);
    let (ci, other) = (session(&server, "test"), session(&server, "other"));
    let cookies = reserve(&server, "ci/build", &ci);
    let cookie = cookies.split_once("; ").unwrap().1;
    let (name, value) = cookie.split_once('=').unwrap();
    let later = value.split_once('.').map(|(_, rest)| format!("{name}=9999999999999999.{rest}")).unwrap();
    for (session, cookie, lock) in [
        (&other, cookie, "ci/build"),
        (&ci, &later, "ci/build"),
        (&ci, &cookie[..cookie.len() - 1], "ci/build"),
        (&ci, "leasehold-reservation=1.lh2_x.00", "ci/build"),
        (&ci, cookie, "ci/build/linux"),
    ] {
        let cookies = format!("{session}; {cookie}");
        assert!(!page(&server, lock, &cookies).contains("Held by you"), "{cookie}");
        for form in [RENEW, RELEASE] {
            let refused = send(&server, lock, &cookies, form).expect(409).text;
            assert!(refused.contains("you have not acquired this lock in this browser"), "{refused}");
        }
    }
    send(&server, "ci/build", &cookies, RELEASE).expect(303);
}

#[test]
fn a_reservation_is_valid_only_for_its_store() {
    let sandbox = Sandbox::new();
    let on = |store: &str| Server::start(&sandbox, &format!("--ui rw -s sqlite:{store}.db"));
    let (one, other) = (on("one"), on("other"));
    let cookies = reserve(&one, "deploy", &sign_in(&one));
    let cookie = cookies.split_once("; ").unwrap().1;
    // Both servers have the same secret. The browser sends cookies to all ports of a host.
    send(&other, "deploy", &format!("{}; {cookie}", sign_in(&other)), RELEASE).expect(409);
    assert!(is_held(&one, "deploy"));
}

#[test]
fn a_reservation_whose_time_is_over_is_shown_as_such() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let session = sign_in(&server);
    let reserved = send(&server, "deploy", &session, &form("3s", "")).expect(303);
    let cookies = format!("{session}; {}", reserved.cookie());
    wait_until("the lease has lapsed", || sandbox.run("show deploy --json").stdout.contains("\"lapsed\""));
    let page = page(&server, "deploy", &cookies);
    assert!(page.contains("Your lease</b> ended at") && page.contains("value=\"renew\""), "{page}");
    assert!(!page.contains("Held by you"), "{page}");
}

#[test]
fn a_held_lock_is_not_reserved_and_what_was_typed_is_kept() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    server.acquire_with("a", &serde_json::json!({ "lock": "deploy", "note": "a deploy" })).expect(201);
    let token = server.state("deploy")["token"].clone();
    let session = sign_in(&server);
    assert!(!page(&server, "deploy", &session).contains("value=\"reserve\""), "only a free lock");
    let held = send(&server, "deploy", &session, &form("8h", "fix+%3Cthe%3E+disk")).expect(423);
    assert!(held.header("set-cookie").is_none());
    for wanted in [
        "Nothing was acquired.",
        "role=\"alert\"",
        "a deploy",
        "value=\"fix &lt;the&gt; disk\"",
        "value=\"8h\" selected",
    ] {
        assert!(held.text.contains(wanted), "{wanted}: {}", held.text);
    }
    assert_eq!(server.state("deploy")["token"], token);
}

#[test]
fn a_time_or_a_note_out_of_bounds_reserves_nothing() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let session = sign_in(&server);
    let long = "x".repeat(201);
    for (form, wanted) in [
        (form("25h", "typed"), "`ttl` is longer than 1day"),
        (form("1ms", "typed"), "500"),
        (form("", "typed"), "`ttl`"),
        (form("soon", "typed"), "`ttl`"),
        (form("1h", &long), "`note` is longer than 200 characters"),
        ("action=reserve&ttl=1h&note=typed".to_owned(), "16 to 128"),
    ] {
        let page = send(&server, "deploy", &session, &form).expect(400);
        assert!(
            page.text.contains(wanted) && page.text.contains("role=\"alert\""),
            "{wanted}: {}",
            page.text
        );
        assert!(page.text.contains("value=\"typed\"") || page.text.contains(&long), "{}", page.text);
    }
    for form in ["", "action=evict", "action=reserve&ttl=1h&permits=2", "action=reserve&action=reserve"] {
        let page = send(&server, "deploy", &session, form);
        assert!(matches!(page.status, 400 | 409), "{form}: {}", page.head);
    }
    assert!(!is_held(&server, "deploy"));
    send(&server, "deploy", &session, &form("24h", &long[1..])).expect(303);
}

#[test]
fn a_lost_reservation_is_shown_as_lost() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let cookies = reserve(&server, "deploy", &sign_in(&server));
    let token = server.state("deploy")["token"].to_string();
    sandbox.run(&format!("evict deploy --token {token}")).expect(0);
    assert!(!page(&server, "deploy", &cookies).contains("Held by you"));
    for form in [RENEW, RELEASE] {
        let lost = send(&server, "deploy", &cookies, form).expect(410).text;
        assert!(lost.contains("role=\"alert\"") && lost.contains("Evicted"), "{lost}");
    }
}

#[test]
fn only_the_cookie_contains_the_ticket_of_a_reservation() {
    let sandbox = Sandbox::new();
    let audit = sandbox.path("audit.jsonl");
    let server = Server::start(&sandbox, &format!("--ui rw --audit {}", audit.display()));
    let cookies = reserve(&server, "deploy", &sign_in(&server));
    let ticket = cookies.split('.').find(|part| part.starts_with("lh2_")).unwrap().to_owned();
    assert_eq!(server.release(&ticket[..ticket.len() - 4]).status, 400, "it is a ticket");
    for path in super::PAGES.into_iter().chain(["/ui/evict/deploy", "/ui/sign-in"]) {
        let page = ask(&server, &format!("GET {path}"), &cookies, "").expect(200);
        assert!(!page.text.contains("lh2_") && !page.head.contains("lh2_"), "{path}");
    }
    assert!(!get(&server, "/ui/activity").expect(200).text.contains("lh2_"));
    let renewed = send(&server, "deploy", &cookies, RENEW).expect(303);
    assert!(!renewed.text.contains("lh2_") && !renewed.header("location").unwrap().contains("lh2_"));
    let log = std::fs::read_to_string(audit).unwrap();
    assert!(log.contains("\"acquired\"") && log.contains("\"operator\"") && !log.contains("lh2_"), "{log}");
    server.signal(rustix::process::Signal::TERM);
    let outcome = server.end().expect(0);
    assert!(!outcome.stdout.contains("lh2_") && !outcome.stderr.contains("lh2_"));
}
