//! What a store URL says, checked by S3's rules.

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::aws::access::{Access, Service};
use crate::stores::objects::{Protocol, checked_object, checked_prefix};
use crate::url::StoreUrl;

pub(super) const SERVICE: Service = Service {
    id: "S3",
    article: "an",
    no_region_help: "add ?region=eu-west-1 to the store URL, or set AWS_REGION; most compatible stores take us-east-1",
};

/// What a store URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) bucket: String,
    /// Without `/` at either end; may be empty.
    pub(super) prefix: String,
    pub(super) access: Access,
    pub(super) path_style: Option<bool>,
    pub(super) protocol: Protocol,
}

impl Location {
    /// Reads `url`, and what it says about `options`.
    pub(super) fn from_url(mut url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let access = Access::take(&mut url, SERVICE)?;
        let bucket = checked_bucket(url.authority().unwrap_or(""))?;
        let prefix = checked_prefix(url.path(), "s3://my-bucket/team/locks")?;
        let path_style = url.take_switch("path_style")?;
        let protocol = Protocol::take(&mut url)?;
        let location = Self { bucket, prefix, access, path_style, protocol };
        url.take_common(options)?;
        url.finish()?;
        Ok(location)
    }

    /// Reads `url` as that of an object: where it lies, and its key there.
    pub(super) fn of_object(mut url: StoreUrl) -> Result<(Self, String), Error> {
        let access = Access::take(&mut url, SERVICE)?;
        let bucket = checked_bucket(url.authority().unwrap_or(""))?;
        let (prefix, key) = checked_object(url.path(), "s3://my-bucket/path/counter.json")?;
        let path_style = url.take_switch("path_style")?;
        url.finish()?;
        // Keys as they are.
        let protocol = Protocol::Existence;
        Ok((Self { bucket, prefix, access, path_style, protocol }, key))
    }
}

fn checked_bucket(bucket: &str) -> Result<String, Error> {
    let ends = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let fine = (3..=63).contains(&bucket.len())
        && bucket.bytes().all(|b| ends(b) || b == b'-' || b == b'.')
        && bucket.bytes().next().is_some_and(ends)
        && bucket.bytes().next_back().is_some_and(ends)
        && !bucket.contains("..");
    if fine {
        return Ok(bucket.to_owned());
    }
    let error = Error::invalid(if bucket.is_empty() {
        "the S3 store URL names no bucket".to_owned()
    } else {
        format!("{bucket:?} is no bucket name")
    });
    Err(error.with_help(
        "an S3 store is s3://bucket/prefix; a bucket name has 3 to 63 lower-case letters, digits, `-` and `.`",
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;

    fn read(url: &str) -> Result<Location, Error> {
        Location::from_url(StoreUrl::parse(url)?, &mut StoreOptions::default())
    }

    #[test]
    fn a_url_says_where_and_how() {
        let mut options = StoreOptions::default();
        let url = "s3://my-bucket/team/locks/?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1:9000&path_style=off\
                   &profile=ci&protocol=existence&store_clock=off&margin=9s";
        let location = Location::from_url(StoreUrl::parse(url).unwrap(), &mut options).unwrap();
        assert_eq!(
            location,
            Location {
                bucket: "my-bucket".into(),
                prefix: "team/locks".into(),
                access: Access {
                    region: Some("eu-west-1".into()),
                    endpoint: Some("http://127.0.0.1:9000".into()),
                    profile: Some("ci".into()),
                },
                path_style: Some(false),
                protocol: Protocol::Existence,
            }
        );
        assert!(!options.store_clock && options.margin == Duration::from_secs(9));
        for url in ["s3://my-bucket", "s3://my-bucket/"] {
            assert_eq!(read(url).unwrap().prefix, "", "{url}");
        }
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("s3:", "no bucket"),
            ("s3:bucket/prefix", "no bucket"),
            ("s3:///prefix", "no bucket"),
            ("s3://My_Bucket", "My_Bucket"),
            ("s3://ab", "\"ab\""),
            ("s3://-abc", "-abc"),
            ("s3://a..b", "a..b"),
            ("s3://arn:aws:s3:eu-west-1:1:accesspoint/x", "no bucket name"),
            ("s3://bucket/a//b", "segment"),
            ("s3://bucket/../b", "segment"),
            ("s3://bucket/a%0Ab", "control"),
            ("s3://bucket?region=", "region"),
            ("s3://bucket?region=Europe/Berlin", "Europe/Berlin"),
            ("s3://bucket?profile=", "profile"),
            ("s3://bucket?path_style=maybe", "path_style"),
            ("s3://bucket?endpoint=localhost:9000", "localhost:9000"),
            ("s3://bucket?endpoint=ftp://localhost", "ftp://localhost"),
            ("s3://bucket?endpoint=http://", "http://"),
            ("s3://bucket?endpoint=http://a%20b", "a b"),
            ("s3://bucket?regoin=x", "regoin"),
            ("s3://bucket?access_key=x", "access_key"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
            // The switch's own text already says what it may be.
            assert!(!error.help().is_empty() || url.contains("path_style"), "{url}: {error:?}");
        }
        let long = format!("s3://bucket/{}", "x".repeat(251));
        assert!(read(&long).unwrap_err().to_string().contains("250"));
        let help = read("s3://bucket?endpoint=localhost:9000").unwrap_err().help().join(" ");
        assert!(help.contains("endpoint=http://localhost:9000"), "{help}");
    }

    #[test]
    fn passwords_are_refused_and_not_repeated() {
        for url in [
            "s3://AKIA:hunter2@bucket",
            "s3://bucket?endpoint=http://u:hunter2@host",
            "s3://bucket?endpoint=u:hunter2@host",
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
