//! The pages of the dashboard, without a browser: what they contain, and who may change something. The tests in a
//! browser are in `tests/ui` of leasehold-serve.

mod examine;
mod reserve;

use std::io::Read as _;

use serde_json::{Value, json};

use super::access::with_access;
use super::{Server, bearer};
use crate::support::{Outcome, Sandbox};

/// A page: its status, its head and its text.
struct Page {
    status: u16,
    head: String,
    text: String,
}

impl Page {
    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.text);
        self
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }

    /// Returns the cookie that the page sets, as the browser sends it back.
    fn cookie(&self) -> String {
        self.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
    }
}

/// Requests a page as a browser does, with a `cookie` and a form, if there are any.
fn ask(server: &Server, line: &str, cookie: &str, form: &str) -> Page {
    let origin = format!("http://{}", server.address);
    ask_from(server, line, &[("Origin", &origin), ("Cookie", cookie)], form)
}

fn ask_from(server: &Server, line: &str, headers: &[(&str, &str)], form: &str) -> Page {
    let headers = [headers, &[("Content-Type", "application/x-www-form-urlencoded")]].concat();
    let mut text = String::new();
    server.send(line, &headers, form).read_to_string(&mut text).unwrap();
    let (head, text) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    // Only names are converted to lowercase. Values are compared as they are.
    let head = head.lines().map(|line| match line.split_once(": ") {
        Some((name, value)) => format!("{}: {value}\n", name.to_ascii_lowercase()),
        None => format!("{line}\n"),
    });
    Page { status, head: head.collect(), text: text.to_owned() }
}

fn get(server: &Server, path: &str) -> Page {
    ask(server, &format!("GET {path}"), "", "")
}

/// Signs in with the operator's token. Returns the cookie.
fn sign_in(server: &Server) -> String {
    session(server, &server.operator)
}

/// Signs in with `token`. Returns the cookie.
fn session(server: &Server, token: &str) -> String {
    ask(server, "POST /ui/sign-in", "", &format!("token={token}")).expect(303).cookie()
}

/// Expects that `form` is refused without a session. A token in a header does not count as a session. Pages of other
/// sites could not send it, but browsers do not send it either.
#[track_caller]
fn refused_without_session(server: &Server, line: &str, form: &str) {
    ask(server, line, "", form).expect(403);
    ask(server, line, "leasehold-session=99999999999.00", form).expect(403);
    let (token, origin) = (bearer(&server.operator), format!("http://{}", server.address));
    ask_from(server, line, &[("Authorization", &token), ("Origin", &origin)], form).expect(403);
}

/// Expects that `form` is refused from pages of other sites.
#[track_caller]
fn refused_from_other_sites(server: &Server, line: &str, cookie: &str, form: &str) {
    for origin in [Some("http://evil.example"), Some("null"), Some("http://127.0.0.1:1"), None] {
        let mut headers = vec![("Cookie", cookie)];
        headers.extend(origin.map(|origin| ("Origin", origin)));
        ask_from(server, line, &headers, form).expect(403);
    }
}

fn is_held(server: &Server, lock: &str) -> bool {
    server.state(lock)["state"] == "held"
}

const PAGES: [&str; 5] = ["/ui/", "/ui/lock/deploy", "/ui/waiting", "/ui/activity", "/ui/store"];

#[test]
fn the_root_path_redirects_to_the_dashboard() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    for path in ["/", "/ui"] {
        assert_eq!(get(&server, path).expect(307).header("location"), Some("/ui/"));
    }
    assert!(get(&server, "/ui/").expect(200).text.contains("There are no locks here yet."));
    let off = Server::start(&sandbox, "--ui off");
    assert_eq!((get(&off, "/").status, get(&off, "/ui/").status), (404, 404));
}

