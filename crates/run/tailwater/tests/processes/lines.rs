//! What the command line makes of lines, of a node that is not there yet, and of Ctrl-C.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tailwater_kafka_wire::messages::configs::{
    AlterConfigsRequest, AlterConfigsRequestAlterableConfig, AlterConfigsRequestResource,
};

use crate::support::raw::Raw;
use crate::support::{Node, tailwater, wait_for};

/// Kafka's number of a topic among what is configured.
const TOPIC: i8 = 2;

/// From now on an append to the stream has at most so many bytes.
fn alter_limit(node: &Node, stream: &str, bytes_max: usize) {
    let config = AlterConfigsRequestAlterableConfig {
        name: "max.message.bytes".to_owned(),
        value: Some(bytes_max.to_string()),
    };
    let resource = AlterConfigsRequestResource {
        resource_type: TOPIC,
        resource_name: stream.to_owned(),
        configs: vec![config],
    };
    let asked = AlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let answer = Raw::connect(node).ask(&asked);
    assert_eq!(answer.responses[0].error_code, 0, "{answer:?}");
}

/// A command whose standard input stays open, and whose errors go to a file.
fn started(mut command: Command, errors: &std::path::Path) -> Child {
    let errors = std::fs::File::create(errors).expect("created");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(errors).spawn().expect("it starts")
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).expect("it runs");
}

#[test]
fn the_end_of_a_line_is_lf_or_cr_lf_for_the_log_for_queues_and_for_broadcasts() {
    let (_dir, node) = Node::with_stream(&["n"]);
    node.run(&["queue", "create", "n"]);
    for way in [["produce", "n"].as_slice(), &["queue", "send", "n"], &["broadcast", "publish", "n"]] {
        let sent = node.output(way, b"one\r\ntwo\n");
        assert!(sent.status.success(), "{way:?}: {}", String::from_utf8_lossy(&sent.stderr));
    }
    assert_eq!(node.run(&["consume", "n", "--exit-at-end"]), "one\ntwo\n");
    assert_eq!(node.run(&["queue", "receive", "n", "-n", "1", "--delete"]), "one\n");
    assert_eq!(node.run(&["broadcast", "listen", "n", "--exit-at-end"]), "one\ntwo\n");
}

#[test]
fn a_line_as_long_as_a_record_may_be_is_appended_and_a_longer_one_is_refused_with_the_length_that_help_tells()
{
    let (_dir, node) = Node::with_stream(&["n"]);
    let longest = tailwater_client::limits::RECORD_BYTES_MAX;
    let told = node.run(&["produce", "--help"]).replace(',', "");
    assert!(told.contains(&longest.to_string()), "{told}");

    let mut line = vec![b'x'; longest];
    node.output(&["produce", "n"], &line);
    assert_eq!(node.consume("n").iter().map(String::len).collect::<Vec<_>>(), [longest]);
    line.push(b'x');
    let refused = node.output(&["produce", "n"], &line);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains(&longest.to_string()), "{why}");
}

/// Two lines, one that is too long, and one more.
fn with_one_too_long(bytes_max: usize) -> Vec<u8> {
    [b"a=1\nb=2\n", vec![b'x'; bytes_max + 1].as_slice(), b"\nlast\n"].concat()
}

