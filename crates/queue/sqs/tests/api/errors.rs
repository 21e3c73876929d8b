//! The errors that Amazon documents for each action, one row each: a request, the code that refuses it, and the text
//! where Amazon's is known. Every row is asked in both forms.

#[path = "errors/everywhere.rs"]
mod everywhere;
#[path = "errors/messages.rs"]
mod messages;
#[path = "errors/queues.rs"]
mod queues;

use serde_json::{Map, Value, json};

use super::Api;

/// The code that refuses a request, as the Query protocol has it, and the text.
pub(super) type Refusal = (&'static str, String);

/// What is wrong, an action, what it is asked, and how it is refused.
pub(super) type Row = (&'static str, &'static str, Value, Refusal);

/// What the codes begin with that are their types behind it.
const SQS: &str = "AWS.SimpleQueueService.";

/// A code of the Query protocol, its type in the JSON protocol, and the statuses in that one and in the Query protocol.
const ERRORS: [(&str, &str, u16, u16); 21] = [
    ("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "sqs#BatchEntryIdsNotDistinct", 400, 400),
    ("AWS.SimpleQueueService.BatchRequestTooLong", "sqs#BatchRequestTooLong", 400, 400),
    ("AWS.SimpleQueueService.EmptyBatchRequest", "sqs#EmptyBatchRequest", 400, 400),
    ("AWS.SimpleQueueService.InvalidBatchEntryId", "sqs#InvalidBatchEntryId", 400, 400),
    ("AWS.SimpleQueueService.MessageNotInflight", "sqs#MessageNotInflight", 400, 400),
    ("AWS.SimpleQueueService.NonExistentQueue", "sqs#QueueDoesNotExist", 400, 400),
    ("AWS.SimpleQueueService.PurgeQueueInProgress", "sqs#PurgeQueueInProgress", 403, 403),
    ("AWS.SimpleQueueService.QueueDeletedRecently", "sqs#QueueDeletedRecently", 400, 400),
    ("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "sqs#TooManyEntriesInBatchRequest", 400, 400),
    ("InvalidAction", "service#UnknownOperationException", 400, 400),
    ("InvalidAddress", "sqs#InvalidAddress", 404, 404),
    ("InvalidAttributeName", "sqs#InvalidAttributeName", 400, 400),
    ("InvalidAttributeValue", "sqs#InvalidAttributeValue", 400, 400),
    ("InvalidMessageContents", "sqs#InvalidMessageContents", 400, 400),
    ("InvalidParameterValue", "service#InvalidParameterValueException", 400, 400),
    ("MalformedInput", "service#SerializationException", 400, 400),
    ("MissingParameter", "service#MissingRequiredParameterException", 400, 400),
    ("OverLimit", "sqs#OverLimit", 403, 403),
    ("QueueAlreadyExists", "sqs#QueueNameExists", 400, 400),
    ("ReceiptHandleIsInvalid", "sqs#ReceiptHandleIsInvalid", 400, 400),
    ("ResourceNotFoundException", "sqs#ResourceNotFoundException", 404, 404),
];

impl Api {
    /// Asks each row in both forms.
    pub(super) async fn refuses_all(&self, rows: Vec<Row>) {
        for (what, action, asked, (code, text)) in rows {
            let row = format!("{action}, {what}: {asked}");
            let known = ERRORS.iter().find(|(known, ..)| *known == code).expect("a known code");
            let (_, json_type, json_status, query_status) = known;
            let (status, error, body) = self.json(action, asked.clone()).await;
            assert_eq!((status, error), (*json_status, format!("{code};Sender")), "{row}: {body}");
            let told: Value = serde_json::from_str(&body).expect("JSON");
            let told_type = told["__type"].as_str().expect("text");
            assert!(
                told_type.starts_with("com.amazon") && told_type.ends_with(json_type),
                "{row}: {told_type}"
            );
            assert_eq!(told["message"], text, "{row}");

            let (status, _, body) = self.query("/", &form(action, &asked)).await;
            assert_eq!(status, *query_status, "{row}: {body}");
            assert_eq!(told_in(&body, "Code"), code, "{row}");
            assert_eq!(told_in(&body, "Type"), "Sender", "{row}");
            let text = match code == format!("{SQS}NonExistentQueue") {
                true => "The specified queue does not exist for this wsdl version.",
                false => &text,
            };
            // What XML can't have is another character.
            let text = text.replace('\u{1}', "\u{fffd}");
            assert_eq!(told_in(&body, "Message"), text, "{row}");
        }
    }
}

/// The content of an element.
fn told_in(xml: &str, element: &str) -> String {
    let (begin, end) = (format!("<{element}>"), format!("</{element}>"));
    let content =
        xml.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end)).map(|(content, _)| content);
    let mut content = content.unwrap_or_else(|| panic!("no {element} in {xml}")).to_owned();
    for (escaped, char) in [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#xD;", "\r"), ("&amp;", "&")] {
        content = content.replace(escaped, char);
    }
    content
}

/// The same request in the Query protocol's form.
fn form(action: &str, asked: &Value) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("Action", action);
    put(&mut form, action, "", asked.as_object().expect("a map"));
    form.finish()
}