#[test]
fn a_damaged_record_does_not_hide_the_others() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    for name in ["one", "two", "three"] {
        server.acquire(name, name).expect(201);
    }
    let store = rusqlite::Connection::open(sandbox.path("state/leasehold/locks.db")).unwrap();
    store.execute("UPDATE lock SET record = 'damaged' WHERE name = 'three'", ()).unwrap();
    let names =
        |list: &Value| list.as_array().unwrap().iter().map(|lock| lock["lock"].clone()).collect::<Vec<_>>();
    let listed = server.get("/v1/locks").expect(200).body;
    assert_eq!(
        (names(&listed["locks"]), &listed["unreadable"]),
        (vec![json!("one"), json!("two")], &json!(["three"]))
    );
    let first = server.get("/v1/locks?limit=1").expect(200).body;
    assert_eq!(
        (&first["next"], &first["unreadable"]),
        (&json!("one"), &json!([])),
        "it follows on the next page"
    );
    for path in ["/ui/", "/ui/waiting", "/ui/activity"] {
        let page = get(&server, path).expect(200).text;
        assert!(
            page.contains("These records cannot be read") && page.contains("<code>three</code>"),
            "{path}"
        );
    }
    let page = get(&server, "/ui/").expect(200).text;
    assert!(page.contains("one") && page.contains("two"));
    #[cfg(feature = "http")]
    {
        let listed = sandbox.run(&format!("-s http://{} ls", server.address)).expect(125);
        assert!(listed.stdout.contains("one") && listed.stdout.contains("two"), "{listed:?}");
        assert!(listed.stderr.starts_with("warning: skipped lock `three`: "), "{listed:?}");
    }
}

#[test]
fn pages_show_names_and_notes_as_text() {
    let sandbox = Sandbox::new();
    let hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>\" onmouseover=\"x' & \u{202e}evil";
    let words = ["acquire", "a<b>/\"><i>", "--try", "--owner", "<i>mallory</i>", "--note", hostile];
    Outcome::of(sandbox.leasehold(words).output().unwrap()).expect(0);
    let server = Server::start(&sandbox, "--ui rw");
    let cookie = sign_in(&server);
    for path in
        ["/ui/", "/ui/lock/a%3Cb%3E/%22%3E%3Ci%3E", "/ui/activity", "/ui/evict/a%3Cb%3E/%22%3E%3Ci%3E"]
    {
        let page = ask(&server, &format!("GET {path}"), &cookie, "").expect(200).text;
        assert!(
            page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") || path.starts_with("/ui/evict"),
            "{path}"
        );
        assert!(page.contains("&lt;i&gt;mallory&lt;/i&gt;"), "{path}");
        for bad in ["<script>alert", "<img src=x", "<i>", "a<b>", "\" onmouseover", "\u{202e}"] {
            assert!(!page.contains(bad), "{path} contains {bad}");
        }
    }
    let shown =
        get(&server, "/ui/?find=%3Cu%3E&prefix=%22%3E%3Cu%3E&state=%3Cu%3E&sort=%3Cu%3E").expect(200).text;
    assert!(!shown.contains("<u>") && !shown.contains("\"><u"), "what is in the address is text too");
}

#[test]
fn pages_may_load_only_their_own_files() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    for path in PAGES {
        let page = get(&server, path).expect(200);
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(
            !page.text.contains("style=") && !page.text.contains("<style") && !page.text.contains(" onclick")
        );
        for (header, wanted) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "same-origin"),
        ] {
            assert_eq!(page.header(header), Some(wanted), "{header}");
        }
        assert_eq!(page.text.matches("<script").count(), 1, "one file, nothing inline");
    }
    let page = get(&server, "/ui/").text;
    for (start, kind) in [("src=\"", "text/javascript"), ("rel=\"stylesheet\" href=\"", "text/css")] {
        let path = page
            .split(start)
            .find(|rest| rest.starts_with("/ui/assets/"))
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        let file = get(&server, path).expect(200);
        assert!(file.header("content-type").unwrap().starts_with(kind), "{path}");
        assert!(file.header("cache-control").unwrap().contains("immutable"), "{path}");
    }
    get(&server, "/ui/assets/dashboard-000000000000.js").expect(404);
    get(&server, "/ui/assets/..%2f..%2fCargo.toml").expect(404);
}