#[test]
fn after_a_line_that_is_too_long_the_log_queues_and_broadcasts_have_those_before_and_tell_how_to_go_on() {
    let (_dir, node) = Node::with_stream(&["n", "--shards", "2"]);
    node.run(&["queue", "create", "n"]);
    let refused = |args: &[&str], bytes_max: usize, expected: &[&str]| {
        let help = node.run(&[args[0], args[1], "--help"]).replace(',', "");
        assert!(help.contains("LF or CR LF") && help.contains(&bytes_max.to_string()), "{help}");
        let refused = node.output(args, &with_one_too_long(bytes_max));
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{args:?}");
        let line = format!("line 3 of standard input is longer than {bytes_max} bytes");
        assert!(told.contains(&line), "{told}");
        assert!(expected.iter().all(|text| told.contains(text)), "{told}");
    };
    refused(
        &["produce", "n", "-k", "=", "--shard", "1"],
        tailwater_client::limits::RECORD_BYTES_MAX,
        &[
            "2 records of 2 lines were appended; ",
            "the rest: tail -n +4 FILE | tailwater produce n --key-delimiter='=' --shard=1",
        ],
    );
    assert_eq!(node.run(&["consume", "n", "--exit-at-end", "--format", "%s %k %v\n"]), "1 a 1\n1 b 2\n");
    refused(
        &["broadcast", "publish", "n", "-k", "=", "--header", "from=a file"],
        tailwater_broadcast::limits::PAYLOAD_BYTES_MAX,
        &[
            "2 of 2 lines were published; ",
            "the rest: tail -n +4 FILE | tailwater broadcast publish n --key-delimiter='=' --header='from=a file'",
        ],
    );
    assert_eq!(node.run(&["broadcast", "listen", "n", "--exit-at-end", "--format", "%k %v\n"]), "a 1\nb 2\n");
    refused(&["queue", "send", "n"], 1 << 20, &["2 were sent, and nothing from there on"]);
    assert_eq!(node.run(&["queue", "receive", "n", "-n", "9"]), "a=1\nb=2\n");
}

#[test]
fn no_line_is_left_out_of_what_is_to_be_sent_again_after_one_that_the_node_refused() {
    let (_dir, node) = Node::with_stream(&["n", "--shards", "2"]);
    alter_limit(&node, "n", 1_000);
    // It may be compressed to less, so the node and not the command finds it too long.
    let mut noise = (1_u32, Vec::new());
    for _ in 0..2_000 {
        noise.0 = noise.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        noise.1.push(b'0' + (noise.0 >> 26) as u8);
    }
    let mut lines: Vec<Vec<u8>> = (1..=400).map(|number| format!("line {number}").into_bytes()).collect();
    lines[149] = noise.1;
    let produce = ["produce", "n", "--partitioner", "round-robin", "--codec", "lz4"];
    let refused = node.output(&produce, &lines.join(&b'\n'));
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("bytes"), "{told}");
    let first = told.split("tail -n +").nth(1).and_then(|rest| rest.split(' ').next());
    let first: usize = first.and_then(|first| first.parse().ok()).unwrap_or_else(|| panic!("{told}"));
    assert!((1..=150).contains(&first), "{told}");
    let rest = lines[first - 1..].iter().filter(|line| line.len() < 1_000).cloned().collect::<Vec<_>>();
    assert!(node.output(&produce, &rest.join(&b'\n')).status.success());
    let held = node.consume("n");
    for line in lines.iter().filter(|line| line.len() < 1_000) {
        let line = String::from_utf8_lossy(line);
        assert!(held.iter().any(|held| *held == line), "{line} is missing: {told}");
    }
}

#[test]
fn all_lines_before_one_that_is_too_long_are_published_although_most_were_on_their_way() {
    let (_dir, node) = Node::start_anew();
    let lines: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    let long = vec![b'x'; tailwater_broadcast::limits::PAYLOAD_BYTES_MAX + 1];
    let refused = node.output(&["broadcast", "publish", "n"], &[lines.as_bytes(), &long].concat());
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "a line is too long");
    assert!(told.contains("20000 of 20000 lines were published; "), "{told}");
    assert!(node.run(&["broadcast", "listen", "n", "--exit-at-end"]) == lines, "they are all there");
}

