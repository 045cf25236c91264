//! The access file: tokens, certificates, issuers and rules in TOML.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Deserialize;

use super::oidc::{IssuerEntry, Issuers};
use super::seal::from_hex;
use super::{Access, Right, Rule};

/// The reason why an access file cannot be used.
#[derive(Debug)]
pub struct InvalidAccess(String);

impl fmt::Display for InvalidAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidAccess {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<TokenEntry>,
    #[serde(default)]
    certificate: Vec<CertificateEntry>,
    #[serde(default)]
    issuer: Vec<IssuerEntry>,
    #[serde(default)]
    rule: Vec<RuleEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    principal: String,
    sha256: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateEntry {
    principal: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    /// A rule is either for a principal,
    principal: Option<String>,
    /// or for the tokens of an issuer that have these claims.
    issuer: Option<String>,
    claims: Option<BTreeMap<String, String>>,
    #[serde(default)]
    prefix: String,
    allow: Vec<Right>,
}

pub(super) fn parse(text: &str) -> Result<Access, InvalidAccess> {
    // Use only `message`, because the whole error quotes the line, which may contain a digest.
    let file: File = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = 1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count();
        InvalidAccess(format!("line {line}: {}", error.message()))
    })?;
    let mut tokens = HashMap::new();
    for TokenEntry { principal, sha256 } in file.token {
        check(&principal)?;
        let Some(digest) = from_hex(&sha256) else {
            return Err(InvalidAccess(format!(
                "the `sha256` of a token of `{principal}` is not 64 hexadecimal digits: `printf %s \"$token\" | sha256sum` prints them"
            )));
        };
        if digest == super::digest("") {
            return Err(InvalidAccess(format!(
                "the `sha256` of a token of `{principal}` is that of an empty token"
            )));
        }
        if let Some(other) = tokens.insert(digest, principal.clone()) {
            return Err(InvalidAccess(format!(
                "`{other}` and `{principal}` have the same token: give each principal its own"
            )));
        }
    }
    let mut certificates = HashMap::new();
    for CertificateEntry { principal, name } in file.certificate {
        check(&principal)?;
        if name.is_empty() {
            return Err(InvalidAccess(format!("the `name` of a certificate of `{principal}` is empty")));
        }
        if certificates.insert(name.clone(), principal).is_some() {
            return Err(InvalidAccess(format!("the certificate name `{name}` belongs to two principals")));
        }
    }
    let mut issuers = Issuers::new(file.issuer).map_err(InvalidAccess)?;
    let principals: Vec<&String> = tokens.values().chain(certificates.values()).collect();
    if let Some(principal) = principals.iter().find(|principal| issuers.has_principal(principal)) {
        return Err(InvalidAccess(format!(
            "the principal `{principal}` begins with the name of an issuer: rename the principal or the issuer"
        )));
    }
    if principals.is_empty() && issuers.is_empty() {
        return Err(InvalidAccess(
            "the file has no [[token]], [[certificate]] or [[issuer]], so no caller would have access".into(),
        ));
    }
    let mut rules = Vec::new();
    for RuleEntry { principal, issuer, claims, prefix, allow } in file.rule {
        match (principal, issuer) {
            (Some(principal), None) if claims.is_some() => {
                return Err(InvalidAccess(format!(
                    "a rule for the principal `{principal}` has `claims`, which only a rule for an issuer may have"
                )));
            }
            (Some(principal), None) if !principals.contains(&&principal) => {
                return Err(InvalidAccess(format!(
                    "a rule names the principal `{principal}`, which has no token or certificate"
                )));
            }
            (Some(principal), None) => rules.push(Rule { principal, prefix, rights: allow }),
            (None, Some(issuer)) => {
                issuers.add_rule(&issuer, claims, &prefix, allow).map_err(InvalidAccess)?;
            }
            _ => return Err(InvalidAccess("a rule needs either a `principal` or an `issuer`".into())),
        }
    }
    Ok(Access { tokens, certificates, rules, issuers, anonymous: Vec::new(), free_names: false })
}

fn check(principal: &str) -> Result<(), InvalidAccess> {
    if principal.is_empty() || principal.len() > 100 || principal.chars().any(char::is_control) {
        let text = "a principal must have 1 to 100 characters, without control characters";
        return Err(InvalidAccess(text.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_file_is_refused_with_its_reason() {
        let digest = "ab".repeat(32);
        let token = format!("[[token]]\nprincipal = \"a\"\nsha256 = \"{digest}\"\n");
        for (text, wanted) in [
            (String::new(), "no [[token]]"),
            (format!("[[token]]\nprincipal = \"a\"\nsha256 = \"{}\"", &digest[1..]), "64 hexadecimal"),
            (format!("[[token]]\nprincipal = \"\"\nsha256 = \"{digest}\""), "principal"),
            (
                format!(
                    "[[token]]\nprincipal = \"a\"\nsha256 = \"{digest}\"\n[[rule]]\nprincipal = \"b\"\nallow = []"
                ),
                "`b`",
            ),
            (format!("{token}{token}"), "the same token"),
            (
                "[[token]]\nprincipal = \"a\"\nsha256 = \"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\""
                    .to_owned(),
                "empty token",
            ),
            ("[[certificate]]\nprincipal = \"a\"\nname = \"\"".to_owned(), "empty"),
            ("[[certificate]]\nprincipal = \"a\"\nname = \"n\"\n".repeat(2), "two principals"),
            (format!("[[token]]\nprincipal = \"a\"\nsecret = \"{digest}\""), "line 3"),
            ("[[rule]]\nprincipal = \"a\"\nallow = [\"all\"]".to_owned(), "line 3"),
            (format!("{token}[[rule]]\nallow = []"), "a `principal` or an `issuer`"),
            (format!("{token}[[rule]]\nprincipal = \"a\"\nissuer = \"b\"\nallow = []"), "either"),
            (format!("{token}[[rule]]\nprincipal = \"a\"\nclaims = {{}}\nallow = []"), "`claims`"),
            (format!("{token}[[rule]]\nissuer = \"b\"\nclaims = {{}}\nallow = []"), "the issuer `b`"),
            #[cfg(not(feature = "oidc"))]
            (format!("{token}[[issuer]]\nname = \"b\""), "--features oidc"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(wanted) && !error.contains(&digest[1..]), "{error}");
        }
    }
}
