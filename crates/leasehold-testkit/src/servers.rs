//! The real servers that `./test` starts, and where tests find them.

use leasehold::lease::Id;
use leasehold::random::Random;

/// A server that `./test` starts. Its address, and a bucket on it, come as a store URL in an environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Server {
    /// moto, an S3 in Python.
    Moto,
    /// MinIO, an S3 in Go.
    MinIo,
    /// fake-gcs-server, a GCS in Go.
    FakeGcs,
    /// gcp-storage-emulator, a GCS in Python, which ignores preconditions.
    BadGcs,
}

impl Server {
    /// Every S3.
    pub const ALL: &[Self] = &[Self::Moto, Self::MinIo];

    /// The environment variable that holds its store URL.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Moto => "LEASEHOLD_TEST_S3_MOTO",
            Self::MinIo => "LEASEHOLD_TEST_S3_MINIO",
            Self::FakeGcs => "LEASEHOLD_TEST_GCS_FAKE",
            Self::BadGcs => "LEASEHOLD_TEST_BAD_GCS",
        }
    }

    /// Its store URL, as `./test` gave it.
    ///
    /// # Panics
    /// When it was not given: nothing is skipped in silence.
    pub fn url(self) -> String {
        let variable = self.variable();
        std::env::var(variable).unwrap_or_else(|_| {
            panic!(
                "{variable} is not set, so there is no server to test against: run ./test, which starts it \
                 (or set {variable} to a store URL like s3://bucket/prefix?endpoint=http%3A%2F%2F127.0.0.1:9000&region=us-east-1)"
            )
        })
    }

    /// Its store URL with a prefix that nobody else uses.
    ///
    /// # Panics
    /// As [`url`](Self::url).
    pub fn fresh_url(self) -> String {
        below(&self.url(), &Id::random(&Random::from_os()).to_string())
    }

    /// The `host:port` that it listens on.
    ///
    /// # Panics
    /// As [`url`](Self::url), and when the URL names no endpoint.
    pub fn address(self) -> String {
        let mut url = leasehold::url::StoreUrl::parse(&self.url()).unwrap();
        let endpoint = url.take("endpoint").unwrap_or_else(|| panic!("{} has no endpoint", self.variable()));
        endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned()
    }
}

/// `url` with a further path segment before its options.
pub fn below(url: &str, segment: &str) -> String {
    let (place, options) = url.split_once('?').map_or((url, ""), |(place, options)| (place, options));
    format!("{}/{segment}?{options}", place.trim_end_matches('/'))
}

/// `url` with its `endpoint` replaced by `http://address`: the way through a [`Proxy`](crate::proxy::Proxy).
pub fn through(url: &str, address: impl std::fmt::Display) -> String {
    let (place, options) = url.split_once('?').map_or((url, ""), |(place, options)| (place, options));
    let kept = options.split('&').filter(|option| !option.is_empty() && !option.starts_with("endpoint="));
    let endpoint = format!("endpoint=http%3A%2F%2F{address}");
    let options: Vec<&str> = kept.chain([endpoint.as_str()]).collect();
    format!("{place}?{}", options.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_their_options() {
        let url = "s3://bucket/p?endpoint=http%3A%2F%2F127.0.0.1:1&region=x";
        assert_eq!(below(url, "q"), "s3://bucket/p/q?endpoint=http%3A%2F%2F127.0.0.1:1&region=x");
        assert_eq!(through(url, "h:2"), "s3://bucket/p?region=x&endpoint=http%3A%2F%2Fh:2");
    }
}
