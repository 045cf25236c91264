//! `leasehold elect` together with client-go's leader election, on one Lease.

use std::thread;

use leasehold_testkit::peers::Program;
use leasehold_testkit::process::Process;
use leasehold_testkit::stores;
use rustix::process::Signal;

use crate::support::{Holder, Sandbox, send};

const TTL_SECONDS: u32 = 10;

const MEMBER: &str = "trap 'exit 0' TERM; echo leads; while :; do sleep 0.05; done";

fn candidate(sandbox: &Sandbox, url: &str) -> Holder {
    sandbox.hold(&format!("elect -s {url} job --ttl {TTL_SECONDS}s"), MEMBER)
}

fn client_go(verb: &str, url: &str) -> Process {
    Program::CLIENT_GO.start(verb, url, "job", &["--ttl", &TTL_SECONDS.to_string()])
}

#[tokio::test(flavor = "multi_thread")]
async fn elect_and_client_go_have_one_leader() {
    let fresh = stores::fresh("kubernetes");
    let (sandbox, url) = (Sandbox::new(), fresh.url().to_owned());
    let ours = candidate(&sandbox, &url);
    assert_eq!(client_go("try", &url).end().await, (vec!["held".to_owned()], Some(1)));
    // client-go waits while leasehold resigns.
    let mut theirs = client_go("hold", &url);
    ours.signal(Signal::TERM);
    theirs.says("granted").await;
    ours.end().expect(0);
    sandbox.run(&format!("run -n -s {url} job -- true")).expect(123);
    // leasehold waits while client-go resigns.
    let waiting = thread::spawn({
        let (sandbox, url) = (Sandbox::new(), url.clone());
        move || (candidate(&sandbox, &url), sandbox)
    });
    theirs.end_input();
    theirs.says("released").await;
    let (ours, _sandbox) = waiting.join().unwrap();
    assert_eq!(client_go("try", &url).end().await, (vec!["held".to_owned()], Some(1)));
    ours.signal(Signal::TERM);
    ours.end().expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn elect_and_client_go_replace_a_killed_leader() {
    let fresh = stores::fresh("kubernetes");
    let (sandbox, url) = (Sandbox::new(), fresh.url().to_owned());
    let ours = candidate(&sandbox, &url);
    let mut theirs = client_go("hold", &url);
    send(ours.guardian(), Signal::KILL);
    ours.signal(Signal::KILL);
    theirs.says("granted").await;
    let waiting = thread::spawn({
        let (sandbox, url) = (Sandbox::new(), url.clone());
        move || (candidate(&sandbox, &url), sandbox)
    });
    theirs.kill().await;
    let (ours, _sandbox) = waiting.join().unwrap();
    assert_eq!(ours.first, "leads");
    ours.signal(Signal::TERM);
    ours.end().expect(0);
}
