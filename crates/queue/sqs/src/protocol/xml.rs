//! Answers in XML, written from their JSON form: fields become elements, lists and maps repeated ones.

use serde_json::{Map, Value};

use super::ProtocolService;

const SQS: &str = "http://queue.amazonaws.com/doc/2012-11-05/";
const STS: &str = "https://sts.amazonaws.com/doc/2011-06-15/";

/// An action's result.
pub(super) fn result(service: ProtocolService, action: &str, result: &Value, request_id: &str) -> String {
    let namespace = if service == ProtocolService::Sts { STS } else { SQS };
    let mut out = String::with_capacity(512);
    out.push_str("<?xml version=\"1.0\"?>");
    out.push_str(&format!("<{action}Response xmlns=\"{namespace}\">"));
    match result {
        Value::Object(fields) if !fields.is_empty() => {
            element(&mut out, &format!("{action}Result"), |out| write_fields(out, action, fields));
        }
        // Where an action answers something, an empty answer has its element too.
        _ if has_result(action) => out.push_str(&format!("<{action}Result/>")),
        _ => {}
    }
    element(&mut out, "ResponseMetadata", |out| element(out, "RequestId", |out| escape(out, request_id)));
    out.push_str(&format!("</{action}Response>"));
    out
}

/// An error.
pub(super) fn error(fault: &str, code: &str, message: &str, request_id: &str) -> String {
    let mut out = format!("<?xml version=\"1.0\"?><ErrorResponse xmlns=\"{SQS}\">");
    element(&mut out, "Error", |out| {
        for (name, value) in [("Type", fault), ("Code", code), ("Message", message)] {
            element(out, name, |out| escape(out, value));
        }
        out.push_str("<Detail/>");
    });
    element(&mut out, "RequestId", |out| escape(out, request_id));
    out.push_str("</ErrorResponse>");
    out
}

/// The error of a request that names no action, which has a form of its own.
pub(super) fn unknown_operation(message: &str) -> String {
    let mut out = String::from("<?xml version=\"1.0\"?>");
    element(&mut out, "UnknownOperationException", |out| {
        element(out, "Message", |out| escape(out, message));
    });
    out
}

fn has_result(action: &str) -> bool {
    action.starts_with("Get")
        || action.starts_with("List")
        || action.starts_with("Receive")
        || action.ends_with("Batch")
}

fn element(out: &mut String, name: &str, content: impl FnOnce(&mut String)) {
    out.push('<');
    out.push_str(name);
    out.push('>');
    content(out);
    out.push_str("</");
    out.push_str(name);
    out.push('>');
}

fn write_fields(out: &mut String, action: &str, fields: &Map<String, Value>) {
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("Attributes", Value::Object(map)) => write_map(out, action, "Attribute", "Name", map),
            ("MessageAttributes", Value::Object(map)) => {
                write_map(out, action, "MessageAttribute", "Name", map)
            }
            ("Tags", Value::Object(map)) => write_map(out, action, "Tag", "Key", map),
            (_, Value::Array(items)) => {
                let each = match name.as_str() {
                    "QueueUrls" | "queueUrls" => "QueueUrl".to_owned(),
                    "Messages" => "Message".to_owned(),
                    "Successful" => format!("{action}ResultEntry"),
                    "Failed" => "BatchResultErrorEntry".to_owned(),
                    "Results" => "ListMessageMoveTasksResultEntry".to_owned(),
                    other => other.to_owned(),
                };
                for item in items {
                    element(out, &each, |out| write_value(out, action, item));
                }
            }
            (_, Value::Null) => {}
            (name, value) => element(out, name, |out| write_value(out, action, value)),
        }
    }
}

fn write_map(out: &mut String, action: &str, each: &str, key: &str, map: &Map<String, Value>) {
    for (name, value) in map {
        element(out, each, |out| {
            element(out, key, |out| escape(out, name));
            element(out, "Value", |out| write_value(out, action, value));
        });
    }
}

fn write_value(out: &mut String, action: &str, value: &Value) {
    match value {
        Value::Object(fields) => write_fields(out, action, fields),
        Value::String(text) => escape(out, text),
        other => out.push_str(&other.to_string()),
    }
}

/// Writes text so that it is read as it was: a carriage return would be read as a line's end. What XML can't have, as
/// a parameter that is told in an error may, is another character.
fn escape(out: &mut String, text: &str) {
    for char in text.chars() {
        match char {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\r' => out.push_str("&#xD;"),
            '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}' => {
                out.push('\u{fffd}')
            }
            char => out.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_maps_become_repeated_elements() {
        let value = json!({
            "Messages": [{"Body": "<a>\r\n", "Attributes": {"SenderId": "1"},
                "MessageAttributes": {"n": {"StringValue": "v", "DataType": "String"}}}],
        });
        let text = result(ProtocolService::Sqs, "ReceiveMessage", &value, "id");
        assert_eq!(
            text,
            "<?xml version=\"1.0\"?>\
            <ReceiveMessageResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><ReceiveMessageResult>\
            <Message><Attribute><Name>SenderId</Name><Value>1</Value></Attribute><Body>&lt;a&gt;&#xD;\n</Body>\
            <MessageAttribute><Name>n</Name><Value><DataType>String</DataType><StringValue>v</StringValue></Value>\
            </MessageAttribute></Message></ReceiveMessageResult>\
            <ResponseMetadata><RequestId>id</RequestId></ResponseMetadata></ReceiveMessageResponse>"
        );
    }

    #[test]
    fn an_action_that_answers_nothing_has_no_result() {
        let text = result(ProtocolService::Sqs, "DeleteMessage", &json!({}), "id");
        assert!(!text.contains("DeleteMessageResult"), "{text}");
        assert!(
            result(ProtocolService::Sqs, "ReceiveMessage", &json!({}), "id")
                .contains("<ReceiveMessageResult/>")
        );
    }
}
