//! The errors of the actions on messages.

use serde_json::{Value, json};

use super::super::Api;
use super::{Row, invalid, missing, of, refusal, value};

const INVALID: &str = "InvalidParameterValue";
const QUEUE_TYPE: &str = "The request include parameter that is not valid for this queue type.";
const CHARACTERS: &str = "Invalid character was found in the message body, the set of allowed characters is #x9 | #xA | \
    #xD | [#x20 to #xD7FF] | [#xE000 to #xFFFD] | [#x10000 to #x10FFFF]";

fn send(more: Value) -> Value {
    let mut asked = of("q", json!({"MessageBody": "m"}));
    asked.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    asked
}

/// A message of a FIFO queue.
fn send_in_a_group(more: Value) -> Value {
    let mut asked = send(more);
    asked["QueueUrl"] = json!("http://h/000000000000/q.fifo");
    asked
}

#[tokio::test]
async fn errors_of_send_message() {
    let api = Api::with_queues(&["q", "q.fifo"]).await;
    let delay = "DelaySeconds must be >= 0 and <= 900.";
    let id = |parameter: &str| {
        format!("{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.")
    };
    let long = "x".repeat(129);
    let long_group = json!({"MessageGroupId": long, "MessageDeduplicationId": "d"});
    let control = json!({"MessageGroupId": "g\u{1}", "MessageDeduplicationId": "d"});
    let no_id = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided \
        explicitly";
    let too_long = "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes.";
    let action = "SendMessage";
    let rows: Vec<Row> = vec![
        ("no body", action, of("q", json!({})), missing("MessageBody")),
        ("an empty body", action, send(json!({"MessageBody": ""})), missing("MessageBody")),
        (
            "a character that XML has not",
            action,
            send(json!({"MessageBody": "\u{1}"})),
            refusal("InvalidMessageContents", CHARACTERS),
        ),
        ("too long", action, send(json!({"MessageBody": "x".repeat(1_048_577)})), invalid(too_long)),
        ("no delay", action, send(json!({"DelaySeconds": -1})), value("-1", "DelaySeconds", delay)),
        ("a long delay", action, send(json!({"DelaySeconds": 901})), value("901", "DelaySeconds", delay)),
        (
            "a deduplication id without groups",
            action,
            send(json!({"MessageDeduplicationId": "d"})),
            value("d", "MessageDeduplicationId", QUEUE_TYPE),
        ),
        (
            "a delay in a group",
            action,
            send_in_a_group(json!({"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 2})),
            value("2", "DelaySeconds", QUEUE_TYPE),
        ),
        (
            "no group",
            action,
            send_in_a_group(json!({"MessageDeduplicationId": "d"})),
            missing("MessageGroupId"),
        ),
        ("no id", action, send_in_a_group(json!({"MessageGroupId": "g"})), invalid(no_id)),
        (
            "a long group",
            action,
            send_in_a_group(long_group),
            value(&long, "MessageGroupId", &id("MessageGroupId")),
        ),
        (
            "a control character in a group",
            action,
            send_in_a_group(control),
            value("g\u{1}", "MessageGroupId", &id("MessageGroupId")),
        ),
        (
            "a long id",
            action,
            send_in_a_group(json!({"MessageGroupId": "g", "MessageDeduplicationId": long})),
            value(&long, "MessageDeduplicationId", &id("MessageDeduplicationId")),
        ),
    ];
    api.refuses_all(rows).await;
}

#[tokio::test]
async fn errors_of_message_attributes() {
    let api = Api::with_queues(&["q"]).await;
    let text = |value: &str| json!({"DataType": "String", "StringValue": value});
    let with = |name: &str, attribute: Value| send(json!({"MessageAttributes": {name: attribute}}));
    let row =
        |what: &'static str, asked: Value, text: &str| -> Row { (what, "SendMessage", asked, invalid(text)) };
    let mut rows: Vec<Row> = Vec::new();
    let long = "L".repeat(257);
    for name in ["AWS.x", "aWs.x", "AMAZON.x"] {
        let text_of_it = "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are \
            reserved for internal use.";
        rows.push(row("a reserved name", with(name, text("v")), text_of_it));
    }
    for (name, what) in [
        (".x", "not begin with character '.'"),
        ("x.", "not end with character '.'"),
        ("a..b", "not have successive '.' characters"),
        (&long, "be shorter than 256 bytes"),
    ] {
        let text_of_it = format!("Message (user) attribute name must {what}.");
        rows.push(row("a name that is none", with(name, text("v")), &text_of_it));
    }
    for name in ["a b", "a!b", "a\"b", "a\u{a7}b", "a(b"] {
        let text_of_it = format!(
            "The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, 0-9, underscore (_), \
             hyphen (-), and period (.) characters."
        );
        rows.push(row("another character", with(name, text("v")), &text_of_it));
    }
    let no_name = "The request must contain non-empty message (user) attribute names.";
    let of_no_type = "The message (user) attribute 'a' must contain a non-empty message attribute type.";
    let no_value = "Message (user) attribute 'a' must contain a non-empty value of type";
    let no_type = "The type of message (user) attribute 'a' is invalid. You must use only the following supported type \
        prefixes: Binary, Number, String.";
    let no_number = "Can't cast the value of message (user) attribute 'a' to a number.";
    let both = json!({"DataType": "String", "StringValue": "v", "BinaryValue": "AA=="});
    let many: serde_json::Map<String, Value> = (0..11).map(|at| (format!("a{at}"), text("v"))).collect();
    let system = json!({"MessageSystemAttributes": {"Other": text("v")}});
    rows.extend([
        row("no name", with("", text("v")), no_name),
        row("an empty value", with("a", text("")), &format!("{no_value} 'String'.")),
        row("no value", with("a", json!({"DataType": "String.x"})), &format!("{no_value} 'String.x'.")),
        row("no value of bytes", with("a", json!({"DataType": "Binary"})), &format!("{no_value} 'Binary'.")),
        row(
            "empty bytes",
            with("a", json!({"DataType": "Binary", "BinaryValue": ""})),
            &format!("{no_value} 'Binary'."),
        ),
        row("two values", with("a", both), "Message (user) attribute 'a' must have a single value."),
        row(
            "a number of bytes",
            with("a", json!({"DataType": "Number", "BinaryValue": "AA=="})),
            "Message (user) attribute 'a' with type 'Number' must use field 'String'.",
        ),
        row(
            "bytes of a text",
            with("a", json!({"DataType": "Binary", "StringValue": "v"})),
            "Message (user) attribute 'a' with type 'Binary' must use field 'Binary'.",
        ),
        row("no type", with("a", json!({"StringValue": "v"})), of_no_type),
        row("another type", with("a", json!({"DataType": "Text", "StringValue": "v"})), no_type),
        row(
            "a long type",
            with("a", json!({"DataType": format!("String.{long}"), "StringValue": "v"})),
            "Message (user) attribute type must be shorter than 256 bytes.",
        ),
        row("no number", with("a", json!({"DataType": "Number", "StringValue": "NaN"})), no_number),
        row("a character that XML has not", with("a", text("\u{8}")), CHARACTERS),
        row(
            "no base64",
            with("a", json!({"DataType": "Binary", "BinaryValue": "???"})),
            "The value of the message attribute 'a' is not base64.",
        ),
        row(
            "more than ten",
            send(json!({"MessageAttributes": many})),
            "Number of message attributes [11] exceeds the allowed maximum [10].",
        ),
        row(
            "a system attribute that is none",
            send(system),
            "Message system attribute name 'Other' is invalid.",
        ),
        row(
            "a trace that is empty",
            send(json!({"MessageSystemAttributes": {"AWSTraceHeader": text("")}})),
            "Message system attribute 'AWSTraceHeader' must contain a non-empty value of type 'String'.",
        ),
    ]);
    api.refuses_all(rows).await;
    // Letters and digits of any language are good.
    api.done("SendMessage", with("attr.1\u{f8}\u{df}\u{e4}_\u{65e5}", text("v"))).await;
}

#[tokio::test]
async fn errors_of_batches() {
    let api = Api::with_queues(&["q"]).await;
    let mut rows: Vec<Row> = Vec::new();
    for action in ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"] {
        let entry =
            |id: &str| json!({"Id": id, "MessageBody": "m", "ReceiptHandle": "x", "VisibilityTimeout": 1});
        let batch = |ids: &[String]| {
            let entries: Vec<Value> = ids.iter().map(|id| entry(id)).collect();
            of("q", json!({"Entries": entries}))
        };
        let ids = |count: usize| -> Vec<String> { (0..count).map(|id| id.to_string()).collect() };
        rows.push((
            "no entries",
            action,
            batch(&[]),
            refusal(
                "AWS.SimpleQueueService.EmptyBatchRequest",
                format!("There should be at least one {action}RequestEntry in the request."),
            ),
        ));
        for count in [11, 20] {
            rows.push((
                "many entries",
                action,
                batch(&ids(count)),
                refusal(
                    "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
                    format!("Maximum number of entries per request are 10. You have sent {count}."),
                ),
            ));
        }
        for id in [String::new(), "x".repeat(81), "in:valid".to_owned()] {
            let text = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at \
                most 80 letters long.";
            let code = "AWS.SimpleQueueService.InvalidBatchEntryId";
            rows.push(("an id that is none", action, batch(&[id]), refusal(code, text)));
        }
        rows.push((
            "an id twice",
            action,
            batch(&["a".to_owned(), "a".to_owned()]),
            refusal("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Id a repeated."),
        ));
    }
    let long = json!([{"Id": "a", "MessageBody": "x".repeat(600_000)}, {"Id": "b", "MessageBody": "x".repeat(600_000)}]);
    rows.push((
        "too long together",
        "SendMessageBatch",
        of("q", json!({"Entries": long})),
        refusal(
            "AWS.SimpleQueueService.BatchRequestTooLong",
            "Batch requests cannot be longer than 1048576 bytes. You have sent 1200000 bytes.",
        ),
    ));
    api.refuses_all(rows).await;
}

#[tokio::test]
async fn an_entry_that_fails_alone_says_why() {
    let api = Api::with_queues(&["q", "q.fifo"]).await;
    let entries = json!([{"Id": "good", "MessageBody": "m"}, {"Id": "bad", "MessageBody": "\u{1}"}]);
    let answer = api.done("SendMessageBatch", of("q", json!({"Entries": entries}))).await;
    assert_eq!(answer["Successful"][0]["Id"], "good");
    let failed =
        json!([{"Id": "bad", "SenderFault": true, "Code": "InvalidMessageContents", "Message": CHARACTERS}]);
    assert_eq!(answer["Failed"], failed);

    let handle = api.done("ReceiveMessage", of("q", json!({}))).await["Messages"][0]["ReceiptHandle"].clone();
    let bad = "The input receipt handle \"x\" is not a valid receipt handle.";
    let failed =
        |id: &str| json!({"Id": id, "SenderFault": true, "Code": "ReceiptHandleIsInvalid", "Message": bad});
    let entries = json!([
        {"Id": "good", "ReceiptHandle": handle, "VisibilityTimeout": 7},
        {"Id": "bad", "ReceiptHandle": "x", "VisibilityTimeout": 7},
        {"Id": "long", "ReceiptHandle": handle, "VisibilityTimeout": 43_201},
    ]);
    let answer = api.done("ChangeMessageVisibilityBatch", of("q", json!({"Entries": entries}))).await;
    assert_eq!((&answer["Successful"], &answer["Failed"][0]), (&json!([{"Id": "good"}]), &failed("bad")));
    assert_eq!(answer["Failed"][1]["Code"], INVALID);
    let entries = json!([{"Id": "good", "ReceiptHandle": handle}, {"Id": "bad", "ReceiptHandle": "x"}]);
    let answer = api.done("DeleteMessageBatch", of("q", json!({"Entries": entries}))).await;
    assert_eq!(
        (&answer["Successful"], &answer["Failed"]),
        (&json!([{"Id": "good"}]), &json!([failed("bad")]))
    );
}

#[tokio::test]
async fn errors_of_receive_message() {
    let api = Api::with_queues(&["q", "q.fifo"]).await;
    let action = "ReceiveMessage";
    let mut rows: Vec<Row> = Vec::new();
    for (parameter, values, reason) in [
        ("MaxNumberOfMessages", ["0", "11"], "Must be between 1 and 10, if provided."),
        ("WaitTimeSeconds", ["-1", "21"], "Must be >= 0 and <= 20, if provided."),
        ("VisibilityTimeout", ["-1", "43201"], "Must be between 0 and 43200, if provided."),
    ] {
        for number in values {
            let given = number.parse::<i64>().expect("a number");
            let refusal = value(number, parameter, reason);
            rows.push(("out of bounds", action, of("q", json!({parameter: given})), refusal));
        }
    }
    let attempt = of("q.fifo", json!({"ReceiveRequestAttemptId": "x".repeat(129)}));
    let reason = "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. 1 to 128 in length.";
    rows.push((
        "a long attempt",
        action,
        attempt,
        value(&"x".repeat(129), "ReceiveRequestAttemptId", reason),
    ));
    api.refuses_all(rows).await;
}

#[tokio::test]
async fn errors_of_receipts() {
    let api = Api::with_queues(&["q", "q.fifo", "other"]).await;
    let bad = |handle: &str| {
        let text = format!("The input receipt handle \"{handle}\" is not a valid receipt handle.");
        refusal("ReceiptHandleIsInvalid", text)
    };
    let receive = async |queue: &str, seconds: u32| {
        let message = of(queue, json!({"MessageBody": "m"}));
        let grouped =
            of(queue, json!({"MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}));
        api.done("SendMessage", if queue.ends_with(".fifo") { grouped } else { message }).await;
        let received = api.done("ReceiveMessage", of(queue, json!({"VisibilityTimeout": seconds}))).await;
        received["Messages"][0]["ReceiptHandle"].as_str().expect("a receipt").to_owned()
    };
    let (deleted, held, elsewhere) =
        (receive("q", 60).await, receive("q", 60).await, receive("other", 60).await);
    api.done("DeleteMessage", of("q", json!({"ReceiptHandle": deleted}))).await;
    // Whoever deletes it again is told that it is gone, which is no error.
    api.done("DeleteMessage", of("q", json!({"ReceiptHandle": deleted}))).await;
    // Its time is over at once.
    let expired = receive("q.fifo", 0).await;
    let change = |queue: &str, handle: &str, seconds: i64| {
        of(queue, json!({"ReceiptHandle": handle, "VisibilityTimeout": seconds}))
    };
    let delete = |queue: &str, handle: &str| of(queue, json!({"ReceiptHandle": handle}));
    let of_no_message = "Message does not exist or is not available for visibility timeout change.";
    let bounds = "Must be between 0 and 43200, if provided.";
    let (deletes, changes) = ("DeleteMessage", "ChangeMessageVisibility");
    let no_handle = of("q", json!({"VisibilityTimeout": 1}));
    api.refuses_all(vec![
        ("no receipt", deletes, of("q", json!({})), missing("ReceiptHandle")),
        ("no such receipt", deletes, delete("q", "garbage"), bad("garbage")),
        ("another queue's", deletes, delete("q", &elsewhere), bad(&elsewhere)),
        (
            "too late in a FIFO queue",
            deletes,
            delete("q.fifo", &expired),
            value(&expired, "ReceiptHandle", "The receipt handle has expired."),
        ),
        ("no receipt", changes, no_handle, missing("ReceiptHandle")),
        ("no timeout", changes, delete("q", &held), missing("VisibilityTimeout")),
        ("no such receipt", changes, change("q", "INVALID", 60), bad("INVALID")),
        ("a long time", changes, change("q", &held, 43_201), value("43201", "VisibilityTimeout", bounds)),
        ("no time", changes, change("q", &held, -1), value("-1", "VisibilityTimeout", bounds)),
        (
            "a deleted message",
            changes,
            change("q", &deleted, 42),
            value(&deleted, "ReceiptHandle", of_no_message),
        ),
        (
            "too late in a FIFO queue",
            changes,
            change("q.fifo", &expired, 1),
            refusal("AWS.SimpleQueueService.MessageNotInflight", "The message referred to is not in flight."),
        ),
    ])
    .await;
}
