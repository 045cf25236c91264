//! The command and everything that it started.

use std::io;
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, test_kill_process_group, waitpid,
};

use super::cgroup::Cgroup;
use super::processes::{self, Process};

/// How often [`Tree::kill`] looks for processes that were forked while it killed: a fork bomb ends some day too.
const MOST_ROUNDS: usize = 1_000;

/// What was killed is given so long to end before it is looked for again: from this,
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The processes of a command.
///
/// On Linux we are made the reaper of orphans before the command starts, so that all its descendants stay descendants of
/// ours, also those that left the process group. Elsewhere only the group is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    /// Whose descendants they are: `leasehold run`.
    pub(crate) root: Pid,
    /// When it started, where it may have ended since: then its number may be a stranger's.
    pub(crate) root_start: Option<u64>,
    /// The command itself.
    pub(crate) leader: Pid,
    /// Its end was taken note of: the system may give its number to a process of somebody else.
    pub(crate) leader_ended: bool,
    /// Whether the command leads a process group of its own.
    pub(crate) own_group: bool,
    /// A child of the root that is not part of it.
    pub(crate) spare: Option<Pid>,
}

impl Tree {
    /// Sends `signal` to the command alone.
    pub(crate) fn signal_leader(&self, signal: Signal) {
        // It fails when the command has become another user (sudo): nothing can be done about that.
        if !self.leader_ended {
            let _ = kill_process(self.leader, signal);
        }
    }

    /// Sends `signal` to the command's process group.
    pub(crate) fn signal_group(&self, signal: Signal) {
        if self.own_group {
            let _ = kill_process_group(self.leader, signal);
            return;
        }
        // The group is also that of whoever started us, so its members are picked out by descent.
        for process in self.members_of_shared_group().unwrap_or_default() {
            let _ = kill_process(process, signal);
        }
        self.signal_leader(signal);
    }

    /// Whether there are processes in the command's group, once the command itself has ended.
    pub(crate) fn group_is_left(&self) -> bool {
        // The usual case, told without a look at each process of the machine.
        let nothing = if self.own_group { !self.group_exists() } else { self.is_childless() };
        if nothing {
            return false;
        }
        self.reap_orphans();
        if self.own_group {
            return self.group_exists();
        }
        // Who cannot be seen is not known to have ended.
        self.members_of_shared_group().map_or(true, |members| !members.is_empty())
    }

    fn group_exists(&self) -> bool {
        test_kill_process_group(self.leader).is_ok()
    }

    /// Kills all of it: the group, and every descendant wherever it went. SIGKILL leaves no time to clean up.
    pub(crate) fn kill(&self) {
        if self.own_group {
            let _ = kill_process_group(self.leader, Signal::KILL);
        }
        self.signal_leader(Signal::KILL);
        for _ in 0..MOST_ROUNDS {
            let Ok(all) = processes::all() else {
                sleep(SHORTEST_PAUSE);
                continue;
            };
            let alive = self.descendants_among(&all).into_iter().filter(|p| !p.ended && !p.is_guardian());
            let alive: Vec<Process> = alive.collect();
            if alive.is_empty() {
                break;
            }
            for process in alive {
                let _ = kill_process(process.pid, Signal::KILL);
            }
        }
        self.reap_orphans();
    }

    /// Kills all of it, what has `mark`, which is `KEY=value`, in its environment, and what is in `cgroup`; waits until all that has been found has
    /// ended, unless `given_up`: a process may hang in the kernel.
    ///
    /// Once the root has ended, what the command started has become the children of others: on a terminal, where the command
    /// has no group of its own, nothing else tells them from the user's other programs.
    pub(super) fn kill_for_good(
        &self,
        mark: Option<&[u8]>,
        cgroup: Option<&Cgroup>,
        given_up: impl Fn() -> bool,
    ) {
        self.kill();
        self.kill_until_ended(mark, cgroup, given_up, processes::all);
    }

