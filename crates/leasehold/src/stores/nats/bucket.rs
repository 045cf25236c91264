//! The stream of a bucket: whether its settings keep all locks.

use std::collections::BTreeMap;

use async_nats::HeaderMap;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors::Refusal;
use super::keys::{Copies, Keys};
use super::link::Link;
use super::message::{answer, micros};
use crate::error::{ErrorKind, Fault, StoreError};

/// The oldest supported server. The leader of an older cluster can accept two writes that expect the same revision: at
/// the same time, or right after its election, before it knows all earlier writes.
const OLDEST: (u64, u64) = (2, 11);

/// The settings and the state of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Bucket {
    config: Value,
    /// `None` if the server is in no cluster.
    cluster: Option<Group>,
    /// The time of the server that responds: the stream's leader, if there is one.
    ts: Option<String>,
    #[serde(default)]
    state: State,
    /// How many subjects there are. A response describes only some of them.
    #[serde(default)]
    pub(super) total: u64,
}

/// The replicas of a stream.
#[derive(Debug, Deserialize)]
struct Group {
    #[serde(default)]
    leader: String,
}

#[derive(Debug, Default, Deserialize)]
struct State {
    /// The number of messages with each subject.
    subjects: Option<BTreeMap<String, u64>>,
}

/// The subject of a request of JetStream's API.
pub(super) fn api(operation: &str, keys: &Keys) -> String {
    format!("$JS.API.STREAM.{operation}.{}", keys.stream())
}

/// Asks for the settings of the bucket. Returns a refusal that is about the bucket, and not about the server. A server
/// that is cut off from its cluster may respond: it refuses, or it describes a bucket without a leader.
pub(super) async fn ask(link: &Link, keys: &Keys) -> Result<Result<Bucket, Refusal>, StoreError> {
    let response = link.request(api("INFO", keys), HeaderMap::new(), Bytes::new()).await?;
    let found = answer::<Bucket>(&response, keys).map_err(Fault::not_applied)?;
    match &found {
        Ok(bucket) if !bucket.has_leader() => {
            Err(Fault::unavailable(format!("{} knows no leader of the bucket {:?}", link.host, keys.bucket))
                .with_help("is the server connected to its cluster, and do most servers of the bucket run?")
                .not_applied())
        }
        Err(refusal) if refusal.error(&keys.bucket).is_transient() => Err(refusal.error(&keys.bucket)),
        _ => Ok(found),
    }
}

impl Bucket {
    fn has_leader(&self) -> bool {
        self.replicas() <= 1 || self.cluster.as_ref().is_some_and(|group| !group.leader.is_empty())
    }

    /// Returns the subjects in the response.
    pub(super) fn subjects(self) -> Vec<String> {
        self.state.subjects.unwrap_or_default().into_keys().collect()
    }

    /// Returns the time in the response, in microseconds since the Unix epoch.
    pub(super) fn time_us(&self) -> Option<u64> {
        micros(self.ts.as_ref()?)
    }

    fn number(&self, setting: &str) -> i64 {
        self.config[setting].as_i64().unwrap_or(0)
    }

    fn is(&self, setting: &str, value: &str) -> bool {
        self.config[setting].as_str() == Some(value)
    }

    pub(super) fn replicas(&self) -> i64 {
        self.number("num_replicas")
    }

    /// Returns which copies the server publishes, if they have the values.
    pub(super) fn copies(&self) -> Option<Copies> {
        let setting = &self.config["republish"];
        let beginning = |pattern: &str| Some(setting[pattern].as_str()?.strip_suffix('>')?.to_owned());
        let copies = Copies { source: beginning("src")?, destination: beginning("dest")? };
        (setting["headers_only"] != true).then_some(copies)
    }

    /// Fails if the bucket can lose locks, or if its leader is too old. During an upgrade of a cluster, the client may
    /// be connected to a newer server.
    pub(super) fn check(&self, keys: &Keys) -> Result<(), Fault> {
        let unsupported = |message: String, help: &str| {
            Err(Fault::new(ErrorKind::Unsupported, message).with_help(help.to_owned()))
        };
        let config = &self.config;
        // The server that responds states its version. Older ones state none.
        let version = config["metadata"]["_nats.ver"].as_str().unwrap_or("2.10 or older");
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
            let (major, minor) = OLDEST;
            return unsupported(
                format!("the server that leads the bucket {:?} has version {version}", keys.bucket),
                &format!("use NATS {major}.{minor} or newer on all servers"),
            );
        }
        let drops_old = self.is("discard", "old");
        let flaws = [
            (self.number("max_age") > 0, "max_age (ttl) deletes locks"),
            (drops_old && self.number("max_msgs") > 0, "max_msgs with discard=old deletes locks"),
            (drops_old && self.number("max_bytes") > 0, "max_bytes with discard=old deletes locks"),
            (config["discard_new_per_subject"] == true, "discard_new_per_subject refuses to renew locks"),
            (!self.is("retention", "limits"), "its retention is not `limits`, so readers delete locks"),
            (self.is("storage", "memory"), "storage=memory loses all locks when the servers restart"),
            (self.is("persist_mode", "async"), "persist_mode=async confirms writes that are not stored yet"),
            (config["no_ack"] == true, "no_ack confirms no write"),
            (!config["mirror"].is_null(), "it is a mirror, which lags behind its origin"),
            (
                config["sources"].as_array().is_some_and(|sources| !sources.is_empty()),
                "it copies other streams, which change locks without their revision",
            ),
            (!config["subject_transform"].is_null(), "subject_transform renames locks"),
            (
                self.number("max_msgs_per_subject") < 1,
                "without max_msgs_per_subject, every renewal stays in it",
            ),
        ];
        match flaws.into_iter().find_map(|(is_so, flaw)| is_so.then_some(flaw)) {
            Some(flaw) => unsupported(
                format!("the bucket {:?} is not safe for locks: {flaw}", keys.bucket),
                "use a bucket that `leasehold init` created, or one without these settings; it may be shared with other keys",
            ),
            None => Ok(()),
        }
    }
}

