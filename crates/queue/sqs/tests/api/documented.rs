//! The documented errors of attributes, tags, permissions, dead-letter queues and move tasks: codes, statuses, texts.

use serde_json::{Value, json};
use tailwater_sqs::SqsConfig;

use super::Api;
use super::errors::{Refusal, invalid, missing, no_queue, refusal, unknown, value};

const ARN: &str = "arn:aws:sqs:us-east-1:000000000000:";

/// An action, what it is asked, and how it is refused.
type Refused = (&'static str, Value, Refusal);

impl Api {
    pub(super) async fn with_queues(names: &[&str]) -> Self {
        let api = Self::open(SqsConfig::default());
        for name in names {
            let fifo = if name.ends_with(".fifo") { json!({"FifoQueue": "true"}) } else { json!({}) };
            api.done("CreateQueue", json!({"QueueName": name, "Attributes": fifo})).await;
        }
        api
    }

    async fn refuses(&self, cases: Vec<Refused>) {
        let rows = cases.into_iter().map(|(action, asked, refusal)| ("refused", action, asked, refusal));
        self.refuses_all(rows.collect()).await;
    }
}

fn set(queue: &str, name: &str, value: &str) -> Value {
    json!({"QueueUrl": format!("/000000000000/{queue}"), "Attributes": {name: value}})
}

/// Something asked of the queue `q`.
fn of_q(more: Value) -> Value {
    let mut asked = json!({"QueueUrl": "/000000000000/q"});
    asked.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
    asked
}

#[tokio::test]
async fn attributes_that_are_none_or_have_no_such_value_are_refused() {
    let api = Api::with_queues(&["q", "q.fifo"]).await;
    let mut cases = vec![
        ("SetQueueAttributes", set("q", "Nothing", "1"), unknown("Nothing")),
        ("SetQueueAttributes", set("q", "FifoQueue", "true"), unknown("FifoQueue")),
        (
            "CreateQueue",
            json!({"QueueName": "new", "Attributes": {"ContentBasedDeduplication": "false"}}),
            unknown("ContentBasedDeduplication"),
        ),
        (
            "SetQueueAttributes",
            set("q.fifo", "FifoQueue", "false"),
            refusal(
                "InvalidAttributeValue",
                "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
            ),
        ),
        ("GetQueueAttributes", of_q(json!({"AttributeNames": ["Nothing"]})), unknown("Nothing")),
        (
            "CreateQueue",
            json!({"QueueName": "q", "Attributes": {"DelaySeconds": "7"}}),
            refusal(
                "QueueAlreadyExists",
                "A queue already exists with the same name and a different value for attribute DelaySeconds",
            ),
        ),
        ("SetQueueAttributes", set("none", "DelaySeconds", "1"), no_queue()),
    ];
    for name in ["DeduplicationScope", "FifoThroughputLimit"] {
        let value = if name == "DeduplicationScope" { "queue" } else { "perQueue" };
        let text = format!("You can specify the {name} only when FifoQueue is set to true.");
        let create = json!({"QueueName": "new", "Attributes": {name: value}});
        cases.push(("CreateQueue", create, refusal("InvalidAttributeName", text.clone())));
        cases.push(("SetQueueAttributes", set("q", name, value), refusal("InvalidAttributeName", text)));
    }
    for (name, values) in [
        ("DelaySeconds", ["-1", "901", "x"]),
        ("MaximumMessageSize", ["1023", "1048577", ""]),
        ("MessageRetentionPeriod", ["59", "1209601", "1.5"]),
        ("ReceiveMessageWaitTimeSeconds", ["-1", "21", "x"]),
        ("VisibilityTimeout", ["-1", "43201", "x"]),
        ("KmsDataKeyReusePeriodSeconds", ["59", "86401", "x"]),
        ("SqsManagedSseEnabled", ["yes", "1", ""]),
        ("Policy", ["{", "[]", "7"]),
        ("RedriveAllowPolicy", ["{", "{}", "{\"redrivePermission\":\"byQueue\"}"]),
    ] {
        for value in values {
            let text = format!("Invalid value for the parameter {name}.");
            cases.push(("SetQueueAttributes", set("q", name, value), refusal("InvalidAttributeValue", text)));
        }
    }
    api.refuses(cases).await;
}

#[tokio::test]
async fn a_queue_is_encrypted_in_one_way() {
    let api = Api::with_queues(&["q"]).await;
    let told = async |name: &str| {
        let told = api.done("GetQueueAttributes", of_q(json!({"AttributeNames": [name]}))).await;
        told["Attributes"][name].clone()
    };
    api.done("SetQueueAttributes", set("q", "SqsManagedSseEnabled", "true")).await;
    api.done("SetQueueAttributes", set("q", "KmsMasterKeyId", "key")).await;
    assert_eq!(
        (told("KmsMasterKeyId").await, told("SqsManagedSseEnabled").await),
        (json!("key"), json!("false"))
    );
    let text = "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.";
    let both = set("q", "SqsManagedSseEnabled", "true");
    api.refuses(vec![("SetQueueAttributes", both, refusal("InvalidAttributeName", text))]).await;
}

#[tokio::test]
async fn the_default_period_of_a_key_is_told_with_a_key_alone() {
    const PERIOD: &str = "KmsDataKeyReusePeriodSeconds";
    let api = Api::with_queues(&["q"]).await;
    let told = async || {
        let told = api.done("GetQueueAttributes", of_q(json!({"AttributeNames": ["All"]}))).await;
        let attributes = told["Attributes"].clone();
        (attributes["KmsMasterKeyId"].clone(), attributes[PERIOD].clone())
    };
    for (key, period, expected) in [
        ("key", "6000", (json!("key"), json!("6000"))),
        ("key", "300", (json!("key"), json!("300"))),
        ("", "300", (Value::Null, Value::Null)),
        ("", "0300", (Value::Null, Value::Null)),
    ] {
        let attributes = json!({"KmsMasterKeyId": key, PERIOD: period});
        api.done("SetQueueAttributes", of_q(json!({"Attributes": attributes}))).await;
        assert_eq!(told().await, expected, "{attributes}");
    }
    // It is the same queue for whoever gives what is the default.
    let create = |period: &str| json!({"QueueName": "q", "Attributes": {PERIOD: period}});
    api.done("CreateQueue", create("300")).await;
    let (status, error, _) = api.json("CreateQueue", create("301")).await;
    assert_eq!((status, error.as_str()), (400, "QueueAlreadyExists;Sender"));
}

#[tokio::test]
async fn tags_have_a_number_and_lengths() {
    let api = Api::with_queues(&["q"]).await;
    let many: serde_json::Map<String, Value> = (0..51).map(|tag| (tag.to_string(), json!("x"))).collect();
    let (long_key, long_value) = ("k".repeat(129), "v".repeat(257));
    api.refuses(vec![
        ("TagQueue", of_q(json!({})), missing("Tags")),
        ("TagQueue", of_q(json!({"Tags": {}})), missing("Tags")),
        ("TagQueue", of_q(json!({"Tags": many})), invalid("Too many tags added for queue q.")),
        (
            "CreateQueue",
            json!({"QueueName": "new", "tags": many}),
            invalid("Too many tags added for queue new."),
        ),
        (
            "UntagQueue",
            of_q(json!({"TagKeys": []})),
            invalid("Tag keys must be between 1 and 128 characters in length."),
        ),
        (
            "TagQueue",
            of_q(json!({"Tags": {long_key.clone(): "x"}})),
            value(&long_key, "TagKey", "Must be 1 to 128 in length."),
        ),
        (
            "TagQueue",
            of_q(json!({"Tags": {"k": long_value}})),
            value(&long_value, "TagValue", "Must be at most 256 in length."),
        ),
        ("TagQueue", of_q(json!({"Tags": {"": "x"}})), value("", "TagKey", "Must be 1 to 128 in length.")),
        ("ListQueueTags", json!({"QueueUrl": "/000000000000/none"}), no_queue()),
    ])
    .await;
}

#[tokio::test]
async fn permissions_are_told_as_a_policy_and_refused_as_amazon_does() {
    let api = Api::with_queues(&["q"]).await;
    let permission = |label: &str, accounts: &[&str], actions: &[&str]| {
        of_q(json!({"Label": label, "AWSAccountIds": accounts, "Actions": actions}))
    };
    let label = |reason: &str| value("one", "Label", reason);
    let (account, eight) = ("111111111111", ["SendMessage"; 8]);
    api.refuses(vec![("RemovePermission", of_q(json!({"Label": "one"})), label("can't find label."))]).await;
    api.done("AddPermission", permission("two", &[account], &["ReceiveMessage"])).await;
    let told = api.done("GetQueueAttributes", of_q(json!({"AttributeNames": ["Policy"]}))).await;
    let policy: Value =
        serde_json::from_str(told["Attributes"]["Policy"].as_str().expect("text")).expect("JSON");
    assert_eq!(policy["Version"], "2008-10-17");
    assert_eq!(policy["Statement"][0]["Principal"]["AWS"], "arn:aws:iam::111111111111:root");
    assert_eq!(policy["Statement"][0]["Action"], "SQS:ReceiveMessage");
    api.done("AddPermission", permission("one", &[account, "222222222222"], &["SendMessage", "PurgeQueue"]))
        .await;
    let owner = "Only the queue owner is allowed to invoke this action.";
    api.refuses(vec![
        ("AddPermission", permission("one", &[account], &["*"]), label("Already exists.")),
        (
            "AddPermission",
            permission("a b", &[account], &["*"]),
            value("a b", "Label", "Must be alphanumeric characters, hyphens, or underscores."),
        ),
        ("AddPermission", permission("three", &[], &["*"]), value("[]", "PrincipalId", "Unable to verify.")),
        (
            "AddPermission",
            permission("three", &["12"], &["*"]),
            value("[12]", "PrincipalId", "Unable to verify."),
        ),
        ("AddPermission", permission("three", &[account], &[]), missing("Actions")),
        (
            "AddPermission",
            permission("three", &[account], &eight),
            refusal("OverLimit", "8 Actions were found, maximum allowed is 7."),
        ),
        (
            "AddPermission",
            permission("three", &[account], &["CreateQueue"]),
            value("SQS:CreateQueue", "ActionName", owner),
        ),
        (
            "RemovePermission",
            of_q(json!({"Label": "three"})),
            value("three", "Label", "can't find label on existing policy."),
        ),
    ])
    .await;
}

#[tokio::test]
async fn a_redrive_policy_says_what_is_wrong_with_it() {
    let api = Api::with_queues(&["q", "dead", "q.fifo", "closed"]).await;
    api.done(
        "SetQueueAttributes",
        set("closed", "RedriveAllowPolicy", "{\"redrivePermission\":\"denyAll\"}"),
    )
    .await;
    let policy = |target: &str, most: Value| {
        json!({"deadLetterTargetArn": target, "maxReceiveCount": most}).to_string()
    };
    let of = |name: &str| format!("{ARN}{name}");
    let count = |most: &str| {
        format!("Invalid value for maxReceiveCount: {most}, valid values are from 1 to 1000 both inclusive.")
    };
    let missing = |name: &str| format!("Redrive policy does not contain mandatory attribute: {name}.");
    let cases = [
        ("{".to_owned(), "Redrive policy is not a valid JSON map.".to_owned()),
        (json!({"maxReceiveCount": 1}).to_string(), missing("deadLetterTargetArn")),
        (json!({"deadLetterTargetArn": of("dead")}).to_string(), missing("maxReceiveCount")),
        (policy("dummy", json!(42)), "Invalid value for deadLetterTargetArn.".to_owned()),
        (policy(&of("dead"), json!(0)), count("0")),
        (policy(&of("dead"), json!("1001")), count("1001")),
        (policy(&of("dead"), json!(-36)), count("-36")),
        (policy(&of("none"), json!(1)), "Dead letter target does not exist.".to_owned()),
        (
            policy(&of("q.fifo"), json!(1)),
            "Dead-letter queue must be same type of queue as the source.".to_owned(),
        ),
        (
            policy(&of("closed"), json!(1)),
            "Queue q does not have permission to use closed as its dead letter queue.".to_owned(),
        ),
    ];
    let cases = cases.map(|(policy, reason)| {
        let refusal = value(&policy, "RedrivePolicy", &reason);
        ("SetQueueAttributes", set("q", "RedrivePolicy", &policy), refusal)
    });
    api.refuses(cases.into()).await;
}

#[tokio::test]
async fn move_tasks_are_refused_as_amazon_does() {
    let api = Api::with_queues(&["q", "dead", "q.fifo"]).await;
    let policy = json!({"deadLetterTargetArn": format!("{ARN}dead"), "maxReceiveCount": 1}).to_string();
    api.done("SetQueueAttributes", set("q", "RedrivePolicy", &policy)).await;
    let of = |name: &str| json!({"SourceArn": format!("{ARN}{name}")});
    let gone = |parameter: &str| {
        format!("The resource that you specified for the {parameter} parameter doesn't exist.")
    };
    let handle = |task: u64, name: &str| {
        use base64::Engine;
        let task = format!("00000000-0000-4000-8000-{task:012x}");
        let fields = json!({"taskId": task, "sourceArn": format!("{ARN}{name}")}).to_string();
        json!({"TaskHandle": base64::engine::general_purpose::STANDARD.encode(fields)})
    };
    let to =
        |name: &str| json!({"SourceArn": format!("{ARN}dead"), "DestinationArn": format!("{ARN}{name}")});
    let rate = json!({"SourceArn": format!("{ARN}dead"), "MaxNumberOfMessagesPerSecond": 501});
    let none = |text: &str| refusal("ResourceNotFoundException", text);
    api.refuses(vec![
        ("StartMessageMoveTask", of("q"), invalid("Source queue must be configured as a Dead Letter Queue.")),
        ("StartMessageMoveTask", of("none"), none(&gone("SourceArn"))),
        ("StartMessageMoveTask", to("none"), none(&gone("DestinationArn"))),
        (
            "StartMessageMoveTask",
            rate,
            value("501", "MaxNumberOfMessagesPerSecond", "Must be from 1 to 500."),
        ),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": format!("{ARN}dead"), "MaxNumberOfMessagesPerSecond": 0}),
            value("0", "MaxNumberOfMessagesPerSecond", "Must be from 1 to 500."),
        ),
        (
            "StartMessageMoveTask",
            to("dead"),
            value(&format!("{ARN}dead"), "DestinationArn", "Source and destination must be different."),
        ),
        (
            "StartMessageMoveTask",
            to("q.fifo"),
            value(&format!("{ARN}q.fifo"), "DestinationArn", "The queues must be of the same type."),
        ),
        ("ListMessageMoveTasks", of("none"), none(&gone("SourceArn"))),
        (
            "ListMessageMoveTasks",
            json!({"SourceArn": format!("{ARN}dead"), "MaxResults": 0}),
            value("0", "MaxResults", "Must be from 1 to 10."),
        ),
        (
            "ListMessageMoveTasks",
            json!({"SourceArn": format!("{ARN}dead"), "MaxResults": 11}),
            value("11", "MaxResults", "Must be from 1 to 10."),
        ),
        (
            "CancelMessageMoveTask",
            json!({"TaskHandle": "x"}),
            invalid("Value for parameter TaskHandle is invalid."),
        ),
        ("CancelMessageMoveTask", handle(1, "none"), none(&gone("SourceArn"))),
        ("CancelMessageMoveTask", handle(1, "dead"), none("Task does not exist.")),
    ])
    .await;
    let (status, _, body) = api.query("/", &format!("Action=StartMessageMoveTask&SourceArn={ARN}none")).await;
    assert!(status == 404 && body.contains("<Code>ResourceNotFoundException</Code>"), "{status} {body}");
}

