//! Settings. Precedence: option, `LEASEHOLD_<OPTION>`, `config.toml`, default.

#[cfg(any(test, fuzzing))]
#[path = "config/fuzzing.rs"] // With an explicit path, the fuzz target finds it too.
pub(crate) mod fuzzing;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use leasehold::url::StoreUrl;
use serde::Deserialize;

use crate::exit::{FAILED, Failure};

/// The default store.
const DEFAULT_STORE: &str = "sqlite:";

/// The settings from the environment and the configuration file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    path: PathBuf,
    file: File,
    /// Why the file was not read, if this user has no permission.
    unreadable: Option<String>,
}

/// `config.toml`. An unknown key is an error, so that a misspelled key is not ignored.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    store: Option<String>,
    ttl: Option<String>,
    max_hold: Option<String>,
    wait: Option<String>,
    store_timeout: Option<String>,
    conflict_exit_code: Option<u8>,
    owner: Option<String>,
    note: Option<String>,
    on_lost: Option<String>,
    on_deadlock: Option<String>,
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
            Some(path) => Self::from_file(&path, std::fs::read_to_string(&path)),
            None => Ok(Self::default()),
        }
    }

    /// Parses what was read from the file at `path`.
    fn from_file(path: &Path, read: std::io::Result<String>) -> Result<Self, Failure> {
        let error = match read {
            Ok(text) => return Self::from_text(path, &text),
            Err(error) if is_missing(&error) => return Ok(Self::default()),
            Err(error) => error,
        };
        let message = format!("{}: {error}", path.display());
        // A service that was started as another user often has the HOME of root.
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            return Ok(Self { path: path.to_owned(), unreadable: Some(message), ..Self::default() });
        }
        Err(Failure::new(FAILED, "invalid", message).with_help(OTHER_HOME))
    }

    /// Returns a warning if the file was not read.
    pub(crate) fn warning(&self) -> Option<String> {
        self.unreadable.as_ref().map(|why| format!("{why}; continuing without its settings. {OTHER_HOME}"))
    }

    /// Fails if the file was not read, for a setting that may be in it and without which another store would be used.
    fn require_file(&self) -> Result<(), Failure> {
        let Some(why) = &self.unreadable else { return Ok(()) };
        let failure = Failure::new(FAILED, "invalid", format!("{why}; this file may name the store"));
        Err(failure
            .with_help(OTHER_HOME)
            .with_help("or give the URL of the store, in --store or LEASEHOLD_STORE"))
    }

    /// Parses `text`, the content of the file at `path`.
    pub(crate) fn from_text(path: &Path, text: &str) -> Result<Self, Failure> {
        match toml::from_str(text) {
            Ok(file) => Ok(Self { path: path.to_owned(), file, unreadable: None }),
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
        let origin = if flag.is_some() { Origin::Option } else { Origin::Setting };
        let given = self.pick(flag, "store", |text| Ok(text.to_owned()))?;
        let Some(given) = given else {
            self.require_file()?;
            let origin = Origin::Default { has_others: !self.file.stores.is_empty() };
            return Ok(Store { url: DEFAULT_STORE.to_owned(), given: None, origin });
        };
        if let Some(alias) = self.file.stores.get(&given) {
            return Ok(Store { url: absolute(&alias.url), given: Some(given), origin: Origin::Alias });
        }
        if given == DEFAULT_STORE {
            return Ok(Store { url: given, given: None, origin });
        }
        if given.contains(':') {
            let offered = if origin == Origin::Setting { offered(&given) } else { None };
            let url = offered.unwrap_or_else(|| absolute(&given));
            return Ok(Store { given: Some(redacted(&given)), url, origin });
        }
        self.require_file()?;
        let aliases: Vec<&str> = self.file.stores.keys().map(String::as_str).collect();
        let known = match (aliases.is_empty(), self.path.as_os_str().is_empty()) {
            (true, true) => "there is no config.toml that defines aliases".to_owned(),
            (true, false) => format!("{} defines no aliases", self.path.display()),
            (false, _) => format!("{} defines: {}", self.path.display(), aliases.join(", ")),
        };
        let shown = without_secrets(&given);
        let mut failure =
            Failure::new(FAILED, "invalid", format!("{shown:?} is neither a store URL nor an alias"));
        if given.contains(['/', '.']) {
            failure = failure
                .with_help(format!("if it is a file: sqlite:{shown}; if it is a directory: dir:{shown}"));
        }
        Err(failure
            .with_help(known)
            .with_help("an example of a store URL is sqlite:/var/lib/locks.db (see `leasehold help stores`)"))
    }

    /// Returns the aliases of config.toml.
    pub(crate) fn aliases(&self) -> impl Iterator<Item = Store> {
        let store = |(name, alias): (&String, &Alias)| Store {
            url: absolute(&alias.url),
            given: Some(name.clone()),
            origin: Origin::Alias,
        };
        self.file.stores.iter().map(store)
    }

    fn in_file(&self, name: &str) -> Option<String> {
        let file = &self.file;
        match name {
            "store" => file.store.clone(),
            "ttl" => file.ttl.clone(),
            "max-hold" => file.max_hold.clone(),
            "wait" => file.wait.clone(),
            "store-timeout" => file.store_timeout.clone(),
            "conflict-exit-code" => file.conflict_exit_code.map(|code| code.to_string()),
            "owner" => file.owner.clone(),
            "note" => file.note.clone(),
            "on-lost" => file.on_lost.clone(),
            "on-deadlock" => file.on_deadlock.clone(),
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
    origin: Origin,
}

/// Where the URL of a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// In the option `--store`.
    Option,
    /// In `LEASEHOLD_STORE`, or the default store of config.toml.
    Setting,
    /// In an alias of config.toml.
    Alias,
    /// Nowhere. `has_others` says whether config.toml has aliases of other stores.
    Default { has_others: bool },
}

impl Store {
    /// If this is the default store and was not chosen, returns whether config.toml has aliases of others.
    pub(crate) fn is_default(&self) -> Option<bool> {
        match self.origin {
            Origin::Default { has_others } => Some(has_others),
            _ => None,
        }
    }

    /// Returns the URL without secrets.
    pub(crate) fn shown(&self) -> String {
        redacted(&self.url)
    }

    /// Returns the variables that name this store for a command. They show no secrets to those who may read the
    /// environment of a process. If there are none, the command finds the store in the settings of this process.
    pub(crate) fn for_command(&self) -> Vec<(&'static str, Option<String>)> {
        let (shown, whole) = (self.shown(), StoreUrl::parse(&self.url));
        if StoreUrl::parse(&shown).ok() == whole.ok() {
            return vec![(VARIABLE, Some(shown)), (SOCKET, None)];
        }
        match (self.origin, &self.given) {
            (Origin::Alias, Some(alias)) => vec![(VARIABLE, Some(alias.clone())), (SOCKET, None)],
            (Origin::Setting, _) => Vec::new(),
            // Without a socket, the command explains why it cannot open the store.
            _ => vec![(VARIABLE, Some(shown)), (SOCKET, offer(&self.url))],
        }
    }
}

/// The variable that names the store.
const VARIABLE: &str = "LEASEHOLD_STORE";
/// The variable with the name of the socket that has the URL in [`VARIABLE`] with its secrets.
const SOCKET: &str = "LEASEHOLD_STORE_SOCKET";

#[cfg(target_os = "linux")]
fn offer(url: &str) -> Option<String> {
    crate::store_socket::offer(url).ok()
}

#[cfg(not(target_os = "linux"))]
fn offer(_: &str) -> Option<String> {
    None
}

/// Returns the URL that a `leasehold run` offers, if `given` is this URL without its secrets.
#[cfg(target_os = "linux")]
fn offered(given: &str) -> Option<String> {
    StoreUrl::parse(given).ok()?.check_whole().err()?;
    let offered = crate::store_socket::ask(&std::env::var(SOCKET).ok()?)?;
    (redacted(&offered) == given).then_some(offered)
}

#[cfg(not(target_os = "linux"))]
fn offered(_: &str) -> Option<String> {
    None
}

/// Makes the path of a URL like `sqlite:locks.db` or `dir:locks` absolute. Tickets and `LEASEHOLD_STORE` are used in
/// other folders, where the relative path would lead elsewhere, and the lock would have two holders.
fn absolute(url: &str) -> String {
    let is_file = |scheme: &str| ["sqlite", "dir"].iter().any(|file| scheme.eq_ignore_ascii_case(file));
    let parts = url.split_once(':').filter(|(scheme, _)| is_file(scheme));
    let is_other =
        |path: &str| path.is_empty() || path.starts_with(['/', '?', ':']) || path.starts_with("~/");
    let relative = parts.filter(|(_, path)| !is_other(path));
    let here = std::env::current_dir().ok().and_then(|here| here.into_os_string().into_string().ok());
    match (relative, here) {
        (Some((scheme, path)), Some(here)) => {
            let here = here.replace('%', "%25").replace('?', "%3F");
            format!("{scheme}:{}/{path}", here.trim_end_matches('/'))
        }
        _ => url.to_owned(),
    }
}

fn redacted(url: &str) -> String {
    StoreUrl::parse(url).map_or_else(|_| without_secrets(url), |url| url.to_string())
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
    let home = folder_in("XDG_CONFIG_HOME").or_else(|| folder_in("HOME").map(|home| home.join(".config")))?;
    Some(home.join("leasehold/config.toml"))
}

/// Returns the folder in an environment variable, if it is absolute.
pub(crate) fn folder_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

/// The help if config.toml cannot be read.
const OTHER_HOME: &str = "set HOME or XDG_CONFIG_HOME to a folder of this user";

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

    #[test]
    fn a_command_gets_its_store_whole_and_without_secrets() {
        let text = "[stores.prod]\nurl = \"redis://u:hunter2@h/\"\n[stores.test]\nurl = \"redis://u@h/\"";
        let settings = Settings::from_text(Path::new("/config.toml"), text).unwrap();
        let passed = |given: &str| settings.store(Some(given.to_owned())).unwrap().for_command();
        for (given, named) in [
            ("prod", "prod"),
            ("test", "redis://u@h/"),
            ("redis://u@h/", "redis://u@h/"),
            ("rediss://h", "redis://h?tls=on"),
            ("sqlite:", "sqlite:"),
        ] {
            assert_eq!(passed(given), [(VARIABLE, Some(named.to_owned())), (SOCKET, None)]);
        }
        let by_option = passed("redis://u:hunter2@h/");
        assert_eq!(by_option[0], (VARIABLE, Some("redis://u:***@h/".to_owned())));
        assert!(!format!("{by_option:?}").contains("hunter2"), "{by_option:?}");
        let in_file = |store: &str| {
            let text = format!("store = \"{store}\"\n{text}");
            Settings::from_text(Path::new("/config.toml"), &text).unwrap().store(None).unwrap().for_command()
        };
        assert_eq!(in_file("redis://u:hunter2@h/"), []);
        assert_eq!(in_file("prod")[0], (VARIABLE, Some("prod".to_owned())));
    }

    #[test]
    fn an_unreadable_file_stops_only_what_it_may_decide() {
        let path = Path::new("/root/.config/leasehold/config.toml");
        let denied = || Err(std::io::ErrorKind::PermissionDenied.into());
        let settings = Settings::from_file(path, denied()).unwrap();
        assert!(settings.store(Some("redis://h".to_owned())).is_ok());
        let warning = settings.warning().unwrap();
        assert!(warning.contains("/root/.config") && warning.contains("set HOME"), "{warning}");
        // Another store than the one in the file would not exclude its users.
        for given in [None, Some("prod".to_owned())] {
            let failure = settings.store(given).unwrap_err();
            assert!(
                failure.message.contains("/root/.config") && failure.help[0].contains("HOME"),
                "{failure:?}"
            );
        }
        let failure = Settings::from_file(path, Err(std::io::ErrorKind::IsADirectory.into())).unwrap_err();
        assert!(failure.help[0].contains("HOME"), "{failure:?}");
    }
}
