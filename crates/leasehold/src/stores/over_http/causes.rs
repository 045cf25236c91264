//! The text of an error and its causes.

use std::error::Error as StdError;

/// Returns the text of an error and its causes on one line.
pub(in crate::stores) fn chain(error: &(dyn StdError + 'static)) -> String {
    chain_until(error, &[])
}

/// Like [`chain`], without what follows any of `marks` in a text.
pub(in crate::stores) fn chain_until(error: &(dyn StdError + 'static), marks: &[&str]) -> String {
    let texts: Vec<String> = causes(error)
        .map(|cause| {
            let text = cause.to_string().replace('\n', " ");
            let kept = marks.iter().fold(&text[..], |text, mark| text.split(mark).next().unwrap_or_default());
            kept.chars().filter(|c| !crate::types::is_unprintable(*c)).collect()
        })
        .collect();
    texts.join(": ").chars().take(400).collect()
}

/// Returns an error and its causes.
pub(in crate::stores) fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}
