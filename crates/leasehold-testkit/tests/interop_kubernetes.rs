//! leasehold beside client-go's leader election on one Lease, and the output of Kubernetes' tools.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{Clock, Deadline, SystemClock};
use leasehold::lease::{Renewal, State, Ttl};
use leasehold::{ErrorKind, LockName, Locker, Released};
use leasehold_testkit::launch::program;
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::{Process, within};
use leasehold_testkit::stores::fresh;
use leasehold_testkit::stores::kubernetes::{address, lease, namespace};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::interop;
use crate::leases::{claim_of, granted_to, until_renewed};
use crate::workers::Worker;

/// client-go's lease duration in these tests.
const TTL: Duration = Duration::from_secs(6);

/// A namespace with one lock.
struct Shared {
    url: String,
    folder: tempfile::TempDir,
}

impl Shared {
    fn new() -> Self {
        Self { url: fresh("kubernetes").url().to_owned(), folder: tempfile::tempdir().unwrap() }
    }

    async fn locker(&self) -> Locker {
        Locker::open(&self.url).await.unwrap()
    }

    fn client_go(&self, verb: &str, more: &[&str]) -> Process {
        let more: Vec<&str> = ["--ttl", "6"].into_iter().chain(more.iter().copied()).collect();
        Program::CLIENT_GO.start(verb, &self.url, "job", &more)
    }

    /// Runs kubectl as an administrator in the namespace of the lock. Returns its output.
    async fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let mut kubectl = Command::new(program("LEASEHOLD_TEST_KUBECTL"));
        kubectl.arg(format!("--server=http://{}", address(&self.url)));
        kubectl.arg(format!("--namespace={}", namespace(&self.url))).args(arguments);
        kubectl.env("HOME", self.folder.path()).env("KUBECONFIG", "/dev/null").kill_on_drop(true);
        kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = kubectl.spawn().unwrap();
        process.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
        let output = within("kubectl", process.wait_with_output()).await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn lease(&self) -> Value {
        let (status, lease) = lease(&self.url, "GET", "job", None).await;
        assert_eq!(status, 200, "{lease}");
        lease
    }

    async fn change(&self, change: Value) {
        let (status, answer) = lease(&self.url, "PATCH", "job", Some(&change)).await;
        assert_eq!(status, 200, "{answer}");
    }
}

fn name() -> LockName {
    "job".parse().unwrap()
}

/// Asserts that a try is refused, and names client-go's process as the holder.
async fn assert_held_by_client_go(locker: &Locker) {
    let refusal = locker.lock("job").try_acquire().await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Held);
    let holder = refusal.holder().and_then(|held| held.holder.clone()).unwrap();
    assert!(holder.name.contains("_client-go_"), "{holder}");
}

#[tokio::test]
async fn client_go_waits_for_us() {
    let shared = Shared::new();
    let guard = shared.locker().await.lock("job").acquire().await.unwrap();
    assert_eq!(shared.client_go("try", &[]).end().await, (vec!["held".to_owned()], Some(1)));
    let mut theirs = shared.client_go("hold", &[]);
    guard.release().await.unwrap();
    theirs.says("granted").await;
    assert_held_by_client_go(&shared.locker().await).await;
    theirs.end_input();
    theirs.says("released").await;
}

#[tokio::test]
async fn we_wait_for_client_go_and_tokens_rise_across_it() {
    let shared = Shared::new();
    let locker = shared.locker().await;
    let guard = locker.lock("job").acquire().await.unwrap();
    let first = guard.token().unwrap();
    guard.release().await.unwrap();
    let mut theirs = shared.client_go("hold", &[]);
    theirs.says("granted").await;
    assert_held_by_client_go(&locker).await;
    let waiting = tokio::spawn({
        let lock = shared.locker().await.lock("job");
        async move { lock.acquire().await }
    });
    // Our waiter marks the Lease, and client-go still renews it.
    let mut renewed = shared.lease().await["spec"]["renewTime"].clone();
    let mut renewals = 0;
    within("renewals", async {
        while renewals < 3 {
            SystemClock.sleep(Duration::from_millis(50)).await;
            let now = shared.lease().await["spec"]["renewTime"].clone();
            renewals += usize::from(now != renewed);
            renewed = now;
        }
    })
    .await;
    assert!(!waiting.is_finished());
    theirs.end_input();
    theirs.says("released").await;
    let guard = within("our turn", waiting).await.unwrap().unwrap();
    assert!(guard.token().unwrap() > first);
    guard.release().await.unwrap();
}

/// A holder that stops renewing is replaced when its lease has ended, and not before.
#[tokio::test]
async fn each_takes_over_after_a_killed_holder_of_the_other() {
    let shared = Shared::new();
    let mut theirs = shared.client_go("hold", &[]);
    theirs.says("granted").await;
    // The waiter must have seen an unchanged lease for its duration.
    let alive = Deadline::new(SystemClock.now(), TTL / 2);
    let mut ours = Worker::start("hold", &shared.url, "job", &["--ttl", "6"]);
    theirs.kill().await;
    ours.granted().await;
    assert!(alive.passed(SystemClock.now()), "granted before client-go's lease can have ended");
    let alive = Deadline::new(SystemClock.now(), Ttl::new(TTL).unwrap().holder_span() / 3);
    let mut theirs = shared.client_go("hold", &[]);
    ours.kill().await;
    theirs.says("granted").await;
    assert!(alive.passed(SystemClock.now()), "granted before the lease of the dead can have ended");
}

