//! The doctor's checks of a bucket's settings. They need permissions that locks do not need, so a missing permission is
//! not an error.

use std::error::Error as StdError;
use std::fmt::Display;

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::types::{
    BucketVersioningStatus, ExpirationStatus, LifecycleRule, ObjectLockConfiguration, ObjectLockEnabled,
};
use aws_smithy_runtime_api::http::Response;

use super::S3Register;
use crate::diagnosis::{CheckStatus, Examined, Finding};
use crate::error::{ErrorKind, StoreError};
use crate::lease::Id;
use crate::register::{Deleted, Register, Version};
use crate::retry::retry;
use crate::stores::aws::watch::Watch;
use crate::stores::over_http::answer::Failure;

impl S3Register {
    pub(super) async fn examined(&self) -> Examined {
        let mut examined = Examined {
            // Directory buckets have other prices.
            listed_prices: self.target.endpoint.is_none() && !self.target.is_directory(),
            least_permissions: self.least_permissions(),
            ..Examined::default()
        };
        let rules = self.rules().await;
        let base = self.keys.object("");
        examined.push(self.versioning(rules.as_deref().unwrap_or_default(), &base).await);
        examined.push(match rules {
            Ok(rules) => expiration(&rules, &base),
            Err(unchecked) => Finding::not_applicable("lifecycle", unchecked),
        });
        examined.push(self.object_lock().await);
        if self.target.is_directory() {
            examined.push(self.delete_of_nothing().await);
        }
        examined
    }

    fn least_permissions(&self) -> Vec<String> {
        let (bucket, objects) =
            (self.target.arn(), self.target.arn_of(&format!("{}*", self.keys.object(""))));
        let mut lines = vec!["the minimum that leasehold needs:".to_owned()];
        lines.extend(match self.target.is_directory() {
            true => vec![format!(
                r#"{{"Effect":"Allow","Action":"s3express:CreateSession","Resource":"{bucket}"}}"#
            )],
            false => vec![
                format!(
                    r#"{{"Effect":"Allow","Action":["s3:GetObject","s3:PutObject"],"Resource":"{objects}"}}"#
                ),
                format!(r#"{{"Effect":"Allow","Action":"s3:ListBucket","Resource":"{bucket}"}}"#),
            ],
        });
        lines
    }

    /// Checks how a directory bucket responds to a conditional delete of a missing object. Amazon does not document it.
    async fn delete_of_nothing(&self) -> Finding {
        let nothing = format!(".leasehold-probe-nothing-{}", Id::random(&self.env().random));
        let version = Version::new("\"00000000000000000000000000000000\"");
        let asked = || self.delete(&nothing, &version);
        deleted_nothing(retry(self.env(), asked).await)
    }

    async fn rules(&self) -> Result<Vec<LifecycleRule>, String> {
        let watch = self.requests.watch();
        let request = self.client.get_bucket_lifecycle_configuration().bucket(&self.target.bucket);
        let request = request.set_expected_bucket_owner(self.settings.owner.clone());
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.asked("s3:GetLifecycleConfiguration", &watch, result) {
            Ok(output) => Ok(output.and_then(|output| output.rules).unwrap_or_default()),
            Err(unchecked) => Err(unchecked),
        }
    }

    async fn versioning(&self, rules: &[LifecycleRule], base: &str) -> Finding {
        const CHECK: &str = "versioning";
        let watch = self.requests.watch();
        let request = self.client.get_bucket_versioning().bucket(&self.target.bucket);
        let request = request.set_expected_bucket_owner(self.settings.owner.clone());
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.asked("s3:GetBucketVersioning", &watch, result) {
            Err(unchecked) => Finding::not_applicable(CHECK, unchecked),
            Ok(output) => {
                let on = output.and_then(|output| output.status) == Some(BucketVersioningStatus::Enabled);
                versions(on, rules, base)
            }
        }
    }

    async fn object_lock(&self) -> Finding {
        const CHECK: &str = "object-lock";
        let watch = self.requests.watch();
        let request = self.client.get_object_lock_configuration().bucket(&self.target.bucket);
        let request = request.set_expected_bucket_owner(self.settings.owner.clone());
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.asked("s3:GetBucketObjectLockConfiguration", &watch, result) {
            Err(unchecked) => Finding::not_applicable(CHECK, unchecked),
            Ok(output) => {
                let configuration = output.and_then(|output| output.object_lock_configuration);
                retention(configuration.as_ref())
            }
        }
    }

    /// Returns `Ok(None)` if nothing is configured. The error explains, for a finding, why the setting is unknown.
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
            Err(Failure::Answered(answer)) if answer.status == 404 => Ok(None),
            Err(Failure::Answered(answer)) if matches!(answer.status, 401 | 403) => {
                Err(format!("not checked: this needs {permission}, which locks do not need"))
            }
            Err(Failure::Answered(answer)) => Err(unanswered(&answer.status)),
            Err(_) => Err(unanswered(&"nothing")),
        }
    }
}

