//! An isolated folder for each test, and functions that wait for events.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Timeout of all waits, long enough for the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A folder with its own store and configuration.
pub(crate) struct Sandbox(tempfile::TempDir);

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a command that runs `leasehold` with `arguments`.
    pub(crate) fn leasehold<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let leasehold = assert_cmd::cargo::cargo_bin!("leasehold");
        let mut command = Command::new(leasehold);
        for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("LEASEHOLD_"))
        {
            command.env_remove(key);
        }
        command
            .args(arguments)
            .env("XDG_STATE_HOME", self.path("state"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("LOGNAME", "tester")
            .env("HERE", self.0.path())
            .env("LEASEHOLD", leasehold)
            .current_dir(self.0.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs `leasehold` with the words of `line`.
    pub(crate) fn run(&self, line: &str) -> Outcome {
        Outcome::of(self.leasehold(line.split_whitespace()).output().unwrap())
    }

    /// Runs `leasehold` with `words`, then `-- sh -c script`.
    pub(crate) fn run_script(&self, words: &str, script: &str) -> Outcome {
        Outcome::of(self.scripted(words, script).output().unwrap())
    }

    pub(crate) fn scripted(&self, words: &str, script: &str) -> Command {
        self.leasehold(words.split_whitespace().chain(["--", "sh", "-c", script]))
    }

    /// Starts `leasehold` with `words` and `script`, which holds a lock while the returned value lives. Returns after
    /// the script's first line of output.
    pub(crate) fn hold(&self, words: &str, script: &str) -> Holder {
        Holder::start(self.scripted(words, script))
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Locks the file of the store, so that no renewal succeeds until the returned value is dropped.
    pub(crate) fn cut_off(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.path("state/leasehold/locks.db")).unwrap();
        connection.busy_timeout(TIMEOUT).unwrap();
        connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
        connection
    }
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code, or 128 + signal, as a shell reports it.
    pub(crate) code: i32,
    /// The signal that killed the process.
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self::new(output.status, text(output.stdout), text(output.stderr))
    }

    pub(crate) fn new(status: ExitStatus, stdout: String, stderr: String) -> Self {
        let signal = status.signal();
        let code = status.code().or_else(|| Some(signal? + 128)).unwrap();
        Self { code, signal, stdout, stderr }
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }
}

/// A `leasehold run` in the background. Killed when dropped.
pub(crate) struct Holder {
    pub(crate) process: Child,
    pub(crate) stdout: BufReader<ChildStdout>,
    /// The first line that its command printed.
    pub(crate) first: String,
}

impl Holder {
    /// Starts `command` in a new process group, as a shell starts a job.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut process =
            command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut first = String::new();
        stdout.read_line(&mut first).unwrap();
        let first = first.trim().to_owned();
        if first.is_empty() {
            panic!("it did not start: {:?}", Self { process, stdout, first }.end());
        }
        Self { process, stdout, first }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        if self.stdout.read_line(&mut line).unwrap() == 0 {
            let mut stderr = String::new();
            self.process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            panic!("it printed nothing more, and ended with {:?}: {stderr}", self.process.wait());
        }
        line.trim().to_owned()
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Returns the process id of its guardian.
    pub(crate) fn guardian(&self) -> i32 {
        guardian_of(self.pid()).unwrap()
    }

    /// Waits until the process has ended.
    pub(crate) fn end(mut self) -> Outcome {
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).unwrap();
        let mut stderr = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Outcome::new(self.process.wait().unwrap(), stdout, stderr)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns `command` as process 1 of a new pid namespace, or `None` if this machine permits none.
pub(crate) fn as_process_1(command: &Command) -> Option<Command> {
    unshared(&["--pid", "--fork", "--mount-proc"], command)
}

/// Returns `command` in new namespaces (options of unshare(1)), or `None` if this machine permits none.
pub(crate) fn unshared(namespaces: &[&str], command: &Command) -> Option<Command> {
    let unshare = |more: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(namespaces).args(more).stdin(Stdio::null());
        unshare
    };
    let permits = |more: &&[&str]| {
        unshare(more).arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let more = [&[][..], &["--user", "--map-root-user"]].into_iter().find(permits)?;
    let mut wrapped = unshare(more);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    wrapped.current_dir(command.get_current_dir().unwrap());
    Some(wrapped)
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Returns the guardian of the `leasehold run` with `pid`, if it has one.
pub(crate) fn guardian_of(pid: i32) -> Option<i32> {
    let is_guardian = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains("__guardian")
    };
    children_of(pid).into_iter().find(is_guardian)
}

/// Returns the processes that `parent` started.
pub(crate) fn children_of(parent: i32) -> Vec<i32> {
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, its_parent)| its_parent == parent)).collect()
}

/// Returns whether `pid` is a running process.
pub(crate) fn is_alive(pid: &str) -> bool {
    stat(pid.parse().unwrap()).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Returns whether `pid` is stopped.
pub(crate) fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'T')
}

fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Polls until `happened` returns true.
#[track_caller]
#[allow(clippy::disallowed_methods)] // The pause between two polls does not affect the result.
pub(crate) fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !happened() {
        assert!(start.elapsed() < TIMEOUT, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `path` has content, and returns the content.
pub(crate) fn wait_for_file(path: &Path) -> String {
    wait_until(&format!("{}", path.display()), || fs::metadata(path).is_ok_and(|file| file.len() > 0));
    fs::read_to_string(path).unwrap()
}

/// Reads lines until one contains `word`, and returns it.
pub(crate) fn line_with(output: &mut impl BufRead, word: &str) -> String {
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended without {word:?}");
    }
    line
}
