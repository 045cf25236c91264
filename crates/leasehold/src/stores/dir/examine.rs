//! The doctor's checks of the directory: its marker and hard links.

use super::DirectoryRegister;
use super::errors;
use super::files::KeyFolder;
use super::generations::Folder;
use crate::diagnosis::{Examined, Finding};
use crate::error::{ErrorKind, Fault};
use crate::lease::Id;

impl DirectoryRegister {
    pub(super) async fn examined(&self) -> Examined {
        let mut examined = Examined::default();
        let nonce = self.nonce();
        let checked = self.run(move |directory| {
            directory.check().map_err(Fault::not_applied)?;
            links(&directory.marker(), nonce).map_err(Fault::not_applied)
        });
        let good = "files can have a second name, and the number of names is right";
        examined.push(Finding::asked("hard-links", good, checked.await));
        examined
    }
}

/// Tries out whether files can have a second name, which only one of several processes can create.
///
/// # Errors
/// Unsupported if the file system has no hard links.
pub(super) fn links(folder: &KeyFolder<'_>, nonce: Id) -> Result<(), Fault> {
    let (one, two) = (format!("{nonce}.tmp"), format!("{nonce}-2.tmp"));
    folder.create(&one, b"").map_err(|error| folder.fault("write a file in", &error))?;
    let counted = tried(folder, &one, &two);
    let _ = (folder.remove(&one), folder.remove(&two));
    counted
}

fn tried(folder: &KeyFolder<'_>, one: &str, two: &str) -> Result<(), Fault> {
    let missing = |seen: String| {
        Fault::new(ErrorKind::Unsupported, format!("{}: {seen}", folder.path.display()))
            .with_help(errors::NO_LINKS)
    };
    folder.link(one, two).map_err(|error| match folder.fault("link a file in", &error) {
        // FAT and others refuse links in this way, although the file could be written.
        Fault { kind: ErrorKind::Denied, .. } => missing(error.to_string()),
        fault => fault,
    })?;
    if folder.link(one, two).is_ok() {
        return Err(missing("a link replaced an existing file".to_owned()));
    }
    let names = folder.links(one).map_err(|error| folder.fault("read a file in", &error))?;
    if names == 2 { Ok(()) } else { Err(missing(format!("a file with two names has {names}"))) }
}
