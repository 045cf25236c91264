//! Traces, as a collector receives them.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;
use serde_json::json;

use super::{Server, bearer, key_of};
use crate::support::{Outcome, Sandbox};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector on this machine, and the bodies that it has received.
struct Collector {
    url: String,
    bodies: Receiver<Vec<u8>>,
}

/// An exported span.
#[derive(Debug, Default)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: u64,
    attributes: HashMap<String, String>,
    /// The ids of the spans to which it is linked.
    links: Vec<String>,
}

const SERVER: u64 = 2;
const CLIENT: u64 = 3;

impl Collector {
    /// Starts a collector. Without `responds`, it reads requests but never responds.
    fn start(responds: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, bodies) = channel();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let head: Vec<String> =
                    reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
                assert_eq!(head[0], "POST /v1/traces HTTP/1.1");
                let header = |name: &str| {
                    let of_name = |line: &&String| line.to_lowercase().starts_with(name);
                    head.iter().find(of_name).unwrap()[name.len()..].trim().to_owned()
                };
                assert_eq!(header("content-type:"), "application/x-protobuf");
                let mut body = vec![0; header("content-length:").parse().unwrap()];
                reader.read_exact(&mut body).unwrap();
                sender.send(body).unwrap();
                if responds {
                    stream
                        .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                        .unwrap();
                } else {
                    silent.push(stream);
                }
            }
        });
        Self { url, bodies }
    }

    /// Starts a server that exports its spans to this collector, at the latest when it ends.
    fn server(&self, sandbox: &Sandbox, environment: &[(&str, &str)]) -> Server {
        let endpoint =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", self.url.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "600000")];
        Server::start_in(sandbox, "", endpoint.iter().chain(environment).copied())
    }

    /// Returns all spans received so far.
    fn spans(&self) -> Vec<Span> {
        self.bodies.try_iter().flat_map(|body| spans(&body)).collect()
    }
}

/// Parses a Protocol Buffers message. Returns for each field its number and its value: bytes, or a number as text.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => varint(&mut bytes).to_string().into_bytes(),
            kind => {
                let length = match kind {
                    1 => 8,
                    2 => usize::try_from(varint(&mut bytes)).unwrap(),
                    5 => 4,
                    _ => panic!("not a field: {key}"),
                };
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                value.to_vec()
            }
        };
        fields.push((key >> 3, value));
    }
    fields
}

