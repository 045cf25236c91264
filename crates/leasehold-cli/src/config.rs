//! Settings. Precedence: option, `LEASEHOLD_<OPTION>`, `config.toml`, default.

#[cfg(any(test, fuzzing))]
#[path = "config/fuzzing.rs"] // With an explicit path, the fuzz target finds it too.
pub(crate) mod fuzzing;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::exit::{FAILED, Failure};

/// The default store.
const DEFAULT_STORE: &str = "sqlite:";

/// The settings from the environment and the configuration file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    path: PathBuf,
    file: File,
}

/// `config.toml`. An unknown key is an error, so that a misspelled key is not ignored.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    store: Option<String>,
    ttl: Option<String>,
    wait: Option<String>,
    store_timeout: Option<String>,
    conflict_exit_code: Option<u8>,
    owner: Option<String>,
    note: Option<String>,
    on_lost: Option<String>,
    grace: Option<String>,
    color: Option<String>,
    #[serde(default)]
    stores: BTreeMap<String, Alias>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Alias {
    url: String,
}

impl Settings {
    /// Reads `$XDG_CONFIG_HOME/leasehold/config.toml`, if there is one.
    pub(crate) fn load() -> Result<Self, Failure> {
        match config_path() {
            Some(path) => Self::from_file(&path),
            None => Ok(Self::default()),
        }
    }

    fn from_file(path: &Path) -> Result<Self, Failure> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if is_missing(&error) => return Ok(Self::default()),
            Err(error) => return Err(bad_file(path, &error.to_string())),
        };
        Self::from_text(path, &text)
    }

    /// Parses `text`, the content of the file at `path`.
    pub(crate) fn from_text(path: &Path, text: &str) -> Result<Self, Failure> {
        match toml::from_str(text) {
            Ok(file) => Ok(Self { path: path.to_owned(), file }),
            Err(error) => {
                let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
                let line = before.matches('\n').count() + 1;
                // Show only the message, because the line itself may hold a password.
                Err(bad_file(path, &format!("line {line}: {}", without_values(error.message()))))
            }
        }
    }

    /// Returns the value of setting `name` (as in `--name`), parsed by `parse`. `None` means the default.
    ///
    /// The error for an invalid value names its source.
    pub(crate) fn pick<T>(
        &self,
        flag: Option<T>,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Failure> {
        if flag.is_some() {
            return Ok(flag);
        }
        if let Some((variable, text)) = variable(name)? {
            return parse(&text)
                .map(Some)
                .map_err(|error| Failure::usage(format!("invalid value {text:?} for {variable}: {error}")));
        }
        let Some(text) = self.in_file(name) else { return Ok(None) };
        let wrong =
            |error| bad_file(&self.path, &format!("invalid value {text:?} for `{}`: {error}", key(name)));
        parse(&text).map(Some).map_err(wrong)
    }

    /// Returns the value of a switch: the option, or else `LEASEHOLD_<NAME>`.
    pub(crate) fn switch(flag: bool, name: &str) -> Result<bool, Failure> {
        if flag {
            return Ok(true);
        }
        let Some((variable, text)) = variable(name)? else { return Ok(false) };
        match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err(Failure::usage(format!("invalid value {text:?} for {variable}: expected 1 or 0"))),
        }
    }

    /// Returns the store to use, with aliases resolved.
    pub(crate) fn store(&self, flag: Option<String>) -> Result<Store, Failure> {
        let given = self.pick(flag, "store", |text| Ok(text.to_owned()))?;
        let Some(given) = given else {
            return Ok(Store { url: DEFAULT_STORE.to_owned(), given: None });
        };
        if let Some(alias) = self.file.stores.get(&given) {
            return Ok(Store { url: absolute(&alias.url), given: Some(given) });
        }
        if given == DEFAULT_STORE {
            return Ok(Store { url: given, given: None });
        }
        if given.contains(':') {
            return Ok(Store { given: Some(redacted(&given)), url: absolute(&given) });
        }
        let aliases: Vec<&str> = self.file.stores.keys().map(String::as_str).collect();
        let known = match (aliases.is_empty(), self.path.as_os_str().is_empty()) {
            (true, true) => "there is no config.toml that defines aliases".to_owned(),
            (true, false) => format!("{} defines no aliases", self.path.display()),
            (false, _) => format!("{} defines: {}", self.path.display(), aliases.join(", ")),
        };
        let shown = without_secrets(&given);
        Err(Failure::new(FAILED, "invalid", format!("{shown:?} is neither a store URL nor an alias"))
            .with_help(known)
            .with_help("an example of a store URL is sqlite:/var/lib/locks.db (see `leasehold help stores`)"))
    }

    /// Returns the aliases of config.toml.
    pub(crate) fn aliases(&self) -> impl Iterator<Item = Store> {
        let store =
            |(name, alias): (&String, &Alias)| Store { url: absolute(&alias.url), given: Some(name.clone()) };
        self.file.stores.iter().map(store)
    }

    fn in_file(&self, name: &str) -> Option<String> {
        let file = &self.file;
        match name {
            "store" => file.store.clone(),
            "ttl" => file.ttl.clone(),
            "wait" => file.wait.clone(),
            "store-timeout" => file.store_timeout.clone(),
            "conflict-exit-code" => file.conflict_exit_code.map(|code| code.to_string()),
            "owner" => file.owner.clone(),
            "note" => file.note.clone(),
            "on-lost" => file.on_lost.clone(),
            "grace" => file.grace.clone(),
            "color" => file.color.clone(),
            _ => None,
        }
    }
}

