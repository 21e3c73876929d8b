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

use crate::error::{Code, Refusal};
use crate::front::Context;
use crate::held::Held;
use crate::protocol::Service;
use crate::room::Taken;

/// What is answered.
pub(crate) struct Made {
    pub(crate) answer: Response<Bytes>,
    /// The room that was taken for it, if there is much of it.
    pub(crate) room: Option<Taken>,
    /// What it hands out.
    pub(crate) held: Option<Held>,
}

/// Does what was asked for.
pub(crate) async fn answer(context: &Context<'_>) -> Result<Made, Refusal> {
    let action = context.asked.action.as_str();
    match (context.asked.service, action) {
        (Service::Sqs, "SendMessage") => {
            sending::send(context).await.and_then(|answer| context.done(&answer))
        }
        (Service::Sqs, "SendMessageBatch") => context.done(&sending::send_batch(context).await?),
        (Service::Sqs, "ReceiveMessage") => {
            let (received, room, held) = receiving::receive(context).await?;
            Ok(Made { held: Some(held), ..context.done_in(room, &received)? })
        }
        (Service::Sqs, "DeleteMessage") => context.done(&deleting::delete(context).await?),
        (Service::Sqs, "DeleteMessageBatch") => context.done(&deleting::delete_batch(context).await?),
        (Service::Sqs, "ChangeMessageVisibility") => context.done(&deleting::change(context).await?),
        (Service::Sqs, "ChangeMessageVisibilityBatch") => {
            context.done(&deleting::change_batch(context).await?)
        }
        (Service::Sqs, "CreateQueue") => context.done(&queues::create(context).await?),
        (Service::Sqs, "DeleteQueue") => context.done(&queues::delete(context).await?),
        (Service::Sqs, "PurgeQueue") => context.done(&queues::purge(context).await?),
        (Service::Sqs, "GetQueueUrl") => context.done(&queues::get_url(context).await?),
        (Service::Sqs, "ListQueues") => context.done(&queues::list(context).await?),
        (Service::Sqs, "GetQueueAttributes") => context.done(&queues::get_attributes(context).await?),
        (Service::Sqs, "SetQueueAttributes") => context.done(&queues::set_attributes(context).await?),
        (Service::Sqs, "ListDeadLetterSourceQueues") => context.done(&queues::list_sources(context).await?),
        (Service::Sqs, "TagQueue") => context.done(&tags::tag(context).await?),
        (Service::Sqs, "UntagQueue") => context.done(&tags::untag(context).await?),
        (Service::Sqs, "ListQueueTags") => context.done(&tags::list(context).await?),
        (Service::Sqs, "AddPermission") => context.done(&permissions::add(context).await?),
        (Service::Sqs, "RemovePermission") => context.done(&permissions::remove(context).await?),
        (Service::Sqs, "StartMessageMoveTask") => context.done(&moves::start(context).await?),
        (Service::Sqs, "CancelMessageMoveTask") => context.done(&moves::cancel(context).await?),
        (Service::Sqs, "ListMessageMoveTasks") => context.done(&moves::list(context).await?),
        (Service::Sts, "GetCallerIdentity") => context.done(&sts::get_caller_identity(context)),
        (Service::Tailwater, "PeekMessages") => {
            let (peeked, room) = peeking::peek(context).await?;
            context.done_in(room, &peeked)
        }
        (_, action) => {
            let message = format!("The action {action} is not valid for this endpoint.");
            Err(Refusal::new(Code::InvalidAction, message))
        }
    }
}

impl Context<'_> {
    fn done(&self, result: &impl Serialize) -> Result<Made, Refusal> {
        self.done_in(None, result)
    }

    fn done_in(&self, room: Option<Taken>, result: &impl Serialize) -> Result<Made, Refusal> {
        Ok(Made { answer: self.asked.answer(self.request_id, result), room, held: None })
    }
}