#[test]
fn producers_publishers_and_senders_wait_for_a_node_that_is_not_there_yet() {
    let (dir, mut node) = Node::with_stream(&["n"]);
    node.run(&["queue", "create", "n"]);
    let sqs = format!("http://{}", node.sqs);
    node.process.kill();
    for way in [["produce", "n"].as_slice(), &["queue", "send", "n"]] {
        let give_up = node.run_failing(&[way, &["--deadline-ms", "1"]].concat());
        assert!(give_up.contains("no node's admin HTTP answers"), "{give_up}");
    }
    let give_up = node.run_failing(&["queue", "--endpoint", &sqs, "send", "n", "--deadline-ms", "1"]);
    assert!(give_up.contains("nobody answers SQS's protocol"), "{give_up}");
    let ways = [
        ["produce", "n"].as_slice(),
        &["broadcast", "publish", "n"],
        &["queue", "send", "n"],
        &["queue", "--endpoint", &sqs, "send", "n"],
    ];
    let ways = ways.map(|way| {
        let errors = dir.path().join(format!("{} {}", way[0], way.len()));
        let mut child = started(node.command(way), &errors);
        child.stdin.take().expect("piped").write_all(b"one\n").expect("written");
        wait_for("it to tell that it waits", || {
            std::fs::read_to_string(&errors).ok().filter(|told| told.contains("waiting for it"))
        });
        (child, errors)
    });
    node.restart();
    for (mut child, errors) in ways {
        let ended = child.wait().expect("it ends");
        assert!(ended.success(), "{:?}", std::fs::read_to_string(errors));
    }
    assert_eq!(node.consume("n"), ["one"]);
    assert_eq!(node.run(&["broadcast", "listen", "n", "--exit-at-end"]), "one\n");
    assert_eq!(node.run(&["queue", "receive", "n", "-n", "3"]), "one\none\n");
}

#[test]
fn whatever_sends_lines_and_is_interrupted_tells_what_was_sent_and_how_to_go_on() {
    let (dir, node) = Node::with_stream(&["n"]);
    node.run(&["queue", "create", "n"]);
    let ways: [(&[&str], &[&str], &str, &str); 2] = [
        (
            &["produce", "n"],
            &["consume", "n", "--exit-at-end"],
            "interrupted: 3 records of 3 lines were appended",
            "tail -n +4 FILE | tailwater produce n",
        ),
        (
            &["broadcast", "publish", "n"],
            &["broadcast", "listen", "n", "--exit-at-end"],
            "3 of 3 lines were published; the rest",
            "tail -n +4 FILE | tailwater broadcast publish n",
        ),
    ];
    for (way, look, told_first, told_then) in ways {
        let errors = dir.path().join(format!("errors of {}", way[0]));
        let mut sender = started(node.command(way), &errors);
        let mut input = sender.stdin.take().expect("piped");
        input.write_all(b"one\ntwo\nthree\n").expect("written");
        wait_for("all lines to be sent", || (node.run(look).lines().count() == 3).then_some(()));
        interrupt(&sender);
        assert!(!sender.wait().expect("it ends").success());
        drop(input);
        let told = std::fs::read_to_string(&errors).expect("readable");
        assert!(
            told.contains("interrupted") && told.contains(told_first) && told.contains(told_then),
            "{told}"
        );
    }
    // Lines go to a queue ten together: of the last ones it has to be told whether they went.
    let errors = dir.path().join("errors of queue");
    let mut sender = started(node.command(&["queue", "send", "n"]), &errors);
    let mut input = sender.stdin.take().expect("piped");
    input.write_all("line\n".repeat(25).as_bytes()).expect("written");
    let peek = ["queue", "peek", "n", "-n", "1", "-o", "json"];
    wait_for("some lines to be sent", || (!node.run(&peek).is_empty()).then_some(()));
    interrupt(&sender);
    assert!(!sender.wait().expect("it ends").success());
    drop(input);
    let told = std::fs::read_to_string(&errors).expect("readable");
    let held = node.run(&["queue", "receive", "n", "-n", "25"]).lines().count();
    assert!(
        told.contains("interrupted") && told.contains(&format!("{held} were sent, and nothing")),
        "{told}"
    );
}