#[tokio::test]
async fn one_task_of_a_queue_runs_at_a_time_and_a_failed_one_has_amazon_s_reason() {
    let api = Api::with_queues(&["q", "dead", "other"]).await;
    let policy = json!({"deadLetterTargetArn": format!("{ARN}dead"), "maxReceiveCount": 1}).to_string();
    api.done("SetQueueAttributes", set("q", "RedrivePolicy", &policy)).await;
    for _ in 0..30 {
        api.done("SendMessage", json!({"QueueUrl": "/000000000000/dead", "MessageBody": "m"})).await;
    }
    let start = json!({"SourceArn": format!("{ARN}dead"), "DestinationArn": format!("{ARN}other"),
        "MaxNumberOfMessagesPerSecond": 1});
    let started = api.done("StartMessageMoveTask", start.clone()).await;
    let text = "There is already a task running. Only one active task is allowed for a source queue arn at a given time.";
    api.refuses(vec![("StartMessageMoveTask", start, invalid(text))]).await;
    api.done("CancelMessageMoveTask", json!({"TaskHandle": started["TaskHandle"]})).await;
    // Nobody sent these to the dead-letter queue: where they came from is not known.
    let source = json!({"SourceArn": format!("{ARN}dead")});
    api.done("StartMessageMoveTask", source.clone()).await;
    let last = loop {
        let listed = api.done("ListMessageMoveTasks", source.clone()).await;
        if listed["Results"][0]["Status"] != "RUNNING" {
            break listed["Results"][0].clone();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(
        (&last["Status"], &last["FailureReason"]),
        (&json!("FAILED"), &json!("CouldNotDetermineMessageSource"))
    );
}
