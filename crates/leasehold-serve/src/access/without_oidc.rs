//! Replaces `oidc` in a build without that feature. Refuses an access file with an [[issuer]].

use std::collections::BTreeMap;
use std::convert::Infallible;

use leasehold::env::Env;
use serde::de::IgnoredAny;

use super::{Caller, Right};
use crate::problem::Problem;

/// An entry [[issuer]] of the access file.
pub(super) type IssuerEntry = IgnoredAny;

/// The issuers of an access file, of which there are none.
#[derive(Clone, Debug, Default)]
pub(super) struct Issuers(Option<Infallible>);

impl Issuers {
    pub(super) fn new(entries: Vec<IssuerEntry>) -> Result<Self, String> {
        if entries.is_empty() {
            return Ok(Self::default());
        }
        Err("the file has an [[issuer]], but this build of leasehold does not support OIDC: build it with `--features oidc`"
            .into())
    }

    pub(super) fn add_rule(
        &mut self,
        issuer: &str,
        _: Option<BTreeMap<String, String>>,
        _: &str,
        _: Vec<Right>,
    ) -> Result<(), String> {
        Err(format!("a rule names the issuer `{issuer}`, which is not in the file"))
    }

    pub(super) fn is_empty(&self) -> bool {
        true
    }

    pub(super) fn has_principal(&self, _: &str) -> bool {
        false
    }

    pub(super) async fn caller(&self, _: &str, _: &Env) -> Option<Result<Caller, Problem>> {
        None
    }

    pub(super) async fn refresh_keys(&self, _: &Env) {}
}
