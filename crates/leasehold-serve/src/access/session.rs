//! Sessions of the dashboard: a cookie replaces the token.
//!
//! The cookie contains neither the token nor anything from which it can be computed. It contains only its expiry, and a
//! seal over the expiry and the digest of the token. Any server with the same secret accepts it. A session ends when
//! its token is withdrawn.

use std::time::Duration;

use axum::http::{HeaderMap, header};

use super::{Access, Caller, Digest, digest, is_seal, seal};
use crate::tls::CertificateNames;

/// How long a session lasts.
pub(crate) const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
const COOKIE: &str = "leasehold-session";

impl Access {
    /// Returns the cookie `NAME=VALUE` for a caller with this `token`, or `None` if the token is unknown.
    pub(crate) fn open_session(&self, token: &str, secret: &[u8], now_us: u64) -> Option<String> {
        let digest = digest(token);
        self.tokens.get(&digest)?;
        let expires = now_us / 1_000_000 + LIFETIME.as_secs();
        let seal = seal(secret, &parts(&digest, &expires.to_le_bytes()))?;
        Some(format!("{COOKIE}={expires}.{seal}"))
    }

    /// Returns the cookie that ends a session in the browser.
    pub(crate) fn no_session() -> String {
        format!("{COOKIE}=")
    }

    /// Returns the caller of a request from a browser: the caller of its session, else of its client `certificate`,
    /// else a caller without a token.
    pub(crate) fn browser(
        &self,
        headers: &HeaderMap,
        certificate: Option<&CertificateNames>,
        secret: &[u8],
        now_us: u64,
    ) -> Caller {
        let session =
            cookies(headers, COOKIE).find_map(|value| self.caller_of_session(value, secret, now_us));
        session.or_else(|| self.caller_by_certificate(certificate)).unwrap_or_else(|| self.anonymous_caller())
    }

    /// Returns the caller of the session with this `value` of the cookie, if it is valid.
    fn caller_of_session(&self, value: &str, secret: &[u8], now_us: u64) -> Option<Caller> {
        let (expires, sealed) = value.split_once('.')?;
        let expires: u64 = expires.parse().ok()?;
        if expires <= now_us / 1_000_000 {
            return None;
        }
        let is_of = |digest: &Digest| is_seal(secret, &parts(digest, &expires.to_le_bytes()), sealed);
        let (_, principal) = self.tokens.iter().find(|(digest, _)| is_of(digest))?;
        let valid_until_us = Some(expires.saturating_mul(1_000_000));
        Some(Caller { valid_until_us, ..self.caller_of(principal) })
    }
}

/// Returns the parts that the seal of a session covers.
fn parts<'a>(digest: &'a Digest, expires: &'a [u8]) -> [&'a [u8]; 3] {
    [b"leasehold session", digest, expires]
}

/// Returns the values of the cookies named `wanted`. There may be several, because other servers on this host can add
/// cookies.
pub(crate) fn cookies<'a>(headers: &'a HeaderMap, wanted: &'static str) -> impl Iterator<Item = &'a str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|value| value.split(';')).filter_map(move |cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == wanted).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::super::Right;
    use super::*;

    const NOW: u64 = 1_000_000_000_000;

    fn may_evict(access: &Access, cookie: &str, secret: &[u8], now_us: u64) -> bool {
        let headers = HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(cookie).unwrap())]);
        access.browser(&headers, None, secret, now_us).may(Right::Evict, "a")
    }

    #[test]
    fn a_session_has_the_rights_of_its_token_until_it_expires() {
        let access = Access::local("a token");
        let cookie = access.open_session("a token", b"secret", NOW).unwrap();
        assert!(!cookie.contains("a token"));
        assert!(may_evict(&access, &format!("leasehold-session=1.ff; x=y; {cookie}"), b"secret", NOW));
        let lasts = u64::try_from(LIFETIME.as_micros()).unwrap();
        assert!(!may_evict(&access, &cookie, b"secret", NOW + lasts));
        assert!(!may_evict(&access, &cookie, b"another secret", NOW));
        assert!(
            !may_evict(&Access::local("a new token"), &cookie, b"secret", NOW),
            "its token was withdrawn"
        );
        assert!(access.open_session("a wrong token", b"secret", NOW).is_none());
    }

    #[test]
    fn an_event_stream_ends_with_its_session() {
        let access = Access::local("a token");
        let cookie = access.open_session("a token", b"secret", NOW).unwrap();
        let headers = HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(&cookie).unwrap())]);
        let until = |headers: &HeaderMap| access.browser(headers, None, b"secret", NOW + 1).valid_until_us;
        // Streams end at this time.
        assert_eq!(until(&headers), Some(NOW + u64::try_from(LIFETIME.as_micros()).unwrap()));
        assert_eq!(until(&HeaderMap::new()), None);
    }

    #[test]
    fn a_forged_session_has_no_rights() {
        let access = Access::local("a token");
        let cookie = access.open_session("a token", b"secret", NOW).unwrap();
        let (expires, seal) = cookie.split_once('=').unwrap().1.split_once('.').unwrap();
        let later = expires.parse::<u64>().unwrap() + 1;
        for forged in [
            format!("{later}.{seal}"),
            format!("{expires}."),
            format!("{expires}.{}", &seal[..62]),
            seal.to_owned(),
            "é.é".to_owned(),
        ] {
            assert!(!may_evict(&access, &format!("leasehold-session={forged}"), b"secret", NOW), "{forged}");
        }
    }
}
