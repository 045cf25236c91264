//! Properties that hold for any content of `config.toml`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a property fails by panicking")]

use std::path::Path;

use super::Settings;
use crate::exit::{FAILED, Failure};

/// A password. Corpus files contain `$SECRET` in its place.
const SECRET: &str = "hunter2-9f3k";

/// Checks that the error for invalid input shows no password, and that the stores of a valid file show none either.
pub(crate) fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data).replace("$SECRET", SECRET);
    match Settings::from_text(Path::new("/config.toml"), &text) {
        Ok(settings) => {
            for alias in settings.file.stores.keys() {
                match settings.store(Some(alias.clone())) {
                    Ok(store) => assert_hidden(&text, &store.shown()),
                    Err(failure) => assert_clean(&text, &failure),
                }
            }
            for name in [
                "store",
                "ttl",
                "max-hold",
                "wait",
                "conflict-exit-code",
                "owner",
                "note",
                "on-lost",
                "on-deadlock",
                "grace",
                "color",
            ] {
                let picked = settings.pick(None::<String>, name, |_| Err("no".to_owned()));
                assert_eq!(picked.is_err(), settings.in_file(name).is_some(), "{name}");
            }
        }
        Err(failure) => assert_clean(&text, &failure),
    }
}

fn assert_clean(text: &str, failure: &Failure) {
    assert_eq!((failure.code, failure.help.is_empty()), (FAILED, false), "{failure:?}");
    for line in failure.help.iter().chain([&failure.message]) {
        assert_hidden(text, line);
    }
}

fn assert_hidden(text: &str, shown: &str) {
    assert!(!shown.contains(char::is_control), "{shown:?}");
    // Check only inputs in which the secret is the password of a URL, and the URL is a value. Keys are shown.
    let is_value = text.lines().all(|line| line.find(SECRET) > line.find('='));
    let is_login = text.lines().all(|line| !line.contains(SECRET) || line.contains(&format!(":{SECRET}@")));
    assert!(!is_value || !is_login || !shown.contains(SECRET), "{shown:?}");
}

#[cfg(test)]
#[test]
fn corpus_files_are_parsed_or_refused_without_a_password() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/config");
    let mut count = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        println!("{}", path.display());
        config(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count > 5, "{count}");
}