#[test]
fn a_handler_that_is_interrupted_gives_its_message_back() {
    let (dir, node) = Node::start_anew();
    node.run(&["queue", "create", "q"]);
    node.run(&["queue", "send", "q", "work"]);
    let (begun, errors) = (dir.path().join("begun"), dir.path().join("errors"));
    // The shell waits for it, and is not it.
    let command = format!("touch {}; sleep 3600; true", begun.display());
    let receive = ["queue", "receive", "q", "--exec", &command];
    let mut worker = started(node.command(&receive), &errors);
    wait_for("the handler to begin", || begun.exists().then_some(()));
    let handlers = children_of(worker.id());
    assert!(!handlers.is_empty());
    interrupt(&worker);
    worker.wait().expect("it ends");
    let told = std::fs::read_to_string(&errors).expect("readable");
    assert!(told.contains("interrupted") && told.contains("visible again"), "{told}");
    assert_eq!(node.run(&["queue", "receive", "q", "--visibility-timeout", "0"]), "work\n");
    wait_for("nothing of the handler to run", || handlers.iter().all(|id| !runs(*id)).then_some(()));

    // One that ends well although it is interrupted has handled its message.
    let begun = dir.path().join("begun-again");
    let command = format!("trap 'exit 0' INT; touch {}; while :; do sleep 0.01; done", begun.display());
    let mut worker = started(node.command(&["queue", "receive", "q", "--exec", &command]), &errors);
    wait_for("the handler to begin", || begun.exists().then_some(()));
    interrupt(&worker);
    worker.wait().expect("it ends");
    assert_eq!(node.run(&["queue", "receive", "q"]), "");
}

#[test]
fn a_message_that_is_answered_just_as_a_worker_is_interrupted_is_given_back_and_not_begun() {
    let dir = tempfile::tempdir().expect("a directory");
    let (begun, errors) = (dir.path().join("begun"), dir.path().join("errors"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let mut command = tailwater();
    let handler = format!("touch {}", begun.display());
    command.args(["queue", "--endpoint", &endpoint, "receive", "q", "--exec", &handler]);
    let mut worker = started(command, &errors);
    let (mut stream, _) = listener.accept().expect("the worker");
    for answer in [json!({"QueueUrl": "q"}), json!({"Attributes": {"VisibilityTimeout": "30"}})] {
        request(&mut stream);
        respond(&mut stream, &answer);
    }
    request(&mut stream);
    interrupt(&worker);
    assert_eq!(stream.read(&mut [0]).expect("an end"), 0, "it waits no longer");
    let message = json!({"Body": "work", "MessageId": "1", "ReceiptHandle": "first"});
    respond(&mut stream, &json!({"Messages": [message]}));
    let (mut stream, _) = listener.accept().expect("the worker");
    let asked = request(&mut stream);
    respond(&mut stream, &json!({}));
    assert_eq!((&asked["ReceiptHandle"], &asked["VisibilityTimeout"]), (&json!("first"), &json!(0)));
    assert!(worker.wait().expect("it ends").success());
    let told = std::fs::read_to_string(&errors).expect("readable");
    assert!(told.contains("interrupted") && told.contains("visible again"), "{told}");
    assert!(!begun.exists());
}

/// The body of the next request over a connection.
fn request(stream: &mut TcpStream) -> Value {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a request");
        head.extend(byte);
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    let length = head.split_once("content-length: ").expect("it has a body").1;
    let length = length.lines().next().expect("a number").parse().expect("a number");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a body");
    serde_json::from_slice(&body).expect("JSON")
}

fn respond(stream: &mut TcpStream, body: &Value) {
    let body = body.to_string();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes()).expect("sent");
}

/// The processes below one, however far.
fn children_of(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|id| id.parse().ok());
    children.flat_map(|child| [vec![child], children_of(child)].concat()).collect()
}

fn runs(process: u32) -> bool {
    std::path::Path::new(&format!("/proc/{process}")).exists()
}

#[test]
fn what_there_is_one_of_is_told_in_the_singular() {
    let (_dir, node) = Node::start_anew();
    assert_eq!(node.run(&["stream", "create", "n"]), "stream n with 1 shard created\n");
    let told = |args: &[&str]| {
        let output = node.output(args, b"one\n");
        assert!(output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(told(&["produce", "n"]), "1 record appended to n\n");
    let consumed = told(&["consume", "n", "--from", "start", "--exit-at-end", "--stats=60"]);
    assert!(
        consumed.contains("tailwater: 1 record, ") && consumed.contains("/s; 0 records behind"),
        "{consumed}"
    );
    assert_eq!(told(&["broadcast", "publish", "n"]), "1 event published in local/n\n");
    let heard = told(&["broadcast", "listen", "n", "--exit-at-end", "--share", "--stats"]);
    assert!(heard.contains("shared: 1 event, "), "{heard}");
}
