//! A sensible request of each action, in both forms: what mutations begin with.

use serde_json::{Value, json};
use tailwater_sqs_wire::{Unsigned, sign};

/// A queue that has messages.
pub const FULL: &str = "http://h/000000000000/full";

/// The action that is refused.
pub const NO_TASK: &str = "CancelMessageMoveTask";

/// What that is asked: the source's ARN, and a task that is not there.
const HANDLE: &str = "eyJ0YXNrSWQiOiIwMDAwMDAwMC0wMDAwLTQwMDAtODAwMC0wMDAwMDAwMDAwNjMiLCJzb3VyY2VBcm4iOiJhcm46YXdzOnNxczp1cy1lYXN0LTE6MDAwMDAwMDAwMDAwOmZ1bGwifQ==";

/// An access key and its secret.
pub const KEY: (&str, &str) = ("AKIDEXAMPLE", "secret");

/// A request.
#[derive(Clone)]
pub struct Sample {
    method: &'static str,
    pub address: Vec<u8>,
    /// Names and values, but for those that say where it ends.
    pub headers: Vec<(&'static str, Vec<u8>)>,
    pub body: Vec<u8>,
}

impl Sample {
    /// As it is sent; its connection is closed after the answer.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes =
            [self.method.as_bytes(), b" ", &self.address, b" HTTP/1.1\r\nconnection: close\r\n"].concat();
        for (name, value) in &self.headers {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        bytes.extend(format!("content-length: {}\r\n\r\n", self.body.len()).bytes());
        bytes.extend(&self.body);
        bytes
    }
}

fn in_json(action: &str, parameters: &Value) -> Sample {
    let service = if action == "PeekMessages" { "Tailwater" } else { "AmazonSQS" };
    Sample {
        method: "POST",
        address: b"/".to_vec(),
        headers: vec![
            ("host", b"h".to_vec()),
            ("content-type", b"application/x-amz-json-1.0".to_vec()),
            ("x-amz-target", format!("{service}.{action}").into_bytes()),
        ],
        body: parameters.to_string().into_bytes(),
    }
}

fn in_a_form(path: &str, form: &str) -> Sample {
    Sample {
        method: "POST",
        address: path.as_bytes().to_vec(),
        headers: vec![
            ("host", b"h".to_vec()),
            ("content-type", b"application/x-www-form-urlencoded; charset=utf-8".to_vec()),
        ],
        body: format!("Version=2012-11-05&{form}").into_bytes(),
    }
}

fn in_the_address(path: &str, form: &str) -> Sample {
    let address = format!("{path}?{form}&Version=2012-11-05").into_bytes();
    Sample { method: "GET", address, headers: vec![("host", b"h".to_vec())], body: Vec::new() }
}

/// Requests of the Query protocol: a path, and the form that is its body.
fn forms(deleted: &str, changed: &str) -> Vec<(&'static str, String)> {
    let in_full = "/000000000000/full";
    let in_source = "/000000000000/source";
    vec![
        ("/", "Action=CreateQueue&QueueName=made&Attribute.1.Name=DelaySeconds&Attribute.1.Value=1&Tag.1.Key=k&Tag.1.Value=v".to_owned()),
        ("/", "Action=ListQueues&QueueNamePrefix=s&MaxResults=2".to_owned()),
        ("/", "Action=GetQueueUrl&QueueName=full".to_owned()),
        ("/", "Action=GetCallerIdentity&Version=2011-06-15".to_owned()),
        (in_full, "Action=GetQueueAttributes&AttributeName.1=All".to_owned()),
        (in_full, "Action=ReceiveMessage&MaxNumberOfMessages=2&VisibilityTimeout=0&AttributeName.1=All&MessageAttributeName.1=All".to_owned()),
        (in_full, format!("Action=DeleteMessage&ReceiptHandle={deleted}")),
        (in_full, format!("Action=ChangeMessageVisibility&ReceiptHandle={changed}&VisibilityTimeout=30")),
        (in_source, "Action=SendMessage&MessageBody=m%20%C3%A9&MessageAttribute.1.Name=n&MessageAttribute.1.Value.DataType=Number\
            &MessageAttribute.1.Value.StringValue=1&DelaySeconds=1".to_owned()),
        (in_source, "Action=SendMessageBatch&SendMessageBatchRequestEntry.1.Id=a&SendMessageBatchRequestEntry.1.MessageBody=m\
            &SendMessageBatchRequestEntry.2.Id=b&SendMessageBatchRequestEntry.2.MessageBody=m".to_owned()),
        (in_source, "Action=SetQueueAttributes&Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=5".to_owned()),
        (in_source, "Action=AddPermission&Label=l2&AWSAccountId.1=111111111111&ActionName.1=SendMessage".to_owned()),
        (in_source, "Action=TagQueue&Tag.1.Key=k&Tag.1.Value=v".to_owned()),
    ]
}

/// One of each action in each form, for queues that it makes with `done`.
pub fn samples(done: impl Fn(&str, Value) -> Value) -> Vec<Sample> {
    let fifo = json!({"FifoQueue": "true", "ContentBasedDeduplication": "true"});
    let source = json!({"RedrivePolicy": "{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:000000000000:letters\",\"maxReceiveCount\":9}"});
    for (name, attributes) in [
        ("full", json!({})),
        ("letters", json!({})),
        ("purged", json!({})),
        ("gone", json!({})),
        ("source", source),
        ("x.fifo", fifo),
    ] {
        done("CreateQueue", json!({"QueueName": name, "Attributes": attributes}));
    }
    for number in 0..600 {
        done("SendMessage", json!({"QueueUrl": FULL, "MessageBody": format!("message {number}")}));
    }
    let receipt = |visibility_s: u32| {
        let receive = json!({"QueueUrl": FULL, "VisibilityTimeout": visibility_s});
        let handle = &done("ReceiveMessage", receive)["Messages"][0]["ReceiptHandle"];
        handle.as_str().expect("a message").to_owned()
    };
    let (deleted, changed) = (receipt(40_000), receipt(40_000));
    let (source, fifo) = ("http://h/000000000000/source", "http://h/000000000000/x.fifo");
    let letters = "arn:aws:sqs:us-east-1:000000000000:letters";
    let attribute = json!({"n": {"DataType": "Number", "StringValue": "1"}, "b": {"DataType": "Binary", "BinaryValue": "AAEC"}});
    let trace = json!({"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}});
    let requests = [
        (
            "AddPermission",
            json!({"QueueUrl": source, "Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}),
        ),
        ("RemovePermission", json!({"QueueUrl": source, "Label": "l"})),
        (
            "ChangeMessageVisibility",
            json!({"QueueUrl": FULL, "ReceiptHandle": changed, "VisibilityTimeout": 30}),
        ),
        (
            "ChangeMessageVisibilityBatch",
            json!({"QueueUrl": FULL, "Entries": [{"Id": "a", "ReceiptHandle": changed, "VisibilityTimeout": 30}]}),
        ),
        (
            "CreateQueue",
            json!({"QueueName": "made", "Attributes": {"DelaySeconds": "1"}, "tags": {"k": "v"}}),
        ),
        ("DeleteMessage", json!({"QueueUrl": FULL, "ReceiptHandle": deleted})),
        ("DeleteMessageBatch", json!({"QueueUrl": FULL, "Entries": [{"Id": "a", "ReceiptHandle": deleted}]})),
        ("GetQueueAttributes", json!({"QueueUrl": FULL, "AttributeNames": ["All"]})),
        ("GetQueueUrl", json!({"QueueName": "full", "QueueOwnerAWSAccountId": "000000000000"})),
        (
            "ListDeadLetterSourceQueues",
            json!({"QueueUrl": "http://h/000000000000/letters", "MaxResults": 10}),
        ),
        ("ListMessageMoveTasks", json!({"SourceArn": letters, "MaxResults": 1})),
        ("ListQueueTags", json!({"QueueUrl": FULL})),
        ("ListQueues", json!({"QueueNamePrefix": "s", "MaxResults": 2})),
        ("PeekMessages", json!({"QueueUrl": FULL, "From": 1, "MaxNumberOfMessages": 2})),
        ("PurgeQueue", json!({"QueueUrl": "http://h/000000000000/purged"})),
        ("DeleteQueue", json!({"QueueUrl": "http://h/000000000000/gone"})),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": letters, "DestinationArn": "arn:aws:sqs:us-east-1:000000000000:source",
            "MaxNumberOfMessagesPerSecond": 5}),
        ),
        // There is none of that number: the one request that is not done.
        (NO_TASK, json!({"TaskHandle": HANDLE})),
        (
            "ReceiveMessage",
            json!({"QueueUrl": FULL, "MaxNumberOfMessages": 2, "VisibilityTimeout": 0, "AttributeNames": ["All"],
            "MessageAttributeNames": ["n", "b.*"], "ReceiveRequestAttemptId": "attempt"}),
        ),
        (
            "SendMessage",
            json!({"QueueUrl": source, "MessageBody": "m \u{e9}", "DelaySeconds": 1, "MessageAttributes": attribute,
            "MessageSystemAttributes": trace}),
        ),
        (
            "SendMessage",
            json!({"QueueUrl": fifo, "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}),
        ),
        (
            "SendMessageBatch",
            json!({"QueueUrl": source, "Entries": [{"Id": "a", "MessageBody": "m"}, {"Id": "b", "MessageBody": "m",
            "MessageAttributes": attribute}]}),
        ),
        (
            "SetQueueAttributes",
            json!({"QueueUrl": source, "Attributes": {"VisibilityTimeout": "5", "Policy":
            "{\"Version\":\"2012-10-17\",\"Statement\":[{\"Effect\":\"Allow\",\"Principal\":\"*\",\"Action\":\"sqs:SendMessage\"}]}"}}),
        ),
        ("TagQueue", json!({"QueueUrl": source, "Tags": {"tailwater-order-hint": "3", "k": "v"}})),
        ("UntagQueue", json!({"QueueUrl": source, "TagKeys": ["k"]})),
    ];
    let forms = forms(&deleted, &changed);
    let mut all: Vec<Sample> =
        requests.iter().map(|(action, parameters)| in_json(action, parameters)).collect();
    all.extend(forms.iter().map(|(path, form)| in_a_form(path, form)));
    all.extend(forms[1..6].iter().map(|(path, form)| in_the_address(path, form)));
    all
}

/// Requests with signatures that are right at `now_ms`, milliseconds since the epoch, at `host`: in the header, of a
/// body in one piece.
pub fn signed(host: &str, now_ms: i64) -> Vec<Sample> {
    let now = jiff::Timestamp::from_millisecond(now_ms).expect("a time");
    let of = |mut sample: Sample| {
        let address = String::from_utf8(sample.address.clone()).expect("text");
        let (path, query) = address.split_once('?').unwrap_or((&address, ""));
        let target = sample.headers.iter().find(|(name, _)| *name == "x-amz-target");
        let target = target.map(|(_, value)| std::str::from_utf8(value).expect("text"));
        let unsigned = Unsigned { method: sample.method, path, query, host, target, body: &sample.body };
        let (date, authorization) = sign(&unsigned, now, KEY, "us-east-1");
        sample.headers[0].1 = host.as_bytes().to_vec();
        sample.headers.push(("x-amz-date", date.into_bytes()));
        sample.headers.push(("authorization", authorization.into_bytes()));
        sample
    };
    vec![
        of(in_json("ListQueues", &json!({"MaxResults": 2}))),
        of(in_a_form("/", "Action=ListQueues&QueueNamePrefix=s")),
        of(in_the_address("/", "Action=ListQueues&QueueNamePrefix=s%20")),
    ]
}
