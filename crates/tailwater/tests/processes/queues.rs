//! Queues of real processes: kill -9 under load, and the command line.

use std::sync::Arc;

use crate::support::sqs::{Client, World, drain, under_load};
use crate::support::{Node, wait_for};
use serde_json::{Value, json};

#[test]
fn what_was_sent_is_received_until_it_is_deleted_although_the_node_is_killed_again_and_again() {
    let dir = tempfile::tempdir().expect("a directory");
    // Checkpoints come and go while it runs.
    let environment = [("TAILWATER_QUEUES__CHECKPOINT_BYTES", "4194304")];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &environment);
    node.run(&["queue", "create", "q", "--visibility-timeout", "1"]);
    let world = Arc::new(World::default());
    let queue = format!("http://{}/000000000000/q", node.sqs);
    for round in 0..5 {
        let process = node.process.id();
        // By its id: the node itself is looked at by the load.
        let pid = rustix::process::Pid::from_raw(process.cast_signed()).expect("a process");
        under_load(&world, &[&node], &queue, 200 + 150 * round, || {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
        });
        node.process.kill();
        node.restart();
    }
    drain(&world, &Client::new(&node, &queue));
    assert!(node.process.stop(), "it stops in order");
}

#[test]
fn the_command_line_sends_looks_receives_and_moves() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["queue", "create", "dead"]);
    let args = [
        "queue",
        "create",
        "work",
        "--dead-letter-queue",
        "dead",
        "--max-receives",
        "1",
        "--order-hint",
        "2",
    ];
    assert!(node.run(&args).trim().ends_with("/000000000000/work"));
    let file = dir.path().join("message");
    std::fs::write(&file, "from\na file").expect("written");
    assert_eq!(node.run(&["queue", "send", "work", "one", "--attribute", "a=b"]), "1 sent\n");
    assert_eq!(node.run(&["queue", "send", "dead", "--file", file.to_str().expect("text")]), "1 sent\n");
    let described: Value =
        serde_json::from_str(&node.run(&["queue", "describe", "work", "-o", "json"])).expect("JSON");
    assert_eq!(described["attributes"]["ApproximateNumberOfMessages"], "1");
    assert_eq!(described["tags"]["tailwater-order-hint"], "2");
    let peeked: Value =
        serde_json::from_str(&node.run(&["queue", "peek", "dead", "-o", "json"])).expect("JSON");
    assert_eq!(
        (&peeked["Body"], &peeked["Attributes"]["ApproximateReceiveCount"]),
        (&json!("from\na file"), &json!("0"))
    );
    assert_eq!(node.run(&["queue", "receive", "dead", "--delete"]), "from\na file\n");

    // A handler that fails, and then there is no second chance.
    let failed = node.run_failing(&["queue", "receive", "work", "-n", "1", "--exec", "cat; exit 3"]);
    assert!(failed.contains("1 of 1 messages were not handled"), "{failed}");
    assert_eq!(node.run(&["queue", "receive", "work"]), "");
    assert_eq!(node.run(&["queue", "move", "dead"]), "1 moved\n");
    let handled =
        node.run(&["queue", "receive", "work", "--exec", "cat; echo \" by $TAILWATER_RECEIVE_COUNT\""]);
    assert_eq!(handled, "one by 1\n");
    let listed = node.run(&["queue", "ls", "-o", "json"]);
    let names: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["name"].clone())
        .collect();
    assert_eq!(names, ["dead", "work"]);
    node.run(&["queue", "purge", "work"]);
    node.run(&["queue", "delete", "work"]);
    let gone = node.run_failing(&["queue", "send", "work", "x"]);
    assert!(gone.contains("does not exist") && gone.contains("tailwater queue ls"), "{gone}");
}

#[test]
fn a_message_stays_invisible_for_as_long_as_its_handler_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["queue", "create", "q", "--visibility-timeout", "3"]);
    node.run(&["queue", "send", "q", "long"]);
    let (begun, over) = (dir.path().join("begun"), dir.path().join("over"));
    // Much longer than its visibility timeout; it ends when it is told to.
    let command = format!("touch {}; while [ ! -e {} ]; do sleep 0.1; done", begun.display(), over.display());
    let mut handling =
        node.command(&["queue", "receive", "q", "-n", "1", "--exec", &command]).spawn().expect("it starts");
    wait_for("the handler to begin", || begun.exists().then_some(()));
    // Three timeouts after it was received, by the queue's own clock: the receives wait at the node.
    for _ in 0..9 {
        assert_eq!(node.run(&["queue", "receive", "q", "--wait", "1"]), "", "it became visible");
    }
    std::fs::write(&over, "").expect("written");
    assert!(handling.wait().expect("it ends").success());
    let peeked = node.run(&["queue", "peek", "q", "-o", "json"]);
    assert_eq!(peeked, "", "it was handled, and deleted");
}
