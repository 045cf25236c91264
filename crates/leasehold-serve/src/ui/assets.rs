//! The script, the style and the icon. Their names contain a hash of their content, so browsers may cache them.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};

/// A file of the dashboard.
pub(super) struct Asset {
    name: String,
    kind: &'static str,
    content: &'static str,
}

pub(super) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("dashboard", "js", "text/javascript; charset=utf-8", include_str!("assets/dashboard.js"))
});
pub(super) static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("dashboard", "css", "text/css; charset=utf-8", include_str!("assets/dashboard.css"))
});
pub(super) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")));

impl Asset {
    fn new(stem: &str, extension: &str, kind: &'static str, content: &'static str) -> Self {
        let hash: String = Sha256::digest(content).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Self { name: format!("{stem}-{hash}.{extension}"), kind, content }
    }

    pub(super) fn path(&self) -> String {
        format!("/ui/assets/{}", self.name)
    }
}

pub(super) async fn asset(Path(file): Path<String>) -> Response {
    let Some(asset) = [&*SCRIPT, &*STYLE, &*ICON].into_iter().find(|asset| asset.name == file) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, asset.content).into_response()
}
