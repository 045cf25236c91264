//! Parses the settings in a store URL and checks them by S3's rules.

use std::net::IpAddr;

use super::settings::Settings;
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::aws::access::{Access, Service, arn};
use crate::stores::buckets::{MAX_PREFIX_BYTES, Protocol, checked_object};
use crate::url::{CheckedUrl, StoreUrl};

pub(super) const SERVICE: Service = Service {
    id: "S3",
    no_region_help: "add ?region=eu-west-1 to the store URL, or set AWS_REGION; most compatible stores accept \
        us-east-1",
};

/// The bucket to which requests go.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) bucket: String,
    pub(super) region: String,
    /// `None` for Amazon's own endpoint.
    pub(super) endpoint: Option<String>,
    /// The address of the endpoint's name to connect to. `None` leaves the choice to the client.
    pub(super) address: Option<IpAddr>,
}

impl Target {
    /// Whether the bucket is known to honour preconditions. Amazon documents this for general purpose buckets. It is
    /// not assumed for other stores, or for other kinds of names on Amazon's own endpoints: access points by ARN or
    /// alias (`name-s3alias`, and `name-ext-s3alias` of a file system), Object Lambda (`name--ol-s3`), Outposts
    /// (`name--op-s3`), directory buckets (`name--x-s3`) and kinds that do not exist yet.
    pub(super) fn is_trusted(&self) -> bool {
        let plain =
            self.bucket.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
        let special = self.bucket.rsplit_once("--").is_some_and(|(_, kind)| kind.ends_with("-s3"))
            || self.bucket.ends_with("-s3alias")
            || self.bucket.ends_with(".mrap");
        self.endpoint.is_none() && plain && !special
    }

    /// Whether the bucket is a directory bucket of S3 Express, or an access point of one.
    pub(super) fn is_directory(&self) -> bool {
        self.bucket.ends_with("--x-s3") || self.bucket.ends_with("--xa-s3")
    }

    /// Returns the ARN of the bucket or the access point, for a policy.
    pub(super) fn arn(&self) -> String {
        let Self { bucket, region, .. } = self;
        match bucket.starts_with("arn:") {
            true => bucket.clone(),
            false if bucket.ends_with("--xa-s3") => {
                format!("arn:aws:s3express:{region}:*:accesspoint/{bucket}")
            }
            false if self.is_directory() => format!("arn:aws:s3express:{region}:*:bucket/{bucket}"),
            false => format!("arn:aws:s3:::{bucket}"),
        }
    }

    /// Returns the ARN of the object `key`, or of all objects that match the pattern `key`, for a policy.
    pub(super) fn arn_of(&self, key: &str) -> String {
        let objects = if self.bucket.starts_with("arn:") { "/object" } else { "" };
        format!("{}{objects}/{key}", self.arn())
    }

    /// Returns the endpoint and the bucket. The text is the same for each address.
    pub(super) fn identity(&self) -> String {
        format!("{}/{}", self.name().trim_end_matches('/'), self.bucket)
    }

    fn name(&self) -> String {
        self.endpoint.clone().unwrap_or_else(|| format!("Amazon S3 in {}", self.region))
    }

    /// Returns the name of the endpoint, with the address that requests connect to.
    pub(super) fn endpoint(&self) -> String {
        match self.address {
            Some(address) => format!("{} at {address}", self.name()),
            None => self.name(),
        }
    }
}

/// The settings in a store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// A bucket's name, an access point's alias, or an access point's ARN.
    pub(super) bucket: String,
    /// Without `/` at either end; may be empty.
    pub(super) prefix: String,
    pub(super) access: Access,
    pub(super) path_style: Option<bool>,
    pub(super) protocol: Protocol,
    pub(super) settings: Settings,
}

impl Location {
    /// Parses `url`, and applies its common settings to `options`.
    pub(super) fn from_url(url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let (location, path) = Self::of_bucket(&url)?;
        let prefix = url.prefix(&path, MAX_PREFIX_BYTES)?;
        Ok(Self { prefix, protocol: Protocol::of(&url), ..location })
    }

    /// Parses `url` as the URL of an object. Returns the location of its folder, and its key there.
    pub(super) fn of_object(url: StoreUrl) -> Result<(Self, String), Error> {
        let (location, path) = Self::of_bucket(&url.checked_object()?)?;
        let (prefix, key) = checked_object(&path)?;
        Ok((Self { prefix, ..location }, key))
    }

    /// Reads the settings that locks and objects share. Also returns the path in the bucket. The protocol is that of
    /// objects, which does not encode keys.
    fn of_bucket(url: &CheckedUrl) -> Result<(Self, String), Error> {
        let (access, bucket, path) = bucket_and_path(url)?;
        let path_style = url.maybe("path_style");
        if path_style == Some(true) && bucket.starts_with("arn:") {
            return Err(Error::invalid("an access point cannot be addressed in path style")
                .with_help("leave `path_style` out, or name the bucket instead of the access point"));
        }
        let (settings, protocol, prefix) = (Settings::of(url)?, Protocol::Existence, String::new());
        Ok((Self { bucket, prefix, access, path_style, protocol, settings }, path))
    }
}

