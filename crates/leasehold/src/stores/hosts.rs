//! The parts that the URLs of servers have in common: the hosts, the login and TLS.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

#[cfg(feature = "_columns")]
use futures_util::stream::{FuturesUnordered, StreamExt};

#[cfg(feature = "_columns")]
use crate::clock::timeout;
#[cfg(feature = "_columns")]
use crate::env::Env;
use crate::error::Error;
#[cfg(feature = "_tls")]
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::password::Password;
use crate::url::{CheckedUrl, is_host_name, is_this_machine};

/// The time limit of a connection to one server, including the TLS handshake, the login and a first response. The system
/// sends a lost SYN again after one second.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_millis(2_500);

/// The time limit for each server when all are asked at the same time.
#[cfg(feature = "_columns")]
const HOST_LIMIT: Duration = Duration::from_secs(3);

/// How much of a server's message is shown, in characters.
#[cfg(feature = "_tls")]
pub(super) const MAX_SHOWN: usize = 300;

/// The host and the port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host {
    /// A name or an IP address, without brackets.
    pub(super) name: String,
    pub(super) port: u16,
}

impl Host {
    /// Parses `name`, `name:port`, `[address]` or `[address]:port`. `port` is the default port. Returns `None` if
    /// `text` has another form.
    pub(super) fn parse(text: &str, port: u16) -> Option<Self> {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !text.ends_with(']') => (name, port.parse().ok().filter(|port| *port > 0)?),
            _ => (text, port),
        };
        let name = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(address) => address.parse::<Ipv6Addr>().is_ok().then_some(address)?,
            None => is_host_name(name).then_some(name)?,
        };
        Some(Self { name: name.to_owned(), port })
    }

    /// Returns whether the host is this machine, so that requests to it do not leave the machine.
    pub(super) fn is_this_machine(&self) -> bool {
        is_this_machine(&self.name)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// The TLS options of a store URL: paths of PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tls {
    /// The authority that signs the servers' certificates. If it is `None`, the authorities that the machine trusts are
    /// used.
    pub(super) authority: Option<String>,
    /// The client certificate and its private key.
    pub(super) identity: Option<(String, String)>,
}

/// The servers that a store URL names, with the login for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Servers {
    pub(super) hosts: Vec<Host>,
    pub(super) user: Option<String>,
    pub(super) password: Option<Password>,
    /// If `None`, connections are not encrypted.
    pub(super) tls: Option<Tls>,
    /// Whether secrets may be sent to other machines without TLS.
    plaintext: bool,
}

impl Servers {
    /// Reads the servers from `url`.
    pub(super) fn of(url: &CheckedUrl, port: u16) -> Result<Self, Error> {
        let hosts = url.url.authority().unwrap_or("").split(',').map(|text| {
            Host::parse(text, port).ok_or_else(|| {
                let what = format!("the host and port of a `{}:` server", url.url.scheme());
                let message = match text {
                    "" => "the store URL names no host".to_owned(),
                    _ => format!("{} is not {what}", shown(text)),
                };
                Error::invalid(message).with_help(url.form())
            })
        });
        Ok(Self {
            hosts: hosts.collect::<Result<_, _>>()?,
            user: url.url.user().filter(|user| !user.is_empty()).map(str::to_owned),
            password: Password::of(url)?,
            tls: tls(url)?,
            plaintext: url.switch("plaintext"),
        })
    }

    /// Returns whether all hosts are this machine.
    pub(super) fn are_this_machine(&self) -> bool {
        self.hosts.iter().all(Host::is_this_machine)
    }

    /// Checks that others cannot read the login in transit. `has_login` is whether one is sent, and `stays_here` is
    /// whether it is sent only to this machine.
    pub(super) fn check_secrecy(&self, has_login: bool, stays_here: bool) -> Result<(), Error> {
        if !has_login || stays_here || self.tls.is_some() || self.plaintext {
            return Ok(());
        }
        Err(Error::invalid("the login would be sent unencrypted to another machine").with_help(
            "use tls=on (and ca=FILE for a private authority), or, in a network that you trust, add plaintext=on",
        ))
    }
}

