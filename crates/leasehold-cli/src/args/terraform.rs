//! The arguments of `leasehold terraform`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use clap_complete::engine::ArgValueCompleter;

use super::{CommandArgs, REPORTING, ReportArgs, TimeoutArgs, duration};
use crate::complete::lock_names;

#[derive(Debug, Args)]
#[command(
    after_help = "The configuration needs the block `backend \"http\" {}`, with nothing in it. leasehold answers its \
requests on a port of this machine, and passes the address and a random password in TF_HTTP_ADDRESS and other \
variables.

When the command locks the state, leasehold acquires the lock NAME and renews its lease. If the lease cannot be renewed \
in time, leasehold refuses reads and writes of the state, so that Terraform saves it in errored.tfstate, sends SIGINT \
(not SIGTERM) when --grace is left, then SIGKILL, and exits with 122. It sends SIGINT once, also for signals that it \
gets itself. If the command or its machine dies, the state is free again soon after --ttl. A command whose lock was \
lost cannot write over the state of a later one. If a command succeeds whose state is elsewhere, leasehold fails with 125. If the lock is held, the command fails and prints who holds it. To wait, use its -lock-timeout or --wait.

The state is the object NAME.tfstate beside the lock: in S3, GCS, Azure or a directory. For other stores, name an \
object with --state. Use one NAME for each workspace.

Examples:
  export LEASEHOLD_STORE=s3://my-bucket/tf
  leasehold terraform prod/network -- tofu init -migrate-state
  leasehold terraform prod/network -- tofu apply
  leasehold terraform prod/network --wait 30m -- terraform apply -auto-approve
  leasehold terraform prod/network -- tofu force-unlock LOCK_ID
  leasehold -s postgres://locks@db/locks terraform prod \\
    --state s3://my-bucket/prod.tfstate -- tofu apply
  leasehold terraform prod --state dir:/var/lib/tf/prod.tfstate -- tofu apply"
)]
pub(crate) struct TerraformArgs {
    /// Name of the lock; also the name of the state, for example prod/network
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(lock_names))]
    pub(crate) name: OsString,
    /// URL of the object that has the state [default: NAME.tfstate in the folder of the locks]
    #[arg(long, value_name = "OBJECT")]
    pub(crate) state: Option<OsString>,
    /// Let the command wait in line for the lock, at most this long, each time it locks the state [default: 0s]
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) command: CommandArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Your name, for other processes [default: the user]
    #[arg(long, help_heading = REPORTING, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) owner: Option<String>,
    #[command(flatten)]
    pub(crate) timeout: TimeoutArgs,
}
