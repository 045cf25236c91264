//! Parses the settings in a store URL that apply to each request to a bucket. Does not use S3's client.

use crate::error::Error;
use crate::stores::aws::access::is_account;
use crate::url::StoreUrl;

/// Settings that apply to all requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// The checksum of a body. `None` selects the default for the endpoint.
    pub(super) checksum: Option<Checksum>,
    pub(super) encryption: Option<Encryption>,
    /// The KMS key for `encryption`. `None` selects the account's default key.
    pub(super) kms_key: Option<String>,
    /// The account that must own the bucket.
    pub(super) owner: Option<String>,
    /// Whether the requests may be charged to the account that sends them.
    pub(super) requester_pays: bool,
}

/// The kind of checksum by which the store verifies a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    None,
    Crc32,
    Crc32c,
    Sha256,
    /// `Content-MD5`, for older stores that support no other checksum.
    Md5,
}

/// How objects are encrypted at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encryption {
    /// By S3, with its own keys.
    Aes256,
    /// By S3, with a key in KMS.
    Kms,
    /// By S3, with a key in KMS, in two layers.
    KmsDsse,
}

impl Settings {
    /// Takes the options `checksum`, `sse`, `kms_key`, `expected_bucket_owner` and `requester_pays`.
    pub(super) fn take(url: &mut StoreUrl) -> Result<Self, Error> {
        let checksum = url.take("checksum").map(|text| Checksum::named(&text)).transpose()?;
        let kms_key = url.take("kms_key").map(checked_key).transpose()?;
        let encryption = url.take("sse").map(|text| Encryption::named(&text)).transpose()?;
        let encryption = match (encryption, &kms_key) {
            (None, Some(_)) => Some(Encryption::Kms),
            (Some(Encryption::Aes256), Some(_)) => {
                return Err(Error::invalid("the option `kms_key` does not go with sse=AES256")
                    .with_help("use sse=aws:kms, or leave `kms_key` out"));
            }
            (encryption, _) => encryption,
        };
        Ok(Self {
            checksum,
            encryption,
            kms_key,
            owner: url.take("expected_bucket_owner").map(checked_owner).transpose()?,
            requester_pays: url.take_switch("requester_pays")?.unwrap_or(false),
        })
    }

    /// Whether an object's ETag is the MD5 of its bytes, according to these settings.
    pub(super) fn has_md5_etags(&self) -> bool {
        !matches!(self.encryption, Some(Encryption::Kms | Encryption::KmsDsse))
    }
}

impl Checksum {
    fn named(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "none" => Self::None,
            "crc32" => Self::Crc32,
            "crc32c" => Self::Crc32c,
            "sha256" => Self::Sha256,
            "md5" => Self::Md5,
            other => {
                return Err(Error::invalid(format!("unknown checksum {other:?}"))
                    .with_help("the option `checksum` is none, crc32, crc32c, sha256 or md5"));
            }
        })
    }
}

impl Encryption {
    fn named(name: &str) -> Result<Self, Error> {
        Ok(match name {
            "AES256" => Self::Aes256,
            "aws:kms" => Self::Kms,
            "aws:kms:dsse" => Self::KmsDsse,
            other => {
                return Err(Error::invalid(format!("unknown encryption {other:?}"))
                    .with_help("the option `sse` is AES256, aws:kms or aws:kms:dsse"));
            }
        })
    }
}

fn checked_key(key: String) -> Result<String, Error> {
    if !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b":/_-".contains(&b)) {
        return Ok(key);
    }
    Err(Error::invalid(format!("{key:?} is not a KMS key"))
        .with_help("the option `kms_key` is the key's ARN, its id, or alias/name"))
}

fn checked_owner(owner: String) -> Result<String, Error> {
    if is_account(&owner) {
        return Ok(owner);
    }
    Err(Error::invalid(format!("{owner:?} is not an account"))
        .with_help("the option `expected_bucket_owner` is the 12 digits of an account, like 111122223333"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn read(options: &str) -> Result<Settings, Error> {
        let mut url = StoreUrl::parse(&format!("s3://bucket?{options}"))?;
        let settings = Settings::take(&mut url)?;
        url.finish()?;
        Ok(settings)
    }

    #[test]
    fn every_option_is_read() {
        let key = "arn:aws:kms:eu-west-1:111122223333:key/1-2";
        let url = format!(
            "checksum=sha256&sse=aws:kms:dsse&kms_key={key}&expected_bucket_owner=111122223333&requester_pays=on"
        );
        let expected = Settings {
            checksum: Some(Checksum::Sha256),
            encryption: Some(Encryption::KmsDsse),
            kms_key: Some(key.into()),
            owner: Some("111122223333".into()),
            requester_pays: true,
        };
        assert_eq!(read(&url).unwrap(), expected);
        assert_eq!(read("").unwrap(), Settings::default());
        assert_eq!(
            read("kms_key=alias/locks").unwrap().encryption,
            Some(Encryption::Kms),
            "kms_key implies aws:kms"
        );
    }

    #[test]
    fn a_bad_option_is_an_error_that_says_what_to_do() {
        for (options, named) in [
            ("checksum=crc", "\"crc\""),
            ("sse=kms", "\"kms\""),
            ("sse=AES256&kms_key=1", "AES256"),
            ("kms_key=", "\"\""),
            ("kms_key=a%20b", "a b"),
            ("expected_bucket_owner=me", "\"me\""),
        ] {
            let error = read(options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{options}");
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{options}: {error:?}");
        }
    }

    #[test]
    fn only_without_kms_are_etags_the_md5_of_the_bytes() {
        for (options, md5) in
            [("", true), ("sse=AES256", true), ("sse=aws:kms", false), ("sse=aws:kms:dsse", false)]
        {
            assert_eq!(read(options).unwrap().has_md5_etags(), md5, "{options}");
        }
    }
}