/// Reads the TLS options. TLS is on with `tls=on`, or if a file or a name for it is given.
fn tls(url: &CheckedUrl) -> Result<Option<Tls>, Error> {
    let (authority, certificate, key) = (url.text("ca"), url.text("cert"), url.text("key"));
    let identity = match (certificate, key) {
        (None, None) => None,
        // One file may contain both.
        (Some(certificate), None) => Some((certificate.clone(), certificate)),
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, Some(_)) => {
            return Err(Error::invalid("the option `key` needs the option `cert`")
                .with_help("name the certificate that the key belongs to: cert=FILE&key=FILE"));
        }
    };
    let wanted = authority.is_some() || identity.is_some() || url.url.option("server_name").is_some();
    match url.maybe("tls") {
        Some(false) if wanted => Err(Error::invalid("tls=off, but there are TLS options")
            .with_help("leave out `tls`, or the other TLS options")),
        Some(true) => Ok(Some(Tls { authority, identity })),
        None if wanted => Ok(Some(Tls { authority, identity })),
        Some(false) | None => Ok(None),
    }
}

/// Returns the text with which an error names a host that cannot be parsed. If the `@` after a password is missing, the
/// password looks like a part of the host. So text that may be a login is not shown.
fn shown(text: &str) -> String {
    let may_be_login = text
        .rsplit_once(':')
        .is_some_and(|(name, port)| name.contains(':') || !port.bytes().all(|byte| byte.is_ascii_digit()));
    if may_be_login && !text.starts_with('[') {
        "the part before the path".to_owned()
    } else {
        format!("{text:?}")
    }
}

/// Returns what `open` returns for the first host for which it succeeds.
#[cfg(feature = "_tls")]
pub(super) async fn first_of<'a, T, F>(
    hosts: &'a [Host],
    open: impl Fn(&'a Host) -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut failed = Vec::new();
    for host in hosts {
        match open(host).await {
            Ok(opened) => return Ok(opened),
            Err(error) => failed.push(error),
        }
    }
    Err(none_of(failed))
}

/// Returns what `ask` returns for the first host that is the primary, or else for another one. Asks all hosts at the same
/// time, so that one that does not respond delays no other. `store` is the name of the store.
#[cfg(feature = "_columns")]
pub(super) async fn primary_of<'a, T, F>(
    hosts: &'a [Host],
    (store, env): (&str, &Env),
    ask: impl Fn(&'a Host) -> F,
    is_primary: impl Fn(&T) -> bool,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let (mut other, mut failed) = (None, Vec::new());
    let asked = hosts.iter().map(|host| {
        let asked = ask(host);
        async move {
            timeout(&*env.clock, HOST_LIMIT, asked).await.unwrap_or_else(|| {
                let message = format!("{store} at {host} did not respond within {HOST_LIMIT:.0?}");
                Err(Fault::unavailable(message).not_applied())
            })
        }
    });
    let mut asked: FuturesUnordered<_> = asked.collect();
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(answer) if is_primary(&answer) => return Ok(answer),
            Ok(answer) => other = Some(answer),
            Err(error) => failed.push(error),
        }
    }
    other.ok_or_else(|| none_of(failed))
}