/// Returns the fields `number` of all `messages`.
fn parts(messages: &[Vec<u8>], number: u64) -> Vec<Vec<u8>> {
    let all = messages.iter().flat_map(|message| fields(message));
    all.filter(|(of, _)| *of == number).map(|(_, part)| part).collect()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the key and the value of an attribute.
fn attribute(bytes: &[u8]) -> (String, String) {
    let bytes = [bytes.to_vec()];
    let value =
        parts(&bytes, 2).iter().flat_map(|value| fields(value)).map(|(_, value)| text(value)).collect();
    (text(parts(&bytes, 1).remove(0)), value)
}

/// Returns the spans of an `ExportTraceServiceRequest`.
fn spans(body: &[u8]) -> Vec<Span> {
    let of_scopes = parts(&parts(&[body.to_vec()], 1), 2);
    let spans = parts(&of_scopes, 2).into_iter().map(|bytes| {
        let mut span = Span::default();
        for (number, value) in fields(&bytes) {
            match number {
                1 => span.trace = hex(&value),
                2 => span.id = hex(&value),
                4 => span.parent = hex(&value),
                5 => span.name = text(value),
                6 => span.kind = text(value).parse().unwrap(),
                9 => span.attributes.extend([attribute(&value)]),
                13 => span.links.extend(parts(&[value], 2).iter().map(|id| hex(id))),
                _ => {}
            }
        }
        span
    });
    spans.collect()
}

fn acquire(server: &Server, lock: &str, more: &[(&str, &str)], wait: &str) -> String {
    let key = key_of(lock);
    let headers = [more, &[("Idempotency-Key", key.as_str())]].concat();
    server.post("/v1/holds", &headers, &json!({ "lock": lock, "wait": wait })).expect(201).ticket()
}

fn ended(server: Server) -> Outcome {
    server.signal(Signal::TERM);
    server.end().expect(0)
}

#[test]
fn an_acquisition_is_below_the_span_of_its_client() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start(true));
    let server =
        collector.server(&sandbox, &[("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")]);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let ticket = acquire(&server, "deploy/prod", &[("traceparent", &parent)], "0s");
    server.get("/v1/locks/deploy/prod").expect(200);
    server.get("/healthz").expect(204);
    server.get("/unknown/secret-path").expect(404);
    let operator = server.operator.clone();
    ended(server);

    let body = collector.bodies.recv().unwrap();
    let raw = String::from_utf8_lossy(&body);
    assert!(!raw.contains(&ticket) && !raw.contains(&operator) && !raw.contains("secret-path"), "{raw}");
    let resource = parts(&parts(std::slice::from_ref(&body), 1), 1);
    let resource: HashMap<_, _> = parts(&resource, 1).iter().map(|bytes| attribute(bytes)).collect();
    assert_eq!(resource["service.name"], "leasehold");
    assert_eq!(resource["deployment.environment.name"], "test");

    let spans = spans(&body);
    let below = |parent: &str| {
        let mut below = spans.iter().filter(|span| span.parent == parent);
        let one = below.next().unwrap_or_else(|| panic!("{spans:#?}"));
        assert!(below.next().is_none() && one.trace == TRACE, "{spans:#?}");
        one
    };
    let http = below(PARENT);
    assert_eq!((http.name.as_str(), http.kind), ("POST /v1/holds", SERVER));
    let attributes = ["http.request.method", "http.route", "http.response.status_code"];
    assert_eq!(attributes.map(|name| http.attributes[name].as_str()), ["POST", "/v1/holds", "201"]);
    let acquire = below(&http.id);
    assert_eq!(
        (acquire.name.as_str(), acquire.attributes["lock"].as_str()),
        ("leasehold.acquire", "deploy/prod")
    );
    let request = below(&acquire.id);
    assert_eq!((request.name.as_str(), request.kind), ("leasehold.request", CLIENT));

    // The other requests have separate traces.
    let roots: Vec<_> = spans.iter().filter(|span| span.parent.is_empty()).collect();
    let mut names: Vec<_> = roots.iter().map(|span| span.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, ["GET", "GET /v1/locks/{*name}"], "no probe");
    assert!(roots.iter().all(|root| root.trace != TRACE));
}

#[test]
fn a_hold_is_linked_with_its_acquisition() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start(true));
    let server = collector.server(&sandbox, &[("OTEL_SERVICE_NAME", "locks")]);
    // A permit has a guard until it is turned into a ticket.
    let request = json!({ "lock": "x", "permits": 2 });
    server.post("/v1/holds", &[("Idempotency-Key", &key_of("x"))], &request).expect(201);
    ended(server);
    let spans = collector.spans();
    // Before it, a permit may have been returned, because the first permit had no size yet.
    let is_ticket = |span: &&Span| span.name == "leasehold.hold" && span.attributes["outcome"] == "handed_on";
    let hold = spans.iter().find(is_ticket).unwrap_or_else(|| panic!("{spans:#?}"));
    assert!(hold.parent.is_empty(), "{hold:?}");
    let linked = spans.iter().find(|span| hold.links == [span.id.clone()]).unwrap();
    assert!(linked.name == "leasehold.acquire" && linked.trace != hold.trace, "{linked:?}");
}

