//! What Amazon answered to requests like these: order and groups, attributes and their checksums, names, redrive.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use tailwater_sqs::SqsConfig;

use super::Api;

impl Api {
    /// A FIFO queue that deduplicates by content.
    async fn fifo(&self, name: &str, more: Value) -> Value {
        let mut attributes = json!({"FifoQueue": "true", "ContentBasedDeduplication": "true"});
        attributes.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        self.done("CreateQueue", json!({"QueueName": name, "Attributes": attributes})).await["QueueUrl"]
            .clone()
    }

    /// Sends messages like `g1-m1`, which are of the group `g1`.
    async fn send_groups(&self, url: &Value, bodies: &[&str]) {
        for body in bodies {
            let group = body.split('-').next().expect("a group");
            let message = json!({"QueueUrl": url, "MessageBody": body, "MessageGroupId": group});
            self.done("SendMessage", message).await;
        }
    }

    /// Bodies and receipts of what is received.
    async fn receive(&self, url: &Value, count: usize, more: Value) -> Vec<(String, Value)> {
        let mut asked = json!({"QueueUrl": url, "MaxNumberOfMessages": count});
        asked.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        let received = self.done("ReceiveMessage", asked).await;
        let messages = received["Messages"].as_array().cloned().unwrap_or_default();
        let parts = messages.iter().map(|message| {
            (message["Body"].as_str().expect("text").to_owned(), message["ReceiptHandle"].clone())
        });
        parts.collect()
    }

    async fn receive_bodies(&self, url: &Value, count: usize, visibility_s: u32) -> Vec<String> {
        let received = self.receive(url, count, json!({"VisibilityTimeout": visibility_s})).await;
        received.into_iter().map(|(body, _)| body).collect()
    }
}

#[tokio::test]
async fn a_receive_takes_what_a_group_has_before_the_next_group_however_they_were_sent() {
    let api = Api::open(SqsConfig::default());
    let url = api.fifo("q.fifo", json!({})).await;
    api.send_groups(&url, &["g1-m1", "g2-m1", "g1-m2", "g1-m3"]).await;
    assert_eq!(api.receive_bodies(&url, 10, 60).await, ["g1-m1", "g1-m2", "g1-m3", "g2-m1"]);
    assert!(api.receive_bodies(&url, 10, 60).await.is_empty());
}

#[tokio::test]
async fn a_group_is_at_the_end_when_it_is_visible_again() {
    let api = Api::open(SqsConfig::default());
    let url = api.fifo("q.fifo", json!({})).await;
    api.send_groups(&url, &["g1-m1", "g2-m1", "g2-m2", "g3-m1", "g1-m2"]).await;
    assert_eq!(api.receive_bodies(&url, 3, 0).await, ["g1-m1", "g1-m2", "g2-m1"]);
    assert_eq!(api.receive_bodies(&url, 10, 0).await, ["g3-m1", "g1-m1", "g1-m2", "g2-m1", "g2-m2"]);
}

#[tokio::test]
async fn a_message_that_is_given_back_is_received_again_without_the_ones_behind_it_that_are_not() {
    let api = Api::open(SqsConfig::default());
    let url = api.fifo("q.fifo", json!({})).await;
    api.send_groups(&url, &["g1-m1", "g1-m2", "g2-m1"]).await;
    let received = api.receive(&url, 2, json!({})).await;
    assert_eq!((received[0].0.as_str(), received[1].0.as_str()), ("g1-m1", "g1-m2"));
    let back = json!({"QueueUrl": url, "ReceiptHandle": received[0].1, "VisibilityTimeout": 0});
    api.done("ChangeMessageVisibility", back).await;
    assert_eq!(api.receive_bodies(&url, 3, 60).await, ["g2-m1", "g1-m1"]);
}

