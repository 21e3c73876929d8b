//! ReceiveMessage.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tailwater_queue::{Message, QueueView, Receive};
use tailwater_sqs_wire::hex;

use super::sending::checked_id;
use crate::content::{Attribute, MessageContent, Value, md5_of_attributes};
use crate::error::{Code, ErrorRefusal};
use crate::front::RequestContext;
use crate::held::Held;
use crate::limits::{SMALL_BYTES, VISIBILITY_S, WAIT_S};
use crate::names;
use crate::protocol::or_default;
use crate::room::RoomTaken;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Parameters {
    queue_url: Option<String>,
    #[serde(deserialize_with = "or_default")]
    attribute_names: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    message_system_attribute_names: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    message_attribute_names: Vec<String>,
    max_number_of_messages: Option<i64>,
    visibility_timeout: Option<i64>,
    wait_time_seconds: Option<i64>,
    receive_request_attempt_id: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ReceivedAnswer {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    messages: Vec<MessageOut>,
}

/// A message as clients get it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct MessageOut {
    message_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt_handle: Option<String>,
    #[serde(rename = "MD5OfBody")]
    md5_of_body: String,
    body: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'static str, String>,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    md5_of_message_attributes: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    message_attributes: BTreeMap<String, AttributeOut>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct AttributeOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    string_value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_value: Option<String>,
    data_type: String,
}