/// A store, with the name that the user gave it.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) url: String,
    /// The URL or alias as given, without secrets; `None` for the default.
    pub(crate) given: Option<String>,
}

impl Store {
    /// Returns the URL without secrets.
    pub(crate) fn shown(&self) -> String {
        redacted(&self.url)
    }
}

/// Makes the path of a URL like `sqlite:locks.db` absolute. Tickets and `LEASEHOLD_STORE` are used in other folders,
/// where the relative path would create another file, and the lock would have two holders.
fn absolute(url: &str) -> String {
    let path = url.split_once(':').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("sqlite"));
    let relative =
        path.map(|(_, path)| path).filter(|path| !path.starts_with(['/', '?', ':']) && !path.is_empty());
    let here = std::env::current_dir().ok().and_then(|here| here.into_os_string().into_string().ok());
    match (relative, here) {
        (Some(path), Some(here)) => {
            let here = here.replace('%', "%25").replace('?', "%3F");
            format!("sqlite:{}/{path}", here.trim_end_matches('/'))
        }
        _ => url.to_owned(),
    }
}

fn redacted(url: &str) -> String {
    leasehold::url::StoreUrl::parse(url).map_or_else(|_| without_secrets(url), |url| url.to_string())
}

/// Removes from `given`, which should be a URL, the parts that hold users, passwords and options. For error messages.
pub(crate) fn without_secrets(given: &str) -> String {
    let (place, options) = match given.split_once('?') {
        Some((place, _)) => (place, "?..."),
        None => (given, ""),
    };
    let scheme = place.find("://").map_or(0, |end| end + 3);
    let place = match place.rfind('@') {
        Some(at) if at >= scheme => format!("{}***{}", &place[..scheme], &place[at..]),
        Some(at) => format!("***{}", &place[at..]),
        None => place.to_owned(),
    };
    format!("{}{options}", leasehold::lease::printable(&place, 200))
}

/// Removes the quoted value from an error message, because it may be a password.
fn without_values(message: &str) -> String {
    let (before, after) = match (message.find('"'), message.rfind('"')) {
        (Some(first), Some(last)) if first < last => (&message[..first], &message[last + 1..]),
        _ => return message.replace('\n', " "),
    };
    format!("{before}\"...\"{after}").replace('\n', " ")
}

fn config_path() -> Option<PathBuf> {
    let absolute = |key: &str| std::env::var_os(key).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
    Some(home.join("leasehold/config.toml"))
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

fn bad_file(path: &Path, what: &str) -> Failure {
    Failure::new(FAILED, "invalid", format!("{}: {what}", path.display()))
        .with_help("for the list of keys, see `leasehold help environment`")
}

/// Returns the environment variable of setting `name`, and its value. An empty value counts as not set.
fn variable(name: &str) -> Result<Option<(String, String)>, Failure> {
    let variable = format!("LEASEHOLD_{}", key(name).to_ascii_uppercase());
    match std::env::var_os(&variable).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) if text.is_empty() => Ok(None),
        Some(Ok(text)) => Ok(Some((variable, text))),
        Some(Err(_)) => Err(Failure::usage(format!("{variable} is not UTF-8"))),
    }
}

fn key(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_url_is_quoted_without_secrets() {
        for (given, shown) in [
            ("counter.json", "counter.json"),
            ("s3//bucket/x?secret=hunter2", "s3//bucket/x?..."),
            ("s3://id:hunter2@/x", "s3://***@/x"),
            ("id:hunter2@s3://x", "***@s3://x"),
            ("id:hun@ter2@host", "***@host"),
            ("@", "***@"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(given), shown);
        }
    }
}
