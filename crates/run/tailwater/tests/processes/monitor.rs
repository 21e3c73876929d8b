//! `tailwater monitor` in a chain of clusters.

use serde_json::Value;

use crate::copies::{cluster, place_in_a_chain, wait_until_copied};
use crate::support::{Follower, Node, free_port, wait_for};

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

/// Whether everything that came was compared, so many records at least, and was what was written.
fn is_as_written(records: u64) -> impl Fn(&Value) -> bool {
    move |line| {
        let checked = &line["checked"];
        assert_eq!(
            (&checked["differing_ranges"], &checked["lost_records"]),
            (&0.into(), &0.into()),
            "{line}"
        );
        assert_eq!(checked["read_bytes"], checked["written_bytes"], "{line}");
        checked["records"].as_u64() >= Some(records) && checked["read_bytes"].as_u64() > Some(0)
    }
}

#[test]
fn a_monitor_tells_delays_of_each_cluster_and_a_stopped_producer_from_a_copy_that_stands_still() {
    let dir = tempfile::tempdir().expect("a directory");
    let [us, mut eu] = ["us", "eu"].map(|name| cluster(dir.path(), name));
    // Whoever reads there reads its segments.
    let asia = Node::start_with(
        &dir.path().join("asia"),
        &[],
        &[("TAILWATER_CLUSTER__NAME", "asia"), ("TAILWATER_LOG__CELLS", "false")],
    );
    us.run(&["cluster", "add", "eu", &eu.data]);
    us.run(&["cluster", "add", "asia", &asia.data]);
    us.run(&["stream", "create", "s", "--shards", "2"]);
    us.produce("s", &["before".to_owned()]);
    place_in_a_chain(dir.path(), &us, "s");
    wait_until_copied(&us, &asia, "s");
    let http = format!("127.0.0.1:{}", free_port());
    let flags = [
        "--every",
        "1",
        "--stuck-after",
        "1",
        "-o",
        "json",
        "--slo",
        "0.5",
        "--delay-ms",
        "3600000",
        "--http",
        &http,
    ];
    let monitor = Follower::start(&us, &[&["monitor", "s"], &flags[..]].concat());
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
    for field in ["p50_ms", "p90_ms", "p99_ms", "p999_ms", "p9999_ms", "max_ms", "clock_error_ms"] {
        assert!(line[field].is_number(), "{line}");
    }
    assert_eq!((&line["hop"]["from"], &line["cache_share"]), (&"eu".into(), &0.0.into()), "{line}");
    let objectives = line["objectives"].as_array().expect("a list");
    let broken: Vec<_> = objectives.iter().map(|of| (&of["objective"], &of["is_broken"])).collect();
    assert_eq!(broken, [(&"cache_bytes".into(), &true.into()), (&"delay".into(), &false.into())], "{line}");
    let line =
        wait_for_line(&monitor, "asia", |line| line["state"] == "no_producer" && is_as_written(1)(line));
    let compared = line["checked"]["records"].as_u64().expect("a number");
    let page =
        ureq::get(format!("http://{http}/metrics")).call().expect("an answer").body_mut().read_to_string();
    let page = page.expect("text");
    for series in [
        "tailwater_monitor_state{stream=\"s\",cluster=\"us\",state=\"no_producer\"} 1",
        "tailwater_monitor_objective_broken{stream=\"s\",cluster=\"asia\",objective=\"cache_bytes\"} 1",
        "tailwater_monitor_lost_records_total{stream=\"s\",cluster=\"eu\"} 0",
    ] {
        assert!(page.contains(series), "{series} in {page}");
    }

    eu.process.kill();
    us.produce("s", &lines);
    // It may look before all of them are there.
    let stuck =
        wait_for_line(&monitor, "asia", |line| line["state"] == "copy_stuck" && line["behind"] == 100);
    assert!(stuck["stuck"].as_str().is_some_and(|why| why.ends_with("us to eu: eu is away")), "{stuck}");
    assert!(wait_for_line(&monitor, "eu", is("away"))["why"].is_string());
    eu.restart();
    wait_for_line(&monitor, "asia", |line| line["records"].as_u64() > Some(0));
    wait_for_line(&monitor, "asia", |line| {
        line["state"] == "no_producer" && is_as_written(compared + 100)(line)
    });

    let refused = us.run_failing(&["monitor", "s", "--clusters", "mars"]);
    assert!(refused.contains("cluster mars has no copy of s"), "{refused}");
    let table = us.run(&["monitor", "s", "--clusters", "eu", "--every", "1", "-n", "2"]);
    assert!(table.starts_with("STREAM") && !table.contains("asia"), "{table}");
    assert_eq!(table.lines().count(), 1 + 2 * 2, "{table}");
}
