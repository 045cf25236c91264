//! A store URL whose options were checked against the table of its scheme, for the store to read.

use std::time::Duration;

use super::StoreUrl;
use super::option::{Kind, UrlOption, duration, switch};
use super::schemes::{self, Location, SCHEMES, Scheme};
use crate::error::Error;
use crate::lease::StoreOptions;

/// A store URL whose options are all known and valid.
#[derive(Clone, Debug)]
pub(crate) struct CheckedUrl {
    pub(crate) url: StoreUrl,
    scheme: &'static Scheme,
}

impl StoreUrl {
    /// Checks the URL of a store of locks, and sets the options that all stores share in `options`.
    pub(crate) fn checked(self, options: &mut StoreOptions) -> Result<CheckedUrl, Error> {
        let checked = CheckedUrl::new(self, true)?;
        if let Some(on) = checked.maybe("store_clock") {
            options.store_clock = on;
        }
        if let Some(margin) = checked.get("margin").and_then(duration) {
            options.margin = margin;
        }
        match checked.scheme.option("store_clock") {
            None if !options.store_clock => Err(checked.scheme.unknown("store_clock", true)),
            _ => Ok(checked),
        }
    }

    /// Returns the error for a scheme that is not in the table.
    pub(crate) fn unknown_scheme(&self) -> Error {
        let schemes: Vec<_> = SCHEMES.iter().map(|scheme| scheme.name).collect();
        Error::invalid(format!("there is no store `{}:`", self.scheme()))
            .with_help(format!("the stores are: {}", schemes.join(", ")))
    }

    /// Checks the URL of an object.
    #[allow(dead_code, reason = "only some stores keep objects")]
    pub(crate) fn checked_object(self) -> Result<CheckedUrl, Error> {
        CheckedUrl::new(self, false)
    }
}

#[allow(dead_code, reason = "not every store has options of each kind")]
impl CheckedUrl {
    fn new(url: StoreUrl, of_locks: bool) -> Result<Self, Error> {
        url.check_whole()?;
        let scheme = schemes::find(url.scheme()).ok_or_else(|| url.unknown_scheme())?;
        if let Some(help) = scheme.no_login.filter(|_| url.user().is_some() || url.password().is_some()) {
            return Err(Error::invalid(format!(
                "credentials do not belong in a `{}:` store URL",
                scheme.name
            ))
            .with_help(help));
        }
        for (name, value) in &url.options {
            let option = scheme.option(name).filter(|option| of_locks || !option.of_locks);
            if let Some(flaw) = option.ok_or_else(|| scheme.unknown(name, of_locks))?.flaw(value) {
                return Err(flaw);
            }
        }
        if matches!(scheme.location, Location::File) && url.path().starts_with("~/") {
            return Err(Error::invalid(format!(
                "{:?} begins with `~`, which only a shell replaces",
                url.path()
            ))
            .with_help("write the whole path, or $HOME instead of `~`"));
        }
        if let Location::Name(what, is_name) = scheme.location {
            let name = url.authority().unwrap_or("");
            if !is_name(name) {
                let message = match name {
                    "" => format!("the store URL names no {what}"),
                    _ => format!("{name:?} is not the name of a {what}"),
                };
                return Err(Error::invalid(message).with_help(scheme.form));
            }
        }
        Ok(Self { url, scheme })
    }

