//! Who may do what.

mod browser;
mod file;
#[cfg(feature = "oidc")]
mod oidc;
#[cfg(not(feature = "oidc"))]
#[path = "access/without_oidc.rs"]
mod oidc;
mod seal;
mod session;

use std::collections::HashMap;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use leasehold::LockName;
use leasehold::clock::Moment;
use leasehold::env::Env;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

pub(crate) use self::browser::Hosts;
pub use self::file::InvalidAccess;
use self::oidc::Issuers;
pub(crate) use self::seal::{is_seal, seal};
pub(crate) use self::session::{LIFETIME as SESSION_LIFETIME, Session, Sessions, cookies};
use crate::problem::{Problem, ProblemType};
use crate::tls::ClientCertificate;

/// An operation of a caller on a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Right {
    /// See it.
    Read,
    /// Acquire, renew and release it.
    Acquire,
    /// End the grant of another holder.
    Evict,
}

/// The SHA-256 of a bearer token. The tokens themselves are not stored.
type Digest = [u8; 32];

/// A right that a principal has on the locks whose names begin with a prefix.
#[derive(Clone, Debug)]
struct Rule {
    principal: String,
    prefix: String,
    rights: Vec<Right>,
}

/// Who may use the server, and with which rights.
///
/// ```
/// use leasehold_serve::Access;
///
/// // The SHA-256 of the token, for example by `printf %s "$token" | sha256sum`.
/// let access = Access::parse(r#"
///     [[token]]
///     principal = "ci"
///     sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
///
///     [[rule]]
///     principal = "ci"
///     prefix = "ci/"
///     allow = ["read", "acquire"]
/// "#)?;
/// assert!(access.needs_token());
/// # Ok::<(), leasehold_serve::InvalidAccess>(())
/// ```
#[derive(Clone, Debug)]
pub struct Access {
    tokens: HashMap<Digest, String>,
    /// The principals of client certificates, by a name in the certificate.
    certificates: HashMap<String, String>,
    rules: Vec<Rule>,
    /// The issuers of JWTs, with their rules.
    issuers: Issuers,
    /// The rights of a caller without a token.
    anonymous: Vec<Right>,
    /// Whether callers choose the name of the holder that others see. Otherwise it is the name of the principal.
    free_names: bool,
}

/// A caller whose token has been checked.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// `None` for a caller without a token.
    pub(crate) principal: Option<String>,
    /// Whether the caller chooses the name of the holder that others see.
    pub(crate) names_holders: bool,
    /// When its token, its certificate or its session in the browser expires, in microseconds since the Unix epoch on
    /// this server's wall clock. `None` if it does not expire.
    pub(crate) valid_until_us: Option<u64>,
    /// Its session in the browser.
    pub(crate) session: Option<Session>,
    rights: Vec<(String, Vec<Right>)>,
}

/// The principal of the token that the server prints at startup.
const OPERATOR: &str = "operator";

impl Access {
    /// Creates the access for a server that only this machine can reach. Every caller may see and acquire locks.
    /// Evicting a holder requires the token `operator`.
    pub fn local(operator: &str) -> Self {
        let all = vec![Right::Read, Right::Acquire, Right::Evict];
        Self {
            tokens: HashMap::from([(digest(operator), OPERATOR.to_owned())]),
            certificates: HashMap::new(),
            rules: vec![Rule { principal: OPERATOR.to_owned(), prefix: String::new(), rights: all }],
            issuers: Issuers::default(),
            anonymous: vec![Right::Read, Right::Acquire],
            free_names: true,
        }
    }

    /// Parses an access file in TOML, with tokens, certificates, issuers and rules. An `[[issuer]]` requires the
    /// feature `oidc`. This function reads the file of its `ca`, and the [`Server`](crate::Server) fetches its keys
    /// when it runs.
    ///
    /// # Errors
    /// The text is invalid. The error says why, and does not repeat a digest.
    pub fn parse(text: &str) -> Result<Self, InvalidAccess> {
        file::parse(text)
    }

