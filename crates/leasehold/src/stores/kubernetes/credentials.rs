//! The credentials for an API server: a token from the settings, from a file or from a program.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

use super::access::{Plugin, Source};
use crate::clock;
use crate::env::Env;
use crate::error::Error;
use crate::lease::printable;
use crate::stores::over_http::credential_cache::{
    LOAD_LIMIT, Load, Loaded, Loads, NotLoaded, Signed, ended, spawned,
};

/// A token file is read again after this time. Kubernetes replaces a pod's token when a fifth of its lifetime is left,
/// which is at least two minutes.
const READ_AGAIN: Duration = Duration::from_secs(60);

/// For how long a token is used after its file has vanished, unless the server refuses it earlier.
const FILE_LIMIT: Duration = Duration::from_secs(600);

/// How long before its end the token of a program is replaced.
const BEFORE_END: Duration = Duration::from_secs(60);

/// The maximum number of bytes that a program may print.
const MAX_PRINTED: usize = 1 << 20;

/// The value of the header `Authorization`, if there is one.
pub(super) type Bearer = Option<Arc<str>>;

/// The credentials of one store.
pub(super) struct Credentials {
    source: Mutex<Source>,
    /// Reads the source again, before each load.
    again: Box<dyn Fn() -> Result<Source, Error> + Send + Sync>,
    env: Env,
    loads: Loads<Bearer>,
}

impl fmt::Debug for Credentials {
    /// Omits the source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    pub(super) fn new(source: Source, env: Env) -> Self {
        let again = Box::new(|| Err(Error::invalid("the source does not change")));
        Self { source: Mutex::new(source), again, loads: Loads::new(env.clone()), env }
    }

    /// Reads the source with `again` before each load. Keeps the earlier source if that fails.
    pub(super) fn reading(self, again: impl Fn() -> Result<Source, Error> + Send + Sync + 'static) -> Self {
        Self { again: Box::new(again), ..self }
    }

    /// Returns the credentials for the next request.
    pub(super) async fn proof(&self) -> Result<Signed<Bearer>, NotLoaded> {
        self.loads.proof(|| self.load()).await
    }

    /// See [`Loads::accepted`].
    pub(super) fn accepted(&self) -> bool {
        self.loads.accepted()
    }

    /// See [`Loads::refused`].
    pub(super) fn refused(&self, load: u64) -> bool {
        self.loads.refused(load)
    }

    fn load(&self) -> Load<Bearer> {
        let now_us = self.env.now().wall_us();
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.again)() {
            Ok(read) => *source = read,
            Err(error) => tracing::debug!(%error, "the source of credentials could not be read again"),
        }
        match &*source {
            Source::Connection => ended(Ok(Loaded::forever(None))),
            Source::Token(token) => {
                let token = std::str::from_utf8(&token.0).map_err(|_| "the token is not text".to_owned());
                ended(token.and_then(bearer).map(Loaded::forever))
            }
            Source::File(path) => ended(from_file(path).map(|proof| Loaded {
                proof,
                renew_us: now_us.saturating_add(clock::micros(READ_AGAIN)),
                until_us: now_us.saturating_add(clock::micros(FILE_LIMIT)),
            })),
            Source::Plugin(plugin) => spawned(from_plugin(plugin.clone(), self.env.clone())),
        }
    }
}

fn from_file(path: &Path) -> Result<Bearer, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the token's file {} cannot be read: {error}", path.display()))?;
    bearer(&text).map_err(|flaw| format!("{}: {flaw}", path.display()))
}

fn bearer(token: &str) -> Result<Bearer, String> {
    let token = token.trim();
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("there is no token, or it contains characters that are not allowed in a token".to_owned());
    }
    Ok(Some(format!("Bearer {token}").into()))
}

/// The output of a plugin.
#[derive(Deserialize)]
struct Printed {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<String>,
    expiration_timestamp: Option<String>,
    client_certificate_data: Option<String>,
}

