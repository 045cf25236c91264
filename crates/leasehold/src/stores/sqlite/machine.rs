//! The identity of this machine's boot and of this process. Other processes on the machine can recognise both.
//!
//! The age of a lease in a local file is measured by one kernel's clock, so the store must know to which boot a reading
//! belongs. The store may also end a lease early, because a process that has ended cannot use its lease.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::mounts;
use crate::error::{ErrorKind, Fault};

/// The prefix of a boot id that is not the kernel's own. Such an id may belong to the same boot as another id.
const MASKED: &str = "container:";

/// One boot of one machine, and this process in it.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// The id of the boot. It changes with every boot and never in between. Begins with [`MASKED`] in a container that
    /// has its own id.
    pub(super) boot: String,
    /// This process. `None` if the system does not provide the data that other processes need to recognise it.
    pub(super) me: Option<Process>,
}

/// The identity of a process within one boot. Process ids are reused, start times are not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    /// The namespace of the id: the target of `/proc/self/ns/pid`.
    pub(super) namespace: String,
    /// The process id.
    pub(super) pid: u32,
    /// The start time, in clock ticks since boot.
    pub(super) start: u64,
    /// Other processes of the same namespace that work for it. This process counts as dead only when they have ended
    /// too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) others: Vec<Other>,
}

/// A process that works for the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Other {
    /// The process id.
    pub(super) pid: u32,
    /// The start time, in clock ticks since boot.
    pub(super) start: u64,
}

impl Process {
    /// Returns whether this is the process `other`. Ignores the processes that work for either.
    pub(super) fn is(&self, other: &Self) -> bool {
        (&self.namespace, self.pid, self.start) == (&other.namespace, other.pid, other.start)
    }
}

impl Machine {
    /// Identifies this machine and this process.
    ///
    /// # Errors
    /// Unsupported if boots cannot be distinguished, because leases could then not be judged safely.
    pub(super) fn this() -> Result<Self, Fault> {
        let shifted =
            fs::read_to_string("/proc/self/timens_offsets").is_ok_and(|text| shifts_boot_clock(&text));
        if shifted {
            return Err(Fault::new(
                ErrorKind::Unsupported,
                "this process runs in a time namespace whose boot clock differs from the machine's",
            )
            .with_help("run it in the machine's own time namespace, or use a store with a server"));
        }
        Ok(Self { boot: boot_id()?, me: this_process() })
    }

    /// Returns whether a record with the boot id `boot` is certainly of an earlier boot. `at_ns` is the boot clock in
    /// the record, and `now_ns` is the boot clock now.
    pub(super) fn has_rebooted_since(&self, boot: &str, at_ns: u64, now_ns: u64) -> bool {
        // A boot clock never goes back within a boot. If the ids do not decide, the clock does: a container may also
        // have the same id in every boot. If the clock does not show a reboot, a lock only becomes free later, by at
        // most one ttl. Within a boot, the clock never reports a reboot, so a held lock stays held.
        match boot.starts_with(MASKED) || self.boot.starts_with(MASKED) {
            true => now_ns < at_ns,
            false => boot != self.boot,
        }
    }

    /// Returns whether `process` has certainly ended. If this is uncertain, the process counts as running.
    pub(super) fn is_dead(&self, process: &Process) -> bool {
        if self.me.as_ref().is_none_or(|me| me.namespace != process.namespace) {
            return false;
        }
        let others = process.others.iter().map(|other| (other.pid, other.start));
        std::iter::once((process.pid, process.start))
            .chain(others)
            .all(|(pid, start)| has_ended(pid, start, stat(pid), exists))
    }

    /// Returns whether `process` is this one.
    pub(super) fn is_me(&self, process: &Process) -> bool {
        self.me.as_ref().is_some_and(|me| me.is(process))
    }

    /// Returns the processes of `pids` that run. Leaves out processes that this one cannot see, because others cannot
    /// see them either.
    pub(super) fn running(&self, pids: &[u32]) -> Vec<Other> {
        let running = |pid: &u32| {
            let stat = stat(*pid).ok()??;
            Some(Other { pid: *pid, start: stat.start }).filter(|_| !stat.ended())
        };
        pids.iter().filter_map(running).collect()
    }
}

