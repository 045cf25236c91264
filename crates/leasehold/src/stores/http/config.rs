//! The address of the server, and the token for it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderValue;
use tokio::task::spawn_blocking;

use crate::clock::{Clock, timeout};
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::over_http::transport::Transport;
use crate::url::{CheckedUrl, StoreUrl, checked_url};

/// The variable with the bearer token.
const VARIABLE: &str = "LEASEHOLD_HTTP_TOKEN";

/// The longest token. Servers do not accept longer tokens.
const MAX_TOKEN: usize = 8 * 1024;

/// How long a request waits for a read of the token file, which may be on another machine.
const FILE_LIMIT: Duration = Duration::from_secs(1);

/// A server, and how to reach it.
pub(super) struct Config {
    /// The server's URL, without `/` at its end.
    pub(super) base: String,
    pub(super) transport: Transport,
    pub(super) token: Option<BearerToken>,
}

/// A bearer token. A secret.
pub(super) struct BearerToken {
    /// The file with the token, if it can be read again.
    file: Option<String>,
    /// Locked while the file is read.
    reading: Arc<tokio::sync::Mutex<()>>,
    /// The value of the header `Authorization`.
    latest: Mutex<HeaderValue>,
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken")
    }
}

impl Config {
    /// Reads the settings and the token.
    pub(super) fn from_url(url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let token = match url.text("token_file") {
            Some(path) => Some(token_in_file(&path)?),
            None => token_of(std::env::var(VARIABLE).ok())?,
        };
        Self::with_token(&url, token)
    }

    fn with_token(url: &CheckedUrl, token: Option<BearerToken>) -> Result<Self, Error> {
        let (base, transport) = (base(&url.url)?, Transport::of(url));
        transport.check_secrecy(&base, "the token and the tickets")?;
        Ok(Self { base, transport, token })
    }
}

/// Returns the URL of the server, to which requests append their path.
fn base(url: &StoreUrl) -> Result<String, Error> {
    let like = "the URL of a server is like https://locks.example.com or http://127.0.0.1:7420";
    // The text after an encoded `@` would be taken as the host.
    let host = url.authority().filter(|host| !host.is_empty() && !host.contains([',', '@']));
    let Some(host) = host else {
        return Err(Error::invalid("the URL names no server, or several").with_help(like));
    };
    let base = format!("{}://{host}{}", url.scheme(), url.path());
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    if !url.path().bytes().all(plain) || url.path().split('/').any(|part| part == "." || part == "..") {
        return Err(Error::invalid(format!(
            "{base:?} has a path with characters that are not allowed there"
        ))
        .with_help("a path has letters, digits and -._~"));
    }
    checked_url(&base, "the server").map_err(|error| error.with_help(like))
}

/// Returns the token in the value of the variable. An empty value counts as none.
fn token_of(value: Option<String>) -> Result<Option<BearerToken>, Error> {
    value.filter(|value| !value.is_empty()).map(|value| checked(&value, VARIABLE)).transpose()
}

fn token_in_file(path: &str) -> Result<BearerToken, Error> {
    let help = "write token_file=/run/secrets/locks, the absolute path of a file that holds the token and nothing else";
    let unreadable = |error| {
        Error::invalid(format!("the option `token_file` names {path:?}, which cannot be read: {error}"))
            .with_help(help)
    };
    let token = checked(&read(path).map_err(unreadable)?, "the file of `token_file`")?;
    // A pipe can be read only once.
    let is_regular = std::fs::metadata(path).map_err(unreadable)?.is_file();
    Ok(BearerToken { file: is_regular.then(|| path.to_owned()), ..token })
}

/// Reads a file, up to slightly more than the longest token.
fn read(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_TOKEN as u64 + 3).read_to_string(&mut text)?;
    Ok(text)
}

/// Checks that the token can be sent in a header. Errors do not contain it.
fn checked(token: &str, source: &str) -> Result<BearerToken, Error> {
    let header = header(token).ok_or_else(|| {
        Error::invalid(format!("{source} contains no token: a token is one word of visible ASCII characters")).with_help(
            "use a token whose SHA-256 is in the server's access file, a token of an issuer in that file, or the token that `leasehold serve` printed",
        )
    })?;
    Ok(BearerToken { file: None, reading: Arc::default(), latest: Mutex::new(header) })
}

