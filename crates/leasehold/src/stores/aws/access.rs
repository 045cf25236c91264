//! Parses the settings in a store URL for access to one of Amazon's services. Does not use the service's client.

use crate::error::Error;
use crate::url::{CheckedUrl, check_secrecy, checked_url, is_account, is_region};

/// One of Amazon's services, as named in the configuration and in messages.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct Service {
    /// The name in the SDK's configuration: `S3`, `DynamoDB`.
    pub(in crate::stores) id: &'static str,
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
    /// Reads the options that both services share.
    pub(in crate::stores) fn of(url: &CheckedUrl) -> Result<Self, Error> {
        let plaintext = url.switch("plaintext");
        let checked = |text: String| checked_endpoint(&text, "the option `endpoint`", plaintext);
        let access = Self {
            region: url.text("region"),
            endpoint: url.text("endpoint").map(checked).transpose()?,
            profile: url.text("profile"),
            fips: url.maybe("fips"),
            dualstack: url.maybe("dualstack"),
            ca: url.text("ca"),
            proxy: url.location("proxy"),
            plaintext,
        };
        access.endpoint.iter().try_for_each(|endpoint| access.check_variants(endpoint))?;
        Ok(access)
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
                self.region = Some(region.to_owned());
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
        && is_region(region)
        && is_account(account)
        && !resource.is_empty();
    fine.then_some((region, resource))
}

/// Checks an endpoint from `source`. With `plaintext`, an endpoint on another machine needs no TLS.
pub(in crate::stores) fn checked_endpoint(
    endpoint: &str,
    source: &str,
    plaintext: bool,
) -> Result<String, Error> {
    let endpoint = checked_url(endpoint, source)?;
    // Requests to loopback addresses use no proxy.
    check_secrecy(&endpoint, "session tokens and the contents of records", false, plaintext)?;
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    fn read(options: &str) -> Result<Access, Error> {
        Access::of(&StoreUrl::parse(&format!("s3://bkt?{options}"))?.checked(&mut StoreOptions::default())?)
    }

    #[test]
    fn options_for_amazons_endpoints_do_not_go_with_another() {
        for option in ["fips", "dualstack"] {
            let error = read(&format!("{option}=on&endpoint=https://h")).unwrap_err();
            assert!(error.to_string().contains(option) && !error.help().is_empty(), "{error:?}");
        }
    }

    #[test]
    fn every_access_option_is_read() {
        let options = "region=eu-west-1&profile=ci&fips=on&dualstack=off&ca=/etc/ca.pem&proxy=http://proxy:3128&plaintext=on";
        let expected = Access {
            region: Some("eu-west-1".into()),
            endpoint: None,
            profile: Some("ci".into()),
            fips: Some(true),
            dualstack: Some(false),
            ca: Some("/etc/ca.pem".into()),
            proxy: Some("http://proxy:3128".into()),
            plaintext: true,
        };
        assert_eq!(read(options).unwrap(), expected);
    }

    #[test]
    fn plaintext_needs_loopback_or_permission() {
        let error = read("endpoint=http://minio:9000").unwrap_err();
        assert!(error.to_string().contains("unencrypted"), "{error:?}");
        assert!(error.help()[0].contains("plaintext=on"), "{error:?}");
        for fine in
            ["http://minio:9000&plaintext=on", "http://127.1.2.3:9/&proxy=http://p", "https://minio:9000"]
        {
            read(&format!("endpoint={fine}")).unwrap();
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