#[test]
fn pages_contain_no_secret() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let ticket = server.acquire("deploy", "k").expect(201).ticket();
    let cookie = sign_in(&server);
    for path in PAGES.into_iter().chain(["/ui/evict/deploy", "/ui/sign-in"]) {
        let page = ask(&server, &format!("GET {path}"), &cookie, "").expect(200);
        for secret in [&server.operator, &ticket, super::SECRET, cookie.split_once('=').unwrap().1] {
            assert!(!page.text.contains(secret) && !page.head.contains(secret), "{path}");
        }
    }
}

#[test]
fn a_read_only_dashboard_has_no_forms() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    server.acquire("deploy", "k").expect(201);
    let cookie = sign_in(&server);
    for path in PAGES {
        let page = get(&server, path).expect(200).text;
        assert!(!page.contains("method=\"post\"") && !page.contains("/ui/evict"), "{path}");
    }
    let token = server.state("deploy")["token"].to_string();
    let form = format!("token={token}&confirm=deploy&reason=test");
    ask(&server, "GET /ui/evict/deploy", &cookie, "").expect(403);
    ask(&server, "POST /ui/evict/deploy", &cookie, &form).expect(403);
    assert!(is_held(&server, "deploy"));
    ask(&server, "POST /ui/lock/free", &cookie, &reserve::form("1h", "")).expect(403);
    assert!(!is_held(&server, "free"));
    ask(&server, "POST /ui/store", &cookie, "").expect(403);
}

#[test]
fn evicting_needs_a_session_a_name_and_a_reason() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    server.acquire("deploy", "k").expect(201);
    let token = server.state("deploy")["token"].to_string();
    let evict = |cookie: &str, form: &str| ask(&server, "POST /ui/evict/deploy", cookie, form);
    let form = format!("token={token}&confirm=deploy&reason=it+hangs");

    let asked = get(&server, "/ui/evict/deploy").expect(303);
    assert_eq!(asked.header("location"), Some("/ui/sign-in?to=/ui/evict/deploy"));
    refused_without_session(&server, "POST /ui/evict/deploy", &form);
    ask(&server, "POST /ui/sign-in", "", "token=wrong").expect(401);
    assert!(is_held(&server, "deploy"));

    let cookie = sign_in(&server);
    let page = ask(&server, "GET /ui/evict/deploy", &cookie, "").expect(200).text;
    assert!(page.contains(&token) && page.contains("The holder is not stopped."), "{page}");
    for flawed in [
        format!("token={token}&confirm=deplo&reason=it+hangs"),
        format!("token={token}&confirm=deploy&reason=+"),
        format!("token={token}&confirm=deploy&reason={}", "x".repeat(201)),
        format!("token={token}&confirm=deploy"),
        "token=&confirm=deploy&reason=x".to_owned(),
    ] {
        let answer = evict(&cookie, &flawed);
        assert!(matches!(answer.status, 400 | 422), "{flawed}: {}", answer.head);
    }
    assert!(is_held(&server, "deploy"));

    assert_eq!(evict(&cookie, &form).expect(303).header("location"), Some("/ui/lock/deploy"));
    assert!(!is_held(&server, "deploy"));
    assert!(ask(&server, "GET /ui/activity", &cookie, "").text.contains("it hangs"));
}

#[test]
fn a_form_of_another_site_evicts_nothing() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    server.acquire("deploy", "k").expect(201);
    let token = server.state("deploy")["token"].to_string();
    let cookie = sign_in(&server);
    let form = format!("token={token}&confirm=deploy&reason=attack");
    refused_from_other_sites(&server, "POST /ui/evict/deploy", &cookie, &form);
    refused_from_other_sites(&server, "POST /ui/sign-in", &cookie, &format!("token={}", server.operator));
    assert!(is_held(&server, "deploy"));
}

