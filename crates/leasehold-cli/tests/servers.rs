//! The command on every store with a server. `./test` starts the servers.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use leasehold_testkit::servers::{Server, below};
use leasehold_testkit::stores;
use rustix::process::{Signal, geteuid};

use crate::support::{self, Holder, Outcome, Sandbox};

const ANN: u32 = 65_534;
const BEN: u32 = 65_533;
const GROUP: u32 = 65_532;
const OTHER_GROUP: u32 = 65_531;

/// Runs the common tasks of a user on the store at `url`.
fn a_day_on(url: &str) {
    let sandbox = Sandbox::new();
    let on = |words: &str| sandbox.run(&words.replacen(' ', &format!(" -s {url} "), 1));
    sandbox.run(&format!("init -s {url}")).expect(0);
    // Run a job twice.
    for _ in 0..2 {
        let job =
            sandbox.run_script(&format!("run -s {url} deploy/prod"), "echo lock $LEASEHOLD_LOCK").expect(0);
        assert_eq!(job.stdout, "lock deploy/prod\n");
    }
    an_eviction(&sandbox, url);
    an_election(&sandbox, url);
    a_job_once_per_period(&sandbox, url);
    // A ticket holds a lock without a process.
    let ticket = on("acquire steps --ttl 60s").expect(0).stdout;
    let refused = on("run -n steps -- true").expect(123);
    assert!(refused.stderr.contains("by ticket"), "{refused:?}");
    sandbox.run(&format!("renew -s {url} {ticket}")).expect(0);
    let ticket = ticket.trim();
    for step in ["one", "two"] {
        let ran =
            sandbox.run_script(&format!("run -s {url} --ticket={ticket}"), "echo $LEASEHOLD_LOCK; exit 5");
        assert_eq!(ran.expect(5).stdout, "steps\n", "{step}");
        on("run -n steps -- true").expect(123);
    }
    // A release during a step is detected when the step has ended.
    let release = format!("{} release -s '{url}' {ticket} || echo failed", env!("CARGO_BIN_EXE_leasehold"));
    let ran = sandbox.run_script(&format!("run -s {url} --ticket={ticket}"), &release).expect(122);
    // On a store that reports the release at once, the step is killed before it can print.
    assert!(["released steps\n", ""].contains(&&*ran.stdout), "{ran:?}");
    sandbox.run(&format!("release -s {url} {ticket}")).expect(1);
    several_holders(&sandbox, url);
    if !url.contains("protocol=existence") {
        crate::cli::deadlock::opposite_orders(&sandbox, url);
    }
    // Read the history.
    let history = on("history deploy/prod");
    match history.code {
        0 => assert!(history.stdout.contains("evicted") && history.stdout.contains("tester@"), "{history:?}"),
        _ => assert!(history.stderr.contains("keep no history"), "{history:?}"),
    }
    // Kill a holder and its processes.
    let dead = held(&sandbox, url, "nightly --ttl 6s");
    support::send(dead.guardian(), Signal::KILL);
    dead.signal(Signal::KILL);
    on("run -w 60s nightly -- true").expect(0);
}

/// Semaphores and readers-writer locks.
fn several_holders(sandbox: &Sandbox, url: &str) {
    let permit = held(sandbox, url, "render --permits 2");
    let script = "echo $LEASEHOLD_LOCK $LEASEHOLD_PERMIT";
    let other = sandbox.run_script(&format!("run -n -s {url} render --permits 2"), script).expect(0).stdout;
    assert!(other == "render/permit-1 1\n" || other == "render/permit-2 2\n", "{other}");
    let refused = sandbox.run(&format!("run -n -s {url} render --permits 1 -- true"));
    // A store that keeps the number of permits refuses another one.
    let says = ["`render` has 2 permits in the store", "the permit of `render` is held"];
    let is_refused = refused.code != 0 && says.iter().any(|says| refused.stderr.contains(says));
    assert!(refused.code == 0 || is_refused, "{refused:?}");
    ended(permit);
    let reader = held(sandbox, url, "index --shared");
    sandbox.run(&format!("run -n -s {url} index --shared -- true")).expect(0);
    let refused = sandbox.run(&format!("run -n -s {url} index --exclusive -- true")).expect(123);
    assert!(refused.stderr.contains("is held shared: `index/shared-"), "{refused:?}");
    ended(reader);
    sandbox.run(&format!("run -w 60s -s {url} index --exclusive -- true")).expect(0);
}