#[tokio::test]
async fn a_group_goes_on_when_all_of_it_that_was_received_is_deleted_and_not_before() {
    for (deleted, then) in
        [(2, vec!["g2-m1", "g2-m2", "g1-m3", "g1-m4", "g3-m1"]), (1, vec!["g2-m1", "g2-m2", "g3-m1"])]
    {
        let api = Api::open(SqsConfig::default());
        let url = api.fifo("q.fifo", json!({})).await;
        // The second `g1-m2` has the same content, and is the same message.
        let bodies = ["g1-m1", "g2-m1", "g1-m2", "g2-m2", "g1-m2", "g1-m3", "g1-m4", "g3-m1"];
        api.send_groups(&url, &bodies).await;
        let received = api.receive(&url, 2, json!({})).await;
        assert_eq!((received[0].0.as_str(), received[1].0.as_str()), ("g1-m1", "g1-m2"));
        for (_, handle) in &received[..deleted] {
            api.done("DeleteMessage", json!({"QueueUrl": url, "ReceiptHandle": handle})).await;
        }
        assert_eq!(api.receive_bodies(&url, 10, 60).await, then, "{deleted} deleted");
    }
}

#[tokio::test]
async fn a_deduplication_id_is_one_message_of_the_queue_or_of_its_group_also_after_it_was_deleted() {
    let api = Api::open(SqsConfig::default());
    let by_queue = api.fifo("q.fifo", json!({})).await;
    let grouped = json!({"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"});
    let by_group = api.fifo("grouped.fifo", grouped).await;
    for (url, expected) in [(&by_queue, 1), (&by_group, 2)] {
        for more in [json!({}), json!({"MessageDeduplicationId": "d"})] {
            let send_twice = async || {
                for group in ["one", "two", "one", "two"] {
                    let mut message =
                        json!({"QueueUrl": url, "MessageBody": "foobar", "MessageGroupId": group});
                    message.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
                    api.done("SendMessage", message).await;
                }
            };
            send_twice().await;
            let received = api.receive(url, 10, json!({})).await;
            assert_eq!(received.len(), expected, "{url} {more}");
            for (_, handle) in received {
                api.done("DeleteMessage", json!({"QueueUrl": url, "ReceiptHandle": handle})).await;
            }
            send_twice().await;
            assert!(api.receive_bodies(url, 10, 60).await.is_empty(), "{url} {more}");
        }
    }
}

#[tokio::test]
async fn attributes_are_those_that_were_asked_for_and_so_is_their_checksum() {
    let api = Api::open(SqsConfig::default());
    let created =
        api.done("CreateQueue", json!({"QueueName": "q", "Attributes": {"VisibilityTimeout": "0"}})).await;
    let url = &created["QueueUrl"];
    let text = |value: &str| json!({"DataType": "String", "StringValue": value});
    let attributes = json!({"Help.Me": text("Me"), "Hello": text("There"), "General": text("Kenobi")});
    let message = json!({"QueueUrl": url, "MessageBody": "msg", "MessageAttributes": attributes});
    let sent = api.done("SendMessage", message).await;
    let all = "4c360f3fdafd970e05fae2f149d997f5";
    assert_eq!(sent["MD5OfMessageAttributes"], all);
    let every = ["General", "Hello", "Help.Me"];
    for (asked, names, md5) in [
        (json!([]), &[][..], None),
        (json!(["All"]), &every[..], Some(all)),
        (json!(["*"]), &every[..], Some(all)),
        (json!([".*"]), &every[..], Some(all)),
        (json!(["Foo", "Help"]), &[], None),
        (json!(["Hello", "General"]), &["General", "Hello"], Some("fca026605781cb4126a1e9044df24232")),
        (json!(["Foo", "Hello"]), &["Hello"], Some("a311262e065454b75da111d535b8dacd")),
        (json!(["Hel.*"]), &["Hello", "Help.Me"], Some("83fee93c1bcd8b9a5a923ffacdc636c7")),
        (json!(["AWS."]), &[], None),
        (json!(["..foo"]), &[], None),
    ] {
        let receive = json!({"QueueUrl": url, "MessageAttributeNames": asked});
        let received = api.done("ReceiveMessage", receive).await["Messages"][0].clone();
        let told = received["MessageAttributes"].as_object().cloned().unwrap_or_default();
        assert_eq!(told.keys().collect::<Vec<_>>(), names, "{asked}");
        assert_eq!(received["MD5OfMessageAttributes"].as_str(), md5, "{asked}");
    }
}

