//! moto, which is a server for S3 and for DynamoDB.

use tokio::process::Command;

use crate::launch::program;

/// Runs moto on `address`. Its data is in memory: it can be stopped, and not be killed.
pub(super) fn moto(address: &str) -> Command {
    let (host, port) = address.split_once(':').unwrap_or((address, ""));
    let mut moto = Command::new(program("LEASEHOLD_TEST_MOTO_PYTHON"));
    moto.arg(program("LEASEHOLD_TEST_MOTO_SERVER")).args(["-H", host, "-p", port]);
    moto
}
