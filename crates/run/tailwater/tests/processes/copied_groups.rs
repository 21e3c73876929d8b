//! Groups that are moved from cluster to cluster, with kcat (librdkafka).

use std::path::Path;

use serde_json::Value;

use crate::copies::{cluster, place_in_a_chain, wait_until_copied};
use crate::support::kafka::{kcat, need};
use crate::support::{Node, wait_for};

/// Everything that a group has not read yet, as its only member reads it, which commits at its end.
fn read(node: &Node, group: &str) -> Vec<String> {
    let earliest = "auto.offset.reset=earliest";
    let text = kcat(node, &["-G", group, "s", "-e", "-q", "-f", "%s\\n", "-X", earliest], "");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn committed(node: &Node, group: &str) -> Option<u64> {
    let group: Value = serde_json::from_str(&node.get(&format!("/v1/groups/{group}"))?).ok()?;
    group["shard_list"].as_array()?.iter().map(|shard| shard["committed"].as_u64()).sum()
}

fn wait_until_committed(node: &Node, group: &str, records: u64) {
    wait_for("what the group has committed", || (committed(node, group)? == records).then_some(()));
}

fn produce(node: &Node, numbers: std::ops::Range<u32>) -> Vec<String> {
    let values: Vec<String> = numbers.map(|number| format!("{number:03}")).collect();
    let lines: String = values.iter().map(|value| format!("{value}:{value}\n")).collect();
    kcat(node, &["-P", "-t", "s", "-K", ":"], &lines);
    values
}

/// A stream in a chain of clusters, whose groups begin as soon as they have a member.
fn chain_of_quick_groups(dir: &Path) -> [Node; 3] {
    let quick = ("TAILWATER_KAFKA__GROUPS__INITIAL_REBALANCE_DELAY_MS", "0");
    let start = |name| Node::start_with(&dir.join(name), &[], &[("TAILWATER_CLUSTER__NAME", name), quick]);
    let nodes = ["us", "eu", "asia"].map(start);
    let [us, eu, asia] = &nodes;
    us.run(&["cluster", "add", "eu", &eu.data]);
    us.run(&["cluster", "add", "asia", &asia.data]);
    us.run(&["stream", "create", "s", "--shards", "2"]);
    place_in_a_chain(dir, us, "s");
    nodes
}

#[test]
fn a_group_that_is_moved_to_another_cluster_and_back_goes_on_where_it_was() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let [us, mut eu, asia] = chain_of_quick_groups(dir.path());

    let first = produce(&us, 0..30);
    assert_eq!(read(&us, "g"), first);
    // By the cluster between, and to the one whose copy is made from that.
    wait_until_committed(&asia, "g", 30);
    let second = produce(&us, 30..40);
    wait_until_copied(&us, &asia, "s");
    assert_eq!(read(&asia, "g"), second);
    wait_until_committed(&us, "g", 40);
    let third = produce(&us, 40..45);
    assert_eq!(read(&us, "g"), third);

    // What was committed while a cluster was away, and what is ahead of its copy.
    wait_until_committed(&eu, "g", 45);
    eu.process.kill();
    let fourth = produce(&us, 45..50);
    assert_eq!(read(&us, "g"), fourth);
    eu.restart();
    wait_until_committed(&asia, "g", 50);
    let fifth = produce(&us, 50..55);
    wait_until_copied(&us, &asia, "s");
    assert_eq!(read(&asia, "g"), fifth);
}

#[test]
fn a_cluster_whose_groups_are_its_own_is_told_of_no_others_and_tells_of_none() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let us = cluster(dir.path(), "us");
    let eu = cluster(dir.path(), "eu");
    let own = [("TAILWATER_CLUSTER__NAME", "asia"), ("TAILWATER_CLUSTER__GROUP_OFFSETS", "own")];
    let asia = Node::start_with(&dir.path().join("asia"), &[], &own);
    us.run(&["cluster", "add", "eu", &eu.data]);
    us.run(&["cluster", "add", "asia", &asia.data]);
    us.run(&["stream", "create", "s"]);
    us.run(&["stream", "place", "s", "--source", "us", "--to", "eu,asia"]);
    let all = produce(&us, 0..10);
    wait_until_copied(&us, &asia, "s");
    assert_eq!(read(&asia, "theirs"), all);
    assert_eq!(read(&us, "ours"), all);
    // Twice, so that each cluster has asked its neighbours since the first time.
    wait_until_committed(&eu, "ours", 10);
    assert_eq!(read(&us, "later"), all);
    wait_until_committed(&eu, "later", 10);
    assert_eq!((committed(&asia, "ours"), committed(&us, "theirs")), (None, None));
    assert_eq!(read(&asia, "ours"), all, "it begins there by itself");
}

#[test]
fn a_group_that_is_deleted_in_one_cluster_goes_in_all_and_does_not_come_back_when_one_is_started_again() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let [us, mut eu, asia] = chain_of_quick_groups(dir.path());
    let all = produce(&us, 0..20);
    assert_eq!(read(&us, "g"), all);
    wait_until_committed(&asia, "g", 20);

    us.run(&["group", "delete", "g"]);
    for node in [&eu, &asia] {
        wait_for("the group to go", || node.get("/v1/groups/g").is_none().then_some(()));
    }
    // It is told everything anew by both of its neighbours.
    eu.process.kill();
    eu.restart();
    assert_eq!(read(&us, "later"), all);
    wait_until_committed(&asia, "later", 20);
    for node in [&us, &eu, &asia] {
        assert_eq!(node.get("/v1/groups/g"), None);
    }
    assert_eq!(read(&us, "g"), all, "it begins anew");
    wait_until_committed(&asia, "g", 20);
}
