//! The actions, one file for each kind.

mod batches;
mod changing;
mod deleting;
mod moves;
mod peeking;
mod permissions;
mod queues;
mod receiving;
mod sending;
mod sts;
mod tags;

use bytes::Bytes;
use hyper::Response;
use serde::Serialize;

use crate::error::{Code, ErrorRefusal};
use crate::front::RequestContext;
use crate::held::Held;
use crate::protocol::ProtocolService;
use crate::room::RoomTaken;

/// What is answered.
pub(crate) struct Made {
    pub(crate) answer: Response<Bytes>,
    /// The room that was taken for it, if there is much of it.
    pub(crate) room: Option<RoomTaken>,
    /// What it hands out.
    pub(crate) held: Option<Held>,
}

/// Does what was asked for.
pub(crate) async fn answer(context: &RequestContext<'_>) -> Result<Made, ErrorRefusal> {
    let action = context.asked.action.as_str();
    match (context.asked.service, action) {
        // These are not about the queue that is asked there.
        (ProtocolService::Sqs, "CreateQueue" | "ListQueues") if context.is_at_queue() => {
            Err(invalid_action(action))
        }
        (ProtocolService::Sqs, "SendMessage") => {
            sending::send(context).await.and_then(|answer| context.done(&answer))
        }
        (ProtocolService::Sqs, "SendMessageBatch") => context.done(&sending::send_batch(context).await?),
        (ProtocolService::Sqs, "ReceiveMessage") => {
            let (received, room, held) = receiving::receive(context).await?;
            Ok(Made { held: Some(held), ..context.done_in(room, &received)? })
        }
        (ProtocolService::Sqs, "DeleteMessage") => context.done(&deleting::delete(context).await?),
        (ProtocolService::Sqs, "DeleteMessageBatch") => context.done(&deleting::delete_batch(context).await?),
        (ProtocolService::Sqs, "ChangeMessageVisibility") => context.done(&deleting::change(context).await?),
        (ProtocolService::Sqs, "ChangeMessageVisibilityBatch") => {
            context.done(&deleting::change_batch(context).await?)
        }
        (ProtocolService::Sqs, "CreateQueue") => context.done(&queues::create(context).await?),
        (ProtocolService::Sqs, "DeleteQueue") => context.done(&queues::delete(context).await?),
        (ProtocolService::Sqs, "PurgeQueue") => context.done(&queues::purge(context).await?),
        (ProtocolService::Sqs, "GetQueueUrl") => context.done(&queues::get_url(context).await?),
        (ProtocolService::Sqs, "ListQueues") => context.done(&queues::list(context).await?),
        (ProtocolService::Sqs, "GetQueueAttributes") => context.done(&queues::get_attributes(context).await?),
        (ProtocolService::Sqs, "SetQueueAttributes") => context.done(&queues::set_attributes(context).await?),
        (ProtocolService::Sqs, "ListDeadLetterSourceQueues") => {
            context.done(&queues::list_sources(context).await?)
        }
        (ProtocolService::Sqs, "TagQueue") => context.done(&tags::tag(context).await?),
        (ProtocolService::Sqs, "UntagQueue") => context.done(&tags::untag(context).await?),
        (ProtocolService::Sqs, "ListQueueTags") => context.done(&tags::list(context).await?),
        (ProtocolService::Sqs, "AddPermission") => context.done(&permissions::add(context).await?),
        (ProtocolService::Sqs, "RemovePermission") => context.done(&permissions::remove(context).await?),
        (ProtocolService::Sqs, "StartMessageMoveTask") => context.done(&moves::start(context).await?),
        (ProtocolService::Sqs, "CancelMessageMoveTask") => context.done(&moves::cancel(context).await?),
        (ProtocolService::Sqs, "ListMessageMoveTasks") => context.done(&moves::list(context).await?),
        (ProtocolService::Sts, "GetCallerIdentity") => context.done(&sts::get_caller_identity(context)),
        (ProtocolService::Tailwater, "PeekMessages") => {
            let (peeked, room) = peeking::peek(context).await?;
            context.done_in(room, &peeked)
        }
        (_, action) => Err(invalid_action(action)),
    }
}

fn invalid_action(action: &str) -> ErrorRefusal {
    ErrorRefusal::new(Code::InvalidAction, format!("The action {action} is not valid for this endpoint."))
}

impl RequestContext<'_> {
    fn done(&self, result: &impl Serialize) -> Result<Made, ErrorRefusal> {
        self.done_in(None, result)
    }

    fn done_in(&self, room: Option<RoomTaken>, result: &impl Serialize) -> Result<Made, ErrorRefusal> {
        Ok(Made { answer: self.asked.answer(self.request_id, result), room, held: None })
    }
}
