//! Items as the questions that prove a server need them. Amazon's own endpoints are not raced and not asked before their
//! first use, because Amazon documents that they check conditions in one step with the write.
//!
//! Such an item has a nonce as its version, and no `recordVersionNumber`, so it does not count as a lock.

use async_trait::async_trait;
use aws_sdk_dynamodb::types::ReturnValue;
use bytes::Bytes;

use super::item::Item;
use super::{DynamoDb, Updated, expression};
use crate::clock::StoreTime;
use crate::env::Env;
use crate::error::StoreError;
use crate::lease::Id;
use crate::proof::cells::{Cells, Profile, Races};
use crate::proof::{KEY, races};
use crate::register::{Deleted, Precondition, Version, Write};
use crate::retry::retry;

/// A racing write has so many attributes that a server that works in two steps spends more time between them than its
/// threads take to switch (moto: 5 ms). moto 5.2.5 lets two writes win in more than half of the races.
const fn rounds(races: usize) -> Races {
    Races { races, racers: 15, least_racers: 4, lanes: 1 }
}

pub(super) const PROFILE: Profile = Profile {
    cell: "item",
    absent: "attribute_not_exists",
    current: "#nonce = :seen",
    delete: "a condition of DeleteItem",
    instead: "use Amazon DynamoDB, or a server that checks conditions and writes in one step (DynamoDB Local does)",
    races_deletes: false,
    first_use: rounds(6),
    doctor: rounds(10),
    thorough: rounds(40),
    ..Profile::REGISTER
};

#[async_trait]
impl Cells for DynamoDb {
    async fn read(&self, key: &str) -> Result<Option<(Bytes, Version)>, StoreError> {
        let item = self.read_item(&self.cell(key)).await?;
        let text = |item: &Item, name| Some(item.get(name)?.as_s().ok()?.clone());
        Ok(item.map(|item| {
            let (marker, nonce) = (text(&item, "marker"), text(&item, "nonce"));
            (marker.unwrap_or_default().into(), Version::new(nonce.unwrap_or_default()))
        }))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, bytes: Bytes) -> Result<Write, StoreError> {
        let nonce = Id::random(&self.env().random);
        let seen = expect.version().map(Version::as_str);
        let expression = match key.starts_with(races::PREFIX) {
            true => expression::racing(nonce, seen),
            false => expression::marker(String::from_utf8_lossy(&bytes).into_owned(), nonce, seen),
        };
        Ok(match self.update(&self.cell(key), expression, ReturnValue::None).await? {
            Updated::Done(_) => Write::Committed(Version::new(nonce.to_string())),
            Updated::Refused(_) => Write::Conflict,
        })
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        let deleted = self.delete(&self.cell(key), expression::proven(version.as_str())).await?;
        Ok(if deleted { Deleted::Deleted } else { Deleted::Conflict })
    }

    async fn list(&self, prefix: &str) -> Result<(), StoreError> {
        let prefix = self.key(prefix);
        retry(self.env(), || self.page(&prefix, None)).await.map(drop)
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.requests.store_time()
    }

    fn env(&self) -> &Env {
        self.requests.env()
    }

    fn identity(&self) -> String {
        format!("{}/{}", self.target.endpoint(), self.target.table)
    }

    fn profile(&self) -> Profile {
        match self.target.endpoint {
            Some(_) => PROFILE,
            None => Profile { trusted: true, doctor: Races::NONE, thorough: Races::NONE, ..PROFILE },
        }
    }
}

impl DynamoDb {
    /// Returns the key of an item. One marker is for the whole table.
    fn cell(&self, key: &str) -> String {
        if key == KEY { key.to_owned() } else { self.key(key) }
    }
}
