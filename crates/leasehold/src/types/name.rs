//! [`LockName`]: the rules for lock names, in one place for all stores.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::invalid::InvalidValue;

/// The name of a lock: segments separated by `/`, at most [`LockName::MAX_BYTES`] bytes of UTF-8.
///
/// A segment is not empty and not `.` or `..`. A name contains no control characters, and does not start or end with
/// `/`. Cheap to clone.
///
/// ```
/// use leasehold::LockName;
/// assert!("deploy/prod".parse::<LockName>().is_ok());
/// assert!("../etc".parse::<LockName>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LockName(Arc<str>);

impl LockName {
    /// The maximum length of a name, in bytes. With percent-encoding and a prefix, the longest name still fits into an
    /// S3 key (1,024 bytes).
    pub const MAX_BYTES: usize = 256;

    /// Creates a lock name from `name`.
    ///
    /// # Errors
    /// Returns an error if the name is invalid. The message quotes the name and says why.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidValue> {
        let name = name.as_ref();
        match flaw(name) {
            None => Ok(Self(name.into())),
            Some(flaw) => Err(InvalidValue::new(format!("lock name {} {flaw}", shown(name)))
                .with_help("a lock name is like deploy/prod: segments separated by `/`, at most 256 bytes")),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn flaw(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("is empty");
    }
    if name.len() > LockName::MAX_BYTES {
        return Some("is longer than 256 bytes");
    }
    if name.chars().any(is_unprintable) {
        return Some("contains a control or invisible character");
    }
    if name.split('/').any(str::is_empty) {
        return Some("has an empty segment (a leading, trailing or double `/`)");
    }
    if name.split('/').any(|segment| segment == "." || segment == "..") {
        return Some("has a `.` or `..` segment");
    }
    None
}

/// Returns whether `c` is a control character, or an invisible character that reorders or hides text on a terminal.
pub(crate) fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Formats `name` for an error message: quoted, escaped, and truncated to fit on a line.
fn shown(name: &str) -> String {
    const MOST: usize = 60;
    let cut: String = name.chars().take(MOST).collect();
    let dots = if cut.len() < name.len() { "…" } else { "" };
    format!("{cut:?}{dots}")
}

impl FromStr for LockName {
    type Err = InvalidValue;

    fn from_str(name: &str) -> Result<Self, InvalidValue> {
        Self::new(name)
    }
}

impl TryFrom<String> for LockName {
    type Error = InvalidValue;

    fn try_from(name: String) -> Result<Self, InvalidValue> {
        Self::new(name)
    }
}

impl From<LockName> for String {
    fn from(name: LockName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_pass_and_hostile_ones_are_named_in_the_error() {
        for name in ["nightly", "deploy/prod", "a/b/c.d", "größe/ünïcode", "with space", "-n", "...", "a..b"]
        {
            assert_eq!(LockName::new(name).unwrap().as_str(), name);
        }
        let long = "x".repeat(10_000);
        for (name, why) in [
            ("", "empty"),
            ("../x", "`..`"),
            ("a/./b", "`.`"),
            ("/a", "empty segment"),
            ("a/", "empty segment"),
            ("a//b", "empty segment"),
            ("a\nb", "control"),
            ("a\0", "control"),
            ("\u{202e}gnp", "invisible"),
            ("\u{61c}a", "invisible"),
            ("a\u{e0041}", "invisible"),
            (&long, "256 bytes"),
        ] {
            let error = LockName::new(name).unwrap_err();
            assert!(error.to_string().contains(why), "{name:?}: {error}");
            assert!(error.to_string().len() < 400 && !error.to_string().contains('\n'), "{error}");
            assert!(error.help().is_some());
        }
    }
}
