//! Contenders in a directory without leasehold: `flock`, and a baseline of the two writes that any lock there needs.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;

use super::Options;
use super::conditional::{Replace, record};

/// A directory. As a client, it locks a file for each lock with `flock`. The kernel unlocks the file of a dead holder.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn open(options: &Options) -> Result<Self, String> {
        let path = options.store()?.strip_prefix("dir:").ok_or("the store is not a directory")?;
        Ok(Self(path.into()))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await.map_err(io::Error::from).flatten();
    done.map_err(|error| error.to_string())
}

impl super::Client for Folder {
    type Held = File;

    async fn acquire(&self, lock: &str) -> Result<File, String> {
        let path = self.0.join(lock);
        blocking(move || {
            let file = File::create(path)?;
            file.lock()?;
            Ok(file)
        })
        .await
    }

    async fn release(&self, held: File) -> Result<(), String> {
        held.unlock().map_err(|error| error.to_string())
    }

    fn is_held(&self, _: &File) -> Option<bool> {
        None
    }
}

impl Replace for Folder {
    /// The number that is the name of the file.
    type Version = u64;

    /// Writes a file, and links it to the next number, which nobody else can have done before.
    async fn replace(&self, lock: &str, _held: bool, seen: Option<u64>) -> Result<u64, String> {
        let folder = self.0.join(lock);
        blocking(move || {
            let number = match seen {
                Some(seen) => seen + 1,
                None => {
                    fs::create_dir_all(&folder)?;
                    // Random, because another process may have written before.
                    fastrand::u64(..u64::MAX / 2)
                }
            };
            let temporary = folder.join("tmp");
            let mut file = File::create_new(&temporary)?;
            file.write_all(record().as_bytes())?;
            file.sync_all()?;
            fs::hard_link(&temporary, folder.join(number.to_string()))?;
            File::open(&folder)?.sync_all()?;
            fs::remove_file(temporary)?;
            Ok(number)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::super::Client as _;
    use super::*;

    #[tokio::test]
    async fn a_second_holder_and_a_late_write_are_refused() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder(path.path().to_owned());
        let held = folder.acquire("lock").await.unwrap();
        let other = File::open(path.path().join("lock")).unwrap();
        assert!(other.try_lock().is_err());
        folder.release(held).await.unwrap();
        other.try_lock().unwrap();

        let first = folder.replace("record", true, None).await.unwrap();
        folder.replace("record", false, Some(first)).await.unwrap();
        let late = folder.replace("record", false, Some(first)).await.unwrap_err();
        assert!(late.contains("exists"), "{late}");
    }
}
