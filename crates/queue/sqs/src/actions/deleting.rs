//! DeleteMessage and ChangeMessageVisibility, and their batches.

use std::time::Duration;

use serde::Deserialize;
use tailwater_queue::{Outcomes, QueueView, Receipt, ReceiptError};

use super::batches::{self, BatchAnswer, DoneEntry, FailedEntry};
use crate::error::{Code, ErrorRefusal};
use crate::front::RequestContext;
use crate::limits::VISIBILITY_S;
use crate::protocol::{JsonObject, Nothing, or_default};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct One {
    id: Option<String>,
    queue_url: Option<String>,
    receipt_handle: Option<String>,
    visibility_timeout: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Batch {
    queue_url: Option<String>,
    #[serde(deserialize_with = "or_default")]
    entries: Vec<JsonObject<One>>,
}

pub(super) async fn delete(context: &RequestContext<'_>) -> Result<Nothing, ErrorRefusal> {
    let one: One = context.asked.parameters()?;
    let queue = context.queue(one.queue_url.as_deref()).await?;
    let receipt = receipt(context, &queue, &one)?;
    let outcome = delete_all(context, &queue, vec![receipt]).await?;
    outcome[0].map_err(|error| refusal(error, &one))?;
    Ok(Nothing {})
}

pub(super) async fn change(context: &RequestContext<'_>) -> Result<Nothing, ErrorRefusal> {
    let one: One = context.asked.parameters()?;
    let queue = context.queue(one.queue_url.as_deref()).await?;
    let change = (receipt(context, &queue, &one)?, visibility(&one)?);
    let outcome = context.front.queues.change_visibility(&queue, vec![change]).await?;
    outcome[0].map_err(|error| refusal(error, &one))?;
    Ok(Nothing {})
}

pub(super) async fn delete_batch(
    context: &RequestContext<'_>,
) -> Result<BatchAnswer<DoneEntry>, ErrorRefusal> {
    let (queue, entries) = batch(context, "DeleteMessageBatchRequestEntry").await?;
    let (ready, failed) = divide(entries, |one| receipt(context, &queue, one));
    let (entries, receipts): (Vec<One>, Vec<Receipt>) = ready.into_iter().unzip();
    let outcomes = delete_all(context, &queue, receipts).await?;
    Ok(collect(entries, outcomes, failed))
}

pub(super) async fn change_batch(
    context: &RequestContext<'_>,
) -> Result<BatchAnswer<DoneEntry>, ErrorRefusal> {
    let (queue, entries) = batch(context, "ChangeMessageVisibilityBatchRequestEntry").await?;
    let (ready, failed) = divide(entries, |one| Ok((receipt(context, &queue, one)?, visibility(one)?)));
    let (entries, changes): (Vec<One>, Vec<(Receipt, Duration)>) = ready.into_iter().unzip();
    let outcomes = context.front.queues.change_visibility(&queue, changes).await?;
    Ok(collect(entries, outcomes, failed))
}

async fn delete_all(
    context: &RequestContext<'_>,
    queue: &QueueView,
    receipts: Vec<Receipt>,
) -> Result<Outcomes, ErrorRefusal> {
    let outcomes = context.front.queues.delete(queue, receipts).await?;
    let deleted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    context.front.accounts.deleted(&queue.account, deleted);
    Ok(outcomes)
}

async fn batch(
    context: &RequestContext<'_>,
    kind: &str,
) -> Result<(std::sync::Arc<QueueView>, Vec<One>), ErrorRefusal> {
    let batch: Batch = context.asked.parameters()?;
    let queue = context.queue(batch.queue_url.as_deref()).await?;
    let entries: Vec<One> = batch.entries.into_iter().map(|JsonObject(entry)| entry).collect();
    batches::check(entries.iter().map(|entry| entry.id.as_deref().unwrap_or_default()), kind)?;
    Ok((queue, entries))
}

fn divide<T>(
    entries: Vec<One>,
    read: impl Fn(&One) -> Result<T, ErrorRefusal>,
) -> (Vec<(One, T)>, Vec<FailedEntry>) {
    let (mut ready, mut failed) = (Vec::new(), Vec::new());
    for entry in entries {
        match read(&entry) {
            Ok(one) => ready.push((entry, one)),
            Err(refusal) => failed.push(FailedEntry::new(entry.id.unwrap_or_default(), refusal)),
        }
    }
    (ready, failed)
}

fn collect(
    entries: Vec<One>,
    outcomes: Vec<Result<(), ReceiptError>>,
    mut failed: Vec<FailedEntry>,
) -> BatchAnswer<DoneEntry> {
    let mut successful = Vec::new();
    for (entry, outcome) in entries.into_iter().zip(outcomes) {
        let id = entry.id.clone().unwrap_or_default();
        match outcome {
            Ok(()) => successful.push(DoneEntry { id }),
            Err(error) => failed.push(FailedEntry::new(id, refusal(error, &entry))),
        }
    }
    BatchAnswer { successful, failed }
}

fn receipt(context: &RequestContext<'_>, queue: &QueueView, one: &One) -> Result<Receipt, ErrorRefusal> {
    let text = one.receipt_handle.as_deref().ok_or_else(|| ErrorRefusal::missing("ReceiptHandle"))?;
    let receipt = context.front.queues.secret().read(text).ok().filter(|receipt| receipt.queue == queue.id);
    receipt.ok_or_else(|| {
        let message = format!("The input receipt handle \"{text}\" is not a valid receipt handle.");
        ErrorRefusal::new(Code::ReceiptHandleIsInvalid, message)
    })
}

fn visibility(one: &One) -> Result<Duration, ErrorRefusal> {
    let given = one.visibility_timeout.ok_or_else(|| ErrorRefusal::missing("VisibilityTimeout"))?;
    let seconds = u32::try_from(given).ok().filter(|seconds| VISIBILITY_S.contains(seconds));
    let seconds = seconds.ok_or_else(|| {
        ErrorRefusal::value(given, "VisibilityTimeout", "Must be between 0 and 43200, if provided.")
    })?;
    Ok(Duration::from_secs(seconds.into()))
}

fn refusal(error: ReceiptError, one: &One) -> ErrorRefusal {
    let handle = one.receipt_handle.as_deref().unwrap_or_default();
    match error {
        ReceiptError::Expired => {
            ErrorRefusal::value(handle, "ReceiptHandle", "The receipt handle has expired.")
        }
        ReceiptError::Unavailable => ErrorRefusal::value(
            handle,
            "ReceiptHandle",
            "Message does not exist or is not available for visibility timeout change.",
        ),
        ReceiptError::NotInFlight => {
            ErrorRefusal::new(Code::MessageNotInflight, "The message referred to is not in flight.")
        }
        ReceiptError::TooLong => ErrorRefusal::value(
            one.visibility_timeout.unwrap_or_default(),
            "VisibilityTimeout",
            "Total VisibilityTimeout for the message is beyond the limit [43200 seconds].",
        ),
    }
}