/// Returns whether a process has ended, judging by its entry in /proc and by whether its id is in use.
fn has_ended(pid: u32, start: u64, seen: io::Result<Option<Stat>>, exists: impl Fn(u32) -> bool) -> bool {
    match seen {
        Ok(Some(stat)) => stat.start != start || stat.ended(),
        Ok(None) => false,
        // /proc may hide the processes of other users (hidepid). Then only the result of the system call counts.
        Err(error) if error.kind() == io::ErrorKind::NotFound => !exists(pid),
        Err(_) => false,
    }
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

fn boot_id() -> Result<String, Fault> {
    let id = match fs::read_to_string(BOOT_ID) {
        Ok(id) => id,
        // macOS has no /proc. sysctl(8) returns its boot id. The call takes a few milliseconds, once.
        Err(_) if cfg!(target_os = "macos") => sysctl("kern.bootsessionuuid"),
        Err(_) => String::new(),
    };
    let id = id.trim();
    if id.is_empty() {
        return Err(Fault::new(ErrorKind::Unsupported, "the id of this boot cannot be read").with_help(
            "on Linux, /proc must be mounted, and /proc/sys/kernel/random/boot_id readable (not with ProcSubset=pid of \
             systemd)",
        ));
    }
    // systemd-nspawn and LXC mount a file over it to give each container a random id.
    let is_masked = mounts::is_mounted(Path::new(BOOT_ID))? || is_elsewhere(BOOT_ID);
    Ok(if is_masked { format!("{MASKED}{id}") } else { id.to_owned() })
}

/// Returns whether the boot id is not in a /proc of the kernel, because something is mounted over a folder above it.
#[cfg(target_os = "linux")]
fn is_elsewhere(boot_id: &str) -> bool {
    rustix::fs::statfs(boot_id).is_ok_and(|there| there.f_type != rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(not(target_os = "linux"))]
fn is_elsewhere(_boot_id: &str) -> bool {
    false
}

fn sysctl(name: &str) -> String {
    let output = Command::new("/usr/sbin/sysctl").args(["-n", name]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Returns whether `/proc/self/timens_offsets` shifts the boot clock. Its lines consist of a clock, seconds and
/// nanoseconds.
fn shifts_boot_clock(offsets: &str) -> bool {
    offsets
        .lines()
        .filter_map(|line| line.strip_prefix("boottime"))
        .any(|shift| shift.split_whitespace().any(|number| number != "0"))
}

fn this_process() -> Option<Process> {
    let pid = std::process::id();
    // The /proc of another PID namespace numbers processes differently, so its entries would be other processes.
    let seen = fs::read_link("/proc/self").ok()?;
    if seen != Path::new(&pid.to_string())
        || is_of_another_namespace(&fs::read_to_string("/proc/self/status").ok()?)
    {
        return None;
    }
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?.to_str()?.to_owned();
    let start = stat(pid).ok()??.start;
    Some(Process { namespace, pid, start, others: Vec::new() })
}

/// Returns whether `/proc/self/status` is from the /proc of an outer PID namespace, where this process may have the same
/// number by chance. It then has a number in each namespace.
fn is_of_another_namespace(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_none_or(|numbers| numbers.split_whitespace().count() != 1)
}

/// The fields of `/proc/PID/stat` that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    threads: u64,
    start: u64,
}

impl Stat {
    /// Returns whether the process is dead or a zombie. A process whose first thread has ended is shown as a zombie
    /// while its other threads still run.
    fn ended(&self) -> bool {
        matches!(self.state, b'X' | b'x') || (self.state == b'Z' && self.threads <= 1)
    }
}

fn stat(pid: u32) -> io::Result<Option<Stat>> {
    Ok(parse_stat(&fs::read(format!("/proc/{pid}/stat"))?))
}

/// Parses `/proc/PID/stat`. The second field is the program's name in parentheses. It may contain anything, including
/// spaces and `)`.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let end_of_name = text.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&text[end_of_name + 1..]).ok()?;
    // Fields are numbered as in proc(5): the state is field 3.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        state: *field(3)?.as_bytes().first()?,
        threads: field(20)?.parse().ok()?,
        start: field(22)?.parse().ok()?,
    })
}

