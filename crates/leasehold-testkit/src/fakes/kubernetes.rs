//! The Leases of a kube-apiserver in memory: get, create, merge patches, deletes and listings of one namespace, under the
//! server's conditions. It refuses watches. Also another client of the same Leases: the leader election of client-go.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use leasehold::env::Env;
use serde_json::{Value, json};

use super::Server;

/// Called with the Lease before and after each write of a request, in JSON.
type OnCommit = dyn Fn(Option<&Value>, Option<&Value>) + Send + Sync;

/// The server.
pub(crate) struct FakeKubernetes {
    env: Env,
    on_commit: Box<OnCommit>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    leases: BTreeMap<String, Lease>,
    /// The latest resourceVersion.
    version: u64,
}

#[derive(Debug)]
struct Lease {
    object: Value,
    /// Since when client-go sees what it sees now.
    since: Duration,
}

impl fmt::Debug for FakeKubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeKubernetes").field("state", &*self.state()).finish_non_exhaustive()
    }
}

impl FakeKubernetes {
    pub(crate) fn new(
        env: Env,
        on_commit: impl Fn(Option<&Value>, Option<&Value>) + Send + Sync + 'static,
    ) -> Self {
        Self { env, on_commit: Box::new(on_commit), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.env.now().since_boot()
    }

    /// Returns the Lease `name`.
    pub(crate) fn lease(&self, name: &str) -> Option<Value> {
        self.state().leases.get(name).map(|lease| lease.object.clone())
    }

    /// Deletes the Lease `name` by hand.
    pub(crate) fn delete(&self, name: &str) -> bool {
        self.state().leases.remove(name).is_some()
    }

    /// Tries to lead as `me` with client-go's election, or to lead on, for this many seconds. `drops` says whether the
    /// client is one that replaces the whole Lease, with its annotations. Such a client is as fast as it may be: it knows
    /// at once of each change.
    pub(crate) fn campaign(&self, name: &str, me: &str, seconds: u64, drops: bool) -> bool {
        let (now, mut state) = (self.now(), self.state());
        let there = state.leases.get(name);
        let spec = there.map_or(&Value::Null, |lease| &lease.object["spec"]);
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        let lasts = Duration::from_secs(spec["leaseDurationSeconds"].as_u64().unwrap_or(0));
        if !holder.is_empty() && holder != me && there.is_some_and(|lease| now < lease.since + lasts) {
            return false;
        }
        let time = self.time();
        let transitions = spec["leaseTransitions"].as_u64().unwrap_or(0) + u64::from(holder != me);
        let acquired = if holder == me { spec["acquireTime"].clone() } else { json!(time) };
        let spec = json!({
            "holderIdentity": me, "leaseDurationSeconds": seconds, "acquireTime": acquired, "renewTime": time,
            "leaseTransitions": if there.is_some() { transitions } else { 0 },
        });
        self.update(&mut state, name, spec, drops);
        true
    }

    /// Ends the leadership of `me`, as client-go does it. Returns whether it led.
    pub(crate) fn resign(&self, name: &str, me: &str) -> bool {
        let mut state = self.state();
        let spec = state.leases.get(name).map_or(&Value::Null, |lease| &lease.object["spec"]);
        if spec["holderIdentity"] != me {
            return false;
        }
        let time = self.time();
        let spec = json!({
            "holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": time, "renewTime": time,
            "leaseTransitions": spec["leaseTransitions"],
        });
        self.update(&mut state, name, spec, false);
        true
    }

    /// Writes `spec` with an update (PUT).
    fn update(&self, state: &mut State, name: &str, spec: Value, drops: bool) {
        let mut object = state.leases.get(name).map_or_else(|| new(name), |lease| lease.object.clone());
        object["spec"] = spec;
        if drops && let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("annotations");
        }
        state.put(name, object, self.now());
    }

    /// Returns the time on the machine of the other client, whose clock is an hour off.
    fn time(&self) -> String {
        let us = self.env.now().wall_us() + 3_600_000_000;
        let (seconds, us) = (us / 1_000_000, us % 1_000_000);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        // Days count from an arbitrary one. Nothing computes with this time.
        let (year, month, day) = (2_000 + days / 336, days / 28 % 12 + 1, days % 28 + 1);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z")
    }

    fn changed(&self, state: &mut State, name: &str, object: Value) -> Response<Bytes> {
        let before = state.leases.get(name).map(|lease| lease.object.clone());
        let is_new = before.is_none();
        let object = state.put(name, object, self.now());
        (self.on_commit)(before.as_ref(), Some(&object));
        reply(if is_new { 201 } else { 200 }, &object)
    }
}

impl State {
    /// Stores `object`, with a new version.
    fn put(&mut self, name: &str, mut object: Value, now: Duration) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let unseen = self.leases.get(name).filter(|lease| seen(&lease.object) == seen(&object));
        let since = unseen.map_or(now, |lease| lease.since);
        self.leases.insert(name.to_owned(), Lease { object: object.clone(), since });
        object
    }
}

fn new(name: &str) -> Value {
    let metadata = json!({ "name": name, "namespace": "jobs", "uid": format!("uid of {name}") });
    json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {} })
}

/// Returns what client-go compares: its times are in whole seconds.
fn seen(object: &Value) -> [String; 5] {
    ["holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"].map(|field| {
        let value = object["spec"][field].to_string();
        if field.ends_with("Time") { value.chars().take(20).collect() } else { value }
    })
}

/// Applies a merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, change) in changes {
        if change.is_null() {
            target.as_object_mut().map(|fields| fields.remove(name));
        } else {
            merge(&mut target[name], change);
        }
    }
}

