//! What is mounted where. A container may mount a file of its own over another one.

use std::path::Path;

use crate::error::Fault;

/// Returns whether something is mounted at `path`, which must have no symbolic links.
///
/// statx(2) shows it too, but not on kernels before 5.8, nor where a seccomp filter refuses the call.
///
/// # Errors
/// Unsupported if the mounts cannot be read: two processes could then take different files for the same one.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn is_mounted(path: &Path) -> Result<bool, Fault> {
    linux::lists(std::fs::read("/proc/self/mountinfo"), path)
}

/// Returns `false`. On these systems a file cannot be mounted without its folder.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn is_mounted(_: &Path) -> Result<bool, Fault> {
    Ok(false)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::io;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use crate::error::{ErrorKind, Fault};

    /// Returns whether `mountinfo` has a mount at `path`.
    pub(super) fn lists(mountinfo: io::Result<Vec<u8>>, path: &Path) -> Result<bool, Fault> {
        let mountinfo = mountinfo.map_err(|error| {
            Fault::new(
                ErrorKind::Unsupported,
                format!("the mounts that this process sees cannot be read: {error}"),
            )
            .with_help("on Linux, /proc must be mounted: /proc/self/mountinfo is read")
        })?;
        let mut name = Vec::new();
        for &byte in path.as_os_str().as_bytes() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' => name.extend(format!("\\{byte:03o}").bytes()),
                _ => name.push(byte),
            }
        }
        // Fields are numbered as in proc(5): the mount point is field 5.
        let mut points =
            mountinfo.split(|&byte| byte == b'\n').map(|line| line.split(|&byte| byte == b' ').nth(4));
        Ok(points.any(|point| point == Some(&name[..])))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_mount_is_found_by_its_place_and_not_by_its_source() {
            let mounts = "22 1 0:20 / / rw - ext4 /dev/sda rw\n\
                23 22 0:20 /run/id /proc/sys/kernel/random/boot_id ro,nosuid - tmpfs tmpfs rw\n\
                24 22 0:20 /from.db /a\\040b\\134c\\011d/l.db rw shared:1 - ext4 /dev/sda rw\n";
            let is_mounted = |path: &str| lists(Ok(mounts.into()), Path::new(path)).unwrap();
            for mounted in ["/", "/proc/sys/kernel/random/boot_id", "/a b\\c\td/l.db"] {
                assert!(is_mounted(mounted), "{mounted}");
            }
            for other in ["/run/id", "/from.db", "/proc/sys/kernel/random", "/a b\\c\td", "", "rw"] {
                assert!(!is_mounted(other), "{other}");
            }
        }

        #[test]
        fn mounts_that_cannot_be_read_are_not_taken_for_none() {
            let fault = lists(Err(io::ErrorKind::PermissionDenied.into()), Path::new("/l.db")).unwrap_err();
            assert_eq!((fault.kind, fault.help.is_some()), (ErrorKind::Unsupported, true), "{fault:?}");
        }
    }
}
