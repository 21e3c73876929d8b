//! What a fuzzer runs: requests of Amazon SQS's protocol as they come, before anybody knows whose they are, and what
//! lies on disk of messages and policies.

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use tailwater_sqs_wire::{Unsigned, sign};

use crate::content::{Attribute, Attributes, MessageContent, Value as ContentValue, md5_of};
use crate::policy;
use crate::protocol;
use crate::signature::{Signed, verify};

const KEY: (&str, &str) = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
/// 2015-08-30T12:36:00Z.
const NOW_S: i64 = 1_440_938_160;
const ARN: &str = "arn:aws:sqs:local:000000000000:q";

/// A request: its query in the first line, then its headers, an empty line, its body. Its signature is verified, and
/// what it asks for is read and answered. Nobody has signed it, so it is nobody's.
pub fn requests(data: &[u8]) {
    let (head, body) = split(data, b"\n\n");
    let mut lines = head.split(|byte| *byte == b'\n');
    let query = std::str::from_utf8(lines.next().unwrap_or_default()).unwrap_or_default();
    let mut headers = HeaderMap::new();
    for line in lines.take(32) {
        let (name, value) = split(line, b":");
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let body = Bytes::copy_from_slice(body);
    let request = Signed { method: "POST", path: "/", query, headers: &headers, body: &body };
    let secret_of = |key: &str| (key == KEY.0).then(|| KEY.1.to_owned());
    match verify(&request, NOW_S as u64, secret_of) {
        Ok((key, _)) => assert_eq!(key, KEY.0, "only the seeds are signed"),
        Err(why) => assert!(!why.message.is_empty()),
    }
    match protocol::read(&headers, query, body) {
        Ok(asked) => {
            let answer = match asked.parameters::<Map<String, Value>>() {
                Ok(parameters) => asked.answer("id", &parameters),
                Err(why) => protocol::refuse(asked.protocol, "id", &why),
            };
            assert!(!answer.body().is_empty());
            let _ = asked.form_queue_url();
        }
        Err((form, why)) => assert!(!protocol::refuse(form, "id", &why).body().is_empty()),
    }
}

/// A policy that somebody has set, under which others ask, and to which a permission is added.
pub fn policies(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for action in ["SendMessage", "ReceiveMessageBatch", "DeleteQueue"] {
        let is_allowed = policy::allows(text, "111111111111", action, ARN);
        assert!(!(is_allowed && action == "DeleteQueue"), "that is the owner's");
    }
    let accounts = ["222222222222".to_owned()];
    let actions = ["SendMessage".to_owned()];
    if let Ok(with) = policy::with_permission(Some(text), ARN, "label", &accounts, &actions) {
        let without = policy::without_permission(Some(&with), "label").expect("it is there");
        let again = without.map(|without| policy::without_permission(Some(&without), "label"));
        assert!(again.is_none_or(|again| again.is_err()), "it is gone");
    }
}

/// A message as it is stored.
pub fn contents(data: &[u8]) {
    if let Ok(content) = MessageContent::decode(data) {
        assert_eq!(MessageContent::decode(&content.encode()), Ok(content));
    }
}

/// An account as metadata has it.
pub fn accounts(data: &[u8]) {
    crate::accounts::check_kept(data);
}

/// Bytes for [`accounts`].
pub fn account_seeds() -> Vec<Vec<u8>> {
    crate::accounts::kept_seeds()
}

fn split<'a>(bytes: &'a [u8], at: &[u8]) -> (&'a [u8], &'a [u8]) {
    match bytes.windows(at.len()).position(|some| some == at) {
        Some(place) => (&bytes[..place], &bytes[place + at.len()..]),
        None => (bytes, &[]),
    }
}

/// Bytes for [`requests`], [`policies`] and [`contents`].
pub fn seeds() -> [Vec<Vec<u8>>; 3] {
    let json = r#"{"QueueUrl":"http://h/000000000000/q","MessageBody":"hello","DelaySeconds":5}"#;
    let form = "Action=SendMessage&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F0%2Fq&MessageBody=m&DelaySeconds=5\
        &MessageAttribute.1.Name=a&MessageAttribute.1.Value.DataType=String&MessageAttribute.1.Value.StringValue=v\
        &AttributeName.1=All&Tag.1.Key=k&Tag.1.Value=v";
    let signed = |query: &str, target: Option<&str>, body: &str| {
        let unsigned =
            Unsigned { method: "POST", path: "/", query, host: "localhost", target, body: body.as_bytes() };
        let time = jiff::Timestamp::from_second(NOW_S).expect("a time");
        let (date, authorization) = sign(&unsigned, time, KEY, "eu-central-1");
        let target = target.map_or(String::new(), |target| format!("x-amz-target:{target}\n"));
        let head =
            format!("{query}\nhost:localhost\nx-amz-date:{date}\nauthorization:{authorization}\n{target}\n");
        [head.as_bytes(), body.as_bytes()].concat()
    };
    let presigned = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20150830%2Fr%2Fsqs%2Faws4_request\
        &X-Amz-Date=20150830T123600Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=00&Action=ListQueues\
        \nhost:localhost\n\n";
    let requests = vec![
        signed("", Some("AmazonSQS.SendMessage"), json),
        signed("", None, form),
        signed("Action=GetCallerIdentity&Version=2011-06-15", None, ""),
        presigned.as_bytes().to_vec(),
        b"\nx-amz-content-sha256:STREAMING-AWS4-HMAC-SHA256-PAYLOAD\n\n5;chunk-signature=00\r\nhello\r\n"
            .to_vec(),
    ];
    let actions = ["SendMessage".to_owned(), "GetQueueUrl".to_owned()];
    let policy = policy::with_permission(None, ARN, "other", &["111111111111".to_owned()], &actions);
    let denying =
        r#"{"Statement":{"Effect":"Deny","Principal":"*","NotAction":["SQS:Send*"],"Resource":"*"}}"#;
    let text = Attribute { data_type: "String".to_owned(), value: ContentValue::Text("v".to_owned()) };
    let binary = Attribute { data_type: "Binary".to_owned(), value: ContentValue::Binary(json.into()) };
    let content = MessageContent {
        body: "hello".to_owned(),
        body_md5: md5_of(b"hello"),
        sender: "000000000000".to_owned(),
        group: "group".to_owned(),
        deduplication: String::new(),
        trace: "Root=1".to_owned(),
        attributes: Attributes::from([("a".to_owned(), text), ("b".to_owned(), binary)]),
    };
    let policies = vec![policy.expect("a policy").into_bytes(), denying.as_bytes().to_vec()];
    (requests, policies, vec![content.encode().to_vec()]).into()
}
