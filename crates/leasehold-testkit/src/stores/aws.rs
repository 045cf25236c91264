//! moto, a server with both S3 and DynamoDB.

use tokio::process::Command;

use crate::launch::program;

/// Returns the command that runs moto on `address`. moto keeps its data in memory, so chaos may stop it but not kill
/// it.
pub(super) fn moto(address: &str) -> Command {
    let (host, port) = address.split_once(':').unwrap_or((address, ""));
    let mut moto = Command::new(program("LEASEHOLD_TEST_MOTO_PYTHON"));
    moto.arg(program("LEASEHOLD_TEST_MOTO_SERVER")).args(["-H", host, "-p", port]);
    moto
}
