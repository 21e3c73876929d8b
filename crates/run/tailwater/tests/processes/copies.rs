//! Streams that are copied from cluster to cluster. A cluster is a node here.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::support::kafka::{kcat, kcat_failing, need};
use crate::support::{Node, run, tailwater, wait_for, wait_for_or_tell};

const CHAIN: &str = r#"
[[cluster]]
name = "us"
[[cluster]]
name = "eu"
[[cluster]]
name = "asia"
[[link]]
between = ["us", "eu"]
cost_per_gb = 0.05
delay_ms = 40
[[link]]
between = ["eu", "asia"]
cost_per_gb = 0.08
delay_ms = 70
"#;

pub(crate) fn cluster(dir: &Path, name: &str) -> Node {
    Node::start_with(&dir.join(name), &[], &[("TAILWATER_CLUSTER__NAME", name)])
}

/// Three clusters of which `us` knows the others.
pub(crate) fn three(dir: &Path) -> [Node; 3] {
    let [us, eu, asia] = ["us", "eu", "asia"].map(|name| cluster(dir, name));
    us.run(&["cluster", "add", "eu", &eu.data]);
    us.run(&["cluster", "add", "asia", &asia.data]);
    [us, eu, asia]
}

pub(crate) fn place_in_a_chain(dir: &Path, us: &Node, stream: &str) {
    let costs = dir.join("costs.toml");
    std::fs::write(&costs, CHAIN).expect("a file");
    let costs = costs.to_str().expect("text");
    us.run(&["stream", "place", stream, "--source", "us", "--to", "eu,asia", "--costs", costs]);
}

pub(crate) fn stream(node: &Node, name: &str) -> Option<Value> {
    serde_json::from_str(&node.get(&format!("/v1/streams/{name}"))?).ok()
}

/// Start and end of each shard.
pub(crate) fn bounds(node: &Node, name: &str) -> Option<Vec<(u64, u64)>> {
    let of = |shard: &Value| Some((shard["log_start"].as_u64()?, shard["next_offset"].as_u64()?));
    stream(node, name)?["shards"].as_array()?.iter().map(of).collect()
}

/// Waits until `copy` has all that `source` has.
pub(crate) fn wait_until_copied(source: &Node, copy: &Node, name: &str) {
    let tell = || {
        format!(
            "{}\n{:?}\n{:?}",
            source.run(&["tree", "show", name]),
            bounds(source, name),
            bounds(copy, name)
        )
    };
    wait_for_or_tell("the copy", || (bounds(source, name)? == bounds(copy, name)?).then_some(()), tell);
}

/// Every record with its shard and offset, in the order of these.
pub(crate) fn records(node: &Node, name: &str) -> Vec<String> {
    let text =
        node.run(&["consume", name, "--from", "start", "--exit-at-end", "--format", "%p %o %t %k %v\\n"]);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_by_key(|line| {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().unwrap_or_default());
        (words.next(), words.next())
    });
    lines
}

/// Appends numbered records to a stream until it is told to stop; how many.
pub(crate) fn keep_producing(node: &Node, stream: &str, stop: &Arc<AtomicBool>) -> JoinHandle<usize> {
    let (stream, stop, admin) = (stream.to_owned(), Arc::clone(stop), node.admin.clone());
    std::thread::spawn(move || {
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            let lines: String = (sent..sent + 500).map(|number| format!("{number} {:0>200}\n", "")).collect();
            let mut command = tailwater();
            command.args(["--server", &admin, "produce", &stream]);
            assert!(run(&mut command, lines.as_bytes()).status.success(), "the source takes everything");
            sent += 500;
        }
        sent
    })
}

