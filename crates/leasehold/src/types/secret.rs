//! [`Secret`]: what proves a claim.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::invalid::InvalidValue;
use crate::env::Env;

/// The digest covers this text first, so it differs from the digest of the same bytes for another purpose.
const PURPOSE: &[u8] = b"leasehold: id of a claim, 1\n";

/// A random number of 128 bits that proves a claim. Anyone who has it can renew and release the grant of the claim.
///
/// Stores and records contain only its [`id`](Self::id), a digest, so a reader of the store cannot release a lock.
/// Parsed from 32 lower-case hexadecimal digits. `Debug` does not show it.
///
/// ```
/// use leasehold::{env::Env, lease::Secret};
///
/// let secret = Secret::new(&Env::system());
/// let same: Secret = String::from(secret).parse()?;
/// assert_eq!(same.id(), secret.id());
/// assert_ne!(String::from(secret), secret.id().to_string());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Secret(u128);

impl Secret {
    /// Returns a new random secret. It also contains the bits of the current moment, because copies of a running
    /// machine may draw the same random numbers.
    pub fn new(env: &Env) -> Self {
        Self(env.random.bits() ^ env.now().bits())
    }

    /// Returns the digest of which the id of the claim is the first half.
    pub(super) fn digest(self) -> impl Iterator<Item = u8> {
        Sha256::new().chain_update(PURPOSE).chain_update(self.0.to_be_bytes()).finalize().into_iter()
    }
}

/// Returns the number that `text` has as 32 lower-case hexadecimal digits.
pub(super) fn hexadecimal(text: &str) -> Option<u128> {
    let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    u128::from_str_radix(text, 16).ok().filter(|_| digits)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl std::str::FromStr for Secret {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        hexadecimal(text)
            .map(Self)
            .ok_or_else(|| InvalidValue::new("the secret of a claim is 32 lower-case hexadecimal digits"))
    }
}

impl TryFrom<String> for Secret {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        format!("{:032x}", secret.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Id;
    use super::*;

    /// The ids in stores must stay those of the tickets that exist.
    #[test]
    fn the_id_of_a_secret_never_changes() {
        let secret: Secret = "00112233445566778899aabbccddeeff".parse().unwrap();
        assert_eq!(secret.id().to_string(), "c44ce2eb292a72b7faab56aaa68c3804");
    }

    #[test]
    fn an_id_from_a_store_has_no_secret() {
        let secret = Secret::new(&Env::system());
        let read: Id = secret.id().to_string().parse().unwrap();
        assert_eq!(read, secret.id());
        assert_eq!((read.secret(), secret.id().secret()), (None, Some(secret)));
        assert!(!format!("{secret:?} {:?}", secret.id()).contains(&String::from(secret)[..8]));
        assert!(["", "0", &"G".repeat(32)].iter().all(|bad| bad.parse::<Secret>().is_err()));
    }
}
