//! `leasehold resize LOCK N`: changes the number of permits or readers in the store.

use leasehold::{ErrorKind, LockName};
use serde_json::Value;

use crate::args::ResizeArgs;
use crate::context::{self, Context};
use crate::exit::{Failure, HELD};
use crate::names::lock_name;
use crate::output::json::object;
use crate::output::print;

pub(super) async fn resize(context: &Context, args: ResizeArgs) -> Result<u8, Failure> {
    let (name, size) = (lock_name(&args.lock.lock)?, usize::from(args.size));
    let locker = context::open(&context.store()?).await?;
    let lock = locker.lock(name.as_str()).ttl(args.ttl).note(format!("resize to {size}"));
    // Without the option, the number that the store has.
    let first = LockName::new(format!("{name}/permit-1")).map_err(Failure::bad_argument)?;
    let readers = args.readers || locker.inspect(&first).await?.size.is_none();
    let (what, resized) = match readers {
        true => ("readers", lock.rw_lock().readers(size).resize().await),
        false => ("permits", lock.semaphore(size).resize().await),
    };
    let before = resized.map_err(|error| {
        let kind = error.kind();
        let failure = Failure::from(error);
        match kind {
            ErrorKind::Held => Failure { code: HELD, ..failure },
            // `readers` is only assumed: the store has no number of permits either.
            ErrorKind::Invalid if !args.readers => Failure {
                message: format!("`{name}` has no number of permits or readers in the store"),
                ..failure
            },
            _ => failure,
        }
    })?;
    if context.output.json {
        let mut document = object("resized", &name);
        document.insert("before".into(), before.into());
        document.insert(what.into(), size.into());
        print(&format!("{}\n", Value::Object(document)))?;
    } else if !context.output.quiet {
        print(&format!("{name} has {size} {what}; it had {before}\n"))?;
    }
    Ok(0)
}