#[test]
fn an_acquisition_that_waits_is_below_its_request() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start(true));
    let server = collector.server(&sandbox, &[]);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    acquire(&server, "x", &[("traceparent", &parent)], "10s");
    // Malformed, so it is ignored.
    acquire(&server, "y", &[("traceparent", &parent[1..])], "10s");
    ended(server);
    let spans = collector.spans();
    let of = |lock: &str| {
        let acquires = |span: &&Span| span.name == "leasehold.acquire" && span.attributes["lock"] == lock;
        let acquire = spans.iter().find(acquires).unwrap();
        let waiting = spans.iter().find(|span| span.id == acquire.parent).unwrap();
        let http = spans.iter().find(|span| span.id == waiting.parent).unwrap();
        assert_eq!((waiting.name.as_str(), http.kind), ("leasehold.waiting", SERVER));
        assert_eq!([&acquire.trace, &waiting.trace], [&http.trace; 2]);
        (http.trace.as_str(), http.parent.as_str())
    };
    assert_eq!(of("x"), (TRACE, PARENT));
    let (trace, parent) = of("y");
    assert!(trace != TRACE && parent.is_empty());
}

#[test]
fn a_caller_that_is_not_sampled_has_no_spans() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start(true));
    let server = collector.server(&sandbox, &[]);
    acquire(&server, "x", &[("traceparent", &format!("00-{TRACE}-{PARENT}-00"))], "0s");
    ended(server);
    assert!(collector.spans().is_empty());
}

#[test]
fn a_stranger_does_not_decide_what_is_sampled() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start(true));
    let rules: [(&str, &str, &[&str]); 1] = [("ci", "", &["read"])];
    let access = super::access::file(&sandbox, &[("ci", "token-of-ci"), ("none", "token-of-none")], &rules);
    let endpoint = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "600000"),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
    ];
    let server = Server::start_in(&sandbox, &format!("--access {}", access.display()), endpoint.into_iter());
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let ask = |line: &str, token: &str| {
        let token = bearer(token);
        server.ask(line, &[("traceparent", &*parent), ("Authorization", &*token)], "")
    };
    ask("GET /v1/locks", "wrong").expect(401);
    ask("GET /v1/locks", "token-of-none").expect(403);
    server.ask("GET /ui/sign-in", &[("traceparent", &*parent)], "").expect(200);
    ask("GET /v1/locks/x", "token-of-ci").expect(200);
    ended(server);
    let spans = collector.spans();
    let names: Vec<_> =
        spans.iter().filter(|span| span.kind == SERVER).map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["GET /v1/locks/{*name}"], "{spans:#?}");
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:#?}");
}

#[test]
fn a_silent_collector_delays_nothing() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start(false));
    let environment = [("OTEL_BSP_SCHEDULE_DELAY", "1"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")];
    let server = collector.server(&sandbox, &environment);
    server.get("/v1/locks").expect(200);
    collector.bodies.recv().unwrap();
    // The exporter now waits for a response.
    let ticket = acquire(&server, "x", &[], "0s");
    server.release(&ticket).expect(200);
    ended(server);
}

#[test]
fn a_collector_that_cannot_be_reached_is_reported() {
    let sandbox = Sandbox::new();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://user:password@{closed}/v1/traces");
    let environment =
        [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "1")];
    let mut server = Server::start_in(&sandbox, "", environment.into_iter());
    server.get("/v1/locks").expect(200);
    let mut log = BufReader::new(server.process.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    assert!(line.contains("WARN") && line.contains("traces could not be exported"), "{line}");
    assert!(!line.contains("password"), "{line}");
    let ticket = acquire(&server, "x", &[], "0s");
    server.release(&ticket).expect(200);
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let sandbox = Sandbox::new();
    let refused = |variables: &[(&str, &str)]| {
        // If the server accepted the variables, it would fail at this option.
        let mut command = sandbox.leasehold(["serve", "--access", "nowhere"]);
        Outcome::of(command.envs(variables.iter().copied()).output().unwrap())
    };
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317");
    let grpc = refused(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
    assert!(grpc.code == 2 && grpc.stderr.contains("http/protobuf"), "{grpc:?}");
    for url in ["user:password@localhost:4318", "http://user:password@local host", "unix:/password"] {
        let url = refused(&[("OTEL_EXPORTER_OTLP_ENDPOINT", url)]);
        assert!(url.code == 2 && url.stderr.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{url:?}");
        assert!(!url.stderr.contains("password"), "{url:?}");
    }
}
