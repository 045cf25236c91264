//! The command and its descendants.

use std::io;
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, test_kill_process_group, waitpid,
};

use super::cgroup::Cgroup;
use super::processes::{self, Process, ProcessIdentity};

/// The maximum number of rounds in which [`Tree::kill`] looks for newly forked processes, so that it ends despite a
/// fork bomb.
const MAX_ROUNDS: usize = 1_000;

/// The first pause between two looks at killed processes. It doubles after each look.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// The maximum pause between two looks.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// The processes of a command.
///
/// On Linux this process becomes a child subreaper before the command starts, so that all descendants of the command
/// remain our descendants, even if they leave the process group. Elsewhere only the group is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    /// The ancestor of all of them: `leasehold run`.
    pub(crate) root: ProcessIdentity,
    /// The command itself.
    pub(crate) leader: ProcessIdentity,
    /// Whether the command has been reaped. After that, its process id may belong to another process.
    pub(crate) leader_ended: bool,
    /// Whether the command leads its own process group.
    pub(crate) own_group: bool,
    /// The guardian, a child of the root that is not part of the command.
    pub(crate) guardian: Option<Pid>,
}

impl Tree {
    /// Sends `signal` to the command alone.
    pub(crate) fn signal_leader(&self, signal: Signal) {
        // Fails if the command runs as another user (sudo). There is no remedy.
        if !self.leader_ended {
            let _ = kill_process(self.leader.pid, signal);
        }
    }

    /// Sends `signal` to the command's process group.
    pub(crate) fn signal_group(&self, signal: Signal) {
        if self.own_group {
            let _ = kill_process_group(self.leader.pid, signal);
            return;
        }
        // The group also contains our own caller, so signal only our descendants in it.
        for process in self.with_leader(self.members_of_shared_group().unwrap_or_default()) {
            // Fails if the process has ended, or runs as another user (sudo).
            let _ = kill_process(process, signal);
        }
    }

    /// Adds the command to `members` of its group unless it has ended, so that it gets a signal even if the list of
    /// processes is not available. Returns each process once, so that it gets a signal once.
    fn with_leader(&self, mut members: Vec<Pid>) -> Vec<Pid> {
        if !self.leader_ended && !members.contains(&self.leader.pid) {
            members.push(self.leader.pid);
        }
        members
    }

    /// Returns whether the command's group still contains processes after the command itself has ended.
    pub(crate) fn group_remains(&self) -> bool {
        // Decide the common case without listing all processes of the machine.
        let nothing = if self.own_group { !self.group_exists() } else { self.is_childless() };
        if nothing {
            return false;
        }
        self.reap_orphans();
        if self.own_group {
            return self.group_exists();
        }
        // If the list is not available, no process is known to have ended.
        self.members_of_shared_group().map_or(true, |members| !members.is_empty())
    }

    fn group_exists(&self) -> bool {
        test_kill_process_group(self.leader.pid).is_ok()
    }

