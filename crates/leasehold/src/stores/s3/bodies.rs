//! Converts the bodies and the metadata of objects to and from the SDK's types.

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::operation::head_object::HeadObjectOutput;
use aws_sdk_s3::operation::put_object::builders::PutObjectFluentBuilder;
use aws_sdk_s3::primitives::ByteStream;
use bytes::{Bytes, BytesMut};
use md5::{Digest, Md5};

use super::super::aws::config::REQUEST_LIMIT;
use super::super::contents::Contents;
use super::super::over_http::causes::chain;
use super::super::over_http::request_limit;
use crate::clock;
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::register::{Head, Metadata, Version, VersionedValue};

/// Returns the metadata in the response to a GET or a HEAD, whose types have the same fields.
macro_rules! metadata {
    ($object:expr, $output:ident) => {
        complete($object, $output.missing_meta).map(|()| Metadata {
            content_type: $output.content_type,
            cache_control: $output.cache_control,
            content_encoding: $output.content_encoding,
            content_disposition: $output.content_disposition,
            content_language: $output.content_language,
            user: $output.metadata.into_iter().flatten().collect(),
        })
    };
}

/// Reads the value in the response to a GET.
pub(super) async fn cell(
    object: &str,
    output: GetObjectOutput,
    contents: Contents,
    env: &Env,
) -> Result<VersionedValue, StoreError> {
    let version = version(output.e_tag()).map_err(Fault::not_applied)?;
    let announced = output.content_length().and_then(|length| usize::try_from(length).ok());
    if announced.is_some_and(|length| length > contents.most_bytes()) {
        return Err(contents.too_large(object, announced));
    }
    let metadata = metadata!(object, output);
    let limit = request_limit(REQUEST_LIMIT, announced.unwrap_or(0));
    match clock::timeout(&*env.clock, limit, collected(object, output.body, contents)).await {
        // The metadata of records is not used, so bad metadata is not an error.
        Some(value) if contents == Contents::Records => {
            Ok(VersionedValue { value: value?, version, metadata: metadata.unwrap_or_default() })
        }
        Some(value) => {
            Ok(VersionedValue { value: value?, version, metadata: metadata.map_err(Fault::not_applied)? })
        }
        None => Err(broken_off(object, "it stalled")),
    }
}

/// Parses the response to a HEAD.
pub(super) fn head(object: &str, output: HeadObjectOutput) -> Result<Head, Fault> {
    let version = version(output.e_tag())?;
    let size = output.content_length().and_then(|length| u64::try_from(length).ok()).unwrap_or(0);
    let metadata = metadata!(object, output)?;
    Ok(Head { version, metadata, size })
}

/// Fails if the SDK reports entries of the metadata that it could not read.
fn complete(object: &str, missing: Option<i32>) -> Result<(), Fault> {
    let Some(missing) = missing.filter(|missing| *missing > 0) else { return Ok(()) };
    Err(Fault::new(
        ErrorKind::Unsupported,
        format!(
            "{missing} metadata entries of {object:?} cannot be read over HTTP, and would be lost in a write"
        ),
    )
    .with_help("remove the entries whose names or values cannot be sent in a header"))
}

/// Adds the metadata of the body to `request`.
pub(super) fn with_metadata(request: PutObjectFluentBuilder, metadata: Metadata) -> PutObjectFluentBuilder {
    if metadata.is_empty() {
        return request.content_type("application/json");
    }
    request
        .set_content_type(metadata.content_type)
        .set_cache_control(metadata.cache_control)
        .set_content_encoding(metadata.content_encoding)
        .set_content_disposition(metadata.content_disposition)
        .set_content_language(metadata.content_language)
        .set_metadata(Some(metadata.user.into_iter().collect()))
}

/// Returns the version in a response.
pub(super) fn version(etag: Option<&str>) -> Result<Version, Fault> {
    let what = match etag {
        None | Some("") => "without an ETag",
        // If-Match compares strongly, so a weak ETag never matches. A proxy that compresses responses creates such
        // ETags.
        Some(etag) if etag.starts_with("W/") => "with a weak ETag",
        Some(etag) => return Ok(Version::new(etag)),
    };
    Err(Fault::new(
        ErrorKind::Unsupported,
        format!("the store responded {what}, so the object has no version to compare"),
    )
    .with_help(
        "conditional writes need strong ETags: use a store that returns them, without a proxy that removes \
        them",
    ))
}

/// Returns the ETag of an object with these bytes, which is their MD5. This does not hold for objects that are
/// encrypted with a KMS key.
pub(super) fn etag_of(bytes: &[u8]) -> Version {
    let digits: String = Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Version::new(format!("\"{digits}\""))
}

/// Reads the body, up to the limit of `contents`.
async fn collected(object: &str, mut body: ByteStream, contents: Contents) -> Result<Bytes, StoreError> {
    let mut value = BytesMut::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| broken_off(object, &chain(&error)))?;
        if value.len() + chunk.len() > contents.most_bytes() {
            return Err(contents.too_large(object, None));
        }
        value.extend_from_slice(&chunk);
    }
    Ok(value.freeze())
}

fn broken_off(object: &str, detail: &str) -> StoreError {
    Fault::unavailable(format!("the response to reading {object:?} was interrupted: {detail}")).not_applied()
}