/// Runs the plugin as kubectl does, but without a terminal.
async fn from_plugin(plugin: Plugin, env: Env) -> Result<Loaded<Bearer>, String> {
    let shown = plugin.command.display().to_string();
    let mut command = Command::new(&plugin.command);
    command.args(&plugin.args).envs(plugin.env.iter().cloned()).env("KUBERNETES_EXEC_INFO", &plugin.info);
    // Runs the plugin in its own process group, so that Ctrl-C on a terminal does not end it and `leasehold run` does
    // not mistake it for a process that the command left behind.
    command.stdin(Stdio::null()).kill_on_drop(true).process_group(0);
    let output = clock::timeout(&*env.clock, LOAD_LIMIT, command.output()).await;
    let output = output.ok_or_else(|| format!("the plugin {shown} did not end within {LOAD_LIMIT:?}"))?;
    let output = output.map_err(|error| {
        let hint = plugin.hint.as_deref().map(|hint| printable(hint.lines().next().unwrap_or(""), 200));
        format!(
            "the plugin {shown} cannot be run: {error}{}",
            hint.map_or(String::new(), |hint| format!(" ({hint})"))
        )
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
        return Err(format!("the plugin {shown} failed ({}): {}", output.status, printable(last, 200)));
    }
    read_printed(&output.stdout).map_err(|flaw| format!("the plugin {shown} printed {flaw}"))
}

/// Returns the token in the output of a plugin. Errors do not contain the output.
fn read_printed(text: &[u8]) -> Result<Loaded<Bearer>, String> {
    if text.len() > MAX_PRINTED {
        return Err(format!("more than {MAX_PRINTED} bytes"));
    }
    let status = serde_json::from_slice::<Printed>(text).ok().and_then(|printed| printed.status);
    let status = status.ok_or("no ExecCredential with a status")?;
    let Some(token) = status.token else {
        let flaw = match status.client_certificate_data {
            Some(_) => "a client certificate, and leasehold supports only tokens of plugins",
            None => "no token",
        };
        return Err(flaw.to_owned());
    };
    let proof = bearer(&token)?;
    let Some(end) = status.expiration_timestamp else { return Ok(Loaded::forever(proof)) };
    let end: jiff::Timestamp = end.parse().map_err(|_| "an expirationTimestamp that is not a time")?;
    let until_us = u64::try_from(end.as_microsecond()).unwrap_or(0);
    Ok(Loaded { proof, renew_us: until_us.saturating_sub(clock::micros(BEFORE_END)), until_us })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn shown(signed: Result<Signed<Bearer>, NotLoaded>) -> String {
        match signed {
            Ok(signed) => signed.proof.unwrap().to_string(),
            Err(error) => error.detail,
        }
    }

    #[tokio::test]
    async fn a_token_in_a_file_is_read_again_after_a_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let credentials = Credentials::new(Source::File(path.clone()), Env::system());
        assert!(shown(credentials.proof().await).contains("cannot be read"));
        std::fs::write(&path, "one\n").unwrap();
        let first = credentials.proof().await.unwrap();
        assert_eq!(first.proof.as_deref(), Some("Bearer one"));
        std::fs::write(&path, "two").unwrap();
        assert_eq!(shown(credentials.proof().await), "Bearer one", "it is not read for every request");
        credentials.refused(first.load);
        assert_eq!(shown(credentials.proof().await), "Bearer two");
        std::fs::write(&path, "a b").unwrap();
        let load = credentials.proof().await.unwrap().load;
        credentials.refused(load);
        assert!(shown(credentials.proof().await).contains("no token"));
    }

    /// Returns a plugin that prints `text` and exits with `code`.
    fn plugin(folder: &Path, text: &str, code: u8) -> Source {
        let path = folder.join("plugin");
        let script = format!("#!/bin/sh\ncat <<'END'\n{text}\nEND\necho \"not \"$X >&2\nexit {code}\n");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        Source::Plugin(Plugin {
            command: path,
            args: Vec::new(),
            env: vec![("X".into(), "signed in".into())],
            info: "{}".into(),
            hint: None,
        })
    }

    #[tokio::test]
    async fn a_plugin_prints_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let of = |text: &str, code| Credentials::new(plugin(folder.path(), text, code), Env::system());
        let good = r#"{"kind":"ExecCredential","status":{"token":"t","expirationTimestamp":"2999-01-01T00:00:00Z"}}"#;
        assert_eq!(shown(of(good, 0).proof().await), "Bearer t");
        let ended = good.replace("2999", "1999");
        assert!(shown(of(&ended, 0).proof().await).contains("already expired"));
        for (text, code, named) in [
            (good, 3, "not signed in"),
            ("hunter2", 0, "no ExecCredential"),
            (r#"{"status":{"hunter2":1}}"#, 0, "no token"),
            (r#"{"status":{"clientCertificateData":"hunter2"}}"#, 0, "client certificate"),
        ] {
            let error = shown(of(text, code).proof().await);
            assert!(error.contains(named) && !error.contains("hunter2"), "{error}");
        }
        let Source::Plugin(missing) = plugin(folder.path(), "", 0) else { panic!("a plugin") };
        let missing = Plugin { command: "/none/plugin".into(), hint: Some("install it".into()), ..missing };
        let error = shown(Credentials::new(Source::Plugin(missing), Env::system()).proof().await);
        assert!(error.contains("/none/plugin") && error.contains("install it"), "{error}");
    }

    #[test]
    fn output_that_is_too_long_is_reported_as_such() {
        let status = r#"{"status":{"token":"t"}}"#;
        let longest = format!("{status}{}", " ".repeat(MAX_PRINTED - status.len()));
        assert!(read_printed(longest.as_bytes()).is_ok());
        let flaw = read_printed(format!("{longest} ").as_bytes()).map(drop).unwrap_err();
        assert_eq!(flaw, "more than 1048576 bytes");
    }

    #[tokio::test]
    async fn a_plugin_leads_its_own_process_group() {
        let folder = tempfile::tempdir().unwrap();
        let source = plugin(folder.path(), "", 0);
        let script = "#!/bin/sh\nkill -0 -$$ && echo '{\"status\":{\"token\":\"leads\"}}'\n";
        std::fs::write(folder.path().join("plugin"), script).unwrap();
        assert_eq!(shown(Credentials::new(source, Env::system()).proof().await), "Bearer leads");
    }
}