    /// Kills the group and every other descendant. SIGKILL leaves no time to clean up.
    pub(crate) fn kill(&self) {
        if self.own_group {
            let _ = kill_process_group(self.leader.pid, Signal::KILL);
        }
        self.signal_leader(Signal::KILL);
        for _ in 0..MAX_ROUNDS {
            let Ok(all) = processes::all() else {
                sleep(MIN_PAUSE);
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

    /// Marks the command and its group as ended if another process in `all` has its id. The group is then empty,
    /// because the system does not reuse the id of a group that contains a process.
    pub(super) fn forget_replaced_leader(&mut self, all: &[Process]) {
        if all.iter().any(|process| self.leader.is_replaced_by(process)) {
            (self.leader_ended, self.own_group) = (true, false);
        }
    }

    /// Kills the processes of the command, those with `mark` (of the form `KEY=value`) in their environment, and those
    /// in `cgroup`. Waits until all processes found have ended, or until `given_up` returns true, because a process may
    /// hang in the kernel.
    ///
    /// Once the root has ended, the descendants of the command have other parents. On a terminal, where the command
    /// has no separate group, only the mark distinguishes them from the user's other programs.
    pub(super) fn kill_for_good(
        &self,
        mark: Option<&[u8]>,
        cgroup: Option<&Cgroup>,
        given_up: impl Fn() -> bool,
    ) {
        self.kill();
        let kill = |process: Pid| {
            let _ = kill_process(process, Signal::KILL);
        };
        self.kill_until_ended(mark, cgroup, given_up, processes::all, kill);
    }

    /// Runs the rounds of [`kill_for_good`](Self::kill_for_good): `list` returns the processes, and `kill` kills one of
    /// them.
    fn kill_until_ended(
        &self,
        mark: Option<&[u8]>,
        cgroup: Option<&Cgroup>,
        given_up: impl Fn() -> bool,
        mut list: impl FnMut() -> io::Result<Vec<Process>>,
        mut kill: impl FnMut(Pid),
    ) {
        // The system does not reuse the id of the group while one of its processes exists, even as a zombie.
        let mut group = self.own_group.then_some(self.leader.pid.as_raw_nonzero().get());
        let mut empty_looks = 0;
        let mut first_look = true;
        let mut pause = MIN_PAUSE;
        // A dying process has no environment any more and may have another parent, so it is recognised only if it was
        // found before.
        let mut found: Vec<Process> = Vec::new();
        loop {
            if let Some(cgroup) = cgroup {
                cgroup.kill();
            }
            let mut ended = false;
            // If the list is not available, no process is known to have ended.
            if let Ok(all) = list() {
                // One look may miss a process that was forked during it.
                let is_there = all.iter().any(|process| Some(process.group) == group);
                empty_looks = if is_there { 0 } else { empty_looks + 1 };
                group = group.filter(|_| empty_looks < 2);
                let descendants = self.descendants_among(&all);
                let belongs = |process: &Process| {
                    found.iter().any(|known| known.is(process))
                        || (first_look && !self.leader_ended && process.pid == self.leader.pid)
                        || Some(process.group) == group
                        || descendants.iter().any(|known| known.is(process))
                        || mark.is_some_and(|mark| process.is_marked(mark))
                };
                let alive = all.iter().filter(|p| !p.ended && p.pid != getpid() && belongs(p));
                found = alive.copied().collect();
                // Kill only processes that this look has found, because the id of any other may have been reused.
                for process in found.iter().filter(|process| !process.is_guardian()) {
                    kill(process.pid);
                }
                first_look = false;
                ended = found.is_empty() && cgroup.is_none_or(Cgroup::is_empty);
            }
            if ended || given_up() {
                return;
            }
            sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Reaps orphans that became our children, so that they do not remain as zombies. Does not reap the command, which
    /// is awaited elsewhere.
    pub(crate) fn reap_orphans(&self) {
        if self.root.pid != getpid() {
            return;
        }
        // The next call reaps a process that is missing from the list.
        for process in processes::all().unwrap_or_default() {
            let ours = process.ended && process.parent == self.root.pid.as_raw_nonzero().get();
            if ours && process.pid != self.leader.pid && Some(process.pid) != self.guardian {
                let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
            }
        }
    }

    /// Returns whether the guardian is our only child. If so, we have no other descendants, because this process
    /// is the subreaper. The result is certain if true.
    fn is_childless(&self) -> bool {
        let Some(guardian) = self.guardian else { return false };
        processes::child_ids().is_some_and(|ids| ids == [guardian.as_raw_nonzero().get()])
    }

    fn members_of_shared_group(&self) -> io::Result<Vec<Pid>> {
        let group = processes::group_of(getpid());
        let descendants = self.descendants_among(&processes::all()?);
        let members = descendants.into_iter().filter(|p| !p.ended && p.group == group);
        Ok(members.map(|process| process.pid).collect())
    }

    fn descendants_among(&self, all: &[Process]) -> Vec<Process> {
        if all.iter().any(|process| self.root.is_replaced_by(process)) {
            return Vec::new();
        }
        let mut found: Vec<Process> = Vec::new();
        let mut parents = vec![self.root.pid.as_raw_nonzero().get()];
        while let Some(parent) = parents.pop() {
            for process in all.iter().filter(|p| p.parent == parent && Some(p.pid) != self.guardian) {
                parents.push(process.pid.as_raw_nonzero().get());
                found.push(*process);
            }
        }
        found
    }
}

/// Sleeps without an async runtime, because the guardian has none.
fn sleep(pause: Duration) {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    /// Process ids that are never used.
    const ROOT: i32 = i32::MAX;
    const LEADER: i32 = i32::MAX - 1;
    const OURS: i32 = i32::MAX - 2;

    /// Returns the tree of a run whose root and leader started at times 1 and 2.
    fn tree() -> Tree {
        Tree {
            root: ProcessIdentity { pid: pid(ROOT), start: Some(1) },
            leader: ProcessIdentity { pid: pid(LEADER), start: Some(2) },
            leader_ended: false,
            own_group: true,
            guardian: None,
        }
    }

    fn process(number: i32, parent: i32, group: i32, start: u64) -> Process {
        Process { pid: pid(number), parent, group, start, ended: false }
    }

    /// Returns the processes that are killed in each look if the looks return `looks`. `None` stands for an error.
    fn killed(tree: &Tree, looks: &[Option<Vec<Process>>]) -> Vec<Vec<i32>> {
        let (killed, mut left) = (std::cell::RefCell::new(Vec::new()), looks.iter());
        let list = || {
            killed.borrow_mut().push(Vec::new());
            left.next().cloned().expect("a look less").ok_or_else(|| io::Error::other("too many open files"))
        };
        let kill = |process: Pid| {
            killed.borrow_mut().last_mut().unwrap().push(process.as_raw_nonzero().get());
        };
        tree.kill_until_ended(None, None, || false, list, kill);
        assert!(left.next().is_none());
        killed.into_inner()
    }

    #[test]
    fn a_command_that_has_ended_is_not_signalled_again() {
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        // Simulates a system that has reused the process id for `other`.
        let leader = ProcessIdentity::own_process(pid(i32::try_from(other.id()).unwrap()));
        let tree = Tree { leader, leader_ended: true, own_group: false, ..tree() };
        tree.signal_leader(Signal::KILL);
        tree.signal_group(Signal::KILL);
        assert!(other.try_wait().unwrap().is_none());
        Tree { leader_ended: false, ..tree }.signal_leader(Signal::KILL);
        other.wait().unwrap();
    }

    #[test]
    fn each_process_of_a_shared_group_gets_a_signal_once() {
        let (leader, other) = (pid(LEADER), pid(OURS));
        let tree = Tree { own_group: false, ..tree() };
        assert_eq!(tree.with_leader(vec![leader, other]), [leader, other]);
        assert_eq!(tree.with_leader(vec![other]), [other, leader]);
        assert_eq!(tree.with_leader(vec![]), [leader]);
        let ended = Tree { leader_ended: true, ..tree };
        assert_eq!(ended.with_leader(vec![other]), [other]);
    }

    #[test]
    fn processes_that_cannot_be_listed_have_not_ended() {
        assert_eq!(killed(&tree(), &[None, None, Some(vec![])]), [[0; 0]; 3]);
    }

    #[test]
    fn only_processes_in_the_same_snapshot_are_killed() {
        let ours = process(OURS, ROOT, OURS, 3);
        let looks = [Some(vec![ours]), None, Some(vec![])];
        assert_eq!(killed(&tree(), &looks), [vec![OURS], vec![], vec![]], "its process id may be reused");
    }

    #[test]
    fn a_process_with_a_reused_id_is_not_killed() {
        let ours = process(OURS, ROOT, OURS, 3);
        let strangers = vec![
            ours,
            process(ROOT, 1, ROOT, 9),
            process(LEADER, ROOT, LEADER, 9),
            process(OURS - 1, ROOT, OURS - 1, 9),
        ];
        let tree = Tree { leader_ended: true, ..tree() };
        let looks = [Some(vec![ours]), Some(vec![ours]), Some(strangers), Some(vec![])];
        assert_eq!(killed(&tree, &looks), [vec![OURS], vec![OURS], vec![OURS], vec![]]);
        let again = [Some(vec![ours]), Some(vec![process(OURS, 1, OURS, 9)])];
        assert_eq!(killed(&tree, &again), [vec![OURS], vec![]]);
    }

    #[test]
    fn a_process_with_the_reused_id_of_the_command_is_not_killed() {
        let (stranger, follower) = (process(LEADER, 1, LEADER, 9), process(OURS - 1, 1, LEADER, 9));
        let mut replaced = tree();
        replaced.forget_replaced_leader(&[stranger, follower]);
        assert_eq!(killed(&replaced, &[Some(vec![stranger, follower])]), [[0; 0]]);
        // It is still the command, although its parent has ended.
        let (leader, follower) = (process(LEADER, 1, LEADER, 2), process(OURS - 1, 1, LEADER, 3));
        let mut same = tree();
        same.forget_replaced_leader(&[leader, follower]);
        assert_eq!(
            killed(&same, &[Some(vec![leader, follower]), Some(vec![])]),
            [vec![LEADER, OURS - 1], vec![]]
        );
    }
}
