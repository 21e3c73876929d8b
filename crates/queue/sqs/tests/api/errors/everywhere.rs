//! The errors that every action has.

use serde_json::{Value, json};
use tailwater_sqs::{AccountConfig, KeyConfig, SqsConfig};

use super::super::Api;
use super::{Row, missing, no_queue, of, refusal};

/// The actions about a queue, and what they are asked besides.
fn of_a_queue() -> Vec<(&'static str, Value)> {
    let handle = json!({"ReceiptHandle": "x", "VisibilityTimeout": 1});
    let entries = json!({"Entries": [{"Id": "a", "ReceiptHandle": "x", "VisibilityTimeout": 1}]});
    vec![
        (
            "AddPermission",
            json!({"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}),
        ),
        ("ChangeMessageVisibility", handle.clone()),
        ("ChangeMessageVisibilityBatch", entries.clone()),
        ("DeleteMessage", handle),
        ("DeleteMessageBatch", entries),
        ("DeleteQueue", json!({})),
        ("GetQueueAttributes", json!({"AttributeNames": ["All"]})),
        ("ListDeadLetterSourceQueues", json!({})),
        ("ListQueueTags", json!({})),
        ("PurgeQueue", json!({})),
        ("ReceiveMessage", json!({})),
        ("RemovePermission", json!({"Label": "l"})),
        ("SendMessage", json!({"MessageBody": "m"})),
        ("SendMessageBatch", json!({"Entries": [{"Id": "a", "MessageBody": "m"}]})),
        ("SetQueueAttributes", json!({"Attributes": {"DelaySeconds": "1"}})),
        ("TagQueue", json!({"Tags": {"k": "v"}})),
        ("UntagQueue", json!({"TagKeys": ["k"]})),
    ]
}

/// Those about no queue, or about one by another name than its address.
fn of_none() -> Vec<(&'static str, Value)> {
    let source = json!({"SourceArn": "arn:aws:sqs:us-east-1:111111111111:q"});
    vec![
        ("CancelMessageMoveTask", json!({"TaskHandle": "x"})),
        ("CreateQueue", json!({"QueueName": "new"})),
        ("GetQueueUrl", json!({"QueueName": "q"})),
        ("ListMessageMoveTasks", source.clone()),
        ("ListQueues", json!({})),
        ("StartMessageMoveTask", source),
    ]
}

#[tokio::test]
async fn every_action_about_a_queue_says_that_there_is_none_or_that_its_address_is_missing_or_none() {
    let api = Api::open(SqsConfig::default());
    let rows = of_a_queue().into_iter().flat_map(|(action, more)| -> Vec<Row> {
        let mut no_address = of("q", more.clone());
        no_address["QueueUrl"] = json!("http://h/");
        vec![
            ("no such queue", action, of("none", more.clone()), no_queue()),
            ("no queue", action, more, missing("QueueUrl")),
            (
                "no address",
                action,
                no_address,
                refusal("InvalidAddress", "The address http://h/ is not valid for this endpoint."),
            ),
        ]
    });
    api.refuses_all(rows.collect()).await;
    let none = vec![("no such queue", "GetQueueUrl", json!({"QueueName": "none"}), no_queue())];
    api.refuses_all(none).await;
}

#[tokio::test]
async fn what_is_no_action_is_none_in_either_form() {
    let api = Api::with_queues(&["q"]).await;
    let text = "The action NoAction is not valid for this endpoint.";
    api.refuses_all(vec![("no action", "NoAction", json!({}), refusal("InvalidAction", text))]).await;
    // At a queue's address there are only the actions about that.
    for action in ["CreateQueue", "ListQueues"] {
        let (status, _, body) = api.query("/000000000000/q", &format!("Action={action}&QueueName=new")).await;
        assert_eq!((status, super::told_in(&body, "Code")), (400, "InvalidAction".to_owned()));
        assert!(body.contains(&format!("The action {action} is not valid for this endpoint.")), "{body}");
    }
    for action in ["GetQueueUrl&QueueName=q", "ReceiveMessage", "DeleteQueue"] {
        let (status, _, body) = api.query("/000000000000/q", &format!("Action={action}")).await;
        assert_eq!(status, 200, "{body}");
    }
    for path in ["/", "/000000000000/q"] {
        let (status, _, body) = api.query(path, "").await;
        assert!(status == 404 && body.contains("<UnknownOperationException>"), "{body}");
    }
}

/// Two accounts, of which the second one has used up its quota with its first request.
fn accounts() -> SqsConfig {
    let account = |id: &str, bytes_per_s| AccountConfig {
        id: id.to_owned(),
        keys: vec![KeyConfig::new(&format!("AK{id}"), &format!("secret of {id}"))],
        requests_per_s: 0,
        bytes_per_s,
        queues_max: 0,
        in_flight_max: 0,
        waiting_max: 0,
    };
    SqsConfig {
        accounts: vec![account("111111111111", 0), account("222222222222", 1)],
        ..SqsConfig::default()
    }
}

#[tokio::test]
async fn every_action_is_refused_without_a_signature_and_over_a_quota() {
    let api = Api::open(accounts());
    let long = json!({"QueueNamePrefix": "x".repeat(10_000)});
    api.signed("222222222222", "ListQueues", long).await.expect("the first one passes");
    for (action, asked) in of_a_queue().into_iter().chain(of_none()) {
        assert_eq!(api.refused(action, asked.clone()).await, "MissingAuthenticationToken", "{action}");
        let throttled = Err("RequestThrottled".to_owned());
        assert_eq!(api.signed("222222222222", action, asked).await, throttled, "{action}");
    }
}

#[tokio::test]
async fn every_action_about_another_account_s_queue_is_denied_unless_that_permits_it() {
    let mut config = accounts();
    config.accounts[1].bytes_per_s = 0;
    let api = Api::open(config);
    api.signed("111111111111", "CreateQueue", json!({"QueueName": "q"})).await.expect("created");
    for (action, more) in of_a_queue() {
        let mut asked = of("q", more);
        asked["QueueUrl"] = json!("http://h:1/111111111111/q");
        let denied = api.signed("222222222222", action, asked).await;
        assert_eq!(denied, Err("AccessDenied".to_owned()), "{action}");
    }
    let asked = json!({"QueueName": "q", "QueueOwnerAWSAccountId": "111111111111"});
    assert_eq!(api.signed("222222222222", "GetQueueUrl", asked).await, Err("AccessDenied".to_owned()));
    for action in ["StartMessageMoveTask", "ListMessageMoveTasks"] {
        let asked = json!({"SourceArn": "arn:aws:sqs:us-east-1:111111111111:q"});
        let none = Err("ResourceNotFoundException".to_owned());
        assert_eq!(api.signed("222222222222", action, asked).await, none, "{action}");
    }
}
