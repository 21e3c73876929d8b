//! SendMessage and SendMessageBatch.

mod attributes;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tailwater_queue::{QueueRecord, Send, Sent};
use tailwater_sqs_wire::hex;

use self::attributes::{AttributesIn, attribute_bytes, of_system, of_user};
use super::batches::{self, BatchAnswer, FailedEntry};
use crate::content::{MessageContent, md5_of, md5_of_attributes};
use crate::error::{Code, ErrorRefusal};
use crate::front::RequestContext;
use crate::limits::{DELAY_S, ID_CHARS_MAX, MESSAGE_BYTES};
use crate::protocol::{JsonObject, or_default};

const NO_DEDUPLICATION_ID: &str = "The queue should either have ContentBasedDeduplication enabled or \
    MessageDeduplicationId provided explicitly";

/// How Amazon begins to say that a message is too long: one that is sent alone, and one of a batch.
const ALONE: &str = "One or more parameters are invalid.";
const IN_BATCH: &str = "One or more parameters cannot be validated.";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Message {
    id: Option<String>,
    queue_url: Option<String>,
    message_body: Option<String>,
    delay_seconds: Option<i64>,
    message_attributes: Option<AttributesIn>,
    message_system_attributes: Option<AttributesIn>,
    message_deduplication_id: Option<String>,
    message_group_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Batch {
    queue_url: Option<String>,
    #[serde(deserialize_with = "or_default")]
    entries: Vec<JsonObject<Message>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SentAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "MD5OfMessageBody")]
    md5_of_message_body: String,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    md5_of_message_attributes: Option<String>,
    #[serde(rename = "MD5OfMessageSystemAttributes", skip_serializing_if = "Option::is_none")]
    md5_of_message_system_attributes: Option<String>,
    message_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_number: Option<String>,
}

/// A message that may be sent, and what is answered when it was.
struct Ready {
    send: Send,
    id: Option<String>,
    body_md5: [u8; 16],
    attributes_md5: Option<[u8; 16]>,
    system_attributes_md5: Option<[u8; 16]>,
}

pub(super) async fn send(context: &RequestContext<'_>) -> Result<SentAnswer, ErrorRefusal> {
    let message: Message = context.asked.parameters()?;
    let queue = context.queue(message.queue_url.as_deref()).await?;
    let record = queue.record();
    let ready = prepare(context, &record, message, ALONE)?;
    let (send, told) = ready.split();
    let sent = context.front.queues.send(&queue, vec![send]).await?;
    Ok(told(context, &record, &sent[0]))
}

pub(super) async fn send_batch(
    context: &RequestContext<'_>,
) -> Result<BatchAnswer<SentAnswer>, ErrorRefusal> {
    let batch: Batch = context.asked.parameters()?;
    let queue = context.queue(batch.queue_url.as_deref()).await?;
    let entries: Vec<Message> = batch.entries.into_iter().map(|JsonObject(entry)| entry).collect();
    let ids = entries.iter().map(|entry| entry.id.as_deref().unwrap_or_default());
    batches::check(ids, "SendMessageBatchRequestEntry")?;
    let record = queue.record();
    check_whole(&record, &entries)?;
    let (mut ready, mut failed) = (Vec::new(), Vec::new());
    for entry in entries {
        let id = entry.id.clone().unwrap_or_default();
        match prepare(context, &record, entry, IN_BATCH) {
            Ok(one) => ready.push(one),
            Err(refusal) => failed.push(FailedEntry::new(id, refusal)),
        }
    }
    let ids: Vec<String> = ready.iter().map(|one| one.id.clone().unwrap_or_default()).collect();
    let (sends, told): (Vec<Send>, Vec<_>) = ready.into_iter().map(Ready::split).unzip();
    let sent = match sends.is_empty() {
        true => Vec::new(),
        false => context.front.queues.send_each(&queue, sends).await?,
    };
    // Where nothing could be done the request fails as a whole: clients try that again by themselves.
    if failed.is_empty()
        && let Some(Err(error)) = sent.first()
        && sent.iter().all(Result::is_err)
    {
        return Err(error.clone().into());
    }
    let mut successful = Vec::with_capacity(sent.len());
    for ((told, id), sent) in told.into_iter().zip(ids).zip(sent) {
        match sent {
            Ok(sent) => successful.push(told(context, &record, &sent)),
            Err(error) => failed.push(FailedEntry::new(id, error.into())),
        }
    }
    Ok(BatchAnswer { successful, failed })
}

impl Ready {
    /// What is sent, and what tells of it afterwards.
    fn split(self) -> (Send, impl FnOnce(&RequestContext<'_>, &QueueRecord, &Sent) -> SentAnswer) {
        let Self { send, id, body_md5, attributes_md5, system_attributes_md5 } = self;
        let told = move |context: &RequestContext<'_>, record: &QueueRecord, sent: &Sent| SentAnswer {
            id,
            md5_of_message_body: hex(&body_md5),
            md5_of_message_attributes: attributes_md5.map(|md5| hex(&md5)),
            md5_of_message_system_attributes: system_attributes_md5.map(|md5| hex(&md5)),
            message_id: context.front.queues.secret().message_id(sent.number, sent.generation),
            sequence_number: record.settings.fifo.map(|_| sent.sequence.text()),
        };
        (send, told)
    }
}

fn invalid(message: impl Into<String>) -> ErrorRefusal {
    ErrorRefusal::new(Code::InvalidParameterValue, message)
}

