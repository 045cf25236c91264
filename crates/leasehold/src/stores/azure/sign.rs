//! Signs requests with a key of the account ("Shared Key"), as Azure documents it:
//! <https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key>.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::header::{CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, HeaderMap, IF_MATCH, IF_NONE_MATCH};
use sha2::Sha256;

use super::wire::Request;

/// A key of an account.
pub(super) struct Key(Vec<u8>);

impl Key {
    /// Parses the text of a key. Returns `None` if it is not a key.
    pub(super) fn parse(text: &str) -> Option<Self> {
        STANDARD.decode(text.trim()).ok().filter(|key| !key.is_empty()).map(Self)
    }

    /// Returns the value of the header `Authorization` for a request. `path` is the whole path of the request's URL.
    pub(super) fn sign(&self, account: &str, path: &str, request: &Request, headers: &HeaderMap) -> String {
        // This never fails, because HMAC accepts a key of any length.
        let signature = Hmac::<Sha256>::new_from_slice(&self.0)
            .map(|mac| mac.chain_update(to_sign(account, path, request, headers)).finalize().into_bytes())
            .map(|bytes| STANDARD.encode(bytes))
            .unwrap_or_default();
        format!("SharedKey {account}:{signature}")
    }
}

fn to_sign(account: &str, path: &str, request: &Request, headers: &HeaderMap) -> String {
    let value =
        |value: &reqwest::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).trim().to_owned();
    let header = |name| headers.get(name).map(value).unwrap_or_default();
    let length = request.content.as_ref().map(|content| content.len()).filter(|length| *length > 0);
    let mut lines = vec![
        request.method.to_string(),
        header(CONTENT_ENCODING),
        header(CONTENT_LANGUAGE),
        length.map(|length| length.to_string()).unwrap_or_default(),
        String::new(), // Content-MD5
        header(CONTENT_TYPE),
        String::new(), // Date (x-ms-date is sent instead)
        String::new(), // If-Modified-Since
        header(IF_MATCH),
        header(IF_NONE_MATCH),
        String::new(), // If-Unmodified-Since
        String::new(), // Range
    ];
    let own = headers.iter().map(|(name, text)| (name.as_str().to_owned(), value(text)));
    lines.extend(sorted(own.filter(|(name, _)| name.starts_with("x-ms-")).collect()));
    lines.push(format!("/{account}{path}"));
    lines.extend(sorted(
        request.query.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
    ));
    lines.join("\n")
}

/// Returns a line for each name with its value, in the order of the names. Sorted lines would have another order,
/// because a digit sorts before the colon: `owner2:` before `owner:`.
fn sorted(mut pairs: Vec<(String, String)>) -> impl Iterator<Item = String> {
    pairs.sort_unstable();
    pairs.into_iter().map(|(name, value)| format!("{name}:{value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::azure::config::Target;
    use crate::stores::azure::wire;

    #[test]
    fn the_text_to_sign_is_the_documented_one() {
        let target = Target { account: "acct1".into(), container: "locks".into(), base: "http://h".into() };
        let mut request = wire::list(&target, "a b", None);
        request.headers.insert("x-ms-version", "2023-11-03".parse().unwrap());
        request.headers.insert("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT".parse().unwrap());
        assert_eq!(
            to_sign("acct1", "/locks", &request, &request.headers),
            "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2023-11-03\n\
             /acct1/locks\ncomp:list\nprefix:a b\nrestype:container"
        );
        let request = wire::write(
            &target,
            "x",
            crate::register::Precondition::Absent,
            bytes::Bytes::from_static(b"{}").into(),
        )
        .unwrap();
        assert!(
            to_sign("acct1", "/acct1/locks/x", &request, &request.headers)
                .starts_with("PUT\n\n\n2\n\n\n\n\n\n*\n\n\nx-ms-blob-cache-control:no-store\n")
        );
    }

    #[test]
    fn headers_and_parameters_are_sorted_by_their_names() {
        let target = Target { account: "acct1".into(), container: "locks".into(), base: "http://h".into() };
        let mut request = wire::list(&target, "", None);
        for name in ["x-ms-meta-owner2", "x-ms-meta-owner"] {
            request.headers.insert(name, "v".parse().unwrap());
        }
        request.query = vec![("b2", "v".into()), ("b", "v".into())];
        assert!(
            to_sign("acct1", "/locks", &request, &request.headers)
                .ends_with("\nx-ms-meta-owner:v\nx-ms-meta-owner2:v\n/acct1/locks\nb:v\nb2:v")
        );
    }

    #[test]
    fn a_key_is_base64() {
        assert!(Key::parse("!").is_none() && Key::parse("").is_none());
        assert_eq!(Key::parse("a2V5\n").unwrap().0, b"key");
    }
}
