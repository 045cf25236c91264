//! JSON Web Tokens of OpenID Connect issuers.
//!
//! The times of a token are compared with this server's wall clock. Only authentication depends on that clock, not a
//! lock.

mod keys;
mod source;
mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::{Algorithm, Validation};
use leasehold::clock::{self, Moment};
use leasehold::env::Env;
use serde::Deserialize;
use serde_json::Value;
use tokio::task::JoinSet;

use self::keys::{Key, Keys, NoKey};
use self::source::Source;
use self::template::{Condition, Template};
use super::{Caller, Right, unauthorized};
use crate::problem::{Problem, ProblemType};

/// Maximum length of a token, in bytes.
const MAX_TOKEN: usize = 8 * 1024;
/// How much the clocks of the issuer and of this server may differ.
const LEEWAY: Duration = Duration::from_secs(10);
/// The latest expiry of a token, in seconds since the Unix epoch: in about 30,000 years. Later expiries are reduced to
/// this value.
const MAX_EXPIRY_S: f64 = 1e12;

/// An entry [[issuer]] of the access file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IssuerEntry {
    name: String,
    url: String,
    audience: String,
    #[serde(default = "subject")]
    principal: String,
    jwks: Option<String>,
    ca: Option<PathBuf>,
}

fn subject() -> String {
    "{sub}".to_owned()
}

/// The issuers of an access file.
#[derive(Clone, Debug, Default)]
pub(super) struct Issuers(Vec<Issuer>);

#[derive(Clone, Debug)]
struct Issuer {
    /// The name in the access file. Its principals begin with it.
    name: String,
    url: String,
    audience: String,
    principal: Template,
    rules: Vec<IssuerRule>,
    keys: Arc<Keys>,
}

/// The rights of tokens that meet all conditions.
#[derive(Clone, Debug)]
struct IssuerRule {
    conditions: Vec<Condition>,
    prefix: Template,
    rights: Vec<Right>,
}

impl Issuers {
    /// Creates the issuers of an access file.
    ///
    /// # Errors
    /// An entry is invalid. The error says why.
    pub(super) fn new(entries: Vec<IssuerEntry>) -> Result<Self, String> {
        // Select the provider here. Otherwise the features of all crates in the program select it, and two selected
        // providers cause a panic.
        let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
        let mut issuers: Vec<Issuer> = Vec::new();
        for entry in entries {
            let issuer = Issuer::new(entry)?;
            for other in &issuers {
                if other.name == issuer.name || other.url == issuer.url {
                    return Err(format!(
                        "the issuer `{}` has the same name or the same `url` as another issuer",
                        issuer.name
                    ));
                }
            }
            issuers.push(issuer);
        }
        Ok(Self(issuers))
    }

