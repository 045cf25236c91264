//! Database servers refuse to run as root, so root runs them as the user that Debian's package of PostgreSQL creates.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::geteuid;
use tokio::process::Command;

/// Returns a command that runs `program`, as that user if this process runs as root.
pub(crate) fn unprivileged(program: &Path) -> Command {
    let mut command = if geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir("/");
    command
}

/// Returns the folder `name` for that user below `folder`, which becomes accessible to it. Creates it if this process runs
/// as root.
pub(crate) async fn folder_below(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let data = folder.join(name);
    if !geteuid().is_root() {
        return Ok(data);
    }
    for folder in folder.ancestors().take(3) {
        if let Ok(metadata) = fs::metadata(folder) {
            let mode = metadata.permissions().mode() | 0o001;
            let _ = fs::set_permissions(folder, Permissions::from_mode(mode));
        }
    }
    run(Command::new("install").args(["-d", "-m", "700", "-o", "postgres", "-g", "postgres"]).arg(&data))
        .await?;
    Ok(data)
}

pub(crate) async fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}
