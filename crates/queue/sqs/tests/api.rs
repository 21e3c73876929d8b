//! Requests in both forms, as they come over the wire, and their answers.

#[path = "api/accounts.rs"]
mod accounts;
#[path = "api/answers.rs"]
mod answers;
#[path = "api/connections.rs"]
mod connections;
#[path = "api/documented.rs"]
mod documented;
#[path = "api/errors.rs"]
mod errors;
#[path = "api/parity.rs"]
mod parity;
#[path = "api/validated.rs"]
mod validated;
#[path = "api/waiting.rs"]
mod waiting;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use proptest::prelude::*;
use serde_json::{Value, json};
use tailwater_access::{Authorizer, Everybody, Peer};
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};
use tailwater_queue::{QueuesConfig, Recovery};
use tailwater_sqs::{Front, SqsConfig};

struct Api {
    front: Arc<Front>,
    peer: Peer,
    _dir: tempfile::TempDir,
}

/// An answer: its status, what `x-amzn-query-error` says, its body.
type Answer = (u16, String, String);

impl Api {
    fn open(config: SqsConfig) -> Self {
        Self::open_in(Env::real(), config)
    }

    fn open_in(env: Env, config: SqsConfig) -> Self {
        Self::open_for(env, config, Arc::new(Everybody))
    }

    fn open_for(env: Env, config: SqsConfig, authorizer: Arc<dyn Authorizer>) -> Self {
        Self::open_all(env, config, QueuesConfig::default(), authorizer)
    }

    fn open_with(config: SqsConfig, queues: QueuesConfig) -> Self {
        Self::open_all(Env::real(), config, queues, Arc::new(Everybody))
    }

    fn open_all(
        env: Env,
        config: SqsConfig,
        queues_config: QueuesConfig,
        authorizer: Arc<dyn Authorizer>,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let below = |name: &str| dir.path().join(name);
        let mut recovery = Recovery::begin(&env, &below("queues")).expect("a tree");
        let open = |dir: &Path, recovery: &mut Recovery| {
            let small = JournalConfig {
                file_bytes: 4 << 20,
                reserve_bytes: 64 << 10,
                record_bytes_max: 3 << 20,
                ..JournalConfig::default()
            };
            Journal::open(&env, dir, small, &mut |_, position, bytes| recovery.replay(position, bytes))
        };
        let journal = open(&below("journal"), &mut recovery).expect("a journal");
        let queues = recovery.finish(&env, journal, queues_config);
        let front = Front::new(&env, config, Arc::new(queues), authorizer);
        Self { front, peer: Peer::anonymous("192.0.2.1:1".to_owned()), _dir: dir }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let answer = self.front.answer(&self.peer, request).await;
        let error =
            answer.headers().get("x-amzn-query-error").map_or("", |value| value.to_str().expect("text"));
        let (status, error) = (answer.status().as_u16(), error.to_owned());
        let body = answer.into_body().collect().await.expect("whole").to_bytes();
        (status, error, String::from_utf8(body.to_vec()).expect("text"))
    }

    async fn json(&self, action: &str, parameters: Value) -> Answer {
        let request = Request::post("/").header("x-amz-target", format!("AmazonSQS.{action}"));
        let request = request.header("host", "h:1").header("content-type", "application/x-amz-json-1.0");
        self.send(request.body(Full::new(parameters.to_string().into())).expect("a request")).await
    }

