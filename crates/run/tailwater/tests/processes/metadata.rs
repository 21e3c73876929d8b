//! Nodes whose metadata is in a real ZooKeeper, beside segments in a real BookKeeper cluster.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::segments::cluster::Cluster;
use crate::segments::{alone, cluster};
use crate::support::load::{Lines, Load, Reader};
use crate::support::{Node, free_port, tailwater, told, wait_for};

const LINE_BYTES: usize = 200;

fn start(data: &Path, metadata: &str) -> Node {
    start_with(data, metadata, &[])
}

fn start_with(data: &Path, metadata: &str, more: &[(&str, &str)]) -> Node {
    let store = cluster().uri().to_string();
    let variables = [
        ("TAILWATER_SEGMENTS", store.as_str()),
        ("TAILWATER_METADATA", metadata),
        ("TAILWATER_ZOOKEEPER__SESSION_MS", "2000"),
        ("TAILWATER_SQS__ENABLED", "false"),
        ("TAILWATER_BROADCAST__ENABLED", "false"),
    ];
    Node::start_with(data, &[], &[&variables[..], more].concat())
}

/// A place for metadata in the cluster's own ZooKeeper.
fn place(name: &str) -> String {
    format!("zookeeper://{}/{name}", cluster().zookeeper)
}

/// The nodes that `tailwater node ls` shows: their roles, by the addresses of their admin HTTP.
fn roles(metadata: &str) -> Vec<(String, String)> {
    let (ok, listed, errors) =
        told(tailwater().args(["node", "ls", "--metadata", metadata, "-o", "json"]), "");
    assert!(ok, "{errors}");
    let of = |line: &str| {
        let node: Value = serde_json::from_str(line).expect("JSON");
        let addresses = node["addresses"].as_array().expect("a list");
        let admin = addresses.iter().find(|address| address["listener"] == "admin").expect("it has one");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        (text(&admin["address"]), text(&node["role"]))
    };
    listed.lines().map(of).collect()
}

fn wait_until_it_stands_by(node: &Node) {
    wait_for("the node to stand by", || {
        let (status, told) = node.told_at("/readyz")?;
        (status == 503 && told.contains("another node is active")).then_some(())
    });
}

fn wait_until_ready(node: &Node) {
    wait_for("the node to take over", || node.get("/readyz"));
}

fn json(node: &Node, args: &[&str]) -> Value {
    serde_json::from_str(&node.run(args)).expect("JSON")
}

#[test]
fn a_node_that_loses_its_data_directory_under_load_has_streams_groups_users_and_every_record_again() {
    let _alone = alone();
    let metadata = place("lost-directory");
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut node = start(&data, &metadata);
    node.run(&["stream", "create", "s", "--segment-bytes", "300000"]);
    node.run(&["stream", "create", "other", "--shards", "3"]);
    node.produce("other", &["one".to_owned(), "two".to_owned()]);
    node.run(&["consume", "other", "--group", "g", "--exit-at-end"]);
    let added = node.output(&["user", "add", "orders"], b"correct horse\n");
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    let known = |node: &Node| {
        let streams =
            ["s", "other"].map(|name| json(node, &["stream", "describe", name, "-o", "json"])["id"].clone());
        let group = json(node, &["group", "describe", "g", "-o", "json"]);
        let positions: Vec<Value> = group["shard_list"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|shard| shard["committed"].clone())
            .collect();
        let node_id = json_at(node)["id"].clone();
        (streams, positions, node.run(&["user", "ls", "-o", "json"]), node_id)
    };
    let before = known(&node);
    assert!(before.2.contains("orders") && !before.1.is_empty(), "{before:?}");

    let lines = Lines::new("a", LINE_BYTES);
    let reader = Reader::start(&node, "s", &dir.path().join("reader.log"), &[]);
    let load = Load::start(&node, "s", &lines);
    for round in 0..2 {
        reader.follow(&lines, load.wait_for_more(2_000), &format!("before loss {round}"));
        node.process.kill();
        std::fs::remove_dir_all(&data).expect("it goes");
        node.restart();
    }
    reader.follow(&lines, load.wait_for_more(2_000), "after the last loss");
    let sent = load.finish();
    reader.follow(&lines, sent, "to its end");
    assert!(lines.range(0..sent).eq(node.consume("s")), "once and in order");
    assert_eq!(known(&node), before);
    assert_eq!(node.consume("other").len(), 2);
}

fn json_at(node: &Node) -> Value {
    serde_json::from_str(&node.get("/v1/node").expect("it is ready")).expect("JSON")
}

