//! The doctor's questions to a bucket: what it does to objects beside what is asked for. The answers need permissions that
//! locks do not: where they are missing, nothing is wrong.

use std::error::Error as StdError;
use std::fmt::Display;

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::types::{BucketVersioningStatus, ExpirationStatus, LifecycleRule, ObjectLockEnabled};
use aws_smithy_runtime_api::http::Response;

use super::S3Register;
use crate::doctor::{Examined, Finding};
use crate::stores::aws::trouble::Trouble;
use crate::stores::aws::watch::Watch;

impl S3Register {
    pub(super) async fn examined(&self) -> Examined {
        let mut examined = Examined {
            listed_prices: self.place.endpoint.is_none(),
            least_permissions: self.least_permissions(),
            ..Examined::default()
        };
        let rules = self.rules().await;
        let base = self.keys.object("");
        examined.push(self.versioning(rules.as_deref().unwrap_or_default(), &base).await);
        examined.push(match rules {
            Ok(rules) => expiration(&rules, &base),
            Err(unasked) => Finding::not_applicable("lifecycle", unasked),
        });
        examined.push(self.object_lock().await);
        examined
    }

    fn least_permissions(&self) -> Vec<String> {
        let (bucket, base) = (&self.place.bucket, self.keys.object(""));
        vec![
            "the least that leasehold needs:".to_owned(),
            format!(
                r#"{{"Effect":"Allow","Action":["s3:GetObject","s3:PutObject"],"Resource":"arn:aws:s3:::{bucket}/{base}*"}}"#
            ),
            format!(r#"{{"Effect":"Allow","Action":"s3:ListBucket","Resource":"arn:aws:s3:::{bucket}"}}"#),
        ]
    }

    async fn rules(&self) -> Result<Vec<LifecycleRule>, String> {
        let watch = self.requests.watch();
        let request = self.client.get_bucket_lifecycle_configuration().bucket(&self.place.bucket);
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.asked("s3:GetLifecycleConfiguration", &watch, result) {
            Ok(output) => Ok(output.and_then(|output| output.rules).unwrap_or_default()),
            Err(unasked) => Err(unasked),
        }
    }

    async fn versioning(&self, rules: &[LifecycleRule], base: &str) -> Finding {
        const CHECK: &str = "versioning";
        let watch = self.requests.watch();
        let request = self.client.get_bucket_versioning().bucket(&self.place.bucket);
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.asked("s3:GetBucketVersioning", &watch, result) {
            Err(unasked) => Finding::not_applicable(CHECK, unasked),
            Ok(output) => {
                let on = output.and_then(|output| output.status) == Some(BucketVersioningStatus::Enabled);
                versions(on, rules, base)
            }
        }
    }

    async fn object_lock(&self) -> Finding {
        const CHECK: &str = "object-lock";
        let watch = self.requests.watch();
        let request = self.client.get_object_lock_configuration().bucket(&self.place.bucket);
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.asked("s3:GetBucketObjectLockConfiguration", &watch, result) {
            Err(unasked) => Finding::not_applicable(CHECK, unasked),
            Ok(output) => {
                let configuration = output.and_then(|output| output.object_lock_configuration);
                match configuration.and_then(|configuration| configuration.object_lock_enabled) {
                    Some(ObjectLockEnabled::Enabled) => Finding::warning(CHECK, "the bucket has Object Lock").with_help(
                        "locks are safe; with a default retention every renewal leaves a version that nobody can delete: \
                         use another bucket",
                    ),
                    _ => Finding::passed(CHECK, "off"),
                }
            }
        }
    }

    /// `Ok(None)` when nothing is configured; else why it cannot be told.
    fn asked<T, E>(
        &self,
        permission: &str,
        watch: &Watch,
        result: Result<T, SdkError<E, Response>>,
    ) -> Result<Option<T>, String>
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        match self.requests.settle(watch, result) {
            Ok(output) => Ok(Some(output)),
            Err(Trouble::Answered(answer)) if answer.status == 404 => Ok(None),
            Err(Trouble::Answered(answer)) if matches!(answer.status, 401 | 403) => {
                Err(format!("not looked at: that needs {permission}, which locks do not"))
            }
            Err(Trouble::Answered(answer)) => Err(unanswered(&answer.status)),
            Err(_) => Err(unanswered(&"nothing")),
        }
    }
}

fn unanswered(status: &dyn Display) -> String {
    format!("not looked at: the store answers {status} when it is asked")
}