fn ended(holder: Holder) {
    holder.signal(Signal::TERM);
    holder.end();
}

fn an_eviction(sandbox: &Sandbox, url: &str) {
    let holder = held(sandbox, url, "deploy/prod --ttl 20s");
    let refused = sandbox.run(&format!("run -n -s {url} deploy/prod -- true")).expect(123);
    assert!(refused.stderr.contains("tester@"), "{refused:?}");
    let listed = sandbox.run(&format!("ls -s {url}")).expect(0).stdout;
    assert!(listed.contains("deploy/prod") && listed.contains("tester@"), "{listed}");
    let shown = sandbox.run(&format!("show --json -s {url} deploy/prod")).expect(0).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let token = shown["token"].as_u64().unwrap();
    sandbox.run(&format!("evict -s {url} deploy/prod --token {}", token + 1)).expect(1);
    sandbox.run(&format!("evict -s {url} deploy/prod --token {token}")).expect(0);
    let evicted = holder.end();
    assert_eq!(evicted.code, 122, "{evicted:?}");
}

/// Replaces a leader. The ttl is an hour, so only a leader that resigns can be replaced in time.
fn an_election(sandbox: &Sandbox, url: &str) {
    let serve = "trap 'exit 0' TERM; echo leads; while :; do sleep 0.05; done";
    let candidate =
        |value: &str| sandbox.scripted(&format!("elect -s {url} web --ttl 1h --value {value}"), serve);
    let first = Holder::start(candidate("http://one"));
    let mut follower = Holder::start(sandbox.leasehold(["elect", "-s", url, "web", "--observe", "--json"]));
    assert!(follower.first.contains("\"value\":\"http://one\""), "{}", follower.first);
    first.signal(Signal::TERM);
    let second = Holder::start(candidate("http://two"));
    while !follower.line().contains("\"value\":\"http://two\"") {}
    first.end().expect(0);
    second.signal(Signal::TERM);
    second.end().expect(0);
}

fn a_job_once_per_period(sandbox: &Sandbox, url: &str) {
    let once = |script: &str| sandbox.run_script(&format!("once -s {url} hourly --per 1h"), script);
    if url.contains("protocol=existence") {
        let refused = once("echo ran").expect(125);
        assert!(refused.stdout.is_empty() && refused.stderr.contains("have no cooldown"), "{refused:?}");
        return;
    }
    once("exit 3").expect(3);
    assert_eq!(once("echo ran").expect(0).stdout, "ran\n");
    let again = once("echo never").expect(0);
    assert!(again.stdout.is_empty() && again.stderr.contains("hourly already ran"), "{again:?}");
    assert!(again.stderr.contains("(tester@") && again.stderr.contains(", next run in <= "), "{again:?}");
}

fn held(sandbox: &Sandbox, url: &str, words: &str) -> Holder {
    sandbox.hold(&format!("run -s {url} {words}"), "echo held; while :; do sleep 0.05; done")
}

/// Runs the common tasks with an object that has several writers.
fn objects_on(sandbox: &Sandbox, folder: &str) {
    let url = below(folder, "counter.txt");
    let update = |words: &str, script: &str| sandbox.run_script(&format!("update {url} {words}"), script);
    let content = || update("", "cat >content; exit 3").expect(3);
    let missing = sandbox.run(&format!("get {url}")).expect(1);
    assert!(missing.stderr.contains("there is no object"), "{missing:?}");
    // The object is created, changed, and left unchanged in each possible way.
    let created = update("", "echo exists $LEASEHOLD_OBJECT_EXISTS; cat").expect(0);
    assert!(created.stdout.starts_with("updated ") && created.stdout.contains("counter.txt"), "{created:?}");
    let get = |words: &str| sandbox.run(&format!("get {url} {words}"));
    assert_eq!(get("").expect(0).stdout, "exists 0\n");
    let found: serde_json::Value = serde_json::from_str(&get("--json").expect(0).stdout).unwrap();
    assert_eq!((&found["bytes"], &found["content"]), (&9.into(), &"ZXhpc3RzIDAK".into()), "{found}");
    let written = update("--json", "echo $LEASEHOLD_OBJECT_EXISTS; cat").expect(0).stdout;
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!((&written["written"], &written["bytes"]), (&true.into(), &11.into()), "{written}");
    assert!(update("", "cat").expect(0).stdout.contains("nothing was written"));
    assert_eq!(update("--quiet", "cat").expect(0).stdout, "");
    let emptied = update("", "true").expect(125);
    assert!(emptied.stderr.contains("--allow-empty"), "{emptied:?}");
    let failed = update("", "echo x; kill -9 $$").expect(137);
    assert!(failed.stderr.contains("nothing was written"), "{failed:?}");
    update("", "exec /no/such").expect(127);
    sandbox.run(&format!("update {url} -- /no/such")).expect(127);
    content();
    assert_eq!(sandbox.read("content"), "1\nexists 0\n");
    unheard(sandbox, &url);
    conflicts(sandbox, &url);
    fences(sandbox, &url);
    sandbox.run(&format!("update --shell --allow-empty {url} -- cat >/dev/null")).expect(0);
    content();
    assert_eq!(sandbox.read("content"), "");
}

