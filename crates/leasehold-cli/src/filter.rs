//! Runs a command as a filter on bytes.

use std::ffi::OsString;
use std::io;
use std::process::Stdio;

use leasehold::register::MAX_OBJECT_BYTES;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::child;
use crate::exit::{FAILED, Failure, of_child};

/// The variable that says whether the object exists.
const EXISTS: &str = "LEASEHOLD_OBJECT_EXISTS";

/// Returns the output of `command` for `input`. If the command fails, returns a failure with its exit code.
///
/// Dropping the future kills the command.
pub(crate) async fn run(command: &[OsString], input: Option<&[u8]>) -> Result<Vec<u8>, Failure> {
    let name = command[0].to_string_lossy();
    let failed = |error: io::Error| {
        Failure::new(FAILED, "failed", format!("cannot run the command {name:?}: {error}"))
    };
    let mut process = Command::new(&command[0])
        .args(&command[1..])
        .env(EXISTS, if input.is_some() { "1" } else { "0" })
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| child::cannot_run(&command[0], &error))?;
    // Its status is read only when its output has ended.
    let _awaited = process.id().map(child::Awaited::new);
    let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // Ignore errors: a command may read none or only part of its input.
            let _ = stdin.write_all(input.unwrap_or_default()).await;
        }
    };
    let collect = async {
        let mut output = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(MAX_OBJECT_BYTES as u64 + 1).read_to_end(&mut output).await?;
        }
        Ok(output)
    };
    let ((), output) = futures_util::future::join(feed, collect).await;
    let output = output.map_err(failed)?;
    if output.len() > MAX_OBJECT_BYTES {
        return Err(Failure::new(
            FAILED,
            "unsupported",
            format!("the command {name:?} printed more than {MAX_OBJECT_BYTES} bytes; nothing was written"),
        ));
    }
    let status = process.wait().await.map_err(failed)?;
    if status.success() {
        return Ok(output);
    }
    Err(Failure::ending(
        of_child(status),
        "aborted",
        format!("the command {name:?} failed ({status}); nothing was written"),
    ))
}
