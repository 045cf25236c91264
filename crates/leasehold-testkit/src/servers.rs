//! The real servers that `./test` starts, and how tests find them. The files of the [stores](crate::stores) define
//! them.

use std::thread;

use leasehold::Locker;
use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::url::StoreUrl;

/// A server that `./test` starts. An environment variable holds its store URL, which names the address and a bucket
/// or table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    pub(crate) variable: &'static str,
}

impl Server {
    /// Returns the environment variable that holds the store URL.
    pub const fn variable(self) -> &'static str {
        self.variable
    }

    /// Returns the store URL that `./test` has set.
    ///
    /// # Panics
    /// When `./test` has not set it. Tests are never skipped silently.
    pub fn url(self) -> String {
        set_by_test(self.variable, "server")
    }

    /// Returns the store URL with a unique prefix.
    ///
    /// # Panics
    /// As [`url`](Self::url).
    pub fn fresh_url(self) -> String {
        below(&self.url(), &unique())
    }

    /// Returns the `host:port` that the server listens on.
    ///
    /// # Panics
    /// As [`url`](Self::url), and when the URL names no host.
    pub fn address(self) -> String {
        let url = parsed(&self.url());
        match url.option("endpoint") {
            Some(endpoint) => endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned(),
            None => url.authority().unwrap_or_else(|| panic!("{} names no host", self.variable)).to_owned(),
        }
    }
}

/// Returns a unique name.
pub(crate) fn unique() -> String {
    Id::random(&Random::from_os()).to_string()
}

/// Returns the value that `./test` has set in the environment variable `variable`. `thing` names its purpose in the
/// panic message.
///
/// # Panics
/// When the variable is not set.
pub(crate) fn set_by_test(variable: &str, thing: &str) -> String {
    std::env::var(variable).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| {
        panic!(
            "{variable} is not set, so there is no {thing} to test with: run ./test --all, or start one test with \
             ./test --with-servers cargo test ..."
        )
    })
}

/// Parses a store URL.
///
/// # Panics
/// When the URL is invalid.
pub fn parsed(url: &str) -> StoreUrl {
    StoreUrl::parse(url).expect("a store URL")
}

/// Appends a path segment to the path of `url`, before its options.
pub fn below(url: &str, segment: &str) -> String {
    let (place, options) = url.split_once('?').unwrap_or((url, ""));
    format!("{}/{segment}?{options}", place.trim_end_matches('/')).trim_end_matches('?').to_owned()
}

/// Creates the table that `url` names.
///
/// # Panics
/// When the table cannot be created.
pub fn make_table(url: &str) {
    // A separate thread, because the caller may be inside a runtime.
    let url = url.to_owned();
    let made = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { Locker::open(&url).await.unwrap().init().await.unwrap() });
    });
    made.join().expect("the table was not made");
}

/// Returns the table that `url` names.
pub fn table(url: &str) -> String {
    parsed(url).option("table").expect("the store URL names a table").to_owned()
}

/// Appends an option to `url`.
pub fn with_option(url: &str, option: &str) -> String {
    format!("{url}{}{option}", if url.contains('?') { '&' } else { '?' })
}

/// Replaces the `endpoint` of `url` with `http://address`, so that requests go through a
/// [`Proxy`](crate::proxy::Proxy). Without that option, replaces the host.
///
/// # Panics
/// If the URL has neither.
pub fn through(url: &str, address: impl std::fmt::Display) -> String {
    let (place, options) = url.split_once('?').unwrap_or((url, ""));
    if !options.split('&').any(|option| option.starts_with("endpoint=")) {
        let parsed = parsed(url);
        let server = parsed.authority().expect("a URL with an endpoint or a host");
        return url.replacen(server, &address.to_string(), 1);
    }
    let kept = options.split('&').filter(|option| !option.is_empty() && !option.starts_with("endpoint="));
    let endpoint = endpoint(address);
    let options: Vec<&str> = kept.chain([endpoint.as_str()]).collect();
    format!("{place}?{}", options.join("&"))
}

/// Returns the `endpoint` option of a store URL.
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
        assert_eq!(through("http://h:1?token_file=/t", "h:2"), "http://h:2?token_file=/t");
        assert_eq!(with_option(url, "margin=0s"), format!("{url}&margin=0s"));
        assert_eq!(with_option("sqlite:x", "a=b"), "sqlite:x?a=b");
    }
}