fn put(
    form: &mut form_urlencoded::Serializer<'_, String>,
    action: &str,
    before: &str,
    asked: &Map<String, Value>,
) {
    for (name, value) in asked {
        let singular = match name.as_str() {
            "Entries" => format!("{action}RequestEntry"),
            "Actions" => "ActionName".to_owned(),
            "tags" => "Tag".to_owned(),
            name => name.trim_end_matches('s').to_owned(),
        };
        let key = if singular == "Tag" { "Key" } else { "Name" };
        match value {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    let name = format!("{before}{singular}.{}", at + 1);
                    match item {
                        Value::Object(fields) => put(form, action, &format!("{name}."), fields),
                        item => put_one(form, &name, item),
                    }
                }
            }
            Value::Object(map) => {
                for (at, (entry, value)) in map.iter().enumerate() {
                    let name = format!("{before}{singular}.{}", at + 1);
                    form.append_pair(&format!("{name}.{key}"), entry);
                    match value {
                        Value::Object(fields) => put(form, action, &format!("{name}.Value."), fields),
                        value => put_one(form, &format!("{name}.Value"), value),
                    }
                }
            }
            value => put_one(form, &format!("{before}{name}"), value),
        }
    }
}

fn put_one(form: &mut form_urlencoded::Serializer<'_, String>, name: &str, value: &Value) {
    match value {
        Value::Null => {}
        Value::String(text) => drop(form.append_pair(name, text)),
        other => drop(form.append_pair(name, &other.to_string())),
    }
}

/// Something asked of a queue of that name.
fn of(queue: &str, more: Value) -> Value {
    let mut asked = json!({"QueueUrl": format!("http://h/000000000000/{queue}")});
    asked.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    asked
}

pub(super) fn refusal(code: &'static str, text: impl Into<String>) -> Refusal {
    (code, text.into())
}

pub(super) fn invalid(text: impl Into<String>) -> Refusal {
    refusal("InvalidParameterValue", text)
}

/// A parameter can't have that value.
pub(super) fn value(value: &str, parameter: &str, reason: &str) -> Refusal {
    invalid(format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}"))
}

/// A parameter is missing.
pub(super) fn missing(parameter: &str) -> Refusal {
    refusal("MissingParameter", format!("The request must contain the parameter {parameter}."))
}

/// There is no such attribute of a queue.
pub(super) fn unknown(attribute: &str) -> Refusal {
    refusal("InvalidAttributeName", format!("Unknown Attribute {attribute}."))
}

pub(super) fn no_queue() -> Refusal {
    refusal("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
}