/// The settings of a new bucket: those that NATS's own clients give a bucket, and copies for waiters. Its revisions
/// begin with `first`.
pub(super) fn settings(keys: &Keys, replicas: u64, first: u64) -> Value {
    let Copies { source, destination } = Copies::made_for(keys);
    json!({
        "name": keys.stream(),
        "description": "locks of leasehold",
        "subjects": [format!("$KV.{}.>", keys.bucket)],
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "discard": "new",
        "deny_delete": true,
        "allow_rollup_hdrs": true,
        "allow_direct": true,
        "first_seq": first,
        // A subscription to the keys themselves would receive a write before it is stored, and refused ones too.
        "republish": { "src": format!("{source}>"), "dest": format!("{destination}>") },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: &str, changes: &[(&str, Value)]) -> Result<(), Fault> {
        let keys = Keys::below("b", "");
        let mut config = settings(&keys, 3, 1);
        if !version.is_empty() {
            config["metadata"] = json!({ "_nats.ver": version });
        }
        for (name, value) in changes {
            config[name] = value.clone();
        }
        Bucket { config, cluster: None, ts: None, state: State::default(), total: 0 }.check(&keys)
    }

    #[test]
    fn copies_are_those_of_the_settings() {
        let keys = Keys::below("b", "p");
        let copies = |change: fn(&mut Value)| {
            let mut config = settings(&keys, 3, 1);
            change(&mut config["republish"]);
            let bucket = Bucket { config, cluster: None, ts: None, state: State::default(), total: 0 };
            bucket.copies().and_then(|copies| copies.of("$KV.b.p.a/b.lock"))
        };
        assert_eq!(copies(|_| ()).as_deref(), Some("leasehold.b.p.a/b.lock"));
        assert_eq!(
            copies(|setting| *setting = json!({ "src": ">", "dest": "c.>" })).as_deref(),
            Some("c.$KV.b.p.a/b.lock")
        );
        assert_eq!(copies(|setting| *setting = Value::Null), None);
        assert_eq!(copies(|setting| setting["src"] = json!("$KV.b.q.>")), None);
        assert_eq!(copies(|setting| setting["headers_only"] = json!(true)), None);
    }

    #[test]
    fn a_bucket_that_can_lose_locks_is_refused() {
        for (version, changes) in [
            ("2.11.0", vec![]),
            ("2.15.3", vec![("max_msgs", json!(9)), ("max_bytes", json!(9))]),
            ("3.0.0-beta.1", vec![("max_msgs_per_subject", json!(64)), ("sources", json!([]))]),
        ] {
            check(version, &changes).unwrap();
        }
        let old = ("discard", json!("old"));
        for (version, changes, named) in [
            ("2.10.29", vec![], "2.10.29"),
            // A leader of 2.10 states no version.
            ("", vec![], "2.10"),
            ("2.15.3", vec![("max_age", json!(1))], "max_age"),
            ("2.15.3", vec![old.clone(), ("max_msgs", json!(9))], "max_msgs"),
            ("2.15.3", vec![old, ("max_bytes", json!(9))], "max_bytes"),
            ("2.15.3", vec![("retention", json!("workqueue"))], "retention"),
            ("2.15.3", vec![("storage", json!("memory"))], "memory"),
            ("2.15.3", vec![("discard_new_per_subject", json!(true))], "per_subject"),
            ("2.15.3", vec![("persist_mode", json!("async"))], "persist_mode"),
            ("2.15.3", vec![("no_ack", json!(true))], "no_ack"),
            ("2.15.3", vec![("max_msgs_per_subject", json!(-1))], "max_msgs_per_subject"),
            ("2.15.3", vec![("mirror", json!({"name": "KV_a"}))], "mirror"),
            ("2.15.3", vec![("sources", json!([{"name": "KV_a"}]))], "copies"),
            ("2.15.3", vec![("subject_transform", json!({"src": "a", "dest": "b"}))], "subject_transform"),
        ] {
            let fault = check(version, &changes).unwrap_err();
            assert!(fault.message.contains(named) && fault.help.is_some(), "{fault:?}");
        }
    }
}
