//! PeekMessages, which only Tailwater has: looks at messages without receiving them.

use serde::{Deserialize, Serialize};
use tailwater_queue::Sequence;

use super::receiving::{MessageOut, Wanted, message_out};
use crate::error::Refusal;
use crate::front::Context;
use crate::limits::PEEK_MAX;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Parameters {
    queue_url: Option<String>,
    /// The first one, by its number in the queue.
    from: u64,
    max_number_of_messages: Option<usize>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Peeked {
    messages: Vec<PeekedMessage>,
    /// Where to look on; none if there is nothing behind these.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PeekedMessage {
    #[serde(flatten)]
    message: MessageOut,
    /// From when on it can be received, in milliseconds since the epoch.
    visible_at: u64,
}

pub(super) async fn peek(context: &Context<'_>) -> Result<Peeked, Refusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    let count = parameters.max_number_of_messages.unwrap_or(10).clamp(1, PEEK_MAX);
    let messages = context.front.queues.peek(&queue, Sequence(parameters.from), count).await?;
    let next = messages.last().filter(|_| messages.len() == count).map(|last| last.receipt.sequence.0 + 1);
    let wanted = Wanted { system: vec!["All".to_owned()], own: vec!["All".to_owned()] };
    let messages = messages.iter().map(|message| {
        let visible_at = message.visible_at;
        Ok(PeekedMessage { message: message_out(context, &queue, message, &wanted, false)?, visible_at })
    });
    Ok(Peeked { messages: messages.collect::<Result<_, Refusal>>()?, next })
}
