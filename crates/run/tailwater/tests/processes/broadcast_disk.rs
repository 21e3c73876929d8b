//! Broadcasts that are kept on disk, through real nodes that are killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use crate::support::{Follower, Node, free_port, serve, wait_for};
use serde_json::Value;

const FSYNC: (&str, &str) = ("TAILWATER_BROADCAST__DURABILITY", "fsync");

fn view(node: &Node) -> Option<Value> {
    serde_json::from_str(&node.get("/v1/broadcast")?).ok()
}

fn publish(node: &Node, args: &[&str], lines: &str) {
    let output = node.output(&[&["broadcast", "publish"], args].concat(), lines.as_bytes());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn heard(node: &Node, args: &[&str]) -> Vec<String> {
    let args = [&["broadcast", "listen", "--exit-at-end"], args].concat();
    node.run(&args).lines().map(str::to_owned).collect()
}

/// A metric without labels; 0 if it is not there.
fn metric(node: &Node, name: &str) -> u64 {
    let page = node.get("/metrics").unwrap_or_default();
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse::<f64>().expect("a number") as u64)
}

fn wait_until_it_answers(node: &Node) {
    wait_for("the node to answer listeners", || (view(node)?["answers"] == true).then_some(()));
}

/// Waits until a node holds everything of its only stream up to a number.
fn holds(node: &Node, last: u64) {
    wait_for("the node to hold all", || {
        let streams: Value = serde_json::from_str(&node.get("/v1/broadcast/streams")?).ok()?;
        (streams[0]["held"] == last).then_some(())
    });
}

fn numbers(range: std::ops::Range<u64>) -> String {
    range.map(|n| format!("{n}\n")).collect()
}

#[test]
fn what_was_acknowledged_is_there_once_after_a_kill_and_a_token_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let lost = ("TAILWATER_BROADCAST__LOST_MS", "2000");
    let mut node = Node::start_with(&dir.path().join("data"), &[], &[FSYNC, lost]);
    let token = dir.path().join("token").display().to_string();
    publish(&node, &["s"], &numbers(0..100));
    assert_eq!(heard(&node, &["s", "--token-file", &token]).len(), 100);
    let replica = view(&node).expect("a view")["replica"].clone();

    // One publisher that lives on while the node is killed, and tries again.
    let mut publisher = node
        .command(&["broadcast", "publish", "s", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = publisher.stdin.take().expect("piped");
    let mut answers = BufReader::new(publisher.stdout.take().expect("piped")).lines();
    let mut fed = 100;
    for _ in 0..3 {
        for _ in 0..200 {
            writeln!(input, "{fed}").expect("it reads");
            fed += 1;
        }
        // Some of them are acknowledged, some are on their way.
        answers.next().expect("an answer").expect("text");
        node.process.kill();
        writeln!(input, "{fed}").expect("it reads");
        fed += 1;
        node.restart();
        wait_until_it_answers(&node);
    }
    drop(input);
    let answers: Vec<String> = answers.map(|answer| answer.expect("text")).collect();
    assert_eq!(answers.len() as u64, fed - 100 - 3);
    assert!(publisher.wait().expect("it ends").success());
    let expected: Vec<String> = (0..fed).map(|n| n.to_string()).collect();
    assert_eq!(heard(&node, &["s"]), expected);
    assert_eq!(heard(&node, &["s", "--token-file", &token]), expected[100..]);
    assert_eq!(view(&node).expect("a view")["replica"], replica);
    assert!(metric(&node, "tailwater_broadcast_loaded") >= 100);
    assert!(metric(&node, "tailwater_broadcast_journal_sync_seconds_count") > 0);

    // Without its disk it is another replica, and begins anew.
    node.process.kill();
    std::fs::remove_dir_all(dir.path().join("data/broadcast")).expect("it is there");
    node.restart();
    let other = view(&node).expect("a view")["replica"].clone();
    assert_ne!(other, replica);
    wait_until_it_answers(&node);
    publish(&node, &["s"], "anew\n");
    assert_eq!(heard(&node, &["s"]), ["anew"]);
}

#[test]
fn a_stream_can_be_kept_otherwise_than_the_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let memory = ("TAILWATER_BROADCAST__DURABILITY", "memory");
    let streams = ("TAILWATER_BROADCAST__STREAMS", "{\"local/kept\"={durability=\"interval\"}}");
    let mut node = Node::start_with(&dir.path().join("data"), &[], &[memory, streams]);
    for stream in ["kept", "forgotten"] {
        publish(&node, &[stream], "x\n");
    }
    node.process.kill();
    node.restart();
    wait_until_it_answers(&node);
    assert_eq!(heard(&node, &["kept", "--format", "%n %v\\n"]), ["1 x"]);
    publish(&node, &["kept"], "y\n");
    publish(&node, &["forgotten"], "z\n");
    assert_eq!(heard(&node, &["kept", "--format", "%n %v\\n"]), ["1 x", "2 y"]);
    assert_eq!(heard(&node, &["forgotten", "--format", "%n %v\\n"]), ["1 z"]);
    // What was kept can't be taken for the stream's events later, when others have gone on.
    node.process.kill();
    let refused = serve(&dir.path().join("data")).envs([memory]).output().expect("it starts");
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("remove"), "{error}");
}

