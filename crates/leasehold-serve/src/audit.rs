//! The audit log, with a line of JSON for each change of a lock.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::feed::FeedEvent;

/// How many bytes are read from the end of a log. They contain the last line.
const END: u64 = 1 << 20;

/// An append-only log. Each line contains the SHA-256 of the previous line.
#[derive(Debug)]
pub(crate) struct Audit(Mutex<Log>);

#[derive(Debug)]
struct Log {
    file: File,
    /// `None` after an error. It must then be read again.
    end: Option<End>,
}

/// The end of a log.
#[derive(Debug)]
struct End {
    /// Whether the log ends with a partial line, which a full disk or a crash has left.
    is_torn: bool,
    /// The SHA-256 of the last line, or empty if there is none.
    last: String,
}

/// A line. It contains no ticket and no key.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    event: &'a FeedEvent,
    /// The principal that sent the request.
    principal: &'a str,
    /// The SHA-256 of the previous line without its newline.
    previous: &'a str,
}

impl Audit {
    /// Opens the log at `path`, or creates it with access only for its owner.
    ///
    /// # Errors
    /// It cannot be opened, read or written.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let end = Some(End::read(&mut file)?);
        Ok(Self(Mutex::new(Log { file, end })))
    }

    /// Appends an event that `principal` caused.
    pub(crate) fn record(&self, event: &FeedEvent, principal: &str) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = log.append(event, principal) {
            tracing::error!(%error, "the audit log cannot be written");
        }
    }
}

impl Log {
    fn append(&mut self, event: &FeedEvent, principal: &str) -> io::Result<()> {
        let end = match self.end.take() {
            Some(end) => end,
            None => End::read(&mut self.file)?,
        };
        let line = serde_json::to_string(&Line { event, principal, previous: &end.last })?;
        let begin = if end.is_torn { "\n" } else { "" };
        // Write the line in one piece, so that lines of other writers do not mix with it.
        self.file.write_all(format!("{begin}{line}\n").as_bytes())?;
        self.end = Some(End { is_torn: false, last: digest(line.as_bytes()) });
        Ok(())
    }
}

impl End {
    fn read(file: &mut File) -> io::Result<Self> {
        let from = file.seek(SeekFrom::End(0))?.saturating_sub(END);
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let lines = text.trim_ascii_end();
        let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let last = if last.is_empty() { String::new() } else { digest(last) };
        Ok(Self { is_torn: text.last().is_some_and(|byte| *byte != b'\n'), last })
    }
}

fn digest(line: &[u8]) -> String {
    Sha256::digest(line).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use leasehold::LockName;
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_line_has_the_digest_of_the_line_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let name = LockName::new("x").unwrap();
        for principal in ["ci", "ops"] {
            // Open the log again, as after a restart.
            Audit::open(&path).unwrap().record(&FeedEvent::new("acquired", &name), principal);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let second: Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!((&second["principal"], &second["lock"]), (&"ops".into(), &"x".into()));
        assert_eq!(second["previous"], digest(lines[0].as_bytes()));
    }

    #[test]
    fn a_partial_line_does_not_corrupt_other_lines() {
        let name = LockName::new("x").unwrap();
        let record = |audit: &Audit| audit.record(&FeedEvent::new("acquired", &name), "ci");
        for is_opened_again in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("audit.jsonl");
            let mut audit = Audit::open(&path).unwrap();
            record(&audit);
            OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"type\":").unwrap();
            if is_opened_again {
                audit = Audit::open(&path).unwrap();
            } else {
                // Simulate an error of that write.
                audit.0.lock().unwrap().end = None;
            }
            record(&audit);
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!((lines.len(), lines[1]), (3, "{\"type\":"));
            let last: Value = serde_json::from_str(lines[2]).unwrap();
            assert_eq!(last["previous"], digest(lines[1].as_bytes()), "no line can be removed unnoticed");
        }
    }

    #[test]
    fn the_last_line_of_a_long_log_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let long = "x".repeat(2 * usize::try_from(END).unwrap());
        std::fs::write(&path, format!("{long}\n{{\"last\":1}}\n")).unwrap();
        assert_eq!(
            Audit::open(&path).unwrap().0.lock().unwrap().end.as_ref().unwrap().last,
            digest(b"{\"last\":1}")
        );
    }

    #[test]
    fn a_device_is_not_accepted_as_the_log() {
        // A read of this device would never end.
        assert!(Audit::open(Path::new("/dev/full")).is_err());
    }
}
