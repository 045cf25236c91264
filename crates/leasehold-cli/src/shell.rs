//! Words of a command line for a shell.

use leasehold::LockName;

/// Quotes `text` as one word for a POSIX shell.
pub(crate) fn quoted(text: &str) -> String {
    if is_plain_word(text) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the lock `name` as the last argument of a command line: after `--` if it looks like an option.
pub(crate) fn last_argument(name: &LockName) -> String {
    let dashes = if name.as_str().starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", quoted(name.as_str()))
}

/// Returns whether `text` is one word in every shell, and no option.
pub(crate) fn is_plain_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || "/._".contains(c)) && text.chars().all(is_plain)
}

/// Returns whether no shell gives `c` a meaning within a word.
pub(crate) fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._-:@+=%".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_only_if_a_shell_would_split_them() {
        assert_eq!(quoted("deploy/prod"), "deploy/prod");
        assert_eq!(quoted("s3://b/p?x=y"), "'s3://b/p?x=y'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted("-n"), "'-n'");
        assert_eq!(quoted("=ls"), "'=ls'", "zsh would replace it");
        assert_eq!(quoted(""), "''");
        let last = |name| last_argument(&LockName::new(name).unwrap());
        assert_eq!([last("a b"), last("-x"), last("x")], ["'a b'", "-- '-x'", "x"]);
    }
}
