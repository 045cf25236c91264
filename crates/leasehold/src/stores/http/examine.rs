//! The doctor's checks of the server.

use std::time::Duration;

use super::HttpLeases;
use super::answers::Described;
use super::client::Request;
use crate::diagnosis::{Examined, Finding};
use crate::error::StoreError;
use crate::retry::retry;
use crate::stores::over_http::https::date_us;

/// How far the clocks of both machines may differ without a warning.
const APART: Duration = Duration::from_secs(60);

impl HttpLeases {
    pub(super) async fn examined(&self) -> Examined {
        let mut examined = Examined::default();
        match retry(&self.client.env, || self.client.described()).await {
            Ok(described) => {
                examined.push(self.version(&described));
                examined.push(rights(&described));
            }
            Err(error) => examined.push(Finding::stopped("server", &error)),
        }
        examined.push(Finding::settled("readiness", self.readiness().await));
        examined
            .least_permissions
            .push("[[rule]] with allow = [\"read\", \"acquire\"]; \"evict\" to evict".to_owned());
        examined
    }

    fn version(&self, described: &Described) -> Finding {
        let (ours, theirs) = (env!("CARGO_PKG_VERSION"), crate::lease::printable(&described.version, 40));
        let store = crate::lease::printable(&described.store, 40);
        let seen = format!("{} is leasehold {theirs} on {store}", self.client.config.base);
        if theirs == ours {
            return Finding::passed("server", seen);
        }
        Finding::warning("server", format!("{seen}, but this is leasehold {ours}"))
            .with_help("use the same version on both sides")
    }

    /// Checks that the server reports that its store responds, and compares the server's clock. Leases do not depend on
    /// that clock.
    async fn readiness(&self) -> Result<Finding, StoreError> {
        let request = Request::get("/readyz".to_owned(), "the server is not ready".to_owned());
        let headers = retry(&self.client.env, || self.client.done(&request)).await?;
        let apart =
            date_us(&headers).map(|us| Duration::from_micros(us.abs_diff(self.client.env.now().wall_us())));
        Ok(match apart {
            Some(apart) if apart > APART => Finding::warning(
                "readiness",
                format!("the server is ready, and its clock differs by {apart:.0?}"),
            )
            .with_help("correct the clocks: locks are safe, but times in listings and logs do not match"),
            _ => Finding::passed("readiness", "the server and its store are ready"),
        })
    }
}

/// Reports the caller's rights.
fn rights(described: &Described) -> Finding {
    let who = described.principal.as_deref().map_or_else(
        || "a caller without a token".to_owned(),
        |principal| crate::lease::printable(principal, 100),
    );
    let rule = |rule: &super::answers::Rule| {
        let prefix = if rule.prefix.is_empty() { "all locks" } else { &rule.prefix };
        format!("{} on {}", rule.allow.join(", "), prefix)
    };
    let rules: Vec<String> = described.rules.iter().map(rule).collect();
    let seen = format!("{who} may: {}", crate::lease::printable(&rules.join("; "), 300));
    let may =
        |right: &str| described.rules.iter().any(|rule| rule.allow.iter().any(|allowed| allowed == right));
    if may("acquire") && may("read") {
        return Finding::passed("rights", seen);
    }
    Finding::failed("rights", seen)
        .with_help("ask the operator of the server for a rule with \"read\" and \"acquire\"")
}