    /// An action that succeeds.
    async fn done(&self, action: &str, parameters: Value) -> Value {
        let (status, _, body) = self.json(action, parameters).await;
        assert_eq!(status, 200, "{action}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// The code of an action that does not.
    async fn refused(&self, action: &str, parameters: Value) -> String {
        let (status, error, body) = self.json(action, parameters).await;
        assert_ne!(status, 200, "{action}: {body}");
        error.split(';').next().expect("a code").to_owned()
    }

    async fn query(&self, path: &str, form: &str) -> Answer {
        let request = Request::post(path).header("host", "h:1");
        let request = request.header("content-type", "application/x-www-form-urlencoded; charset=utf-8");
        self.send(request.body(Full::new(form.to_owned().into())).expect("a request")).await
    }
}

#[tokio::test]
async fn a_message_is_sent_received_and_deleted_in_either_form() {
    let api = Api::open(SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    assert_eq!(url, "http://h:1/000000000000/q");
    let attributes = json!({"n": {"DataType": "Number", "StringValue": "1"}});
    let message = json!({"QueueUrl": url, "MessageBody": "one", "MessageAttributes": attributes});
    let sent = api.done("SendMessage", message).await;
    assert_eq!(sent["MD5OfMessageBody"], "f97c5d29941bfb1b2fdab0874906ab82");

    let form = "Action=ReceiveMessage&AttributeName.1=All&MessageAttributeName.1=All&MaxNumberOfMessages=10";
    let (status, _, body) = api.query("/000000000000/q", form).await;
    assert_eq!(status, 200, "{body}");
    for part in [
        "<ReceiveMessageResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><ReceiveMessageResult><Message>",
        "<Body>one</Body>",
        "<Attribute><Name>ApproximateReceiveCount</Name><Value>1</Value></Attribute>",
        "<MessageAttribute><Name>n</Name><Value><DataType>Number</DataType><StringValue>1</StringValue></Value>",
        sent["MessageId"].as_str().expect("text"),
        sent["MD5OfMessageAttributes"].as_str().expect("text"),
    ] {
        assert!(body.contains(part), "no {part} in {body}");
    }
    let handle =
        body.split("<ReceiptHandle>").nth(1).and_then(|rest| rest.split('<').next()).expect("a receipt");
    let (status, _, body) =
        api.query("/000000000000/q", &format!("Action=DeleteMessage&ReceiptHandle={handle}")).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(api.done("ReceiveMessage", json!({"QueueUrl": url, "VisibilityTimeout": 0})).await, json!({}));
    let request =
        Request::get("/000000000000/q?Action=GetQueueAttributes&AttributeName=All").header("host", "h:1");
    let (_, _, body) = api.send(request.body(Full::default()).expect("a request")).await;
    assert!(body.contains("<Name>ApproximateNumberOfMessages</Name><Value>0</Value>"), "{body}");
    assert!(body.contains("<Value>arn:aws:sqs:us-east-1:000000000000:q</Value>"), "{body}");
}

/// Requests for a queue and a FIFO queue, and the code that refuses each; none where it is done.
fn refusals(url: &Value, fifo: &Value) -> Vec<(&'static str, Value, &'static str)> {
    let handle = "AAAA";
    vec![
        (
            "SendMessage",
            json!({"QueueUrl": "http://h/000000000000/none", "MessageBody": "m"}),
            "AWS.SimpleQueueService.NonExistentQueue",
        ),
        ("SendMessage", json!({"QueueUrl": url}), "MissingParameter"),
        ("SendMessage", json!({"MessageBody": "m"}), "MissingParameter"),
        ("SendMessage", json!({"QueueUrl": url, "MessageBody": "\u{1}"}), "InvalidMessageContents"),
        (
            "SendMessage",
            json!({"QueueUrl": url, "MessageBody": "m", "DelaySeconds": 901}),
            "InvalidParameterValue",
        ),
        (
            "SendMessage",
            json!({"QueueUrl": url, "MessageBody": "x".repeat(1_048_577)}),
            "InvalidParameterValue",
        ),
        (
            "SendMessage",
            json!({"QueueUrl": url, "MessageBody": "m", "MessageDeduplicationId": "x"}),
            "InvalidParameterValue",
        ),
        (
            "SendMessage",
            json!({"QueueUrl": url, "MessageBody": "m", "MessageAttributes": {"AWS.x":
            {"DataType": "String", "StringValue": "v"}}}),
            "InvalidParameterValue",
        ),
        (
            "SendMessage",
            json!({"QueueUrl": url, "MessageBody": "m", "MessageAttributes": {"x":
            {"DataType": "Number", "StringValue": "v"}}}),
            "InvalidParameterValue",
        ),
        ("SendMessage", json!({"QueueUrl": fifo, "MessageBody": "m"}), "MissingParameter"),
        (
            "SendMessage",
            json!({"QueueUrl": fifo, "MessageBody": "m", "MessageGroupId": "g"}),
            "InvalidParameterValue",
        ),
        (
            "SendMessage",
            json!({"QueueUrl": fifo, "MessageBody": "m", "MessageGroupId": "g",
            "MessageDeduplicationId": "d", "DelaySeconds": 1}),
            "InvalidParameterValue",
        ),
        ("ReceiveMessage", json!({"QueueUrl": url, "MaxNumberOfMessages": 11}), "InvalidParameterValue"),
        ("ReceiveMessage", json!({"QueueUrl": url, "WaitTimeSeconds": 21}), "InvalidParameterValue"),
        ("ReceiveMessage", json!({"QueueUrl": url, "VisibilityTimeout": -1}), "InvalidParameterValue"),
        ("DeleteMessage", json!({"QueueUrl": url, "ReceiptHandle": handle}), "ReceiptHandleIsInvalid"),
        (
            "ChangeMessageVisibility",
            json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 1}),
            "ReceiptHandleIsInvalid",
        ),
        (
            "SendMessageBatch",
            json!({"QueueUrl": url, "Entries": []}),
            "AWS.SimpleQueueService.EmptyBatchRequest",
        ),
        (
            "DeleteMessageBatch",
            json!({"QueueUrl": url, "Entries": [{"Id": "a"}, {"Id": "a"}]}),
            "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
        ),
        ("CreateQueue", json!({"QueueName": "q"}), ""),
        ("CreateQueue", json!({"QueueName": "q", "Attributes": {"DelaySeconds": "2"}}), "QueueAlreadyExists"),
        ("CreateQueue", json!({"QueueName": "a b"}), "InvalidParameterValue"),
        ("GetQueueUrl", json!({"QueueName": "none"}), "AWS.SimpleQueueService.NonExistentQueue"),
        ("GetQueueAttributes", json!({"QueueUrl": url, "AttributeNames": ["None"]}), "InvalidAttributeName"),
        (
            "SetQueueAttributes",
            json!({"QueueUrl": url, "Attributes": {"RedrivePolicy":
            "{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:000000000000:none\",\"maxReceiveCount\":1}"}}),
            "InvalidParameterValue",
        ),
        ("ListQueues", json!({"MaxResults": 0}), "InvalidParameterValue"),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": "arn:aws:sqs:us-east-1:000000000000:none"}),
            "ResourceNotFoundException",
        ),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": "arn:aws:sqs:us-east-1:000000000000:q"}),
            "InvalidParameterValue",
        ),
        (
            "TagQueue",
            json!({"QueueUrl": url, "Tags": {"tailwater-order-hint": "0"}}),
            "InvalidParameterValue",
        ),
        ("NoAction", json!({}), "InvalidAction"),
        ("SendMessage", json!({"QueueUrl": 1}), "MalformedInput"),
    ]
}