fn exists(pid: u32) -> bool {
    match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        Some(pid) => test_kill_process(pid) != Err(rustix::io::Errno::SRCH),
        None => true,
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
pub(super) mod tests {
    use std::process::{Child, Stdio};

    use super::*;

    /// A child process with an identity for tests. It is killed when this value is dropped.
    pub(crate) struct Sleeper(Child);

    impl Sleeper {
        pub(crate) fn start() -> Self {
            Self(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap())
        }

        pub(crate) fn process(&self) -> Process {
            let start = stat(self.0.id()).unwrap().unwrap().start;
            Process { pid: self.0.id(), start, ..this_process().unwrap() }
        }

        /// Kills the process. It stays a zombie until it is [reaped](Self::reap).
        pub(crate) fn kill(&mut self) {
            self.0.kill().unwrap();
            while !stat(self.0.id()).unwrap().unwrap().ended() {
                std::thread::yield_now();
            }
        }

        pub(crate) fn reap(&mut self) {
            self.0.wait().unwrap();
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_is_dead_only_if_it_is_a_zombie_or_has_ended() {
        let machine = Machine::this().unwrap();
        let mut sleeper = Sleeper::start();
        let process = sleeper.process();
        assert!(!machine.is_dead(&process));
        sleeper.kill();
        assert!(machine.is_dead(&process), "a zombie");
        sleeper.reap();
        assert!(machine.is_dead(&process), "gone");
    }

    #[test]
    fn a_process_id_that_was_used_again_does_not_keep_a_lease_alive() {
        let machine = Machine::this().unwrap();
        let me = machine.me.clone().unwrap();
        assert!(!machine.is_dead(&me));
        assert!(machine.is_dead(&Process { start: me.start.wrapping_sub(1), ..me }));
    }

    #[test]
    fn a_process_that_cannot_be_seen_counts_as_running() {
        let process = Machine::this().unwrap().me.unwrap();
        let ended = |seen, exists: bool| has_ended(process.pid, process.start, seen, |_| exists);
        let error = |kind: io::ErrorKind| Err(io::Error::from(kind));
        assert!(!ended(error(io::ErrorKind::NotFound), true), "hidden by hidepid");
        assert!(ended(error(io::ErrorKind::NotFound), false));
        assert!(!ended(error(io::ErrorKind::PermissionDenied), false));
        assert!(!ended(Ok(None), false));
        assert!(exists(process.pid) && exists(1) && !exists(i32::MAX as u32));
    }

    #[test]
    fn a_holder_is_dead_only_when_all_its_processes_are() {
        let machine = Machine::this().unwrap();
        let (mut holder, mut first, mut second) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
        let others = machine.running(&[first.0.id(), second.0.id(), i32::MAX as u32]);
        assert_eq!(others.len(), 2, "what does not run is left out");
        let process = Process { others, ..holder.process() };
        holder.kill();
        assert!(!machine.is_dead(&process));
        first.kill();
        assert!(!machine.is_dead(&process));
        second.kill();
        assert!(machine.is_dead(&process));
        assert!(machine.running(&[second.0.id()]).is_empty(), "a zombie does nothing more");
    }

    #[test]
    fn processes_of_another_namespace_are_not_judged() {
        let machine = Machine::this().unwrap();
        let me = machine.me.clone().unwrap();
        let stranger = Process { namespace: "pid:[1]".into(), start: 0, ..me };
        assert!(!machine.is_dead(&stranger));
        let blind = Machine { me: None, ..machine };
        assert!(!blind.is_dead(&stranger));
    }

    #[test]
    fn the_proc_of_an_outer_namespace_is_recognised() {
        assert!(!is_of_another_namespace("Name:\tx\nNSpid:\t7\nNSpgid:\t7\n"));
        assert!(is_of_another_namespace("Name:\tx\nNSpid:\t7\t7\nNSpgid:\t7\n"));
        assert!(is_of_another_namespace("Name:\tx\n"), "unknown");
        assert!(this_process().is_some());
    }

    #[test]
    fn the_state_is_read_behind_the_last_parenthesis() {
        let line = b"7 (a) R 1 (\xff) S 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 3 0 8812 0 0";
        assert_eq!(parse_stat(line), Some(Stat { state: b'S', threads: 3, start: 8_812 }));
        for bad in [&b""[..], b"7 (a", b"7 (a) S 1 2", b"7 (a) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 x 0 y 0"] {
            assert_eq!(parse_stat(bad), None);
        }
    }

    #[test]
    fn a_process_outlives_its_first_thread() {
        assert!(!Stat { state: b'Z', threads: 2, start: 1 }.ended());
        assert!(Stat { state: b'Z', threads: 1, start: 1 }.ended());
        assert!(!Stat { state: b'T', threads: 1, start: 1 }.ended(), "stopped is not dead");
    }

    #[test]
    fn a_boot_id_masked_by_a_container_is_not_taken_for_a_reboot() {
        // A file of another file system, as if it were mounted there.
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        assert!(is_elsewhere(elsewhere.path().to_str().unwrap()));
        assert!(!is_elsewhere("/proc/version"));
        let machine = |boot: &str| Machine { boot: boot.to_owned(), me: None };
        assert!(machine("b").has_rebooted_since("a", 5, 9), "two genuine ones");
        assert!(!machine("a").has_rebooted_since("a", 5, 9));
        for (mine, theirs) in [
            ("container:b", "a"),
            ("b", "container:a"),
            ("container:b", "container:a"),
            ("container:a", "container:a"),
        ] {
            assert!(!machine(mine).has_rebooted_since(theirs, 5, 9));
            assert!(machine(mine).has_rebooted_since(theirs, 9, 5), "the clock has gone back");
        }
    }

    #[test]
    fn a_shifted_boot_clock_is_noticed() {
        assert!(!shifts_boot_clock("monotonic           0         0\nboottime            0         0\n"));
        assert!(!shifts_boot_clock("monotonic           5         0\nboottime            0         0\n"));
        assert!(shifts_boot_clock("monotonic           0         0\nboottime        86400         0\n"));
    }
}
