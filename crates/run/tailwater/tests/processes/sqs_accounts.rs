//! Accounts that are made and removed while the node runs, as boto3 meets them.

use std::process::{Child, Command, Stdio};

use crate::sqs_clients::client;
use crate::support::{Node, told, wait_for};

/// Sends a message to `q`, which it makes, and receives it.
const WORK: &str = "
import sys, boto3
sqs = boto3.client('sqs', endpoint_url=sys.argv[1], region_name='us-east-1')
url = sqs.create_queue(QueueName='q')['QueueUrl']
sqs.send_message(QueueUrl=url, MessageBody='m')
print(sqs.receive_message(QueueUrl=url)['Messages'][0]['Body'], url.split('/')[-2])
";

/// Waits for a message of an empty queue, with no second try.
const WAIT: &str = "
import sys, boto3, botocore.config
config = botocore.config.Config(retries={'total_max_attempts': 1})
sqs = boto3.client('sqs', endpoint_url=sys.argv[1], region_name='us-east-1', config=config)
url = sqs.create_queue(QueueName='empty')['QueueUrl']
while True:
    sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)
";

/// A key, as `account add` prints it.
pub struct Key {
    id: String,
    secret: String,
}

/// A program of Python with the key in its environment, and the node's address as its first argument.
pub fn boto3(node: &Node, program: &str, key: &Key) -> Command {
    let mut command = Command::new(client("boto3").join("bin/python"));
    command.args(["-c", program, &format!("http://{}", node.sqs)]);
    command.env("AWS_ACCESS_KEY_ID", &key.id).env("AWS_SECRET_ACCESS_KEY", &key.secret);
    command
}

/// Adds a key to an account, or an account.
pub fn add(node: &Node, account: &str, bounds: &[&str]) -> Key {
    let printed = node.run(&[&["account", "add", account], bounds].concat());
    let value = |name: &str| {
        let value = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name} in {printed}")).to_owned()
    };
    Key { id: value("AWS_ACCESS_KEY_ID"), secret: value("AWS_SECRET_ACCESS_KEY") }
}

fn works(node: &Node, key: &Key) -> String {
    let (ok, out, err) = told(&mut boto3(node, WORK, key), "");
    assert!(ok, "{err}");
    out
}

fn is_refused(node: &Node, key: &Key) -> String {
    let (ok, out, err) = told(&mut boto3(node, WORK, key), "");
    assert!(!ok, "{out}");
    err
}

#[test]
fn a_client_is_let_in_with_the_key_of_an_account_that_is_made_meanwhile_and_refused_once_it_is_removed() {
    let (dir, mut node) = Node::start_anew();
    let stranger = Key { id: "any".to_owned(), secret: "one".to_owned() };
    assert_eq!(works(&node, &stranger), "m 000000000000\n", "nobody has to sign");

    let key = add(&node, "111122223333", &[]);
    assert!(is_refused(&node, &stranger).contains("InvalidClientTokenId"));
    let wrong = Key { id: key.id.clone(), secret: stranger.secret.clone() };
    assert!(is_refused(&node, &wrong).contains("SignatureDoesNotMatch"));
    assert_eq!(works(&node, &key), "m 111122223333\n");

    // It is there after a start, and its secret is nowhere to be read.
    assert!(node.process.stop(), "{}", node.process.log());
    node.restart();
    assert_eq!(works(&node, &key), "m 111122223333\n");
    let listed = node.run(&["account", "ls", "-o", "json"]) + &node.run(&["account", "ls"]);
    assert!(listed.contains(&key.id) && !listed.contains(&key.secret), "{listed}");
    assert!(!node.process.log().contains(&key.secret), "it is in the log");
    let audit = std::fs::read_to_string(dir.path().join("data/audit.jsonl")).unwrap_or_default();
    assert!(!audit.contains(&key.secret), "it is in the audit");

    // A key takes the place of another one.
    let next = add(&node, "111122223333", &[]);
    node.run(&["account", "rm", "111122223333", "--key", &key.id]);
    assert!(is_refused(&node, &key).contains("InvalidClientTokenId"));
    assert_eq!(works(&node, &next), "m 111122223333\n");

    let error = node.run_failing(&["account", "rm", "111122223333"]);
    assert!(error.contains("it is the last account"), "{error}");
    let other = add(&node, "444455556666", &[]);
    let receives = "tailwater_sqs_requests_total{action=\"ReceiveMessage\"}";
    let before = node.metric(receives).unwrap_or_default();
    let mut waiting: Child = boto3(&node, WAIT, &next).stderr(Stdio::null()).spawn().expect("it runs");
    wait_for("it to wait", || (node.metric(receives).unwrap_or_default() > before).then_some(()));
    node.run(&["account", "rm", "111122223333"]);
    assert!(!waiting.wait().expect("it ends").success(), "it is refused");
    assert!(is_refused(&node, &next).contains("InvalidClientTokenId"));
    assert_eq!(works(&node, &other), "m 444455556666\n", "the other account goes on");

    node.run(&["account", "rm", "444455556666", "--everybody"]);
    works(&node, &stranger);
}

#[test]
fn with_login_nobody_is_let_in_before_there_is_an_account() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_with(&dir.path().join("data"), &[], &[("TAILWATER_SQS__LOGIN", "true")]);
    let stranger = Key { id: "any".to_owned(), secret: "one".to_owned() };
    assert!(is_refused(&node, &stranger).contains("InvalidClientTokenId"));
    let key = add(&node, "111122223333", &[]);
    works(&node, &key);
    node.run(&["account", "rm", "111122223333"]);
    assert!(is_refused(&node, &stranger).contains("InvalidClientTokenId"));
}
