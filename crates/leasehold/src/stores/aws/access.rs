//! What a store URL says about the way to a service of Amazon's: pure, without its client.

use crate::error::Error;
use crate::url::StoreUrl;

/// Which service is meant, for the configuration and for messages.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct Service {
    /// As the SDK's configuration has it: `S3`, `DynamoDB`.
    pub(in crate::stores) id: &'static str,
    /// With its article, before "store URL".
    pub(in crate::stores) article: &'static str,
    /// What a compatible store is told when it wants no region of its own.
    pub(in crate::stores) no_region_help: &'static str,
}

/// What a store URL says about the way to the service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::stores) struct Access {
    pub(in crate::stores) region: Option<String>,
    pub(in crate::stores) endpoint: Option<String>,
    pub(in crate::stores) profile: Option<String>,
}

impl Access {
    /// Takes the options `region`, `endpoint` and `profile`; refuses a login before the authority.
    pub(in crate::stores) fn take(url: &mut StoreUrl, service: Service) -> Result<Self, Error> {
        if url.user().is_some() || url.password().is_some() {
            let message =
                format!("credentials do not belong in {} {} store URL", service.article, service.id);
            return Err(Error::invalid(message).with_help(
                "use a profile (?profile=name), the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role",
            ));
        }
        Ok(Self {
            region: url.take("region").map(checked_region).transpose()?,
            endpoint: url
                .take("endpoint")
                .map(|text| checked_endpoint(text, "the option `endpoint`"))
                .transpose()?,
            profile: url.take("profile").map(checked_profile).transpose()?,
        })
    }
}

fn checked_region(region: String) -> Result<String, Error> {
    if !region.is_empty() && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    {
        return Ok(region);
    }
    Err(Error::invalid(format!("{region:?} is no region")).with_help("a region is like eu-west-1"))
}

fn checked_profile(profile: String) -> Result<String, Error> {
    if !profile.is_empty() {
        return Ok(profile);
    }
    Err(Error::invalid("the option `profile` is empty")
        .with_help("name a profile of ~/.aws/config, or leave it out"))
}

pub(in crate::stores) fn checked_endpoint(endpoint: String, source: &str) -> Result<String, Error> {
    // What stands before `@` may be a password, so the text is shown only without one.
    if endpoint.contains('@') {
        return Err(Error::invalid(format!("{source} contains a login"))
            .with_help("credentials do not belong in an endpoint: use a profile or the environment"));
    }
    let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let Some(host) = host else {
        return Err(Error::invalid(format!("{source} is {endpoint:?}, without http:// or https://"))
            .with_help(format!("write endpoint=https://{0} (or endpoint=http://{0})", bare(&endpoint))));
    };
    let fine = host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && host.bytes().all(|b| b.is_ascii_graphic() && !b"?#\\\"<>^`{|}".contains(&b));
    if fine {
        return Ok(endpoint);
    }
    Err(Error::invalid(format!("{source} is {endpoint:?}, which is no URL of a host"))
        .with_help("an endpoint is like http://localhost:9000 or https://s3.example.com"))
}

/// An endpoint's host and path, for a suggestion.
fn bare(endpoint: &str) -> &str {
    endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const SERVICE: Service = Service { id: "DynamoDB", article: "a", no_region_help: "" };

    fn read(url: &str) -> Result<Access, Error> {
        Access::take(&mut StoreUrl::parse(url)?, SERVICE)
    }

    #[test]
    fn a_url_says_where_and_how() {
        let access = read("x1://x?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1:9000&profile=ci").unwrap();
        assert_eq!(access.region.as_deref(), Some("eu-west-1"));
        assert_eq!(access.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(access.profile.as_deref(), Some("ci"));
        assert_eq!(read("x1://x").unwrap(), Access::default());
    }

    #[test]
    fn a_bad_option_is_an_error_that_says_what_to_do() {
        for (options, named) in [
            ("region=", "region"),
            ("region=Europe/Berlin", "Europe/Berlin"),
            ("profile=", "profile"),
            ("endpoint=localhost:9000", "localhost:9000"),
            ("endpoint=ftp://localhost", "ftp://localhost"),
            ("endpoint=http://", "http://"),
            ("endpoint=http://a%20b", "a b"),
        ] {
            let error = read(&format!("x1://x?{options}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{options}: {error:?}");
            assert!(error.to_string().contains(named), "{options}: {error:?}");
            assert!(!error.help().is_empty(), "{options}: {error:?}");
        }
        let help = read("x1://x?endpoint=localhost:9000").unwrap_err().help().join(" ");
        assert!(help.contains("endpoint=http://localhost:9000"), "{help}");
    }

    #[test]
    fn passwords_are_refused_and_not_repeated() {
        for url in
            ["x1://AKIA:hunter2@x", "x1://x?endpoint=http://u:hunter2@host", "x1://x?endpoint=u:hunter2@host"]
        {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
