//! Sessions of the dashboard: a cookie replaces the token.
//!
//! The cookie contains neither the token nor anything from which it can be computed: its expiry, an id, which token it
//! is for, and a seal over all of them. Any server with the same secret accepts it. A session ends when its token is
//! withdrawn. When its user signs out, it ends at this server, which remembers that until it restarts.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use leasehold::lease::Id;
use leasehold::random::Random;
use tokio::sync::Notify;

use super::{Access, Caller, Digest, digest, is_seal, seal};
use crate::tls::ClientCertificate;

/// How long a session lasts.
pub(crate) const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
const COOKIE: &str = "leasehold-session";
/// How many cookies of one name count. Each costs the computation of a seal.
const MAX_COOKIES: usize = 8;
/// How many ended sessions of one token are remembered. If there are more, all its sessions end that expire before the
/// ones that are remembered.
const MAX_ENDED: usize = 64;

/// The sessions of a server.
#[derive(Debug)]
pub(crate) struct Sessions {
    secret: Vec<u8>,
    /// The digests of the tokens, by the text that stands for them in cookies.
    tokens: HashMap<String, Digest>,
    ended: Mutex<HashMap<Digest, Ended>>,
    /// Notified when a session ends.
    ends: Notify,
}

/// A session that has not expired.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    token: Digest,
    /// In seconds since the Unix epoch.
    expires: u64,
    id: String,
}

/// The sessions of one token that have ended early.
#[derive(Debug, Default)]
struct Ended {
    sessions: BTreeSet<(u64, String)>,
    /// Sessions that expire until then have ended too.
    until: u64,
}

impl Sessions {
    pub(crate) fn new(access: &Access, secret: &[u8]) -> Self {
        let named = |digest: &Digest| Some((name(secret, digest)?, *digest));
        let tokens = access.tokens.keys().filter_map(named).collect();
        Self { secret: secret.to_vec(), tokens, ended: Mutex::default(), ends: Notify::new() }
    }

    /// Returns the cookie `NAME=VALUE` for a caller with this `token`, or `None` if the token is unknown.
    pub(crate) fn open(&self, token: &str, now_us: u64) -> Option<String> {
        let digest = digest(token);
        let name = name(&self.secret, &digest).filter(|name| self.tokens.contains_key(name))?;
        let expires = now_us / 1_000_000 + LIFETIME.as_secs();
        let text = format!("{expires}.{}.{name}", Id::random(&Random::from_os()));
        let seal = seal(&self.secret, &parts(&digest, &text))?;
        Some(format!("{COOKIE}={text}.{seal}"))
    }

    /// Returns the cookie that removes a session from the browser.
    pub(crate) fn no_session() -> String {
        format!("{COOKIE}=")
    }

    /// Returns the session of a request, if it is valid.
    pub(crate) fn of(&self, headers: &HeaderMap, now_us: u64) -> Option<Session> {
        cookies(headers, COOKIE).find_map(|value| self.valid(value, now_us))
    }

    /// Returns the session with this `value` of the cookie, if it is valid.
    fn valid(&self, value: &str, now_us: u64) -> Option<Session> {
        let (text, sealed) = value.rsplit_once('.')?;
        let [expires, id, name] = text.split('.').collect::<Vec<_>>().try_into().ok()?;
        let token = *self.tokens.get(name)?;
        let session = Session { token, expires: expires.parse().ok()?, id: id.to_owned() };
        let is_valid = session.expires > now_us / 1_000_000
            && is_seal(&self.secret, &parts(&token, text), sealed)
            && !self.has_ended(&session);
        is_valid.then_some(session)
    }

    fn all_ended(&self) -> MutexGuard<'_, HashMap<Digest, Ended>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self, session: &Session) -> bool {
        self.all_ended().get(&session.token).is_some_and(|ended| {
            session.expires <= ended.until || ended.sessions.contains(&(session.expires, session.id.clone()))
        })
    }

    /// Ends the sessions of a request.
    pub(crate) fn end(&self, headers: &HeaderMap, now_us: u64) {
        for session in cookies(headers, COOKIE).filter_map(|value| self.valid(value, now_us)) {
            let mut ended = self.all_ended();
            let ended = ended.entry(session.token).or_default();
            ended.sessions.retain(|(expires, _)| *expires > now_us / 1_000_000);
            ended.sessions.insert((session.expires, session.id));
            if ended.sessions.len() > MAX_ENDED
                && let Some((expires, _)) = ended.sessions.pop_first()
            {
                ended.until = expires;
            }
        }
        self.ends.notify_waiters();
    }

    /// Completes when `session` ends early. Never, if there is none.
    pub(crate) async fn ended(&self, session: Option<&Session>) {
        let Some(session) = session else { return std::future::pending().await };
        loop {
            let ends = self.ends.notified();
            if self.has_ended(session) {
                return;
            }
            ends.await;
        }
    }
}

impl Access {
    /// Returns the caller of a request from a browser: the caller of its `session`, else of its client `certificate`,
    /// else a caller without a token.
    pub(crate) fn browser(
        &self,
        session: Option<Session>,
        certificate: Option<&ClientCertificate>,
        now_us: u64,
    ) -> Caller {
        let caller = session.and_then(|session| {
            let principal = self.tokens.get(&session.token)?;
            let valid_until_us = Some(session.expires.saturating_mul(1_000_000));
            Some(Caller { valid_until_us, session: Some(session), ..self.caller_of(principal) })
        });
        caller
            .or_else(|| self.caller_by_certificate(certificate, now_us))
            .unwrap_or_else(|| self.anonymous_caller())
    }
}

/// Returns the text that stands for a token in cookies.
fn name(secret: &[u8], digest: &Digest) -> Option<String> {
    let seal = seal(secret, &[b"leasehold session of a token", digest])?;
    seal.get(..16).map(str::to_owned)
}

