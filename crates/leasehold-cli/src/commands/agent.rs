//! `leasehold agent`: holds locks for another program, which sends requests to stdin.

use crate::agent;
use crate::context::Context;
use crate::exit::Failure;

pub(super) async fn agent(context: &Context) -> Result<u8, Failure> {
    agent::run(context).await
}
