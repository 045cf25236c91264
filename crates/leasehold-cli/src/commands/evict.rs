//! `leasehold evict LOCK --token N`: evicts the holder with this token, by compare-and-set.

use leasehold::{Evicted, Eviction, Token};
use serde_json::Value;

use crate::args::EvictArgs;
use crate::context::{self, Context};
use crate::exit::{Failure, NEGATIVE};
use crate::names::lock_name;
use crate::output::json::object;
use crate::output::print;
use crate::shell;

pub(super) async fn evict(context: &Context, args: EvictArgs) -> Result<u8, Failure> {
    let name = lock_name(&args.lock.lock)?;
    let token = Token::try_from(args.token).map_err(Failure::bad_argument)?;
    let store = context.store()?;
    let locker = context::open(&store).await?;
    let why = Eviction::by_this_process(args.reason.as_deref().unwrap_or_default());
    if locker.evict_for(&name, token, &why).await? == Evicted::Changed {
        let (lock, flag) = (shell::last_argument(&name), context::store_flag(&store));
        return Err(Failure::new(
            NEGATIVE,
            "changed",
            format!("lock `{name}` is not held with token {token}; nothing was changed"),
        )
        .with_help(format!("to see the current holder: leasehold{flag} show {lock}")));
    }
    if context.output.json {
        let mut document = object("evicted", &name);
        document.insert("token".into(), token.get().into());
        print(&format!("{}\n", Value::Object(document)))?;
    } else if !context.output.quiet {
        print(&format!("evicted the holder of {name} with token {token}\n"))?;
    }
    Ok(0)
}