/// Our renewals are more frequent than client-go's resolution of a second. client-go must not take over.
#[tokio::test]
async fn a_holder_that_renews_often_keeps_its_lock() {
    let shared = Shared::new();
    let locker = shared.locker().await;
    let store = &**locker.store();
    let mut grant = granted_to(store, &claim_of(store, "job", TTL)).await;
    let mut theirs = shared.client_go("hold", &[]);
    let start = SystemClock.now();
    while SystemClock.now().longest_since(start) < 2 * TTL {
        SystemClock.sleep(Duration::from_millis(400)).await;
        assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    }
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
    theirs.says("granted").await;
}

#[tokio::test]
async fn elections_of_both_have_one_leader() {
    let shared = Shared::new();
    let locker = shared.locker().await;
    let leadership = locker.election("job").value("http://one").campaign().await.unwrap();
    let mut theirs = shared.client_go("hold", &[]);
    assert_eq!(shared.client_go("try", &[]).end().await, (vec!["held".to_owned()], Some(1)));
    leadership.resign().await.unwrap();
    theirs.says("granted").await;
    assert!(locker.election("job").try_campaign().await.is_err());
    let leader = locker.election("job").leader().await.unwrap();
    assert!(leader.is_none_or(|leader| leader.value.is_none()), "client-go advertises nothing");
    theirs.end_input();
    within("our term", locker.election("job").campaign()).await.unwrap().resign().await.unwrap();
}

/// Four processes of each client add to one counter that only the lock protects.
#[tokio::test]
async fn four_of_theirs_and_four_of_ours_count_exactly() {
    let shared = Shared::new();
    let ours = |more: &[&str]| Worker::start("increment", &shared.url, "job", more);
    let theirs = |_, more: &[&str]| shared.client_go("increment", more);
    interop::count_exactly(4, 5, ours, theirs).await;
}

#[tokio::test]
async fn kubectl_shows_our_holder() {
    let shared = Shared::new();
    let lock = shared.locker().await.lock("job").owner("alice");
    let guard = lock.acquire().await.unwrap();
    let spec = shared.lease().await["spec"].clone();
    let identity = spec["holderIdentity"].as_str().unwrap().to_owned();
    assert!(
        identity.starts_with("alice@") && identity.contains(&std::process::id().to_string()),
        "{identity}"
    );
    let table = shared.kubectl(&["get", "lease", "job"], "").await;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "HOLDER", "AGE"]);
    assert_eq!(rows[1][..2], ["job", &identity]);
    guard.release().await.unwrap();
    let free = shared.lease().await["spec"].clone();
    assert_eq!(free["holderIdentity"], "");
    assert_eq!(free["leaseTransitions"], spec["leaseTransitions"]);
    lock.acquire().await.unwrap().release().await.unwrap();
    let transitions = shared.lease().await["spec"]["leaseTransitions"].as_u64();
    assert_eq!(transitions, spec["leaseTransitions"].as_u64().map(|before| before + 1));
}

/// The manifests are those of `docs/stores/kubernetes.md`.
#[tokio::test]
async fn the_server_accepts_the_manifests_of_the_docs() {
    let shared = Shared::new();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/stores/kubernetes.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("\n```yaml\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    let manifests = blocks.collect::<Vec<_>>().join("\n---\n");
    let manifests = manifests.replace("namespace: jobs", &format!("namespace: {}", namespace(&shared.url)));
    let created = shared.kubectl(&["create", "--dry-run=server", "-f", "-"], &manifests).await;
    let kinds: Vec<&str> = created.lines().filter_map(|line| line.split(['.', '/']).next()).collect();
    assert_eq!(kinds, ["role", "deployment", "deployment", "cronjob", "serviceaccount", "rolebinding"]);
}

#[tokio::test]
async fn labels_and_annotations_of_others_stay() {
    let shared = Shared::new();
    let metadata = json!({ "name": "job", "labels": { "app": "x" }, "annotations": { "note": "y" } });
    let object = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata });
    let (status, answer) = lease(&shared.url, "POST", "", Some(&object)).await;
    assert_eq!(status, 201, "{answer}");
    let guard = shared.locker().await.lock("job").acquire().await.unwrap();
    guard.release().await.unwrap();
    let metadata = shared.lease().await["metadata"].clone();
    assert_eq!((&metadata["labels"]["app"], &metadata["annotations"]["note"]), (&json!("x"), &json!("y")));
}

/// A `kubectl edit` that does not touch the lock does not end it, and one that takes the lock away does.
#[tokio::test]
async fn an_edit_ends_a_lock_only_if_it_names_another_holder() {
    let shared = Shared::new();
    let lock = shared.locker().await.lock("job").ttl(Duration::from_secs(8));
    let guard = lock.acquire().await.unwrap();
    shared.change(json!({ "metadata": { "labels": { "app": "x" } } })).await;
    until_renewed(&guard).await;
    guard.check().unwrap();
    shared.change(json!({ "spec": { "holderIdentity": "mine" } })).await;
    within("the loss", guard.lost()).await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

/// The server elects the holder of such a Lease by its own rules.
#[tokio::test]
async fn a_lease_of_coordinated_election_is_not_taken_over() {
    let shared = Shared::new();
    let spec = json!({ "holderIdentity": "", "strategy": "OldestEmulationVersion" });
    let object = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "job" }, "spec": spec,
    });
    let (status, answer) = lease(&shared.url, "POST", "", Some(&object)).await;
    assert_eq!(status, 201, "{answer}");
    // Without the feature gate, the server drops the field, and the Lease is an ordinary one.
    if shared.lease().await["spec"]["strategy"].is_null() {
        return;
    }
    let locker = shared.locker().await;
    let refusal = locker.lock("job").try_acquire().await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Held);
    assert!(matches!(locker.inspect(&name()).await.unwrap().state, State::Held(_)));
}