#[tokio::test]
async fn checksums_are_amazon_s_whatever_is_in_the_attributes() {
    let api = Api::open(SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    let number = json!({"timestamp": {"DataType": "Number", "StringValue": "1493147359900"}});
    let trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
    let system = json!({"AWSTraceHeader": {"DataType": "String", "StringValue": trace}});
    let message = json!({"QueueUrl": url, "MessageBody": "test", "MessageAttributes": number});
    let plain = api.done("SendMessage", message.clone()).await;
    let mut traced = message;
    traced["MessageSystemAttributes"] = system;
    let traced = api.done("SendMessage", traced).await;
    assert_eq!(plain["MD5OfMessageAttributes"], traced["MD5OfMessageAttributes"]);
    assert!(plain["MD5OfMessageSystemAttributes"].is_null());
    assert_eq!(traced["MD5OfMessageSystemAttributes"], "5ae4d5d7636402d80f4eb6d213245a88");
    // `traceparent`, a control character, and a trace.
    let binary =
        "dHJhY2VwYXJlbnQeMDAtNzc0MDYyZDZjMzcwODFhNWEwYjliNWI4OGUzMDYyN2MtMmQyNDgyMjExZjY0ODlkYS0wMQ==";
    let attributes = json!({"attr1": {"DataType": "Binary", "BinaryValue": binary}});
    let message = json!({"QueueUrl": url, "MessageBody": "test", "MessageAttributes": attributes});
    let sent = api.done("SendMessage", message).await;
    assert_eq!(sent["MD5OfMessageBody"], "098f6bcd4621d373cade4e832627b4f6");
    assert_eq!(sent["MD5OfMessageAttributes"], "8cbe4db156db8a94db8b801b7addb984");
    let receive = json!({"QueueUrl": url, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["attr1"]});
    let received = api.done("ReceiveMessage", receive).await["Messages"][2].clone();
    assert_eq!(received["MessageAttributes"], attributes);
}

#[tokio::test]
async fn a_queue_is_the_same_with_the_attributes_that_it_has_now_and_with_none() {
    let api = Api::open(SqsConfig::default());
    let create =
        |attributes: Value| api.json("CreateQueue", json!({"QueueName": "q", "Attributes": attributes}));
    let first = json!({"ReceiveMessageWaitTimeSeconds": "1", "DelaySeconds": "1"});
    let (status, _, created) = create(first.clone()).await;
    assert_eq!(status, 200);
    let url: Value = serde_json::from_str::<Value>(&created).expect("JSON")["QueueUrl"].clone();
    assert_eq!(create(json!({})).await.0, 200);
    assert_eq!(create(json!({"DelaySeconds": "1"})).await.0, 200);
    let second = json!({"ReceiveMessageWaitTimeSeconds": "1", "DelaySeconds": "2"});
    assert_eq!(create(second.clone()).await.1, "QueueAlreadyExists;Sender");
    let set = json!({"QueueUrl": url, "Attributes": {"DelaySeconds": "2"}});
    api.done("SetQueueAttributes", set).await;
    assert_eq!(create(second).await.0, 200);
    assert_eq!(create(first).await.1, "QueueAlreadyExists;Sender");
    // What its messages are does not matter.
    api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "m"})).await;
    assert_eq!(create(json!({})).await.0, 200);
}

