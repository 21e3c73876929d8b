//! Accounts: who may do what, and how much of it.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use tailwater_access::{AccessRequest as Question, Authorizer, Denied, Peer, Protocol, Resource};
use tailwater_env::Env;
use tailwater_sqs::{AccountConfig, KeyConfig, SqsConfig};
use tailwater_sqs_wire::{Unsigned, sign};

use super::Api;

fn two_accounts() -> SqsConfig {
    let account = |id: &str, requests_per_s| AccountConfig {
        id: id.to_owned(),
        keys: vec![KeyConfig::new(&format!("AK{id}"), &format!("secret of {id}"))],
        requests_per_s,
        bytes_per_s: 0,
        queues_max: 1,
        in_flight_max: 0,
        waiting_max: 0,
    };
    SqsConfig {
        accounts: vec![account("111111111111", 0), account("222222222222", 3)],
        ..SqsConfig::default()
    }
}

impl Api {
    /// An action of an account, signed; the error's code, or the answer.
    pub(super) async fn signed(
        &self,
        account: &str,
        action: &str,
        parameters: Value,
    ) -> Result<Value, String> {
        let body = Bytes::from(parameters.to_string());
        let target = format!("AmazonSQS.{action}");
        let unsigned = Unsigned {
            method: "POST",
            path: "/",
            query: "",
            host: "h:1",
            target: Some(&target),
            body: &body,
        };
        let (key, secret) = (format!("AK{account}"), format!("secret of {account}"));
        let now = Env::real().wall_ms() / 1_000;
        let time = jiff::Timestamp::from_second(now).expect("a time");
        let (date, authorization) = sign(&unsigned, time, (&key, &secret), "eu-west-1");
        let request = Request::post("/").header("host", "h:1").header("x-amz-target", target);
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
    while throttled == 0 {
        // At the same time: its quota fills up again while one is answered.
        let answers =
            futures::future::join_all((0..10).map(|_| api.signed(two, "ListQueues", json!({})))).await;
        throttled += answers.iter().filter(|answer| **answer == Err("RequestThrottled".to_owned())).count();
    }
    assert_eq!(api.front.stats().throttled, throttled as u64);
    let received = api.signed(one, "ReceiveMessage", receive).await.expect("received");
    assert_eq!(received["Messages"][0]["Attributes"]["SenderId"], two);
}

#[tokio::test]
async fn an_account_that_may_do_everything_with_another_one_s_queue_may_not_administer_it() {
    let mut config = two_accounts();
    config.accounts[1].requests_per_s = 0;
    let api = Api::open(config);
    let (one, two) = ("111111111111", "222222222222");
    let created = api.signed(one, "CreateQueue", json!({"QueueName": "q"})).await.expect("created");
    let url = &created["QueueUrl"];
    let permission = json!({"QueueUrl": url, "Label": "l", "AWSAccountIds": [two], "Actions": ["*"]});
    api.signed(one, "AddPermission", permission.clone()).await.expect("permitted");
    api.signed(two, "SendMessage", json!({"QueueUrl": url, "MessageBody": "m"})).await.expect("sent");
    for (action, more) in [
        ("SetQueueAttributes", json!({"Attributes": {"VisibilityTimeout": "1"}})),
        ("AddPermission", permission),
        ("RemovePermission", json!({"Label": "l"})),
        ("TagQueue", json!({"Tags": {"a": "b"}})),
        ("UntagQueue", json!({"TagKeys": ["a"]})),
        ("ListQueueTags", json!({})),
        ("DeleteQueue", json!({})),
    ] {
        let mut parameters = more;
        parameters["QueueUrl"] = url.clone();
        assert_eq!(api.signed(two, action, parameters).await, Err("AccessDenied".to_owned()), "{action}");
    }
    let received = api.signed(two, "ReceiveMessage", json!({"QueueUrl": url})).await.expect("received");
    assert_eq!(received["Messages"][0]["Body"], "m");
}

#[tokio::test]
async fn an_account_s_bytes_are_counted_when_they_were_read_although_nobody_announced_them() {
    let mut config = two_accounts();
    config.accounts[0].bytes_per_s = 2_000;
    let api = Api::open(config);
    let account = "111111111111";
    let created = api.signed(account, "CreateQueue", json!({"QueueName": "q"})).await.expect("created");
    // Longer than what there is, it passes, and 500 seconds are missing afterwards.
    let message = json!({"QueueUrl": created["QueueUrl"], "MessageBody": "x".repeat(1_000_000)});
    api.signed(account, "SendMessage", message).await.expect("sent");
    let refused = api.signed(account, "ListQueues", json!({})).await;
    assert_eq!(refused, Err("RequestThrottled".to_owned()));
}

#[tokio::test]
async fn an_account_s_quota_is_not_used_by_whoever_knows_its_key_and_not_the_secret() {
    let mut config = two_accounts();
    let quota = &mut config.accounts[1];
    (quota.requests_per_s, quota.bytes_per_s) = (1, 1_000);
    let api = Api::open(config);
    let account = "222222222222";
    let garbage = || {
        let credential = format!("AK{account}/20260101/us-east-1/sqs/aws4_request");
        let request = Request::post("/").header("host", "h:1").header("x-amz-target", "AmazonSQS.ListQueues");
        let request = request.header("authorization", format!("AWS4-HMAC-SHA256 Credential={credential}"));
        request.body(Full::new(Bytes::from(vec![b' '; 100_000]))).expect("a request")
    };
    for _ in 0..30 {
        let (_, error, _) = api.send(garbage()).await;
        assert_eq!(error, "IncompleteSignature;Sender");
    }
    api.signed(account, "ListQueues", json!({})).await.expect("its quota is there");
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
        // Where it can't be flooded so much within its patience, a flood of whatever height has to do.
        while cycles < 30 || tried.get() < 10 * done.get() && cycles < 3_000 {
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
    assert_eq!(api.front.stats().throttled, tried.get() - done.get());
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
async fn an_account_has_its_part_of_the_receives_that_wait_and_no_more() {
    let mut config = two_accounts();
    config.accounts[0].waiting_max = 1;
    let api = Api::open(config);
    let one = "111111111111";
    let url =
        api.signed(one, "CreateQueue", json!({"QueueName": "q"})).await.expect("created")["QueueUrl"].clone();
    let receive =
        |wait_s: u32| api.signed(one, "ReceiveMessage", json!({"QueueUrl": url, "WaitTimeSeconds": wait_s}));
    let mut waiting = std::pin::pin!(receive(20));
    assert!(futures::poll!(&mut waiting).is_pending());
    assert_eq!(receive(20).await, Err("RequestThrottled".to_owned()));
    assert_eq!(receive(0).await, Ok(json!({})), "it does not wait");
    api.signed(one, "SendMessage", json!({"QueueUrl": url, "MessageBody": "m"})).await.expect("sent");
    assert!(waiting.await.expect("received")["Messages"].is_array());
    assert_eq!(receive(1).await, Ok(json!({})), "the other one does not wait any more");
}

/// Lets nobody do anything with the queues `q` and `dead` of whoever asks, and an account see and make all others.
struct Keeper(&'static str);

impl Authorizer for Keeper {
    fn authorize(&self, peer: &Peer, request: Question<'_>) -> Result<(), Denied> {
        assert_eq!((request.protocol, peer.address.as_str()), (Protocol::Sqs, "192.0.2.1:1"));
        let is_kept = |queue: &str| ["q", "dead"].contains(&queue.rsplit('/').next().expect("a name"));
        match request.resource {
            Resource::Node if *peer.principal == *self.0 => Ok(()),
            Resource::Queue(queue) if !is_kept(queue) => Ok(()),
            _ => Err(Denied(format!("{} is not let", peer.principal))),
        }
    }
}

#[tokio::test]
async fn the_authorizer_is_asked_for_who_signed_and_each_queue_before_policies_are() {
    let (one, two) = ("111111111111", "222222222222");
    let api = Api::open_for(Env::real(), two_accounts(), Arc::new(Keeper(one)));
    let denied = || Err("AccessDenied".to_owned());
    api.signed(one, "ListQueues", json!({})).await.expect("it is let");
    assert_eq!(api.signed(two, "ListQueues", json!({})).await, denied());
    assert_eq!(api.signed(two, "CreateQueue", json!({"QueueName": "other"})).await, denied());
    // Who did not sign is told so, and nothing is asked for it.
    assert_eq!(api.refused("ListQueues", json!({})).await, "MissingAuthenticationToken");
    // Whether there is such a queue is not told, be it one's own.
    assert_eq!(api.signed(one, "CreateQueue", json!({"QueueName": "q"})).await, denied());
    assert_eq!(api.signed(one, "GetQueueUrl", json!({"QueueName": "q"})).await, denied());
    let url = "http://h:1/111111111111/q";
    let send = json!({"QueueUrl": url, "MessageBody": "m"});
    assert_eq!(api.signed(one, "SendMessage", send).await, denied());
    let entries = json!([{"Id": "1", "MessageBody": "m"}]);
    let batch = json!({"QueueUrl": url, "Entries": entries});
    assert_eq!(api.signed(one, "SendMessageBatch", batch).await, denied());
    // Nor do a queue's letters, or a task, go to one that is not let.
    let arn = format!("arn:aws:sqs:us-east-1:{one}:dead");
    let redrive = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
    let create = json!({"QueueName": "other", "Attributes": {"RedrivePolicy": redrive}});
    assert_eq!(api.signed(one, "CreateQueue", create).await, denied());
    assert_eq!(api.signed(one, "StartMessageMoveTask", json!({"SourceArn": arn})).await, denied());
    api.signed(one, "CreateQueue", json!({"QueueName": "other"})).await.expect("it is let");
}

#[tokio::test]
async fn where_nobody_signs_everybody_is_anonymous_and_refused_in_either_form() {
    let api = Api::open_for(Env::real(), SqsConfig::default(), Arc::new(Keeper("somebody")));
    let (status, error, body) = api.json("ListQueues", json!({})).await;
    assert_eq!((status, error.as_str()), (400, "AccessDenied;Sender"));
    assert!(body.contains("AccessDeniedException") && body.contains("anonymous is not let"), "{body}");
    let (status, _, body) = api.query("/", "Action=ListQueues").await;
    assert_eq!(status, 403);
    assert!(body.contains("<Code>AccessDenied</Code>") && body.contains("anonymous is not let"), "{body}");
}