    /// Adds a rule for the tokens of the issuer with the name `issuer`.
    ///
    /// # Errors
    /// The rule is invalid. The error says why.
    pub(super) fn add_rule(
        &mut self,
        issuer: &str,
        claims: Option<BTreeMap<String, String>>,
        prefix: &str,
        rights: Vec<Right>,
    ) -> Result<(), String> {
        let Some(of) = self.0.iter_mut().find(|of| of.name == issuer) else {
            return Err(format!("a rule names the issuer `{issuer}`, which is not in the file"));
        };
        // With some issuers, such as GitHub, anyone can get a token.
        let claims = claims.ok_or_else(|| {
            format!("a rule for the issuer `{issuer}` has no `claims`: list the claims that a token must have; `claims = {{}}` matches every token of the issuer")
        })?;
        let conditions = claims.into_iter().map(|(claim, pattern)| Condition::parse(claim, pattern));
        let conditions = conditions.collect::<Result<_, _>>()?;
        of.rules.push(IssuerRule { conditions, prefix: Template::prefix(prefix)?, rights });
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether `principal` could be the principal of an issuer's token.
    pub(super) fn has_principal(&self, principal: &str) -> bool {
        let name = principal.split_once(':').map(|(name, _)| name);
        self.0.iter().any(|issuer| Some(&*issuer.name) == name)
    }

    /// Fetches the keys of all issuers at intervals, with a separate task for each issuer. Runs until it is dropped.
    pub(super) async fn refresh_keys(&self, env: &Env) {
        let mut tasks = JoinSet::new();
        for issuer in &self.0 {
            let (keys, name, env) = (issuer.keys.clone(), issuer.name.clone(), env.clone());
            tasks.spawn(async move { keys.refresh(&name, &env).await });
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Returns the caller with this `token`, or `None` if there are no issuers or it is not a JWT.
    pub(super) async fn caller(&self, token: &str, env: &Env) -> Option<Result<Caller, Problem>> {
        if self.is_empty() || token.bytes().filter(|byte| *byte == b'.').count() != 2 {
            return None;
        }
        Some(self.checked(token, env).await)
    }

    async fn checked(&self, token: &str, env: &Env) -> Result<Caller, Problem> {
        let now = env.now();
        if token.len() > MAX_TOKEN {
            return Err(refused(&format!("is longer than {MAX_TOKEN} bytes")));
        }
        let header = jsonwebtoken::decode_header(token)
            .map_err(|_| refused("has a header that cannot be read, or an unknown algorithm (`alg`)"))?;
        if header.crit.is_some() {
            return Err(refused("has an extension (`crit`) that is not supported"));
        }
        // These claims are not verified yet. They are used only to choose the key.
        let claims = jsonwebtoken::dangerous::insecure_decode_claims::<Value>(token)
            .map_err(|_| refused("has claims that cannot be read"))?;
        let url = claims.get("iss").and_then(Value::as_str);
        let issuer = self.0.iter().find(|issuer| Some(&*issuer.url) == url);
        let issuer = issuer.ok_or_else(|| refused("has an issuer (`iss`) that is not in the access file"))?;
        let id = header.kid.ok_or_else(|| refused("has no key id (`kid`)"))?;
        let key = issuer.keys.find(&id, env).await.map_err(|missing| issuer.without_key(&missing))?;
        let (claims, valid_until_us) = issuer.verified(token, &key, now)?;
        issuer.caller(&claims, valid_until_us)
    }
}

impl Issuer {
    fn new(entry: IssuerEntry) -> Result<Self, String> {
        let IssuerEntry { name, url, audience, principal, jwks, ca } = entry;
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !(1..=32).contains(&name.len()) || !name.bytes().all(is_plain) {
            return Err(
                "the `name` of an issuer must have 1 to 32 characters: lower-case letters, digits and `-`"
                    .into(),
            );
        }
        let flaw = |flaw: String| format!("the issuer `{name}`: {flaw}");
        if audience.is_empty() {
            return Err(flaw("its `audience` is empty".to_owned()));
        }
        let principal = Template::principal(&principal).map_err(flaw)?;
        let source = Source::new(&url, jwks.as_deref(), ca.as_deref()).map_err(flaw)?;
        Ok(Self { url, audience, principal, rules: Vec::new(), keys: Arc::new(Keys::new(source)), name })
    }

    /// Verifies the token. Returns its claims and the time until which it is valid, in microseconds on the wall clock.
    fn verified(&self, token: &str, key: &Key, now: Moment) -> Result<(Value, u64), Problem> {
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.algorithms.clone_from(&key.algorithms);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&self.url]);
        validation.set_audience(&[&self.audience]);
        // The times are checked below, on the clock of `env`.
        (validation.validate_exp, validation.validate_nbf) = (false, false);
        let verified = jsonwebtoken::decode::<Value>(token, &key.decoding, &validation);
        let claims = verified.map_err(|error| invalid(&error))?.claims;
        let leeway = LEEWAY.as_secs_f64();
        let expires = claims.get("exp").and_then(Value::as_f64).unwrap_or(0.0);
        let valid_until = Duration::try_from_secs_f64((expires + leeway).clamp(0.0, MAX_EXPIRY_S));
        let valid_until_us = valid_until.map_or(0, clock::micros);
        if now.wall_us() >= valid_until_us {
            return Err(refused("has expired (`exp`)"));
        }
        let now = Duration::from_micros(now.wall_us()).as_secs_f64();
        match claims.get("nbf") {
            Some(begins) if begins.as_f64().is_none_or(|begins| begins > now + leeway) => {
                Err(refused("is not valid yet (`nbf`): compare the clocks of this server and of the issuer"))
            }
            _ => Ok((claims, valid_until_us)),
        }
    }

    /// Returns the caller whose token has these verified claims and is valid until `valid_until_us`.
    fn caller(&self, claims: &Value, valid_until_us: u64) -> Result<Caller, Problem> {
        let principal = self
            .principal
            .principal_of(claims)
            .map_err(|flaw| refused(&format!("cannot be mapped to a principal: {flaw}")))?;
        let mut rights = Vec::new();
        for rule in &self.rules {
            if rule.conditions.iter().all(|condition| condition.holds(claims))
                && let Some(prefix) = rule.prefix.prefix_of(claims)
            {
                rights.push((prefix, rule.rights.clone()));
            }
        }
        let principal = format!("{}:{principal}", self.name);
        if rights.is_empty() {
            // Some issuers have many users without any rights here.
            let detail = format!("no rule of the access file matches the token of `{principal}`");
            return Err(Problem::new(ProblemType::Forbidden, detail)
                .with_help("ask the operator of the server to add a rule"));
        }
        Ok(Caller {
            principal: Some(principal),
            names_holders: false,
            valid_until_us: Some(valid_until_us),
            session: None,
            rights,
        })
    }

    fn without_key(&self, missing: &NoKey) -> Problem {
        match missing {
            NoKey::Unknown => refused("names a key (`kid`) that its issuer does not have"),
            NoKey::Unavailable => {
                let detail = format!("the keys of the issuer `{}` could not be fetched", self.name);
                Problem::new(ProblemType::Unavailable, detail)
                    .with_help("see the log of the server")
                    .retry_after(keys::MIN_INTERVAL)
            }
        }
    }
}

fn refused(flaw: &str) -> Problem {
    unauthorized(&format!("the token {flaw}")).with_help("get a new token from its issuer")
}

/// Returns the problem for `error`, without any content of the token.
fn invalid(error: &jsonwebtoken::errors::Error) -> Problem {
    use jsonwebtoken::errors::ErrorKind;
    refused(&match error.kind() {
        ErrorKind::InvalidAudience => "is for another audience (`aud`)".to_owned(),
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName => {
            "has an algorithm (`alg`) that its key does not allow".to_owned()
        }
        ErrorKind::MissingRequiredClaim(claim) => format!("has no usable claim `{claim}`"),
        _ => "has a wrong signature or cannot be read".to_owned(),
    })
}
