//! `leasehold terraform` with OpenTofu. The configuration needs no provider from the network, and the provisioner of
//! its resource waits for a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leasehold_testkit::peers::Program;
use leasehold_testkit::proxy::{Harm, Proxy};
use leasehold_testkit::servers::{Server, below, through};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{self, Holder, Outcome, Sandbox};

const TOFU: Program = Program::OPENTOFU;
const BACKEND: &str = "terraform {\n  backend \"http\" {}\n}\n";
const APPLY: [&str; 3] = ["apply", "-auto-approve", "-no-color"];

/// The machines that share a state, each with a folder.
struct Team {
    sandbox: Sandbox,
    url: String,
}

impl Team {
    fn new() -> Self {
        Self::on(Server::MINIO.fresh_url())
    }

    fn on(url: String) -> Self {
        Self { sandbox: Sandbox::new(), url }
    }

    /// Writes the configuration of `machine`. If it changes the resource to `value`, the apply writes the file
    /// `started` and waits for the file `go`.
    fn configure(&self, machine: &str, backend: &str, value: &str, waits: bool) {
        let wait = if waits {
            "echo > started; while [ -e main.tf ] && ! [ -e go ]; do sleep 0.02; done"
        } else {
            "true"
        };
        let resource = format!(
            "resource \"terraform_data\" \"one\" {{\n  input            = \"{value}\"\n  triggers_replace = \"{value}\"\n  \
             provisioner \"local-exec\" {{\n    command = \"{wait}\"\n  }}\n}}\n"
        );
        self.sandbox.write(&format!("{machine}/main.tf"), &format!("{backend}{resource}"));
    }

    fn path(&self, machine: &str, file: &str) -> PathBuf {
        self.sandbox.path(&format!("{machine}/{file}"))
    }

    fn tofu(&self, machine: &str, words: &[&str]) -> Command {
        let tofu = TOFU.path();
        // Longer than a slow machine takes for a large state.
        let line = format!("terraform -s {} --ttl 2m prod/net", self.url);
        let arguments =
            line.split_whitespace().chain(["--", tofu.to_str().unwrap()]).chain(words.iter().copied());
        self.in_folder(machine, self.sandbox.leasehold(arguments))
    }

    /// Starts OpenTofu, after a line of output: its own first line may be empty.
    fn start(&self, machine: &str, options: &str, words: &[&str]) -> Holder {
        let tofu = TOFU.path();
        let line = format!("terraform -s {} {options} prod/net", self.url);
        let shell = ["--", "sh", "-c", "echo started; exec \"$@\"", "sh", tofu.to_str().unwrap()];
        let words = line.split_whitespace().chain(shell).chain(words.iter().copied());
        Holder::start(self.in_folder(machine, self.sandbox.leasehold(words)))
    }

    fn in_folder(&self, machine: &str, mut command: Command) -> Command {
        command
            .current_dir(self.path(machine, ""))
            .env("TF_CLI_CONFIG_FILE", "/dev/null")
            .env("CHECKPOINT_DISABLE", "1");
        command
    }

    #[track_caller]
    fn run(&self, machine: &str, words: &[&str], code: i32) -> Outcome {
        Outcome::of(self.tofu(machine, words).output().unwrap()).expect(code)
    }

    /// Prepares `machine` to apply `value`.
    fn joins(&self, machine: &str, value: &str, waits: bool) {
        self.configure(machine, BACKEND, value, waits);
        self.run(machine, &["init", "-no-color"], 0);
    }

    /// Starts an apply on `machine`, and waits until it has locked the state and changes the resource.
    fn applies(&self, machine: &str, options: &str) -> Holder {
        let holder = self.start(machine, options, &APPLY);
        support::wait_for_file(&self.path(machine, "started"));
        holder
    }

    fn go(&self, machine: &str) {
        fs::write(self.path(machine, "go"), "").unwrap();
    }

