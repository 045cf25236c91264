//! `leasehold terraform NAME -- CMD...`: runs CMD, and keeps its state under the lock NAME.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::lease::Capabilities;
use leasehold::url::StoreUrl;
use leasehold::{Guard, Locker, Object};
use leasehold_serve::{Acquire, StateBackend, StateListener, Warn};

use crate::acquisition::Request;
use crate::args::{ClaimArgs, ClientArgs, HolderArgs, ObjectArgs, TerraformArgs};
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
    let claim = ClaimArgs { try_once: args.wait.is_none(), wait: args.wait, ..ClaimArgs::default() };
    let client = ClientArgs { holder: HolderArgs { owner: args.owner, note: None }, timeout: args.timeout };
    let lease = args.command.lease();
    let words = ("terraform", " -- ...");
    let request = Request::new(
        &context.settings,
        name.into(),
        (&claim, &client),
        lease,
        Note::of(&args.command),
        words,
    )?;
    let object = match args.state {
        Some(object) => Target::open(&ObjectArgs { object, content_type: None }).await?.object,
        None => beside(&store, &request).await?,
    };
    let command: Vec<_> =
        args.command.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    check_folder(&command)?;
    let job =
        Job::new(context, (args.command, args.report), &request.names, (request.ttl, request.max_hold))?
            .with_one_interrupt();
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
                Failure::usage(format!("{error}, so the state cannot be beside the lock")).with_help(
                    "name an object for the state: --state s3://my-bucket/prod.tfstate, or \
                         --state dir:/var/lib/tf/prod.tfstate in a directory of this machine",
                )
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

/// Checks the backend that an earlier `init` has recorded in the folder of the command.
fn check_folder(command: &[String]) -> Result<(), Failure> {
    let words: Vec<_> = command.iter().flat_map(|word| word.split_whitespace()).collect();
    // It replaces what is recorded, and may move a state from there.
    if words.contains(&"init") {
        return Ok(());
    }
    let folder = words.iter().find_map(|word| word.strip_prefix("-chdir=")).unwrap_or_default();
    let data = std::env::var_os("TF_DATA_DIR").filter(|data| !data.is_empty());
    let data = data.map_or_else(|| PathBuf::from(".terraform"), PathBuf::from);
    let file = Path::new(folder).join(data).join("terraform.tfstate");
    // Without the file, the command itself asks for `init`.
    let recorded = std::fs::read(&file).unwrap_or_default();
    let Some(problem) = other_backend(&recorded) else { return Ok(()) };
    let message = format!("the state of this command would be elsewhere: {} has {problem}", file.display());
    Err(Failure::new(FAILED, "state_elsewhere", message).with_help(
        "the configuration needs: backend \"http\" {}, with nothing in it and without -backend-config. Then run \
         through leasehold: init -migrate-state, which moves the state, or init -reconfigure",
    ))
}

/// Returns what a file of `init` says of a backend that is not the one of leasehold.
fn other_backend(recorded: &[u8]) -> Option<String> {
    const OWN: [&str; 8] = [
        "address",
        "update_method",
        "lock_address",
        "lock_method",
        "unlock_address",
        "unlock_method",
        "username",
        "password",
    ];
    let recorded: serde_json::Value = serde_json::from_slice(recorded).ok()?;
    let backend = recorded.get("backend").filter(|backend| !backend.is_null())?;
    let kind = backend["type"].as_str().unwrap_or_default();
    if kind != "http" {
        return Some(format!("the backend `{kind}`"));
    }
    let is_set = |option: &&str| backend["config"].get(*option).is_some_and(|value| !value.is_null());
    let option = OWN.into_iter().find(is_set)?;
    Some(format!("the option `{option}` of the backend `http`"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_backend_of_leasehold_is_used() {
        let of = |backend: serde_json::Value| {
            other_backend(serde_json::json!({ "version": 3, "backend": backend }).to_string().as_bytes())
        };
        assert_eq!(other_backend(b""), None);
        assert_eq!(other_backend(b"{"), None);
        assert_eq!(of(serde_json::Value::Null), None);
        let unset = serde_json::json!({
            "address": null, "lock_address": null, "password": null, "retry_max": 5, "unlock_method": null,
        });
        assert_eq!(of(serde_json::json!({ "type": "http", "config": unset, "hash": 1 })), None);
        for option in ["address", "lock_address", "unlock_method", "username", "password"] {
            let config = serde_json::json!({ option: "x" });
            let problem = of(serde_json::json!({ "type": "http", "config": config })).unwrap();
            assert!(problem.contains(&format!("`{option}`")), "{problem}");
        }
        let problem = of(serde_json::json!({ "type": "s3", "config": { "bucket": "b" } })).unwrap();
        assert!(problem.contains("`s3`"), "{problem}");
    }

    #[test]
    fn the_folder_is_checked_unless_it_is_prepared_anew() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join(".terraform");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("terraform.tfstate"), r#"{"backend":{"type":"local","config":{}}}"#)
            .unwrap();
        let chdir = format!("-chdir={}", folder.path().display());
        let check =
            |words: &[&str]| check_folder(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let failure = check(&["tofu", &chdir, "apply"]).unwrap_err();
        assert!(failure.message.contains("backend `local`"), "{failure:?}");
        assert!(check(&["sh", "-c", &format!("tofu {chdir} apply")]).is_err());
        assert!(check(&["tofu", &chdir, "init", "-migrate-state"]).is_ok());
        assert!(check(&["tofu", "-chdir=/nowhere", "apply"]).is_ok());
    }
}
