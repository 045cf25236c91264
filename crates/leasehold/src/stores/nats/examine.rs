//! The doctor's checks of the bucket, and its creation.

use async_nats::HeaderMap;

use super::Bucketed;
use super::bucket::{self, Bucket, api};
use super::keys::{Copies, Keys};
use super::link::Link;
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
            let (link, bucket) = links.connect().await?;
            let keys = &links.location.keys;
            let bucket = bucket.map_err(|refusal| refusal.error(&keys.bucket))?;
            Ok((bucket, notifications(&link, keys).await))
        });
        let budget = RetryBudget::of_question(&self.env);
        match budget.request(async { asked.await? }).await {
            Ok((bucket, notifications)) => {
                let good =
                    bucket.check(&self.keys).map(|()| "the bucket keeps every key until it is deleted");
                examined.push(Finding::required("bucket", good));
                examined.push(durability(bucket.replicas()));
                examined.push(notifications);
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

/// Checks whether the user may receive the copies of writes.
async fn notifications(link: &Link, keys: &Keys) -> Finding {
    const CHECK: &str = "notifications";
    let copied = |subject: &str| link.copies.as_ref()?.of(subject);
    let subjects = copied(&keys.subject(".leasehold-probe-copies")).zip(copied(&keys.all()));
    let Some((copy, all)) = subjects else {
        return Finding::passed(CHECK, "the bucket has no `republish`: waiters poll, at least every 0.5 s");
    };
    match link.rehearse(api("INFO", keys), copy).await {
        Ok(()) => Finding::passed(CHECK, "a release wakes the first waiter at once"),
        Err(error) if error.fault().kind == ErrorKind::Denied => {
            Finding::warning(CHECK, &*error.fault().message)
                .with_help(format!("permit the user to subscribe to {all}: until then, waiters poll"))
        }
        Err(error) => Finding::of_error(CHECK, CheckStatus::Warning, &error),
    }
}

fn least_permissions(keys: &Keys) -> Vec<String> {
    let [info, get] = ["INFO", "MSG.GET"].map(|operation| api(operation, keys));
    vec![
        "the minimum that leasehold needs, as permissions of a user of NATS:".to_owned(),
        format!("publish: {info}, {get}, {}", keys.all()),
        format!("subscribe: _INBOX.>, {}", Copies::made_for(keys).of(&keys.all()).unwrap_or_default()),
        format!("and publish: {} for `leasehold init`", api("CREATE", keys)),
    ]
}

impl Links {
    /// Creates the bucket if it does not exist.
    pub(super) async fn init(&self) -> Result<(), StoreError> {
        let keys = &self.location.keys;
        let (link, mut found) = self.connect().await?;
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
