//! The verbs that write an object.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};

use super::duration;

#[derive(Debug, Args)]
#[command(
    after_help = "The command finds the object's content on stdin and prints the new one on stdout. It runs again, on the new \
content, when another wrote the object meanwhile: nobody's change is lost, and none is made twice. Where there is no object, \
stdin is empty and LEASEHOLD_OBJECT_EXISTS is 0 instead of 1; the object is then created.

A command that fails aborts: nothing is written, and leasehold exits as the command did. Nothing is written either when the \
output is what was there, and it is an error when the output is empty, but with --allow-empty.

Exits 124 when others changed the object each time, 122 when a higher token than --fence wrote it.

Examples:
  leasehold update s3://my-bucket/counter.json -- jq '.n += 1'
  leasehold update gs://my-bucket/hosts.txt --shell -- 'cat; echo \"$HOSTNAME\"'
  leasehold update s3://my-bucket/state.json --fence \"$LEASEHOLD_TOKEN\" -- ./next-state"
)]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// Refuse to write when a higher token than this wrote before; like $LEASEHOLD_TOKEN under `leasehold run`
    #[arg(long, value_name = "TOKEN")]
    pub(crate) fence: Option<u64>,
    /// How often the command runs at most [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempts: Option<u32>,
    /// How long it is tried, without the time that the command takes [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) within: Option<Duration>,
    /// Write it also when the output is empty
    #[arg(long)]
    pub(crate) allow_empty: bool,
    /// Run the command with /bin/sh -c
    #[arg(long)]
    pub(crate) shell: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The object keeps the highest token that wrote it. A lower one is refused: nothing is written, and \
leasehold exits 1. So a job that was paused until its lock was another's does no harm.

Example:
  leasehold -s s3://my-bucket/locks run report --shell -- \\
    './report > out.html && leasehold put s3://my-bucket/out.html out.html --fence $LEASEHOLD_TOKEN --content-type text/html'"
)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) object: ObjectArgs,
    /// What to write; - reads stdin
    #[arg(value_name = "FILE|-", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// The token to write with; like $LEASEHOLD_TOKEN under `leasehold run`
    #[arg(long, value_name = "TOKEN", required = true)]
    pub(crate) fence: u64,
    /// Write it also when there is nothing on stdin
    #[arg(long)]
    pub(crate) allow_empty: bool,
}

// Which object, and as what it is written.
#[derive(Debug, Args)]
pub(crate) struct ObjectArgs {
    /// The object's URL, like s3://my-bucket/path/counter.json?region=eu-west-1
    #[arg(value_name = "OBJECT")]
    pub(crate) object: OsString,
    /// The object's content type [default: as it is; application/octet-stream for a new object]
    #[arg(long, value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) content_type: Option<String>,
}
