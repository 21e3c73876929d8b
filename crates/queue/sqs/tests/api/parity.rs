//! What Amazon answers where clients differ in how they ask, and where they ask for what can't be done.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use tailwater_queue::QueuesConfig;
use tailwater_sqs::SqsConfig;

use super::Api;

/// What `x-amzn-query-error` has in front of the codes that only SQS has.
const SQS: &str = "AWS.SimpleQueueService.";

impl Api {
    async fn create(&self, name: &str, attributes: Value) -> Value {
        let created = self.done("CreateQueue", json!({"QueueName": name, "Attributes": attributes})).await;
        created["QueueUrl"].clone()
    }

    async fn attribute(&self, url: &Value, name: &str) -> Value {
        let told = self.done("GetQueueAttributes", json!({"QueueUrl": url, "AttributeNames": [name]})).await;
        told["Attributes"][name].clone()
    }

    async fn set(&self, url: &Value, attributes: Value) {
        self.done("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": attributes})).await;
    }

    /// Bodies of what is received at once.
    async fn bodies(&self, url: &Value) -> Vec<String> {
        let received = self.done("ReceiveMessage", json!({"QueueUrl": url, "MaxNumberOfMessages": 10})).await;
        let messages = received["Messages"].as_array().cloned().unwrap_or_default();
        messages.iter().map(|message| message["Body"].as_str().expect("text").to_owned()).collect()
    }
}

fn fifo(more: Value) -> Value {
    let mut attributes = json!({"FifoQueue": "true"});
    attributes.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    attributes
}

#[tokio::test]
async fn booleans_are_read_in_any_case_and_told_in_amazon_s() {
    let api = Api::open(SqsConfig::default());
    let asked =
        json!({"FifoQueue": "True", "ContentBasedDeduplication": "TRUE", "SqsManagedSseEnabled": "True"});
    let url = api.create("q.fifo", asked.clone()).await;
    for name in ["FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled"] {
        assert_eq!(api.attribute(&url, name).await, "true", "{name}");
    }
    // The same queue is the same however it is asked for.
    assert_eq!(api.create("q.fifo", asked).await, url);
    assert_eq!(api.create("q.fifo", fifo(json!({"DelaySeconds": "00"}))).await, url);
    api.set(&url, json!({"ContentBasedDeduplication": "False"})).await;
    assert_eq!(api.attribute(&url, "ContentBasedDeduplication").await, "false");
}

#[tokio::test]
async fn lists_that_are_null_or_empty_are_none() {
    let api = Api::open(SqsConfig::default());
    let url = api.create("q", json!({})).await;
    let names = ["MessageAttributeNames", "AttributeNames", "MessageSystemAttributeNames"];
    for (action, fields) in [("ReceiveMessage", &names[..]), ("GetQueueAttributes", &names[1..2])] {
        for field in fields {
            for none in [Value::Null, json!([])] {
                api.done(action, json!({"QueueUrl": url, *field: none})).await;
            }
            let form = format!("Action={action}&{field}=");
            let (status, _, body) = api.query("/000000000000/q", &form).await;
            assert_eq!(status, 200, "{form}: {body}");
        }
    }
    for action in ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"] {
        let code = api.refused(action, json!({"QueueUrl": url, "Entries": null})).await;
        assert_eq!(code, format!("{SQS}EmptyBatchRequest"), "{action}");
        let (status, _, body) = api.query("/000000000000/q", &format!("Action={action}&Entries=")).await;
        assert!(status == 400 && body.contains("EmptyBatchRequest"), "{action}: {body}");
    }
}

#[tokio::test]
async fn an_array_is_taken_for_no_object() {
    let api = Api::open(SqsConfig::default());
    let url = api.create("q", json!({})).await;
    let attributes = json!({"n": ["1", null, "Number"]});
    for (action, body) in [
        ("PurgeQueue", json!([url])),
        ("SendMessage", json!([null, url, "m"])),
        ("SendMessage", json!({"QueueUrl": url, "MessageBody": "m", "MessageAttributes": attributes})),
        ("SendMessageBatch", json!({"QueueUrl": url, "Entries": [["a", null, "m"]]})),
        ("DeleteMessageBatch", json!({"QueueUrl": url, "Entries": [["a", null, "x"]]})),
        ("TagQueue", json!({"QueueUrl": url, "Tags": [["k", "v"]]})),
        ("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": ["DelaySeconds", "1"]})),
        ("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": {"DelaySeconds": 1}})),
        ("ListQueues", json!("q")),
    ] {
        let (status, _, told) = api.json(action, body.clone()).await;
        assert!(status == 400 && told.contains("#SerializationException"), "{action} {body}: {told}");
    }
}

