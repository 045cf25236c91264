//! Properties of lock names, and of text from other machines.

use super::{assert_readable, assert_readable_error};
use crate::lease::{Holder, HolderInfo, printable as shown};
use crate::stores::fuzzing::assert_is_kept_by_objects;
use crate::types::LockName;

/// An accepted name survives a round trip through every form in which it is stored. No error contains text that could
/// harm a terminal.
pub fn lock_name(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let name = match LockName::new(&text) {
        Ok(name) => name,
        Err(error) => {
            assert_readable_error(&error.clone().into());
            assert!(error.to_string().len() < 800, "{error}");
            return;
        }
    };
    assert_eq!(name.as_str(), text);
    assert_readable(&format!("{name}"));
    assert!((1..=LockName::MAX_BYTES).contains(&name.as_str().len()));
    assert!(!name.as_str().split('/').any(|segment| matches!(segment, "" | "." | "..")), "{name}");
    let json = serde_json::to_string(&name).unwrap();
    assert_eq!(serde_json::from_str::<LockName>(&json).unwrap(), name);
    assert_is_kept_by_objects(&name);
}

/// Text from another machine is cleaned and truncated before it reaches a terminal.
pub fn printable(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for most in [0, 1, 64, 4_096] {
        let clean = shown(&text, most);
        assert_readable(&clean);
        assert!(clean.chars().count() <= most);
        assert_eq!(shown(&clean, most), clean);
    }
    let mut parts = text.split('\n').map(str::to_owned);
    let mut part = || parts.next().unwrap_or_default();
    let (name, host) = (part(), part());
    let pid = part().parse().unwrap_or(0);
    let holder = Holder { name, host, pid, note: Some(part()), value: Some(part()), ..Holder::default() };
    assert_readable(&holder.to_string());
    assert!(holder.to_string().chars().count() < 300, "{holder}");
    assert_readable(&HolderInfo { holder: Some(holder), ..HolderInfo::default() }.to_string());
}
