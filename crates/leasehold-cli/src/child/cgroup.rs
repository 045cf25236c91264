//! A cgroup for the command. The kernel keeps all descendants of the command in it, whatever their user, session or
//! parent.
//!
//! Used only on request, because moving a process into a cgroup takes the kernel ten milliseconds or more, three times
//! as long as the rest of a run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use leasehold::lease::Id;

/// A cgroup (version 2) below our own.
#[derive(Debug)]
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup for `run`.
    pub(super) fn make(run: Id) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let ours = folder(&mounts, &groups)
            .ok_or_else(|| io::Error::other("this process is not in a mounted cgroup v2 hierarchy"))?;
        let made = Self(ours.join(format!("leasehold-{run}")));
        fs::create_dir(&made.0).map_err(|error| at(&made.0, &error))?;
        // `cgroup.kill` exists since Linux 5.14.
        let kill = made.0.join("cgroup.kill");
        fs::metadata(&kill).map_err(|error| at(&kill, &error))?;
        Ok(made)
    }

    /// Returns the cgroup at `folder`, which another process has created.
    pub(super) fn made(folder: PathBuf) -> Self {
        Self(folder)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// Moves the process `pid` into the cgroup.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code))]
    pub(super) fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).map_err(|error| at(&self.0, &error))
    }

    /// Kills all processes in the cgroup, including those forked in the meantime.
    pub(super) fn kill(&self) {
        // Fails if all processes have ended and the cgroup was removed.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Returns whether the cgroup certainly contains no running process.
    pub(super) fn is_empty(&self) -> bool {
        match fs::read_to_string(self.0.join("cgroup.events")) {
            Ok(events) => events.lines().any(|line| line == "populated 0"),
            // Only an empty cgroup can be removed.
            Err(error) => {
                error.kind() == io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel does not remove a cgroup with processes, so only the last drop succeeds.
        let _ = fs::remove_dir(&self.0);
    }
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Returns the folder of our own cgroup, according to `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn folder(mounts: &str, groups: &str) -> Option<PathBuf> {
    let ours = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        // In a container, only a part of the hierarchy may be mounted.
        Some(Path::new(point).join(Path::new(ours).strip_prefix(root).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_empty_when_the_kernel_says_so_or_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let cgroup = std::mem::ManuallyDrop::new(Cgroup::made(folder.path().to_owned()));
        let events = folder.path().join("cgroup.events");
        assert!(cgroup.is_empty());
        fs::write(&events, "populated 1\nfrozen 0\n").unwrap();
        assert!(!cgroup.is_empty());
        fs::write(&events, "populated 0\nfrozen 0\n").unwrap();
        assert!(cgroup.is_empty());
        // An unreadable cgroup is not known to be empty.
        fs::remove_file(&events).unwrap();
        fs::create_dir(&events).unwrap();
        assert!(!cgroup.is_empty());
    }

    #[test]
    fn our_cgroup_is_found_where_it_is_mounted() {
        let whole = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let hybrid = "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      32 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        let part = "30 23 0:26 /docker/7 /sys/fs/cgroup ro - cgroup2 cgroup2 rw";
        let user = "0::/user.slice/session-3.scope\n";
        let found = |mounts, groups| folder(mounts, groups).map(|path| path.display().to_string());
        assert_eq!(found(whole, user).unwrap(), "/sys/fs/cgroup/user.slice/session-3.scope");
        assert_eq!(found(hybrid, "1:cpu:/\n0::/\n").unwrap().trim_end_matches('/'), "/sys/fs/cgroup/unified");
        assert_eq!(found(part, "0::/docker/7/x\n").unwrap(), "/sys/fs/cgroup/x");
        assert_eq!(found(part, user), None);
        assert_eq!(found(whole, "1:cpu:/\n"), None);
        assert_eq!(found("", user), None);
    }
}
