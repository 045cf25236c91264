//! What a store URL says, checked by DynamoDB's rules.

use super::dialect::Dialect;
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::name::LockName;
use crate::stores::aws::access::{Access, Service};
use crate::url::StoreUrl;

pub(super) const SERVICE: Service = Service {
    id: "DynamoDB",
    article: "a",
    no_region_help: "add ?region=eu-west-1 to the store URL, or set AWS_REGION",
};

/// The longest partition key, in bytes.
const MAX_KEY_BYTES: usize = 2_048;
/// What a prefix may take of it: `/` and the longest name have to fit behind.
const MAX_PREFIX_BYTES: usize = MAX_KEY_BYTES - 1 - LockName::MAX_BYTES;

/// What a store URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) table: String,
    /// Empty, or ending in `/`.
    pub(super) prefix: String,
    pub(super) dialect: Dialect,
    /// Whether the table is to be made if it is not there.
    pub(super) create: bool,
    pub(super) access: Access,
}

impl Location {
    /// Reads `url`, and what it says about `options`.
    pub(super) fn from_url(mut url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let access = Access::take(&mut url, SERVICE)?;
        let location = Self {
            table: checked_table(url.authority().unwrap_or(""))?,
            prefix: checked_prefix(url.path())?,
            dialect: url.take("dialect").map(|name| Dialect::named(&name)).transpose()?.unwrap_or_default(),
            create: url.take_switch("create")?.unwrap_or(false),
            access,
        };
        url.take_common(options)?;
        url.finish()?;
        Ok(location)
    }
}

fn checked_table(table: &str) -> Result<String, Error> {
    let fine = (3..=255).contains(&table.len())
        && table.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if fine {
        return Ok(table.to_owned());
    }
    let error = Error::invalid(if table.is_empty() {
        "the DynamoDB store URL names no table".to_owned()
    } else {
        format!("{table:?} is no table name")
    });
    Err(error.with_help(
        "a DynamoDB store is dynamodb://table/prefix; a table name has 3 to 255 letters, digits, `_`, `-` and `.`",
    ))
}

fn checked_prefix(path: &str) -> Result<String, Error> {
    let prefix = path.strip_prefix('/').unwrap_or(path);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        return Ok(String::new());
    }
    let flaw = if prefix.len() > MAX_PREFIX_BYTES {
        "is longer than 1,791 bytes"
    } else if prefix.chars().any(crate::name::is_unprintable) {
        "contains a control or invisible character"
    } else if prefix.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        "has an empty, `.` or `..` segment"
    } else {
        return Ok(format!("{prefix}/"));
    };
    Err(Error::invalid(format!("the prefix {prefix:?} {flaw}"))
        .with_help("a DynamoDB store is dynamodb://table/prefix, for example dynamodb://locks/team"))
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
        let url = "dynamodb://My_Locks.x-1/team/locks/?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1:9000\
                   &profile=ci&create=true&dialect=go&store_clock=off&margin=9s";
        let location = Location::from_url(StoreUrl::parse(url).unwrap(), &mut options).unwrap();
        assert_eq!(
            location,
            Location {
                table: "My_Locks.x-1".into(),
                prefix: "team/locks/".into(),
                dialect: Dialect::Go,
                create: true,
                access: Access {
                    region: Some("eu-west-1".into()),
                    endpoint: Some("http://127.0.0.1:9000".into()),
                    profile: Some("ci".into()),
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
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("dynamodb:", "no table"),
            ("dynamodb:table", "no table"),
            ("dynamodb:///prefix", "no table"),
            ("dynamodb://ab", "\"ab\""),
            ("dynamodb://a%20table", "a table"),
            ("dynamodb://arn:aws:dynamodb:eu-west-1:1:table/x", "no table name"),
            ("dynamodb://table/a//b", "segment"),
            ("dynamodb://table/../b", "segment"),
            ("dynamodb://table/a%0Ab", "control"),
            ("dynamodb://table?region=", "region"),
            ("dynamodb://table?dialect=rust", "dialect"),
            ("dynamodb://table?create=maybe", "create"),
            ("dynamodb://table?endpoint=localhost:8000", "localhost:8000"),
            ("dynamodb://table?ttl=5", "ttl"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
            // The switch's own text already says what it may be.
            assert!(!error.help().is_empty() || url.contains("create"), "{url}: {error:?}");
        }
        let longest = format!("dynamodb://table/{}", "x".repeat(MAX_PREFIX_BYTES));
        assert_eq!(read(&longest).unwrap().prefix.len() + LockName::MAX_BYTES, MAX_KEY_BYTES);
        assert!(read(&format!("{longest}x")).unwrap_err().to_string().contains("1,791"));
        let error = read("dynamodb://AKIA:hunter2@table").unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2") && error.to_string().contains("credentials"));
    }
}