    /// The rounds of [`kill_for_good`](Self::kill_for_good), with the processes that `list` shows.
    fn kill_until_ended(
        &self,
        mark: Option<&[u8]>,
        cgroup: Option<&Cgroup>,
        given_up: impl Fn() -> bool,
        mut list: impl FnMut() -> io::Result<Vec<Process>>,
    ) {
        // Their numbers are theirs for as long as one of them is there, be it as a zombie.
        let mut group = self.own_group.then_some(self.leader.as_raw_nonzero().get());
        let mut empty_looks = 0;
        let mut first_look = true;
        let mut pause = SHORTEST_PAUSE;
        // A process that is dying has no environment any more, and perhaps another parent: it is known by having been found.
        let mut found: Vec<Process> = Vec::new();
        loop {
            if let Some(cgroup) = cgroup {
                cgroup.kill();
            }
            let mut ended = false;
            // Who cannot be seen is not known to have ended.
            if let Ok(all) = list() {
                // One look may miss a process that was forked meanwhile.
                let is_there = all.iter().any(|process| Some(process.group) == group);
                empty_looks = if is_there { 0 } else { empty_looks + 1 };
                group = group.filter(|_| empty_looks < 2);
                let descendants = self.descendants_among(&all);
                let belongs = |process: &Process| {
                    found.iter().any(|known| known.is(process))
                        || (first_look && !self.leader_ended && process.pid == self.leader)
                        || Some(process.group) == group
                        || descendants.iter().any(|known| known.is(process))
                        || mark.is_some_and(|mark| process.is_marked(mark))
                };
                let alive = all.iter().filter(|p| !p.ended && p.pid != getpid() && belongs(p));
                found = alive.copied().collect();
                // Only of those that were seen now: the number of another may be a stranger's.
                for process in found.iter().filter(|process| !process.is_guardian()) {
                    let _ = kill_process(process.pid, Signal::KILL);
                }
                first_look = false;
                ended = found.is_empty() && cgroup.is_none_or(Cgroup::is_empty);
            }
            if ended || given_up() {
                return;
            }
            sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Takes note of the end of orphans that became our children, so that they do not stay as zombies. Not of the
    /// command's own end: that is awaited elsewhere.
    pub(crate) fn reap_orphans(&self) {
        if self.root != getpid() {
            return;
        }
        // Whoever is missing is reaped the next time.
        for process in processes::all().unwrap_or_default() {
            let ours = process.ended && process.parent == self.root.as_raw_nonzero().get();
            if ours && process.pid != self.leader && Some(process.pid) != self.spare {
                let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
            }
        }
    }

    /// Whether we have no child but the spare one, and so, as the reaper of orphans, no other descendant. Certain when true:
    /// the kernel's lists may leave out a child behind one that ends meanwhile, but never the first.
    fn is_childless(&self) -> bool {
        let Some(spare) = self.spare else { return false };
        let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return false };
        let mut children = String::new();
        for thread in threads {
            let list = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("children")));
            // A thread that has ended has left its children to another, and a kernel may keep no lists.
            let Ok(list) = list else { return false };
            children += &list;
        }
        children.split_ascii_whitespace().eq([spare.as_raw_nonzero().to_string()])
    }

    fn members_of_shared_group(&self) -> io::Result<Vec<Pid>> {
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        let descendants = self.descendants_among(&processes::all()?);
        let members = descendants.into_iter().filter(|p| !p.ended && p.group == group);
        Ok(members.map(|process| process.pid).collect())
    }

    fn descendants_among(&self, all: &[Process]) -> Vec<Process> {
        let is_another = |root: &Process| {
            root.pid == self.root && self.root_start.is_some_and(|start| start != root.start)
        };
        if all.iter().any(is_another) {
            return Vec::new();
        }
        let mut found: Vec<Process> = Vec::new();
        let mut parents = vec![self.root.as_raw_nonzero().get()];
        while let Some(parent) = parents.pop() {
            for process in all.iter().filter(|p| p.parent == parent && Some(p.pid) != self.spare) {
                parents.push(process.pid.as_raw_nonzero().get());
                found.push(*process);
            }
        }
        found
    }
}

/// Without a runtime: the guardian has none.
fn sleep(pause: Duration) {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_has_ended_is_not_signalled_again() {
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let leader = Pid::from_raw(i32::try_from(other.id()).unwrap()).unwrap();
        // As if the system had given the number to `other`.
        let root = Pid::from_raw(i32::MAX).unwrap();
        let tree = Tree { root, root_start: None, leader, leader_ended: true, own_group: false, spare: None };
        tree.signal_leader(Signal::KILL);
        tree.signal_group(Signal::KILL);
        assert!(other.try_wait().unwrap().is_none());
        Tree { leader_ended: false, ..tree }.signal_leader(Signal::KILL);
        other.wait().unwrap();
    }

    #[test]
    fn processes_that_cannot_be_listed_have_not_ended() {
        let nobody = Pid::from_raw(i32::MAX).unwrap();
        let tree = Tree {
            root: nobody,
            root_start: None,
            leader: nobody,
            leader_ended: true,
            own_group: true,
            spare: None,
        };
        let mut asked = 0;
        tree.kill_until_ended(
            None,
            None,
            || false,
            || {
                asked += 1;
                if asked < 3 { Err(io::Error::other("too many open files")) } else { Ok(Vec::new()) }
            },
        );
        assert_eq!(asked, 3);
    }

    #[test]
    fn whoever_was_given_a_number_of_ours_later_is_not_killed() {
        let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = |number: i32| Pid::from_raw(number).unwrap();
        let number = i32::try_from(stranger.id()).unwrap();
        let (root, ours) = (i32::MAX, i32::MAX - 1);
        let tree = Tree {
            root: pid(root),
            root_start: Some(1),
            leader: pid(number),
            leader_ended: true,
            own_group: true,
            spare: None,
        };
        let of_ours = Process { pid: pid(ours), parent: root, group: ours, start: 2, ended: false };
        let new_root = Process { pid: pid(root), parent: 1, group: root, start: 9, ended: false };
        let new = Process { pid: pid(number), parent: root, group: number, start: 9, ended: false };
        let mut views = vec![vec![], vec![of_ours, new_root, new], vec![of_ours], vec![of_ours]];
        tree.kill_until_ended(None, None, || false, || Ok(views.pop().unwrap()));
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        assert!(views.is_empty());
    }
}