/// Judges the response to a conditional delete of a missing object. If such deletes succeed, a release does not notice
/// that another client has deleted the lock.
fn deleted_nothing(answer: Result<Deleted, StoreError>) -> Finding {
    const CHECK: &str = "delete-missing";
    match answer {
        Ok(Deleted::Conflict) => Finding::passed(CHECK, "a conditional delete of a missing object is refused"),
        Ok(Deleted::Deleted) => {
            Finding::warning(CHECK, "a conditional delete of a missing object is reported as a success").with_help(
                "locks are safe; with ?protocol=existence a release does not notice that another client deleted the object",
            )
        }
        Err(error) if error.fault().kind == ErrorKind::Denied => {
            Finding::not_applicable(CHECK, "not checked: this needs s3:DeleteObject, which locks do not need")
        }
        Err(error) => Finding::of_error(CHECK, CheckStatus::Warning, &error),
    }
}

fn unanswered(status: &dyn Display) -> String {
    format!("not checked: the store responds with {status}")
}

/// Judges Object Lock. Under a default retention, no written object can be deleted, not even those of the examination.
fn retention(configuration: Option<&ObjectLockConfiguration>) -> Finding {
    const CHECK: &str = "object-lock";
    let on = configuration
        .filter(|configuration| configuration.object_lock_enabled() == Some(&ObjectLockEnabled::Enabled));
    match on {
        None => Finding::passed(CHECK, "off"),
        Some(on) if on.rule().is_some_and(|rule| rule.default_retention().is_some()) => Finding::failed(
            CHECK,
            "the bucket has Object Lock with a default retention: every write leaves a version that stays until its \
             retention ends, and a held lock writes several a minute",
        )
        .with_help("use another bucket; nothing was written to this one"),
        Some(_) => Finding::warning(CHECK, "the bucket has Object Lock")
            .with_help("locks are safe, but a default retention keeps every old version: use another bucket"),
    }
}

/// The part of our objects that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    All,
    /// The objects of some locks.
    Some,
}

/// Our objects have no tags, and sizes between a few hundred bytes and a few kilobytes.
const LARGER_THAN_OURS: i64 = 64 << 10;
const SMALLER_THAN_OURS: i64 = 256;

/// Returns the part of the objects below `base` that `rule` applies to. Returns `None` if it applies to none of them.
fn extent(rule: &LifecycleRule, base: &str) -> Option<Extent> {
    if rule.status() != &ExpirationStatus::Enabled {
        return None;
    }
    let filter = rule.filter();
    let and = filter.and_then(|filter| filter.and());
    let tagged =
        filter.is_some_and(|filter| filter.tag().is_some()) || and.is_some_and(|and| !and.tags().is_empty());
    let more_than = filter
        .and_then(|filter| filter.object_size_greater_than())
        .or(and.and_then(|and| and.object_size_greater_than()));
    let less_than = filter
        .and_then(|filter| filter.object_size_less_than())
        .or(and.and_then(|and| and.object_size_less_than()));
    let others = more_than.is_some_and(|bytes| bytes >= LARGER_THAN_OURS)
        || less_than.is_some_and(|bytes| bytes <= SMALLER_THAN_OURS);
    #[allow(deprecated, reason = "older lifecycle rules set the prefix in this field")]
    let prefix = filter
        .and_then(|filter| filter.prefix())
        .or(and.and_then(|and| and.prefix()))
        .or(rule.prefix())
        .unwrap_or("");
    match (tagged || others, base.starts_with(prefix), prefix.starts_with(base)) {
        (false, true, _) => Some(Extent::All),
        (false, false, true) => Some(Extent::Some),
        _ => None,
    }
}

/// Judges rules that delete current objects. They also delete the records of locks.
fn expiration(rules: &[LifecycleRule], base: &str) -> Finding {
    const CHECK: &str = "lifecycle";
    let named = |rule: &LifecycleRule| rule.id().unwrap_or("without a name").to_owned();
    let expiring = rules.iter().filter_map(|rule| {
        let extent = extent(rule, base)?;
        let expiration = rule.expiration()?;
        match (expiration.date(), expiration.days()) {
            (Some(_), _) => Some((rule, extent == Extent::All, "at a date".to_owned())),
            (None, Some(days)) => Some((rule, false, format!("after {days} days"))),
            (None, None) => None,
        }
    });
    // Reports the most serious rule.
    match expiring.max_by_key(|(_, fatal, _)| *fatal) {
        None => Finding::passed(CHECK, "no rule deletes current objects here"),
        Some((rule, true, when)) => {
            Finding::failed(CHECK, format!("the rule {:?} deletes all objects here {when}", named(rule)))
                .with_help(
                    "it also deletes the record of a lock that is held: limit the rule to another prefix",
                )
        }
        Some((rule, false, when)) => Finding::warning(
            CHECK,
            format!("the rule {:?} deletes objects here {when}", named(rule)),
        )
        .with_help(
            "a held lock is written again long before that, but a job with a longer cooldown (leasehold once \
                 --per) runs again too early: limit the rule to another prefix",
        ),
    }
}

