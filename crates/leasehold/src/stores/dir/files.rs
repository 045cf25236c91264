//! The directory on a real file system.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind as K, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::errors;
use super::generations::{Folder, MAX_HEADER_BYTES};
use super::names::{self, Part};
use crate::clock::{Moment, StoreClock};
use crate::env::Env;
use crate::error::Fault;
use crate::stores::contents::Contents;

/// The resolution of time stamps on the file systems that have hard links.
const RESOLUTION: Duration = Duration::from_secs(1);

/// The permission bit with which only the owner of a file may remove it.
const STICKY: u32 = 0o1000;

/// The folder that says that a directory is for locks. Its name is not that of a key.
const MARKER: &str = ".leasehold";

/// The directory of a store.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    /// The absolute path.
    pub(super) path: PathBuf,
    pub(super) env: Env,
    /// The file server's clock, as the time stamps of new files show it.
    pub(super) clock: Arc<StoreClock>,
    pub(super) contents: Contents,
}

impl Directory {
    /// Returns the folder of `key`.
    pub(super) fn key(&self, key: &str) -> KeyFolder<'_> {
        KeyFolder { directory: self, path: self.path.join(names::folder_of(key)) }
    }

    /// Returns the folder that says that this directory is for locks. Files are created in it to try out what the file
    /// system can do.
    pub(super) fn marker(&self) -> KeyFolder<'_> {
        KeyFolder { directory: self, path: self.path.join(MARKER) }
    }

    /// Fails if this directory is inside another one that was prepared: while this one is not mounted, its keys would
    /// be in the other one.
    pub(super) fn refuse_nested(&self) -> Result<(), Fault> {
        let parent = || self.path.parent().and_then(|parent| fs::canonicalize(parent).ok());
        // It may not exist yet.
        let path = fs::canonicalize(&self.path).ok().or_else(|| Some(parent()?.join(self.path.file_name()?)));
        let path = path.unwrap_or_else(|| self.path.clone());
        match Self::nearest_above(&path)? {
            Some(outer) => Err(errors::nested(&path, outer)),
            None => Ok(()),
        }
    }

    /// Returns the nearest prepared directory above the object at `path`.
    pub(super) fn above_object(path: &Path) -> Result<Option<&Path>, Fault> {
        if path.join(MARKER).exists() {
            return Err(errors::no_object(path));
        }
        Self::nearest_above(path)
    }

    /// Returns the nearest prepared directory above `path`.
    pub(super) fn nearest_above(path: &Path) -> Result<Option<&Path>, Fault> {
        for folder in path.ancestors().skip(1) {
            let marker = folder.join(MARKER);
            match fs::metadata(&marker) {
                // `init` prepares no folder with the sticky bit: any user could create a marker there.
                Ok(_) if mode_of(folder).is_ok_and(|mode| mode & STICKY != 0) => {}
                Ok(_) => return Ok(Some(folder)),
                Err(error) if matches!(error.kind(), K::NotFound | K::NotADirectory) => {}
                Err(error) => return Err(errors::fault("read", &marker, &error)),
            }
        }
        Ok(None)
    }

    /// Creates the directory and its marker, if they are missing.
    pub(super) fn init(&self) -> Result<(), Fault> {
        self.refuse_nested()?;
        // Names and notes of locks may be confidential.
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() == K::NotFound => {
                let help = "create the folder above it; if it is on a mount, check that the mount is there";
                return Err(errors::fault("create", &self.path, &error).with_help(help));
            }
            Err(error) if error.kind() != K::AlreadyExists => {
                return Err(errors::fault("create", &self.path, &error));
            }
            _ => {}
        }
        let mode = mode_of(&self.path).map_err(|error| errors::fault("read", &self.path, &error))?;
        if mode & STICKY != 0 {
            return Err(errors::sticky(&self.path));
        }
        let marker = self.marker();
        marker.create_folders(&self.path).map_err(|error| errors::fault("create", &marker.path, &error))
    }

    /// Fails if the directory was not prepared, for example because its file system is not mounted.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let marker = self.path.join(MARKER);
        match fs::metadata(&marker) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == K::NotFound => Err(errors::not_prepared(&self.path)),
            Err(error) => Err(errors::fault("read", &marker, &error)),
        }
    }

    /// Returns the escaped keys that have a folder.
    pub(super) fn keys(&self) -> Result<Vec<String>, Fault> {
        self.check()?;
        let mut found = Vec::new();
        let mut open = vec![(self.path.clone(), String::new())];
        while let Some((path, beginning)) = open.pop() {
            for name in list(&path).map_err(|error| errors::fault("list", &path, &error))? {
                match names::part(&name).filter(|_| path.join(&name).is_dir()) {
                    Some(Part::Beginning(part)) => {
                        open.push((path.join(&name), format!("{beginning}{part}")))
                    }
                    Some(Part::End(part)) => found.extend(names::key_of(&format!("{beginning}{part}"))),
                    None => {}
                }
            }
        }
        Ok(found)
    }
}