#[tokio::test]
async fn a_dead_letter_of_a_fifo_queue_has_its_id_and_where_it_came_from() {
    let api = Api::open(SqsConfig::default());
    let dead = api.fifo("dead.fifo", json!({})).await;
    let arn = |name: &str| format!("arn:aws:sqs:us-east-1:000000000000:{name}");
    let policy = json!({"deadLetterTargetArn": arn("dead.fifo"), "maxReceiveCount": 2}).to_string();
    let url = api.fifo("q.fifo", json!({"RedrivePolicy": policy})).await;
    let message = json!({"QueueUrl": url, "MessageBody": "foobar", "MessageGroupId": "1"});
    let sent = api.done("SendMessage", message).await;
    for expected in [1, 1, 0] {
        assert_eq!(api.receive_bodies(&url, 1, 0).await.len(), expected);
    }
    let receive = json!({"QueueUrl": dead, "AttributeNames": ["All"]});
    let received = api.done("ReceiveMessage", receive).await["Messages"][0].clone();
    assert_eq!((&received["MessageId"], &received["Body"]), (&sent["MessageId"], &json!("foobar")));
    assert_eq!(received["Attributes"]["DeadLetterQueueSourceArn"], arn("q.fifo"));
    assert_eq!(received["Attributes"]["MessageGroupId"], "1");
    let sources = api.done("ListDeadLetterSourceQueues", json!({"QueueUrl": dead})).await;
    assert_eq!(sources["queueUrls"], json!([url]));
}

#[tokio::test]
async fn a_purge_takes_what_is_in_flight_and_what_is_delayed() {
    let api = Api::open(SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    for delay in [0, 0, 900] {
        api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "m", "DelaySeconds": delay})).await;
    }
    let received = api.receive(&url, 1, json!({})).await;
    api.done("PurgeQueue", json!({"QueueUrl": url})).await;
    let names = ["", "NotVisible", "Delayed"].map(|kind| format!("ApproximateNumberOfMessages{kind}"));
    let told = api.done("GetQueueAttributes", json!({"QueueUrl": url, "AttributeNames": names})).await;
    for name in names {
        assert_eq!(told["Attributes"][&name], "0", "{name}");
    }
    // Who had it may still say so.
    api.done("DeleteMessage", json!({"QueueUrl": url, "ReceiptHandle": received[0].1})).await;
    api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": "next"})).await;
    assert_eq!(api.receive_bodies(&url, 10, 60).await, ["next"]);
}

