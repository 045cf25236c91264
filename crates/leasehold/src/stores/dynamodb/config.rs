//! Parses the settings in a store URL and checks them by DynamoDB's rules.

use super::dialect::Dialect;
use super::item::{ATTRIBUTES, KEY, LINE_SUFFIX};
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::aws::access::{Access, Service, arn};
use crate::types::LockName;
use crate::url::{CheckedUrl, StoreUrl, is_dynamodb_table};

pub(super) const SERVICE: Service =
    Service { id: "DynamoDB", no_region_help: "add ?region=eu-west-1 to the store URL, or set AWS_REGION" };

/// The longest partition key, in bytes.
const MAX_KEY_BYTES: usize = 2_048;
/// The longest prefix, in bytes. A `/`, the longest name and the suffix of its line must fit after it.
const MAX_PREFIX_BYTES: usize = MAX_KEY_BYTES - 1 - LockName::MAX_BYTES - LINE_SUFFIX.len();

/// The table to which requests go.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) table: String,
    pub(super) region: String,
    /// `None` for Amazon's own endpoint.
    pub(super) endpoint: Option<String>,
}

impl Target {
    /// Returns the ARN of the table, for a policy.
    pub(super) fn arn(&self) -> String {
        let Self { table, region, .. } = self;
        if table.starts_with("arn:") {
            table.clone()
        } else {
            format!("arn:aws:dynamodb:{region}:*:table/{table}")
        }
    }

    pub(super) fn endpoint(&self) -> String {
        self.endpoint.clone().unwrap_or_else(|| format!("Amazon DynamoDB in {}", self.region))
    }
}

/// The settings in a store URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// A table's name or ARN.
    pub(super) table: String,
    /// Empty, or ends with `/`.
    pub(super) prefix: String,
    pub(super) dialect: Dialect,
    /// Whether to create the table if it does not exist.
    pub(super) create: bool,
    /// The name of the table's partition key. If `None`, the name comes from the table's description or, without one,
    /// is `key`.
    pub(super) partition_key: Option<String>,
    pub(super) new_table: NewTable,
    pub(super) access: Access,
}

/// The settings of a new table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NewTable {
    /// Whether the table is encrypted with a key in KMS, and not with one of DynamoDB's own.
    pub(super) kms: bool,
    /// The key in KMS. `None` selects the account's `aws/dynamodb`.
    pub(super) kms_key: Option<String>,
    /// Whether the table has point-in-time recovery.
    pub(super) recovery: bool,
    pub(super) deletion_protection: bool,
    /// The names and values of the tags.
    pub(super) tags: Vec<(String, String)>,
}

