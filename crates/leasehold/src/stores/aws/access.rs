//! Parses the settings in a store URL for access to one of Amazon's services. Does not use the service's client.

use std::net::IpAddr;

use crate::error::Error;
use crate::url::StoreUrl;

/// One of Amazon's services, as named in the configuration and in messages.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct Service {
    /// The name in the SDK's configuration: `S3`, `DynamoDB`.
    pub(in crate::stores) id: &'static str,
    /// The article before "… store URL".
    pub(in crate::stores) article: &'static str,
    /// The help for a missing region.
    pub(in crate::stores) no_region_help: &'static str,
}

/// The settings in a store URL for access to the service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::stores) struct Access {
    pub(in crate::stores) region: Option<String>,
    pub(in crate::stores) endpoint: Option<String>,
    pub(in crate::stores) profile: Option<String>,
    /// Whether to use Amazon's FIPS endpoints. `None` leaves the choice to the environment and the profile.
    pub(in crate::stores) fips: Option<bool>,
    /// Whether to use Amazon's dual-stack endpoints. `None` leaves the choice to the environment and the profile.
    pub(in crate::stores) dualstack: Option<bool>,
    /// A PEM file with the only certificates to trust at the service's endpoint.
    pub(in crate::stores) ca: Option<String>,
    /// The proxy for all requests that leave this machine. `None` leaves the choice to the environment.
    pub(in crate::stores) proxy: Option<String>,
    /// Whether requests to an endpoint on another machine may be sent without TLS.
    pub(in crate::stores) plaintext: bool,
}

impl Access {
    /// Takes the options that both services share. Refuses a URL with a user or a password.
    pub(in crate::stores) fn take(url: &mut StoreUrl, service: Service) -> Result<Self, Error> {
        if url.user().is_some() || url.password().is_some() {
            let message =
                format!("credentials do not belong in {} {} store URL", service.article, service.id);
            return Err(Error::invalid(message).with_help(
                "use a profile (?profile=name), the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role",
            ));
        }
        let plaintext = url.take_switch("allow_plaintext_credentials")?.unwrap_or(false);
        let access = Self {
            region: url.take("region").map(checked_region).transpose()?,
            endpoint: url
                .take("endpoint")
                .map(|text| checked_endpoint(text, "the option `endpoint`", plaintext))
                .transpose()?,
            profile: url.take("profile").map(checked_profile).transpose()?,
            fips: url.take_switch("fips")?,
            dualstack: url.take_switch("dualstack")?,
            ca: url.take("ca").map(checked_ca).transpose()?,
            proxy: url.take("proxy").map(checked_proxy).transpose()?,
            plaintext,
        };
        match &access.endpoint {
            Some(endpoint) => access.check_variants(endpoint).map(|()| access),
            None => Ok(access),
        }
    }

    /// Refuses the options `fips` and `dualstack` if an `endpoint` is given, because they choose among Amazon's own
    /// endpoints.
    pub(super) fn check_variants(&self, endpoint: &str) -> Result<(), Error> {
        let option = match (self.fips, self.dualstack) {
            (Some(true), _) => "fips",
            (_, Some(true)) => "dualstack",
            _ => return Ok(()),
        };
        Err(Error::invalid(format!("the option `{option}` has no effect on the endpoint {endpoint:?}"))
            .with_help(format!(
                "it chooses among Amazon's own endpoints: leave out `{option}` or the endpoint"
            )))
    }

    /// Sets the region to that of `arn`, which the URL contains instead of a bucket or table name. Refuses a different
    /// `region`.
    pub(in crate::stores) fn set_region_of_arn(&mut self, arn: &str, region: &str) -> Result<(), Error> {
        match &self.region {
            Some(other) if other != region => {
                Err(Error::invalid(format!("{arn:?} is in {region}, but the option `region` is {other:?}"))
                    .with_help("leave out `region`: the ARN names it"))
            }
            _ => {
                self.region = Some(checked_region(region.to_owned())?);
                Ok(())
            }
        }
    }
}

/// Returns the region and the resource of `arn:PARTITION:SERVICE:REGION:ACCOUNT:RESOURCE`, if `text` is an ARN of
/// `service` in a single region.
pub(in crate::stores) fn arn<'a>(text: &'a str, service: &str) -> Option<(&'a str, &'a str)> {
    let mut parts = text.splitn(6, ':');
    let (Some("arn"), Some(partition), Some(named)) = (parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let (region, account, resource) = (parts.next()?, parts.next()?, parts.next()?);
    let fine = partition.starts_with("aws")
        && named == service
        && !region.is_empty()
        && is_account(account)
        && !resource.is_empty();
    fine.then_some((region, resource))
}

/// Whether `text` is the id of an AWS account.
pub(in crate::stores) fn is_account(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|b| b.is_ascii_digit())
}

fn checked_ca(path: String) -> Result<String, Error> {
    if !path.is_empty() {
        return Ok(path);
    }
    Err(Error::invalid("the option `ca` is empty").with_help(
        "name a PEM file of the certificates to trust, or leave it out to trust those of the machine",
    ))
}

fn checked_proxy(proxy: String) -> Result<String, Error> {
    if proxy.contains('@') {
        return Err(Error::invalid("the option `proxy` contains a login").with_help(
            "credentials do not belong in a store URL: set HTTPS_PROXY=http://user:password@host:port instead of the option",
        ));
    }
    if is_url_of_host(&proxy) {
        return Ok(proxy);
    }
    Err(Error::invalid(format!("the option `proxy` is {proxy:?}, which is not the URL of a proxy"))
        .with_help("a proxy is like http://proxy.example.com:3128"))
}

