//! The types of file systems. A directory refuses SMB (`dir/examine`), and SQLite all that are not known to be local:
//!
//! If two kernels open one file of SQLite, they have two boot clocks, and would grant a lock twice. So a file system is
//! accepted only if it is known to be local and to let processes share memory through a file. All others are refused,
//! unless the user guarantees with `allow_network=on` that only this machine opens the file.

use std::path::Path;

use rustix::fs::{StatFs, statfs};

use crate::error::{ErrorKind, Fault};

/// Returns the type of the file system that `folder` is on.
///
/// # Errors
/// Unsupported for a type that is not known to be local.
#[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "only SQLite needs a local one"))]
pub(super) fn require_local(folder: &Path) -> Result<String, Fault> {
    let shown = folder.display();
    let status = statfs(folder).map_err(|error| {
        Fault::unavailable(format!("cannot determine the file system of {shown}: {error}"))
            .with_help("if only this machine opens the file, add ?allow_network=on to the store URL")
    })?;
    kind(&status).map_err(|kind| {
        Fault::new(
            ErrorKind::Unsupported,
            format!("{shown} is on a file system that is not known to be local: {kind}"),
        )
        .with_help(
            "SQLite locks are for one machine: use a local disk, or a store for many machines, such as dir:FOLDER for \
             machines that share a folder; if only this machine opens the file, add ?allow_network=on to the store URL",
        )
    })
}

/// Returns the name of the type of the file system that `folder` is on, if it can be determined.
#[cfg_attr(not(feature = "dir"), allow(dead_code, reason = "only directories show it"))]
pub(super) fn name(folder: &Path) -> Option<String> {
    Some(kind(&statfs(folder).ok()?).unwrap_or_else(|other| other))
}

/// Returns the name of the type: `Ok` for a local one, `Err` for any other.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn kind(status: &StatFs) -> Result<String, String> {
    // The field is signed on some machines, but the numbers have 32 bits.
    by_magic(status.f_type as u64 & 0xffff_ffff)
}

#[cfg(target_vendor = "apple")]
fn kind(status: &StatFs) -> Result<String, String> {
    let name = status.f_fstypename.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0);
    let name = String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned();
    if ["apfs", "hfs", "ufs"].contains(&name.as_str()) { Ok(name) } else { Err(name) }
}

/// Refuses all types, because other systems report them in other ways, which are not supported yet.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn kind(_: &StatFs) -> Result<String, String> {
    Err("this operating system does not report it".to_owned())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn by_magic(magic: u64) -> Result<String, String> {
    let named = |list: &[(u64, &str)]| {
        list.iter().find(|(number, _)| *number == magic).map(|(_, name)| (*name).to_owned())
    };
    named(LOCAL).ok_or_else(|| {
        let name = named(OTHERS).unwrap_or_else(|| "type unknown".to_owned());
        format!("{name} ({magic:#x})")
    })
}

/// The local file systems on which processes can share memory through a file, by the number that statfs(2) returns.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOCAL: &[(u64, &str)] = &[
    (0xef53, "ext2, ext3 or ext4"),
    (0x5846_5342, "XFS"),
    (0x9123_683e, "Btrfs"),
    (0x2fc1_2fc1, "ZFS"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlayfs"),
    (0xf2f5_2010, "F2FS"),
    (0xca45_1a4e, "bcachefs"),
    (0x3153_464a, "JFS"),
    (0x5265_4973, "ReiserFS"),
    (0x3434, "NILFS2"),
    (0x2405_1905, "UBIFS"),
    (0xf15f, "eCryptfs"),
    (0x482b, "HFS+"),
    (0x0001_1954, "UFS"),
];

/// Names of other file systems, for the error message. A type that is missing here is also refused.
#[cfg(any(target_os = "linux", target_os = "android"))]
const OTHERS: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p, a folder of a virtual machine's host"),
    (0x6573_5546, "FUSE: sshfs, a cloud drive, a folder of a virtual machine's host"),
    (0x786f_4256, "vboxsf, a VirtualBox shared folder"),
    (0xbacb_acbc, "vmhgfs, a VMware shared folder"),
    (0x7c7c_6673, "prl_fs, a Parallels shared folder"),
    (0x5346_4846, "wslfs, a folder of the Windows host"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x1983_0326, "BeeGFS"),
    (0xbeef_dead, "SNFS"),
    (0xaad7_aaea, "PanFS"),
    (0xa501_fcf5, "VxFS"),
    (0x6163_6673, "ACFS"),
    (0x0131_11a8, "IBRIX"),
    (0x2003_0528, "OrangeFS"),
    (0x4d44, "FAT"),
    (0x2011_bab0, "exFAT"),
    (0x5346_544e, "NTFS"),
    (0x7366_746e, "NTFS"),
    (0x6175_6673, "aufs"),
    (0x72b6, "JFFS2"),
    (0x9660, "ISO 9660"),
    (0x1501_3346, "UDF"),
];

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn only_file_systems_known_to_be_local_are_used() {
        for local in [0xef53, 0x9123_683e, 0x5846_5342, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1] {
            assert!(by_magic(local).is_ok(), "{local:x}");
        }
        for (other, name) in [
            (0x6969, "NFS (0x6969)"),
            (0x7c7c_6673, "prl_fs"),
            (0xbeef_dead, "SNFS"),
            (0xaad7_aaea, "PanFS"),
            (0xa501_fcf5, "VxFS"),
            (0x6163_6673, "ACFS"),
            (0x0131_11a8, "IBRIX"),
            (0x2003_0528, "OrangeFS"),
            (0x1234_5678, "type unknown (0x12345678)"),
        ] {
            assert!(by_magic(other).unwrap_err().contains(name), "{other:x}");
        }
    }

    #[test]
    fn no_file_system_is_both_local_and_not() {
        for (number, name) in LOCAL {
            assert!(OTHERS.iter().all(|(other, _)| other != number), "{name}");
        }
    }

    #[test]
    fn an_unknown_file_system_is_refused_by_name_with_help() {
        // No lock file can be created there, but the type is reported.
        let fault = require_local(Path::new("/proc")).unwrap_err();
        assert_eq!(fault.kind, ErrorKind::Unsupported);
        assert!(fault.message.contains("/proc") && fault.message.contains("0x9fa0"), "{fault:?}");
        let help = fault.help.unwrap();
        assert!(help.contains("allow_network=on") && help.contains("dir:"), "{help}");
        assert!(require_local(&std::env::temp_dir()).is_ok());
    }
}