    /// Returns whether a caller without a token has no rights.
    pub fn needs_token(&self) -> bool {
        self.anonymous.is_empty()
    }

    /// Returns whether some callers are identified by their client certificates.
    pub(crate) fn has_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Returns the caller with this client certificate, if it has not expired and one of its names is known.
    fn caller_by_certificate(&self, certificate: Option<&ClientCertificate>, now_us: u64) -> Option<Caller> {
        let certificate = certificate.filter(|certificate| certificate.valid_until_us() > now_us)?;
        let principal = certificate.names().find_map(|name| self.certificates.get(name))?;
        Some(Caller { valid_until_us: Some(certificate.valid_until_us()), ..self.caller_of(principal) })
    }

    /// Returns a caller without a token.
    fn anonymous_caller(&self) -> Caller {
        Caller {
            principal: None,
            names_holders: self.free_names,
            valid_until_us: None,
            session: None,
            rights: vec![(String::new(), self.anonymous.clone())],
        }
    }

    /// Fetches the keys of the issuers at intervals. Runs until it is dropped.
    pub(crate) async fn refresh_keys(&self, env: &Env) {
        self.issuers.refresh_keys(env).await;
    }

    /// Returns the caller of a request with these `headers`, on a connection with this client `certificate`. A token
    /// takes precedence over the certificate. A token that is in no [[token]] may be from an issuer. Its times are
    /// checked on the clock of `env`.
    pub(crate) async fn caller(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
        env: &Env,
    ) -> Result<Caller, Problem> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            let now_us = env.now().wall_us();
            if let Some(caller) = self.caller_by_certificate(certificate, now_us) {
                return Ok(caller);
            }
            if certificate.is_some_and(|certificate| certificate.valid_until_us() <= now_us) {
                // The next connection has the client's new certificate.
                return Err(unauthorized("the client certificate has expired")
                    .with_header(header::CONNECTION, HeaderValue::from_static("close")));
            }
            if self.needs_token() {
                return Err(unauthorized("the request has no token"));
            }
            return Ok(self.anonymous_caller());
        };
        let token = value.to_str().ok().and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let Some(token) = token else {
            return Err(unauthorized("the header `Authorization` has no bearer token"));
        };
        if let Some(principal) = self.tokens.get(&digest(token)) {
            return Ok(self.caller_of(principal));
        }
        let unknown = || Err(unauthorized("the token is unknown"));
        self.issuers.caller(token, env).await.unwrap_or_else(unknown)
    }

    /// Returns the caller whose token belongs to `principal`.
    fn caller_of(&self, principal: &str) -> Caller {
        let rules = self.rules.iter().filter(|rule| rule.principal == *principal);
        Caller {
            principal: Some(principal.to_owned()),
            names_holders: self.free_names,
            valid_until_us: None,
            session: None,
            rights: rules.map(|rule| (rule.prefix.clone(), rule.rights.clone())).collect(),
        }
    }
}

impl Caller {
    /// Fails if the caller does not have this `right` on the lock `name`.
    pub(crate) fn require(&self, right: Right, name: &LockName) -> Result<(), Problem> {
        if self.may(right, name.as_str()) {
            return Ok(());
        }
        let what = match right {
            Right::Read => "see",
            Right::Acquire => "acquire",
            Right::Evict => "evict the holder of",
        };
        let who = self.principal.as_deref().unwrap_or("a caller without a token");
        let problem = Problem::new(ProblemType::Forbidden, format!("{who} may not {what} the lock `{name}`"));
        Err(match (&self.principal, right) {
            (None, Right::Evict) => problem.with_help(
                "send the token that `leasehold serve` printed at startup: Authorization: Bearer TOKEN",
            ),
            _ => problem.with_help("ask the operator of the server to add a rule"),
        })
    }