/// Returns the error to report if none of the servers could be used. It is permanent only if the error of every server
/// is permanent.
#[cfg(feature = "_tls")]
pub(super) fn none_of(failed: Vec<StoreError>) -> StoreError {
    let final_kind = failed.iter().all(|error| !error.is_transient());
    let kind =
        failed.first().filter(|_| final_kind).map_or(ErrorKind::Unavailable, |error| error.fault().kind);
    let messages: Vec<_> = failed.iter().map(ToString::to_string).collect();
    let is_full = failed.iter().any(|error| error.fault().is_full());
    let message = messages.join("; ");
    let fault = if is_full { Fault::full(message) } else { Fault::new(kind, message) };
    match failed.into_iter().find_map(|error| error.fault().help.clone()) {
        Some(help) => fault.with_help(help).not_applied(),
        None => fault.not_applied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    fn servers(url: &str) -> Result<Servers, Error> {
        Servers::of(&StoreUrl::parse(url)?.checked(&mut StoreOptions::default())?, 7)
    }

    #[test]
    fn a_url_names_hosts_a_login_and_files() {
        let servers = servers("etcd://al%40ice:p%2Fw@h1:70,h2,[::1]:9/x?ca=/ca&cert=/me").unwrap();
        let hosts: Vec<_> = servers.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["h1:70", "h2:7", "[::1]:9"]);
        assert_eq!(
            (servers.user.as_deref(), &*servers.password.unwrap().read().unwrap()),
            (Some("al@ice"), "p/w")
        );
        let identity = Some(("/me".into(), "/me".into())); // one file may hold both
        assert_eq!(servers.tls, Some(Tls { authority: Some("/ca".into()), identity }));
    }

    #[test]
    fn a_bad_host_is_named_unless_it_may_be_a_login() {
        for (url, named) in [
            ("etcd:///p", "no host"),
            ("etcd://h,,i", "no host"),
            ("etcd://h:0", "h:0"),
            ("etcd://h:99999", "h:99999"),
            ("etcd://a b", "a b"),
            ("etcd://[::g]:1", "::g"),
            ("etcd://u:hunter2h", "the part before the path"),
            ("etcd://u:hunter2h:1", "the part before the path"),
            ("etcd://u:hunter2@h:x", "the part before the path"),
        ] {
            let error = servers(url).unwrap_err();
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{url}: {error:?}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn tls_is_on_with_any_of_its_options() {
        for (options, is_on) in
            [("", false), ("tls=off", false), ("tls=on", true), ("ca=/c", true), ("server_name=x", true)]
        {
            assert_eq!(servers(&format!("etcd://h?{options}")).unwrap().tls.is_some(), is_on, "{options}");
        }
        for (options, named) in
            [("tls=off&ca=/c", "tls=off"), ("tls=off&server_name=x", "tls=off"), ("key=/k", "`cert`")]
        {
            let error = servers(&format!("etcd://h?{options}")).unwrap_err();
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{options}: {error:?}");
        }
    }

    #[test]
    fn a_login_is_not_sent_in_the_clear() {
        let check = |url: &str| {
            let servers = servers(url).unwrap();
            servers.check_secrecy(servers.user.is_some(), servers.are_this_machine())
        };
        for hosts in ["h", "10.0.0.1:1", "localhost,h", "127.0.0.1.example.com", "[2001:db8::1]:1"] {
            for option in ["", "plaintext=off"] {
                let error = check(&format!("etcd://u:hunter2@{hosts}/?{option}")).unwrap_err();
                assert!(error.to_string().contains("unencrypted"), "{hosts}: {error:?}");
                assert!(error.help()[0].contains("plaintext=on"), "{error:?}");
                assert!(!format!("{error:?}").contains("hunter2"));
            }
            for allowed in ["tls=on", "plaintext=on"] {
                check(&format!("etcd://u:hunter2@{hosts}/?{allowed}")).unwrap();
            }
            check(&format!("etcd://{hosts}")).unwrap();
        }
        for hosts in ["localhost", "LOCALHOST:1", "127.0.0.1:1,[::1]:2,127.8.0.1"] {
            check(&format!("etcd://u:hunter2@{hosts}")).unwrap();
        }
    }

    #[cfg(feature = "_columns")]
    #[tokio::test(start_paused = true)]
    async fn the_primary_is_found_although_another_host_does_not_respond() {
        let env = Env::seeded(std::sync::Arc::new(crate::clock::TestClock::default()), 1);
        let hosts = ["silent", "replica", "primary", "refuses"].map(|name| Host::parse(name, 1).unwrap());
        let ask = |host: &Host| {
            let (name, env) = (host.name.clone(), env.clone());
            async move {
                match name.as_str() {
                    "silent" => env.sleep(Duration::from_secs(60)).await,
                    "refuses" => return Err(Fault::new(ErrorKind::Denied, "no").not_applied()),
                    _ => {}
                }
                Ok(name)
            }
        };
        let found = async |hosts: &[Host]| {
            let began = env.now();
            let found = primary_of(hosts, ("X", &env), ask, |name| name == "primary").await;
            (found, env.now().longest_since(began))
        };
        let (name, took) = found(&hosts).await;
        assert_eq!((name.unwrap().as_str(), took), ("primary", Duration::ZERO));
        assert_eq!(found(&hosts[..2]).await.0.unwrap(), "replica");
        let (error, took) = found(&hosts[..1]).await;
        let error = error.unwrap_err();
        assert_eq!((error.to_string().contains("X at silent:1"), took), (true, HOST_LIMIT), "{error:?}");
        let used = first_of(&[hosts[3].clone(), hosts[1].clone(), hosts[2].clone()], ask).await;
        assert_eq!(used.unwrap(), "replica", "in the order of the URL");
    }
}
