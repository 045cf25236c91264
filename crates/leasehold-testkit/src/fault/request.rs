//! Requests and responses in the simulated network.

use bytes::Bytes;
use leasehold::error::StoreError;
use leasehold::register::{Body, Deleted, Head, Precondition, Register, Version, VersionedValue, Write};
use tokio::sync::oneshot;

use super::Kind;

#[derive(Clone, Debug)]
pub(super) enum Request {
    Read(String),
    Head(String),
    Write(String, Option<Version>, Body),
    Delete(String, Version),
}

#[derive(Debug)]
pub(super) enum Answer {
    VersionedValue(Option<VersionedValue>),
    Head(Option<Head>),
    Write(Write),
    Deleted(Deleted),
}

pub(super) type Reply = Result<Answer, StoreError>;

impl Request {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Read(..) | Self::Head(..) => Kind::Read,
            Self::Write(..) => Kind::Write,
            Self::Delete(..) => Kind::Delete,
        }
    }

    pub(super) fn key(&self) -> &str {
        match self {
            Self::Read(key) | Self::Head(key) | Self::Write(key, ..) | Self::Delete(key, _) => key,
        }
    }

    pub(super) fn value(&self) -> Option<&Bytes> {
        match self {
            Self::Write(_, _, body) => Some(&body.bytes),
            Self::Read(_) | Self::Head(_) | Self::Delete(..) => None,
        }
    }

    pub(super) async fn apply(&self, register: &dyn Register) -> Reply {
        match self {
            Self::Read(key) => register.read(key).await.map(Answer::VersionedValue),
            Self::Head(key) => register.head(key).await.map(Answer::Head),
            Self::Write(key, expect, body) => {
                let expect = expect.as_ref().map_or(Precondition::Absent, Precondition::Version);
                register.write(key, expect, body.clone()).await.map(Answer::Write)
            }
            Self::Delete(key, version) => register.delete(key, version).await.map(Answer::Deleted),
        }
    }
}

/// A request or response that is held in the network, and the channel to its caller, if it has one.
#[derive(Debug)]
pub(super) enum InNetwork {
    Request(Request, Option<oneshot::Sender<Reply>>),
    Answer(Reply, Option<oneshot::Sender<Reply>>),
}

impl InNetwork {
    pub(super) async fn arrive(self, register: &dyn Register) -> Option<Write> {
        let (reply, caller) = match self {
            Self::Request(request, caller) => (request.apply(register).await, caller),
            Self::Answer(reply, caller) => (reply, caller),
        };
        let write = match &reply {
            Ok(Answer::Write(write)) => Some(write.clone()),
            _ => None,
        };
        if let Some(caller) = caller {
            // The caller may have given up.
            let _ = caller.send(reply);
        }
        write
    }
}