#[tokio::test]
async fn a_receipt_is_good_until_somebody_else_receives_the_message() {
    let api = Api::open(SqsConfig::default());
    let url = api.create("q", json!({})).await;
    api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "m"})).await;
    let receive = json!({"QueueUrl": url, "VisibilityTimeout": 0});
    let receipt = api.done("ReceiveMessage", receive).await["Messages"][0]["ReceiptHandle"].clone();
    let change = json!({"QueueUrl": url, "ReceiptHandle": receipt, "VisibilityTimeout": 60});
    api.done("ChangeMessageVisibility", change.clone()).await;
    assert!(api.bodies(&url).await.is_empty(), "its receiver has it again");
    let change_back = json!({"QueueUrl": url, "ReceiptHandle": receipt, "VisibilityTimeout": 0});
    api.done("ChangeMessageVisibility", change_back).await;
    assert_eq!(api.bodies(&url).await, ["m"]);
    let (status, error, body) = api.json("ChangeMessageVisibility", change).await;
    assert_eq!((status, error.as_str()), (400, "InvalidParameterValue;Sender"));
    assert!(body.contains("not available for visibility timeout change"), "{body}");
    api.done("DeleteMessage", json!({"QueueUrl": url, "ReceiptHandle": receipt})).await;
}

#[tokio::test]
async fn a_batch_that_no_queue_like_this_takes_is_refused_whole() {
    let api = Api::open(SqsConfig::default());
    let (plain, strict) = (api.create("q", json!({})).await, api.create("q.fifo", fifo(json!({}))).await);
    let good = json!({"Id": "a", "MessageBody": "1", "MessageGroupId": "g", "MessageDeduplicationId": "1"});
    let most = 1 << 20;
    let attribute = |bytes: usize| json!({"a": {"DataType": "String", "StringValue": "x".repeat(bytes)}});
    for (url, entries, code, message) in [
        (
            &strict,
            json!([good, {"Id": "b", "MessageBody": "2", "MessageDeduplicationId": "2"}]),
            "InvalidParameterValue",
            "The request must contain the parameter MessageGroupId.",
        ),
        (
            &strict,
            json!([good, {"Id": "b", "MessageBody": "2", "MessageGroupId": "g"}]),
            "InvalidParameterValue",
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided \
             explicitly",
        ),
        (
            &plain,
            json!([{"Id": "a", "MessageBody": "x".repeat(most + 1)}]),
            "AWS.SimpleQueueService.BatchRequestTooLong",
            "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
        ),
        (
            &plain,
            json!([{"Id": "a", "MessageBody": "x", "MessageAttributes": attribute(most)}, {"Id": "b", "MessageBody": "x"}]),
            "AWS.SimpleQueueService.BatchRequestTooLong",
            "Batch requests cannot be longer than 1048576 bytes. You have sent 1048585 bytes.",
        ),
    ] {
        let asked = json!({"QueueUrl": url, "Entries": entries});
        let (status, error, body) = api.json("SendMessageBatch", asked).await;
        let told: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((status, error), (400, format!("{code};Sender")), "{body}");
        assert_eq!(told["message"], message);
        assert!(api.bodies(url).await.is_empty(), "nothing of it is sent");
    }
    // What is too long for the queue alone fails alone.
    api.set(&plain, json!({"MaximumMessageSize": "1024"})).await;
    let entries = json!([{"Id": "a", "MessageBody": "x".repeat(1_025)}, {"Id": "b", "MessageBody": "y"}]);
    let sent = api.done("SendMessageBatch", json!({"QueueUrl": plain, "Entries": entries})).await;
    let failed = json!({"Id": "a", "SenderFault": true, "Code": "InvalidParameterValue",
        "Message": "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."});
    assert_eq!((&sent["Failed"], &sent["Successful"][0]["Id"]), (&json!([failed]), &json!("b")));
}

