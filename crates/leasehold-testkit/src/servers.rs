//! The real servers that `./test` starts, and where tests find them.

use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::url::StoreUrl;

/// A server that `./test` starts. Its address, and a bucket or table on it, come as a store URL in an environment
/// variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Server {
    /// moto, an S3 in Python.
    Moto,
    /// MinIO, an S3 in Go.
    MinIo,
    /// moto's DynamoDB.
    DynamoDbMoto,
    /// moto as it comes, whose DynamoDB checks conditions and then writes: two steps.
    DynamoDbRacy,
    /// DynamoDB Local, Amazon's own.
    DynamoDbLocal,
    /// fake-gcs-server, a GCS in Go.
    FakeGcs,
    /// gcp-storage-emulator, a GCS in Python, which ignores preconditions.
    BadGcs,
    /// An old gofakes3, an S3 in Go, which ignores preconditions.
    S3Ignoring,
    /// s3s-fs, an S3 in Rust, which checks preconditions and then writes: two steps.
    S3Racy,
    /// etcd itself, one member.
    Etcd,
    /// PostgreSQL, which is no store yet: guides protect it with tokens.
    PostgreSql,
}

impl Server {
    /// Every S3.
    pub const S3: &[Self] = &[Self::Moto, Self::MinIo];
    /// Every DynamoDB.
    pub const DYNAMODB: &[Self] = &[Self::DynamoDbMoto, Self::DynamoDbLocal];

    /// The environment variable that holds its store URL.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Moto => "LEASEHOLD_TEST_S3_MOTO",
            Self::MinIo => "LEASEHOLD_TEST_S3_MINIO",
            Self::DynamoDbMoto => "LEASEHOLD_TEST_DYNAMODB_MOTO",
            Self::DynamoDbRacy => "LEASEHOLD_TEST_BAD_DYNAMODB_RACY",
            Self::DynamoDbLocal => "LEASEHOLD_TEST_DYNAMODB_LOCAL",
            Self::FakeGcs => "LEASEHOLD_TEST_GCS_FAKE",
            Self::BadGcs => "LEASEHOLD_TEST_BAD_GCS",
            Self::S3Ignoring => "LEASEHOLD_TEST_BAD_S3_IGNORING",
            Self::S3Racy => "LEASEHOLD_TEST_BAD_S3_RACY",
            Self::Etcd => "LEASEHOLD_TEST_ETCD",
            Self::PostgreSql => "LEASEHOLD_TEST_POSTGRES",
        }
    }

    /// Its store URL, as `./test` gave it.
    ///
    /// # Panics
    /// When it was not given: nothing is skipped in silence.
    pub fn url(self) -> String {
        set_by_test(self.variable(), "server")
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
        let mut url = StoreUrl::parse(&self.url()).unwrap();
        if self == Self::Etcd {
            return url.authority().unwrap().to_owned();
        }
        let endpoint = url.take("endpoint").unwrap_or_else(|| panic!("{} has no endpoint", self.variable()));
        endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned()
    }
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

/// `url` with a further path segment before its options.
pub fn below(url: &str, segment: &str) -> String {
    let (place, options) = url.split_once('?').map_or((url, ""), |(place, options)| (place, options));
    format!("{}/{segment}?{options}", place.trim_end_matches('/')).trim_end_matches('?').to_owned()
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
        assert_eq!(below("etcd://h:1/p/", "q"), "etcd://h:1/p/q");
        assert_eq!(through(url, "h:2"), "s3://bucket/p?region=x&endpoint=http%3A%2F%2Fh:2");
    }
}
