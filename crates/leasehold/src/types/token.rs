//! [`Token`]: a fencing token.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::invalid::InvalidValue;

/// A fencing token. It is strictly greater than the token of every earlier grant of the same lock. It is less than
/// 2^53, so that JSON and JavaScript represent it exactly.
///
/// ```
/// use leasehold::Token;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let lock = leasehold::Locker::open("mem:").await?.lock("deploy");
/// let first = lock.acquire().await?;
/// let earlier = first.token()?;
/// first.release().await?;
/// let second = lock.acquire().await?;
/// assert!(second.token()? > earlier); // a resource that saw it refuses `earlier`
/// assert_eq!(Token::new(earlier.get()), Some(earlier));
/// assert_eq!(Token::new(Token::LIMIT), None);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(u64);

impl Token {
    /// The smallest number that is not a valid token.
    pub const LIMIT: u64 = 1 << 53;

    /// Creates a token from `number`. Returns `None` if the number is not below [`LIMIT`](Self::LIMIT).
    pub const fn new(number: u64) -> Option<Self> {
        if number < Self::LIMIT { Some(Self(number)) } else { None }
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

#[cfg(feature = "_schema")]
impl utoipa::PartialSchema for Token {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        let number = ObjectBuilder::new().schema_type(Type::Integer);
        let number = number.format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)));
        let number = number.minimum(Some(0_u64)).maximum(Some(Self::LIMIT - 1));
        let text =
            "A fencing token: greater than the token of every earlier grant of the lock, and below 2^53.";
        number.description(Some(text)).build().into()
    }
}

#[cfg(feature = "_schema")]
impl utoipa::ToSchema for Token {}

impl TryFrom<u64> for Token {
    type Error = InvalidValue;

    fn try_from(number: u64) -> Result<Self, InvalidValue> {
        Self::new(number).ok_or_else(|| {
            InvalidValue::new(format!("{number} is not a fencing token: it is not below 2^53"))
        })
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_below_its_limit() {
        assert!(Token::new(Token::LIMIT).is_none());
        assert_eq!(Token::new(Token::LIMIT - 1).unwrap().get(), 9_007_199_254_740_991);
    }
}
