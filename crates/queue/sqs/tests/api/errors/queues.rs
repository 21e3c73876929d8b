//! The errors of the actions on queues, their attributes, permissions and tags, and of move tasks: those that
//! `documented` does not have.

use serde_json::{Value, json};

use super::super::Api;
use super::{Row, invalid, missing, of, refusal, unknown, value};

#[tokio::test]
async fn errors_of_create_queue() {
    let api = Api::with_queues(&["q", "gone"]).await;
    api.done("DeleteQueue", of("gone", json!({}))).await;
    let action = "CreateQueue";
    let name = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
    let fifo = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with \
        .fifo suffix and be 1 to 80 in length.";
    let mut rows: Vec<Row> = vec![
        ("no name", action, json!({}), missing("QueueName")),
        (
            "a moment after it was deleted",
            action,
            json!({"QueueName": "gone"}),
            refusal(
                "AWS.SimpleQueueService.QueueDeletedRecently",
                "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
            ),
        ),
        (
            "another value",
            action,
            json!({"QueueName": "q", "Attributes": {"DelaySeconds": "7"}}),
            refusal(
                "QueueAlreadyExists",
                "A queue already exists with the same name and a different value for attribute DelaySeconds",
            ),
        ),
        (
            "an attribute that is none",
            action,
            json!({"QueueName": "new", "Attributes": {"Nothing": "1"}}),
            unknown("Nothing"),
        ),
        (
            "a value that is none",
            action,
            json!({"QueueName": "new", "Attributes": {"DelaySeconds": "901"}}),
            refusal("InvalidAttributeValue", "Invalid value for the parameter DelaySeconds."),
        ),
    ];
    for bad in ["", "a b", "a/b", "q.fifo", &"x".repeat(81)] {
        rows.push(("a name that is none", action, json!({"QueueName": bad}), invalid(name)));
    }
    for bad in ["q", ".fifo", "a b.fifo"] {
        let asked = json!({"QueueName": bad, "Attributes": {"FifoQueue": "true"}});
        rows.push(("a name that is no FIFO queue's", action, asked, invalid(fifo)));
    }
    api.refuses_all(rows).await;
}

#[tokio::test]
async fn errors_of_lists_and_of_what_has_no_parameter() {
    let api = Api::with_queues(&["q", "purged"]).await;
    api.done("PurgeQueue", of("purged", json!({}))).await;
    let mut rows: Vec<Row> = Vec::new();
    for (action, asked) in [("ListQueues", json!({})), ("ListDeadLetterSourceQueues", of("q", json!({})))] {
        for number in [0, 1_001] {
            let mut asked = asked.clone();
            asked["MaxResults"] = number.into();
            let refusal =
                value(&number.to_string(), "MaxResults", "Must be an integer from 1 to 1000, if provided.");
            rows.push(("a page that is none", action, asked, refusal));
        }
        let mut asked = asked;
        asked["NextToken"] = "?".into();
        let refusal = value("?", "NextToken", "Must be one that was answered.");
        rows.push(("a token that is none", action, asked, refusal));
    }
    rows.push(("no name", "GetQueueUrl", json!({}), missing("QueueName")));
    rows.push(("no attributes", "SetQueueAttributes", of("q", json!({})), missing("Attribute.Name")));
    rows.push((
        "an attribute that is only told",
        "SetQueueAttributes",
        of("q", json!({"Attributes": {"QueueArn": "x"}})),
        unknown("QueueArn"),
    ));
    rows.push((
        "the next one within a minute",
        "PurgeQueue",
        of("purged", json!({})),
        refusal(
            "AWS.SimpleQueueService.PurgeQueueInProgress",
            "Only one PurgeQueue operation on purged is allowed every 60 seconds.",
        ),
    ));
    api.refuses_all(rows).await;
}

#[tokio::test]
async fn errors_of_permissions() {
    let api = Api::with_queues(&["q", "full"]).await;
    let permission = |queue: &str, label: Value, actions: &[&str]| {
        of(queue, json!({"Label": label, "AWSAccountIds": ["111111111111"], "Actions": actions}))
    };
    for label in 0..20 {
        api.done("AddPermission", permission("full", json!(label.to_string()), &["SendMessage"])).await;
    }
    let owner = "Only the queue owner is allowed to invoke this action.";
    let unknown = "Please refer to the appropriate WSDL for a list of valid actions.";
    let action = "AddPermission";
    let mut rows: Vec<Row> = vec![
        ("no label", action, permission("q", Value::Null, &["*"]), missing("Label")),
        ("no label", "RemovePermission", of("q", json!({})), missing("Label")),
        ("no action", action, permission("q", json!("l"), &[]), missing("Actions")),
        (
            "more than twenty",
            action,
            permission("full", json!("l"), &["*"]),
            refusal("OverLimit", "21 Statements were found, maximum allowed is 20."),
        ),
    ];
    for (given, reason) in
        [("CreateQueue", owner), ("TagQueue", owner), ("SendMessageBatch", unknown), ("x", unknown)]
    {
        let refusal = value(&format!("SQS:{given}"), "ActionName", reason);
        rows.push((
            "an action that nobody is permitted",
            action,
            permission("q", json!("l"), &[given]),
            refusal,
        ));
    }
    api.refuses_all(rows).await;
    api.done(action, permission("q", json!("l"), &["ListDeadLetterSourceQueues"])).await;
}

#[tokio::test]
async fn errors_of_redrive_policies() {
    let api = Api::with_queues(&["q", "dead"]).await;
    let dead = "arn:aws:sqs:us-east-1:000000000000:dead";
    let only = "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].";
    let owner = "Dead-letter target owner should be same as the source.";
    let no_map = "Redrive policy is not a valid JSON map.";
    let more = json!({"deadLetterTargetArn": dead, "maxReceiveCount": 1, "more": 1}).to_string();
    let other =
        json!({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:111111111111:dead", "maxReceiveCount": 1})
            .to_string();
    let text = json!({"deadLetterTargetArn": dead, "maxReceiveCount": "invalid"}).to_string();
    let count = "Invalid value for maxReceiveCount: invalid, valid values are from 1 to 1000 both inclusive.";
    let rows = [("[]", no_map), ("7", no_map), (&more, only), (&other, owner), (&text, count)].map(
        |(policy, reason)| {
            let asked = of("q", json!({"Attributes": {"RedrivePolicy": policy}}));
            ("a policy that is none", "SetQueueAttributes", asked, value(policy, "RedrivePolicy", reason))
        },
    );
    api.refuses_all(rows.into()).await;
}

#[tokio::test]
async fn errors_of_move_tasks() {
    let api = Api::with_queues(&["q"]).await;
    let format = |parameter: &str| {
        format!(
            "You must use this format to specify the {parameter}: \
             arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        )
    };
    let mut rows: Vec<Row> = Vec::new();
    for action in ["StartMessageMoveTask", "ListMessageMoveTasks"] {
        rows.push(("no source", action, json!({}), missing("SourceArn")));
        rows.push(("a source that is none", action, json!({"SourceArn": "x"}), invalid(format("SourceArn"))));
    }
    rows.push(("no task", "CancelMessageMoveTask", json!({}), missing("TaskHandle")));
    let source = "arn:aws:sqs:us-east-1:000000000000:q";
    let refusal = value("11", "MaxResults", "Must be from 1 to 10.");
    let asked = json!({"SourceArn": source, "MaxResults": 11});
    rows.push(("a list that is too long", "ListMessageMoveTasks", asked, refusal));
    api.refuses_all(rows).await;
}
