//! Seals: texts that only a server with the same secret can have written.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The seal over `parts`, as 64 hexadecimal digits. The first part says what for, so that no seal counts elsewhere.
pub(crate) fn seal(secret: &[u8], parts: &[&[u8]]) -> Option<String> {
    let bytes = mac(secret, parts)?.finalize().into_bytes();
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether `seal` is the one over `parts`. Compares in constant time.
pub(crate) fn is_seal(secret: &[u8], parts: &[&[u8]], seal: &str) -> bool {
    let digits = |at: usize| u8::from_str_radix(seal.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..32).map(digits).collect();
    seal.len() == 64
        && bytes.zip(mac(secret, parts)).is_some_and(|(bytes, mac)| mac.verify_slice(&bytes).is_ok())
}

fn mac(secret: &[u8], parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    for part in parts {
        // With its length, so that no two lists of parts look the same.
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    Some(mac)
}