/// A successful write is not reported as failed if stdout cannot be written, because a retry would repeat the write.
fn unheard(sandbox: &Sandbox, url: &str) {
    let full = || std::fs::File::create("/dev/full").unwrap();
    let words = format!("update {url}");
    let done = sandbox.scripted(&words, "cat; echo again").stdout(full()).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stderr).contains("cannot write to stdout"), "{done:?}");
    sandbox.run_script(&words, "sed '$d'").expect(0);
}

/// Another client writes while the command runs. The command runs again until the attempts are used up.
fn conflicts(sandbox: &Sandbox, url: &str) {
    let other =
        format!("{:?} update '{url}' -- sh -c 'cat; echo other'", assert_cmd::cargo::cargo_bin!("leasehold"));
    let meddled = |once: &str| format!("cat; [ -e {once} ] || {{ >{once}; {other} >&2; }}; echo mine");
    let given_up = sandbox.run_script(&format!("update {url} --attempts 1"), &meddled("first")).expect(124);
    assert!(given_up.stderr.contains("other clients changed it"), "{given_up:?}");
    let again = sandbox.run_script(&format!("update --json {url}"), &meddled("second")).expect(0);
    assert!(again.stdout.contains("\"attempts\":2"), "{again:?}");
    sandbox.run_script(&format!("update {url}"), "cat >content; exit 3").expect(3);
    assert_eq!(sandbox.read("content"), "1\nexists 0\nother\nother\nmine\n");
}

fn fences(sandbox: &Sandbox, url: &str) {
    sandbox.write("a", "of 5");
    sandbox.write("b", "of 7");
    let put = sandbox.run(&format!("put {url} a --fence 5 --content-type text/plain")).expect(0);
    assert!(put.stdout.starts_with("wrote ") && put.stdout.contains("with token 5"), "{put:?}");
    sandbox.run(&format!("put {url} b --fence 7 --json")).expect(0);
    let refused = sandbox.run(&format!("put {url} a --fence 6")).expect(1);
    assert!(refused.stderr.contains("token 7"), "{refused:?}");
    sandbox.run_script(&format!("update {url} --fence 6"), "echo x").expect(122);
    sandbox.run_script(&format!("update {url} --fence 8"), "cat; echo and 8").expect(0);
    sandbox.run(&format!("put {url} b --fence 7")).expect(1);
    sandbox.run_script(&format!("update {url}"), "cat >content; exit 3").expect(3);
    assert_eq!(sandbox.read("content"), "of 7and 8\n");
    sandbox.run(&format!("put {url} nosuch --fence 9")).expect(125);
    let emptied = sandbox.run(&format!("put {url} - --fence 9")).expect(125);
    assert!(emptied.stderr.contains("--allow-empty"), "{emptied:?}");
    assert_eq!(sandbox.run(&format!("put {url} - --fence 8 --allow-empty -q")).expect(0).stdout, "");
}

#[test]
fn objects_on_s3() {
    objects_on(&Sandbox::new(), &Server::MINIO.fresh_url());
}

#[test]
fn objects_on_gcs() {
    objects_on(&Sandbox::new(), &Server::FAKE_GCS.fresh_url());
}

#[test]
fn objects_on_azure() {
    objects_on(&Sandbox::new(), &Server::AZURITE.fresh_url());
}

#[test]
fn objects_in_a_directory() {
    let sandbox = Sandbox::new();
    sandbox.run("init --store dir:objects").expect(0);
    objects_on(&sandbox, "dir:objects");
}