#[test]
fn a_chain_of_clusters_has_the_sources_very_records_although_each_copy_is_killed_under_load() {
    let dir = tempfile::tempdir().expect("a directory");
    let [us, mut eu, mut asia] = three(dir.path());
    us.run(&["stream", "create", "orders", "--shards", "3", "--segment-bytes", "1000000"]);
    us.produce("orders", &(0..5_000).map(|number| format!("before {number}")).collect::<Vec<_>>());
    place_in_a_chain(dir.path(), &us, "orders");

    let stop = Arc::new(AtomicBool::new(false));
    let producing = keep_producing(&us, "orders", &stop);
    let end =
        |node: &Node| bounds(node, "orders").map(|bounds| bounds.iter().map(|(_, end)| end).sum::<u64>());
    wait_for("records in the last cluster", || end(&asia).filter(|end| *end > 5_000));
    for round in 0..2 {
        eu.process.kill();
        let before = end(&us).expect("the source");
        wait_for("more at the source", || end(&us).filter(|end| *end >= before + 1_000));
        eu.restart();
        wait_for("the copy to go on", || end(&asia).filter(|end| *end >= before + 500));
        asia.process.kill();
        asia.restart();
        let end = wait_for("the copy's end", || end(&asia));
        assert!(end >= before, "round {round}: what was copied is durable");
    }
    stop.store(true, Ordering::Relaxed);
    let sent = producing.join().expect("it ends");
    wait_until_copied(&us, &eu, "orders");
    wait_until_copied(&us, &asia, "orders");
    let source = records(&us, "orders");
    assert_eq!(source.len(), 5_000 + sent);
    assert!(records(&eu, "orders") == source, "eu has the source's records");
    assert!(records(&asia, "orders") == source, "asia has the source's records");

    let ids = [&us, &eu, &asia].map(|node| stream(node, "orders").expect("the stream")["id"].clone());
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let terms = |node: &Node| -> Vec<u64> {
        let stream = stream(node, "orders").expect("the stream");
        stream["shards"]
            .as_array()
            .expect("shards")
            .iter()
            .filter_map(|shard| shard["term"].as_u64())
            .collect()
    };
    assert_eq!(terms(&us), terms(&asia), "terms are the source's, whatever restarts");
    let shown = wait_for("both hops without anything behind", || {
        let shown: Value = serde_json::from_str(&us.run(&["tree", "show", "orders", "-o", "json"])).ok()?;
        let hops = shown["hops"].as_array()?;
        hops.iter()
            .all(|hop| hop["behind_records"] == 0 && hop["is_copying"] == true)
            .then_some(shown.clone())
    });
    let ways: Vec<_> =
        shown["hops"].as_array().expect("hops").iter().map(|hop| (&hop["from"], &hop["to"])).collect();
    assert_eq!(format!("{ways:?}"), r#"[(String("us"), String("eu")), (String("eu"), String("asia"))]"#);
    for (series, told) in [
        ("tailwater_copy_hops_copying", 1.0),
        ("tailwater_copy_behind_records{stream=\"orders\"}", 0.0),
        ("tailwater_copy_waiting_shards{stream=\"orders\"}", 0.0),
    ] {
        wait_for(&format!("{series} {told}"), || (asia.metric(series) == Some(told)).then_some(()));
    }
    let from_memory = us.metric("tailwater_copy_read_bytes_total{from=\"memory\"}");
    assert!(
        from_memory.is_some_and(|bytes| bytes > 0.0),
        "new records are copied from memory: {from_memory:?}"
    );
}

#[test]
fn kafkas_clients_read_a_copy_and_are_told_where_its_source_is_and_wait_for_offsets_ahead_of_it() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let [us, mut eu, asia] = three(dir.path());
    us.run(&["stream", "create", "orders"]);
    place_in_a_chain(dir.path(), &us, "orders");
    kcat(&us, &["-P", "-t", "orders"], "one\ntwo\nthree\n");
    wait_until_copied(&us, &asia, "orders");
    assert_eq!(
        kcat(&asia, &["-C", "-t", "orders", "-e", "-q", "-f", "%o %s\\n"], ""),
        "0 one\n1 two\n2 three\n"
    );

    let refused = kcat_failing(&asia, &["-P", "-t", "orders"], "four\n");
    assert!(refused.contains("Policy"), "{refused}");
    let refused = String::from_utf8(asia.output(&["produce", "orders"], b"four\n").stderr).expect("text");
    assert!(refused.contains("its source is in the cluster \"us\""), "{refused}");
    let refused = asia.run_failing(&["stream", "truncate", "orders", "--before", "1"]);
    assert!(refused.contains("its source is in the cluster \"us\""), "{refused}");

    // What the source has by now the copy gets when the one between runs again. Whoever wants it waits.
    eu.process.kill();
    kcat(&us, &["-P", "-t", "orders"], "four\nfive\n");
    let fetches = || asia.metric("tailwater_kafka_requests_total{api=\"Fetch\"}").unwrap_or_default();
    let before = fetches();
    let ahead = {
        let kafka = asia.kafka.clone();
        std::thread::spawn(move || {
            let mut command = std::process::Command::new("kcat");
            command.args(["-b", &kafka, "-C", "-t", "orders", "-o", "4", "-c", "1", "-q", "-f", "%o %s\\n"]);
            String::from_utf8(run(&mut command, b"").stdout).expect("text")
        })
    };
    wait_for("the consumer to ask for what is ahead", || (fetches() > before).then_some(()));
    assert!(!ahead.is_finished(), "it waits");
    eu.restart();
    assert_eq!(ahead.join().expect("it ends"), "4 five\n");
    assert_eq!(asia.consume("orders"), ["one", "two", "three", "four", "five"]);

    // What the source does not have either is no offset of the stream.
    let beyond = ["-C", "-t", "orders", "-o", "1000", "-c", "1", "-q", "-X", "auto.offset.reset=error"];
    let refused = kcat_failing(&asia, &beyond, "");
    assert!(refused.contains("out of range") || refused.contains("No offset"), "{refused}");

    // What the source removes, its copies remove.
    us.run(&["stream", "truncate", "orders", "--before", "2"]);
    wait_until_copied(&us, &asia, "orders");
    assert_eq!(asia.consume("orders"), ["three", "four", "five"]);
}