/// Judges versioning. In a versioned bucket, every renewal leaves a version.
fn versions(on: bool, rules: &[LifecycleRule], base: &str) -> Finding {
    const CHECK: &str = "versioning";
    let ended = rules.iter().any(|rule| {
        extent(rule, base) == Some(Extent::All) && rule.noncurrent_version_expiration().is_some()
    });
    match (on, ended) {
        (false, _) => Finding::passed(CHECK, "off"),
        (true, true) => Finding::passed(CHECK, "on, and a lifecycle rule deletes old versions"),
        (true, false) => Finding::warning(CHECK, "on: every renewal leaves a version of about 1 KB").with_help(
            "locks are safe; let a lifecycle rule delete noncurrent versions below the prefix after a day \
             (docs/stores/s3.md)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::primitives::DateTime;
    use aws_sdk_s3::types::{
        DefaultRetention, LifecycleExpiration, LifecycleRuleAndOperator, LifecycleRuleFilter,
        NoncurrentVersionExpiration, ObjectLockRule, Tag,
    };

    use super::*;
    use crate::error::Fault;

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
            ("", days.clone(), CheckStatus::Warning),
            ("locks/", days.clone(), CheckStatus::Warning),
            ("locks/team/", days.clone(), CheckStatus::Warning),
            ("logs/", days.clone(), CheckStatus::Passed),
            ("", date, CheckStatus::Failed),
            ("", markers, CheckStatus::Passed),
        ] {
            let rules = [rule(prefix).expiration(expiration).build().unwrap()];
            let finding = super::expiration(&rules, "locks/");
            assert_eq!(finding.verdict, verdict, "{prefix:?}: {finding:?}");
        }
        let off = rule("").expiration(days).status(ExpirationStatus::Disabled).build().unwrap();
        assert_eq!(super::expiration(&[off], "locks/").verdict, CheckStatus::Passed);
    }

    #[test]
    fn the_worst_rule_counts_and_filters_are_read() {
        let days = LifecycleExpiration::builder().days(30).build();
        let date = LifecycleExpiration::builder().date(DateTime::from_secs(0)).build();
        let both = [
            rule("").expiration(days).build().unwrap(),
            rule("locks/").expiration(date.clone()).build().unwrap(),
        ];
        assert_eq!(super::expiration(&both, "locks/").verdict, CheckStatus::Failed);
        let below = rule("locks/team/").expiration(date.clone()).build().unwrap();
        assert_eq!(super::expiration(&[below], "locks/").verdict, CheckStatus::Warning);
        let and = |prefix: &str| LifecycleRuleAndOperator::builder().prefix(prefix);
        let tag = Tag::builder().key("a").value("b").build().unwrap();
        for (and, verdict) in [
            (and("locks/").object_size_greater_than(100), CheckStatus::Failed),
            (and("locks/").object_size_less_than(1 << 20), CheckStatus::Failed),
            (and("locks/").object_size_greater_than(64 << 10), CheckStatus::Passed),
            (and("locks/").object_size_less_than(200), CheckStatus::Passed),
            (and("logs/").object_size_greater_than(100), CheckStatus::Passed),
            (and("locks/").tags(tag), CheckStatus::Passed),
        ] {
            let filter = LifecycleRuleFilter::builder().and(and.build()).build();
            let rule = LifecycleRule::builder().status(ExpirationStatus::Enabled).filter(filter);
            let rules = [rule.expiration(date.clone()).build().unwrap()];
            let finding = super::expiration(&rules, "locks/");
            assert_eq!(finding.verdict, verdict, "{rules:?}: {finding:?}");
        }
    }

    #[test]
    fn a_bucket_with_a_default_retention_fails() {
        let on = ObjectLockConfiguration::builder().object_lock_enabled(ObjectLockEnabled::Enabled);
        let kept = ObjectLockRule::builder().default_retention(DefaultRetention::builder().days(1).build());
        assert_eq!(retention(None).verdict, CheckStatus::Passed);
        assert_eq!(retention(Some(&on.clone().build())).verdict, CheckStatus::Warning);
        assert_eq!(retention(Some(&on.rule(kept.build()).build())).verdict, CheckStatus::Failed);
    }

    #[test]
    fn a_successful_delete_of_a_missing_object_is_a_warning() {
        let denied = Fault::new(ErrorKind::Denied, "no").not_applied();
        for (answer, verdict) in [
            (Ok(Deleted::Conflict), CheckStatus::Passed),
            (Ok(Deleted::Deleted), CheckStatus::Warning),
            (Err(denied), CheckStatus::NotApplicable),
            (Err(Fault::unavailable("busy").not_applied()), CheckStatus::Warning),
        ] {
            assert_eq!(deleted_nothing(answer).verdict, verdict);
        }
    }

    #[test]
    fn a_versioned_bucket_needs_a_rule_for_old_versions() {
        let old = NoncurrentVersionExpiration::builder().noncurrent_days(1).build();
        let rules = [rule("locks/").noncurrent_version_expiration(old).build().unwrap()];
        for (on, rules, verdict) in [
            (false, &rules[..0], CheckStatus::Passed),
            (true, &rules[..], CheckStatus::Passed),
            (true, &rules[..0], CheckStatus::Warning),
        ] {
            assert_eq!(versions(on, rules, "locks/").verdict, verdict);
        }
    }
}
