//! The doctor's checks of the bucket, and its creation.

use async_nats::HeaderMap;

use super::Bucketed;
use super::bucket::{self, Bucket, api};
use super::keys::Keys;
use super::links::Links;
use super::message::answer;
use crate::diagnosis::{CheckStatus, Examined, Finding};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::retry::RetryBudget;

/// How many replicas a new bucket has in a cluster.
const REPLICAS: u64 = 3;

impl Bucketed {
    pub(super) async fn examined(&self) -> Examined {
        let least_permissions = least_permissions(&self.keys);
        let mut examined = Examined { least_permissions, ..Examined::default() };
        let asked = self.worker.run(|links| async move {
            let (_, bucket) = links.connector.connect(&links.env).await?;
            bucket.map_err(|refusal| refusal.error(&links.connector.location.keys.bucket))
        });
        let budget = RetryBudget::of_question(&self.env);
        match budget.request(async { asked.await? }).await {
            Ok(bucket) => {
                let good =
                    bucket.check(&self.keys).map(|()| "the bucket keeps every key until it is deleted");
                examined.push(Finding::required("bucket", good));
                examined.push(durability(bucket.replicas()));
            }
            Err(error) if error.fault().kind == ErrorKind::Denied => {
                examined.push(Finding::of_error("permission-bucket", CheckStatus::Failed, &error));
            }
            Err(error) => examined.push(Finding::stopped("bucket", &error)),
        }
        examined
    }
}

fn durability(replicas: i64) -> Finding {
    const CHECK: &str = "durability";
    const SYNC: &str = "leasehold cannot read `sync_interval` of the servers: set `jetstream { sync_interval: always }` on each, \
                        because by default a confirmed write reaches the disk up to two minutes later";
    match replicas {
        ..=1 => Finding::warning(
            CHECK,
            "one replica: a power failure or a crash of its machine can lose the latest grants, and then two processes hold one lock",
        )
        .with_help("use a cluster of three servers: nats stream edit --replicas=3"),
        2 => Finding::warning(CHECK, "two replicas: no lock can be acquired while one of them is down")
            .with_help("use three: nats stream edit --replicas=3"),
        _ => {
            return Finding::passed(CHECK, format!("{replicas} replicas; {SYNC}"));
        }
    }
    .with_help(SYNC)
}

fn least_permissions(keys: &Keys) -> Vec<String> {
    let [info, get] = ["INFO", "MSG.GET"].map(|operation| api(operation, keys));
    vec![
        "the minimum that leasehold needs, as permissions of a user of NATS:".to_owned(),
        format!("publish: {info}, {get}, {}", keys.all()),
        "subscribe: _INBOX.>".to_owned(),
        format!("and publish: {} for `leasehold init`", api("CREATE", keys)),
    ]
}

impl Links {
    /// Creates the bucket if it does not exist.
    pub(super) async fn init(&self) -> Result<(), StoreError> {
        let keys = &self.connector.location.keys;
        let (link, mut found) = self.connector.connect(&self.env).await?;
        let budget = RetryBudget::of_question(&self.env);
        // No revision of the bucket repeats one of an earlier bucket of this name: a holder could otherwise renew over
        // the grant of another client. A bucket gets less than a million writes in each second.
        let revision = self.env.now().wall_us();
        for replicas in [REPLICAS, 1] {
            match found {
                Err(refusal) if refusal.asks_for_bucket() => {}
                _ => break,
            }
            let settings = bucket::settings(keys, replicas, revision).to_string();
            let creating = link.request(api("CREATE", keys), HeaderMap::new(), settings.into());
            let response = budget.request(creating).await?;
            found = answer::<Bucket>(&response, keys).map_err(Fault::maybe_applied)?;
        }
        match found {
            // Another process may have just created it.
            Err(refusal) if !refusal.is_existing_bucket() => return Err(refusal.error(&keys.bucket)),
            _ => {}
        }
        let bucket = budget.request(bucket::ask(&link, keys)).await?;
        bucket.map_err(|refusal| refusal.error(&keys.bucket))?.check(keys).map_err(Fault::not_applied)
    }
}
