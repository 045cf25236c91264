//! The checks of the directory: its marker, its file system and hard links.

use super::DirectoryRegister;
use super::errors;
use super::files::KeyFolder;
use super::generations::Folder;
use crate::diagnosis::{Examined, Finding};
use crate::error::{ErrorKind, Fault};
use crate::lease::Id;
use crate::stores::file_system;

impl DirectoryRegister {
    pub(super) async fn examined(&self) -> Examined {
        let mut examined = Examined::default();
        let nonce = self.nonce();
        let named = self.run(|directory| Ok(file_system::name(&directory.path))).await.ok().flatten();
        if let Some(named) = named {
            examined.push(Finding::passed("file-system", named));
        }
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
/// Unsupported if the file system has no hard links, or is SMB.
pub(super) fn links(folder: &KeyFolder<'_>, nonce: Id) -> Result<(), Fault> {
    if let Some(name) = file_system::name(&folder.path).filter(|name| is_refused(name)) {
        let message = format!("{} is on {name}, whose clients delay writes", folder.path.display());
        return Err(Fault::new(ErrorKind::Unsupported, message).with_help(errors::OTHERS));
    }
    let (one, two) = (format!("{nonce}.tmp"), format!("{nonce}-2.tmp"));
    folder.create(&one, b"", b"").map_err(|error| folder.fault("write a file in", &error))?;
    let counted = tried(folder, &one, &two);
    let _ = (folder.remove(&one), folder.remove(&two));
    counted
}

/// Some servers of SMB have hard links, but a client may keep writes and listings for itself while it has an oplock.
fn is_refused(file_system: &str) -> bool {
    file_system.to_ascii_uppercase().starts_with("SMB")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_smb_is_refused() {
        assert!(is_refused("SMB (0xff534d42)") && is_refused("smbfs"));
        let local = file_system::name(&std::env::temp_dir()).unwrap();
        assert!(!is_refused(&local), "{local}");
        assert!(file_system::name(std::path::Path::new("/no/such")).is_none());
    }
}
