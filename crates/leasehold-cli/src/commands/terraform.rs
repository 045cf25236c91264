//! `leasehold terraform NAME -- CMD...`: runs CMD, and keeps its state under the lock NAME.

use std::sync::Arc;
use std::time::Duration;

use leasehold::lease::Capabilities;
use leasehold::url::StoreUrl;
use leasehold::{Guard, Locker, Object};
use leasehold_serve::{Acquire, StateBackend, StateListener, Warn};

use crate::acquisition::Request;
use crate::args::{ClaimArgs, HolderArgs, ObjectArgs, TerraformArgs};
use crate::child::Hold;
use crate::config::Store;
use crate::context::{Context, Note};
use crate::exit::{Exit, FAILED, Failure};
use crate::job::Job;
use crate::names;
use crate::object::Target;
use crate::output::Output;

impl Hold for Arc<StateBackend> {
    fn remaining(&self) -> Duration {
        StateBackend::remaining(self)
    }

    async fn lost(&self) {
        StateBackend::lost(self).await;
    }

    async fn changed(&self) {
        StateBackend::changed(self).await;
    }
}

pub(super) async fn terraform(context: &Context, args: TerraformArgs) -> Result<Exit, Failure> {
    let name = names::lock_name(&args.name)?;
    let store = context.store()?;
    let claim = ClaimArgs {
        try_once: args.wait.is_none(),
        wait: args.wait,
        timeout: args.timeout,
        holder: HolderArgs { owner: args.owner, note: None },
        ..ClaimArgs::default()
    };
    let lease = args.command.lease();
    let words = ("terraform", " -- ...");
    let request =
        Request::new(&context.settings, name.into(), &claim, lease, Note::of(&args.command), words)?;
    let object = match args.state {
        Some(object) => Target::open(&ObjectArgs { object, content_type: None }).await?.object,
        None => beside(&store, &request).await?,
    };
    let command = args.command.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let job = Job::new(context, args.command, &request.names, (request.ttl, request.max_hold))?;
    let listener = StateListener::bind()?;
    let work = async |job: &mut Job| {
        let mut session = job.open(context, request.opening_limit()).await?;
        check(session.locker.capabilities(), &store)?;
        let variables = listener.variables();
        let locker = session.locker.clone();
        let acquire = acquire(request, locker.clone(), context.output);
        let (name, warn) = (job.lock().clone(), warn(context.output));
        let backend = StateBackend::new(locker, name, object, command, acquire, warn, job.reserve());
        listener.serve(backend.clone());
        job.run_beside(context, &mut session, &backend, variables).await
    };
    job.with_report(context, work).await
}

/// Opens the state beside the lock.
async fn beside(store: &Store, request: &Request) -> Result<Object, Failure> {
    let url = StoreUrl::parse(&store.url).map_err(Failure::bad_argument)?;
    Object::at(url.object(&format!("{}.tfstate", request.names.first()))).await.map_err(|error| {
        match error.kind() {
            leasehold::ErrorKind::Unsupported => {
                Failure::usage(format!("{error}, so the state cannot be beside the lock"))
                    .with_help("name an object for the state: --state s3://my-bucket/prod.tfstate")
            }
            leasehold::ErrorKind::Invalid => Failure::bad_argument(error),
            _ => error.into(),
        }
    })
}

/// Checks that the locks have tokens, which the writes of the state need.
fn check(capabilities: Capabilities, store: &Store) -> Result<(), Failure> {
    if capabilities.tokens {
        return Ok(());
    }
    let message = format!("locks in {} have no fencing tokens, which the state needs", store.shown());
    Err(Failure::new(FAILED, "unsupported", message).with_help("leave `protocol` out of the store URL"))
}

fn acquire(request: Request, locker: Locker, output: Output) -> Acquire {
    let request = Arc::new(request);
    Box::new(move |note| {
        let (request, locker) = (request.clone(), locker.clone());
        let acquired = async move { request.acquire_as(note, &locker, &output).await };
        Box::pin(acquired) as std::pin::Pin<Box<dyn Future<Output = leasehold::Result<Guard>> + Send>>
    })
}

fn warn(output: Output) -> Warn {
    Box::new(move |message| output.warning(message))
}
