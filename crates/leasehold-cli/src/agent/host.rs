//! Detects the end of the host. The end of stdin is not enough, because children of the host may keep the pipe open.

use rustix::process::Pid;
use tokio::sync::oneshot;

/// The process that the agent works for.
#[derive(Debug)]
pub(super) struct Host(oneshot::Receiver<()>);

impl Host {
    /// Starts a thread that waits for the end of the process. Returns `None` if that is not possible. The agent then
    /// relies on the end of stdin.
    pub(super) fn watch(pid: Pid) -> Option<Self> {
        let (ended, has_ended) = oneshot::channel();
        let wait = move || {
            if wait_for(pid).is_ok() {
                let _ = ended.send(());
            }
        };
        std::thread::Builder::new().name("host".into()).spawn(wait).ok()?;
        Some(Self(has_ended))
    }
}

/// Completes when `host` has ended. Never completes if there is no host that can be watched. Cancel safe.
pub(super) async fn ended(host: &mut Option<Host>) {
    if let Some(Host(has_ended)) = host {
        if has_ended.await.is_ok() {
            return;
        }
        *host = None;
    }
    std::future::pending().await
}

/// Blocks until the process has ended.
#[cfg(target_os = "linux")]
fn wait_for(pid: Pid) -> rustix::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::Errno;
    use rustix::process::{PidfdFlags, pidfd_open};
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        // The process has already ended.
        Err(Errno::SRCH) => return Ok(()),
        opened => opened?,
    };
    loop {
        // The descriptor becomes readable when the process ends.
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            polled => return polled.map(drop),
        }
    }
}

/// Blocks until the process has ended.
#[cfg(not(target_os = "linux"))]
fn wait_for(pid: Pid) -> rustix::io::Result<()> {
    use rustix::event::{Timespec, poll};
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    while rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH) {
        poll(&mut [], Some(&second))?;
    }
    Ok(())
}
