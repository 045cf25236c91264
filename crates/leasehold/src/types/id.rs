//! [`Id`]: a random id.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::invalid::InvalidValue;
use super::secret::{Secret, hexadecimal};
use crate::clock::Moment;
use crate::random::Random;

/// A random number of 128 bits that identifies one acquisition or one attempt to write. Written as 32 lower-case
/// hexadecimal digits.
///
/// Anyone who can read the store may know it. It proves nothing: the id of a claim is a digest of the claim's
/// [`Secret`], and only the process that drew the secret, and those to which it gave the secret, can make a ticket.
///
/// ```
/// use leasehold::{lease::Id, random::Random};
///
/// let id = Id::random(&Random::from_os());
/// let text = id.to_string();
/// assert_eq!(text.len(), 32);
/// assert_eq!(text.parse::<Id>()?, id);
/// assert!("0123".parse::<Id>().is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id {
    bits: u128,
    /// The secret of which this id is the digest, if this process knows it. Never written, and not compared.
    secret: Option<Secret>,
}

impl Id {
    /// Returns a new random id, without a secret.
    pub fn random(random: &Random) -> Self {
        Self::of_bits(random.bits())
    }

    /// The id of no claim. Also stands for an id that is not shown.
    pub const NONE: Self = Self::of_bits(0);

    const fn of_bits(bits: u128) -> Self {
        Self { bits, secret: None }
    }

    /// Returns the secret of which this id is the digest, if this process knows it.
    pub(crate) const fn secret(self) -> Option<Secret> {
        self.secret
    }

    /// Combines this id with a moment, so that equal ids that were drawn at different moments differ.
    pub(crate) fn at(self, now: Moment) -> Self {
        Self::of_bits(self.bits ^ now.bits())
    }

    /// Returns an id of this id and `other`, in any order.
    pub(crate) const fn combined(self, other: Self) -> Self {
        Self::of_bits(self.bits ^ other.bits)
    }

    pub(crate) const fn bits(self) -> u128 {
        self.bits
    }
}

impl Secret {
    /// Returns the id of the claim that this secret proves: the first half of a SHA-256 digest.
    pub fn id(self) -> Id {
        let bits = self.digest().take(16).fold(0, |bits, byte| (bits << 8) | u128::from(byte));
        Id { bits, secret: Some(self) }
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}

impl Eq for Id {}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits.hash(state);
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.bits)
    }
}

impl fmt::Debug for Id {
    /// Shows only the first digits, which tell ids apart in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}..", self.bits >> 96)
    }
}

impl std::str::FromStr for Id {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        hexadecimal(text)
            .map(Self::of_bits)
            .ok_or_else(|| InvalidValue::new("an id is 32 lower-case hexadecimal digits"))
    }
}

impl TryFrom<String> for Id {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_at_a_moment_contains_the_bits_of_that_moment() {
        let (id, moment) = (Id::of_bits(0b1100), Moment::from_raw(5, 7));
        assert_eq!(id.at(moment).bits ^ id.bits, moment.bits());
        assert_ne!(moment.bits(), 0);
    }

    #[test]
    fn ids_are_read_back_and_nothing_else_is() {
        let id = Id::random(&Random::seeded(3));
        assert_eq!(id.to_string().parse::<Id>().unwrap(), id);
        assert_eq!(format!("{id:?}"), format!("{}..", &id.to_string()[..8]));
        for bad in ["", "0", "+123456789012345678901234567890123", "ABCDEF00000000000000000000000000", "é"] {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
    }
}
