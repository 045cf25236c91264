//! The types of problems. `docs/serve/api.md` lists them, and a test compares.

use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

const PREFIX: &str = "urn:leasehold:";

/// Defines [`ProblemType`] from the name, the text and the status of each type.
macro_rules! kinds {
    ($($name:ident $text:tt $status:ident,)+) => {
        /// What went wrong, for programs. A later version may add words, so treat an unknown one by its status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
        pub(crate) enum ProblemType {
            $(#[serde(rename = $text)] $name,)+
        }

        impl ProblemType {
            /// All of them, by their status.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the text, such as `urn:leasehold:held`.
            const fn text(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// Returns the status of its responses.
            pub(crate) const fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status),+ }
            }
        }
    };
}

kinds! {
    Invalid "urn:leasehold:invalid" BAD_REQUEST,
    Unauthorized "urn:leasehold:unauthorized" UNAUTHORIZED,
    Forbidden "urn:leasehold:forbidden" FORBIDDEN,
    CrossOrigin "urn:leasehold:cross-origin" FORBIDDEN,
    ReadOnly "urn:leasehold:read-only" FORBIDDEN,
    NotFound "urn:leasehold:not-found" NOT_FOUND,
    NotAllowed "urn:leasehold:not-allowed" METHOD_NOT_ALLOWED,
    KeySpent "urn:leasehold:key-spent" CONFLICT,
    Conflict "urn:leasehold:conflict" CONFLICT,
    Busy "urn:leasehold:busy" CONFLICT,
    NotReserved "urn:leasehold:not-reserved" CONFLICT,
    Lost "urn:leasehold:lost" GONE,
    Changed "urn:leasehold:changed" PRECONDITION_FAILED,
    Misdirected "urn:leasehold:misdirected" MISDIRECTED_REQUEST,
    Held "urn:leasehold:held" LOCKED,
    TokenRequired "urn:leasehold:token-required" PRECONDITION_REQUIRED,
    TooManyRequests "urn:leasehold:too-many-requests" TOO_MANY_REQUESTS,
    TooManyWaiters "urn:leasehold:too-many-waiters" TOO_MANY_REQUESTS,
    TooManyViewers "urn:leasehold:too-many-viewers" TOO_MANY_REQUESTS,
    Corrupt "urn:leasehold:corrupt" INTERNAL_SERVER_ERROR,
    Failed "urn:leasehold:failed" INTERNAL_SERVER_ERROR,
    Unsupported "urn:leasehold:unsupported" NOT_IMPLEMENTED,
    StoreDenied "urn:leasehold:store-denied" BAD_GATEWAY,
    Unavailable "urn:leasehold:unavailable" SERVICE_UNAVAILABLE,
    Stopping "urn:leasehold:stopping" SERVICE_UNAVAILABLE,
    Unready "urn:leasehold:unready" SERVICE_UNAVAILABLE,
    NotAudited "urn:leasehold:not-audited" SERVICE_UNAVAILABLE,
}

impl ProblemType {
    /// Returns the text as one word, such as `held`.
    pub(crate) fn word(self) -> &'static str {
        self.text().strip_prefix(PREFIX).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_of_the_api_lists_each_type_with_its_status() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serve/api.md");
        let page = std::fs::read_to_string(page).unwrap();
        let table = page.split("## Problems").nth(1).unwrap().split("\n## ").next().unwrap();
        let listed: Vec<_> = table
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `")?.split('|');
                let word = cells.next()?.trim().trim_end_matches('`');
                Some((word, cells.next()?.split(',').next()?.trim().parse::<u16>().ok()?))
            })
            .collect();
        let known: Vec<_> =
            ProblemType::ALL.iter().map(|kind| (kind.word(), kind.status().as_u16())).collect();
        assert_eq!(listed, known);
        for kind in ProblemType::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), format!("{PREFIX}{}", kind.word()));
        }
    }
}