#[test]
fn the_session_is_a_cookie_that_scripts_cannot_read() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let form = format!("token={}&to=https://evil.example/", server.operator);
    let signed_in = ask(&server, "POST /ui/sign-in", "", &form).expect(303);
    let cookie = signed_in.header("set-cookie").unwrap();
    for attribute in ["; Path=/ui/", "; HttpOnly", "; SameSite=Strict", "; Max-Age=43200"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert_eq!(signed_in.header("location"), Some("/ui/"), "not to another site");
    // The session is valid only for the pages, because the API requires a token.
    let headers = [("Cookie", &*signed_in.cookie()), ("If-Match", "\"1\"")];
    let body = serde_json::json!({ "lock": "deploy", "reason": "x" });
    assert_eq!(server.post("/v1/evict", &headers, &body).status, 403);
    let is_signed_in = || ask(&server, "GET /ui/", &signed_in.cookie(), "").text.contains("Signed in as");
    assert!(is_signed_in());
    let out = ask(&server, "POST /ui/sign-out", &signed_in.cookie(), "").expect(303);
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert!(!is_signed_in(), "a copy of the cookie is not valid either");
}

#[test]
fn an_eviction_that_comes_too_late_shows_what_changed() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let first =
        server.acquire_with("a", &serde_json::json!({ "lock": "deploy", "note": "first" })).expect(201);
    let token = server.state("deploy")["token"].to_string();
    server.release(&first.ticket()).expect(200);
    server.acquire_with("b", &serde_json::json!({ "lock": "deploy", "note": "second" })).expect(201);
    let now = server.state("deploy")["token"].to_string();
    let form = format!("token={token}&confirm=deploy&reason=it+hangs");
    let page = ask(&server, "POST /ui/evict/deploy", &sign_in(&server), &form).expect(412).text;
    for wanted in ["Nothing was evicted", &token, &now, "first", "second", "Released"] {
        assert!(page.contains(wanted), "{wanted}: {page}");
    }
    assert!(is_held(&server, "deploy"));
}

#[test]
fn with_an_access_file_pages_ask_for_a_token_first() {
    let sandbox = Sandbox::new();
    for name in ["ci/build", "prod/secret"] {
        sandbox.run(&format!("acquire {name} --try")).expect(0);
    }
    let server = with_access(&sandbox, &[("ci", "test")], &[("ci", "ci/", &["read"])], "--ui rw");
    for path in PAGES {
        let location = get(&server, path).expect(303).header("location").unwrap().to_owned();
        assert!(location.starts_with("/ui/sign-in?to=/ui/"), "{location}");
    }
    get(&server, "/ui/events").expect(401);
    let cookie = session(&server, "test");
    for path in ["/ui/", "/ui/waiting", "/ui/activity"] {
        let page = ask(&server, &format!("GET {path}"), &cookie, "").expect(200).text;
        assert!(!page.contains("prod/secret"), "{path}");
        assert_eq!(page.contains("ci/build"), path != "/ui/waiting", "{path}");
    }
    ask(&server, "GET /ui/lock/prod/secret", &cookie, "").expect(403);
    ask(&server, "GET /ui/evict/ci/build", &cookie, "").expect(403);
}

#[test]
fn without_the_right_to_read_an_eviction_shows_no_holder() {
    let sandbox = Sandbox::new();
    sandbox.run("acquire deploy --try --owner alice --note nightly --ttl 1h").expect(0);
    let server = with_access(&sandbox, &[("ops", "test")], &[("ops", "", &["evict"])], "--ui rw");
    let cookie = session(&server, "test");
    for form in ["token=1&confirm=wrong&reason=x", "token=9007199254740991&confirm=deploy&reason=x"] {
        let page = ask(&server, "POST /ui/evict/deploy", &cookie, form).expect(403).text;
        assert!(!page.contains("alice") && !page.contains("nightly"), "{page}");
    }
    ask(&server, "GET /ui/evict/deploy", &cookie, "").expect(403);
}

#[test]
fn pages_without_viewers_send_no_further_requests() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "");
    server.acquire("deploy", "k").expect(201);
    let requests = || {
        let page = get(&server, "/ui/store").text;
        page.split("data-total=\"").nth(1).unwrap().split('"').next().unwrap().parse::<u64>().unwrap()
    };
    let before = requests();
    get(&server, "/ui/").expect(200);
    assert_eq!(requests() - before, 2, "one list and one lock");
    get(&server, "/ui/lock/deploy").expect(200);
    assert_eq!(requests() - before, 3);
}
