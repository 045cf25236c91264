//! The real servers that `./test` starts, and where tests find them. The files of the [stores](crate::stores) say which
//! there are.

use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::url::StoreUrl;

/// A server that `./test` starts. Its address, and a bucket or table on it, come as a store URL in an environment
/// variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    pub(crate) variable: &'static str,
}

impl Server {
    /// The environment variable that holds its store URL.
    pub const fn variable(self) -> &'static str {
        self.variable
    }

    /// Its store URL, as `./test` gave it.
    ///
    /// # Panics
    /// When it was not given: nothing is skipped in silence.
    pub fn url(self) -> String {
        set_by_test(self.variable, "server")
    }

    /// Its store URL with a prefix that nobody else uses.
    ///
    /// # Panics
    /// As [`url`](Self::url).
    pub fn fresh_url(self) -> String {
        below(&self.url(), &unique())
    }

    /// The `host:port` that it listens on.
    ///
    /// # Panics
    /// As [`url`](Self::url), and when the URL names no host.
    pub fn address(self) -> String {
        let mut url = parsed(&self.url());
        match url.take("endpoint") {
            Some(endpoint) => endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned(),
            None => url.authority().unwrap_or_else(|| panic!("{} names no host", self.variable)).to_owned(),
        }
    }
}

/// A name that nobody else uses.
pub(crate) fn unique() -> String {
    Id::random(&Random::from_os()).to_string()
}

/// What `./test` says in the environment variable `variable` about a `thing` that it has made ready.
///
/// # Panics
/// When it was not said.
pub(crate) fn set_by_test(variable: &str, thing: &str) -> String {
    std::env::var(variable).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| {
        panic!(
            "{variable} is not set, so there is no {thing} to test with: run ./test, or start one test with \
             ./test --with-servers cargo test ..."
        )
    })
}

/// The store URL, read.
///
/// # Panics
/// When it is none.
pub fn parsed(url: &str) -> StoreUrl {
    StoreUrl::parse(url).expect("a store URL")
}

/// `url` with a further path segment before its options.
pub fn below(url: &str, segment: &str) -> String {
    let (place, options) = url.split_once('?').unwrap_or((url, ""));
    format!("{}/{segment}?{options}", place.trim_end_matches('/')).trim_end_matches('?').to_owned()
}

/// `url` with a further option.
pub fn with_option(url: &str, option: &str) -> String {
    format!("{url}{}{option}", if url.contains('?') { '&' } else { '?' })
}

/// `url` with its `endpoint` replaced by `http://address`: the way through a [`Proxy`](crate::proxy::Proxy).
pub fn through(url: &str, address: impl std::fmt::Display) -> String {
    let (place, options) = url.split_once('?').unwrap_or((url, ""));
    let kept = options.split('&').filter(|option| !option.is_empty() && !option.starts_with("endpoint="));
    let endpoint = endpoint(address);
    let options: Vec<&str> = kept.chain([endpoint.as_str()]).collect();
    format!("{place}?{}", options.join("&"))
}

/// The option of a store URL that says where its server is.
pub(crate) fn endpoint(address: impl std::fmt::Display) -> String {
    format!("endpoint=http%3A%2F%2F{address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_their_options() {
        let url = "s3://bucket/p?endpoint=http%3A%2F%2F127.0.0.1:1&region=x";
        assert_eq!(below(url, "q"), "s3://bucket/p/q?endpoint=http%3A%2F%2F127.0.0.1:1&region=x");
        assert_eq!(below("etcd://h:1/p/", "q"), "etcd://h:1/p/q");
        assert_eq!(through(url, "h:2"), "s3://bucket/p?region=x&endpoint=http%3A%2F%2Fh:2");
        assert_eq!(with_option(url, "margin=0s"), format!("{url}&margin=0s"));
        assert_eq!(with_option("sqlite:x", "a=b"), "sqlite:x?a=b");
    }
}