/// Returns the value of the header `Authorization` for the token in `text`.
fn header(text: &str) -> Option<HeaderValue> {
    let token = text.trim_end_matches(['\r', '\n']);
    if !(1..=MAX_TOKEN).contains(&token.len()) || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

impl BearerToken {
    #[cfg(test)]
    pub(super) fn for_tests(token: &str) -> Self {
        checked(token, "the test").unwrap()
    }

    /// Returns the value of the header `Authorization` for the next request. Reads the file again, because another
    /// program may replace a token that expires soon. Uses the previous token if the file has none, as in the middle of
    /// a replacement, or if the read takes too long.
    pub(super) async fn header(&self, clock: &dyn Clock) -> HeaderValue {
        let mut found = None;
        // Allows one read at a time, because reads that hang must not use up the threads for blocking work.
        if let Some(file) = self.file.clone()
            && let Ok(reading) = self.reading.clone().try_lock_owned()
        {
            let read = spawn_blocking(move || {
                let _reading = reading;
                read(&file)
            });
            if let Some(Ok(Ok(text))) = timeout(clock, FILE_LIMIT, read).await {
                found = header(&text);
            }
        }
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(header) = found {
            *latest = header;
        }
        latest.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn config(url: &str) -> Result<Config, Error> {
        let url = StoreUrl::parse(url).unwrap().checked(&mut StoreOptions::default())?;
        Config::with_token(&url, None)
    }

    /// The text of a pipe can be read only once. The next read would wait for a writer.
    #[cfg(unix)]
    #[tokio::test]
    async fn a_pipe_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::write(pipe, "hunter2\n").unwrap()
        });
        let token = token_in_file(pipe.to_str().unwrap()).unwrap();
        writer.join().unwrap();
        assert_eq!(token.header(&SystemClock).await, "Bearer hunter2");
        assert!(token.file.is_none());
    }

    #[test]
    fn plain_http_beyond_this_machine_needs_consent() {
        for fine in [
            "https://locks.example.com",
            "https://locks.example.com:8443/team/?ca=/ca.pem",
            "http://127.0.0.1:7420",
            "http://[::1]:7420/",
            "http://localhost",
            "http://locks.example.com?plaintext=on",
            "http://localhost?proxy=http://p:1&plaintext=true",
        ] {
            let base = config(fine).map(|config| config.base).unwrap();
            assert!(!base.ends_with('/') && fine.starts_with(&base), "{base}");
        }
        for refused in
            ["http://locks.example.com", "http://10.0.0.1:7420", "http://localhost?proxy=http://p:1"]
        {
            let error = config(refused).err().unwrap();
            assert!(error.help()[0].contains("plaintext=on"), "{error:?}");
        }
    }

    #[test]
    fn a_url_without_one_server_is_refused_without_its_secret() {
        for bad in [
            "https:",
            "https://",
            "https://a,b",
            "http://localhost:80%40hunter2.example",
            "https://a/x%20y",
            "https://a/../b",
        ] {
            let error = config(bad).err().unwrap();
            assert!(!error.help().is_empty(), "{bad}: {error:?}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_token_is_one_word_from_the_variable_or_the_file() {
        assert!(token_of(None).unwrap().is_none() && token_of(Some(String::new())).unwrap().is_none());
        let token = token_of(Some("hunter2".to_owned())).unwrap().unwrap();
        let sent = token.header(&SystemClock).await;
        assert_eq!(
            (sent.to_str().unwrap(), format!("{token:?} {sent:?}").as_str()),
            ("Bearer hunter2", "BearerToken Sensitive")
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let path = file.to_str().unwrap();
        for (text, is_good) in [
            ("hunter2\n", true),
            ("hunter2\r\n", true),
            ("hunter2 x", false),
            ("\n", false),
            ("hunté2", false),
        ] {
            std::fs::write(&file, text).unwrap();
            let token = token_in_file(path);
            assert_eq!(token.is_ok(), is_good, "{text:?}");
            assert!(!format!("{token:?}").contains("hunt"), "{token:?}");
        }
        std::fs::write(&file, "one\n").unwrap();
        let token = token_in_file(path).unwrap();
        for (text, sent) in [
            (Some("two"), "Bearer two"), // another program has replaced it
            (Some(""), "Bearer two"),
            (Some(&*"x".repeat(3 * MAX_TOKEN)), "Bearer two"),
            (None, "Bearer two"),
            (Some("three"), "Bearer three"),
        ] {
            match text {
                Some(text) => std::fs::write(&file, text).unwrap(),
                None => std::fs::remove_file(&file).unwrap(),
            }
            assert_eq!(token.header(&SystemClock).await, sent);
        }
        // A read that hangs.
        let reading = token.reading.clone().lock_owned().await;
        std::fs::write(&file, "four").unwrap();
        assert_eq!(token.header(&SystemClock).await, "Bearer three");
        drop(reading);
        assert_eq!(token.header(&SystemClock).await, "Bearer four");
        assert!(token_in_file("/nowhere/token").unwrap_err().to_string().contains("/nowhere/token"));
    }
}
