//! Contenders on GCS without leasehold: the algorithm of gcslock, and a baseline of the two calls that any lock needs.

use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use reqwest::{Client, Method, StatusCode};
use serde::Deserialize;

use super::Options;
use super::conditional::{Replace, record};
use super::http::client;

/// The first pause of gcslock.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The algorithm of gcslock (github.com/mco-gh/gcslock, `mutex.go`): it creates an object if there is none, and
/// otherwise retries after 10 ms, doubling the pause each time. A release deletes the object. It has no lease: if a
/// holder dies, the lock stays held.
pub(super) struct GcsLock {
    client: Client,
    endpoint: String,
    bucket: String,
}

impl GcsLock {
    pub(super) fn open(options: &Options) -> Result<Self, String> {
        Ok(Self {
            client: client()?,
            endpoint: options.text("endpoint")?.trim_end_matches('/').to_owned(),
            bucket: options.text("bucket")?.to_owned(),
        })
    }

    /// Repeats a request until its response is one of `answers`.
    async fn retry_until_done(&self, method: Method, url: &str, answers: &[StatusCode]) {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut request = self.client.request(method.clone(), url);
            if method == Method::POST {
                request = request.header("content-type", "text/plain").body("1");
            }
            if let Ok(answer) = request.send().await {
                let status = answer.status();
                // Read the body, because only then can the connection be reused.
                let _ = answer.bytes().await;
                if answers.contains(&status) {
                    return;
                }
            }
            SystemClock.sleep(pause).await;
            pause = pause.saturating_mul(2);
        }
    }
}

impl super::Client for GcsLock {
    type Held = String;

    async fn acquire(&self, lock: &str) -> Result<String, String> {
        let query = format!("name={lock}&uploadType=media&ifGenerationMatch=0");
        let url = format!("{}/upload/storage/v1/b/{}/o?{query}", self.endpoint, self.bucket);
        self.retry_until_done(Method::POST, &url, &[StatusCode::OK]).await;
        Ok(lock.to_owned())
    }

    async fn release(&self, held: String) -> Result<(), String> {
        let url = format!("{}/storage/v1/b/{}/o/{held}", self.endpoint, self.bucket);
        // GCS responds with 204. Accept 200 too, because fake-gcs-server responds with it. The original would not.
        self.retry_until_done(Method::DELETE, &url, &[StatusCode::NO_CONTENT, StatusCode::OK]).await;
        Ok(())
    }

    fn is_held(&self, _: &String) -> Option<bool> {
        None
    }
}

/// Uploads with metadata, as in leasehold, because a record must not be cached.
pub(super) struct Uploads {
    client: Client,
    url: String,
}

/// Separates the parts of an upload: the object's metadata and its content.
const BOUNDARY: &str = "0123456789abcdef0123456789abcdef";

#[derive(Deserialize)]
struct Uploaded {
    generation: String,
}

impl Uploads {
    pub(super) fn open(options: &Options) -> Result<Self, String> {
        let endpoint = options.text("endpoint")?.trim_end_matches('/');
        let bucket = options.text("bucket")?;
        let url = format!("{endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=multipart&fields=generation");
        Ok(Self { client: client()?, url })
    }
}

impl Replace for Uploads {
    /// The generation of the object.
    type Version = String;

    async fn replace(&self, lock: &str, _held: bool, generation: Option<String>) -> Result<String, String> {
        let condition = generation.map(|generation| format!("&ifGenerationMatch={generation}"));
        let about =
            format!(r#"{{"name":"{lock}","contentType":"application/json","cacheControl":"no-store"}}"#);
        let body = format!(
            "--{BOUNDARY}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n\
             --{BOUNDARY}\r\nContent-Type: application/json\r\n\r\n{}\r\n--{BOUNDARY}--\r\n",
            record()
        );
        let request = self.client.post(self.url.clone() + &condition.unwrap_or_default());
        let request = request.header("content-type", format!("multipart/related; boundary={BOUNDARY}"));
        let answer = request.body(body).send().await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(|error| error.to_string())?;
        let uploaded: Result<Uploaded, _> = serde_json::from_slice(&bytes);
        uploaded.map(|uploaded| uploaded.generation).map_err(|error| format!("{status}: {error}"))
    }
}
