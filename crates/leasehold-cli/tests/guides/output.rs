//! Compares the output of a command with the guide.

/// Matches any text, even several lines.
const ANYTHING: &str = "...";

/// Returns whether `printed` matches `expected`, ignoring space at both ends.
pub(crate) fn matches(expected: &str, printed: &str) -> bool {
    let (expected, printed) = (expected.trim(), printed.trim());
    let Some((first, others)) = expected.split_once(ANYTHING) else {
        return expected == printed;
    };
    let (between, last) = others.rsplit_once(ANYTHING).unwrap_or(("", others));
    let Some(mut rest) = printed.strip_prefix(first) else {
        return false;
    };
    for piece in between.split(ANYTHING) {
        let Some(at) = rest.find(piece) else {
            return false;
        };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn dots_stand_for_anything() {
    for (expected, printed) in [
        ("a\nb\n", "a\nb"),
        ("a ... c", "a bb c\n"),
        ("a\n...\nd", "a\nb\nc\nd"),
        ("...", ""),
        ("...c", "c"),
        ("a...b...c", "abbc"),
    ] {
        assert!(matches(expected, printed), "{expected} {printed}");
    }
    for (expected, printed) in [
        ("a", "b"),
        ("a", "ab"),
        ("a", ""),
        ("", "a"),
        ("a...c", "acb"),
        ("a...c", "bac"),
        ("ab...bc", "abc"),
        ("a...x...c", "abc"),
    ] {
        assert!(!matches(expected, printed), "{expected} {printed}");
    }
}
