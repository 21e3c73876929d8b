//! A data directory that is moved to a real BookKeeper and a real ZooKeeper: `tailwater migrate`.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::segments::{alone, cluster};
use crate::support::kafka::kcat;
use crate::support::load::Lines;
use crate::support::{Node, Process, tailwater, told, wait_for};

const LINE_BYTES: usize = 200;
const LINES: u64 = 5_000;

/// The command on a data directory, with a configuration as nodes have it.
fn migrate(data: &Path, variables: &[(&str, &str)]) -> Command {
    let mut command = tailwater();
    command.arg("migrate").arg("--data").arg(data).envs(variables.iter().copied());
    // As of the nodes in these tests.
    command.env("TAILWATER_JOURNAL__FILE_BYTES", (16 << 20).to_string());
    command
}

/// What Kafka's clients see of a stream: offsets and values.
fn read_by_kafka(node: &Node) -> String {
    kcat(node, &["-C", "-q", "-t", "s", "-o", "beginning", "-e", "-f", "%o %s\\n"], "")
}

/// What a group has committed, and the ids and names by which streams, users and the node are known.
fn known(node: &Node) -> Vec<Value> {
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let group = json(&node.run(&["group", "describe", "g", "-o", "json"]));
    let shards = group["shard_list"].as_array().expect("a list");
    let committed: Vec<Value> = shards.iter().map(|shard| shard["committed"].clone()).collect();
    let stream = json(&node.run(&["stream", "describe", "s", "-o", "json"]))["id"].clone();
    let id = json(&node.get("/v1/node").expect("it is ready"))["id"].clone();
    vec![Value::Array(committed), stream, id, node.run(&["user", "ls", "-o", "json"]).into()]
}

#[test]
fn a_directory_is_moved_over_a_kill_and_its_clients_go_on_where_they_were() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let (store, metadata) =
        (cluster().uri().to_string(), format!("zookeeper://{}/moved-in", cluster().zookeeper));
    let mut node = Node::start(&data);
    node.run(&["stream", "create", "s", "--segment-bytes", "100000"]);
    let lines = Lines::new("a", LINE_BYTES);
    node.produce("s", &lines.range(0..LINES).collect::<Vec<_>>());
    node.run(&["consume", "s", "--group", "g", "--count", "1000"]);
    let added = node.output(&["user", "add", "orders"], b"correct horse\n");
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    node.run(&["queue", "create", "q"]);
    node.run(&["queue", "send", "q", "hello"]);
    let (before, read) = (known(&node), read_by_kafka(&node));
    assert_eq!(read.lines().count() as u64, LINES);
    node.process.kill();

    let place = [
        ("TAILWATER_SEGMENTS", store.as_str()),
        ("TAILWATER_METADATA", metadata.as_str()),
        ("TAILWATER_ZOOKEEPER__SESSION_MS", "2000"),
        ("TAILWATER_CLUSTER__NODE", "n1"),
        ("TAILWATER_CLUSTER__LOCAL_NODE", "n1"),
    ];
    let log = node.restart_failing_with(&place);
    assert!(log.contains("`tailwater migrate` with this configuration"), "{log}");
    // Those queues would be nobody's.
    let elsewhere = [&place[..4], &[("TAILWATER_CLUSTER__LOCAL_NODE", "n2")]].concat();
    let (ok, _, errors) = told(&mut migrate(&data, &elsewhere), "");
    assert!(!ok && errors.contains("has 1 queues") && errors.contains("name this one, \"n1\""), "{errors}");
    let (ok, tried, errors) = told(migrate(&data, &place).args(["--dry-run", "-o", "json"]), "");
    let tried: Value = serde_json::from_str(&tried).unwrap_or_else(|_| panic!("{tried}{errors}"));
    assert!(ok && tried["is_moved"] == false, "{errors}");
    assert_eq!(tried["streams"][0]["records"], LINES);
    assert_eq!((&tried["others"]["groups"], &tried["others"]["users"]), (&1.into(), &1.into()));

    let log = dir.path().join("first.log");
    let mut first = Process::start(&mut migrate(&data, &place), &log);
    wait_for("ZooKeeper to have taken note", || first.log().contains("has taken note").then_some(()));
    first.signal(Signal::STOP);
    let (ok, _, errors) = told(&mut migrate(&data, &place), "");
    assert!(!ok && errors.contains(&format!("is in use by process {}", first.id())), "{errors}");
    first.kill();
    let (ok, moved, errors) = told(&mut migrate(&data, &place), "");
    assert!(ok && moved.contains("are still in") && errors.contains("nodes may start"), "{moved}{errors}");

    node.restart();
    assert_eq!(known(&node), before);
    assert_eq!(read_by_kafka(&node), read, "the same records at the same offsets");
    assert_eq!(node.run(&["queue", "receive", "q", "--delete"]), "hello\n");
    node.produce("s", &lines.range(LINES..LINES + 100).collect::<Vec<_>>());
    assert!(lines.range(0..LINES + 100).eq(node.consume("s")), "once and in order");
    let rest = node.run(&["consume", "s", "--group", "g", "--exit-at-end"]);
    assert!(lines.range(1_000..LINES + 100).eq(rest.lines().map(str::to_owned)), "from where the group was");
    // A second node has all of it without that directory, but for the queue.
    assert!(node.process.stop(), "it ends well");
    let (ok, removed, errors) = told(migrate(&data, &place).arg("--remove-segments"), "");
    assert!(ok && removed.contains("were removed from"), "{removed}{errors}");
    let second =
        [&place[..3], &[("TAILWATER_SQS__ENABLED", "false"), ("TAILWATER_BROADCAST__ENABLED", "false")]];
    let second = Node::start_with(&dir.path().join("second"), &[], &second.concat());
    assert!(lines.range(0..LINES + 100).eq(second.consume("s")), "from BookKeeper alone");
    drop(second);
    let own = [("TAILWATER_SEGMENTS", "embedded"), ("TAILWATER_METADATA", "embedded")];
    let log = node.restart_failing_with(&own);
    assert!(log.contains("or moved there"), "{log}");
}
