//! The part of the SDK's type that [`item`](super::item) uses, for fuzzing builds without the SDK. An instrumented
//! build of the SDK takes minutes.

use std::collections::HashMap;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttributeValue {
    Bool(bool),
    L(Vec<AttributeValue>),
    M(HashMap<String, AttributeValue>),
    N(String),
    S(String),
}

impl AttributeValue {
    pub(super) fn as_l(&self) -> Result<&Vec<Self>, &Self> {
        if let Self::L(values) = self { Ok(values) } else { Err(self) }
    }
    pub(super) fn as_m(&self) -> Result<&HashMap<String, Self>, &Self> {
        if let Self::M(entries) = self { Ok(entries) } else { Err(self) }
    }
    pub(super) fn as_n(&self) -> Result<&String, &Self> {
        if let Self::N(digits) = self { Ok(digits) } else { Err(self) }
    }
    pub(super) fn as_s(&self) -> Result<&String, &Self> {
        if let Self::S(text) = self { Ok(text) } else { Err(self) }
    }
}
