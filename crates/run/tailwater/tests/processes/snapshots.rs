//! `tailwater snapshot`: snapshots that are published, listed, loaded, and what they make unnecessary.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Node, wait_for};

fn produce(node: &Node, lines: impl Iterator<Item = String>) {
    let lines: String = lines.map(|line| line + "\n").collect();
    let produced = node.output(&["produce", "prices", "-k", "="], lines.as_bytes());
    assert!(produced.status.success(), "{}", String::from_utf8_lossy(&produced.stderr));
}

/// The snapshots of all shards.
fn listed(node: &Node) -> Vec<Value> {
    let text = node.run(&["snapshot", "ls", "prices", "-o", "json"]);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// First and next offset of each shard.
fn bounds(node: &Node, name: &str) -> Vec<[u64; 2]> {
    let told = node.get(&format!("/v1/streams/{name}")).expect("there is one");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let number = |value: &Value| value.as_u64().expect("a number");
    let shards = told["shards"].as_array().expect("shards").iter();
    shards.map(|shard| [number(&shard["log_start"]), number(&shard["next_offset"])]).collect()
}

#[test]
fn after_snapshots_and_trims_a_new_consumer_has_what_who_read_everything_has_also_when_a_publisher_was_killed()
 {
    let (_dir, node) = Node::with_stream(&["prices", "--shards", "2"]);
    let mut everything = BTreeMap::new();
    let mut round = |from: u32| {
        let numbers = from..from + 500;
        everything.extend(numbers.clone().map(|n| (format!("key {}", n % 300), format!("value {n}"))));
        produce(&node, numbers.map(|n| format!("key {}=value {n}", n % 300)));
    };
    round(0);
    node.run(&["snapshot", "publish", "prices"]);
    round(500);
    let published = node.run(&["snapshot", "publish", "prices", "--trim", "-o", "json"]);
    assert_eq!(published.lines().count(), 2, "{published}");
    assert_eq!(listed(&node).len(), 4, "two are kept of each shard");
    round(1_000);
    node.run(&["snapshot", "publish", "prices", "--trim"]);
    assert_eq!(node.run(&["snapshot", "publish", "prices", "-o", "json"]), "", "nothing has come since");
    let snapshots = listed(&node);
    assert_eq!(snapshots.len(), 4);
    for (shard, [start, _]) in (0..).zip(bounds(&node, "prices")) {
        let mut of_shard = snapshots.iter().filter(|snapshot| snapshot["shard"] == shard);
        let oldest = of_shard.next_back().expect("two of them");
        assert!(start > 0 && oldest["position"] == start, "shard {shard} begins at {start}: {oldest}");
    }
    round(1_500);

    // A publisher that is killed when some of its parts are there.
    let before = bounds(&node, "prices.snapshots");
    let mut publisher = node
        .command(&[
            "snapshot", "publish", "prices", "--lines", "-", "--up-to", "end", "--trim", "--keep", "1",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = publisher.stdin.take().expect("piped");
    let long = "x".repeat(200_000);
    for number in 0..40 {
        writeln!(lines, "wrong {number}\t{long}").expect("it reads");
    }
    wait_for("parts of a snapshot", || (bounds(&node, "prices.snapshots") != before).then_some(()));
    publisher.kill().expect("it runs");
    publisher.wait().expect("it ends");
    assert_eq!(listed(&node), {
        let now = |snapshot: &Value| {
            let shard = snapshot["shard"].as_u64().expect("a number") as usize;
            let end = bounds(&node, "prices")[shard][1];
            let mut snapshot = snapshot.clone();
            snapshot["updates_since"] = (end - snapshot["position"].as_u64().expect("a number")).into();
            snapshot
        };
        snapshots.iter().map(now).collect::<Vec<_>>()
    });

    let loaded = node.run(&["snapshot", "load", "prices"]);
    let loaded: BTreeMap<String, String> = loaded
        .lines()
        .map(|line| line.split_once('\t').expect("a key and a value"))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(loaded, everything);
}
