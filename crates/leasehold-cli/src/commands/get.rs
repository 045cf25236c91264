//! `leasehold get OBJECT`: prints the content of an object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::args::{GetArgs, ObjectArgs};
use crate::context::Context;
use crate::exit::{Failure, NEGATIVE};
use crate::object::Target;
use crate::output::{print_all, print_bytes};

pub(super) async fn get(context: &Context, args: GetArgs) -> Result<u8, Failure> {
    let Target { object, shown } =
        Target::open(&ObjectArgs { object: args.object, content_type: None }).await?;
    let Some(found) = object.read().await? else {
        return Err(Failure::new(NEGATIVE, "missing", format!("there is no object {shown}")));
    };
    let content = found.value;
    match context.output.json {
        true => {
            let (bytes, text) = (content.len(), STANDARD.encode(&content));
            let line = json!({ "type": "get", "object": shown, "bytes": bytes, "content": text });
            print_all(&format!("{line}\n"))?;
        }
        false => print_bytes(&content)?,
    }
    Ok(0)
}