#[test]
fn a_chain_whose_replicas_are_all_killed_goes_on_and_each_fetches_only_what_it_missed() {
    let dir = tempfile::tempdir().expect("a directory");
    let addresses: [String; 2] = std::array::from_fn(|_| format!("127.0.0.1:{}", free_port()));
    let configuration = ("TAILWATER_BROADCAST__CONFIGURATION", addresses[0].as_str());
    let mut nodes: Vec<Node> = addresses
        .iter()
        .enumerate()
        .map(|(n, own)| Node::start_at(&dir.path().join(n.to_string()), own, &[], &[FSYNC, configuration]))
        .collect();
    let in_chain = |nodes: &[Node], wanted: usize| {
        wait_for("the chain", || {
            let view = view(&nodes[0])?;
            let roles = view["chain"].as_array()?.iter().filter(|replica| replica["role"] != "joining");
            (roles.count() == wanted).then_some(())
        });
    };
    in_chain(&nodes, 2);
    publish(&nodes[0], &["s"], &numbers(0..990));
    // With these comes to the disk that all hold the others.
    publish(&nodes[0], &["s"], &numbers(990..1000));
    // One that stood still for a second was out of the chain, and may have to fetch them yet.
    holds(&nodes[1], 1000);
    // Then with this one it comes to its disk that all hold the others.
    publish(&nodes[0], &["s"], &numbers(1000..1001));
    holds(&nodes[1], 1001);
    nodes[1].process.kill();
    in_chain(&nodes, 1);
    publish(&nodes[0], &["s"], &numbers(1001..1010));
    nodes[1].restart();
    in_chain(&nodes, 2);
    wait_until_it_answers(&nodes[1]);
    // Nine, and some that were there but not known to be held.
    let followed = metric(&nodes[1], "tailwater_broadcast_followed_total");
    assert!((9..900).contains(&followed), "{followed}");
    publish(&nodes[0], &["s"], &numbers(1010..1100));
    let expected: Vec<String> = (0..1100).map(|n| n.to_string()).collect();
    holds(&nodes[1], 1100);
    assert_eq!(heard(&nodes[1], &["s"]), expected);

    for node in &mut nodes {
        node.process.kill();
    }
    // The one that does not decide first: it waits for the other.
    for node in nodes.iter_mut().rev() {
        node.restart();
    }
    in_chain(&nodes, 2);
    publish(&nodes[0], &["s"], &numbers(1100..1110));
    let expected: Vec<String> = (0..1110).map(|n| n.to_string()).collect();
    assert_eq!(heard(&nodes[0], &["s"]), expected);
    let followed = metric(&nodes[0], "tailwater_broadcast_followed_total")
        + metric(&nodes[1], "tailwater_broadcast_followed_total");
    assert!(followed < 900, "{followed}");
}

#[test]
fn a_region_that_was_killed_gets_from_the_other_only_what_it_missed() {
    let dir = tempfile::tempdir().expect("a directory");
    let addresses: [String; 2] = std::array::from_fn(|_| format!("127.0.0.1:{}", free_port()));
    let start = |region: &str, own: &str, other: (&str, &str)| {
        let regions = format!("{{{}=[\"{}\"]}}", other.0, other.1);
        let environment =
            [("TAILWATER_BROADCAST__REGION", region), ("TAILWATER_BROADCAST__REGIONS", regions.as_str())];
        Node::start_at(&dir.path().join(region), own, &[], &environment)
    };
    let mut us = start("us", &addresses[0], ("eu", &addresses[1]));
    let mut eu = start("eu", &addresses[1], ("us", &addresses[0]));
    publish(&us, &["prices"], &numbers(0..500));
    let far = Follower::of(&mut eu.command(&["broadcast", "listen", "us/prices"]));
    for n in 0..500 {
        assert_eq!(far.next(), n.to_string());
    }
    eu.process.kill();
    publish(&us, &["prices"], &numbers(500..510));
    eu.restart();
    for n in 500..510 {
        assert_eq!(far.next(), n.to_string());
    }
    assert_eq!(metric(&eu, "tailwater_broadcast_remote_total"), 10);
    // The stream's own region goes on with its numbers.
    us.process.kill();
    us.restart();
    wait_until_it_answers(&us);
    publish(&us, &["prices"], &numbers(510..520));
    for n in 510..520 {
        assert_eq!(far.next(), n.to_string());
    }
}

fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[test]
fn what_is_collected_leaves_the_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let checkpoints = ("TAILWATER_BROADCAST__CHECKPOINT_BYTES", "1048576");
    let mut node = Node::start_with(&dir.path().join("data"), &[], &[checkpoints]);
    let payload = "x".repeat(64 << 10);
    let lines: String = (0..1500).map(|n| format!("key-{}={n} {payload}\n", n % 7)).collect();
    publish(&node, &["s", "-k", "=", "--collect", "same-key"], &lines);
    let written = metric(&node, "tailwater_broadcast_journal_bytes_total");
    assert!(written > 90 << 20, "{written}");
    // The journal's files, of four MiB, and at most eight that are ready to be used again.
    wait_for("the disk to have what is left", || {
        let bytes = metric(&node, "tailwater_broadcast_disk_bytes");
        (metric(&node, "tailwater_broadcast_checkpoints_total") > 0 && bytes < 48 << 20).then_some(())
    });
    assert!(bytes_in(&dir.path().join("data/broadcast")) < 56 << 20);
    node.process.kill();
    node.restart();
    wait_until_it_answers(&node);
    let live: Vec<String> = heard(&node, &["s", "--format", "%k %v\\n"])
        .iter()
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .filter(|line| line.starts_with("key-"))
        .collect();
    let newest: Vec<String> = (1493..1500).map(|n| format!("key-{} {n}", n % 7)).collect();
    assert_eq!(live[live.len() - 7..], newest);
}
