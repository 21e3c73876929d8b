//! What a release has written is opened by this build, with nothing lost: after the release was stopped, and after a
//! kill -9. `tests/data/VERSION/make` says what is in it, and makes it again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Node, preloaded, run};

/// What is kept of release 0.1.0, in a folder.
fn kept(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/0.1.0").join(name)
}

/// The environment of programs whose wall clock is a day after release 0.1.0 wrote what is kept: messages are not kept
/// for ever.
fn a_day_later(dir: &Path) -> [(&'static str, String); 2] {
    let made = std::fs::read_to_string(kept("made")).expect("a file");
    let a_day_later = Duration::from_secs(made.trim().parse::<u64>().expect("seconds") + 24 * 3_600);
    let since_epoch = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    let behind = since_epoch.as_secs() as i64 - a_day_later.as_secs() as i64;
    [("LD_PRELOAD", preloaded(dir, "clock")), ("CLOCK_BEHIND_S", behind.to_string())]
}

/// A node on a copy of a data directory that release 0.1.0 wrote, and the environment that it has, [`a_day_later`].
fn opened(archive: &str) -> (TempDir, Node, [(&'static str, String); 2]) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut unpack = Command::new("tar");
    unpack.arg("--extract").arg("--gzip").arg("--file").arg(kept(archive)).arg("--directory").arg(dir.path());
    assert!(unpack.status().expect("tar is everywhere").success());
    let clock = a_day_later(dir.path());
    let environment = clock.each_ref().map(|(name, value)| (*name, value.as_str()));
    let node = Node::start_with(&dir.path().join("data"), &[], &environment);
    (dir, node, clock)
}

/// Everything that the script put into the directory is there.
fn has_everything(node: &Node) {
    let records =
        node.run(&["consume", "news", "--from", "start", "--exit-at-end", "--format", "%s %o %k %v\\n"]);
    let mut values = BTreeSet::new();
    let mut next: BTreeMap<&str, u64> = BTreeMap::new();
    for record in records.lines() {
        let [shard, offset, key, value] = record.splitn(4, ' ').collect::<Vec<_>>()[..] else {
            panic!("{record:?} is no record");
        };
        let expected = next.entry(shard).or_default();
        assert_eq!(offset, expected.to_string(), "shard {shard} has no gap");
        *expected += 1;
        let number: u64 = key.strip_prefix("key").and_then(|number| number.parse().ok()).expect("a key");
        assert_eq!(value, format!("record {number:05} of all that release 0.1.0 has written"));
        assert!(values.insert(number), "{number} is there once");
    }
    assert!(values.into_iter().eq(1..=3_000), "every record is there");
    assert_eq!(next.len(), 2, "both shards have records");
    let stream: Value = json(node, &["stream", "describe", "news", "-o", "json"]);
    let segments: usize = stream["shards"]
        .as_array()
        .expect("shards")
        .iter()
        .map(|shard| shard["segments"].as_array().map_or(0, Vec::len))
        .sum();
    assert!(segments >= 4, "{stream:#}");

    let group = json(node, &["group", "describe", "readers", "-o", "json"]);
    let shards = group["shard_list"].as_array().expect("shards");
    assert_eq!(shards.len(), 2, "{group:#}");
    assert!(shards.iter().all(|shard| shard["committed"] == 700), "{group:#}");

    let received = node.run(&["queue", "receive", "jobs", "-n", "30", "--delete"]);
    let jobs: BTreeSet<&str> = received.lines().collect();
    assert_eq!((jobs.len(), received.lines().count()), (15, 15), "five of twenty were deleted: {received}");
    let sent: BTreeSet<String> = (1..=20).map(|number| format!("job {number}")).collect();
    assert!(jobs.iter().all(|job| sent.contains(*job)), "{received}");
    let mut orders: BTreeMap<char, Vec<String>> = BTreeMap::new();
    for order in node.run(&["queue", "receive", "orders.fifo", "-n", "30", "--delete"]).lines() {
        let group = order.chars().nth("order ".len()).expect("a group");
        orders.entry(group).or_default().push(order.to_owned());
    }
    for group in ['a', 'b'] {
        let sent: Vec<String> = (1..=5).map(|number| format!("order {group}{number}")).collect();
        assert_eq!(orders.get(&group), Some(&sent), "a group's messages are in order");
    }

    let events = node.run(&["broadcast", "listen", "prices", "--exit-at-end", "--format", "%n %k %v\\n"]);
    assert!(events.lines().any(|event| event == "31 tea 31"), "{events}");
    assert!(events.contains("1 to 30 collected"), "the last one made the others obsolete: {events}");
}

#[test]
fn each_release_has_data_here_that_it_has_written() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let releases = std::fs::read_to_string(root.join("../../../RELEASES")).expect("a file");
    let releases = releases.lines().filter(|line| !line.starts_with('#'));
    let released: BTreeSet<&str> = releases.filter_map(|line| line.split(' ').next()).collect();
    let folders = std::fs::read_dir(root.join("tests/data")).expect("a folder");
    let folders: Vec<_> = folders.map(|entry| entry.expect("an entry").file_name()).collect();
    let kept: BTreeSet<&str> = folders.iter().filter_map(|name| name.to_str()).collect();
    assert_eq!(kept, released, "RELEASES, and what is in tests/data");
}

fn json(node: &Node, args: &[&str]) -> Value {
    serde_json::from_str(&node.run(args)).expect("JSON")
}

#[test]
fn what_release_0_1_0_has_written_is_there_after_it_was_stopped_and_what_is_written_behind_it_stays() {
    let (_dir, mut node, clock) = opened("stopped.tar.gz");
    has_everything(&node);
    // Its clock is the node's: by the wall clock of the day that this runs on, the record is of the node's far future.
    let mut produce = node.command(&["produce", "news"]);
    let produced = run(produce.envs(clock), b"one more\n");
    assert!(produced.status.success(), "{}", String::from_utf8_lossy(&produced.stderr));
    assert!(node.process.stop());
    node.restart();
    let values = node.consume("news");
    assert_eq!(values.len(), 3_001);
    assert!(values.iter().any(|value| value == "one more"));
    assert_eq!(node.run(&["queue", "receive", "jobs", "-n", "30"]), "", "what is deleted stays so");
}

#[test]
fn what_release_0_1_0_has_written_is_there_after_it_was_killed() {
    let (_dir, node, _clock) = opened("killed.tar.gz");
    has_everything(&node);
}
