//! The permissions, one by one, and reads of what was just written.

use bytes::Bytes;

use super::{Questions, Step, is_denied};
use crate::diagnosis::{CheckStatus, Finding};
use crate::error::StoreError;
use crate::register::{Version, Write};
use crate::retry::retry;

impl Questions<'_> {
    /// Asks for the permissions one by one, so that the report has a line for each missing permission. Returns the
    /// version of the first write.
    pub(super) async fn permissions(&mut self) -> Step<Version> {
        let (cells, prefix) = (self.cells, self.prefix.clone());
        // `list` retries by itself.
        let listed = cells.list(&prefix).await;
        let written = self.created().await;
        let key = self.key.clone();
        let read = match &written {
            Ok(Write::Committed(_)) => Some(retry(cells.env(), || cells.read(&key)).await),
            _ => None,
        };
        let nothing = format!("{prefix}-nothing");
        let absent = retry(cells.env(), || cells.read(&nothing)).await.map(|_| ());
        let first = self.first_version(written);
        let requests = [
            ("permission-list", listed.as_ref().err()),
            ("permission-read", read.as_ref().and_then(|read| read.as_ref().err())),
            ("permission-list", absent.as_ref().err()),
        ];
        for (check, error) in requests {
            if let Some(error) = error.filter(|error| error.is_transient()) {
                self.found.push(Finding::stopped(check, error));
                return first;
            }
        }
        let readable = self.may_read(read, &listed, &absent, first.as_ref().ok());
        self.may_list(listed, absent, readable);
        first
    }

    /// Checks that the object can be read and is what was just written.
    fn may_read(
        &mut self,
        read: Option<Result<Option<(Bytes, Version)>, StoreError>>,
        listed: &Result<(), StoreError>,
        absent: &Result<(), StoreError>,
        written: Option<&Version>,
    ) -> bool {
        const CHECK: &str = "permission-read";
        match read {
            Some(Ok(cell)) => {
                self.pass(CHECK, "objects can be read");
                let wrong = match cell {
                    Some((_, version)) if Some(&version) == written => None,
                    Some(_) => Some("a read returned a different version than the write before it"),
                    None => Some("an object that was just written cannot be found"),
                };
                let good = "a read returns a write as soon as the write is confirmed";
                let help = "locks need a store whose reads are strongly consistent";
                self.found.push(match wrong {
                    None => Finding::passed("read-after-write", good),
                    Some(seen) => Finding::failed("read-after-write", seen).with_help(help),
                });
                true
            }
            Some(Err(error)) => {
                let check = if is_denied(&error) { CHECK } else { "read-after-write" };
                self.found.push(Finding::of_error(check, CheckStatus::Failed, &error));
                false
            }
            // There is no object of ours to read, so the read of a missing object decides.
            None => match (absent, listed) {
                (Ok(()), _) => {
                    self.pass(CHECK, "reads are permitted");
                    true
                }
                (Err(error), Ok(())) => {
                    self.found.push(Finding::of_error(CHECK, CheckStatus::Failed, error));
                    false
                }
                (Err(_), Err(_)) => true,
            },
        }
    }

    /// Checks the permission to list objects. Without it, clouds do not report that an object is missing.
    fn may_list(&mut self, listed: Result<(), StoreError>, absent: Result<(), StoreError>, readable: bool) {
        const CHECK: &str = "permission-list";
        let finding = match (listed, absent) {
            // This is another problem, which a permission would not solve.
            (listed, Err(error)) if (readable || listed.is_err()) && !is_denied(&error) => {
                Finding::of_error("absence", CheckStatus::Failed, &error)
                    .with_help("a lock that was never held cannot be recognised as free")
            }
            (Ok(()), Err(error)) if readable => Finding::of_error(CHECK, CheckStatus::Failed, &error).with_help(
                "listing below the prefix is allowed, but looking up a missing object is not: the permission to \
                 list must not have a condition on the prefix",
            ),
            (Ok(()), _) => Finding::passed(CHECK, "objects can be listed, and the store reports a missing object as missing"),
            (Err(error), Ok(())) => Finding::unlisted(CHECK, &error),
            (Err(error), Err(_)) => Finding::of_error(CHECK, CheckStatus::Failed, &error).with_help(
                "without it the store also responds with 403 for a lock that was never held, so the lock cannot be \
                 recognised as free",
            ),
        };
        self.found.push(finding);
    }
}
