//! Kubernetes, on a real kube-apiserver, with a namespace for each test.

use std::io;
use std::path::Path;
use std::thread;

use async_trait::async_trait;
use leasehold::LockName;
use serde_json::{Value, json};
use tokio::process::Command;

#[cfg(feature = "chaos")]
use crate::chaos::{plan::Kind as Fault, scenario::Scenario, servers::Http};
use crate::conformance::Harness;
use crate::harness::Fresh;
use crate::http;
use crate::launch::{Launch, STORE, measured, options, program};
use crate::peers::Program;
use crate::servers::{Server, endpoint, parsed, unique};
use crate::test_store::{Bench, Budget, Kind, Storage, TestStore};

impl Server {
    /// kube-apiserver with its etcd. The URL leads to a forwarder that accepts plain HTTP and acts as an
    /// administrator.
    pub const KUBERNETES: Self = Self { variable: "LEASEHOLD_TEST_KUBERNETES" };
}

impl Program {
    /// A peer: client-go's leader election.
    pub const CLIENT_GO: Self = Self::peer("LEASEHOLD_TEST_PEER_CLIENT_GO", |url| {
        options(&[("--server", &format!("http://{}", address(url))), ("--namespace", &namespace(url))])
    });
}

/// Kubernetes.
#[derive(Debug)]
pub struct Kubernetes;

#[async_trait]
impl TestStore for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn storages(&self) -> &'static [Storage] {
        const { &[Storage::at("kubernetes", Server::KUBERNETES, Kind::Http)] }
    }

    fn fresh_url(&self, _storage: &Storage, _folder: &Path) -> String {
        in_new_namespace(&Server::KUBERNETES.url())
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    /// Does the same as `kubectl delete lease`. Works only for locks whose names Kubernetes accepts.
    async fn delete_record(&self, url: &str, name: &LockName) {
        let (status, answer) = lease(url, "DELETE", name.as_str(), None).await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        lease(url, "GET", name.as_str(), None).await.1.to_string()
    }

    fn budget(&self) -> Option<Budget> {
        Some(Budget {
            request: |seen| {
                let is_create = seen.method == "POST" && has(&seen.body, b"\"name\":\"lock\"");
                (is_create || seen.path.ends_with("/leases/lock")).then(|| seen.method.clone())
            },
            examines_first: false,
            first: &["GET", "POST"],
            cold: &["GET", "PATCH"],
            refusal: &["GET"],
            read: "GET",
            write: "PATCH",
            joins: 1,
            write_method: "PATCH",
        })
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const KUBERNETES: Scenario = Scenario::store(
            "kubernetes",
            |folder, workers| Http::start(&ApiServer, folder, workers),
            &[Fault::StopServer, Fault::KillServer],
        );
        const ALL: &[Scenario] = &[KUBERNETES];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench {
            title: "Kubernetes Lease (kube-apiserver)",
            scenarios: "abcdefij",
            server: Some(|folder| measured(&ApiServer, folder)),
        }
    }
}

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Creates a namespace on the server of `url` and returns its store URL.
///
/// # Panics
/// When the namespace cannot be created.
pub fn in_new_namespace(url: &str) -> String {
    let (name, address) = (format!("t-{}", unique()), address(url));
    let url = url.replacen(&format!("k8s://{}", namespace(url)), &format!("k8s://{name}"), 1);
    // A separate thread, because the caller may be inside a runtime.
    let made = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(make_namespace(&address, &name)).unwrap();
    });
    made.join().expect("the namespace was not made");
    url
}

async fn make_namespace(address: &str, name: &str) -> io::Result<()> {
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    match ask(address, "POST", "/api/v1/namespaces", Some(&object)).await? {
        // 409: an earlier attempt created the namespace, but its response was lost.
        (201 | 409, _) => Ok(()),
        (status, answer) => Err(io::Error::other(format!("no namespace: {status} {answer}"))),
    }
}

/// Returns the namespace that `url` names.
pub fn namespace(url: &str) -> String {
    parsed(url).authority().expect("a namespace").to_owned()
}

/// Returns the `host:port` of the forwarder in `url`.
pub fn address(url: &str) -> String {
    let endpoint = parsed(url).option("endpoint").expect("an endpoint").to_owned();
    endpoint.trim_start_matches("http://").to_owned()
}

/// Sends a request about the Lease `object` in the namespace of `url`, as an administrator. Returns the status and the
/// object of the response.
///
/// # Panics
/// When there is no response.
pub async fn lease(url: &str, method: &str, object: &str, body: Option<&Value>) -> (u16, Value) {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{object}", namespace(url));
    ask(&address(url), method, path.trim_end_matches('/'), body).await.unwrap()
}

/// Sends a request to the server at `address`, as an administrator.
///
/// # Errors
/// When there is no response.
pub async fn ask(address: &str, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, Value)> {
    ask_with(address, method, path, "accept: application/json\r\n", body).await
}

/// Like [`ask`], with these headers. Each of them must end with a line break.
///
/// # Errors
/// When there is no response.
pub async fn ask_with(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: Option<&Value>,
) -> io::Result<(u16, Value)> {
    let media_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let headers = format!("{headers}content-type: {media_type}\r\n");
    let body = body.map(Value::to_string).unwrap_or_default();
    let (status, answer) = http::exchange(address, method, path, &headers, body.as_bytes()).await?;
    Ok((status, serde_json::from_slice(&answer).unwrap_or(Value::Null)))
}

/// kube-apiserver with its etcd, in one process.
#[derive(Debug)]
struct ApiServer;

#[async_trait]
impl Launch for ApiServer {
    fn command(&self, address: &str, folder: &Path) -> Command {
        let mut server = Command::new(program("LEASEHOLD_TEST_KUBE_APISERVER"));
        server.arg(address).arg(folder).arg(program("LEASEHOLD_TEST_ETCD_SERVER"));
        server
    }

    async fn make_store(&self, address: &str) -> io::Result<String> {
        make_namespace(address, STORE).await?;
        Ok(format!("k8s://{STORE}?{}", endpoint(address)))
    }

    fn options(&self, address: &str) -> Vec<String> {
        options(&[("--server", &format!("http://{address}")), ("--namespace", STORE)])
    }
}