    /// Returns the value in the state.
    fn value(&self, machine: &str) -> String {
        let state = self.run(machine, &["state", "pull"], 0).stdout;
        let state: Value = serde_json::from_str(&state).unwrap();
        state["resources"][0]["instances"][0]["attributes"]["output"]["value"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

/// Returns the OpenTofu that `holder` runs.
fn tofu_of(holder: &Holder) -> i32 {
    let is_tofu =
        |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("tofu"));
    support::children_of(holder.pid()).into_iter().find(is_tofu).unwrap()
}

#[test]
fn an_existing_state_moves_in_and_is_applied_one_at_a_time() {
    let team = Team::new();
    // A state in a file.
    team.configure("one", "", "0", false);
    for words in [&["init"][..], &APPLY] {
        let local = Command::new(TOFU.path()).args(words).current_dir(team.path("one", "")).output().unwrap();
        assert!(local.status.success(), "{local:?}");
    }
    team.configure("one", BACKEND, "1", true);
    team.run("one", &["init", "-migrate-state", "-force-copy", "-no-color"], 0);
    assert_eq!(team.value("one"), "0");

    team.joins("two", "2", false);
    let first = team.applies("one", "");
    let password = password_of(tofu_of(&first));
    assert_is_secret(&password, &team.path("one", ".terraform"));
    let refused = team.run("two", &APPLY, 1).stderr;
    for word in ["already locked", "OperationTypeApply", "lease ends in <="] {
        assert!(refused.contains(word), "{refused}");
    }
    let listed = team.sandbox.run(&format!("ls -s {}", team.url)).expect(0).stdout;
    assert!(listed.contains("prod/net") && listed.contains("OperationTypeApply by "), "{listed}");
    let second = team.start("two", "", &["apply", "-auto-approve", "-no-color", "-lock-timeout=60s"]);
    team.go("one");
    first.end().expect(0);
    second.end().expect(0);
    assert_eq!(team.value("one"), "2");

    // An apply waits in line with --wait.
    team.joins("three", "3", true);
    team.joins("four", "4", false);
    let first = team.applies("three", "");
    let waiting = team.start("four", "--wait 60s", &APPLY);
    let is_in_line = || {
        let shown = team.sandbox.run(&format!("show -s {} prod/net", team.url)).expect(0).stdout;
        shown.contains("waiter")
    };
    support::wait_until("a waiter", is_in_line);
    team.go("three");
    first.end().expect(0);
    waiting.end().expect(0);
    assert_eq!(team.value("one"), "4");
}

fn password_of(pid: i32) -> String {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let mut variables =
        environment.split(|byte| *byte == 0).filter_map(|line| std::str::from_utf8(line).ok());
    variables.find_map(|line| line.strip_prefix("TF_HTTP_PASSWORD=")).unwrap().to_owned()
}

/// Checks that no command line shows `password`, and no file in `folder` has it.
fn assert_is_secret(password: &str, folder: &Path) {
    assert!(password.len() >= 32);
    for process in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(password), "{}", process.path().display());
    }
    let found = Command::new("grep").args(["-r", password]).arg(folder).output().unwrap();
    assert_eq!(found.status.code(), Some(1), "{found:?}");
}

#[test]
fn the_state_of_a_killed_apply_is_free_within_its_ttl() {
    for server in [Server::MINIO, Server::FAKE_GCS, Server::AZURITE] {
        let team = Team::on(server.fresh_url());
        team.joins("one", "1", true);
        team.joins("two", "2", false);
        let killed = team.applies("one", "--ttl 6s");
        let refused = team.run("two", &APPLY, 1).stderr;
        assert!(refused.contains("already locked"), "{refused}");
        support::send(killed.guardian(), Signal::KILL);
        killed.signal(Signal::KILL);
        team.run("two", &["apply", "-auto-approve", "-no-color", "-lock-timeout=60s"], 0);
        assert_eq!(team.value("two"), "2");
        // Ends what the killed apply has left.
        team.go("one");
    }
}

#[test]
fn an_apply_that_was_stopped_too_long_writes_no_state() {
    for on_lost in ["none", "term"] {
        let team = Team::new();
        team.joins("one", "1", true);
        team.joins("two", "2", false);
        let stopped = team.applies("one", &format!("--ttl 3s --on-lost {on_lost}"));
        let tofu = tofu_of(&stopped);
        let guardian = support::guardian_of(stopped.pid());
        for pid in guardian.into_iter().chain([stopped.pid(), tofu]) {
            support::send(pid, Signal::STOP);
            support::wait_until("it is stopped", || support::is_stopped(pid));
        }
        // In time, OpenTofu has only the write left to do.
        team.go("one");
        team.run("two", &["apply", "-auto-approve", "-no-color", "-lock-timeout=60s"], 0);
        let state = team.run("two", &["state", "pull"], 0).stdout;
        for pid in guardian.into_iter().chain([tofu, stopped.pid()]) {
            support::send(pid, Signal::CONT);
        }
        let ended = stopped.end();
        assert_eq!(ended.code, 122, "{ended:?}");
        if on_lost == "none" {
            assert!(ended.stderr.contains("warning: the state was not "), "{ended:?}");
            let saved = fs::read_to_string(team.path("one", "errored.tfstate")).unwrap();
            assert!(saved.contains("\"value\":\"1\""), "OpenTofu keeps what it could not write: {saved}");
        }
        assert_eq!(team.run("two", &["state", "pull"], 0).stdout, state);
    }
}

