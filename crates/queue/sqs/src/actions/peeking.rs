//! PeekMessages, which only Tailwater has: looks at messages without receiving them.

use serde::{Deserialize, Serialize};
use tailwater_queue::{Message, QueueView, Sequence};

use super::receiving::{MessageOut, ReceiveWanted, message_out};
use crate::error::ErrorRefusal;
use crate::front::RequestContext;
use crate::limits::{PEEK_BYTES_MAX, PEEK_MAX, PEEK_STEP};
use crate::protocol::or_default;
use crate::room::RoomTaken;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Parameters {
    queue_url: Option<String>,
    /// The first one, by its number in the queue.
    #[serde(deserialize_with = "or_default")]
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

pub(super) async fn peek(context: &RequestContext<'_>) -> Result<(Peeked, Option<RoomTaken>), ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    let count = parameters.max_number_of_messages.unwrap_or(10).clamp(1, PEEK_MAX);
    context.front.wait_for_room().await?;
    let (messages, next) = look(context, &queue, Sequence(parameters.from), count).await?;
    let room = context.front.room_for(&messages).await?;
    let wanted = ReceiveWanted { system: vec!["All".to_owned()], own: vec!["All".to_owned()] };
    let messages = messages.iter().map(|message| {
        let visible_at = message.visible_at;
        Ok(PeekedMessage { message: message_out(context, &queue, message, &wanted, false)?, visible_at })
    });
    Ok((Peeked { messages: messages.collect::<Result<_, ErrorRefusal>>()?, next }, room))
}

/// Messages from `from` on, up to `count` and as many as have [`PEEK_BYTES_MAX`] together; and where to look on, if
/// there may be more.
async fn look(
    context: &RequestContext<'_>,
    queue: &QueueView,
    mut from: Sequence,
    count: usize,
) -> Result<(Vec<Message>, Option<u64>), ErrorRefusal> {
    let (mut messages, mut bytes) = (Vec::new(), 0);
    while messages.len() < count {
        let step = PEEK_STEP.min(count - messages.len());
        let some = context.front.queues.peek(queue, from, step).await?;
        // Fewer may be there because some were deleted meanwhile.
        let is_last = some.is_empty();
        for message in some {
            bytes += message.content.len();
            if bytes > PEEK_BYTES_MAX && !messages.is_empty() {
                return Ok((messages, Some(from.0)));
            }
            from = Sequence(message.receipt.sequence.0 + 1);
            messages.push(message);
        }
        if is_last {
            return Ok((messages, None));
        }
    }
    Ok((messages, Some(from.0)))
}
