//! Requests in both forms, as they come over the wire, and their answers.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use proptest::prelude::*;
use serde_json::{Value, json};
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};
use tailwater_queue::{QueuesConfig, Recovery};
use tailwater_sqs::{AccountConfig, Front, KeyConfig, SqsConfig};
use tailwater_sqs_wire::{Unsigned, sign};

struct Api {
    front: Arc<Front>,
    _dir: tempfile::TempDir,
}

/// An answer: its status, what `x-amzn-query-error` says, its body.
type Answer = (u16, String, String);

impl Api {
    fn open(config: SqsConfig) -> Self {
        let env = Env::real();
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
        let queues = recovery.finish(&env, journal, QueuesConfig::default());
        Self { front: Front::new(&env, config, Arc::new(queues)), _dir: dir }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let answer = self.front.answer(request).await;
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

#[tokio::test]
async fn errors_have_amazon_s_codes_in_either_form() {
    let api = Api::open(SqsConfig::default());
    let url = api.done("CreateQueue", json!({"QueueName": "q", "Attributes": {"DelaySeconds": "1"}})).await["QueueUrl"]
        .clone();
    let fifo = json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}});
    let fifo = api.done("CreateQueue", fifo).await["QueueUrl"].clone();
    let handle = "AAAA";
    for (action, parameters, code) in [
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
    ] {
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

fn two_accounts() -> SqsConfig {
    let account = |id: &str, requests_per_s| AccountConfig {
        id: id.to_owned(),
        keys: vec![KeyConfig { id: format!("AK{id}"), secret: format!("secret of {id}") }],
        requests_per_s,
        bytes_per_s: 0,
        queues_max: 1,
        in_flight_max: 0,
    };
    SqsConfig {
        accounts: vec![account("111111111111", 0), account("222222222222", 3)],
        ..SqsConfig::default()
    }
}

impl Api {
    /// An action of an account, signed; the error's code, or the answer.
    async fn signed(&self, account: &str, action: &str, parameters: Value) -> Result<Value, String> {
        let body = Bytes::from(parameters.to_string());
        let unsigned = Unsigned { method: "POST", path: "/", query: "", host: "h:1", body: &body };
        let (key, secret) = (format!("AK{account}"), format!("secret of {account}"));
        let now = Env::real().wall_ms() / 1_000;
        let time = jiff::Timestamp::from_second(now).expect("a time");
        let (date, authorization) = sign(&unsigned, time, (&key, &secret), "eu-west-1");
        let request =
            Request::post("/").header("host", "h:1").header("x-amz-target", format!("AmazonSQS.{action}"));
        let request = request.header("x-amz-date", date).header("authorization", authorization);
        let (status, error, body) = self.send(request.body(Full::new(body)).expect("a request")).await;
        match status {
            200 => Ok(serde_json::from_str(&body).expect("JSON")),
            _ => Err(error.split(';').next().expect("a code").to_owned()),
        }
    }
}

#[tokio::test]
async fn accounts_sign_have_their_own_queues_and_share_what_they_permit() {
    let api = Api::open(two_accounts());
    assert_eq!(api.refused("ListQueues", json!({})).await, "MissingAuthenticationToken");
    let (one, two) = ("111111111111", "222222222222");
    let url =
        api.signed(one, "CreateQueue", json!({"QueueName": "q"})).await.expect("created")["QueueUrl"].clone();
    assert_eq!(url, "http://h:1/111111111111/q");
    let more = api.signed(one, "CreateQueue", json!({"QueueName": "q2"})).await;
    assert_eq!(more, Err("OverLimit".to_owned()));
    let send = json!({"QueueUrl": url, "MessageBody": "m"});
    assert_eq!(api.signed(two, "SendMessage", send.clone()).await, Err("AccessDenied".to_owned()));
    let permission =
        json!({"QueueUrl": url, "Label": "l", "AWSAccountIds": [two], "Actions": ["SendMessage"]});
    api.signed(one, "AddPermission", permission).await.expect("permitted");
    api.signed(two, "SendMessage", send.clone()).await.expect("sent");
    let receive = json!({"QueueUrl": url, "AttributeNames": ["SenderId"]});
    assert_eq!(api.signed(two, "ReceiveMessage", receive.clone()).await, Err("AccessDenied".to_owned()));
    // Its quota is 3 requests a second; those that are refused for it count too.
    let mut throttled = 0;
    for _ in 0..10 {
        throttled += usize::from(
            api.signed(two, "SendMessage", send.clone()).await == Err("RequestThrottled".to_owned()),
        );
    }
    assert!(throttled > 0);
    assert_eq!(api.front.stats().read().throttled, throttled as u64);
    let received = api.signed(one, "ReceiveMessage", receive).await.expect("received");
    assert_eq!(received["Messages"][0]["Attributes"]["SenderId"], two);
}

#[tokio::test]
async fn an_account_at_ten_times_its_quota_leaves_another_s_requests_answered() {
    let api = Api::open(two_accounts());
    let (one, two) = ("111111111111", "222222222222");
    let url =
        api.signed(one, "CreateQueue", json!({"QueueName": "q"})).await.expect("created")["QueueUrl"].clone();
    let (tried, done, is_over) = (Cell::new(0), Cell::new(0), Cell::new(false));
    let flood = async || {
        while !is_over.get() {
            let answer = api.signed(two, "ListQueues", json!({})).await;
            tried.set(tried.get() + 1);
            match answer {
                Ok(_) => done.set(done.get() + 1),
                Err(code) => assert_eq!(code, "RequestThrottled"),
            }
            tokio::task::yield_now().await;
        }
    };
    let work = async {
        let mut cycles = 0;
        while cycles < 30 || tried.get() < 10 * done.get() {
            let message = json!({"QueueUrl": url, "MessageBody": cycles.to_string()});
            api.signed(one, "SendMessage", message).await.expect("sent");
            let received =
                api.signed(one, "ReceiveMessage", json!({"QueueUrl": url})).await.expect("received");
            let message = &received["Messages"][0];
            assert_eq!(message["Body"], cycles.to_string());
            let delete = json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]});
            api.signed(one, "DeleteMessage", delete).await.expect("deleted");
            cycles += 1;
        }
        is_over.set(true);
    };
    futures::join!(flood(), flood(), flood(), flood(), work);
    assert_eq!(api.front.stats().read().throttled, tried.get() - done.get());
}