#[test]
fn force_unlock_ends_the_apply_that_holds_the_lock() {
    let team = Team::new();
    team.joins("one", "1", true);
    team.joins("two", "2", false);
    let held = team.applies("one", "--ttl 6s");
    let other = team.run("two", &["force-unlock", "-force", "00000000-0000-0000-0000-000000000000"], 1);
    assert!(other.stderr.contains("nothing was unlocked"), "{other:?}");
    let refused = team.run("two", &APPLY, 1).stderr;
    let id = refused.split("ID=").nth(1).unwrap().split_whitespace().next().unwrap();
    team.run("two", &["force-unlock", "-force", id], 0);
    let ended = held.end();
    assert_eq!(ended.code, 122, "{ended:?}");
    assert!(ended.stderr.contains("evicted"), "{ended:?}");
    team.go("one");
    team.run("two", &APPLY, 0);
    assert_eq!(team.value("two"), "2");
}

#[test]
fn a_state_of_50_mb_is_pushed_and_an_earlier_one_restored() {
    let team = Team::new();
    team.joins("one", "1", false);
    team.run("one", &APPLY, 0);
    let small = team.run("one", &["state", "pull"], 0).stdout;
    let mut large: Value = serde_json::from_str(&small).unwrap();
    large["serial"] = (large["serial"].as_u64().unwrap() + 1).into();
    large["outputs"]["large"] = serde_json::json!({ "value": "x".repeat(50 << 20), "type": "string" });
    fs::write(team.path("one", "large.json"), large.to_string()).unwrap();
    fs::write(team.path("one", "small.json"), &small).unwrap();
    team.run("one", &["state", "push", "large.json"], 0);
    let pulled: Value = serde_json::from_str(&team.run("one", &["state", "pull"], 0).stdout).unwrap();
    assert!(pulled["outputs"] == large["outputs"]);
    team.run("one", &["state", "push", "-force", "small.json"], 0);
    let restored: Value = serde_json::from_str(&team.run("one", &["state", "pull"], 0).stdout).unwrap();
    let small: Value = serde_json::from_str(&small).unwrap();
    assert_eq!((&restored["outputs"], &restored["resources"]), (&small["outputs"], &small["resources"]));
}

#[test]
fn a_write_without_a_response_is_not_repeated_as_another() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = Server::MINIO.fresh_url();
    let proxy = runtime.block_on(Proxy::start(Server::MINIO.address()));
    let team = Team::on(through(&url, proxy.address()));
    // The first apply examines the store. Each later one writes the result of that again, before the state.
    for value in ["a", "b"] {
        team.joins("one", value, false);
        proxy.reset();
        team.run("one", &APPLY, 0);
    }
    let earlier = |path: &&str| path.contains("/prod/.leasehold-probe");
    let writes: Vec<_> = proxy.log().into_iter().filter(|seen| seen.method == "PUT").collect();
    let earlier = writes.iter().map(|seen| seen.path.as_str()).filter(earlier).count();
    team.configure("one", BACKEND, "1", true);
    // No renewal is due in the time of the test.
    let holder = team.applies("one", "--ttl 1h");
    proxy.reset();
    for _ in 0..earlier {
        proxy.next("PUT", Harm::None);
    }
    proxy.next("PUT", Harm::AnswerLost);
    team.go("one");
    holder.end().expect(0);
    let lost = proxy.log().into_iter().find(|seen| seen.harm == Harm::AnswerLost).unwrap();
    assert!(lost.path.ends_with("/prod/net.tfstate"), "{}", lost.path);
    assert_eq!(team.value("one"), "1");
}

#[test]
fn an_apply_whose_store_is_gone_saves_its_state_in_a_file() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for harm in [Harm::Cut, Harm::Delayed(Duration::from_secs(3_600))] {
        let url = Server::MINIO.fresh_url();
        let proxy = runtime.block_on(Proxy::start(Server::MINIO.address()));
        let team = Team::on(through(&url, proxy.address()));
        team.joins("one", "0", false);
        team.run("one", &APPLY, 0);
        team.configure("one", BACKEND, "1", true);
        let holder = team.applies("one", "--ttl 9s");
        proxy.every(harm);
        team.go("one");
        let ended = holder.end();
        assert_ne!(ended.code, 0, "{ended:?}");
        assert!(ended.stderr.contains("lease ends soon"), "{ended:?}");
        let saved = fs::read_to_string(team.path("one", "errored.tfstate")).unwrap_or_default();
        assert!(saved.contains("\"value\":\"1\""), "{saved} {ended:?}");
    }
}

#[test]
fn an_unlock_method_of_the_configuration_empties_no_state() {
    let team = Team::new();
    team.joins("one", "1", false);
    team.run("one", &APPLY, 0);
    let with_method = "terraform {\n  backend \"http\" {\n    unlock_method = \"DELETE\"\n  }\n}\n";
    team.configure("one", with_method, "2", false);
    team.run("one", &["init", "-reconfigure", "-no-color"], 0);
    let refused = team.run("one", &APPLY, 125).stderr;
    assert!(refused.contains("option `unlock_method`"), "{refused}");
    team.configure("one", BACKEND, "2", false);
    team.run("one", &["init", "-reconfigure", "-no-color"], 0);
    assert_eq!(team.value("one"), "1");
}

