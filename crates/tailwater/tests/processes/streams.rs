//! Streams through the command line: create, append, read, describe, truncate, delete.

use crate::support::{Node, tailwater};

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("line {number}")).collect()
}

#[test]
fn what_is_produced_is_consumed_in_order_also_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start(&dir.path().join("data"));
    node.run(&["stream", "create", "orders"]);
    let lines = numbered(5_000);
    node.produce("orders", &lines);
    assert_eq!(node.consume("orders"), lines);
    assert!(node.process.stop(), "a graceful stop ends well");
    node.restart();
    assert_eq!(node.consume("orders"), lines);
    node.produce("orders", &numbered(3));
    assert_eq!(node.consume("orders").len(), 5_003);
}

#[test]
fn every_position_begins_where_it_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["stream", "create", "s", "--segment-bytes", "65536"]);
    node.produce("s", &numbered(10_000));
    let first = |from: &str| {
        let args = ["consume", "s", "--from", from, "--exit-at-end", "-n", "1", "--format", "%o %v %d"];
        node.run(&args)
    };
    assert!(first("start").starts_with("0 line 0 "));
    assert!(first("7000").starts_with("7000 line 7000 "));
    assert!(first("-10").starts_with("9990 line 9990 "));
    assert_eq!(first("end"), "");
    assert!(first("@0").starts_with("0 line 0 "));
    assert!(first("@2001-02-03T04:05:06Z").starts_with("0 line 0 "));
    assert_eq!(first("@2999-01-01T00:00:00+01:00"), "");
    assert!(first("tx:0").starts_with("0 line 0 "));
    let dlsn = first("4321").split(' ').next_back().expect("a DLSN").to_owned();
    assert!(first(&format!("dlsn:{dlsn}")).starts_with("4321 line 4321 "));
    let json = node.run(&["consume", "s", "--from", "3", "-n", "1", "-o", "json"]);
    let record: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&record["offset"], &record["value"]), (&3.into(), &"line 3".into()));
}

#[test]
fn consume_tells_how_far_behind_it_is_when_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["stream", "create", "s"]);
    node.produce("s", &numbered(5_000));
    let told = |more: &[&str]| {
        let args = ["consume", "s", "--exit-at-end", "--stats=60"];
        let output = node.command(&args).args(more).output().expect("it runs");
        assert!(output.status.success());
        assert_eq!(output.stdout.split(|byte| *byte == b'\n').count(), 5_001, "the records are undisturbed");
        String::from_utf8(output.stderr).expect("text")
    };
    let stats: serde_json::Value = serde_json::from_str(&told(&["-o", "json"])).expect("one line of JSON");
    assert_eq!(stats["records"], 5_000);
    let lag =
        serde_json::json!([{ "shard": 0, "next_offset": 5_000, "end_offset": 5_000, "records": 0, "ms": 0 }]);
    assert_eq!(stats["lag"], lag);
    assert!(told(&[]).starts_with("tailwater: 5000 records, "));
}

#[test]
fn keys_choose_shards_and_come_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["stream", "create", "keyed", "--shards", "4"]);
    let file = dir.path().join("input");
    let text: String = (0..400).map(|number| format!("key{}:value {number}\n", number % 20)).collect();
    std::fs::write(&file, text).expect("written");
    let path = file.to_str().expect("text");
    let acks = node.run(&["produce", "keyed", path, "--key-delimiter", ":", "-o", "json"]);
    let count: u64 = acks
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["count"]
                .as_u64()
                .expect("a number")
        })
        .sum();
    assert_eq!(count, 400);
    let out = node.run(&["consume", "keyed", "--exit-at-end", "--format", "%s %k %v\\n"]);
    let mut shard_of = std::collections::BTreeMap::new();
    let mut last = std::collections::BTreeMap::new();
    for line in out.lines() {
        let mut parts = line.splitn(3, ' ');
        let (shard, key) = (parts.next().expect("shard"), parts.next().expect("key"));
        let number: u32 = parts.next().expect("value")["value ".len()..].parse().expect("a number");
        assert_eq!(*shard_of.entry(key).or_insert(shard), shard, "one key, one shard");
        assert!(last.insert(key, number).is_none_or(|before| before < number), "order for each key");
    }
    assert_eq!((out.lines().count(), shard_of.len()), (400, 20));
}

#[test]
fn truncation_is_told_to_whoever_is_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["stream", "create", "s"]);
    node.produce("s", &numbered(100));
    node.run(&["stream", "truncate", "s", "--before", "40"]);
    assert_eq!(node.consume("s")[0], "line 40");
    let nothing = node.run(&["stream", "truncate", "s", "--before", "@2001-02-03T04:05:06Z"]);
    assert!(nothing.contains("begins at offset 40"), "{nothing}");
    assert!(node.run(&["stream", "truncate", "s", "--before", "-50"]).contains("begins at offset 50"));
    let behind = node.run_failing(&["consume", "s", "--from", "10", "--exit-at-end"]);
    assert!(behind.contains("50"), "{behind}");
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let nobody = tailwater().args(["--server", "127.0.0.1:1", "stream", "ls"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("tailwater serve"));

    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    node.run(&["stream", "create", "s"]);
    assert!(node.run_failing(&["stream", "create", "s"]).contains("already"));
    assert!(node.run_failing(&["stream", "create", "no/slash"]).contains("name"));
    assert!(node.run_failing(&["consume", "missing"]).contains("missing"));
    for command in [["consume", "missing"], ["produce", "missing"]] {
        assert!(node.run_failing(&command).contains("tailwater stream create"));
    }
    assert!(node.run_failing(&["stream", "delete", "missing"]).contains("tailwater stream ls"));
    assert!(node.run_failing(&["consume", "s", "--from", "99"]).contains("tailwater stream describe"));
    assert!(node.run_failing(&["stream", "create", "t", "--retention-ms", "5m"]).contains("--retention-ms"));
    let folder = dir.path().to_str().expect("text");
    assert!(node.run_failing(&["produce", "s", folder]).contains(folder));
    assert!(node.run_failing(&["serve", "--listen", "localhost:7420"]).contains("127.0.0.1:7420"));
    let misspelt = tailwater().args(["serve", "--config-check"]).env("TAILWATER_LSTEN__ADMIN", "x").output();
    let misspelt = String::from_utf8(misspelt.expect("it runs").stderr).expect("text");
    assert!(misspelt.contains("TAILWATER_LSTEN__ADMIN") && misspelt.contains("--print-config"), "{misspelt}");
    assert!(node.run_failing(&["consume", "s", "--from", "whenever"]).contains("OFFSET"));
    assert!(node.run_failing(&["consume", "s", "--from", "@noon"]).contains("RFC 3339"));
    assert!(
        node.run_failing(&["stream", "truncate", "s", "--before", "dlsn:1"]).contains("SEGMENT/ENTRY/SLOT")
    );
    assert!(node.run_failing(&["produce", "s", "/no/such/file"]).contains("/no/such/file"));
    assert!(node.run_failing(&["stream", "create", "t", "--shards", "0"]).contains("shards"));
}

#[test]
fn a_second_node_on_the_same_directory_refuses_to_start_and_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let node = Node::start(&data);
    let second = tailwater()
        .arg("serve")
        .arg("--data")
        .arg(&data)
        .args(["--admin", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--no-kafka"])
        .output()
        .expect("it runs");
    let why = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success());
    assert!(why.contains(&node.process.id().to_string()), "it names who has it: {why}");
    node.run(&["stream", "create", "still-works"]);
}