    /// Fails if the caller may see no lock whose name begins with `prefix`.
    pub(crate) fn require_readable(&self, prefix: &str) -> Result<Vec<String>, Problem> {
        let readable = self.readable(prefix);
        if !readable.is_empty() {
            return Ok(readable);
        }
        let detail = match prefix {
            "" => format!("{} may see no lock", self.name()),
            _ => format!("{} may see no lock whose name begins with `{prefix}`", self.name()),
        };
        Err(Problem::new(ProblemType::Forbidden, detail)
            .with_help("ask the operator of the server to add a rule"))
    }

    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        self.rights
            .iter()
            .any(|(prefix, rights)| name.starts_with(prefix.as_str()) && rights.contains(&right))
    }

    /// Returns the prefixes of the names that begin with `prefix` and that the caller may read. None of them is a
    /// prefix of another.
    pub(crate) fn readable(&self, prefix: &str) -> Vec<String> {
        let rules = self.rights.iter().filter(|(_, rights)| rights.contains(&Right::Read));
        let mut readable: Vec<&str> = rules
            .filter_map(|(rule, _)| match (prefix.starts_with(rule.as_str()), rule.starts_with(prefix)) {
                (true, _) => Some(prefix),
                (false, true) => Some(rule.as_str()),
                (false, false) => None,
            })
            .collect();
        // Sort a prefix directly before the names that begin with it.
        readable.sort_unstable();
        let mut disjoint: Vec<String> = Vec::new();
        for prefix in readable {
            if !disjoint.last().is_some_and(|last| prefix.starts_with(last.as_str())) {
                disjoint.push(prefix.to_owned());
            }
        }
        disjoint
    }

    /// Returns the rights of the caller: prefixes of names, and the rights on locks with such names.
    pub(crate) fn rights(&self) -> &[(String, Vec<Right>)] {
        &self.rights
    }

    /// Returns whether the caller has no rights.
    pub(crate) fn has_no_rights(&self) -> bool {
        self.rights.iter().all(|(_, rights)| rights.is_empty())
    }

    /// Returns how long its token or session is still valid: zero if it has expired, `None` if it does not expire.
    pub(crate) fn valid_for(&self, now: Moment) -> Option<Duration> {
        self.valid_until_us.map(|until_us| Duration::from_micros(until_us.saturating_sub(now.wall_us())))
    }

    /// Creates a caller with these rights on the locks with these prefixes.
    #[cfg(test)]
    pub(crate) fn with_rights(principal: &str, rights: Vec<(String, Vec<Right>)>) -> Self {
        let principal = Some(principal.to_owned());
        Self { principal, names_holders: false, valid_until_us: None, session: None, rights }
    }

    /// Returns the name for limits and the audit log.
    pub(crate) fn name(&self) -> &str {
        self.principal.as_deref().unwrap_or("anonymous")
    }
}

#[cfg(test)]
impl Caller {
    pub(crate) fn set_rights(&mut self, rights: &[(&str, Right)]) {
        self.rights = rights.iter().map(|(prefix, right)| ((*prefix).to_owned(), vec![*right])).collect();
    }
}