pub(super) async fn receive(
    context: &RequestContext<'_>,
) -> Result<(ReceivedAnswer, Option<RoomTaken>, Held), ErrorRefusal> {
    if context.body_bytes > SMALL_BYTES {
        // While it waits it would hold room that sends need.
        let message = format!("The body of a ReceiveMessage is longer than {SMALL_BYTES} bytes.");
        return Err(ErrorRefusal::new(Code::Malformed, message));
    }
    let parameters: Parameters = context.asked.parameters()?;
    // Before anything is asked for, so that no change is missed.
    let mut rights = context.front.rights();
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    let count = parameters.max_number_of_messages.unwrap_or(1);
    let count = usize::try_from(count).ok().filter(|count| (1..=10).contains(count)).ok_or_else(|| {
        ErrorRefusal::value(count, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
    })?;
    let visibility = seconds(
        parameters.visibility_timeout,
        VISIBILITY_S,
        "VisibilityTimeout",
        "Must be between 0 and 43200, if provided.",
    )?;
    let wait = seconds(
        parameters.wait_time_seconds,
        WAIT_S,
        "WaitTimeSeconds",
        "Must be >= 0 and <= 20, if provided.",
    )?;
    let attempt = checked_id(parameters.receive_request_attempt_id, "ReceiveRequestAttemptId")?;
    let (queues, accounts) = (&context.front.queues, &context.front.accounts);
    let waits_s = wait.map_or(u64::from(queue.record().settings.wait_s), |wait| wait.as_secs());
    let _waiting = if waits_s > 0 { accounts.admit_waiting(&context.identity)? } else { None };
    let count = accounts.admit_receive(&queue.account, count, &**queues).await?;
    context.front.wait_for_room().await?;
    let mut keys = accounts.changes();
    accounts.check(&context.identity)?;
    let mut receiving = queues.receive(&queue, Receive { count, visibility, wait, attempt });
    let messages = loop {
        tokio::select! {
            biased;
            () = keys.changed() => accounts.check(&context.identity)?,
            () = rights.changed() => drop(context.queue(parameters.queue_url.as_deref()).await?),
            messages = &mut receiving => break messages?,
        }
    };
    let held = Held::new(&context.front.env, queues, &queue, &messages);
    // Where there is none somebody else may have room for them.
    let room = context.front.room_for(&messages).await?;
    accounts.received(&queue.account, messages.len());
    let asked = ReceiveWanted {
        system: parameters
            .attribute_names
            .into_iter()
            .chain(parameters.message_system_attribute_names)
            .collect(),
        own: parameters.message_attribute_names,
    };
    let messages = messages.iter().map(|message| message_out(context, &queue, message, &asked, true));
    match messages.collect() {
        Ok(messages) => Ok((ReceivedAnswer { messages }, room, held)),
        Err(refusal) => {
            // It makes no sense, and would be received again at once, and for ever.
            held.handed_out();
            Err(refusal)
        }
    }
}

fn seconds(
    given: Option<i64>,
    range: RangeInclusive<u32>,
    parameter: &str,
    reason: &str,
) -> Result<Option<Duration>, ErrorRefusal> {
    let seconds = given.map(|given| {
        let seconds = u32::try_from(given).ok().filter(|seconds| range.contains(seconds));
        seconds
            .map(|seconds| Duration::from_secs(seconds.into()))
            .ok_or_else(|| ErrorRefusal::value(given, parameter, reason))
    });
    seconds.transpose()
}

/// Which attributes were asked for.
pub(super) struct ReceiveWanted {
    pub(super) system: Vec<String>,
    pub(super) own: Vec<String>,
}

impl ReceiveWanted {
    fn is_system(&self, name: &str) -> bool {
        self.system.iter().any(|wanted| wanted == name || wanted == "All")
    }

    fn is_own(&self, name: &str) -> bool {
        self.own.iter().any(|wanted| match wanted.strip_suffix(".*") {
            Some(prefix) => name.starts_with(prefix),
            None => wanted == name || matches!(wanted.as_str(), "All" | "*"),
        })
    }
}

/// A message, with what was asked for of its attributes.
pub(super) fn message_out(
    context: &RequestContext<'_>,
    queue: &QueueView,
    message: &Message,
    wanted: &ReceiveWanted,
    with_receipt: bool,
) -> Result<MessageOut, ErrorRefusal> {
    let content = MessageContent::decode(&message.content)
        .map_err(|error| ErrorRefusal::new(Code::InternalFailure, error.to_string()))?;
    let is_fifo = queue.record().settings.fifo.is_some();
    let source = message
        .source
        .as_ref()
        .map(|source| names::arn(&context.front.config.region, &queue.account, source));
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    let attributes = [
        ("SenderId", some(&content.sender)),
        ("SentTimestamp", Some(message.sent_at.to_string())),
        ("ApproximateReceiveCount", Some(message.receives.to_string())),
        ("ApproximateFirstReceiveTimestamp", Some(message.first_received_at.to_string())),
        ("SequenceNumber", is_fifo.then(|| message.receipt.sequence.text())),
        ("MessageDeduplicationId", some(&content.deduplication)),
        ("MessageGroupId", some(&content.group)),
        ("AWSTraceHeader", some(&content.trace)),
        ("DeadLetterQueueSourceArn", source),
    ];
    let attributes = attributes.into_iter().filter(|(name, _)| wanted.is_system(name));
    let own: Vec<(&String, &Attribute)> =
        content.attributes.iter().filter(|(name, _)| wanted.is_own(name)).collect();
    let md5 = md5_of_attributes(own.iter().copied());
    let secret = context.front.queues.secret();
    Ok(MessageOut {
        message_id: secret.message_id(message.number, message.generation),
        receipt_handle: with_receipt.then(|| secret.write(&message.receipt)),
        md5_of_body: hex(&content.body_md5),
        attributes: attributes.filter_map(|(name, value)| Some((name, value?))).collect(),
        md5_of_message_attributes: md5.map(|md5| hex(&md5)),
        message_attributes: own
            .into_iter()
            .map(|(name, value)| (name.clone(), attribute_out(value)))
            .collect(),
        body: content.body,
    })
}

fn attribute_out(attribute: &Attribute) -> AttributeOut {
    let (string_value, binary_value) = match &attribute.value {
        Value::Text(text) => (Some(text.clone()), None),
        Value::Binary(bytes) => (None, Some(STANDARD.encode(bytes))),
    };
    AttributeOut { string_value, binary_value, data_type: attribute.data_type.clone() }
}
