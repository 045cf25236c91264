//! Parses the settings in a store URL that apply to each request to a bucket. Does not use S3's client.

use crate::error::Error;
use crate::url::CheckedUrl;

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
    pub(super) fn of(url: &CheckedUrl) -> Result<Self, Error> {
        use {Checksum as C, Encryption as E};
        let kms_key = url.text("kms_key");
        let sse = [("AES256", E::Aes256), ("aws:kms", E::Kms), ("aws:kms:dsse", E::KmsDsse)];
        let encryption = url.word("sse", &sse).or(kms_key.as_ref().map(|_| E::Kms));
        if encryption == Some(E::Aes256) && kms_key.is_some() {
            return Err(Error::invalid("the option `kms_key` does not go with sse=AES256")
                .with_help("use sse=aws:kms, or leave `kms_key` out"));
        }
        let checksums = [
            ("none", C::None),
            ("crc32", C::Crc32),
            ("crc32c", C::Crc32c),
            ("sha256", C::Sha256),
            ("md5", C::Md5),
        ];
        Ok(Self {
            checksum: url.word("checksum", &checksums),
            encryption,
            kms_key,
            owner: url.text("expected_bucket_owner"),
            requester_pays: url.switch("requester_pays"),
        })
    }

    /// Whether an object's ETag is the MD5 of its bytes, according to these settings.
    pub(super) fn has_md5_etags(&self) -> bool {
        !matches!(self.encryption, Some(Encryption::Kms | Encryption::KmsDsse))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::StoreOptions;
    use crate::url::StoreUrl;

    fn read(options: &str) -> Result<Settings, Error> {
        Settings::of(
            &StoreUrl::parse(&format!("s3://bucket?{options}"))?.checked(&mut StoreOptions::default())?,
        )
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
    fn a_kms_key_does_not_go_with_another_encryption() {
        assert!(read("sse=AES256&kms_key=1").unwrap_err().to_string().contains("AES256"));
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
