//! Checks against pages of other sites, in a browser on a machine that can reach the server.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, header};

use crate::problem::{Problem, ProblemType};

/// The names under which the server may be addressed.
///
/// A page of another site can send requests to a server on loopback. If the site's name resolves to 127.0.0.1 (DNS
/// rebinding), the browser even lets the page read the responses. Such requests carry the site's name in `Host`.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    allowed: AllowedHosts,
    /// Whether the server uses TLS. If not, a proxy in front of it may use TLS.
    has_tls: bool,
}

/// The names that mean this server.
#[derive(Clone, Debug)]
enum AllowedHosts {
    Names(Vec<String>),
    /// Any name, because callers need a token, which another site does not have.
    Any,
    /// Any IP address, because the name of another site is not an address, and these names.
    Addresses(Vec<String>),
}

impl Hosts {
    /// Returns the names of a server that listens on `address`, and `others`.
    pub(crate) fn of(address: SocketAddr, others: &[String], needs_token: bool, has_tls: bool) -> Self {
        let mut names: Vec<String> = others.iter().map(|name| name.to_ascii_lowercase()).collect();
        if address.ip().is_loopback() {
            names.extend(["127.0.0.1", "localhost", "[::1]"].map(str::to_owned));
            names.push(address.ip().to_string());
        }
        let allowed = match (names.is_empty(), needs_token) {
            (false, _) => AllowedHosts::Names(names),
            (true, true) => AllowedHosts::Any,
            (true, false) => AllowedHosts::Addresses(Vec::new()),
        };
        Self { allowed, has_tls }
    }

    /// Returns the names of a listener that needs no token: `names`, and all IP addresses of this machine.
    pub(crate) fn without_tokens(names: &[String]) -> Self {
        let names = names.iter().map(|name| name.to_ascii_lowercase()).chain(["localhost".to_owned()]);
        Self { allowed: AllowedHosts::Addresses(names.collect()), has_tls: false }
    }

    fn is_allowed(&self, host: &str) -> bool {
        match &self.allowed {
            AllowedHosts::Names(names) => names.iter().any(|name| name == host),
            AllowedHosts::Any => true,
            AllowedHosts::Addresses(names) => is_address(host) || names.iter().any(|name| name == host),
        }
    }

    /// Refuses a request that was addressed to another name, or that a page of another site sent.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = host.to_ascii_lowercase();
        if !self.is_allowed(without_port(&host)) {
            return Err(Problem::new(ProblemType::Misdirected, "the header `Host` names another server")
                .with_help("use the server's address, or start the server with --host NAME"));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let plain = origin.strip_prefix("http://").filter(|_| !self.has_tls);
        let own = origin.strip_prefix("https://").or(plain);
        if own != Some(&*host) {
            return Err(Problem::new(ProblemType::CrossOrigin, "a page of another site sent this request"));
        }
        Ok(())
    }
}

fn is_address(host: &str) -> bool {
    host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(host: &str, origin: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_str(host).unwrap())]);
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        headers
    }

    #[test]
    fn on_loopback_other_names_and_origins_are_refused() {
        let hosts = Hosts::of("127.0.0.1:7420".parse().unwrap(), &[], false, false);
        let check = |host, origin| hosts.check(&headers(host, origin)).is_ok();
        assert!(check("127.0.0.1:7420", None) && check("localhost", None) && check("[::1]:7420", None));
        assert!(
            !check("evil.example:7420", None) && !check("127.0.0.1.evil.example", None) && !check("", None)
        );
        assert!(check("localhost:7420", Some("http://localhost:7420")));
        assert!(!check("localhost:7420", Some("http://evil.example")));
        assert!(!check("localhost:7420", Some("null")) && !check("localhost:7420", Some("http://localhost")));
        let with_tls = Hosts::of("127.0.0.1:7420".parse().unwrap(), &[], false, true);
        let check = |origin| with_tls.check(&headers("localhost:7420", Some(origin))).is_ok();
        assert!(check("https://localhost:7420") && !check("http://localhost:7420"));
    }

    #[test]
    fn without_tokens_addresses_and_listed_names_count() {
        let hosts = Hosts::without_tokens(&["Locks.example".to_owned()]);
        let check = |host| hosts.check(&headers(host, None)).is_ok();
        for host in ["10.0.0.1:7422", "[fd00::1]", "localhost:7422", "locks.example"] {
            assert!(check(host), "{host}");
        }
        // The owner of such a name may make it resolve to this server (DNS rebinding).
        assert!(!check("evil.example:7422") && !check(""));
    }

    #[test]
    fn beyond_loopback_only_listed_names_count() {
        let address = "10.0.0.1:7420".parse().unwrap();
        assert!(Hosts::of(address, &[], true, false).check(&headers("any", None)).is_ok());
        let hosts = Hosts::of(address, &["Locks.example".to_owned()], true, false);
        assert!(hosts.check(&headers("locks.example:443", None)).is_ok());
        assert!(hosts.check(&headers("10.0.0.1", None)).is_err());
    }

    #[test]
    fn beyond_loopback_without_tokens_only_addresses_count() {
        let check = |names: &[String], host| {
            Hosts::of("0.0.0.0:7420".parse().unwrap(), names, false, false)
                .check(&headers(host, None))
                .is_ok()
        };
        assert!(check(&[], "10.0.0.1:7420") && check(&[], "10.0.0.1") && check(&[], "[fd00::1]:7420"));
        // The owner of such a name may make it resolve to this server (DNS rebinding).
        assert!(!check(&[], "evil.example:7420") && !check(&[], "10.0.0.1.evil.example") && !check(&[], ""));
        assert!(check(&["locks.example".to_owned()], "locks.example:7420"));
    }
}