#[tokio::test]
async fn tags_are_set_over_each_other_and_taken_away_by_key_in_its_case() {
    let api = Api::open(SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    let tags = async || api.done("ListQueueTags", json!({"QueueUrl": url})).await;
    assert_eq!(tags().await, json!({}));
    let first = json!({"tag1": "value1", "Tag1": "VALUE", "tag2": "value2", "tag3": ""});
    api.done("TagQueue", json!({"QueueUrl": url, "Tags": first})).await;
    assert_eq!(tags().await["Tags"], first);
    api.done("TagQueue", json!({"QueueUrl": url, "Tags": {"tag1": "other"}})).await;
    api.done("UntagQueue", json!({"QueueUrl": url, "TagKeys": ["tag3", "none", "Tag1"]})).await;
    assert_eq!(tags().await["Tags"], json!({"tag1": "other", "tag2": "value2"}));
    api.done("UntagQueue", json!({"QueueUrl": url, "TagKeys": ["tag1", "tag2"]})).await;
    assert_eq!(tags().await, json!({}));
}

#[tokio::test]
async fn a_task_has_an_id_in_the_form_of_a_uuid_and_tells_its_end() {
    use base64::Engine;

    let api = Api::open(SqsConfig::default());
    let arn = |name: &str| format!("arn:aws:sqs:us-east-1:000000000000:{name}");
    for name in ["dead", "target"] {
        api.done("CreateQueue", json!({"QueueName": name})).await;
    }
    let policy = json!({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1}).to_string();
    let attributes = json!({"RedrivePolicy": policy, "VisibilityTimeout": "0"});
    let created = api.done("CreateQueue", json!({"QueueName": "q", "Attributes": attributes})).await;
    let url = &created["QueueUrl"];
    for body in ["one", "two"] {
        api.done("SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await;
    }
    assert_eq!(api.receive_bodies(url, 10, 0).await.len(), 2);
    assert!(api.receive_bodies(url, 10, 0).await.is_empty());
    let start = json!({"SourceArn": arn("dead"), "DestinationArn": arn("target")});
    let handle = api.done("StartMessageMoveTask", start).await["TaskHandle"].clone();
    let read =
        base64::engine::general_purpose::STANDARD.decode(handle.as_str().expect("text")).expect("base64");
    let read: Value = serde_json::from_slice(&read).expect("JSON");
    assert_eq!(read["sourceArn"], arn("dead"));
    let id = read["taskId"].as_str().expect("text");
    assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{id}");
    let listed = loop {
        let listed = api.done("ListMessageMoveTasks", json!({"SourceArn": arn("dead")})).await;
        if listed["Results"][0]["Status"] != "RUNNING" {
            break listed["Results"][0].clone();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(listed["Status"], "COMPLETED");
    assert_eq!(
        (&listed["SourceArn"], &listed["DestinationArn"]),
        (&json!(arn("dead")), &json!(arn("target")))
    );
    assert_eq!(listed["ApproximateNumberOfMessagesMoved"], 2);
    assert!(listed["TaskHandle"].is_null() && listed["MaxNumberOfMessagesPerSecond"].is_null(), "{listed}");
    let (status, error, _) = api.json("CancelMessageMoveTask", json!({"TaskHandle": handle})).await;
    assert_eq!((status, error.as_str()), (404, "ResourceNotFoundException;Sender"));
}

#[tokio::test]
async fn a_queue_is_meant_by_the_address_that_is_asked_or_by_the_parameter_which_counts_more() {
    let api = Api::open(SqsConfig::default());
    for name in ["one", "two"] {
        api.done("CreateQueue", json!({"QueueName": name})).await;
    }
    let get = async |query: &str| {
        let request = Request::get(format!("/000000000000/one?{query}")).header("host", "h:1");
        api.send(request.body(Full::default()).expect("a request")).await
    };
    let (status, _, body) = get("Action=SendMessage&MessageBody=foobar").await;
    assert_eq!(status, 200, "{body}");
    let (_, _, body) = get("Action=GetQueueUrl&QueueName=two").await;
    assert!(body.contains("<QueueUrl>http://h:1/000000000000/two</QueueUrl>"), "{body}");
    let of_two = "QueueUrl=http%3A%2F%2Fh%2F000000000000%2Ftwo";
    let (_, _, body) = get(&format!("Action=GetQueueAttributes&AttributeName.1=QueueArn&{of_two}")).await;
    assert!(body.contains(":two</Value>") && !body.contains("VisibilityTimeout"), "{body}");
    let (_, _, body) = get(&format!("Action=ReceiveMessage&{of_two}")).await;
    assert!(body.contains("<ReceiveMessageResult/>"), "{body}");
    let (_, _, body) = get("Action=ReceiveMessage").await;
    assert!(body.contains("<Body>foobar</Body>"), "{body}");
    let (status, _, body) = get("Action=SendMessage").await;
    assert!(status == 400 && body.contains("must contain the parameter MessageBody."), "{body}");
    // And by its name alone, in JSON also at its address.
    let request = Request::post("/000000000000/one").header("x-amz-target", "AmazonSQS.SendMessage");
    let body =
        Bytes::from(json!({"QueueUrl": "two", "MessageBody": "Using name instead of URL"}).to_string());
    let (status, _, told) = api.send(request.body(Full::new(body)).expect("a request")).await;
    assert!(status == 200 && told.contains("86a83f96652a1bfad3891e7d523750cb"), "{told}");
}