#[tokio::test]
async fn errors_have_amazon_s_codes_in_either_form() {
    let api = Api::open(SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q", "Attributes": {"DelaySeconds": "1"}})).await["QueueUrl"]
        .clone();
    let fifo = json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}});
    let fifo = api.done("CreateQueue", fifo).await["QueueUrl"].clone();
    for (action, parameters, code) in refusals(&url, &fifo) {
        if code.is_empty() {
            api.done(action, parameters).await;
        } else {
            assert_eq!(api.refused(action, parameters.clone()).await, code, "{action} {parameters}");
        }
    }
    let (status, _, body) = api.query("/", "Action=GetQueueUrl&QueueName=none").await;
    assert_eq!(status, 400);
    assert!(body.contains("<Code>AWS.SimpleQueueService.NonExistentQueue</Code>"), "{body}");
    assert!(body.contains("<Type>Sender</Type>"), "{body}");
}

#[tokio::test]
async fn a_batch_succeeds_and_fails_entry_by_entry() {
    let api = Api::open(SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    let entries = json!([
        {"Id": "good", "MessageBody": "m"},
        {"Id": "bad", "MessageBody": ""},
        {"Id": "late", "MessageBody": "m", "DelaySeconds": 900},
    ]);
    let answer = api.done("SendMessageBatch", json!({"QueueUrl": url, "Entries": entries})).await;
    let ids: Vec<&Value> =
        answer["Successful"].as_array().expect("some").iter().map(|one| &one["Id"]).collect();
    assert_eq!(ids, ["good", "late"]);
    assert_eq!(answer["Failed"][0]["Id"], "bad");
    assert_eq!(answer["Failed"][0]["Code"], "MissingParameter");
    assert_eq!(answer["Failed"][0]["SenderFault"], true);
    let received = api.done("ReceiveMessage", json!({"QueueUrl": url, "MaxNumberOfMessages": 10})).await;
    let handle = &received["Messages"][0]["ReceiptHandle"];
    let entries = json!([{"Id": "a", "ReceiptHandle": handle}, {"Id": "b", "ReceiptHandle": "x"}]);
    let answer = api.done("DeleteMessageBatch", json!({"QueueUrl": url, "Entries": entries})).await;
    assert_eq!((&answer["Successful"][0]["Id"], &answer["Failed"][0]["Id"]), (&json!("a"), &json!("b")));
    let many = vec!["x".repeat(600_000); 2];
    let entries: Vec<Value> = many
        .iter()
        .enumerate()
        .map(|(id, body)| json!({"Id": id.to_string(), "MessageBody": body}))
        .collect();
    let code = api.refused("SendMessageBatch", json!({"QueueUrl": url, "Entries": entries})).await;
    assert_eq!(code, "AWS.SimpleQueueService.BatchRequestTooLong");
}

#[tokio::test]
async fn a_queue_has_no_more_tags_than_it_may_although_many_set_some_at_the_same_time() {
    let api = Api::open(SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q"})).await["QueueUrl"].clone();
    let tag = |from: usize| {
        let tags = (from..from + 30).map(|number| (number.to_string(), json!("x"))).collect();
        api.json("TagQueue", json!({"QueueUrl": url, "Tags": Value::Object(tags)}))
    };
    let ((one, ..), (two, ..)) = futures::join!(tag(0), tag(30));
    assert_eq!((one, two), (200, 400));
    let tags = api.done("ListQueueTags", json!({"QueueUrl": url})).await["Tags"].clone();
    assert_eq!(tags.as_object().map(serde_json::Map::len), Some(30));
}

#[tokio::test]
async fn lists_are_paged_and_tags_attributes_and_permissions_are_kept() {
    let api = Api::open(SqsConfig::default());
    for number in 0..5 {
        api.done(
            "CreateQueue",
            json!({"QueueName": format!("q{number}"), "tags": {"n": number.to_string()}}),
        )
        .await;
    }
    let mut names = Vec::new();
    let mut token = Value::Null;
    loop {
        let mut parameters = json!({"QueueNamePrefix": "q", "MaxResults": 2});
        if token.is_string() {
            parameters["NextToken"] = token;
        }
        let page = api.done("ListQueues", parameters).await;
        names.extend(page["QueueUrls"].as_array().expect("some").clone());
        token = page["NextToken"].clone();
        if token.is_null() {
            break;
        }
    }
    assert_eq!(names.len(), 5);
    let url = &names[3];
    assert_eq!(api.done("ListQueueTags", json!({"QueueUrl": url})).await["Tags"], json!({"n": "3"}));
    api.done("TagQueue", json!({"QueueUrl": url, "Tags": {"more": "x", "tailwater-order-hint": "3"}})).await;
    api.done("UntagQueue", json!({"QueueUrl": url, "TagKeys": ["n"]})).await;
    let tags = api.done("ListQueueTags", json!({"QueueUrl": url})).await["Tags"].clone();
    assert_eq!(tags, json!({"more": "x", "tailwater-order-hint": "3"}));
    let permission =
        json!({"QueueUrl": url, "Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["*"]});
    api.done("AddPermission", permission).await;
    let wanted = json!({"QueueUrl": url, "AttributeNames": ["Policy"]});
    assert!(api.done("GetQueueAttributes", wanted.clone()).await["Attributes"]["Policy"].is_string());
    api.done("RemovePermission", json!({"QueueUrl": url, "Label": "l"})).await;
    assert_eq!(api.done("GetQueueAttributes", wanted).await, json!({}));
    let policy =
        json!({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:q0", "maxReceiveCount": "3"});
    let attributes = json!({"RedrivePolicy": policy.to_string()});
    api.done("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": attributes})).await;
    let sources = api.done("ListDeadLetterSourceQueues", json!({"QueueUrl": names[0]})).await;
    assert_eq!(sources["queueUrls"], json!([url]));
    api.done("DeleteQueue", json!({"QueueUrl": url})).await;
    let code = api.refused("CreateQueue", json!({"QueueName": "q3"})).await;
    assert_eq!(code, "AWS.SimpleQueueService.QueueDeletedRecently");
    api.done("PurgeQueue", json!({"QueueUrl": names[0]})).await;
    let code = api.refused("PurgeQueue", json!({"QueueUrl": names[0]})).await;
    assert_eq!(code, "AWS.SimpleQueueService.PurgeQueueInProgress");
}

#[tokio::test]
async fn whoever_asks_learns_the_number_of_the_account() {
    let api = Api::open(SqsConfig::default());
    let (status, _, body) = api.query("/", "Action=GetCallerIdentity&Version=2011-06-15").await;
    assert_eq!(status, 200);
    assert!(
        body.contains("<GetCallerIdentityResult>") && body.contains("<Account>000000000000</Account>"),
        "{body}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_request_makes_the_front_panic(
        action in prop::sample::select(vec!["SendMessage", "ReceiveMessage", "CreateQueue", "SendMessageBatch",
            "SetQueueAttributes", "DeleteMessage", "AddPermission", "TagQueue"]),
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "[{}\\[\\]\":,a-zA-Z0-9 ]{0,200}".prop_map(String::into_bytes),
            "(QueueUrl|Entries|Attribute|MessageBody|Tag|[A-Za-z.0-9=&%]){0,40}".prop_map(String::into_bytes),
        ],
        is_json: bool,
        path in "[/a-z0-9%.]{0,30}",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let api = Api::open(SqsConfig::default());
            api.done("CreateQueue", json!({"QueueName": "q"})).await;
            let request = Request::post(format!("/{path}").replace('%', "%25"));
            let request = match is_json {
                true => request.header("x-amz-target", format!("AmazonSQS.{action}")),
                false => request.header("content-type", "application/x-www-form-urlencoded"),
            };
            let body = if is_json { body } else { [format!("Action={action}&").into_bytes(), body].concat() };
            let (status, _, _) = api.send(request.body(Full::new(body.into())).expect("a request")).await;
            assert!(status < 500, "{status}");
        });
    }
}
