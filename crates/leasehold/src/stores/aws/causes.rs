//! The causes of the SDK's errors.

use std::error::Error as StdError;

/// Formats an error and its causes on one line. The SDK's error texts are vague without their causes.
pub(in crate::stores) fn chain(error: &(dyn StdError + 'static)) -> String {
    let texts: Vec<String> = causes(error).map(|cause| cause.to_string().replace('\n', " ")).collect();
    texts.join(": ").chars().take(400).collect()
}

pub(super) fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}
