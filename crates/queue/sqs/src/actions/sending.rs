//! SendMessage and SendMessageBatch.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tailwater_queue::{QueueRecord, Send, Sent};
use tailwater_sqs_wire::hex;

use super::batches::{self, BatchAnswer, FailedEntry};
use crate::content::{Attribute, Attributes, MessageContent, Value, md5_of, md5_of_attributes};
use crate::error::{Code, ErrorRefusal};
use crate::front::RequestContext;
use crate::limits::{ATTRIBUTE_NAME_CHARS_MAX, ATTRIBUTES_MAX, DELAY_S, ID_CHARS_MAX, MESSAGE_BYTES};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Message {
    id: Option<String>,
    queue_url: Option<String>,
    message_body: Option<String>,
    delay_seconds: Option<i64>,
    message_attributes: Option<BTreeMap<String, AttributeIn>>,
    message_system_attributes: Option<BTreeMap<String, AttributeIn>>,
    message_deduplication_id: Option<String>,
    message_group_id: Option<String>,
}

/// An attribute as clients send it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct AttributeIn {
    string_value: Option<String>,
    binary_value: Option<String>,
    data_type: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Batch {
    queue_url: Option<String>,
    entries: Vec<Message>,
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
    bytes: usize,
    id: Option<String>,
    body_md5: [u8; 16],
    attributes_md5: Option<[u8; 16]>,
    system_attributes_md5: Option<[u8; 16]>,
}

pub(super) async fn send(context: &RequestContext<'_>) -> Result<SentAnswer, ErrorRefusal> {
    let message: Message = context.asked.parameters()?;
    let queue = context.queue(message.queue_url.as_deref()).await?;
    let record = queue.record();
    let ready = prepare(&record, message, context.account())?;
    let (send, told) = ready.split();
    let sent = context.front.queues.send(&queue, vec![send]).await?;
    Ok(told(context, &record, &sent[0]))
}