#[tokio::test]
async fn the_header_of_a_trace_is_that_of_the_messages_without_one() {
    let api = Api::open(SqsConfig::default());
    let url = api.create("q", json!({})).await;
    let own = json!({"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=own"}});
    let entries = json!([
        {"Id": "a", "MessageBody": "m"},
        {"Id": "b", "MessageBody": "m", "MessageSystemAttributes": own},
    ]);
    for (action, body) in [
        ("SendMessage", json!({"QueueUrl": url, "MessageBody": "m"})),
        ("SendMessageBatch", json!({"QueueUrl": url, "Entries": entries})),
    ] {
        let request = Request::post("/").header("x-amz-target", format!("AmazonSQS.{action}"));
        let request = request.header("X-Amzn-Trace-Id", "Root=1").header("host", "h:1");
        let request = request.body(Full::new(Bytes::from(body.to_string()))).expect("a request");
        let (status, _, told) = api.send(request).await;
        assert_eq!(status, 200, "{told}");
        assert!(!told.contains("MD5OfMessageSystemAttributes") || action == "SendMessageBatch", "{told}");
    }
    let receive = json!({"QueueUrl": url, "MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["AWSTraceHeader"]});
    let received = api.done("ReceiveMessage", receive).await;
    let traces = received["Messages"].as_array().expect("some").iter();
    let traces: Vec<&Value> = traces.map(|message| &message["Attributes"]["AWSTraceHeader"]).collect();
    assert_eq!(traces, ["Root=1", "Root=1", "Root=own"]);
}

#[tokio::test]
async fn a_purge_forgets_deduplication_ids() {
    let api = Api::open(SqsConfig::default());
    let url = api.create("q.fifo", fifo(json!({}))).await;
    let send = |body: &str| {
        let message = json!({"QueueUrl": url, "MessageBody": body, "MessageGroupId": "g", "MessageDeduplicationId": "d"});
        api.done("SendMessage", message)
    };
    send("first").await;
    api.done("PurgeQueue", json!({"QueueUrl": url})).await;
    send("second").await;
    send("third").await;
    assert_eq!(api.bodies(&url).await, ["second"]);
}

#[tokio::test]
async fn another_delay_of_a_fifo_queue_is_that_of_what_is_there() {
    let api = Api::open(SqsConfig::default());
    for (name, before, after, there) in [("a.fifo", "60", "0", &["m"][..]), ("b.fifo", "0", "60", &[])] {
        let url = api.create(name, fifo(json!({"DelaySeconds": before}))).await;
        let message = json!({"QueueUrl": url, "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"});
        api.done("SendMessage", message).await;
        api.set(&url, json!({"DelaySeconds": after})).await;
        assert_eq!(api.bodies(&url).await, there, "from {before} to {after}");
    }
    // A standard queue's is that of what is sent from then on.
    let url = api.create("q", json!({"DelaySeconds": "60"})).await;
    api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "m"})).await;
    api.set(&url, json!({"DelaySeconds": "0"})).await;
    assert!(api.bodies(&url).await.is_empty());
}

#[tokio::test]
async fn a_receive_that_waits_at_a_fifo_queue_gets_what_has_less_of_a_delay() {
    let api = Api::open(SqsConfig::default());
    let url = api.create("q.fifo", fifo(json!({"DelaySeconds": "60"}))).await;
    let message =
        json!({"QueueUrl": url, "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"});
    api.done("SendMessage", message).await;
    let receive = api.done("ReceiveMessage", json!({"QueueUrl": url, "WaitTimeSeconds": 20}));
    let (received, ()) = futures::join!(receive, api.set(&url, json!({"DelaySeconds": "0"})));
    assert_eq!(received["Messages"][0]["Body"], "m");
}

#[tokio::test]
async fn a_dead_letter_is_there_when_the_receive_that_killed_it_is_answered() {
    let api = Api::open(SqsConfig::default());
    let dead = api.create("dead", json!({})).await;
    let arn = api.attribute(&dead, "QueueArn").await;
    let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
    let url = api.create("q", json!({"RedrivePolicy": policy, "VisibilityTimeout": "0"})).await;
    for number in 0..30 {
        let body = number.to_string();
        api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await;
        assert_eq!(api.bodies(&url).await, std::slice::from_ref(&body));
        assert!(api.bodies(&url).await.is_empty());
        assert_eq!(api.bodies(&dead).await, [body]);
    }
}

#[tokio::test]
async fn without_cooldowns_a_queue_is_purged_and_made_anew_as_often_as_a_test_wants() {
    let without = QueuesConfig { cooldowns: false, ..QueuesConfig::default() };
    let api = Api::open_with(SqsConfig::default(), without);
    let url = api.create("q", json!({})).await;
    for _ in 0..3 {
        api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "m"})).await;
        api.done("PurgeQueue", json!({"QueueUrl": url})).await;
        assert!(api.bodies(&url).await.is_empty());
        api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "m"})).await;
        api.done("DeleteQueue", json!({"QueueUrl": url})).await;
        assert_eq!(api.create("q", json!({})).await, url);
        assert!(api.bodies(&url).await.is_empty());
    }
}
