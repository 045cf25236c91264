//! leasehold in namespaces of its own, as in a container. Machines that permit none are not tested.

use std::process::Command;

use crate::support::{Outcome, Sandbox, unshared};

/// Runs `script` with `sh -e` in new namespaces. `$LEASEHOLD` is the command.
fn run_in(namespaces: &[&str], sandbox: &Sandbox, script: &str) -> Option<Outcome> {
    let leasehold = sandbox.leasehold([""; 0]);
    let mut shell = Command::new("sh");
    shell.args(["-ec", script]).current_dir(sandbox.path(""));
    shell.envs(leasehold.get_envs().filter_map(|(key, value)| Some((key, value?))));
    Some(Outcome::of(unshared(namespaces, &shell)?.output().unwrap()))
}

/// As with `docker run -v /a/l.db:/b/l.db`. Each place has its own log, so both would grant the lock.
#[test]
fn a_file_that_is_mounted_without_its_folder_is_refused() {
    let sandbox = Sandbox::new();
    // mountinfo does not write a space as it is.
    for (from, to) in [("a/l.db", "b c/l.db"), ("a", "b c")] {
        sandbox.write("a/l.db", "");
        sandbox.write("b c/l.db", "");
        let script = format!(
            "mount --bind '{from}' '{to}'; exec \"$LEASEHOLD\" run --try -s sqlite:b%20c/l.db x -- true"
        );
        let Some(ended) = run_in(&["--mount"], &sandbox, &script) else { return };
        match from {
            "a" => drop(ended.expect(0)),
            _ => {
                let refused = ended.expect(125).stderr;
                assert!(refused.contains("l.db is mounted by itself, without its folder"), "{refused}");
            }
        }
    }
}

/// systemd-nspawn and LXC do this.
#[test]
fn a_container_with_a_boot_id_of_its_own_takes_no_held_lock() {
    let sandbox = Sandbox::new();
    sandbox.write("random/boot_id", "6a3c1f0e-6d0c-4b59-9c2e-000000000000\n");
    let _holder = sandbox.hold("run x", "echo ready; exec sleep 1000");
    let try_under = |mount: &str| {
        let script = format!("mount --bind {mount}; exec \"$LEASEHOLD\" run --try x -- true");
        run_in(&["--mount"], &sandbox, &script)
    };
    // Another file of /proc, so that only the mount shows it; then a file that is not in /proc, without a mount of its own.
    let over_the_file = try_under("/proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id");
    let over_its_folder = try_under("random /proc/sys/kernel/random");
    let (Some(file), Some(folder)) = (over_the_file, over_its_folder) else { return };
    assert_eq!((file.code, folder.code), (123, 123), "{file:#?} {folder:#?}");
}

#[test]
fn a_boot_clock_that_is_not_the_machines_is_refused() {
    let sandbox = Sandbox::new();
    let shifted = ["--time", "--boottime", "100", "--fork"];
    let Some(ended) = run_in(&shifted, &sandbox, "exec \"$LEASEHOLD\" run x -- true") else { return };
    let refused = ended.expect(125).stderr;
    assert!(refused.contains("a time namespace whose boot clock differs"), "{refused}");
}