impl NewTable {
    fn of(url: &CheckedUrl) -> Self {
        let kms_key = url.text("kms_key");
        let tags = url.text_or_default("tags").split(',').filter_map(|tag| tag.split_once(':'));
        Self {
            kms: kms_key.is_some() || url.text("sse").is_some(),
            kms_key,
            recovery: url.switch("pitr"),
            deletion_protection: url.switch("deletion_protection"),
            tags: tags.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }
}

impl Location {
    /// Parses `url`, and applies its common settings to `options`.
    pub(super) fn from_url(url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let mut access = Access::of(&url)?;
        let (table, path) = table_and_path(&url.url, &mut access)?;
        Ok(Self {
            table,
            prefix: Some(url.prefix(&path, MAX_PREFIX_BYTES)?)
                .filter(|prefix| !prefix.is_empty())
                .map(|prefix| prefix + "/")
                .unwrap_or_default(),
            partition_key: url.text("partition_key").map(checked_key).transpose()?,
            new_table: NewTable::of(&url),
            dialect: url.word("dialect", &[("java", Dialect::Java), ("go", Dialect::Go)]).unwrap_or_default(),
            create: url.switch("create"),
            access,
        })
    }
}

/// Returns the table's name or ARN, and the path after it. Sets the region in `access` to that of an ARN.
fn table_and_path(url: &StoreUrl, access: &mut Access) -> Result<(String, String), Error> {
    let authority = url.authority().unwrap_or("");
    if !authority.starts_with("arn:") {
        return Ok((authority.to_owned(), url.path().to_owned()));
    }
    // `arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/prefix`: `NAME` is in the URL's path, unless its slash is
    // percent-encoded.
    let text = format!("{authority}{}", url.path());
    let named = arn(&text, "dynamodb").and_then(|(region, resource)| {
        let (name, path) =
            resource.strip_prefix("table/").map(|rest| rest.split_once('/').unwrap_or((rest, "")))?;
        is_dynamodb_table(name).then_some((region, name, path, text.len() - resource.len()))
    });
    let Some((region, name, path, head)) = named else {
        return Err(Error::invalid(format!("{text:?} is neither a table name nor the ARN of a table")).with_help(
            "write dynamodb://arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/PREFIX, or dynamodb://NAME/PREFIX",
        ));
    };
    let table = format!("{}table/{name}", &text[..head]);
    access.set_region_of_arn(&table, region)?;
    Ok((table, path.to_owned()))
}

fn checked_key(name: String) -> Result<String, Error> {
    if is_taken(&name) {
        return Err(Error::invalid(format!(
            "{name:?} is an attribute of locks, and cannot be the partition key"
        ))
        .with_help("use another table: leasehold creates one with the key `key`"));
    }
    Ok(name)
}

/// Whether `key` is the name of an attribute of locks, other than the default key.
pub(super) fn is_taken(key: &str) -> bool {
    key != KEY && ATTRIBUTES.contains(&key)
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
        let url = "dynamodb://My_Locks.x-1/team/locks/?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1:9000\
                   &profile=ci&create=true&dialect=go&store_clock=off&margin=9s&partition_key=LockID\
                   &kms_key=alias/locks&pitr=on&deletion_protection=on&tags=team:infra,cost:a:b";
        let location = Location::from_url(StoreUrl::parse(url).unwrap(), &mut options).unwrap();
        assert_eq!(
            location,
            Location {
                table: "My_Locks.x-1".into(),
                prefix: "team/locks/".into(),
                dialect: Dialect::Go,
                create: true,
                partition_key: Some("LockID".into()),
                new_table: NewTable {
                    kms: true,
                    kms_key: Some("alias/locks".into()),
                    recovery: true,
                    deletion_protection: true,
                    tags: vec![("team".into(), "infra".into()), ("cost".into(), "a:b".into())],
                },
                access: Access {
                    region: Some("eu-west-1".into()),
                    endpoint: Some("http://127.0.0.1:9000".into()),
                    profile: Some("ci".into()),
                    ..Access::default()
                },
            }
        );
        assert!(!options.store_clock && options.margin == Duration::from_secs(9));
        for url in ["dynamodb://locks", "dynamodb://locks/"] {
            let location = read(url).unwrap();
            assert_eq!((&*location.prefix, location.create), ("", false), "{url}");
            assert_eq!(location.dialect, Dialect::Java, "{url}");
        }
    }

    #[test]
    fn a_table_is_named_by_its_arn() {
        let arn = "arn:aws:dynamodb:eu-west-1:123456789012:table/My_Locks";
        for (url, prefix) in [
            (format!("dynamodb://{arn}"), ""),
            (format!("dynamodb://{arn}/a/b?region=eu-west-1"), "a/b/"),
            (format!("dynamodb://{}/a", arn.replace(':', "%3A").replace('/', "%2F")), "a/"),
        ] {
            let location = read(&url).unwrap();
            assert_eq!((&*location.table, &*location.prefix), (arn, prefix), "{url}");
            assert_eq!(location.access.region.as_deref(), Some("eu-west-1"), "{url}");
            // Tickets contain the displayed form of the URL.
            let shown = StoreUrl::parse(&url).unwrap().to_string();
            assert_eq!(read(&shown).unwrap(), location, "{shown}");
        }
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("dynamodb:", "no table"),
            ("dynamodb:table", "no table"),
            ("dynamodb:///prefix", "no table"),
            ("dynamodb://ab", "\"ab\""),
            ("dynamodb://a%20table", "a table"),
            ("dynamodb://arn:aws:dynamodb:eu-west-1:1:table/x", "neither a table name"),
            ("dynamodb://arn:aws:dynamodb:eu-west-1:123456789012:table", "neither a table name"),
            ("dynamodb://arn:aws:dynamodb:eu-west-1:123456789012:table/a b", "neither a table name"),
            ("dynamodb://arn:aws:sns:eu-west-1:123456789012:table/abc", "neither a table name"),
            ("dynamodb://arn:aws:dynamodb:eu-west-1:123456789012:table/abc?region=eu-west-2", "eu-west-2"),
            ("dynamodb://table?partition_key=ownerName", "ownerName"),
            ("dynamodb://table/a//b", "segment"),
            ("dynamodb://table/../b", "segment"),
            ("dynamodb://table/a%0Ab", "control"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
            assert!(!error.help().is_empty(), "{url}: {error:?}");
        }
        let longest = format!("dynamodb://table/{}", "x".repeat(MAX_PREFIX_BYTES));
        let key_bytes = read(&longest).unwrap().prefix.len() + LockName::MAX_BYTES + LINE_SUFFIX.len();
        assert_eq!(key_bytes, MAX_KEY_BYTES);
        assert!(read(&format!("{longest}x")).unwrap_err().to_string().contains("1785"));
    }
}