    /// Returns what its URLs are like.
    pub(crate) fn form(&self) -> &'static str {
        self.scheme.form
    }

    /// Returns the name of the bucket or the like.
    pub(crate) fn name(&self) -> String {
        self.url.authority().unwrap_or_default().to_owned()
    }

    /// Returns the default port of hosts.
    pub(crate) fn port(&self) -> u16 {
        if let Location::Hosts { port, .. } = self.scheme.location { port } else { 0 }
    }

    /// Returns `path` without `/` at either end. The path is below the location, at most `max` bytes long, and may be
    /// empty.
    pub(crate) fn prefix(&self, path: &str, max: usize) -> Result<String, Error> {
        let prefix = path.strip_prefix('/').unwrap_or(path);
        let prefix = prefix.strip_suffix('/').filter(|prefix| !prefix.is_empty()).unwrap_or(prefix);
        match flaw_of_path(prefix, max) {
            Some(flaw) if !prefix.is_empty() => {
                Err(Error::invalid(format!("the prefix {prefix:?} {flaw}")).with_help(self.scheme.form))
            }
            _ => Ok(prefix.to_owned()),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        debug_assert!(!cfg!(test) || self.scheme.option(name).is_some() || name == "store_clock", "{name}");
        self.url.option(name)
    }

    /// Returns the value of an option.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    /// Returns the value of an option whose default is a value.
    pub(crate) fn text_or_default(&self, name: &str) -> &str {
        self.get(name).or_else(|| self.scheme.option(name)?.default_value()).unwrap_or_default()
    }

    /// Returns the path of a file, or the URL of a host without slashes at its end.
    pub(crate) fn location(&self, name: &str) -> Option<String> {
        self.get(name).map(|text| text.trim_end_matches('/').to_owned())
    }

    /// Returns the value of a switch, if the URL has it.
    pub(crate) fn maybe(&self, name: &str) -> Option<bool> {
        self.get(name).and_then(switch)
    }

    /// Returns the value of a switch whose default is a value.
    pub(crate) fn switch(&self, name: &str) -> bool {
        switch(self.text_or_default(name)).unwrap_or_default()
    }

    /// Returns the value of a duration whose default is a value.
    pub(crate) fn duration(&self, name: &str) -> Duration {
        duration(self.text_or_default(name)).unwrap_or_default()
    }

    /// Returns what the word of an option means. `words` are all its words.
    pub(crate) fn word<T: Clone>(&self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let all = |option: &UrlOption| match option.kind {
            Kind::Word(all) => all.iter().all(|word| words.iter().any(|(name, _)| name == word)),
            _ => false,
        };
        debug_assert!(!cfg!(test) || self.scheme.option(name).is_some_and(all), "{name}");
        let word = self.get(name)?;
        words.iter().find(|(name, _)| *name == word).map(|(_, meaning)| meaning.clone())
    }
}

/// Returns what is wrong with the characters or the segments of `path`.
pub(crate) fn flaw_of_path(path: &str, max: usize) -> Option<String> {
    if path.len() > max {
        Some(format!("is longer than {max} bytes"))
    } else if path.chars().any(crate::types::is_unprintable) {
        Some("contains a control or invisible character".to_owned())
    } else if path.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        // Clients, proxies and stores disagree on the meaning of such segments.
        Some("has an empty, `.` or `..` segment".to_owned())
    } else {
        None
    }
}

impl Scheme {
    pub(super) fn option(&self, name: &str) -> Option<&'static UrlOption> {
        self.all_options().find(|option| option.name == name)
    }

    pub(super) fn all_options(&self) -> impl Iterator<Item = &'static UrlOption> + use<> {
        self.options.iter().flat_map(|group| group.iter())
    }

    /// Returns the error for an option that is not in the table.
    fn unknown(&self, name: &str, of_locks: bool) -> Error {
        let mut error = Error::invalid(format!("`{}:` stores have no option {name:?}", self.name));
        if let Some((_, help)) = self.missing.iter().find(|(missing, _)| *missing == name) {
            error = error.with_help(*help);
        }
        let names =
            || self.all_options().filter(|option| of_locks || !option.of_locks).map(|option| option.name);
        let close = names().map(|known| (distance(known, name), known)).min();
        if let Some((0..=2, close)) = close {
            error = error.with_help(format!("did you mean `{close}`?"));
        }
        error.with_help(format!("its options are: {}", names().collect::<Vec<_>>().join(", ")))
    }
}