/// Returns the parts that the seal of a session covers.
fn parts<'a>(digest: &'a Digest, text: &'a str) -> [&'a [u8]; 3] {
    [b"leasehold session", digest, text.as_bytes()]
}

/// Returns the values of the cookies named `wanted`, but not more than eight. There may be several, because other
/// servers on this host can add cookies.
pub(crate) fn cookies<'a>(headers: &'a HeaderMap, wanted: &'static str) -> impl Iterator<Item = &'a str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let values = cookies.flat_map(|value| value.split(';')).filter_map(move |cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == wanted).then_some(value)
    });
    values.take(MAX_COOKIES)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use futures_util::FutureExt as _;

    use super::super::Right;
    use super::*;

    const NOW: u64 = 1_000_000_000_000;

    fn sessions(token: &str, secret: &[u8]) -> Sessions {
        Sessions::new(&Access::local(token), secret)
    }

    fn with(cookie: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(cookie).unwrap())])
    }

    fn is_valid(sessions: &Sessions, cookie: &str, now_us: u64) -> bool {
        sessions.of(&with(cookie), now_us).is_some()
    }

    #[test]
    fn a_session_has_the_rights_of_its_token_until_it_expires() {
        let (access, ours) = (Access::local("a token"), sessions("a token", b"secret"));
        let cookie = ours.open("a token", NOW).unwrap();
        assert!(!cookie.contains("a token"));
        let session = ours.of(&with(&format!("leasehold-session=1.ff; x=y; {cookie}")), NOW);
        let lasts = u64::try_from(LIFETIME.as_micros()).unwrap();
        let caller = access.browser(session, None, NOW);
        assert!(caller.may(Right::Evict, "a"));
        // Event streams end at this time.
        assert_eq!(caller.valid_until_us, Some(NOW + lasts));
        assert!(!access.browser(None, None, NOW).may(Right::Evict, "a"));
        assert!(is_valid(&ours, &cookie, NOW + lasts - 1) && !is_valid(&ours, &cookie, NOW + lasts));
        assert!(is_valid(&sessions("a token", b"secret"), &cookie, NOW), "another server");
        assert!(!is_valid(&sessions("a token", b"another secret"), &cookie, NOW));
        assert!(!is_valid(&sessions("a new token", b"secret"), &cookie, NOW), "its token was withdrawn");
        assert!(ours.open("a wrong token", NOW).is_none());
    }

    #[test]
    fn a_forged_session_has_no_rights() {
        let ours = sessions("a token", b"secret");
        let (cookie, other) = (ours.open("a token", NOW).unwrap(), ours.open("a token", NOW).unwrap());
        assert!(is_valid(&ours, &cookie, NOW));
        let value = |cookie: &str| cookie.split_once('=').unwrap().1.to_owned();
        let parts = |value: &str| value.split('.').map(str::to_owned).collect::<Vec<_>>();
        let (value, other) = (value(&cookie), parts(&value(&other)));
        let [expires, id, name, seal] = parts(&value).try_into().unwrap();
        let later = expires.parse::<u64>().unwrap() + 1;
        for forged in [
            format!("{later}.{id}.{name}.{seal}"),
            format!("{expires}.{}.{name}.{seal}", other[1]),
            format!("{expires}.{id}.{name}."),
            format!("{expires}.{id}.{name}.{}", &seal[..62]),
            format!("{expires}.{id}.{seal}"),
            format!("{value}.{seal}"),
            seal,
            "é.é".to_owned(),
        ] {
            assert!(!is_valid(&ours, &format!("leasehold-session={forged}"), NOW), "{forged}");
        }
    }

    #[test]
    fn a_session_ends_when_its_user_signs_out() {
        let ours = sessions("a token", b"secret");
        let (cookie, other) = (ours.open("a token", NOW).unwrap(), ours.open("a token", NOW).unwrap());
        let session = ours.of(&with(&cookie), NOW);
        let mut ended = Box::pin(ours.ended(session.as_ref()));
        assert!(ended.as_mut().now_or_never().is_none());
        ours.end(&with("leasehold-session=1.2.3.4"), NOW);
        ours.end(&with(&cookie), NOW);
        assert!(!is_valid(&ours, &cookie, NOW) && is_valid(&ours, &other, NOW));
        assert!(ended.now_or_never().is_some());
        assert!(ours.ended(None).now_or_never().is_none());
    }

    #[test]
    fn ended_sessions_need_a_bounded_memory() {
        let ours = sessions("a token", b"secret");
        let second = 1_000_000;
        let open = |at: usize| ours.open("a token", NOW + u64::try_from(at).unwrap() * second).unwrap();
        let cookies: Vec<_> = (0..3 * MAX_ENDED).map(open).collect();
        let later = open(4 * MAX_ENDED);
        for cookie in &cookies {
            ours.end(&with(cookie), NOW);
        }
        let remembered = || ours.all_ended().values().map(|ended| ended.sessions.len()).sum::<usize>();
        assert_eq!(remembered(), MAX_ENDED);
        assert!(cookies.iter().all(|cookie| !is_valid(&ours, cookie, NOW)));
        assert!(is_valid(&ours, &later, NOW));
        // Those that have expired are forgotten.
        ours.end(&with(&later), NOW + u64::try_from(LIFETIME.as_micros()).unwrap() + 200 * second);
        assert_eq!(remembered(), 1);
    }

    #[test]
    fn only_a_few_cookies_of_a_name_count() {
        let cookies_of = |number| cookies(&with(&"a=1; ".repeat(number)), "a").count();
        assert_eq!((cookies_of(3), cookies_of(2_100)), (3, MAX_COOKIES));
    }
}
