//! An issuer that listens on this machine, and its keys.

use std::sync::{Arc, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Redirect, Response};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tokio::sync::watch;

/// A key of an issuer.
pub(super) struct TestKey {
    pub(super) id: &'static str,
    pub(super) algorithm: Algorithm,
    pub(super) secret: EncodingKey,
}

impl TestKey {
    pub(super) fn ed25519(id: &'static str) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new()).unwrap();
        Self { id, algorithm: Algorithm::EdDSA, secret: EncodingKey::from_ed_der(pkcs8.as_ref()) }
    }

    pub(super) fn p256(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self { id, algorithm: Algorithm::ES256, secret: EncodingKey::from_ec_der(pkcs8.as_ref()) }
    }

    pub(super) fn public(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.secret, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.id.to_owned());
        serde_json::to_value(jwk).unwrap()
    }

    pub(super) fn header(&self) -> Header {
        Header { kid: Some(self.id.to_owned()), ..Header::new(self.algorithm) }
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        jsonwebtoken::encode(&self.header(), claims, &self.secret).unwrap()
    }
}

/// The responses of the issuer's server.
#[derive(Clone)]
pub(super) struct Answers {
    pub(super) status: StatusCode,
    /// Changes to its configuration.
    pub(super) changes: Value,
    pub(super) keys: Vec<Value>,
    /// The URL of another server that has the documents.
    pub(super) elsewhere: Option<String>,
}

impl Answers {
    pub(super) fn new(keys: &[&TestKey]) -> Self {
        let keys = keys.iter().map(|key| key.public()).collect();
        Self { status: StatusCode::OK, changes: json!({}), keys, elsewhere: None }
    }

    pub(super) fn with(mut self, changes: Value) -> Self {
        self.changes = changes;
        self
    }
}

/// An issuer that listens on this machine.
pub(super) struct TestIssuer {
    pub(super) url: String,
    answers: Mutex<Answers>,
    /// How many times its keys were requested.
    fetches: watch::Sender<usize>,
    /// Whether the issuer responds.
    pub(super) is_open: watch::Sender<bool>,
}

impl TestIssuer {
    pub(super) async fn start(keys: &[&TestKey]) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let issuer = Arc::new(Self {
            url,
            answers: Mutex::new(Answers::new(keys)),
            fetches: watch::Sender::new(0),
            is_open: watch::Sender::new(true),
        });
        let answering = issuer.clone();
        let router = Router::new().fallback(move |uri: Uri| {
            let issuer = answering.clone();
            async move { issuer.answer(uri.path()).await }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        issuer
    }

    pub(super) async fn answer(&self, path: &str) -> Response {
        if path == "/keys" {
            self.fetches.send_modify(|fetches| *fetches += 1);
        }
        self.is_open.subscribe().wait_for(|is_open| *is_open).await.unwrap();
        let Answers { status, changes, keys, elsewhere } = self.answers.lock().unwrap().clone();
        if let Some(elsewhere) = elsewhere {
            return Redirect::temporary(&format!("{elsewhere}{path}")).into_response();
        }
        let mut document = json!({ "keys": keys });
        if path == "/.well-known/openid-configuration" {
            let keys = format!("{}/keys", self.url);
            document = json!({"issuer": self.url, "jwks_uri": keys, "more": [1]});
            document.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        }
        (status, document.to_string()).into_response()
    }

    pub(super) fn set(&self, answers: Answers) {
        *self.answers.lock().unwrap() = answers;
    }

    pub(super) fn publish(&self, keys: &[&TestKey]) {
        self.set(Answers::new(keys));
    }

    pub(super) fn fetches(&self) -> usize {
        *self.fetches.borrow()
    }

    pub(super) async fn fetched(&self, times: usize) {
        self.fetches.subscribe().wait_for(|fetches| *fetches >= times).await.unwrap();
    }

    /// Returns an access file with this issuer.
    pub(super) fn file(&self) -> String {
        format!(
            r#"
            [[issuer]]
            name = "test"
            url = "{}"
            audience = "locks"
            [[rule]]
            issuer = "test"
            claims = {{ team = "my/*" }}
            prefix = "ci/{{team:2}}/"
            allow = ["read", "acquire"]
            "#,
            self.url
        )
    }
}
