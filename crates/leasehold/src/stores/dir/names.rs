//! The folders of keys: their names, which work on every file system, and back.

use std::path::PathBuf;

/// The longest name of a folder, in bytes. File systems allow at least 143 (eCryptfs), most of them 255.
const LONGEST: usize = 120;

/// The end of the name of a folder that contains the rest of a long name.
const CONTINUED: char = '+';

/// Returns the folder of `key`, relative to the directory.
///
/// Each byte that is not a lower-case letter, a digit, `-` or `_` is written as `%xx`, so file systems that ignore case
/// keep keys apart, and no name begins with a dot. A long name is split into nested folders.
pub(super) fn folder_of(key: &str) -> PathBuf {
    let mut name = String::new();
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    let mut path = PathBuf::new();
    let mut rest = name.as_str();
    while rest.len() > LONGEST {
        let (part, more) = rest.split_at(LONGEST);
        path.push(format!("{part}{CONTINUED}"));
        rest = more;
    }
    path.push(rest);
    path
}

/// What a name in the directory is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The beginning of several keys.
    Beginning(String),
    /// The end of a key.
    End(String),
}

/// Returns the part of an escaped key that a folder has. `None` if leasehold did not make the folder.
pub(super) fn part(folder: &str) -> Option<Part> {
    let ours = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'%');
    let (name, part): (_, fn(String) -> Part) = match folder.strip_suffix(CONTINUED) {
        Some(name) => (name, Part::Beginning),
        None => (folder, Part::End),
    };
    (!name.is_empty() && name.bytes().all(ours)).then(|| part(name.to_owned()))
}

/// Returns the key that was escaped as `name`. `None` if it is not the name of a key.
pub(super) fn key_of(name: &str) -> Option<String> {
    let key = percent_encoding::percent_decode_str(name).decode_utf8().ok()?.into_owned();
    // Other spellings of the same key are not its folder.
    let spelled: String =
        folder_of(&key).to_str()?.split('/').map(|part| part.trim_end_matches(CONTINUED)).collect();
    (spelled == name).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(key: &str) -> String {
        folder_of(key).to_str().unwrap().split('/').map(|part| part.trim_end_matches(CONTINUED)).collect()
    }

    #[test]
    fn a_key_is_found_from_its_folder() {
        let long = "é/".repeat(128);
        for key in
            ["deploy/prod.lock", "UPPER", "upper", "a b", "%2f", "..", ".", "+", &long, &"a".repeat(120)]
        {
            assert_eq!(key_of(&joined(key)).as_deref(), Some(key));
        }
        assert_eq!(folder_of("deploy/prod.lock").to_str(), Some("deploy%2fprod%2elock"));
        assert_eq!(key_of("deploy%2Fprod"), None, "another spelling");
        assert_eq!(key_of("%ff"), None);
    }

    #[test]
    fn every_name_is_short_and_nested_folders_are_no_keys() {
        let long = "é/".repeat(128);
        for folder in folder_of(&long).iter().map(|part| part.to_str().unwrap()) {
            assert!(folder.len() <= LONGEST + 1, "{folder}");
        }
        let mut parts =
            folder_of(&"a".repeat(121)).to_str().unwrap().split('/').map(part).collect::<Vec<_>>();
        assert_eq!(parts.pop().unwrap(), Some(Part::End("a".to_owned())));
        assert_eq!(parts.pop().unwrap(), Some(Part::Beginning("a".repeat(120))));
        for other in [".leasehold", "lost+found", "A", "", "+", "a.b"] {
            assert_eq!(part(other), None, "{other}");
        }
    }
}
