//! The file of the audit log. Each line contains the SHA-256 of the previous line.
//!
//! Several servers may write one file, and another program may rename it (logrotate). So each append locks the file,
//! looks whether it is still at its path, and reads what was added since.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};

/// How many bytes at the end of a file are read. They contain the last line.
const END: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    end: End,
}

/// The end of a file when this process read or wrote it last.
#[derive(Debug, Default)]
struct End {
    length: u64,
    /// Whether the file ends with a partial line, which a full disk or a crash has left.
    is_torn: bool,
    /// The SHA-256 of the last line, or empty if there is none.
    last: String,
}

/// A locked file. Other servers wait until this is dropped.
struct Locked<'a>(&'a File);

impl<'a> Locked<'a> {
    fn new(file: &'a File) -> io::Result<Self> {
        match file.lock() {
            // A file system without locks. Only one server can write there.
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            locked => locked?,
        }
        Ok(Self(file))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Closing the file also unlocks it.
        let _ = self.0.unlock();
    }
}

impl Log {
    /// Opens the log at `path`, or creates it with access only for its owner.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let mut end = End::default();
        let locked = Locked::new(&file)?;
        end.follow(&file)?;
        drop(locked);
        Ok(Self { path: path.to_owned(), file, end })
    }

    /// Appends a line: the JSON object `text`, with the field `previous`. With `sync`, waits until it is on the disk.
    pub(super) fn append(&mut self, text: &str, sync: bool) -> io::Result<()> {
        let locked = Locked::new(&self.file)?;
        if self.is_at_its_path()? {
            return self.end.append(&self.file, text, sync);
        }
        // The chain continues in the new file. Another server may have appended to the old one since.
        self.end.follow(&self.file)?;
        drop(locked);
        self.file = open(&self.path)?;
        self.end = End { last: std::mem::take(&mut self.end.last), ..End::default() };
        let _locked = Locked::new(&self.file)?;
        self.end.append(&self.file, text, sync)
    }

    fn is_at_its_path(&self) -> io::Result<bool> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) => Ok(id(&found) == id(&self.file.metadata()?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl End {
    fn append(&mut self, mut file: &File, text: &str, sync: bool) -> io::Result<()> {
        self.follow(file)?;
        let object = text.strip_suffix('}').unwrap_or(text);
        let line = format!(r#"{object},"previous":"{}"}}"#, self.last);
        let begin = if self.is_torn { "\n" } else { "" };
        file.write_all(format!("{begin}{line}\n").as_bytes())?;
        if sync {
            file.sync_data()?;
        }
        *self = Self { length: file.metadata()?.len(), is_torn: false, last: digest(line.as_bytes()) };
        Ok(())
    }

    /// Reads what was added to `file` since.
    fn follow(&mut self, mut file: &File) -> io::Result<()> {
        let length = file.metadata()?.len();
        if length == self.length {
            return Ok(());
        }
        let earliest = length.saturating_sub(END);
        // A shorter file was truncated. The next line then has the digest of a line that is gone, so that this shows.
        let is_truncated = length < self.length;
        let from = if self.is_torn || is_truncated { earliest } else { self.length.max(earliest) };
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.take(length - from).read_to_end(&mut text)?;
        let last = text.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        if !is_truncated && !last.is_empty() {
            self.last = digest(last);
        }
        self.length = length;
        self.is_torn = text.last().is_some_and(|byte| *byte != b'\n');
        Ok(())
    }
}

/// Opens or creates the file at `path`. Refuses a file that another user could have put there.
fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true).mode(0o600).custom_flags(flags);
    let file = options.open(path).map_err(|error| match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => io::Error::other("it is a symbolic link"),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if ![0, geteuid().as_raw()].contains(&found.uid()) {
        return Err(io::Error::other("it belongs to another user"));
    }
    Ok(file)
}

fn id(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn digest(line: &[u8]) -> String {
    Sha256::digest(line).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;

    fn folder() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        (folder, path)
    }

    fn append(log: &mut Log, number: usize) {
        log.append(&format!(r#"{{"number":{number}}}"#), false).unwrap();
    }

    /// Returns the lines of the files, after checking that each has the digest of the line before.
    pub(in super::super) fn chained(paths: &[&Path]) -> Vec<Value> {
        let texts: Vec<String> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        let mut previous = String::new();
        let lines = texts.iter().flat_map(|text| text.lines()).map(|line| {
            let parsed: Value = serde_json::from_str(line).unwrap();
            assert_eq!(parsed["previous"], previous, "{texts:?}");
            previous = digest(line.as_bytes());
            parsed
        });
        lines.collect()
    }

    #[test]
    fn each_line_has_the_digest_of_the_line_before() {
        let (_folder, path) = folder();
        for number in 0..4 {
            // Open the log again, as after a restart.
            append(&mut Log::open(&path).unwrap(), number);
        }
        assert_eq!(chained(&[&path])[3]["number"], 3);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn two_servers_continue_one_chain() {
        let (_folder, path) = folder();
        let mut logs = [Log::open(&path).unwrap(), Log::open(&path).unwrap()];
        for number in 0..20 {
            append(&mut logs[number % 3 / 2], number);
        }
        assert_eq!(chained(&[&path]).len(), 20);
    }

    #[test]
    fn two_servers_write_at_the_same_time() {
        let (_folder, path) = folder();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut log = Log::open(&path).unwrap();
                    (0..50).for_each(|number| append(&mut log, number));
                });
            }
        });
        assert_eq!(chained(&[&path]).len(), 200);
    }

    #[test]
    fn a_renamed_file_is_noticed_and_the_chain_continues() {
        let (folder, path) = folder();
        let (first, second) = (folder.path().join("audit.jsonl.2"), folder.path().join("audit.jsonl.1"));
        let mut logs = [Log::open(&path).unwrap(), Log::open(&path).unwrap()];
        append(&mut logs[0], 0);
        append(&mut logs[1], 1);
        fs::rename(&path, &first).unwrap();
        // The one that did not write last notices first.
        append(&mut logs[0], 2);
        append(&mut logs[1], 3);
        fs::rename(&path, &second).unwrap();
        append(&mut logs[1], 4);
        append(&mut logs[0], 5);
        assert_eq!(
            [&first, &second, &path].map(|path| fs::read_to_string(path).unwrap().lines().count()),
            [2; 3]
        );
        assert_eq!(chained(&[&first, &second, &path]).len(), 6);
        // `create` of logrotate makes the new file.
        fs::rename(&path, &first).unwrap();
        File::create_new(&path).unwrap();
        append(&mut logs[0], 6);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    }

    #[test]
    fn a_removed_file_is_created_again() {
        let (_folder, path) = folder();
        let mut log = Log::open(&path).unwrap();
        append(&mut log, 0);
        let before = digest(fs::read_to_string(&path).unwrap().trim().as_bytes());
        fs::remove_file(&path).unwrap();
        append(&mut log, 1);
        let line: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(line["previous"], before);
    }

    #[test]
    fn a_truncation_shows_in_the_chain() {
        let (_folder, path) = folder();
        let mut log = Log::open(&path).unwrap();
        append(&mut log, 0);
        let kept = path.metadata().unwrap().len();
        append(&mut log, 1);
        let before = fs::read_to_string(&path).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(kept).unwrap();
        append(&mut log, 2);
        let after = fs::read_to_string(&path).unwrap();
        let last: Value = serde_json::from_str(after.lines().nth(1).unwrap()).unwrap();
        assert_eq!(last["previous"], digest(before.lines().nth(1).unwrap().as_bytes()));
    }

    #[test]
    fn a_partial_line_does_not_corrupt_other_lines() {
        for is_opened_again in [true, false] {
            let (_folder, path) = folder();
            let mut log = Log::open(&path).unwrap();
            append(&mut log, 0);
            OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"type\":").unwrap();
            if is_opened_again {
                log = Log::open(&path).unwrap();
            }
            append(&mut log, 1);
            append(&mut log, 2);
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!((lines.len(), lines[1]), (4, "{\"type\":"));
            for number in [2, 3] {
                let line: Value = serde_json::from_str(lines[number]).unwrap();
                let before = digest(lines[number - 1].as_bytes());
                assert_eq!(line["previous"], before, "no line can be removed unnoticed");
            }
        }
    }

    #[test]
    fn the_last_line_of_a_long_log_is_found() {
        let (_folder, path) = folder();
        let long = "x".repeat(2 * usize::try_from(END).unwrap());
        fs::write(&path, format!("{long}\n{{\"last\":1}}\n")).unwrap();
        assert_eq!(Log::open(&path).unwrap().end.last, digest(b"{\"last\":1}"));
    }

    #[test]
    fn a_link_or_a_device_is_not_accepted_as_the_log() {
        let (folder, path) = folder();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &path).unwrap();
        let refused = |path: &Path| Log::open(path).unwrap_err().to_string();
        assert_eq!(refused(&path), "it is a symbolic link");
        // A read of this device would never end.
        assert_eq!(refused(Path::new("/dev/full")), "it is not a regular file");

        // A link in the place of a renamed file is not followed either.
        fs::remove_file(&path).unwrap();
        let mut log = Log::open(&path).unwrap();
        append(&mut log, 0);
        fs::rename(&path, folder.path().join("old")).unwrap();
        symlink(&victim, &path).unwrap();
        assert!(log.append(r#"{"number":1}"#, false).is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
        append(&mut log, 1);
        assert_eq!(chained(&[&folder.path().join("old"), &path]).len(), 2);
    }
}