/// Two users of a group share a directory, and a third user cannot read it. Only root can be several users.
#[test]
fn users_of_a_group_share_a_directory() {
    assert!(geteuid().is_root(), "run this test as root");
    let sandbox = Sandbox::new();
    let permit =
        |name: &str, mode| fs::set_permissions(sandbox.path(name), Permissions::from_mode(mode)).unwrap();
    permit("", 0o755);
    fs::copy(env!("CARGO_BIN_EXE_leasehold"), sandbox.path("leasehold")).unwrap();
    permit("leasehold", 0o755);
    fs::create_dir(sandbox.path("locks")).unwrap();
    permit("locks", 0o2770);
    chown(sandbox.path("locks"), None, Some(GROUP)).unwrap();
    let by = |user: u32, group: u32, words: &str| {
        let mut command = Command::new(sandbox.path("leasehold"));
        command.args(words.split(' ')).current_dir(sandbox.path("")).env("HOME", sandbox.path(""));
        Outcome::of(command.env_remove("XDG_CONFIG_HOME").uid(user).gid(group).output().unwrap())
    };
    by(ANN, GROUP, "init --store dir:locks").expect(0);
    for user in [ANN, BEN, ANN, BEN] {
        by(user, GROUP, "run --store dir:locks deploy/prod -- true").expect(0);
    }
    let history = by(BEN, GROUP, "history --store dir:locks deploy/prod").expect(0).stdout;
    assert_eq!(history.matches("released").count(), 4, "{history}");
    for words in ["run --store dir:locks deploy/prod -- true", "ls --store dir:locks"] {
        let refused = by(BEN, OTHER_GROUP, words).expect(125);
        assert!(refused.stderr.contains("must be able to read, write and enter"), "{words}: {refused:?}");
    }
}

#[test]
fn s3() {
    a_day_on(&Server::MINIO.fresh_url());
}

#[test]
fn s3_by_existence() {
    a_day_on(&format!("{}&protocol=existence", Server::MOTO.fresh_url()));
}

#[test]
fn gcs() {
    a_day_on(&Server::FAKE_GCS.fresh_url());
}

#[test]
fn gcs_by_existence() {
    a_day_on(&format!("{}&protocol=existence", Server::FAKE_GCS.fresh_url()));
}

#[test]
fn azure() {
    a_day_on(&Server::AZURITE.fresh_url());
}

#[test]
fn dynamodb() {
    a_day_on(&Server::DYNAMODB_LOCAL.fresh_url());
}

#[test]
fn kubernetes() {
    a_day_on(stores::fresh("kubernetes").url());
}

#[test]
fn mysql() {
    a_day_on(stores::fresh("mysql").url());
}

#[test]
fn postgres() {
    a_day_on(stores::fresh("postgres").url());
}

#[test]
fn redis() {
    a_day_on(stores::fresh("redis").url());
}

/// Without a password, the default user of a Redis server accepts any.
#[test]
fn a_run_within_a_run_gets_the_password_of_its_store() {
    let fresh = stores::fresh("redis");
    let url = fresh.url().replacen("redis://", "redis://default:hunter2@", 1);
    let sandbox = Sandbox::new();
    let nested =
        "env | grep -c hunter2; exec \"$LEASEHOLD\" run inner -- \"$LEASEHOLD\" run innermost -- true";
    let run = |words: &str, variable: &str| {
        let mut command = sandbox.scripted(words, nested);
        command.env("LEASEHOLD_STORE", variable);
        support::Outcome::of(command.output().unwrap()).expect(0).stdout
    };
    assert_eq!(run("run outer", &url), "1\n", "what the user has exported stays");
    assert_eq!(run(&format!("-s {url} run outer"), ""), "0\n");
    assert_eq!(run(&format!("-s {url} elect outer --once"), "sqlite:"), "0\n");
    sandbox.write(
        "config/leasehold/config.toml",
        &format!("store = \"prod\"\n[stores.prod]\nurl = \"{url}\"\n"),
    );
    assert_eq!(run("run outer", ""), "0\n");
    assert_eq!(run("-s prod once outer --per 1ms", "sqlite:"), "0\n");
    let copied = sandbox.run(&format!("-s {} ls", url.replace("hunter2", "***"))).expect(125);
    assert!(
        copied.stderr.contains("`***` in place of a secret") && copied.stderr.contains("help:"),
        "{copied:?}"
    );
}

#[test]
fn nats() {
    a_day_on(stores::fresh("nats").url());
}

#[test]
fn etcd() {
    a_day_on(&Server::ETCD.fresh_url());
}