/// What a batch is refused for as a whole, although it is only some of its entries that are wrong.
fn check_whole(record: &QueueRecord, entries: &[Message]) -> Result<(), ErrorRefusal> {
    let bytes: usize = entries.iter().map(given_bytes).sum();
    let most = *MESSAGE_BYTES.end() as usize;
    if bytes > most {
        let message =
            format!("Batch requests cannot be longer than {most} bytes. You have sent {bytes} bytes.");
        return Err(ErrorRefusal::new(Code::BatchRequestTooLong, message));
    }
    let Some(fifo) = record.settings.fifo else { return Ok(()) };
    if entries.iter().any(|entry| entry.message_group_id.is_none()) {
        return Err(invalid("The request must contain the parameter MessageGroupId."));
    }
    match fifo.by_content || entries.iter().all(|entry| entry.message_deduplication_id.is_some()) {
        true => Ok(()),
        false => Err(invalid(NO_DEDUPLICATION_ID)),
    }
}

/// Bytes of a message as it was given, whatever else is wrong with it.
fn given_bytes(message: &Message) -> usize {
    let attributes = message.message_attributes.iter().flatten();
    let attributes = attributes.map(|(name, JsonObject(given))| name.len() + given.given_bytes());
    message.message_body.as_ref().map_or(0, String::len) + attributes.sum::<usize>()
}

fn prepare(
    context: &RequestContext<'_>,
    record: &QueueRecord,
    message: Message,
    too_long: &str,
) -> Result<Ready, ErrorRefusal> {
    let settings = &record.settings;
    let body = message
        .message_body
        .filter(|body| !body.is_empty())
        .ok_or_else(|| ErrorRefusal::missing("MessageBody"))?;
    check_characters(&body)?;
    let attributes = of_user(message.message_attributes.unwrap_or_default())?;
    let (trace, system_attributes_md5) = of_system(message.message_system_attributes.unwrap_or_default())?;
    let header = context.trace.filter(|header| header.len() <= usize::from(u16::MAX)).unwrap_or_default();
    let trace = if trace.is_empty() { header.to_owned() } else { trace };
    let bytes = body.len() + attributes.iter().map(attribute_bytes).sum::<usize>();
    if bytes > settings.message_bytes_max as usize {
        let most = settings.message_bytes_max;
        return Err(invalid(format!("{too_long} Reason: Message must be shorter than {most} bytes.")));
    }
    let is_fifo = settings.fifo.is_some();
    let delay = message.delay_seconds.map(|delay| {
        let seconds = u32::try_from(delay).ok().filter(|seconds| DELAY_S.contains(seconds));
        let seconds = seconds.ok_or_else(|| {
            ErrorRefusal::value(delay, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")
        })?;
        match is_fifo && seconds > 0 {
            true => Err(ErrorRefusal::value(
                delay,
                "DelaySeconds",
                "The request include parameter that is not valid for this queue type.",
            )),
            false => Ok(Duration::from_secs(seconds.into())),
        }
    });
    let delay = delay.transpose()?;
    let group = checked_id(message.message_group_id, "MessageGroupId")?;
    let deduplication = checked_id(message.message_deduplication_id, "MessageDeduplicationId")?;
    let deduplication = match (&settings.fifo, deduplication) {
        (None, Some(id)) => {
            let reason = "The request include parameter that is not valid for this queue type.";
            return Err(ErrorRefusal::value(id, "MessageDeduplicationId", reason));
        }
        (Some(_), _) if group.is_none() => return Err(ErrorRefusal::missing("MessageGroupId")),
        (Some(fifo), None) if fifo.by_content => Some(hex(&Sha256::digest(&body))),
        (Some(_), None) => {
            return Err(invalid(NO_DEDUPLICATION_ID));
        }
        (_, deduplication) => deduplication,
    };
    let (body_md5, attributes_md5) = (md5_of(body.as_bytes()), md5_of_attributes(attributes.iter()));
    let content = MessageContent {
        body,
        body_md5,
        sender: context.account().to_owned(),
        group: group.clone().unwrap_or_default(),
        deduplication: deduplication.clone().unwrap_or_default(),
        trace,
        attributes,
    };
    let send = Send { content: content.encode(), delay, group, deduplication };
    Ok(Ready { send, id: message.id, body_md5, attributes_md5, system_attributes_md5 })
}

/// Whether a body has only characters that XML can have.
fn check_characters(body: &str) -> Result<(), ErrorRefusal> {
    let is_control = |byte: u8| byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r');
    // Two characters are left, which in UTF-8 begin with a byte that few texts have.
    let is_none =
        |body: &str| body.bytes().any(|byte| byte == 0xef) && body.contains(['\u{fffe}', '\u{ffff}']);
    match body.bytes().any(is_control) || is_none(body) {
        false => Ok(()),
        true => Err(ErrorRefusal::new(
            Code::InvalidMessageContents,
            "Invalid character was found in the message body, the set of allowed characters is #x9 | #xA | #xD | [#x20 to \
             #xD7FF] | [#xE000 to #xFFFD] | [#x10000 to #x10FFFF]",
        )),
    }
}

/// A group's name or a deduplication id: 1 to 128 printable characters of ASCII, without spaces.
pub(super) fn checked_id(id: Option<String>, parameter: &str) -> Result<Option<String>, ErrorRefusal> {
    match id {
        Some(id)
            if id.is_empty()
                || id.len() > ID_CHARS_MAX
                || !id.bytes().all(|byte| byte.is_ascii_graphic()) =>
        {
            let reason = format!(
                "{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
            );
            Err(ErrorRefusal::value(id, parameter, &reason))
        }
        id => Ok(id),
    }
}
