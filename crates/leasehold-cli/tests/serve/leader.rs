//! `elect --http`: who leads, for programs beside the candidate.

use std::io::{BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

use rustix::process::Signal;

use super::Answer;
use crate::support::{Holder, Sandbox, line_with, wait_until};

const LEADS: &str = "trap 'exit 7' TERM; echo $LEASEHOLD_TOKEN; while :; do sleep 0.01; done";

/// Takes the address that the process prints.
fn address(process: &mut std::process::Child) -> String {
    let stderr = process.stderr.as_mut().unwrap();
    let line = line_with(&mut BufReader::with_capacity(1, stderr), "answering who leads on");
    line.trim().rsplit_once("http://").unwrap().1.to_owned()
}

fn ask(address: &str, line: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    Answer::read(stream)
}

/// Returns the name, whether the process leads, and the term.
fn leader(address: &str) -> (Option<String>, bool, Option<u64>) {
    let answer = ask(address, "GET /").expect(200);
    assert!(answer.head.contains("content-type: application/json"), "{answer:?}");
    let body = &answer.body;
    (body["name"].as_str().map(Into::into), body["leader"].as_bool().unwrap(), body["token"].as_u64())
}

#[test]
fn candidates_and_observers_answer_who_leads() {
    let sandbox = Sandbox::new();
    let http = "--http 127.0.0.1:0";
    let mut observer = Holder::start(sandbox.leasehold(format!("elect x --observe {http}").split(' ')));
    let observers = address(&mut observer.process);
    wait_until("the observer has read", || ask(&observers, "GET /healthz").status == 200);
    assert_eq!(leader(&observers), (None, false, None));

    let mut first = sandbox.hold(&format!("elect x --ttl 1h {http} --value http://one"), LEADS);
    let (firsts, term) = (address(&mut first.process), first.first.parse().ok());
    assert_eq!(leader(&firsts), (Some("http://one".into()), true, term));
    ask(&firsts, "GET /healthz").expect(200);
    for (line, status) in [("GET /x", 404), ("POST /", 405), ("DELETE /healthz", 405), ("HEAD /", 200)] {
        ask(&firsts, line).expect(status);
    }

    let mut second = sandbox.scripted(&format!("elect x --ttl 1h {http}"), LEADS);
    let second = second.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut second = second.spawn().unwrap();
    let seconds = address(&mut second);
    let theirs = (Some("http://one".into()), false, term);
    wait_until("the follower knows the leader", || leader(&seconds) == theirs);
    wait_until("the observer knows the leader", || leader(&observers) == theirs);
    assert!(observer.line().contains("value http://one"));

    first.signal(Signal::TERM);
    first.end().expect(7);
    wait_until("the follower leads", || leader(&seconds).1);
    let (name, _, later) = leader(&seconds);
    assert!(later > term);
    assert_eq!(name, Some(rustix::system::uname().nodename().to_string_lossy().into_owned()));
    wait_until("the observer knows the next leader", || leader(&observers) == (name.clone(), false, later));
    crate::support::send(i32::try_from(second.id()).unwrap(), Signal::TERM);
    second.wait().unwrap();
    wait_until("the observer knows that nobody leads", || leader(&observers) == (None, false, None));
}

#[test]
fn slow_clients_neither_stop_the_leader_nor_its_answers() {
    let sandbox = Sandbox::new();
    let script = "while :; do echo $LEASEHOLD_TOKEN; sleep 0.1; done";
    let mut candidate = sandbox.hold("elect x --ttl 1s --http 127.0.0.1:0", script);
    let address = address(&mut candidate.process);
    let clients = (0..200).map(|number| {
        let mut client = TcpStream::connect(&address).unwrap();
        let text = ["", "GET / HTTP/1.1\r\nHost: ", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"][number % 3];
        client.write_all(text.as_bytes()).unwrap();
        client
    });
    let clients: Vec<_> = clients.collect();
    // Three times the ttl.
    for _ in 0..30 {
        assert_eq!(candidate.line(), candidate.first);
    }
    assert!(leader(&address).1);
    drop(clients);
}

#[test]
fn an_address_in_use_is_refused_before_the_election() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for what in ["-- touch ran", "--observe"] {
        let refused = sandbox.run(&format!("elect x --http {address} {what}")).expect(125);
        assert!(refused.stderr.contains(&format!("cannot listen on {address}")), "{refused:?}");
        assert!(refused.stderr.contains("--http") && refused.stdout.is_empty(), "{refused:?}");
    }
    assert!(!sandbox.path("ran").exists() && !sandbox.path("state").exists(), "the store was not opened");
    sandbox.run("elect x --http nowhere -- true").expect(2);
}
