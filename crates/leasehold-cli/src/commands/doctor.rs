//! `leasehold doctor`: checks whether the store is safe.

use std::time::Duration;

use leasehold::doctor::{Examination, Report};
use leasehold::lease::Ttl;
use leasehold::{ErrorKind, Locker};

use crate::args::{DoctorArgs, duration};
use crate::context::Context;
use crate::exit::{Failure, NEGATIVE};
use crate::output::{doctor, print};

pub(super) async fn doctor(context: &Context, args: &DoctorArgs) -> Result<u8, Failure> {
    let store = context.store()?;
    let ttl = context.settings.pick(args.ttl, "ttl", duration)?;
    let mut examination = Examination::default();
    examination.ttl = ttl_of(ttl)?;
    examination.locks = args.locks;
    examination.acquisitions_per_day = args.acquisitions;
    examination.thorough = args.thorough;
    examination.endpoints.clone_from(&args.endpoint);
    let report = match Locker::open(&store.url).await {
        Ok(locker) => locker.examine(&examination).await,
        // A URL that does not parse is a usage error, not a finding.
        Err(error) if error.kind() == ErrorKind::Invalid => return Err(error.into()),
        Err(error) => Report::unopened(&error),
    };
    let (url, safe) = (store.shown(), report.is_safe());
    if context.output.json {
        print(&format!("{}\n", doctor::json(&url, &report)))?;
    } else if !(context.output.quiet && safe) {
        print(&doctor::human(&url, &report, context.output.colors_on_stdout()))?;
    }
    Ok(if safe { 0 } else { NEGATIVE })
}

fn ttl_of(ttl: Option<Duration>) -> Result<Ttl, Failure> {
    ttl.map_or(Ok(Ttl::DEFAULT), Ttl::new).map_err(Failure::bad_argument)
}
