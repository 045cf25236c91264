//! Tests of `leasehold serve` with real servers on free ports. Requests are sent as bytes, so that no library corrects
//! them.

mod access;
mod bad_input;
mod claims;
mod dashboard;
mod holds;
mod leader;
mod limits;
#[cfg(feature = "oidc")]
mod oidc;
#[cfg(feature = "otlp")]
mod otlp;
mod records;
mod replicas;
mod tls;
mod views;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Outcome, Sandbox, send};

/// A secret that the servers of one store share.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A running server. Killed when dropped.
struct Server {
    process: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
    /// The token that may evict if there is no access file.
    operator: String,
    /// The address of `/metrics`, if it is served.
    metrics: String,
}

/// A response.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Value,
}

impl Server {
    /// Starts a server on the sandbox's store with additional `arguments`.
    fn start(sandbox: &Sandbox, arguments: &str) -> Self {
        Self::start_in(sandbox, arguments, std::iter::empty())
    }

    /// Starts a server with these variables in its environment.
    fn start_in<'a>(
        sandbox: &Sandbox,
        arguments: &str,
        environment: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let secret = sandbox.write("secret", SECRET);
        Self::launch(sandbox, &secret, arguments, environment)
    }

    fn start_with_secret(sandbox: &Sandbox, secret: &Path, arguments: &str) -> Self {
        Self::launch(sandbox, secret, arguments, std::iter::empty())
    }

    fn launch<'a>(
        sandbox: &Sandbox,
        secret: &Path,
        arguments: &str,
        environment: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let listen = if arguments.contains("--listen ") { "" } else { "--listen 127.0.0.1:0" };
        let line = format!("serve --json {listen} --secret-file {} {arguments}", secret.display());
        let mut command = sandbox.leasehold(line.split_whitespace());
        let mut process =
            command.envs(environment).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut first = String::new();
        stdout.read_line(&mut first).unwrap();
        let Ok(started) = serde_json::from_str::<Value>(&first) else {
            panic!("it did not start: {:?}", process.wait_with_output());
        };
        let text = |field: &str| started[field].as_str().unwrap_or_default().to_owned();
        let address = text("address").split_once("://").unwrap().1.to_owned();
        let metrics = text("metrics").trim_start_matches("http://").trim_end_matches("/metrics").to_owned();
        Self { process, stdout, address, operator: text("operator_token"), metrics }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }

    /// Waits until the server has ended.
    fn end(mut self) -> Outcome {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut stdout).unwrap();
        self.process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Outcome::new(self.process.wait().unwrap(), stdout, stderr)
    }

    /// Sends a request and leaves the connection open.
    fn send(&self, line: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let mut head = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        // A server may respond and close before it has read a long body.
        let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
        stream
    }

    fn ask(&self, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        Answer::read(self.send(line, headers, body))
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path}"), &[], "")
    }

    fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let headers = [headers, &[("Content-Type", "application/json")]].concat();
        self.ask(&format!("POST {path}"), &headers, &body.to_string())
    }

    /// Requests `lock` with `key`, without waiting.
    fn acquire(&self, lock: &str, key: &str) -> Answer {
        self.acquire_with(key, &json!({ "lock": lock }))
    }

    fn acquire_with(&self, key: &str, request: &Value) -> Answer {
        self.post("/v1/holds", &[("Idempotency-Key", &key_of(key))], request)
    }

    fn renew(&self, ticket: &str) -> Answer {
        self.post("/v1/holds/renew", &[], &json!({ "ticket": ticket }))
    }

    fn release(&self, ticket: &str) -> Answer {
        self.post("/v1/holds/release", &[], &json!({ "ticket": ticket }))
    }

    fn state(&self, lock: &str) -> Value {
        self.get(&format!("/v1/locks/{lock}")).expect(200).body
    }

    /// Returns how many requests wait for `lock`.
    fn waiters(&self, lock: &str) -> usize {
        self.state(lock)["waiters"].as_array().unwrap().len()
    }

    fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Answer {
    fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        // A reset after the response does not matter.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = serde_json::from_str(body).unwrap_or(Value::Null);
        Self { status, head: head.to_ascii_lowercase(), body }
    }

    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:#?}");
        self
    }

    /// Expects a problem of `kind`.
    #[track_caller]
    fn problem(self, status: u16, kind: &str) -> Self {
        let answer = self.expect(status);
        assert!(answer.head.contains("content-type: application/problem+json"), "{answer:#?}");
        assert_eq!(answer.body["type"], format!("urn:leasehold:{kind}"), "{answer:#?}");
        assert!(
            !answer.body["detail"].as_str().unwrap().is_empty() && answer.body["status"] == status,
            "{answer:#?}"
        );
        answer
    }

    fn ticket(&self) -> String {
        self.body["ticket"].as_str().unwrap().to_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let start = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&*start))
    }
}

/// Returns a key of the required length.
fn key_of(short: &str) -> String {
    format!("the-key-of-this-test-{short}")
}

/// Returns the value of the `Authorization` header for a bearer token.
fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}