pub(super) async fn send_batch(
    context: &RequestContext<'_>,
) -> Result<BatchAnswer<SentAnswer>, ErrorRefusal> {
    let batch: Batch = context.asked.parameters()?;
    let queue = context.queue(batch.queue_url.as_deref()).await?;
    let ids = batch.entries.iter().map(|entry| entry.id.as_deref().unwrap_or_default());
    batches::check(ids, "SendMessageBatchRequestEntry")?;
    let record = queue.record();
    let (mut ready, mut failed) = (Vec::new(), Vec::new());
    for entry in batch.entries {
        let id = entry.id.clone().unwrap_or_default();
        match prepare(&record, entry, context.account()) {
            Ok(one) => ready.push(one),
            Err(refusal) => failed.push(FailedEntry::new(id, refusal)),
        }
    }
    let bytes: usize = ready.iter().map(|one| one.bytes).sum();
    let most = *MESSAGE_BYTES.end() as usize;
    if bytes > most {
        let message =
            format!("Batch requests cannot be longer than {most} bytes. You have sent {bytes} bytes.");
        return Err(ErrorRefusal::new(Code::BatchRequestTooLong, message));
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
        let Self { send, bytes: _, id, body_md5, attributes_md5, system_attributes_md5 } = self;
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

fn prepare(record: &QueueRecord, message: Message, sender: &str) -> Result<Ready, ErrorRefusal> {
    let settings = &record.settings;
    let body = message
        .message_body
        .filter(|body| !body.is_empty())
        .ok_or_else(|| ErrorRefusal::missing("MessageBody"))?;
    check_characters(&body)?;
    let attributes = attributes(message.message_attributes.unwrap_or_default())?;
    let (trace, system_attributes_md5) = trace_header(message.message_system_attributes.unwrap_or_default())?;
    let bytes = body.len() + attributes.iter().map(attribute_bytes).sum::<usize>();
    if bytes > settings.message_bytes_max as usize {
        let most = settings.message_bytes_max;
        return Err(invalid(format!(
            "One or more parameters are invalid. Reason: Message must be shorter than {most} bytes."
        )));
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
            return Err(invalid(
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided \
                 explicitly",
            ));
        }
        (_, deduplication) => deduplication,
    };
    let (body_md5, attributes_md5) = (md5_of(body.as_bytes()), md5_of_attributes(attributes.iter()));
    let content = MessageContent {
        body,
        body_md5,
        sender: sender.to_owned(),
        group: group.clone().unwrap_or_default(),
        deduplication: deduplication.clone().unwrap_or_default(),
        trace,
        attributes,
    };
    let send = Send { content: content.encode(), delay, group, deduplication };
    Ok(Ready { send, bytes, id: message.id, body_md5, attributes_md5, system_attributes_md5 })
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

fn attribute_bytes((name, attribute): (&String, &Attribute)) -> usize {
    let value = match &attribute.value {
        Value::Text(text) => text.len(),
        Value::Binary(bytes) => bytes.len(),
    };
    name.len() + attribute.data_type.len() + value
}

fn attributes(given: BTreeMap<String, AttributeIn>) -> Result<Attributes, ErrorRefusal> {
    if given.len() > ATTRIBUTES_MAX {
        return Err(invalid(format!(
            "Number of message attributes [{}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].",
            given.len()
        )));
    }
    given.into_iter().map(|(name, value)| Ok((name.clone(), attribute(&name, value)?))).collect()
}

fn attribute(name: &str, given: AttributeIn) -> Result<Attribute, ErrorRefusal> {
    let lower = name.to_ascii_lowercase();
    let is_good = (1..=ATTRIBUTE_NAME_CHARS_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !lower.starts_with("aws.")
        && !lower.starts_with("amazon.");
    if !is_good {
        return Err(invalid(format!("The message attribute name '{name}' is invalid.")));
    }
    let data_type = given.data_type.filter(|data_type| !data_type.is_empty()).ok_or_else(|| {
        invalid(format!("The message attribute '{name}' must contain a non-empty message attribute type."))
    })?;
    let kind = data_type.split('.').next().unwrap_or_default();
    if !matches!(kind, "String" | "Number" | "Binary") || data_type.len() > ATTRIBUTE_NAME_CHARS_MAX {
        return Err(invalid(format!(
            "The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes is \
             Binary, Number, and String."
        )));
    }
    let empty = || {
        invalid(format!(
            "The message attribute '{name}' must contain a non-empty message attribute value for message attribute type \
             '{data_type}'."
        ))
    };
    let value = match (kind, given.string_value, given.binary_value) {
        ("Binary", None, Some(value)) if !value.is_empty() => {
            let bytes = STANDARD.decode(value).map_err(|_| {
                invalid(format!("The value of the message attribute '{name}' is not base64."))
            })?;
            Value::Binary(bytes.into())
        }
        ("String" | "Number", Some(value), None) if !value.is_empty() => Value::Text(value),
        _ => return Err(empty()),
    };
    match &value {
        Value::Text(text) if kind == "Number" && text.parse::<f64>().is_err() => {
            return Err(invalid(format!(
                "Can't cast the value of message (user) attribute '{name}' to a number."
            )));
        }
        Value::Text(text) => check_characters(text)?,
        Value::Binary(_) => {}
    }
    Ok(Attribute { data_type, value })
}

/// The one system attribute that can be sent, and the checksum of all of them.
fn trace_header(given: BTreeMap<String, AttributeIn>) -> Result<(String, Option<[u8; 16]>), ErrorRefusal> {
    let attributes = attributes(given)?;
    let md5 = md5_of_attributes(attributes.iter());
    let mut trace = String::new();
    for (name, Attribute { data_type, value }) in attributes {
        match (name.as_str(), data_type.as_str(), value) {
            ("AWSTraceHeader", "String", Value::Text(text)) if text.len() <= usize::from(u16::MAX) => {
                trace = text
            }
            _ => {
                let message = format!("Message system attribute name '{name}' is invalid.");
                return Err(invalid(message));
            }
        }
    }
    Ok((trace, md5))
}