fn digest(token: &str) -> Digest {
    Sha256::digest(token.as_bytes()).into()
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(ProblemType::Unauthorized, detail)
        .with_help("send a token: Authorization: Bearer TOKEN")
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold::clock::TestClock;

    use super::*;

    fn with_token(token: &str) -> HeaderMap {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    async fn caller(
        access: &Access,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Caller, Problem> {
        access.caller(headers, certificate, &Env::system()).await
    }

    #[tokio::test]
    async fn on_loopback_only_the_operator_evicts() {
        let access = Access::local("secret");
        let anyone = caller(&access, &HeaderMap::new(), None).await.unwrap();
        assert!(
            anyone.require(Right::Acquire, &name("a")).is_ok()
                && anyone.require(Right::Evict, &name("a")).is_err()
        );
        assert!(
            caller(&access, &with_token("secret"), None)
                .await
                .unwrap()
                .require(Right::Evict, &name("a"))
                .is_ok()
        );
        assert!(caller(&access, &with_token("wrong"), None).await.is_err());
    }

    #[tokio::test]
    async fn a_rule_covers_only_its_prefix_and_its_rights() {
        let digest = digest("t").iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let access = Access::parse(&format!(
            "[[token]]\nprincipal = \"ci\"\nsha256 = \"{digest}\"\n[[rule]]\nprincipal = \"ci\"\nprefix = \"ci/\"\nallow = [\"read\"]"
        ))
        .unwrap();
        assert!(caller(&access, &HeaderMap::new(), None).await.is_err());
        let ci = caller(&access, &with_token("t"), None).await.unwrap();
        assert!(ci.require(Right::Read, &name("ci/a")).is_ok());
        assert!(
            ci.require(Right::Read, &name("prod")).is_err()
                && ci.require(Right::Acquire, &name("ci/a")).is_err()
        );
    }

    #[tokio::test]
    async fn a_certificate_has_the_rights_of_the_principal_it_names() {
        let access = Access::parse(
            "[[certificate]]\nprincipal = \"ci\"\nname = \"ci.example\"\n[[rule]]\nprincipal = \"ci\"\nallow = [\"read\"]",
        )
        .unwrap();
        let valid = |names: &[&str]| ClientCertificate::with_names(names, u64::MAX);
        let with = async |names: &[&str]| caller(&access, &HeaderMap::new(), Some(&valid(names))).await;
        assert!(access.needs_token() && caller(&access, &HeaderMap::new(), None).await.is_err());
        let ci = with(&["other.example", "ci.example"]).await.unwrap();
        assert_eq!(ci.name(), "ci");
        assert!(ci.may(Right::Read, "a") && !ci.may(Right::Acquire, "a"));
        assert!(
            with(&["other.example"]).await.is_err()
                && with(&[]).await.is_err()
                && with(&["ci.example.evil"]).await.is_err()
        );
        let wrong_token = caller(&access, &with_token("wrong"), Some(&valid(&["ci.example"]))).await;
        assert!(wrong_token.is_err(), "a wrong token is not ignored");
    }

    #[tokio::test]
    async fn an_expired_certificate_has_no_rights() {
        let access = Access::parse(
            "[[certificate]]\nprincipal = \"ci\"\nname = \"ci.example\"\n[[rule]]\nprincipal = \"ci\"\nallow = [\"read\"]",
        )
        .unwrap();
        let clock = Arc::new(TestClock::default());
        let env = Env::seeded(clock.clone(), 1);
        let until_us = env.now().wall_us() + 60_000_000;
        let certificate = ClientCertificate::with_names(&["ci.example"], until_us);
        let headers = HeaderMap::new();
        let ci = access.caller(&headers, Some(&certificate), &env).await.unwrap();
        assert_eq!(ci.valid_until_us, Some(until_us), "event streams end");
        assert_eq!(access.browser(None, Some(&certificate), until_us - 1).name(), "ci");
        clock.suspend(Duration::from_secs(61));
        let expired = access.caller(&headers, Some(&certificate), &env).await.unwrap_err();
        assert!(expired.detail().contains("expired"), "{expired:?}");
        assert!(access.browser(None, Some(&certificate), env.now().wall_us()).has_no_rights());
    }

    #[test]
    fn a_caller_without_a_right_to_read_sees_nothing() {
        let rights = vec![("a/".to_owned(), vec![Right::Read]), ("b/".to_owned(), vec![Right::Acquire])];
        let caller = Caller::with_rights("ci", rights);
        assert_eq!(caller.require_readable("").unwrap(), ["a/"]);
        assert_eq!(caller.require_readable("a/x").unwrap(), ["a/x"]);
        assert_eq!(caller.require_readable("b/").unwrap_err().word(), "forbidden");
        assert!(Caller::with_rights("ci", Vec::new()).require_readable("").is_err());
    }
}
