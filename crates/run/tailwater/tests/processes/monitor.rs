//! `tailwater monitor` in a chain of clusters.

use serde_json::Value;

use crate::copies::{place_in_a_chain, three, wait_until_copied};
use crate::support::{Follower, wait_for};

/// Waits for a line of a cluster about which `holds` says so.
fn wait_for_line(monitor: &Follower, cluster: &str, holds: impl Fn(&Value) -> bool) -> Value {
    wait_for("a line of the monitor", || {
        let line: Value = serde_json::from_str(&monitor.try_next()?).expect("JSON");
        (line["cluster"] == cluster && holds(&line)).then_some(line)
    })
}

fn is(state: &'static str) -> impl Fn(&Value) -> bool {
    move |line| line["state"] == state
}

#[test]
fn a_monitor_tells_delays_of_each_cluster_and_a_stopped_producer_from_a_copy_that_stands_still() {
    let dir = tempfile::tempdir().expect("a directory");
    let [us, mut eu, asia] = three(dir.path());
    us.run(&["stream", "create", "s", "--shards", "2"]);
    us.produce("s", &["before".to_owned()]);
    place_in_a_chain(dir.path(), &us, "s");
    wait_until_copied(&us, &asia, "s");
    let monitor = Follower::start(&us, &["monitor", "s", "--every", "1", "-o", "json"]);
    for cluster in ["us", "eu", "asia"] {
        let line = wait_for_line(&monitor, cluster, is("no_producer"));
        assert_eq!(
            (&line["records"], &line["behind"]),
            (&0.into(), &0.into()),
            "what was there is not measured"
        );
    }
    let lines: Vec<String> = (0..100).map(|number| format!("line {number:03}")).collect();
    us.produce("s", &lines);
    let line = wait_for_line(&monitor, "asia", is("delivering"));
    assert!(line["bytes"].as_u64() >= line["records"].as_u64().map(|records| 8 * records), "{line}");
    for field in ["p50_ms", "p99_ms", "p999_ms", "p9999_ms", "max_ms"] {
        assert!(line[field].is_number(), "{line}");
    }
    wait_for_line(&monitor, "asia", is("no_producer"));

    eu.process.kill();
    us.produce("s", &lines);
    // It may look before all of them are there.
    wait_for_line(&monitor, "asia", |line| line["state"] == "copy_stuck" && line["behind"] == 100);
    assert!(wait_for_line(&monitor, "eu", is("away"))["why"].is_string());
    eu.restart();
    wait_for_line(&monitor, "asia", is("delivering"));
    wait_for_line(&monitor, "asia", is("no_producer"));

    let refused = us.run_failing(&["monitor", "s", "--clusters", "mars"]);
    assert!(refused.contains("cluster mars has no copy of s"), "{refused}");
    let table = us.run(&["monitor", "s", "--clusters", "eu", "--every", "1", "-n", "2"]);
    assert!(table.starts_with("STREAM") && !table.contains("asia"), "{table}");
    assert_eq!(table.lines().count(), 1 + 2 * 2, "{table}");
}