#[test]
fn a_node_that_stands_by_takes_over_when_the_active_one_is_killed_or_stopped() {
    let _alone = alone();
    let metadata = place("standby");
    let dir = tempfile::tempdir().expect("a directory");
    // Where clients connect it is at one place, whichever node is there.
    let socket = dir.path().join("node.sock");
    let socket = [("TAILWATER_LISTEN__UNIX", socket.to_str().expect("text"))];
    let mut first = start_with(&dir.path().join("one"), &metadata, &socket);
    first.run(&["stream", "create", "s", "--segment-bytes", "300000"]);
    let mut second = first.start_beside(&dir.path().join("two"));
    wait_until_it_stands_by(&second);
    let mut expected =
        vec![(first.admin.clone(), "active".to_owned()), (second.admin.clone(), "standby".to_owned())];
    expected.sort();
    wait_for("both nodes to be listed", || {
        let mut listed = roles(&metadata);
        listed.sort();
        (listed == expected).then_some(())
    });
    let (ok, described, errors) =
        told(tailwater().args(["node", "describe", "nobody", "--metadata", &metadata]), "");
    assert!(!ok && errors.contains("there is no node \"nobody\""), "{described}{errors}");

    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&first, "s", &lines);
    load.wait_for_more(2_000);
    first.process.kill();
    wait_until_ready(&second);
    load.wait_for_more(2_000);
    first.restart_recovering();
    wait_until_it_stands_by(&first);
    assert!(second.process.stop(), "it ends well");
    wait_until_ready(&first);
    load.wait_for_more(2_000);
    let sent = load.finish();
    assert!(lines.range(0..sent).eq(first.consume("s")), "once and in order");
}

#[test]
fn a_node_that_was_frozen_while_another_took_over_acknowledges_nothing_more_and_ends() {
    let _alone = alone();
    let metadata = place("frozen");
    let dir = tempfile::tempdir().expect("a directory");
    let mut frozen = start(&dir.path().join("one"), &metadata);
    frozen.run(&["stream", "create", "s", "--segment-bytes", "300000"]);
    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&frozen, "s", &lines);
    let before = load.wait_for_more(2_000);
    frozen.process.signal(Signal::STOP);
    let next = start(&dir.path().join("two"), &metadata);
    next.produce("s", &["from the next one".to_owned()]);
    frozen.process.signal(Signal::CONT);
    assert!(!frozen.process.ended().success(), "it says that something is wrong");
    assert!(frozen.process.log().contains("has taken over: this one has ended"), "{}", frozen.process.log());
    let acked = load.kill();
    let read = next.consume("s");
    let at = read.iter().position(|line| line == "from the next one").expect("it is there");
    assert!(acked >= before && at as u64 >= acked, "{acked} of {at} were acknowledged");
    assert!(lines.range(0..at as u64).eq(read[..at].iter().cloned()), "once and in order");
    assert_eq!(read.len(), at + 1, "nothing comes behind it");
}

#[test]
fn without_zookeeper_appends_go_on_and_what_needs_it_is_refused_until_it_is_back() {
    let _alone = alone();
    let zookeeper = Cluster::zookeeper();
    let metadata = format!("zookeeper://{}/tailwater", zookeeper.zookeeper);
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = start(&dir.path().join("data"), &metadata);
    node.run(&["stream", "create", "s"]);
    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&node, "s", &lines);
    load.wait_for_more(1_000);
    zookeeper.kill_zookeeper();
    load.wait_for_more(1_000);
    let error = node.run_failing(&["stream", "create", "t"]);
    assert!(error.contains("no server of ZooKeeper answers"), "{error}");
    load.wait_for_more(1_000);
    zookeeper.restart_zookeeper();
    wait_for("streams to be created", || {
        node.output(&["stream", "create", "t"], b"").status.success().then_some(())
    });
    let sent = load.finish();
    assert!(lines.range(0..sent).eq(node.consume("s")), "once and in order");
    assert!(node.process.stop(), "it ends well");
    zookeeper.kill_zookeeper();
    node.restart_recovering();
    wait_for("the node to say what it waits for", || {
        let (status, told) = node.told_at("/readyz")?;
        (status == 503 && told.contains("the wait for ZooKeeper, which has the metadata")).then_some(())
    });
    zookeeper.restart_zookeeper();
    wait_until_ready(&node);
    assert!(lines.range(0..sent).eq(node.consume("s")), "after it had waited");
}

#[test]
fn metadata_that_is_not_a_directorys_own_and_what_would_be_lost_with_a_directory_are_refused() {
    let metadata = place("mine");
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = start(&dir.path().join("data"), &metadata);
    node.run(&["stream", "create", "s"]);
    assert!(node.process.stop(), "it ends well");
    for (value, told) in [
        (place("another"), "has the metadata of the cluster"),
        ("embedded".to_owned(), "was begun with metadata elsewhere"),
        (place("ledgers"), "is not Tailwater's"),
        (format!("zookeeper://127.0.0.1:{}", free_port()), "is no place for metadata"),
    ] {
        let log = node.restart_failing_with(&[("TAILWATER_METADATA", &value)]);
        assert!(log.contains(told), "{value}: {log}");
    }
    let queues = [("TAILWATER_METADATA", &*metadata), ("TAILWATER_SQS__ENABLED", "true")];
    let log = node.restart_failing_with(&queues);
    assert!(log.contains("name that node with local_node below [cluster]"), "{log}");

    let (_dir, mut embedded) = Node::with_stream(&["s"]);
    assert!(embedded.process.stop(), "it ends well");
    let variables = [
        ("TAILWATER_METADATA", &*metadata),
        ("TAILWATER_SEGMENTS", &*cluster().uri().to_string()),
        ("TAILWATER_CLUSTER__LOCAL_NODE", "here"),
    ];
    let log = embedded.restart_failing_with(&variables);
    assert!(log.contains("has metadata of its own"), "{log}");
}