/// Returns the access settings, the bucket, and the path in the bucket.
fn bucket_and_path(url: &CheckedUrl) -> Result<(Access, String, String), Error> {
    let mut access = Access::of(url)?;
    let url = &url.url;
    let authority = url.authority().unwrap_or("");
    if !authority.starts_with("arn:") {
        return Ok((access, authority.to_owned(), url.path().to_owned()));
    }
    // `arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/prefix`: `NAME` is in the URL's path, unless its slash is
    // percent-encoded.
    let text = format!("{authority}{}", url.path());
    let Some((region, resource)) = arn(&text, "s3") else { return Err(not_an_access_point(&text)) };
    let name = resource.strip_prefix("accesspoint/").unwrap_or("");
    let (name, path) = name.split_once('/').unwrap_or((name, ""));
    if !is_access_point(name) {
        return Err(not_an_access_point(&text));
    }
    // The ARN up to the resource, and the resource without the path.
    let head = text.len() - resource.len();
    let bucket = format!("{}accesspoint/{name}", &text[..head]);
    access.set_region_of_arn(&bucket, region)?;
    Ok((access, bucket, path.to_owned()))
}

fn is_access_point(name: &str) -> bool {
    (3..=50).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn not_an_access_point(arn: &str) -> Error {
    let error = Error::invalid(format!(
        "{arn:?} is neither a bucket name nor the ARN of an access point in one region"
    ));
    if arn.contains(".mrap") {
        return error.with_help(
            "a Multi-Region Access Point leads to buckets that are copied to each other, and two clients could be granted \
             the same lock: name one bucket",
        );
    }
    error.with_help(
        "write s3://arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/PREFIX, or name the bucket: s3://bucket/prefix",
    )
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
    fn a_url_names_the_store_and_its_options() {
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
                    ..Access::default()
                },
                path_style: Some(false),
                protocol: Protocol::Existence,
                settings: Settings::default(),
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
            ("s3://arn:aws:s3:eu-west-1:1:accesspoint/x", "neither a bucket name"),
            ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint", "neither a bucket name"),
            ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/X_", "neither a bucket name"),
            ("s3://arn:aws:s3:::bucket/p", "neither a bucket name"),
            ("s3://arn:aws:s3::123456789012:accesspoint/x.mrap/p", "ARN"),
            ("s3://arn:aws:s3-object-lambda:eu-west-1:123456789012:accesspoint/x", "ARN"),
            ("s3://arn:aws:s3-outposts:eu-west-1:123456789012:outpost/op-1/accesspoint/x", "ARN"),
            ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/abc?region=eu-west-2", "eu-west-2"),
            ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/abc?path_style=on", "access point"),
            ("s3://bucket/a//b", "segment"),
            ("s3://bucket/../b", "segment"),
            ("s3://bucket/a%0Ab", "control"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
            assert!(!error.help().is_empty(), "{url}: {error:?}");
        }
        let long = format!("s3://bucket/{}", "x".repeat(251));
        assert!(read(&long).unwrap_err().to_string().contains("250"));
    }

    #[test]
    fn an_access_point_is_named_by_its_arn() {
        let arn = "arn:aws:s3:eu-west-1:123456789012:accesspoint/team-locks";
        for (url, prefix) in [
            (format!("s3://{arn}"), ""),
            (format!("s3://{arn}/a/b?region=eu-west-1"), "a/b"),
            (format!("s3://{}/a", arn.replace(':', "%3A").replace('/', "%2F")), "a"),
        ] {
            let location = read(&url).unwrap();
            assert_eq!((&*location.bucket, &*location.prefix), (arn, prefix), "{url}");
            assert_eq!(location.access.region.as_deref(), Some("eu-west-1"), "{url}");
            // Tickets contain the displayed form of the URL.
            let shown = StoreUrl::parse(&url).unwrap().to_string();
            assert_eq!(read(&shown).unwrap(), location, "{shown}");
        }
        let (location, key) =
            Location::of_object(StoreUrl::parse(&format!("s3://{arn}/a/b.json")).unwrap()).unwrap();
        assert_eq!((&*location.bucket, &*location.prefix, &*key), (arn, "a", "b.json"));
    }

    #[test]
    fn only_plain_buckets_at_amazons_endpoints_are_trusted() {
        for (bucket, trusted) in [
            ("bkt", true),
            ("my--bucket", true),
            ("my.bucket", true),
            ("s3alias", true),
            ("backup-s3", true),
            // An access point, and one of a file system (FSx).
            ("locks-a1b2c3d4e5f6a1b2c3d4e5f6a1b2c3d4use1a-s3alias", false),
            ("locks-a1b2c3d4e5f6a1b2c3d4e5f6a1b2c3d4use1a-ext-s3alias", false),
            // Object Lambda, Outposts, a directory bucket, an access point of one, a table bucket, and a kind that does not
            // exist yet.
            ("locks-a1b2c3d4use1a--ol-s3", false),
            ("locks-o01ac5d28a6a232904e8xz5w8ijx1qzlbp3i3kuse10--op-s3", false),
            ("bkt--euw1-az1--x-s3", false),
            ("locks--euw1-az1--xa-s3", false),
            ("bkt--table-s3", false),
            ("bkt--new-s3", false),
            ("mfzwi23gnjvgw.mrap", false),
            ("arn:aws:s3:eu-west-1:123456789012:accesspoint/locks", false),
            ("arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap", false),
            ("arn:aws:s3-object-lambda:eu-west-1:123456789012:accesspoint/locks", false),
        ] {
            let target = |endpoint| Target {
                bucket: bucket.into(),
                region: "eu-west-1".into(),
                endpoint,
                address: None,
            };
            assert_eq!(target(None).is_trusted(), trusted, "{bucket}");
            // An endpoint in the URL is probed, even if it is one of Amazon's.
            for endpoint in ["https://s3.example.com", "https://s3.eu-west-1.amazonaws.com"] {
                assert!(!target(Some(endpoint.into())).is_trusted(), "{bucket} {endpoint}");
            }
        }
    }
}
