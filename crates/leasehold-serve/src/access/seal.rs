//! Seals: texts that only a server with the same secret can have created.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Returns the seal over `parts`, as 64 hexadecimal digits. Each kind of seal has a different number of parts, so that
/// a seal of one kind is not valid as another kind.
pub(crate) fn seal(secret: &[u8], parts: &[&[u8]]) -> Option<String> {
    let bytes = mac(secret, parts)?.finalize().into_bytes();
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns whether `seal` is the seal over `parts`. Compares in constant time.
pub(crate) fn is_seal(secret: &[u8], parts: &[&[u8]], seal: &str) -> bool {
    // Check the form first, because anyone can send any number of texts that are no seals.
    let Some(bytes) = from_hex(seal) else { return false };
    mac(secret, parts).is_some_and(|mac| mac.verify_slice(&bytes).is_ok())
}

/// Decodes 64 hexadecimal digits.
pub(super) fn from_hex(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..32).map(byte).collect::<Option<_>>()?;
    bytes.try_into().ok()
}

fn mac(secret: &[u8], parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    for part in parts {
        // Include the length, so that no two lists of parts give the same input.
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    Some(mac)
}