/// The folder of a key in a [`Directory`].
#[derive(Debug)]
pub(super) struct KeyFolder<'a> {
    directory: &'a Directory,
    pub(super) path: PathBuf,
}

impl KeyFolder<'_> {
    /// Removes the folder with its files. Only for keys that no other process creates again. `name` must be new.
    pub(super) fn discard(&self, name: &str) -> io::Result<()> {
        // At once, so that no write finds a folder without its highest generation.
        let away = self.directory.path.join(MARKER).join(name);
        fs::rename(&self.path, &away)?;
        fs::remove_dir_all(away)
    }

    /// Returns how many names a file has.
    pub(super) fn links(&self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path.join(name))?.nlink())
    }

    /// Creates the folder and those that contain it, below `root`.
    fn create_folders(&self, root: &Path) -> io::Result<()> {
        let mode = mode_of(root)?;
        let mut path = root.to_owned();
        for part in self.path.strip_prefix(root).map_err(io::Error::other)? {
            let parent = path.clone();
            path.push(part);
            match DirBuilder::new().mode(mode).create(&path) {
                Err(error) if error.kind() != K::AlreadyExists => return Err(error),
                _ => {}
            }
            // Another process may have created it, and died before these lines.
            permit(&path, mode, mode_of(&path)?);
            File::open(parent)?.sync_all()?;
        }
        Ok(())
    }
}

impl Folder for KeyFolder<'_> {
    fn list(&self) -> io::Result<Vec<String>> {
        let listed = list(&self.path);
        if listed.as_ref().is_err_and(|error| error.kind() == K::NotFound) {
            // The key has no folder, unless the whole directory has gone.
            self.directory.check().map_err(errors::Lost::of)?;
        }
        listed
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let most_bytes = self.directory.contents.most_bytes();
        let most = (most_bytes + MAX_HEADER_BYTES) as u64;
        let mut content = Vec::new();
        File::open(self.path.join(name))?.take(most + 1).read_to_end(&mut content)?;
        if content.len() as u64 > most {
            return Err(io::Error::new(K::FileTooLarge, format!("it has more than {most_bytes} bytes")));
        }
        Ok(content)
    }

    fn make(&self) -> io::Result<()> {
        self.directory.check().map_err(errors::Lost::of)?;
        self.create_folders(&self.directory.path)
    }

    fn read_beginning(&self, name: &str) -> io::Result<(Vec<u8>, u64)> {
        let file = File::open(self.path.join(name))?;
        let bytes = file.metadata()?.len();
        let mut beginning = Vec::new();
        file.take(MAX_HEADER_BYTES as u64).read_to_end(&mut beginning)?;
        Ok((beginning, bytes))
    }

    fn create(&self, name: &str, header: &[u8], value: &[u8]) -> io::Result<u64> {
        let (path, sent) = (self.path.join(name), self.now());
        let mode = mode_of(&self.path)? & 0o666;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        file.write_all(header)?;
        file.write_all(value)?;
        file.sync_all()?;
        let metadata = file.metadata()?;
        permit(&path, mode, metadata.mode() & 0o7777);
        let stamp_us = stamp_us(&metadata);
        self.directory.clock.observe(stamp_us, RESOLUTION, sent, self.now());
        Ok(stamp_us)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        fs::hard_link(self.path.join(from), self.path.join(to))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn stamp(&self, name: &str) -> io::Result<u64> {
        Ok(stamp_us(&fs::metadata(self.path.join(name))?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn now(&self) -> Moment {
        self.directory.env.now()
    }

    fn fault(&self, what: &str, error: &io::Error) -> Fault {
        errors::fault(what, &self.path, error)
    }
}

fn list(path: &Path) -> io::Result<Vec<String>> {
    // Names that are not UTF-8 are not leasehold's.
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().into_string().ok());
    fs::read_dir(path)?.filter_map(|entry| name(entry).transpose()).collect()
}

fn mode_of(path: &Path) -> io::Result<u32> {
    Ok(fs::metadata(path)?.mode() & 0o7777)
}

/// Gives `path` the permissions of its folder, whatever the umask of this process, so that the mode of the directory
/// alone decides who shares the locks.
fn permit(path: &Path, wanted: u32, actual: u32) {
    if wanted != actual {
        // Some file systems have no modes. If another user cannot read the file, their error says so.
        let _ = fs::set_permissions(path, Permissions::from_mode(wanted));
    }
}

/// Returns when the inode changed, which the file server sets. A link changes the inode, so a generation is as old as
/// its number, and not as its content.
fn stamp_us(metadata: &fs::Metadata) -> u64 {
    let seconds = u64::try_from(metadata.ctime()).unwrap_or(0);
    seconds.saturating_mul(1_000_000) + u64::try_from(metadata.ctime_nsec()).unwrap_or(0) / 1_000
}
