//! Move tasks: bringing dead letters back.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tailwater_queue::{MoveStatus, MoveTask, QueueError};

use crate::error::{Code, ErrorRefusal};
use crate::front::RequestContext;
use crate::names;

/// Most messages a second that a task can be limited to.
const RATE_MAX: i64 = 500;

/// Most tasks that are listed.
const LISTED_MAX: i64 = 10;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Parameters {
    source_arn: Option<String>,
    destination_arn: Option<String>,
    max_number_of_messages_per_second: Option<i64>,
    max_results: Option<i64>,
    task_handle: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Started {
    task_handle: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Cancelled {
    approximate_number_of_messages_moved: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct MoveListed {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    results: Vec<ListedTask>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ListedTask {
    #[serde(skip_serializing_if = "Option::is_none")]
    task_handle: Option<String>,
    status: &'static str,
    source_arn: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination_arn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_number_of_messages_per_second: Option<u32>,
    approximate_number_of_messages_moved: u64,
    approximate_number_of_messages_to_move: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure_reason: Option<String>,
    started_timestamp: u64,
}

pub(super) async fn start(context: &RequestContext<'_>) -> Result<Started, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let source = context.by_arn(parameters.source_arn.as_deref(), "SourceArn").await?;
    let others = context.front.queues.list(&source.account, "", None, usize::MAX).await?;
    let is_dead_letter_queue = others.iter().any(|queue| {
        queue.record().settings.redrive.as_ref().is_some_and(|redrive| redrive.target == source.name)
    });
    if !is_dead_letter_queue {
        return Err(ErrorRefusal::new(
            Code::InvalidParameterValue,
            "Source queue must be configured as a Dead Letter Queue.",
        ));
    }
    let target = match parameters.destination_arn.as_deref() {
        None => None,
        Some(arn) => {
            let target = context.by_arn(Some(arn), "DestinationArn").await?;
            if target.id == source.id {
                return Err(ErrorRefusal::value(
                    arn,
                    "DestinationArn",
                    "Source and destination must be different.",
                ));
            }
            if target.record().settings.fifo.is_some() != source.record().settings.fifo.is_some() {
                return Err(ErrorRefusal::value(
                    arn,
                    "DestinationArn",
                    "The queues must be of the same type.",
                ));
            }
            Some(target.name.clone())
        }
    };
    let rate_max = parameters.max_number_of_messages_per_second.map(|rate| {
        let given = u32::try_from(rate).ok().filter(|_| (1..=RATE_MAX).contains(&rate));
        given.ok_or_else(|| {
            ErrorRefusal::value(rate, "MaxNumberOfMessagesPerSecond", "Must be from 1 to 500.")
        })
    });
    let rate_max = rate_max.transpose()?;
    let task = MoveTask { target, rate_max, ..MoveTask::new(&source.account, &source.name) };
    let id = context.front.queues.start_move(task).await?;
    Ok(Started { task_handle: handle(id, &context.arn(&source)) })
}

pub(super) async fn cancel(context: &RequestContext<'_>) -> Result<Cancelled, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let text = parameters.task_handle.ok_or_else(|| ErrorRefusal::missing("TaskHandle"))?;
    let (id, source_arn) = read_handle(&text).ok_or_else(|| {
        ErrorRefusal::new(Code::InvalidParameterValue, "Value for parameter TaskHandle is invalid.")
    })?;
    context.by_arn(Some(&source_arn), "SourceArn").await?;
    let id = id.ok_or(QueueError::NoTask)?;
    let moved = context.front.queues.cancel_move(context.account(), id).await?;
    Ok(Cancelled { approximate_number_of_messages_moved: moved })
}

pub(super) async fn list(context: &RequestContext<'_>) -> Result<MoveListed, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let source = context.by_arn(parameters.source_arn.as_deref(), "SourceArn").await?;
    let most = parameters.max_results.unwrap_or(1);
    if !(1..=LISTED_MAX).contains(&most) {
        return Err(ErrorRefusal::value(most, "MaxResults", "Must be from 1 to 10."));
    }
    let region = &context.front.config.region;
    let source_arn = context.arn(&source);
    let tasks = context.front.queues.list_moves(&source.account, &source.name).await?;
    let results = tasks.into_iter().take(most as usize).map(|task| ListedTask {
        task_handle: (task.status == MoveStatus::Running).then(|| handle(task.id, &source_arn)),
        status: match task.status {
            MoveStatus::Running => "RUNNING",
            MoveStatus::Completed => "COMPLETED",
            MoveStatus::Cancelled => "CANCELLED",
            MoveStatus::Failed => "FAILED",
        },
        source_arn: source_arn.clone(),
        destination_arn: task.target.map(|target| names::arn(region, &task.account, &target)),
        max_number_of_messages_per_second: task.rate_max,
        approximate_number_of_messages_moved: task.moved,
        approximate_number_of_messages_to_move: task.total,
        failure_reason: task.failure,
        started_timestamp: task.started_at,
    });
    Ok(MoveListed { results: results.collect() })
}

/// A task's handle has its id and its source, as Amazon's has.
fn handle(id: u64, source_arn: &str) -> String {
    STANDARD.encode(serde_json::json!({"taskId": as_uuid(id), "sourceArn": source_arn}).to_string())
}

/// Source and id of a handle; no id if it is none of ours.
fn read_handle(text: &str) -> Option<(Option<u64>, String)> {
    let fields: serde_json::Value = serde_json::from_slice(&STANDARD.decode(text).ok()?).ok()?;
    Some((of_uuid(fields.get("taskId")?.as_str()?), fields.get("sourceArn")?.as_str()?.to_owned()))
}

/// A task's number in the form of a UUID, as which clients read it.
fn as_uuid(id: u64) -> String {
    format!("{:08x}-{:04x}-4000-8000-{:012x}", id >> 32, id >> 16 & 0xffff, id & 0xffff)
}

fn of_uuid(text: &str) -> Option<u64> {
    let digits = u128::from_str_radix(&text.replace('-', ""), 16).ok()?;
    let id = (digits >> 80) << 16 | digits & 0xffff;
    let id = u64::try_from(id).ok()?;
    (as_uuid(id) == text).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_known_by_its_handle_and_by_no_other() {
        for id in [0, 1, 0xffff, 0x1_0000, 0x0123_4567_89ab_cdef, u64::MAX] {
            let (read, source) = read_handle(&handle(id, "arn")).expect("it is a handle");
            assert_eq!((read, source.as_str()), (Some(id), "arn"), "{}", as_uuid(id));
        }
        for other in ["", "x", "10f57157-fc38-4da9-a113-4de7e12d05dd", "00000000000040008000000000000001"] {
            assert_eq!(of_uuid(other), None, "{other}");
        }
    }
}