#[test]
fn a_copy_that_is_behind_what_the_source_has_removed_goes_on_behind_the_gap() {
    let dir = tempfile::tempdir().expect("a directory");
    let [us, mut eu, _asia] = three(dir.path());
    us.run(&["stream", "create", "orders"]);
    us.produce("orders", &["a", "b", "c", "d"].map(str::to_owned));
    us.run(&["stream", "truncate", "orders", "--before", "2"]);
    us.run(&["stream", "place", "orders", "--source", "us", "--to", "eu"]);
    wait_until_copied(&us, &eu, "orders");
    assert_eq!(
        eu.run(&["consume", "orders", "--exit-at-end", "--format", "%o %v\\n", "--from", "start"]),
        "2 c\n3 d\n"
    );

    eu.process.kill();
    us.produce("orders", &["e", "f", "g"].map(str::to_owned));
    us.run(&["stream", "truncate", "orders", "--before", "6"]);
    eu.restart();
    wait_until_copied(&us, &eu, "orders");
    assert_eq!(
        eu.run(&["consume", "orders", "--exit-at-end", "--format", "%o %v\\n", "--from", "start"]),
        "6 g\n"
    );
    eu.process.kill();
    eu.restart();
    us.produce("orders", &["h".to_owned()]);
    wait_until_copied(&us, &eu, "orders");
    assert_eq!(eu.consume("orders"), ["g", "h"]);

    // Without it in the plan the copy stays as it is.
    us.run(&["stream", "place", "orders", "--source", "us", "--to", "none"]);
    wait_for("the copying to end", || (eu.metric("tailwater_copy_hops")? == 0.0).then_some(()));
    us.produce("orders", &["i".to_owned()]);
    assert_eq!(eu.consume("orders"), ["g", "h"]);
}

#[test]
fn what_can_not_be_placed_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let nameless = Node::start(&dir.path().join("nameless"));
    nameless.run(&["stream", "create", "s"]);
    let refused = nameless.run_failing(&["stream", "place", "s", "--source", "us", "--to", "eu"]);
    assert!(refused.contains("set name below [cluster]"), "{refused}");
    let us = cluster(dir.path(), "us");
    us.run(&["stream", "create", "s"]);
    let refused = us.run_failing(&["stream", "place", "s", "--source", "us", "--to", "eu"]);
    assert!(refused.contains("tailwater cluster add eu"), "{refused}");
    let refused = us.run_failing(&["stream", "place", "s", "--source", "eu", "--to", "us"]);
    assert!(refused.contains("ask a node there"), "{refused}");
    let refused = us.run_failing(&["cluster", "add", "eu", "nowhere"]);
    assert!(refused.contains("[listen] data"), "{refused}");
    us.run(&["cluster", "add", "eu", &nameless.data]);
    let refused = us.run_failing(&["cluster", "add", "eu", &nameless.data]);
    assert!(refused.contains("remove it first"), "{refused}");
    us.run(&["stream", "place", "s", "--source", "us", "--to", "eu"]);
    let refused = us.run_failing(&["cluster", "remove", "eu"]);
    assert!(refused.contains("place that stream without it first"), "{refused}");
    wait_for("the tree to tell that it is interrupted", || {
        us.run(&["tree", "show", "s"]).contains("interrupted").then_some(())
    });
    us.run(&["stream", "place", "s", "--source", "us", "--to", "none"]);
    us.run(&["cluster", "remove", "eu"]);
    assert!(!us.run(&["cluster", "ls"]).contains("eu"));
}
