//! [`Id`]: a random id.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::invalid::InvalidValue;
use crate::clock::Moment;
use crate::random::Random;

/// A random number of 128 bits that identifies one acquisition or one attempt to write. Written as 32 lower-case
/// hexadecimal digits.
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(u128);

impl Id {
    /// Returns a new random id.
    pub fn random(random: &Random) -> Self {
        Self(random.bits())
    }

    /// Combines this id with a moment, so that equal ids that were drawn at different moments differ.
    pub(crate) fn at(self, now: Moment) -> Self {
        Self(self.0 ^ now.bits())
    }

    pub(crate) fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Id {
    /// Shows only the first digits, because anyone who knows the id of a claim can release its lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}..", self.0 >> 96)
    }
}

impl std::str::FromStr for Id {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let digits =
            text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match u128::from_str_radix(text, 16) {
            Ok(bits) if digits => Ok(Self(bits)),
            _ => Err(InvalidValue::new("an id is 32 lower-case hexadecimal digits")),
        }
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
        let (id, moment) = (Id(0b1100), Moment::from_raw(5, 7));
        assert_eq!(id.at(moment).0 ^ id.0, moment.bits());
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
