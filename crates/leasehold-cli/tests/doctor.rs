//! `leasehold doctor` on real servers. It accepts the good servers and reports the flaw of each bad one.

use std::net::TcpListener;
use std::process::Command;

use leasehold_testkit::servers::{Server, below};
use leasehold_testkit::stores;
use leasehold_testkit::stores::etcd::{Cluster, etcdctl};
use serde_json::Value;

use crate::support::{Outcome, Sandbox};

/// The exit code and the report of the doctor.
struct Diagnosis {
    code: i32,
    report: Value,
}

impl Diagnosis {
    fn of(outcome: &Outcome) -> Self {
        let report = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:#?}"));
        Self { code: outcome.code, report }
    }

    fn findings(&self) -> &Vec<Value> {
        self.report["findings"].as_array().unwrap()
    }

    fn checks(&self, verdict: &str) -> Vec<&str> {
        let of = self.findings().iter().filter(|finding| finding["verdict"] == verdict);
        of.map(|finding| finding["check"].as_str().unwrap()).collect()
    }

    fn finding(&self, check: &str) -> &Value {
        self.findings().iter().find(|finding| finding["check"] == check).unwrap()
    }

    fn help(&self, check: &str) -> String {
        self.finding(check)["help"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect()
    }

    /// Asserts that exactly these checks failed, each with help.
    #[track_caller]
    fn fails(&self, checks: &[&str]) {
        assert_eq!(self.checks("failed"), checks, "{:#}", self.report);
        assert_eq!((self.code, &self.report["safe"]), (1, &Value::Bool(false)));
        assert!(checks.iter().all(|check| !self.help(check).is_empty()), "{:#}", self.report);
    }

    #[track_caller]
    fn passes(&self) {
        assert_eq!(self.checks("failed"), Vec::<&str>::new(), "{:#}", self.report);
        assert_eq!((self.code, &self.report["safe"]), (0, &Value::Bool(true)));
    }
}

fn examined(url: &str) -> Diagnosis {
    let sandbox = Sandbox::new();
    Diagnosis::of(&sandbox.run(&format!("doctor --json -s {url}")))
}

/// Asserts that a good server passes at every level, and that the doctor leaves no objects.
fn a_good_store(server: Server, checks: &[&str]) {
    let url = server.fresh_url();
    let diagnosis = examined(&url);
    diagnosis.passes();
    // On a busy machine, renewals may take too long for any ttl.
    let warnings: Vec<_> =
        diagnosis.checks("warning").into_iter().filter(|check| *check != "smallest-ttl").collect();
    assert_eq!(warnings, Vec::<&str>::new(), "{:#}", diagnosis.report);
    let passed = diagnosis.checks("passed");
    for check in
        checks.iter().chain(&["reachable", "exclusion", "tokens", "stale-holder", "claims-race", "clean-up"])
    {
        assert!(passed.contains(check), "{check}: {:#}", diagnosis.report);
    }
    assert!(diagnosis.report["smallest_ttl_ms"].as_u64().is_none_or(|ms| ms >= 500));
    assert_eq!(diagnosis.report["round_trips"].as_array().unwrap().len(), 4);
    assert_eq!(Sandbox::new().run(&format!("ls -s {url}")).expect(0).stdout, "", "nothing is left");
}

const OBJECTS: &[&str] = &[
    "permission-read",
    "permission-write",
    "permission-list",
    "read-after-write",
    "create-if-absent",
    "new-version",
    "stale-version",
    "missing-key",
    "create-race",
    "atomic-race",
    "delete-marker",
    "store-clock",
];

#[test]
fn the_doctor_passes_moto() {
    a_good_store(Server::MOTO, OBJECTS);
}

#[test]
fn the_doctor_passes_minio() {
    a_good_store(Server::MINIO, OBJECTS);
}

#[test]
fn the_doctor_passes_fake_gcs_server() {
    a_good_store(Server::FAKE_GCS, OBJECTS);
}

#[test]
fn the_doctor_passes_kubernetes() {
    examined(stores::fresh("kubernetes").url()).passes();
}

#[test]
#[cfg(feature = "http")]
fn the_doctor_passes_a_server_and_names_its_rights() {
    let diagnosis = examined(stores::fresh("http_sqlite").url());
    diagnosis.passes();
    let passed = diagnosis.checks("passed");
    for check in ["server", "rights", "readiness", "stale-holder"] {
        assert!(passed.contains(&check), "{check}: {:#}", diagnosis.report);
    }
}

#[test]
fn the_doctor_passes_azurite() {
    a_good_store(Server::AZURITE, OBJECTS);
}

const ITEMS: &[&str] = &[
    "permission-read",
    "permission-write",
    "permission-list",
    "stale-version",
    "create-race",
    "atomic-race",
    "table",
    "store-clock",
];

#[test]
fn the_doctor_passes_dynamodb_local() {
    a_good_store(Server::DYNAMODB_LOCAL, ITEMS);
}

#[test]
fn the_doctor_passes_the_dynamodb_of_moto() {
    a_good_store(Server::DYNAMODB_MOTO, ITEMS);
}

/// The test server does not wait for the disk. This is its only flaw.
#[test]
fn the_doctor_fails_postgres_for_fsync_alone() {
    let fresh = stores::fresh("postgres");
    let diagnosis = examined(fresh.url());
    assert_eq!(diagnosis.checks("failed"), ["durability"], "{:#}", diagnosis.report);
}

#[test]
fn the_doctor_passes_etcd() {
    let url = below(&Server::ETCD.url(), "doctor");
    let diagnosis = examined(&url);
    diagnosis.passes();
    let passed = diagnosis.checks("passed");
    for check in
        ["permission-read", "permission-write", "members", "version", "alarms", "stale-holder", "clean-up"]
    {
        assert!(passed.contains(&check), "{check}: {:#}", diagnosis.report);
    }
    // etcd has a resolution of one second.
    let smallest = diagnosis.report["smallest_ttl_ms"].as_u64();
    assert!(smallest.is_none_or(|ms| ms >= 2_000 && ms.is_multiple_of(1_000)), "{smallest:?}");
}

/// Fault 25, on a real server.
#[test]
fn fault_25_the_doctor_finds_a_server_without_preconditions() {
    let diagnosis = examined(&Server::S3_IGNORING.fresh_url());
    diagnosis.fails(&[
        "create-if-absent",
        "stale-version",
        "missing-key",
        "delete-marker",
        "create-race",
        "atomic-race",
    ]);
    assert!(diagnosis.help("create-if-absent").contains("conditional writes"));
}

#[test]
fn fault_25_the_doctor_finds_uploads_without_preconditions() {
    let diagnosis = examined(&Server::BAD_GCS.fresh_url());
    diagnosis.fails(&["read-after-write", "create-if-absent"]);
}

/// Fault 26, on a real server. Only races detect it. An acquisition is refused too.
#[test]
fn fault_26_the_doctor_finds_non_atomic_writes() {
    let url = Server::S3_RACY.fresh_url();
    let diagnosis = examined(&url);
    diagnosis.fails(&["create-race", "atomic-race"]);
    assert!(
        diagnosis.finding("atomic-race")["seen"]
            .as_str()
            .unwrap()
            .contains("not check preconditions atomically")
    );
    assert!(diagnosis.help("atomic-race").contains("conditional writes"));
    let refused = Sandbox::new().run(&format!("run -s {url} deploy -- true")).expect(125);
    assert!(
        refused.stderr.contains("found unsafe") && refused.stderr.contains("leasehold doctor"),
        "{refused:?}"
    );
    let fresh = Server::S3_RACY.fresh_url();
    for reason in ["does not check preconditions atomically", "found unsafe"] {
        let refused = Sandbox::new().run(&format!("run -s {fresh} deploy -- true")).expect(125);
        assert!(refused.stderr.contains(reason), "{refused:?}");
    }
}

/// Two names of one server stand for two front ends.
#[test]
fn the_doctor_races_several_endpoints_together() {
    let url = Server::MINIO.fresh_url();
    let other = format!("http://{}", Server::MINIO.address().to_string().replace("127.0.0.1", "localhost"));
    let sandbox = Sandbox::new();
    let diagnosis = Diagnosis::of(&sandbox.run(&format!("doctor --json -s {url} --endpoint {other}")));
    diagnosis.passes();
    let seen = diagnosis.finding("endpoints")["seen"].as_str().unwrap();
    assert!(seen.contains("127.0.0.1") && seen.contains("localhost"), "{seen}");
    assert!(diagnosis.finding("create-race")["seen"].as_str().unwrap().contains("a store that lets two win"));
    let diagnosis = Diagnosis::of(&sandbox.run(&format!("doctor --json -s {url} --endpoint nonsense")));
    diagnosis.fails(&["endpoints"]);
}

/// Fault 26 with DynamoDB items. An acquisition is refused, because the doctor has found the table unsafe.
#[test]
fn fault_26_the_doctor_finds_non_atomic_dynamodb_writes() {
    let url = Server::DYNAMODB_RACY.fresh_url();
    let diagnosis = examined(&url);
    assert!(diagnosis.checks("failed").contains(&"atomic-race"), "{:#}", diagnosis.report);
    // It depends on chance whether the doctor sees two winners, or a winner whose write was overwritten.
    assert!(diagnosis.help("atomic-race").contains("in one step"), "{:#}", diagnosis.report);
    let refused = Sandbox::new().run(&format!("run -s {url} deploy -- true")).expect(125);
    assert!(refused.stderr.contains("found unsafe"), "{refused:?}");
}

/// `?protocol=existence` needs conditional deletes, and MinIO has none.
#[test]
fn the_doctor_finds_deletes_without_preconditions() {
    let url = format!("{}&protocol=existence", Server::MINIO.fresh_url());
    examined(&url).fails(&["conditional-delete"]);
}

/// Fault 34: the doctor names exactly the missing permissions.
#[test]
fn fault_34_the_doctor_names_missing_permissions_on_s3() {
    for (missing, check) in [("s3:PutObject", "permission-write"), ("s3:GetObject", "permission-read")] {
        let diagnosis = without(missing);
        diagnosis.fails(&[check]);
        let help = diagnosis.help(check);
        assert!(help.contains(&format!("allow {missing}")), "{missing}: {help}");
        assert!(help.contains(r#""Action":["s3:GetObject","s3:PutObject"]"#), "{missing}: {help}");
    }
}

/// Without permission to list, MinIO reports missing objects as missing, so locks work but listings do not. (Amazon
/// returns 403, and the check fails. A test without a server covers that.)
#[test]
fn permissions_that_locks_do_not_need_are_warnings_at_most() {
    let diagnosis = without("s3:ListBucket");
    diagnosis.passes();
    assert_eq!(diagnosis.checks("warning"), ["permission-list"]);
    assert!(diagnosis.help("permission-list").contains("allow s3:ListBucket"), "{:#}", diagnosis.report);
    let diagnosis = without("s3:DeleteObject");
    diagnosis.passes();
    let left = diagnosis.finding("clean-up");
    assert_eq!(left["verdict"], "not_applicable", "it cannot delete what it wrote: {left}");
}

/// Runs the doctor with MinIO credentials that allow all actions but one.
fn without(missing: &str) -> Diagnosis {
    let url = Server::MINIO.fresh_url();
    let actions = ["s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:ListBucket"];
    let allowed: Vec<_> = actions.iter().filter(|action| **action != missing).collect();
    let policy = serde_json::json!({
        "Version": "2012-10-17",
        "Statement": [{ "Effect": "Allow", "Action": allowed, "Resource": ["arn:aws:s3:::*"] }],
    });
    let issued = Command::new("curl")
        .args(["--silent", "--fail", "--aws-sigv4", "aws:amz:us-east-1:sts", "--user"])
        .arg(format!("{}:{}", variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")))
        .args(["--data-urlencode", "Action=AssumeRole", "--data-urlencode", "Version=2011-06-15"])
        .args(["--data-urlencode", &format!("Policy={policy}")])
        .arg(format!("http://{}/", Server::MINIO.address()))
        .output()
        .unwrap();
    let issued = String::from_utf8(issued.stdout).unwrap();
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(["doctor", "--json", "-s", &url]);
    command
        .env("AWS_ACCESS_KEY_ID", element(&issued, "AccessKeyId"))
        .env("AWS_SECRET_ACCESS_KEY", element(&issued, "SecretAccessKey"))
        .env("AWS_SESSION_TOKEN", element(&issued, "SessionToken"));
    let outcome = Outcome::of(command.output().unwrap());
    assert!(!outcome.stdout.contains(element(&issued, "SessionToken")), "no secret is shown");
    Diagnosis::of(&outcome)
}

fn element<'a>(xml: &'a str, name: &str) -> &'a str {
    let (_, rest) =
        xml.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("{name} is not in {xml:?}"));
    rest.split_once("</").unwrap().0
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run ./test --with-servers"))
}

/// Tests etcd users with read permission, with no permission, and without access.
#[tokio::test(flavor = "multi_thread")]
async fn fault_34_the_doctor_names_missing_permissions_on_etcd() {
    let cluster = Cluster::start(1, &[]).await;
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "reader"],
        &["role", "grant-permission", "reader", "read", "locks/", "--prefix=true"],
        &["role", "add", "writer"],
        &["role", "grant-permission", "writer", "readwrite", "locks/", "--prefix=true"],
        &["user", "add", "reader:hunter2"],
        &["user", "grant-role", "reader", "reader"],
        &["user", "add", "writer:hunter2"],
        &["user", "grant-role", "writer", "writer"],
        &["auth", "enable"],
    ] {
        etcdctl(cluster.address(0), command).await;
    }
    let examined = async |login: &str, prefix: &str| {
        let url = format!("etcd://{login}@{}/{prefix}/", cluster.address(0));
        let sandbox = Sandbox::new();
        let outcome = sandbox.run(&format!("doctor --json -s {url}"));
        assert!(!outcome.stdout.contains("hunter2") && !outcome.stderr.contains("hunter2"), "{outcome:?}");
        Diagnosis::of(&outcome)
    };
    examined("writer:hunter2", "locks").await.passes();
    let reader = examined("reader:hunter2", "locks").await;
    reader.fails(&["permission-write"]);
    let help = reader.help("permission-write");
    assert!(help.contains("etcdctl role grant-permission ROLE readwrite locks/ --prefix=true"), "{help}");
    examined("writer:hunter2", "others").await.fails(&["permission-read", "permission-write"]);
    examined("writer:hunter3", "locks").await.fails(&["permission-read", "permission-write"]);
}

#[test]
fn the_doctor_refuses_a_table_and_a_bucket_that_are_not_there() {
    for (server, there, help) in [
        (Server::DYNAMODB_LOCAL, "://leasehold-test", "leasehold init"),
        (Server::MINIO, "://leasehold-test", "there is no bucket"),
    ] {
        let url = server.url().replace(there, "://not-there");
        let diagnosis = examined(&url);
        diagnosis.fails(&["reachable"]);
        assert!(diagnosis.help("reachable").contains(help), "{:#}", diagnosis.report);
    }
}

#[test]
fn the_doctor_refuses_a_store_that_does_not_respond() {
    // The port was bound a moment ago, so another process is unlikely to get it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let diagnosis = examined(&format!("etcd://{address}/locks/"));
    diagnosis.fails(&["reachable"]);
    assert!(diagnosis.help("reachable").contains("is etcd running there"), "{:#}", diagnosis.report);
}
