//! Operations on objects: `get`, `put`, `update`, and `answer`, with which the host sends the new content for an
//! update.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt as _;
use leasehold::{Object, OncePer, Token};
use serde_json::{Value, json};

use super::fields::{Fields, missing};
use super::message::Answer;
use super::pipe::MAX_LINE;
use super::refusal::Refusal;
use super::session::{Reply, Session, Work};

/// The largest content that fits into a line in base64, with room for the rest of the message.
const MAX_CONTENT: usize = (MAX_LINE - 1_024) / 4 * 3;

/// An object that the host names.
struct Target {
    url: String,
    content_type: Option<String>,
    fence: Option<Token>,
}

impl Target {
    fn read(fields: &mut Fields) -> Result<Self, Refusal> {
        Ok(Self {
            url: fields.text("object")?.ok_or_else(|| missing("object"))?,
            content_type: None,
            fence: fields.token("fence")?,
        })
    }

    async fn open(&self) -> Result<Object, Refusal> {
        let object = Object::open(&self.url).await?;
        Ok(self.content_type.iter().fold(object, Object::content_type))
    }
}

/// Reads the fields of an operation on an object and returns its work.
pub(super) fn read(
    session: Arc<Session>,
    id: u64,
    operation: &str,
    mut fields: Fields,
) -> Result<Work, Refusal> {
    if operation == "answer" {
        let (request, content) = (fields.number("request")?, fields.bytes("content")?);
        fields.finish(operation)?;
        let waits = session.answer_update(request, content);
        let none = || Refusal::invalid(format!("request {request} is not waiting for an answer"));
        return waits.then(|| async { Ok(Reply::Answer(Answer::done())) }.boxed()).ok_or_else(none);
    }
    let mut target = Target::read(&mut fields)?;
    match operation {
        "get" => {
            fields.finish(operation)?;
            Ok(get(session, target).boxed())
        }
        "put" => {
            target.content_type = fields.text("content_type")?;
            let content = fields.bytes("content")?.ok_or_else(|| missing("content"))?;
            fields.finish(operation)?;
            let fence = target.fence.ok_or_else(|| missing("fence"))?;
            Ok(put(target, fence, content).boxed())
        }
        _ => {
            target.content_type = fields.text("content_type")?;
            let attempts = fields.integer("attempts", 1..=u64::from(u32::MAX))?;
            let within = fields.milliseconds("within_ms", 1, OncePer::LONGEST)?;
            fields.finish(operation)?;
            let attempts = attempts.and_then(|attempts| u32::try_from(attempts).ok());
            Ok(update(session, id, target, attempts, within).boxed())
        }
    }
}

async fn get(session: Arc<Session>, target: Target) -> Result<Reply, Refusal> {
    let _permit = session.object_permit().await;
    let object = target.open().await?;
    let content = match target.fence {
        Some(fence) => object.read_fenced(fence).await?,
        None => object.read().await?.map(|value| value.value),
    };
    Ok(Reply::Answer(Answer::new("object", json!({ "content": encoded(content.as_deref())? }))))
}

async fn put(target: Target, fence: Token, content: Vec<u8>) -> Result<Reply, Refusal> {
    target.open().await?.write_fenced(fence, content).await?;
    Ok(Reply::Answer(Answer::done()))
}

async fn update(
    session: Arc<Session>,
    id: u64,
    target: Target,
    attempts: Option<u32>,
    within: Option<Duration>,
) -> Result<Reply, Refusal> {
    let _permit = session.object_permit().await;
    let object = target.open().await?;
    let object = attempts.into_iter().fold(object, Object::attempts);
    let object = within.into_iter().fold(object, Object::within);
    let change = async |content: Option<&[u8]>| {
        let content = encoded(content)?;
        let answer = session.expect_answer(id);
        session.outbox.send(Answer::new("content", json!({ "content": content })).to(id)).await;
        answer.await.map_err(|_| Refusal::cancelled())
    };
    let updated = match target.fence {
        Some(fence) => {
            object
                .update_fenced(fence, async |content| Ok(change(content.as_deref()).await?.map(Into::into)))
                .await
        }
        None => object.update(async |content| Ok(change(content.as_deref()).await?.map(Into::into))).await,
    };
    let updated = updated.map_err(|refusal: Refusal| refusal)?;
    let fields = json!({ "written": updated.written, "attempts": updated.attempts });
    Ok(Reply::Answer(Answer::new("updated", fields)))
}

fn encoded(content: Option<&[u8]>) -> Result<Value, Refusal> {
    match content {
        None => Ok(Value::Null),
        Some(content) if content.len() <= MAX_CONTENT => Ok(STANDARD.encode(content).into()),
        Some(content) => Err(Refusal::limit(format!(
            "the object has {} bytes, but a message can contain at most {MAX_CONTENT}",
            content.len()
        ))),
    }
}