#[tokio::test]
async fn an_account_has_so_many_messages_in_flight_and_no_more_in_all_its_queues() {
    let mut config = two_accounts();
    (config.accounts[0].queues_max, config.accounts[0].in_flight_max) = (2, 5);
    let api = Api::open(config);
    let account = "111111111111";
    let mut urls = Vec::new();
    for name in ["q1", "q2"] {
        let created = api.signed(account, "CreateQueue", json!({"QueueName": name})).await.expect("created");
        let url = created["QueueUrl"].clone();
        let entries: Vec<Value> =
            (0..8).map(|number| json!({"Id": number.to_string(), "MessageBody": "m"})).collect();
        api.signed(account, "SendMessageBatch", json!({"QueueUrl": url, "Entries": entries}))
            .await
            .expect("sent");
        urls.push(url);
    }
    let receive = async |url: &Value| {
        let asked = json!({"QueueUrl": url, "MaxNumberOfMessages": 10});
        let answer = api.signed(account, "ReceiveMessage", asked).await?;
        Ok::<_, String>(answer["Messages"].as_array().cloned().unwrap_or_default())
    };
    let mut held = receive(&urls[0]).await.expect("received");
    assert_eq!(held.len(), 5);
    for url in &urls {
        assert_eq!(receive(url).await, Err("OverLimit".to_owned()));
    }
    for message in held.drain(..2) {
        let delete = json!({"QueueUrl": urls[0], "ReceiptHandle": message["ReceiptHandle"]});
        api.signed(account, "DeleteMessage", delete).await.expect("deleted");
    }
    assert_eq!(receive(&urls[1]).await.expect("received").len(), 2);
    // What is visible again is not in flight, which is known a while later.
    let again =
        json!({"QueueUrl": urls[0], "ReceiptHandle": held[0]["ReceiptHandle"], "VisibilityTimeout": 0});
    api.signed(account, "ChangeMessageVisibility", again).await.expect("changed");
    let received = loop {
        match receive(&urls[1]).await {
            Ok(received) => break received,
            Err(code) => assert_eq!(code, "OverLimit"),
        }
    };
    assert_eq!(received.len(), 1);
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