/// Returns how many letters must be changed, added or removed to turn `one` into `other`.
fn distance(one: &str, other: &str) -> usize {
    if one.len().abs_diff(other.len()) > 2 {
        return usize::MAX; // Also saves the time for a very long name.
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (n, left) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], n + 1);
        for (m, right) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(left != right);
            diagonal = row[m + 1];
            row[m + 1] = changed.min(diagonal + 1).min(row[m] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::super::schemes::SCHEMES;
    use super::*;
    use crate::error::ErrorKind;

    /// Values that options with text refuse. Each other kind has its own, for all its options.
    const BAD_TEXTS: &[(&str, &[&str])] = &[
        ("region", &["", "Europe/Berlin"]),
        ("profile", &[""]),
        ("kms_key", &["", "my key"]),
        ("expected_bucket_owner", &["me", "11112222333"]),
        ("partition_key", &["", "a\n"]),
        ("tags", &["team", ":x", "a:b,"]),
        ("impersonate", &["locks", "a/b@c.d", "@c.d"]),
        ("user_project", &["My Project", ""]),
        ("server_name", &["a b", ""]),
        ("context", &[""]),
        ("table", &["", "a.b.c", "a\"b", "a\nb"]),
        ("prefix", &["/x", "a//b", "a\nb"]),
        ("master", &["", "a b"]),
        ("sentinel_user", &[""]),
    ];

    fn checked(scheme: &str, options: &[(&str, &str)]) -> Result<CheckedUrl, Error> {
        let mut url = StoreUrl::parse(&format!("{scheme}://abc"))?;
        url.options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        url.checked(&mut StoreOptions::default())
    }

    fn bad_values(option: &UrlOption) -> Vec<&'static str> {
        match option.kind {
            Kind::Switch => vec!["maybe", "On"],
            Kind::Duration(_) => vec!["5", "s", "5 s", "-1s", "99999999999999999999s", "1.5s", "49h"],
            Kind::Word(_) => vec!["", "x"],
            Kind::File(_) => vec!["", "key.pem", "/a\nb"],
            Kind::Url(_) => vec!["", "localhost:9000", "ftp://h", "http://", "http://a b", "socks5://h:1"],
            Kind::Variable => vec!["", "locks", "A B", "1A"],
            Kind::Text(..) => BAD_TEXTS.iter().find(|(name, _)| *name == option.name).unwrap().1.to_vec(),
        }
    }

    fn good_value(option: &UrlOption) -> &'static str {
        match option.kind {
            Kind::Switch => "on",
            Kind::Duration(_) => "5s",
            Kind::Word(words) => words[0],
            Kind::File(_) => "/f",
            Kind::Url(_) => "https://h",
            Kind::Variable => "P",
            Kind::Text(_, _, example) => example,
        }
    }

    /// `leasehold run` passes the shown URL to its command.
    #[test]
    fn a_value_of_its_kind_is_accepted_and_shown() {
        for scheme in SCHEMES {
            for option in scheme.all_options() {
                for value in [Some(good_value(option)), option.default_value()].into_iter().flatten() {
                    let checked = checked(scheme.name, &[(option.name, value)]).unwrap();
                    assert_eq!(StoreUrl::parse(&checked.url.to_string()).unwrap(), checked.url);
                }
            }
        }
    }

    /// A new row of the table needs no test of its own.
    #[test]
    fn every_option_refuses_what_is_not_of_its_kind() {
        for scheme in SCHEMES {
            for option in scheme.all_options() {
                for value in bad_values(option) {
                    let error = checked(scheme.name, &[(option.name, value)]).unwrap_err();
                    let shown = format!("{}: {} = {value:?}: {error:?}", scheme.name, option.name);
                    assert_eq!(error.kind(), ErrorKind::Invalid, "{shown}");
                    assert!(error.to_string().contains(option.name) && !error.help().is_empty(), "{shown}");
                }
                assert!(!option.help.is_empty() && !option.default.is_empty(), "{}", option.name);
            }
            let mut names: Vec<_> = scheme.all_options().map(|option| option.name).collect();
            names.sort_unstable();
            assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
        }
    }

    /// The user may have written the secret instead of the place where it is.
    #[test]
    fn a_secret_in_the_wrong_place_is_not_shown() {
        const SECRET: &str = "hunter2-9f3k";
        let login = format!("http://u:{SECRET}@h");
        for scheme in SCHEMES {
            let secret =
                scheme.all_options().filter(|option| option.secret).map(|option| (option.name, SECRET));
            let logins = scheme.all_options().map(|option| (option.name, login.as_str()));
            for (name, value) in secret.chain(logins).chain([("secret_key", SECRET), ("password", SECRET)]) {
                let mut url = StoreUrl::parse(&format!("{}://abc", scheme.name)).unwrap();
                url.options.insert(name.to_owned(), value.to_owned());
                assert!(!format!("{url} {url:?}").contains(SECRET), "{url}");
                if let Err(error) = url.checked(&mut StoreOptions::default()) {
                    assert!(!format!("{error} {error:?}").contains(SECRET), "{name}: {error:?}");
                }
            }
            if scheme.no_login.is_some() {
                for login in ["id", "id:hunter2"] {
                    let url = StoreUrl::parse(&format!("{}://{login}@abc", scheme.name)).unwrap();
                    let error = url.checked(&mut StoreOptions::default()).unwrap_err();
                    assert!(
                        error.to_string().contains("credentials") && !error.help().is_empty(),
                        "{error:?}"
                    );
                    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
                }
            }
        }
    }

    #[test]
    fn an_unknown_option_is_an_error_that_names_the_known_ones() {
        let help = |scheme: &str, option: &str| {
            let error = checked(scheme, &[(option, "x")]).unwrap_err();
            assert!(error.to_string().contains(option), "{error:?}");
            error.help().join("; ")
        };
        let s3 = help("s3", "regoin");
        assert!(s3.contains("did you mean `region`?") && s3.contains("path_style"), "{s3}");
        assert!(help("s3", "regi").contains("did you mean `region`?"));
        assert!(help("s3", "protocl").contains("did you mean `protocol`?"));
        assert!(!help("s3", "access_key_id").contains("did you mean"));
        assert!(
            help("s3", "endpoint").starts_with("write https://")
                && !help("s3", "endpoint").contains("endpoint=")
        );
        let error = checked("s3", &[("protocol", "x")]).unwrap_err();
        assert!(error.to_string().contains("not `lease` or `existence`"), "{error:?}");
        assert!(help("postgres", "sslmode").contains("tls=on"));
        assert!(help("redis", "store_clock").contains("NTP"));
        let error = StoreUrl::parse("s3://abc/o?protocol=lease").unwrap().checked_object().unwrap_err();
        assert!(!error.help()[0].contains("protocol"), "{error:?}");
        assert!(checked("floppy", &[]).unwrap_err().help()[0].contains("sqlite"));
    }

    #[test]
    fn values_are_read_by_their_kind() {
        let url = checked("redis", &[("notify", "off"), ("failover_grace", "2m")]).unwrap();
        assert_eq!((url.switch("notify"), url.maybe("tls"), url.switch("plaintext")), (false, None, false));
        assert_eq!(url.duration("failover_grace"), Duration::from_secs(120));
        assert_eq!(checked("redis", &[]).unwrap().duration("failover_grace"), Duration::from_secs(60));
        for (text, seconds) in [("1500ms", 1.5), ("3s", 3.0), ("1h", 3_600.0), ("48h", 172_800.0)] {
            let url = checked("redis", &[("failover_grace", text)]).unwrap();
            assert_eq!(url.duration("failover_grace"), Duration::from_secs_f64(seconds), "{text}");
        }
        let url = checked("s3", &[("endpoint", "http://h:1/"), ("protocol", "existence")]).unwrap();
        assert_eq!(url.location("endpoint").as_deref(), Some("http://h:1"));
        assert_eq!(url.word("protocol", &[("lease", 1), ("existence", 2)]), Some(2));
        for on in ["on", "true", "1", "yes", ""] {
            assert!(checked("sqlite", &[("allow_network", on)]).unwrap().switch("allow_network"));
        }
        for off in ["off", "false", "0", "no"] {
            assert!(!checked("sqlite", &[("allow_network", off)]).unwrap().switch("allow_network"));
        }
    }

    #[test]
    fn the_common_options_are_set() {
        let mut options = StoreOptions::default();
        StoreUrl::parse("mem:?store_clock=off&margin=9s").unwrap().checked(&mut options).unwrap();
        assert!(!options.store_clock && options.margin == Duration::from_secs(9));
        let error = StoreUrl::parse("redis://h").unwrap().checked(&mut options).unwrap_err();
        assert!(error.to_string().contains("store_clock"), "{error:?}");
    }
}
