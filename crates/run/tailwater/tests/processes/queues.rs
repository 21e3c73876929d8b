//! Queues of real processes: kill -9 under load, and the command line.

use std::sync::Arc;

use crate::support::sqs::{Client, World, drain, under_load};
use crate::support::{Node, wait_for};
use serde_json::{Value, json};

#[test]
fn what_was_sent_is_received_until_it_is_deleted_although_the_node_is_killed_again_and_again() {
    killed_again_and_again(World::default(), "q", &[]);
}

#[test]
fn groups_stay_in_order_and_an_id_is_one_message_although_the_node_is_killed_again_and_again() {
    killed_again_and_again(World::fifo(), "q.fifo", &["--fifo"]);
}

/// Clients send to a queue and receive from it; the node is killed under that load, five times.
fn killed_again_and_again(world: World, name: &str, more: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    // Checkpoints come and go while it runs.
    let environment = [("TAILWATER_QUEUES__CHECKPOINT_BYTES", "4194304")];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &environment);
    node.run(&[&["queue", "create", name, "--visibility-timeout", "1"], more].concat());
    let world = Arc::new(world);
    let queue = format!("http://{}/000000000000/{name}", node.sqs);
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
    let (dir, node) = Node::start_anew();
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
    assert!(failed.contains("1 of 1 message was not handled"), "{failed}");
    assert_eq!(node.run(&["queue", "receive", "work"]), "");
    assert_eq!(node.run(&["queue", "move", "dead"]), "1 moved\n");
    let command = "cat; echo \" by $TAILWATER_RECEIVE_COUNT\"";
    let handled = node.run(&["queue", "receive", "work", "-n", "5", "--exec", command]);
    assert_eq!(handled, "one by 1\n");
    let listed = node.run(&["queue", "ls", "-o", "json"]);
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let shown: Vec<_> = listed.iter().map(|queue| (&queue["name"], &queue["messages"])).collect();
    assert_eq!(shown, [(&json!("dead"), &json!(0)), (&json!("work"), &json!(0))]);
    assert_eq!(node.run(&["queue", "purge", "work"]), "queue work purged\n");
    let deleted: Value =
        serde_json::from_str(&node.run(&["queue", "delete", "work", "-o", "json"])).expect("JSON");
    assert_eq!((&deleted["name"], &deleted["url"]), (&json!("work"), &listed[1]["url"]));
    let gone = node.run_failing(&["queue", "send", "work", "x"]);
    assert!(gone.contains("does not exist") && gone.contains("tailwater queue ls"), "{gone}");
}

#[test]
fn a_worker_that_was_not_told_how_many_goes_on_when_there_was_nothing_and_when_the_node_was_away() {
    let (dir, mut node) = Node::start_anew();
    node.run(&["queue", "create", "q"]);
    let refused = node.run_failing(&["queue", "receive", "q", "--wait", "0", "--exec", "cat"]);
    assert!(refused.contains("goes on for ever"), "{refused}");
    let handled = dir.path().join("handled");
    let command = format!("cat > {}.part; mv {0}.part {0}", handled.display());
    let errors = dir.path().join("errors");
    let mut worker = node
        .command(&["queue", "receive", "q", "--wait", "1", "--exec", &command])
        .stderr(std::fs::File::create(&errors).expect("created"))
        .spawn()
        .expect("it starts");
    wait_for("a receive after one that found nothing", || {
        (requests(&node, "ReceiveMessage") >= 2.0).then_some(())
    });
    node.run(&["queue", "send", "q", "late"]);
    let is_handled = |body: &str| {
        wait_for("it to be handled", || std::fs::read_to_string(&handled).ok().filter(|text| text == body));
    };
    is_handled("late");
    node.process.kill();
    wait_for("the worker to tell that it tries again", || {
        std::fs::read_to_string(&errors).ok().filter(|told| told.contains("trying again"))
    });
    node.restart();
    node.run(&["queue", "send", "q", "later"]);
    is_handled("later");
    worker.kill().expect("it runs");
    worker.wait().expect("it ends");
}

/// How many requests of an action there were.
fn requests(node: &Node, action: &str) -> f64 {
    let metrics = node.get("/metrics").unwrap_or_default();
    let name = format!("tailwater_sqs_requests_total{{action=\"{action}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0.0)
}

#[test]
fn what_can_not_be_sent_is_named_and_nothing_is_left_out_unsaid() {
    let (_dir, node) = Node::start_anew();
    node.run(&["queue", "create", "q"]);
    let send = |input: &[u8]| {
        let output = node.output(&["queue", "send", "q"], input);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    let receive = || node.run(&["queue", "receive", "q", "-n", "100", "--delete"]);
    let lines =
        |numbers: std::ops::Range<usize>| numbers.map(|number| format!("{number}\n")).collect::<String>();

    let said = send(format!("{}\n{}", lines(1..13), lines(14..20)).as_bytes());
    assert!(
        said.contains("line 13 is empty") && said.contains("12 were sent, and nothing from there on"),
        "{said}"
    );
    assert_eq!(receive(), lines(1..13));

    // What the node finds out: the others of its batch are sent, and no further batch.
    let said = send(format!("{}\u{1}\n{}", lines(1..13), lines(14..31)).as_bytes());
    assert!(said.contains("line 13 was not sent: Invalid character"), "{said}");
    assert!(said.contains("19 of the first 20 were sent, and nothing behind"), "{said}");
    assert_eq!(receive(), lines(1..13) + &lines(14..21));

    let said = send(b"1\n2\n\xff\n4\n");
    assert!(said.contains("line 3 is no text in UTF-8") && said.contains("2 were sent"), "{said}");
    assert_eq!(receive(), lines(1..3));

    let said = node.run_failing(&["queue", "send", "q", "one", "", "three"]);
    assert!(said.contains("message 2 is empty") && said.contains("1 was sent"), "{said}");

    let whole = node.output(&["queue", "send", "q", "--file", "-"], &vec![b'x'; (1 << 20) + 1]);
    let said = String::from_utf8_lossy(&whole.stderr);
    assert!(
        !whole.status.success() && said.contains("standard input is longer than 1048576 bytes"),
        "{said}"
    );
}

#[test]
fn a_message_stays_invisible_for_as_long_as_its_handler_runs() {
    let (dir, node) = Node::start_anew();
    node.run(&["queue", "create", "q", "--visibility-timeout", "30"]);
    node.run(&["queue", "send", "q", "long"]);
    let (begun, over) = (dir.path().join("begun"), dir.path().join("over"));
    // Much longer than its visibility timeout; it ends when it is told to.
    let command = format!("touch {}; while [ ! -e {} ]; do sleep 0.1; done", begun.display(), over.display());
    let mut handling =
        node.command(&["queue", "receive", "q", "-n", "1", "--exec", &command]).spawn().expect("it starts");
    wait_for("the handler to begin", || begun.exists().then_some(()));
    // Its timeout, and a third more: it is made longer after each third.
    while requests(&node, "ChangeMessageVisibility") < 4.0 {
        assert_eq!(node.run(&["queue", "receive", "q", "--wait", "1"]), "", "it became visible");
    }
    std::fs::write(&over, "").expect("written");
    assert!(handling.wait().expect("it ends").success());
    let peeked = node.run(&["queue", "peek", "q", "-o", "json"]);
    assert_eq!(peeked, "", "it was handled, and deleted");
}
