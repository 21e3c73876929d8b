//! How far behind groups are in seconds, of records whose times are known: as it is described, listed, watched, and
//! told at `/metrics`.

use bytes::Bytes;
use serde_json::Value;
use tailwater_format::{BatchBuilder, Codec};
use tailwater_kafka_wire::messages::membership::ConsumerGroupHeartbeatRequest;

use crate::support::raw::Raw;
use crate::support::{Follower, Node, wait_for};

const SECOND_MS: i64 = 1_000;
const HOUR_MS: i64 = 3_600 * SECOND_MS;

fn wall_ms() -> i64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as i64
}

/// A batch of records that were made at these times, with values of so many bytes.
fn batch(times: &[i64], bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new();
    for time in times {
        builder.append(None, Some(&vec![b'v'; bytes]), &[], *time).expect("small");
    }
    builder.finish(Codec::None)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn describe(node: &Node, group: &str) -> Value {
    json(&node.run(&["group", "describe", group, "-o", "json"]))
}

/// Some time on this machine's clock, which is the node's too.
struct Around {
    from_ms: i64,
    to_ms: i64,
}

impl Around {
    /// Whether this was, at that time, the age of what was made at `made_ms`; of nothing it is 0.
    fn is_age(&self, seconds: f64, made_ms: Option<i64>) -> bool {
        let ages = made_ms.map_or(0..=0, |made_ms| self.from_ms - made_ms..=self.to_ms - made_ms);
        ages.contains(&((seconds * 1e3).round() as i64))
    }
}

/// Whether all that is told of a group's lag in seconds in the stream `s` is the age of what was made at these times,
/// for each shard: the oldest record that was not consumed, if there is any.
fn check_lag(node: &Node, group: &str, oldest: &[Option<i64>]) {
    let from_ms = wall_ms();
    let described = describe(node, group);
    let table = node.run(&["group", "describe", group]);
    let listed = node.run(&["group", "ls", "-o", "json"]);
    let metric = |name: &str, labels: &str| {
        let series = format!("tailwater_group_{name}{{group=\"{group}\"{labels}}}");
        node.metric(&series).unwrap_or_else(|| panic!("there is no {series}"))
    };
    let told = metric("lag_seconds", "");
    let of_shards: Vec<f64> = (0..oldest.len())
        .map(|shard| metric("shard_lag_seconds", &format!(",stream=\"s\",shard=\"{shard}\"")))
        .collect();
    let around = Around { from_ms, to_ms: wall_ms() };

    let is = |what: &str, seconds: &Value, made_ms: Option<i64>| {
        let is_age = seconds.as_f64().is_some_and(|seconds| around.is_age(seconds, made_ms));
        assert!(is_age, "{what} of {group}: {seconds} s, of what was made at {made_ms:?}\n{described}");
    };
    let of_all = oldest.iter().flatten().min().copied();
    is("described", &described["lag_seconds"], of_all);
    is("at /metrics", &told.into(), of_all);
    let listed = listed.lines().map(json).find(|listed| listed["name"] == group).expect("listed");
    is("listed", &listed["lag_seconds"], of_all);
    for (shard, made_ms) in oldest.iter().enumerate() {
        is("described of a shard", &described["shard_list"][shard]["lag_seconds"], *made_ms);
        is("at /metrics of a shard", &of_shards[shard].into(), *made_ms);
    }
    // People see a tenth of a second.
    let row = table.lines().find_map(|line| line.trim().strip_prefix("lag-seconds")).expect("a row");
    let rounded: f64 = row.trim().parse().expect("seconds");
    let wider = Around { from_ms: from_ms - 50, to_ms: around.to_ms + 50 };
    assert!(wider.is_age(rounded, of_all), "{rounded} s in the table, of what was made at {of_all:?}");
}

#[test]
fn the_lag_in_seconds_is_the_age_of_the_oldest_record_that_is_left_and_was_not_consumed() {
    let dir = tempfile::tempdir().expect("a directory");
    // A member that says a single word is in its group to the end.
    let patient = [("TAILWATER_KAFKA__GROUPS__CONSUMER_SESSION_TIMEOUT_MS", "86400000")];
    let node = Node::start_with(&dir.path().join("data"), &[], &patient);
    node.run(&["stream", "create", "s", "--shards", "2"]);
    let mut raw = Raw::connect(&node);
    let now = wall_ms();
    let first = [3, 2, 1].map(|hours| now - hours * HOUR_MS);
    for time in first {
        raw.produce("s", 0, batch(&[time], 10));
    }
    // One batch: the ages of its first and its last record are told exactly.
    let together = [40, 30, 20].map(|seconds| now - seconds * SECOND_MS);
    raw.produce("s", 0, batch(&together, 10));
    let second = now - 60 * SECOND_MS;
    raw.produce("s", 1, batch(&[second], 10));
    let go_on = |group: &str, to: &str| node.run(&["group", "reset", group, "--stream", "s", "--to", to]);

    go_on("behind", "start");
    check_lag(&node, "behind", &[Some(first[0]), Some(second)]);
    go_on("behind", "1");
    check_lag(&node, "behind", &[Some(first[1]), None]);
    go_on("together", "-3");
    check_lag(&node, "together", &[Some(together[0]), Some(second)]);
    go_on("together", "-2");
    check_lag(&node, "together", &[Some(together[2]), Some(second)]);
    // One that has committed nothing begins at the start with all that it has.
    let joins = ConsumerGroupHeartbeatRequest {
        group_id: "new".to_owned(),
        member_id: "member".to_owned(),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec!["s".to_owned()]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    assert_eq!(raw.ask(&joins).error_code, 0);
    check_lag(&node, "new", &[Some(first[0]), Some(second)]);
    // Members that have read everything.
    node.run(&["consume", "s", "--group", "ahead", "--exit-at-end"]);
    check_lag(&node, "ahead", &[None, None]);

    // What was removed lags nobody.
    node.run(&["stream", "truncate", "s", "--shard", "0", "--before", "2"]);
    check_lag(&node, "behind", &[Some(first[2]), None]);
    check_lag(&node, "new", &[Some(first[2]), Some(second)]);
    node.run(&["stream", "truncate", "s", "--before", "end"]);
    for group in ["behind", "together", "new", "ahead"] {
        check_lag(&node, group, &[None, None]);
    }
    let late = wall_ms() - HOUR_MS;
    raw.produce("s", 1, batch(&[late], 10));
    for group in ["behind", "together", "new", "ahead"] {
        check_lag(&node, group, &[None, Some(late)]);
    }
}

#[test]
fn the_lag_in_seconds_of_records_that_retention_removed_is_that_of_the_oldest_one_left() {
    let (_dir, node) = Node::with_stream(&["s", "--segment-bytes", "4096", "--retention-bytes", "4096"]);
    node.run(&["group", "reset", "g", "--stream", "s", "--to", "start"]);
    let mut raw = Raw::connect(&node);
    let begin = wall_ms() - HOUR_MS;
    let mut times = Vec::new();
    let mut log_start = 0;
    for _ in 0..3 {
        for _ in 0..4 {
            times.push(begin + times.len() as i64 * 60 * SECOND_MS);
            raw.produce("s", 0, batch(&times[times.len() - 1..], 3_000));
        }
        // How far it goes, and when, is retention's own affair.
        log_start = wait_for("retention to remove more", || {
            let from_ms = wall_ms();
            let described = describe(&node, "g");
            let around = Around { from_ms, to_ms: wall_ms() };
            let shard = &described["shard_list"][0];
            let start = shard["log_start"].as_u64().expect("a number");
            // What goes while it is told may be told of by halves.
            if describe(&node, "g")["shard_list"][0]["log_start"] != start {
                return None;
            }
            let seconds = shard["lag_seconds"].as_f64().expect("it can be read");
            assert!(around.is_age(seconds, Some(times[start as usize])), "from {start} on: {described}");
            assert_eq!(described["lag_records"].as_u64(), Some(times.len() as u64 - start));
            (start > log_start).then_some(start)
        });
    }
    assert_eq!(describe(&node, "g")["shard_list"][0]["committed"], 0, "what was removed it never consumed");
}

#[test]
fn records_with_the_time_of_their_append_are_as_old_as_that_and_those_without_a_time_have_no_age() {
    let (_dir, node) = Node::with_stream(&["appended", "--timestamps", "append"]);
    node.run(&["stream", "create", "timeless"]);
    let mut raw = Raw::connect(&node);
    let before = wall_ms();
    raw.produce("appended", 0, batch(&[before - HOUR_MS], 10));
    let after = wall_ms();
    // What a client sends that gives its records no time.
    raw.produce("timeless", 0, batch(&[-1], 10));
    node.run(&["group", "reset", "g", "--stream", "appended", "--stream", "timeless", "--to", "start"]);
    let from_ms = wall_ms();
    let described = describe(&node, "g");
    let to_ms = wall_ms();
    let seconds = described["shard_list"][0]["lag_seconds"].as_f64().expect("known");
    let ages = from_ms - after..=to_ms - before;
    assert!(ages.contains(&((seconds * 1e3).round() as i64)), "{seconds} s");
    assert_eq!(described["shard_list"][1]["lag_records"], 1);
    assert_eq!(described["shard_list"][1]["lag_seconds"], Value::Null);
    assert_eq!(described["lag_seconds"].as_f64(), Some(seconds), "of all whose age is known");
    let of = |stream: &str| {
        let series = "tailwater_group_shard_lag_seconds";
        node.metric(&format!("{series}{{group=\"g\",stream=\"{stream}\",shard=\"0\"}}"))
    };
    assert!(of("appended").is_some_and(|told| told >= seconds));
    assert_eq!(of("timeless"), None);
}

#[test]
fn the_lag_in_seconds_that_is_watched_grows_with_the_clock_until_something_is_committed() {
    let (_dir, node) = Node::with_stream(&["s"]);
    let mut raw = Raw::connect(&node);
    let times = [2, 1].map(|hours| wall_ms() - hours * HOUR_MS);
    for time in times {
        raw.produce("s", 0, batch(&[time], 10));
    }
    let go_on = |to: &str| node.run(&["group", "reset", "g", "--stream", "s", "--to", to]);
    go_on("start");
    let from_ms = wall_ms();
    let watched = [
        Follower::start(&node, &["group", "ls", "--watch", "-o", "json"]),
        Follower::start(&node, &["group", "describe", "g", "--watch", "-o", "json"]),
    ];
    let next = |watch: &Follower| {
        let line = json(&watch.next());
        let told = (line["lag_records"].as_u64(), line["lag_seconds"].as_f64());
        let (Some(records), Some(seconds)) = told else { panic!("{line}") };
        let around = Around { from_ms, to_ms: wall_ms() };
        let oldest = times[times.len() - records as usize..].first().copied();
        assert!(around.is_age(seconds, oldest), "{line}");
        (records, seconds)
    };
    for watch in &watched {
        let (first, second) = (next(watch), next(watch));
        assert_eq!((first.0, second.0), (2, 2));
        assert!(first.1 < second.1, "{first:?} {second:?}");
    }
    for (to, records) in [("1", 1), ("end", 0)] {
        go_on(to);
        for watch in &watched {
            wait_for("what was committed to be seen", || (next(watch).0 == records).then_some(()));
        }
    }
}