fn checked_region(region: String) -> Result<String, Error> {
    if !region.is_empty() && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    {
        return Ok(region);
    }
    Err(Error::invalid(format!("{region:?} is not a region")).with_help("a region is like eu-west-1"))
}

fn checked_profile(profile: String) -> Result<String, Error> {
    if !profile.is_empty() {
        return Ok(profile);
    }
    Err(Error::invalid("the option `profile` is empty")
        .with_help("name a profile of ~/.aws/config, or leave it out"))
}

/// Checks an endpoint from `source`. With `plaintext`, an endpoint on another machine needs no TLS.
pub(in crate::stores) fn checked_endpoint(
    endpoint: String,
    source: &str,
    plaintext: bool,
) -> Result<String, Error> {
    // The part before `@` may be a password, so the text is displayed only if there is no `@`.
    if endpoint.contains('@') {
        return Err(Error::invalid(format!("{source} contains a login"))
            .with_help("credentials do not belong in an endpoint: use a profile or the environment"));
    }
    if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
        return Err(Error::invalid(format!("{source} is {endpoint:?}, without http:// or https://"))
            .with_help(format!("write endpoint=https://{0} (or endpoint=http://{0})", bare(&endpoint))));
    }
    if !is_url_of_host(&endpoint) {
        return Err(Error::invalid(format!("{source} is {endpoint:?}, which is not the URL of a host"))
            .with_help("an endpoint is like http://localhost:9000 or https://s3.example.com"));
    }
    if !plaintext && !keeps_secrets(&endpoint) {
        return Err(Error::invalid(format!(
            "{source} is {endpoint:?}: session tokens and the contents of records would be sent unencrypted"
        ))
        .with_help(
            "use https://, or, in a network that you trust, add allow_plaintext_credentials=on to the store URL",
        ));
    }
    Ok(endpoint)
}

fn is_url_of_host(url: &str) -> bool {
    url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).is_some_and(|host| {
        host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
            && host.bytes().all(|b| b.is_ascii_graphic() && !b"?#\\\"<>^`{|}".contains(&b))
    })
}

/// Whether requests to `endpoint` are encrypted or stay on this machine. The option `proxy` does not apply to loopback
/// addresses.
fn keeps_secrets(endpoint: &str) -> bool {
    let Some(host) = endpoint.strip_prefix("http://") else { return true };
    let host = host.split('/').next().unwrap_or(host);
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns the host and the path of an endpoint, for a suggestion.
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
    fn a_url_names_the_store_and_its_options() {
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
            ("ca=", "`ca`"),
            ("proxy=", "`proxy`"),
            ("proxy=proxy:3128", "proxy:3128"),
            ("proxy=socks5://h:1", "socks5://h:1"),
            ("fips=on&endpoint=https://h", "`fips`"),
            ("dualstack=on&endpoint=https://h", "`dualstack`"),
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
        for url in [
            "x1://AKIA:hunter2@x",
            "x1://x?endpoint=http://u:hunter2@host",
            "x1://x?endpoint=u:hunter2@host",
            "x1://x?proxy=http://u:hunter2@host",
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn every_access_option_is_read() {
        let url = "x1://x?fips=on&dualstack=off&ca=/etc/ca.pem&proxy=http://proxy:3128";
        let expected = Access {
            fips: Some(true),
            dualstack: Some(false),
            ca: Some("/etc/ca.pem".into()),
            proxy: Some("http://proxy:3128".into()),
            ..Access::default()
        };
        assert_eq!(read(url).unwrap(), expected);
    }

    #[test]
    fn plaintext_needs_loopback_or_permission() {
        for endpoint in [
            "http://minio:9000",
            "http://10.0.0.1",
            "http://127.0.0.1.example.com:80",
            "http://localhost.example.com",
            "http://[2001:db8::1]:9",
        ] {
            let error = read(&format!("x1://x?endpoint={endpoint}")).unwrap_err();
            assert!(
                error.to_string().contains("unencrypted") && error.to_string().contains(endpoint),
                "{error:?}"
            );
            assert!(error.help()[0].contains("allow_plaintext_credentials=on"), "{error:?}");
            let url = format!("x1://x?endpoint={endpoint}&allow_plaintext_credentials=on");
            assert_eq!(read(&url).unwrap().endpoint.as_deref(), Some(endpoint));
        }
        for endpoint in [
            "http://localhost:9000/path",
            "http://127.0.0.1",
            "http://127.1.2.3:9",
            "http://[::1]:9",
            "https://minio:9000",
        ] {
            assert!(read(&format!("x1://x?endpoint={endpoint}")).is_ok(), "{endpoint}");
        }
    }

    #[test]
    fn an_arn_names_its_region_and_resource() {
        let good = "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/x";
        assert_eq!(arn(good, "s3"), Some(("cn-north-1", "accesspoint/x")));
        for bad in [
            "bucket",
            "arn:aws:s3:::bucket",
            "arn:aws:s3::123456789012:accesspoint/x.mrap",
            "arn:aws:s3:eu-west-1:12:accesspoint/x",
            "arn:gcp:s3:eu-west-1:123456789012:accesspoint/x",
            "arn:aws:s3:eu-west-1:123456789012",
            "arn:aws:sns:eu-west-1:123456789012:accesspoint/x",
        ] {
            assert_eq!(arn(bad, "s3"), None, "{bad}");
        }
    }
}