fn reply(status: u16, body: &Value) -> Response<Bytes> {
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.header("audit-id", "simulated").body(body.to_string().into()).unwrap()
}

/// Returns a response with a Status object.
fn refusal(code: u16, reason: &str, name: &str) -> Response<Bytes> {
    let details = json!({ "group": "coordination.k8s.io", "kind": "leases", "name": name });
    let message = format!("leases.coordination.k8s.io {name:?}: {reason}");
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "details": details, "code": code,
    });
    reply(code, &status)
}

impl Server for FakeKubernetes {
    fn answer(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let in_path = request.uri().path().split_once("/leases").map_or("", |(_, name)| name);
        let name = in_path.trim_start_matches('/');
        let mut state = self.state();
        let there = state.leases.get(name).map(|lease| lease.object.clone());
        let is_at = |object: &Value, version: &Value| {
            version.is_null() || object["metadata"]["resourceVersion"] == *version
        };
        match (request.method(), there) {
            (&Method::GET, _) if request.uri().query().is_some_and(|query| query.contains("watch=1")) => {
                refusal(403, "Forbidden", name)
            }
            (&Method::GET, _) if name.is_empty() => {
                let items: Vec<_> = state.leases.values().map(|lease| &lease.object).collect();
                reply(200, &json!({ "metadata": { "resourceVersion": "1" }, "items": items }))
            }
            (&Method::GET, Some(object)) => reply(200, &object),
            (&Method::POST, _) => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                if state.leases.contains_key(name) {
                    return refusal(409, "AlreadyExists", name);
                }
                let mut object = new(name);
                merge(&mut object, &body);
                self.changed(&mut state, name, object)
            }
            (&Method::PATCH, Some(object)) if is_at(&object, &body["metadata"]["resourceVersion"]) => {
                let mut patched = object.clone();
                merge(&mut patched, &body);
                // A patch without a change writes nothing.
                if patched == object { reply(200, &object) } else { self.changed(&mut state, name, patched) }
            }
            (&Method::DELETE, Some(object)) if is_at(&object, &body["preconditions"]["resourceVersion"]) => {
                state.leases.remove(name);
                (self.on_commit)(Some(&object), None);
                reply(200, &json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
            }
            (&Method::PATCH | &Method::DELETE, Some(_)) => refusal(409, "Conflict", name),
            (&Method::GET | &Method::PATCH | &Method::DELETE, None) => refusal(404, "NotFound", name),
            _ => refusal(405, "MethodNotAllowed", name),
        }
    }

    /// A server that is busy refuses requests before it begins them (429). One that is shutting down responds with 503.
    fn refuses(&self, is_denied: bool, wait: Option<Duration>) -> Response<Bytes> {
        match wait {
            _ if is_denied => refusal(403, "Forbidden", ""),
            None => refusal(503, "ServiceUnavailable", ""),
            Some(wait) => {
                let mut response = refusal(429, "TooManyRequests", "");
                response.headers_mut().insert("retry-after", wait.as_secs().max(1).into());
                response
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(server: &FakeKubernetes, method: Method, path: &str, body: Value) -> (u16, Value) {
        let uri = format!("/apis/coordination.k8s.io/v1/namespaces/jobs/leases{path}");
        let request = Request::builder().method(method).uri(uri).body(body.to_string().into()).unwrap();
        let response = server.answer(&request);
        (response.status().as_u16(), serde_json::from_slice(response.body()).unwrap())
    }

    #[test]
    fn a_lease_changes_only_at_its_version() {
        let server = FakeKubernetes::new(Env::system(), |_, _| {});
        let lease = json!({ "metadata": { "name": "x" }, "spec": { "holderIdentity": "a" } });
        assert_eq!(send(&server, Method::POST, "", lease.clone()).0, 201);
        assert_eq!(send(&server, Method::POST, "", lease).1["reason"], "AlreadyExists");
        let patch = |version: &str, spec: Value| {
            let patch = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
            send(&server, Method::PATCH, "/x", patch)
        };
        assert_eq!(patch("1", json!({ "holderIdentity": "b", "strategy": null })).0, 200);
        assert_eq!(patch("1", json!({ "holderIdentity": "c" })).1["reason"], "Conflict");
        let (_, same) = patch("2", json!({ "holderIdentity": "b" }));
        assert_eq!(
            (&same["metadata"]["resourceVersion"], &same["spec"]["holderIdentity"]),
            (&json!("2"), &json!("b"))
        );
        let delete = |version: &str| {
            let options = json!({ "preconditions": { "resourceVersion": version } });
            send(&server, Method::DELETE, "/x", options).0
        };
        assert_eq!((delete("1"), delete("2"), delete("2")), (409, 200, 404));
        assert_eq!(send(&server, Method::GET, "/x", Value::Null).0, 404);
    }

    #[test]
    fn the_other_client_takes_only_what_is_free_or_lapsed() {
        let server = FakeKubernetes::new(Env::system(), |_, _| {});
        assert!(server.campaign("x", "me", 60, false), "there is no Lease");
        assert!(!server.campaign("x", "you", 0, false), "it is held");
        assert!(
            server.campaign("x", "me", 0, false) && server.campaign("x", "you", 60, true),
            "it has lapsed"
        );
        assert!(!server.resign("x", "me") && server.resign("x", "you"));
        assert!(server.campaign("x", "me", 60, false), "it is free");
        assert_eq!(server.lease("x").unwrap()["spec"]["leaseTransitions"], 2);
    }
}