#[test]
fn the_lock_may_be_in_another_store_than_the_state() {
    let state = below(&Server::MINIO.fresh_url(), "net.json");
    let team = Team { url: format!("sqlite:locks.db --state {state}"), sandbox: Sandbox::new() };
    team.joins("one", "1", true);
    let team = Team { url: format!("sqlite:../one/locks.db --state {state}"), ..team };
    team.joins("two", "2", false);
    let killed = team.applies("one", "");
    support::send(killed.guardian(), Signal::KILL);
    killed.signal(Signal::KILL);
    team.go("one");
    // A file of this machine shows when a process has died.
    team.run("two", &["apply", "-auto-approve", "-no-color", "-lock-timeout=30s"], 0);
    assert_eq!(team.value("two"), "2");
}

/// The state is beside the lock, or only the state is in a directory.
#[test]
fn the_state_is_in_a_directory() {
    for url in ["dir:FOLDER/tf", "sqlite:FOLDER/locks.db --state dir:FOLDER/tf/net.tfstate"] {
        let sandbox = Sandbox::new();
        sandbox.run("init --store dir:tf").expect(0);
        let url = url.replace("FOLDER", sandbox.path(".").to_str().unwrap().trim_end_matches("/."));
        let team = Team { url, sandbox };
        team.joins("one", "1", true);
        team.joins("two", "2", false);
        let killed = team.applies("one", "--ttl 3s");
        let refused = team.run("two", &APPLY, 1).stderr;
        assert!(refused.contains("already locked"), "{refused}");
        support::send(killed.guardian(), Signal::KILL);
        killed.signal(Signal::KILL);
        team.go("one");
        team.run("two", &["apply", "-auto-approve", "-no-color", "-lock-timeout=60s"], 0);
        assert_eq!(team.value("two"), "2");
    }
}

/// Plugins of Terraform survive SIGINT, but not SIGTERM; and Terraform exits at once on a second signal.
#[test]
fn the_group_gets_one_sigint_for_all_signals() {
    let sandbox = Sandbox::new();
    let url = Server::MINIO.fresh_url();
    let script = "trap 'echo int >> got' INT; trap 'echo term >> got' TERM; trap 'echo hup >> got' HUP
        echo started; while ! [ -e go ]; do sleep 0.05; done; exit 7";
    let command = sandbox.scripted(&format!("terraform -s {url} prod"), script);
    let holder = Holder::start(command);
    holder.signal(Signal::TERM);
    support::wait_for_file(&sandbox.path("got"));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        holder.signal(signal);
    }
    // Forwarded after the others, with the default action.
    holder.signal(Signal::USR1);
    let ended = holder.end();
    assert_eq!(ended.code, 128 + Signal::USR1.as_raw(), "{ended:?}");
    assert_eq!(sandbox.read("got"), "int\n");
}

#[test]
fn terraform_says_what_it_cannot_use() {
    let sandbox = Sandbox::new();
    let url = Server::MINIO.fresh_url();
    for (words, code, message) in [
        ("prod -s sqlite:locks.db", 2, "--state s3://my-bucket"),
        ("prod -s sqlite:locks.db --state dir:tf/", 2, "empty, `.` or `..` segment"),
        ("prod --state counter.json", 2, "not an object URL"),
        ("prod -s sqlite:locks.db --state redis://h/x", 2, "keeps no objects"),
        (&*format!("prod -s {url}&protocol=existence"), 125, "no fencing tokens"),
        (&*format!("/prod -s {url}"), 2, "lock name"),
        (&*format!("prod -s {url} --wait soon"), 2, "soon"),
    ] {
        let ended = sandbox.run(&format!("terraform {words} -- true"));
        assert!(ended.code == code && ended.stderr.contains(message), "{words}: {ended:?}");
    }
    let silent = sandbox.run(&format!("tofu prod -q -s {url} -- true")).expect(125);
    assert!(silent.stderr.contains("did not ask for its state"), "{silent:?}");
    sandbox.write(
        ".terraform/terraform.tfstate",
        r#"{"backend":{"type":"http","config":{"address":"http://h/"}}}"#,
    );
    let other = sandbox.run(&format!("tofu prod -s {url} -- touch ran")).expect(125);
    assert!(other.stderr.contains("option `address` of the backend `http`"), "{other:?}");
    assert!(!sandbox.path("ran").exists());
    fs::remove_file(sandbox.path(".terraform/terraform.tfstate")).unwrap();
    assert_eq!(sandbox.run_script(&format!("tofu prod -q -s {url}"), "exit 7").expect(7).stderr, "");
}
