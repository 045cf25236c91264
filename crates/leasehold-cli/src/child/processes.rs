//! The processes of this machine, from `/proc`.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::process::Pid;

use super::GUARDIAN;

/// A process, identified by its id and its start time, because the system reuses process ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: Pid,
    /// The start time in clock ticks since boot. `None` for a process that cannot end unnoticed, and for one that was
    /// not found.
    pub(crate) start: Option<u64>,
}

impl ProcessIdentity {
    /// Identifies a process that cannot end unnoticed: this process or a child.
    pub(crate) fn own_process(pid: Pid) -> Self {
        Self { pid, start: None }
    }

    /// Identifies the process that has the id `pid` now.
    pub(super) fn now(pid: Pid) -> Self {
        Self { pid, start: find(pid).ok().flatten().map(|process| process.start) }
    }

    /// Returns whether `seen` is another process with the same id.
    pub(super) fn is_replaced_by(&self, seen: &Process) -> bool {
        seen.pid == self.pid && self.start.is_some_and(|start| start != seen.start)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) parent: i32,
    pub(super) group: i32,
    /// The start time in clock ticks since boot.
    pub(super) start: u64,
    /// Whether it is a zombie, which no longer runs.
    pub(super) ended: bool,
}

impl Process {
    /// Returns whether this is the process `other`, and not a later one with the same id.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.pid, self.start) == (other.pid, other.start)
    }

    /// Returns whether this is the guardian of a run within this one. Such a guardian exits by itself after it has
    /// killed its targets. The argument is not sufficient evidence, because every program can choose its arguments.
    pub(super) fn is_guardian(&self) -> bool {
        let line = fs::read(self.file("cmdline"));
        line.is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(GUARDIAN.as_bytes()))
            && self.runs_our_program()
    }

    /// Returns whether the process runs our program. Compares only the file names, because the program file may be
    /// replaced while an older build runs.
    fn runs_our_program(&self) -> bool {
        let program = |link: &str| {
            let path = fs::read_link(link).ok()?;
            Some(path.file_name()?.to_str()?.trim_end_matches(" (deleted)").to_owned())
        };
        let its = program(&self.file("exe"));
        its.is_some() && its == program("/proc/self/exe")
    }

    /// Returns whether its environment contains `mark`, which has the form `KEY=value`.
    pub(super) fn is_marked(&self, mark: &[u8]) -> bool {
        let environment = fs::read(self.file("environ"));
        environment.is_ok_and(|text| text.split(|byte| *byte == 0).any(|entry| entry == mark))
    }

    fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid.as_raw_nonzero())
    }
}

/// Returns all processes, or none if there is no `/proc`. Fails if a process could not be read.
pub(super) fn all() -> io::Result<Vec<Process>> {
    all_in(Path::new("/proc"))
}

/// Returns the process group of `pid`, or 0 if it is outside this pid namespace. `getpgid` of rustix panics then.
#[cfg(target_os = "linux")]
pub(super) fn group_of(pid: Pid) -> i32 {
    find(pid).ok().flatten().map_or(0, |process| process.group)
}

/// Returns the process group of `pid`, or 0 if it is unknown.
#[cfg(not(target_os = "linux"))]
pub(super) fn group_of(pid: Pid) -> i32 {
    rustix::process::getpgid(Some(pid)).map_or(0, |group| group.as_raw_nonzero().get())
}

/// Returns the children of this process.
pub(super) fn children() -> io::Result<Vec<Process>> {
    let Some(pids) = child_ids() else {
        let ours = rustix::process::getpid().as_raw_nonzero().get();
        return Ok(all()?.into_iter().filter(|process| process.parent == ours).collect());
    };
    let found = pids.into_iter().map(|pid| process(Path::new("/proc"), pid));
    found.filter_map(Result::transpose).collect()
}

/// Returns the ids of the children of this process, from the kernel's lists. These may omit a child that follows an
/// ending one, but never the first child. Returns `None` without such lists, as on some kernels.
pub(super) fn child_ids() -> Option<Vec<i32>> {
    let mut ids = Vec::new();
    for thread in fs::read_dir("/proc/self/task").ok()? {
        // Fails if the thread has ended, which passed its children to another thread.
        let list = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        ids.extend(list.split_ascii_whitespace().filter_map(|id| id.parse::<i32>().ok()));
    }
    Some(ids)
}

/// Returns the process `pid`, if it exists.
pub(super) fn find(pid: Pid) -> io::Result<Option<Process>> {
    process(Path::new("/proc"), pid.as_raw_nonzero().get())
}

fn all_in(folder: &Path) -> io::Result<Vec<Process>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.extend(process(folder, pid)?);
        }
    }
    Ok(found)
}

fn process(folder: &Path, pid: i32) -> io::Result<Option<Process>> {
    let stat = match fs::read(folder.join(pid.to_string()).join("stat")) {
        Ok(stat) => stat,
        // The process has ended, or it belongs to another user and the mount option `hidepid` hides it.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            return Ok(None);
        }
        // The process ended while its status was being read.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let unreadable = || io::Error::other(format!("the status of process {pid} cannot be read"));
    parse(pid, &String::from_utf8_lossy(&stat)).map(Some).ok_or_else(unreadable)
}

fn parse(pid: i32, stat: &str) -> Option<Process> {
    // The second field is the program's name in parentheses. It may contain spaces and parentheses.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    // Fields are numbered as in proc(5); the state is field 3.
    let field = |number: usize| fields.get(number - 3).copied();
    let number = |field: &str| field.parse().ok();
    // A process whose main thread has ended is shown as a zombie while other threads still run.
    let ended = match field(3)? {
        "X" => true,
        "Z" => field(20)?.parse::<u64>().ok()? <= 1,
        _ => false,
    };
    let (parent, group) = (number(field(4)?)?, number(field(5)?)?);
    Some(Process { pid: Pid::from_raw(pid)?, parent, group, start: field(22)?.parse().ok()?, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_process_is_an_error_an_ended_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let stat = |pid: &str| folder.path().join(pid).join("stat");
        fs::create_dir(folder.path().join("7")).unwrap();
        fs::create_dir(folder.path().join("8")).unwrap();
        fs::copy("/proc/self/stat", stat("8")).unwrap();
        let pids = || {
            all_in(folder.path())
                .map(|all| all.iter().map(|process| process.pid.as_raw_nonzero().get()).collect::<Vec<_>>())
        };
        assert_eq!(pids().unwrap(), vec![8]);
        // A folder cannot be read as a file.
        fs::create_dir(stat("7")).unwrap();
        assert!(pids().is_err());
        fs::remove_dir(stat("7")).unwrap();
        fs::write(stat("7"), "7 (half").unwrap();
        assert!(pids().is_err());
        assert!(all_in(&stat("8")).is_err());
        assert!(all_in(&folder.path().join("missing")).unwrap().is_empty());
    }

    #[test]
    fn another_program_is_not_a_guardian_despite_its_arguments() {
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(other.id()).unwrap()).unwrap();
        assert!(!find(pid).unwrap().unwrap().runs_our_program());
        assert!(find(rustix::process::getpid()).unwrap().unwrap().runs_our_program());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
