//! JSON without the characters that a terminal interprets.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Replaces the control characters above ASCII, and characters that reorder or hide text, by their escapes in JSON.
/// Other machines write them into records, and JSON may contain them. The text for people has none.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if text.is_ascii() && !text.contains('\u{7f}') {
        return text.into();
    }
    let printable = leasehold::lease::printable(text, text.len());
    let mut escaped = String::with_capacity(text.len());
    for (c, shown) in text.chars().zip(printable.chars()) {
        if c == shown || c < '\u{7f}' {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn json_has_no_character_that_a_terminal_interprets() {
        let text = "a\u{9b}31m\u{7f}\u{85}\u{202e}\u{2066}\u{200b}\u{2028}\u{feff}\u{e0041}\u{1f600}é\n\"";
        let json = serde_json::json!({ "lock": text, "list": [text] });
        for printed in [escaped(&json.to_string()).into_owned(), escaped(&format!("{json:#}\n")).into_owned()]
        {
            let lines: String = printed.chars().filter(|c| *c != '\n').collect();
            assert_eq!(leasehold::lease::printable(&lines, lines.len()), lines);
            assert!(printed.contains('\u{1f600}') && printed.contains('é'), "{printed}");
            assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), json);
        }
        assert_eq!(escaped("\u{1b}[1merror:\u{1b}[0m a\n"), "\u{1b}[1merror:\u{1b}[0m a\n", "colors stay");
    }
}
