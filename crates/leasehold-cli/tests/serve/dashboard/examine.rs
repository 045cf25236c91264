//! The doctor on the store page: who may run it, and what the page shows.

use super::{ask, get, refused_from_other_sites, refused_without_session, session, sign_in};
use crate::serve::access::with_access;
use crate::serve::{SECRET, Server};
use crate::support::Sandbox;

const NEVER: &str = "This server has not examined the store since it started.";

fn is_examined(server: &Server) -> bool {
    !get(server, "/ui/store").expect(200).text.contains(NEVER)
}

#[test]
fn the_doctors_findings_stay_on_the_page() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let ticket = server.acquire("deploy", "k").expect(201).ticket();
    let cookie = sign_in(&server);
    let page = ask(&server, "GET /ui/store", &cookie, "").expect(200).text;
    assert!(page.contains("Examine the store</button>") && page.contains(NEVER), "{page}");
    assert_eq!(ask(&server, "POST /ui/store", &cookie, "").expect(303).header("location"), Some("/ui/store"));

    // Readers without a session see the report too.
    let page = get(&server, "/ui/store").expect(200).text;
    assert!(page.contains("The store is safe for locks") && page.contains("<b>operator</b> asked for it"));
    assert!(page.contains("in memory") && !page.contains("Examine the store</button>"), "{page}");
    let doctor = sandbox.run("doctor --json").expect(0).stdout;
    let report: serde_json::Value = serde_json::from_str(&doctor).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.len() > 5);
    for finding in findings {
        let check = finding["check"].as_str().unwrap();
        assert!(page.contains(&format!("<b>{check}</b>")), "{check}: {page}");
    }
    for secret in [&*server.operator, &ticket, SECRET, cookie.split_once('=').unwrap().1] {
        assert!(!page.contains(secret));
    }
    assert_eq!(server.state("deploy")["state"], "held");
}

#[test]
fn examining_needs_a_session_with_the_right_to_evict() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    assert!(!get(&server, "/ui/store").text.contains("Examine the store</button>"));
    refused_without_session(&server, "POST /ui/store", "");
    assert!(!is_examined(&server));

    let all: &[&str] = &["read", "acquire", "evict"];
    for (allow, prefix, status) in
        [(&all[..2], "", 403), (all, "ci/", 403), (all, "leasehold-doctor-", 303), (all, "", 303)]
    {
        let server = with_access(&sandbox, &[("ci", "test")], &[("ci", prefix, allow)], "--ui rw");
        let cookie = session(&server, "test");
        ask(&server, "POST /ui/store", &cookie, "").expect(status);
        let page = ask(&server, "GET /ui/store", &cookie, "").expect(200).text;
        assert_eq!(page.contains(NEVER), status == 403, "{allow:?} on {prefix}");
    }
}

#[test]
fn a_form_of_another_site_examines_nothing() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, "--ui rw");
    let cookie = sign_in(&server);
    refused_from_other_sites(&server, "POST /ui/store", &cookie, "");
    assert!(!is_examined(&server));
}
