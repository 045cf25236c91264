//! Builds requests to the bucket, with the settings in the store URL that apply to all requests.

use aws_sdk_s3::operation::delete_object::builders::DeleteObjectFluentBuilder;
use aws_sdk_s3::operation::get_object::builders::GetObjectFluentBuilder;
use aws_sdk_s3::operation::head_object::builders::HeadObjectFluentBuilder;
use aws_sdk_s3::operation::list_objects_v2::builders::ListObjectsV2FluentBuilder;
use aws_sdk_s3::operation::put_object::builders::PutObjectFluentBuilder;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, RequestPayer, ServerSideEncryption};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};

use super::S3Register;
use super::bodies;
use super::config::Location;
use super::settings::{Checksum, Encryption, Settings};
use crate::register::Body;

impl S3Register {
    pub(super) fn get_object(&self, object: &str) -> GetObjectFluentBuilder {
        let request = self.client.get_object().bucket(&self.target.bucket).key(object);
        request.set_expected_bucket_owner(self.settings.owner.clone()).set_request_payer(self.payer())
    }

    pub(super) fn head_object(&self, object: &str) -> HeadObjectFluentBuilder {
        let request = self.client.head_object().bucket(&self.target.bucket).key(object);
        request.set_expected_bucket_owner(self.settings.owner.clone()).set_request_payer(self.payer())
    }

    pub(super) fn put_object(&self, object: &str, body: Body) -> PutObjectFluentBuilder {
        let Settings { encryption, kms_key, owner, .. } = &self.settings;
        let checksum = checksum(&self.settings, self.target.endpoint.as_deref());
        let request = self.client.put_object().bucket(&self.target.bucket).key(object);
        let request = request
            .set_expected_bucket_owner(owner.clone())
            .set_request_payer(self.payer())
            .set_checksum_algorithm(algorithm(checksum))
            .set_content_md5((checksum == Checksum::Md5).then(|| STANDARD.encode(Md5::digest(&body.bytes))))
            .set_server_side_encryption(encryption.map(server_side))
            .set_ssekms_key_id(kms_key.clone());
        bodies::with_metadata(request, body.metadata).body(ByteStream::from(body.bytes))
    }

    pub(super) fn delete_object(&self, object: &str) -> DeleteObjectFluentBuilder {
        let request = self.client.delete_object().bucket(&self.target.bucket).key(object);
        request.set_expected_bucket_owner(self.settings.owner.clone()).set_request_payer(self.payer())
    }

    pub(super) fn list_objects(&self) -> ListObjectsV2FluentBuilder {
        let request = self.client.list_objects_v2().bucket(&self.target.bucket);
        request.set_expected_bucket_owner(self.settings.owner.clone()).set_request_payer(self.payer())
    }

    fn payer(&self) -> Option<RequestPayer> {
        self.settings.requester_pays.then_some(RequestPayer::Requester)
    }
}

impl Location {
    /// Whether the SDK computes the checksum of bodies that are sent to `endpoint`.
    pub(super) fn sdk_checksums(&self, endpoint: Option<&str>) -> bool {
        algorithm(checksum(&self.settings, endpoint)).is_some()
    }
}

/// Returns the kind of checksum to send. A bucket with Object Lock requires one. Amazon's endpoints accept CRC32. Many
/// compatible stores do not support the header.
fn checksum(settings: &Settings, endpoint: Option<&str>) -> Checksum {
    let default = if endpoint.is_none() { Checksum::Crc32 } else { Checksum::None };
    settings.checksum.unwrap_or(default)
}

fn algorithm(checksum: Checksum) -> Option<ChecksumAlgorithm> {
    match checksum {
        Checksum::Crc32 => Some(ChecksumAlgorithm::Crc32),
        Checksum::Crc32c => Some(ChecksumAlgorithm::Crc32C),
        Checksum::Sha256 => Some(ChecksumAlgorithm::Sha256),
        Checksum::None | Checksum::Md5 => None,
    }
}

fn server_side(encryption: Encryption) -> ServerSideEncryption {
    match encryption {
        Encryption::Aes256 => ServerSideEncryption::Aes256,
        Encryption::Kms => ServerSideEncryption::AwsKms,
        Encryption::KmsDsse => ServerSideEncryption::AwsKmsDsse,
    }
}
