//! The arguments of `get`, `update` and `put`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};

use super::duration;

#[derive(Debug, Args)]
#[command(
    after_help = "Prints the bytes as they are. With --json, `content` has them in base64. Exits with 1 if there is no \
object.

Example:
  leasehold get dir:/srv/data/counter.json"
)]
pub(crate) struct GetArgs {
    /// URL of the object, as for `leasehold update`
    #[arg(value_name = "OBJECT")]
    pub(crate) object: OsString,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The command reads the content of the object on stdin and prints the new content to stdout. If \
another client writes the object at the same time, leasehold runs the command again on the new content: no change is \
lost, and none is applied twice. If the object does not exist, stdin is empty, LEASEHOLD_OBJECT_EXISTS is 0 instead \
of 1, and leasehold creates the object.

If the command fails, leasehold writes nothing and exits with the exit code of the command. If the output equals the \
content, leasehold writes nothing. An empty output is an error, unless --allow-empty is given.

Exits with 124 if other clients changed the object on every attempt, and with 122 if a token higher than --fence \
wrote it.

Examples:
  leasehold update s3://my-bucket/counter.json -- jq '.n += 1'
  leasehold update gs://my-bucket/hosts.txt --shell -- 'cat; echo \"$HOSTNAME\"'
  leasehold update s3://my-bucket/state.json --fence $LEASEHOLD_TOKEN -- ./next"
)]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// Fail if a token higher than TOKEN has written the object; under `leasehold run`, pass $LEASEHOLD_TOKEN
    #[arg(long, value_name = "TOKEN")]
    pub(crate) fence: Option<u64>,
    /// Maximum number of times to run the command [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempts: Option<u32>,
    /// Maximum time spent on retries, not counting the command's running time [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) within: Option<Duration>,
    /// Write the object even if the output is empty
    #[arg(long)]
    pub(crate) allow_empty: bool,
    /// Run the command with /bin/sh -c
    #[arg(long)]
    pub(crate) shell: bool,
    /// Command and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The object stores the highest token that wrote it. With a lower token, leasehold writes nothing and \
exits with 1. So a job that was paused until another process got its lock cannot overwrite newer content.

Example:
  leasehold -s s3://my-bucket/locks run report --shell -- \\
    './report > out.html && leasehold put s3://my-bucket/out.html out.html \\
    --fence $LEASEHOLD_TOKEN --content-type text/html'"
)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// File with the new content; - reads stdin
    #[arg(value_name = "FILE|-", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Fencing token of the write; under `leasehold run`, pass $LEASEHOLD_TOKEN
    #[arg(long, value_name = "TOKEN", required = true)]
    pub(crate) fence: u64,
    /// Write the object even if stdin is empty
    #[arg(long)]
    pub(crate) allow_empty: bool,
}

// The object to write.
#[derive(Debug, Args)]
pub(crate) struct ObjectArgs {
    /// URL of the object, for example s3://my-bucket/path/counter.json?region=eu-west-1 or dir:/srv/data/counter.json
    #[arg(value_name = "OBJECT")]
    pub(crate) object: OsString,
    /// Content type of the object [default: unchanged, or application/octet-stream for a new object]
    #[arg(long, value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) content_type: Option<String>,
}
