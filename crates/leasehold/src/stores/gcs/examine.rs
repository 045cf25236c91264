//! The doctor's checks of a bucket: settings that affect its objects.

use std::time::Duration;

use serde::Deserialize;

use super::{GcsRegister, wire};
use crate::diagnosis::{Examined, Finding};
use crate::stores::over_http::Operation;
use crate::stores::over_http::{Meaning, failed};

/// The shortest ttl. GCS accepts about one write per second for an object, so a lease must be long enough to send a
/// renewal again.
const LEAST_TTL: (Duration, &str) = (
    Duration::from_secs(10),
    "GCS accepts about one write per second for an object, and a renewal may have to be sent again",
);

/// The requested part of a bucket's resource.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Bucket {
    versioning: Switch,
    retention_policy: Option<serde_json::Value>,
    soft_delete_policy: SoftDelete,
    lifecycle: Lifecycle,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Switch {
    enabled: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SoftDelete {
    retention_duration_seconds: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Lifecycle {
    rule: Vec<Rule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rule {
    action: Action,
    condition: Condition,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Action {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    /// If `false`, the rule applies to noncurrent versions only.
    is_live: Option<bool>,
    num_newer_versions: Option<u32>,
    days_since_noncurrent_time: Option<u32>,
    matches_prefix: Vec<String>,
}

impl GcsRegister {
    pub(super) async fn examined(&self) -> Examined {
        let googles = self.target.is_trusted();
        let least = "the minimum that leasehold needs, on the whole bucket: storage.objects.get, \
            storage.objects.list, storage.objects.create and storage.objects.delete (overwriting needs it); \
            roles/storage.objectUser has them";
        let mut examined = Examined {
            listed_prices: googles,
            least_ttl: googles.then_some(LEAST_TTL),
            least_permissions: vec![least.to_owned()],
            ..Examined::default()
        };
        match self.bucket().await {
            Ok(bucket) => examined.findings.extend(settings(&bucket, &self.keys.object(""))),
            Err(finding) => examined.push(finding),
        }
        examined
    }

    async fn bucket(&self) -> Result<Bucket, Finding> {
        const CHECK: &str = "bucket";
        let unchecked = |why: String| Finding::not_applicable(CHECK, format!("not checked: {why}"));
        match self.ask(Operation::Read, "", wire::bucket(&self.target)).await {
            Ok((_, body)) => serde_json::from_slice(&body)
                .map_err(|error| unchecked(format!("the bucket's description cannot be read: {error}"))),
            Err(Meaning::Absent) => Err(unchecked("the store does not describe its bucket".to_owned())),
            Err(other) => Err(Finding::unread(CHECK, "storage.buckets.get", &failed(other))),
        }
    }
}

fn settings(bucket: &Bucket, base: &str) -> Vec<Finding> {
    vec![retention(bucket), versions(bucket), lifecycle(bucket, base)]
}

fn retention(bucket: &Bucket) -> Finding {
    const CHECK: &str = "retention";
    match bucket.retention_policy {
        None => Finding::passed(CHECK, "no retention policy"),
        Some(_) => Finding::failed(CHECK, "the bucket has a retention policy, which forbids overwriting")
            .with_help("no lock could be renewed: use a bucket without one"),
    }
}

fn versions(bucket: &Bucket) -> Finding {
    const CHECK: &str = "versioning";
    let soft = !matches!(bucket.soft_delete_policy.retention_duration_seconds.as_str(), "" | "0");
    if !bucket.versioning.enabled && !soft {
        return Finding::passed(CHECK, "neither versioning nor soft delete");
    }
    Finding::warning(CHECK, "versioning or soft delete keeps a copy of what every renewal overwrites").with_help(
        "locks are safe, but the copies cost storage: gcloud storage buckets update gs://BUCKET --clear-soft-delete \
         --no-versioning",
    )
}

fn lifecycle(bucket: &Bucket, base: &str) -> Finding {
    const CHECK: &str = "lifecycle";
    let deletes = |rule: &&Rule| {
        let Condition { is_live, num_newer_versions, days_since_noncurrent_time, matches_prefix } =
            &rule.condition;
        let current =
            *is_live != Some(false) && num_newer_versions.is_none() && days_since_noncurrent_time.is_none();
        let here = matches_prefix.is_empty()
            || matches_prefix.iter().any(|prefix| base.starts_with(prefix) || prefix.starts_with(base));
        rule.action.kind == "Delete" && current && here
    };
    match bucket.lifecycle.rule.iter().find(deletes) {
        None => Finding::passed(CHECK, "no rule deletes current objects here"),
        Some(_) => Finding::warning(CHECK, "a lifecycle rule deletes current objects here").with_help(
            "the record of a lock that is held or in its cooldown may be among them: limit the rule to another \
             prefix",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::CheckStatus;

    fn verdicts(json: &str) -> Vec<CheckStatus> {
        let bucket: Bucket = serde_json::from_str(json).unwrap();
        settings(&bucket, "locks/").iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn settings_that_hinder_locks_are_found() {
        use CheckStatus::{Failed, Passed, Warning};
        assert_eq!(verdicts("{}"), [Passed; 3]);
        assert_eq!(verdicts(r#"{"retentionPolicy":{"retentionPeriod":"60"}}"#), [Failed, Passed, Passed]);
        assert_eq!(verdicts(r#"{"versioning":{"enabled":true}}"#), [Passed, Warning, Passed]);
        let soft = r#"{"softDeletePolicy":{"retentionDurationSeconds":"604800"}}"#;
        assert_eq!(verdicts(soft), [Passed, Warning, Passed]);
        assert_eq!(verdicts(r#"{"softDeletePolicy":{"retentionDurationSeconds":"0"}}"#), [Passed; 3]);
        let rule = |condition: &str| {
            verdicts(&format!(
                r#"{{"lifecycle":{{"rule":[{{"action":{{"type":"Delete"}},"condition":{condition}}}]}}}}"#
            ))[2]
        };
        assert_eq!(rule(r#"{"age":30}"#), Warning);
        assert_eq!(rule(r#"{"age":30,"matchesPrefix":["logs/"]}"#), Passed);
        assert_eq!(rule(r#"{"age":30,"matchesPrefix":["lo"]}"#), Warning);
        assert_eq!(rule(r#"{"age":1,"isLive":false}"#), Passed);
        assert_eq!(rule(r#"{"daysSinceNoncurrentTime":1}"#), Passed);
    }
}