/// Whether `rule` is about objects below `base`.
fn concerns(rule: &LifecycleRule, base: &str) -> bool {
    if rule.status() != &ExpirationStatus::Enabled {
        return false;
    }
    let filter = rule.filter();
    // Objects of ours have no tags, and about a kilobyte.
    let narrowed = filter.is_some_and(|filter| filter.tag().is_some() || filter.and().is_some());
    #[allow(deprecated, reason = "old rules have it there")]
    let prefix = filter.and_then(|filter| filter.prefix()).or(rule.prefix()).unwrap_or("");
    !narrowed && (base.starts_with(prefix) || prefix.starts_with(base))
}

/// A rule that deletes current objects deletes records of locks.
fn expiration(rules: &[LifecycleRule], base: &str) -> Finding {
    const CHECK: &str = "lifecycle";
    let named = |rule: &LifecycleRule| rule.id().unwrap_or("without a name").to_owned();
    let expiring = rules.iter().filter(|rule| concerns(rule, base)).find_map(|rule| {
        let expiration = rule.expiration()?;
        match (expiration.date(), expiration.days()) {
            (Some(_), _) => Some((rule, true, "at a date".to_owned())),
            (None, Some(days)) => Some((rule, false, format!("after {days} days"))),
            (None, None) => None,
        }
    });
    match expiring {
        None => Finding::passed(CHECK, "no rule deletes current objects here"),
        Some((rule, true, when)) => {
            Finding::failed(CHECK, format!("the rule {:?} deletes all objects here {when}", named(rule)))
                .with_help("the record of a lock that is held goes too: limit the rule to another prefix")
        }
        Some((rule, false, when)) => {
            Finding::warning(CHECK, format!("the rule {:?} deletes objects here {when}", named(rule))).with_help(
                "a held lock is written again long before that; a job that rests longer (leasehold once --per) runs again \
                 too early: limit the rule to another prefix",
            )
        }
    }
}

/// In a versioned bucket every renewal leaves a version.
fn versions(on: bool, rules: &[LifecycleRule], base: &str) -> Finding {
    const CHECK: &str = "versioning";
    let ended =
        rules.iter().any(|rule| concerns(rule, base) && rule.noncurrent_version_expiration().is_some());
    match (on, ended) {
        (false, _) => Finding::passed(CHECK, "off"),
        (true, true) => Finding::passed(CHECK, "on, and a lifecycle rule ends old versions"),
        (true, false) => Finding::warning(CHECK, "on: every renewal leaves a version of about 1 KB").with_help(
            "locks are safe; let a lifecycle rule end noncurrent versions below the prefix after a day (docs/stores/s3.md)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::primitives::DateTime;
    use aws_sdk_s3::types::{LifecycleExpiration, LifecycleRuleFilter, NoncurrentVersionExpiration};

    use super::*;
    use crate::doctor::Verdict;

    fn rule(prefix: &str) -> aws_sdk_s3::types::builders::LifecycleRuleBuilder {
        let filter = LifecycleRuleFilter::builder().prefix(prefix).build();
        LifecycleRule::builder().id("tidy").status(ExpirationStatus::Enabled).filter(filter)
    }

    #[test]
    fn rules_that_delete_records_are_found_and_others_are_not() {
        let days = LifecycleExpiration::builder().days(30).build();
        let date = LifecycleExpiration::builder().date(DateTime::from_secs(0)).build();
        let markers = LifecycleExpiration::builder().expired_object_delete_marker(true).build();
        for (prefix, expiration, verdict) in [
            ("", days.clone(), Verdict::Warning),
            ("locks/", days.clone(), Verdict::Warning),
            ("locks/team/", days.clone(), Verdict::Warning),
            ("logs/", days.clone(), Verdict::Passed),
            ("", date, Verdict::Failed),
            ("", markers, Verdict::Passed),
        ] {
            let rules = [rule(prefix).expiration(expiration).build().unwrap()];
            let finding = super::expiration(&rules, "locks/");
            assert_eq!(finding.verdict, verdict, "{prefix:?}: {finding:?}");
        }
        let off = rule("").expiration(days).status(ExpirationStatus::Disabled).build().unwrap();
        assert_eq!(super::expiration(&[off], "locks/").verdict, Verdict::Passed);
    }

    #[test]
    fn a_versioned_bucket_wants_a_rule_for_old_versions() {
        let old = NoncurrentVersionExpiration::builder().noncurrent_days(1).build();
        let rules = [rule("locks/").noncurrent_version_expiration(old).build().unwrap()];
        for (on, rules, verdict) in [
            (false, &rules[..0], Verdict::Passed),
            (true, &rules[..], Verdict::Passed),
            (true, &rules[..0], Verdict::Warning),
        ] {
            assert_eq!(versions(on, rules, "locks/").verdict, verdict);
        }
    }
}
