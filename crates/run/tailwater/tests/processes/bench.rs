//! The load programs tell what they measured in the form that scripts read.

use crate::demo::{assert_numbers, last_line};
use crate::support::Node;

/// The last line that a bench of two seconds writes to standard output.
fn measured(args: &[&str]) -> serde_json::Value {
    last_line(&[&["bench"], args, &["--duration-s", "2", "--warmup-s", "0"]].concat())
}

#[test]
fn an_append_load_ends_with_one_object_of_rates_and_percentiles() {
    let json = measured(&["append", "--record-bytes", "100", "--in-flight", "8"]);
    assert_numbers(
        &json,
        &["records_per_s", "mbyte_s", "disk_mbyte_s", "fdatasync_ms.p50", "fdatasync_ms.p99"],
    );
    assert_numbers(&json, &["ack_ms.p50", "ack_ms.p99", "ack_ms.p999", "ack_ms.max"]);
    assert!(json["records_per_s"].as_f64() > Some(0.0));
    assert_eq!((&json["durability"], &json["in_flight"]), (&"fsync".into(), &8.into()));
}

#[test]
fn a_fan_out_load_ends_with_one_object_of_what_was_delivered_and_how_late() {
    for transport in ["shm", "tcp"] {
        let json = measured(&["fanout", "--consumers", "3", "--rate-mbit", "1", "--transport", transport]);
        assert_numbers(
            &json,
            &["produced", "delivered", "lost", "reordered", "duplicated", "delivered_gbit_s"],
        );
        assert_numbers(&json, &["delay_ms.p50", "delay_ms.p99", "delay_ms.p999", "delay_ms.max"]);
        assert_numbers(&json, &["cpu_s.node", "cpu_s.consumers", "core_to_core_ns"]);
        assert_numbers(&json, &["reads.relaxed", "reads.hedged", "reads.consistent", "reads.durable"]);
        assert_numbers(&json, &["read_amplification.bytes", "read_amplification.reads"]);
        for none in ["lost", "reordered", "duplicated"] {
            assert_eq!(json[none], 0, "{none} in {json}");
        }
        let produced = json["produced"].as_u64().expect("a count");
        assert!(produced > 0);
        assert_eq!(json["delivered"].as_u64(), Some(3 * produced), "{json}");
    }
}

#[test]
fn consumers_of_the_same_shards_that_are_together_have_what_they_read_fetched_once_and_not_by_every_process()
{
    let load = ["fanout", "--consumers", "8", "--processes", "2", "--rate-mbit", "2"];
    let load = [&load[..], &["--shards", "4", "--shards-per-consumer", "2"]].concat();
    let fetched = |load: &[&str]| {
        let json = measured(load);
        assert_eq!(json["lost"], 0, "{json}");
        let produced = json["produced"].as_f64().expect("a count");
        json["reads"]["entry_bytes"].as_f64().expect("a count") / produced
    };
    let (together, apart) = (fetched(&load), fetched(&[&load[..], &["--apart"]].concat()));
    // Twice as much, but for what is still on its way when the measured time begins and ends.
    assert!(
        apart > 1.5 * together,
        "{apart} bytes a record, {together} with those of the same shards together"
    );
}

#[test]
fn a_fan_out_load_of_which_one_consumer_is_stopped_tells_how_it_caught_up_and_what_the_others_noticed() {
    let args = ["bench", "fanout", "--consumers", "4", "--rate-mbit", "4", "--stop-one", "2"];
    let json = last_line(&[&args[..], &["--duration-s", "8", "--warmup-s", "0"]].concat());
    for none in ["lost", "reordered", "duplicated", "corrupted", "unfinished_consumers"] {
        assert_eq!(json[none], 0, "{none} in {json}");
    }
    let produced = json["produced"].as_u64().expect("a count");
    assert!(produced > 0);
    assert_eq!(json["delivered"].as_u64(), Some(4 * produced), "the one that was stopped, too: {json}");
    let stopped = &json["stop_one"];
    assert_eq!(stopped["stopped_s"], 2.0, "{stopped}");
    for part in ["before", "stopped", "catching_up", "after"] {
        let field = |name: &str| format!("others_delay_ms.{part}.{name}");
        let fields = ["p50", "p99", "p999", "max"].map(field);
        assert_numbers(stopped, &fields.each_ref().map(String::as_str));
    }
    // A part in which nobody reported, because it was so short, has none.
    for part in ["stopped", "catching_up", "after"] {
        assert!(stopped["others_p99_ratio"].get(part).is_some(), "{part} in {stopped}");
    }
    let number = |field: &str| {
        let found = field.split('.').fold(stopped, |json, name| &json[name]);
        found.as_f64().unwrap_or_else(|| panic!("{field} is {found} in {stopped}"))
    };
    let (took_s, read_mbyte_s) = (number("caught_up_s"), number("read_mbyte_s"));
    // What was written while it stood still, but for a report's time.
    assert!(number("delivered_mbyte_s") * took_s > 0.75, "{stopped}");
    // A bucket may be full at first, and a read overdraw it.
    let backlog = number("limit_mbyte_s.backlog");
    let written = 2.0 * 4.0 / 8.0;
    assert!(read_mbyte_s * took_s <= (backlog + written) * took_s + backlog / 16.0 + 2.0, "{stopped}");
    assert!(read_mbyte_s <= number("limit_mbyte_s.all"), "{stopped}");
}

#[test]
fn a_node_that_is_killed_under_load_comes_back_to_a_consumer_that_was_connected_and_to_a_new_one() {
    let args =
        ["bench", "restart", "--read-mib", "8", "--rate-mbit", "4", "--load-s", "0.5", "--rounds", "2"];
    let json = last_line(&args);
    let runs = json["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 2, "{json}");
    for run in runs {
        assert_numbers(run, &["append_s", "connected_s", "new_s", "read_s"]);
        let number = |field: &str| run[field].as_f64().expect("a number");
        assert!(number("stored_mib") >= 8.0, "{run}");
        assert!(number("connected_s") > 0.0 && number("read_s") >= number("new_s"), "{run}");
    }
}

#[test]
fn an_append_load_in_kafka_s_protocol_ends_with_the_same_object() {
    let args = ["append", "--protocol", "kafka", "--record-bytes", "100", "--in-flight", "64"];
    let json = measured(&[&args[..], &["--shards", "2", "--requests-in-flight", "3"]].concat());
    assert_numbers(
        &json,
        &["records_per_s", "mbyte_s", "disk_mbyte_s", "fdatasync_ms.p50", "fdatasync_ms.p99"],
    );
    assert_numbers(&json, &["ack_ms.p50", "ack_ms.p99", "ack_ms.p999", "ack_ms.max"]);
    assert_numbers(&json, &["cpu_cores.node", "cpu_cores.client", "group_bytes", "disk_share"]);
    assert_eq!((&json["protocol"], &json["connection"]), (&"kafka".into(), &"tcp".into()));
    assert_eq!((&json["durability"], &json["cells"]), (&"fsync".into(), &"R1".into()));
    assert_eq!((&json["requests_in_flight"], &json["shards"]), (&3.into(), &2.into()));
    let [records, batches, bytes] =
        ["records", "batches", "batch_bytes_mean"].map(|name| json[name].as_f64().expect("a number"));
    assert!(batches > 0.0 && records >= batches, "{json}");
    // The mean is rounded.
    assert!((batches * bytes - records * 100.0).abs() <= batches / 2.0, "{json}");
}

#[test]
fn a_fan_out_load_in_kafka_s_protocol_tells_of_its_consumers_and_of_the_one_sided_ones_beside_them() {
    let args = ["fanout", "--protocol", "kafka", "--consumers", "3", "--one-sided", "2", "--rate-mbit", "1"];
    let json = measured(&[&args[..], &["--shards", "2", "--message-bytes", "200"]].concat());
    assert_numbers(&json, &["delivered_gbit_s", "producer_rate", "wall_s", "consumers_started_ms"]);
    assert_numbers(&json, &["delay_ms.p50", "delay_ms.p99", "delay_ms.p999", "delay_ms.max"]);
    assert_numbers(&json, &["ack_ms.p50", "cpu_s.node", "cpu_s.consumers", "cpu_cores.node"]);
    assert_eq!((&json["protocol"], &json["transport"]), (&"kafka".into(), &"tcp".into()));
    assert_eq!((&json["consumers"], &json["one_sided"]), (&3.into(), &2.into()));
    assert_eq!((&json["connection_each"], &json["error"]), (&true.into(), &serde_json::Value::Null));
    for none in ["lost", "reordered", "duplicated", "corrupted", "unfinished_consumers"] {
        assert_eq!(json[none], 0, "{none} in {json}");
    }
    let produced = json["produced"].as_u64().expect("a count");
    assert!(produced > 0);
    assert_eq!(json["delivered"].as_u64(), Some((3 + 2) * produced), "{json}");
    // The one-sided ones read from cells.
    assert_numbers(&json, &["read_amplification.bytes", "read_amplification.reads"]);
    assert!(json["reads"]["relaxed"].as_u64() > Some(0), "{json}");
}

#[test]
fn loads_in_kafka_s_protocol_on_a_broker_that_is_there_agree_with_its_own_counters_and_leave_no_topic() {
    const IN_FLIGHT: u64 = 64;
    let (_dir, node) = Node::start_anew();
    let counted = |series: &str| node.metric(series).unwrap_or_else(|| panic!("no {series}")) as u64;
    let (records, bytes) =
        ("tailwater_kafka_appended_records_total", "tailwater_kafka_fetched_bytes_total{from=\"memory\"}");
    let pid = node.process.id().to_string();
    let there = ["--protocol", "kafka", "--bootstrap", &node.kafka, "--server-pid", &pid];

    let in_flight = IN_FLIGHT.to_string();
    let json = measured(&[&["append", "--in-flight", &in_flight][..], &there].concat());
    assert_eq!((&json["bootstrap"], &json["protocol"]), (&node.kafka.as_str().into(), &"kafka".into()));
    assert_eq!((&json["durability"], &json["cells"]), (&().into(), &().into()), "a broker is what it is");
    let told = json["records"].as_u64().expect("a count");
    // What was on its way at the end counts for nobody.
    let appended = counted(records);
    assert!(told > 0 && (told..=told + IN_FLIGHT).contains(&appended), "{appended} appended: {json}");

    let fanout = ["fanout", "--consumers", "3", "--rate-mbit", "1", "--message-bytes", "200"];
    let json = measured(&[&fanout[..], &there].concat());
    assert_eq!(json["bootstrap"], node.kafka);
    assert_eq!(json.get("read_amplification"), Some(&serde_json::Value::Null), "nobody reads one-sidedly");
    let [produced, delivered] = ["produced", "delivered"].map(|name| json[name].as_u64().expect("a count"));
    assert!(produced > 0 && counted(records) - appended >= produced, "{json}");
    assert_eq!(delivered, 3 * produced, "{json}");
    assert!(counted(bytes) >= 200 * delivered, "{json}");
    assert!(!node.run(&["stream", "ls"]).contains("bench-"));
}

#[test]
fn the_cells_taken_away_one_after_the_other_lose_nothing_and_each_phase_is_told() {
    let json = last_line(&["bench", "ablation", "--consumers", "3", "--rate-mbit", "1", "--phase-s", "1.5"]);
    for none in ["lost", "reordered", "duplicated", "corrupted"] {
        assert_eq!(json[none], 0, "{none} in {json}");
    }
    let phases = json["phases"].as_array().expect("phases");
    let names: Vec<_> = phases.iter().map(|phase| phase["phase"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["both", "no data", "none", "restarted"]);
    for phase in phases {
        assert_numbers(phase, &["from_s", "to_s", "durable_s", "delay_ms.p50", "delay_later_ms.p99"]);
    }
    let durable = |phase: usize| phases[phase]["durable_s"].as_f64().expect("a rate");
    assert!(durable(2) > 0.0, "without cells all is read from the disk: {json}");
    assert!(!json["series"].as_array().expect("samples").is_empty());
}

#[test]
fn a_data_cell_that_grows_under_its_readers_loses_nothing_and_the_change_is_told() {
    let load = ["bench", "acs", "2b", "--quick", "--consumers", "6", "--processes", "2"];
    let json = last_line(&[&load[..], &["--backends-last", "5", "--duration-s", "5"]].concat());
    assert_eq!((&json["nothing_lost"], &json["error"]), (&true.into(), &serde_json::Value::Null), "{json}");
    assert_eq!((&json["backends_first"], &json["backends_last"]), (&3.into(), &5.into()));
    let phases = json["phases"].as_array().expect("phases");
    let names: Vec<_> = phases.iter().map(|phase| phase["phase"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["before", "5 backends"]);
    assert!(phases[1]["changing_s"].as_f64() > Some(0.0), "it was changed: {json}");
    assert!(json["delivered"].as_u64() > Some(0), "{json}");
}

#[test]
fn an_experiment_that_is_computed_ends_with_one_object_with_the_paper_s_figures_beside_ours() {
    let json = last_line(&["bench", "acs", "1b", "--model", "--part", "0.01"]);
    assert_eq!((&json["nothing_lost"], &json["p99_below_paper"]), (&true.into(), &true.into()), "{json}");
    assert_eq!(json["paper"]["p99_ms"], 1_500.0);
    let cluster = &json["clusters"][0];
    assert_eq!((&cluster["consumers"], &cluster["hops"]), (&40.into(), &3.into()));
    assert_numbers(cluster, &["delay_ms.p50", "delay_ms.p99", "cell_gbit_s_peak", "durable_s_peak"]);
}

#[test]
fn waiting_consumers_end_with_one_object_of_what_they_cost() {
    let json = last_line(&["bench", "idle", "--consumers", "5", "--duration-s", "1"]);
    assert_eq!((&json["bench"], &json["consumers"]), (&"idle".into(), &5.into()));
    assert_numbers(&json, &["cores", "cpu_s.node", "cpu_s.consumers", "consumers_started_ms"]);
}

#[test]
fn reads_and_writes_of_a_cell_end_with_one_object_of_a_figure_for_each_way() {
    let args = ["bench", "cache", "--values", "512", "--duration-s", "0.1", "--no-memcached"];
    let json = last_line(&args);
    let figures = json["figures"].as_array().expect("figures");
    for figure in figures {
        assert_numbers(figure, &["batch", "per_s", "call_us.p50", "call_us.p99", "backends_us", "client_us"]);
        assert_numbers(figure, &["misses", "failures"]);
    }
    for (transport, operation) in ["shm", "tcp"].iter().flat_map(|transport| {
        ["get relaxed", "get consistent", "set"].map(|operation| (*transport, operation))
    }) {
        let of = |figure: &&serde_json::Value| {
            figure["transport"] == transport && figure["operation"] == operation
        };
        assert!(figures.iter().find(of).is_some(), "{operation} over {transport} in {json}");
    }
}

#[cfg(feature = "bookkeeper")]
#[test]
fn the_bench_of_ledgers_measures_both_clients_on_the_same_bookies() {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.ci/bookkeeper");
    let script = script.to_str().expect("text");
    let json = last_line(&["bench", "ledgers", "--bookkeeper", script, "--rounds", "1", "--entries", "1000"]);
    let runs = json["runs"].as_array().expect("a list");
    let clients: Vec<&str> = runs.iter().filter_map(|run| run["client"].as_str()).collect();
    assert_eq!(clients, ["tailwater", "java"]);
    for run in runs {
        assert_numbers(run, &["entries_s", "entries_cpu_s", "p50_ms", "p99_ms"]);
        assert!(run["entries_s"].as_f64() > Some(0.0), "{run}");
    }
}

#[test]
fn a_load_beside_a_client_that_pushes_tells_what_its_quota_lets_through_and_what_the_quiet_client_waits() {
    let flags = ["--quota-mbyte-s", "0.5", "--rounds", "1", "--users"];
    let json = measured(&[&["quota"], &flags[..]].concat());
    assert_numbers(&json, &["p99_ratio", "p99_ratio_without_quota"]);
    let pushed = |part: usize| json["parts"][part]["pushed_mbyte_s"].as_f64().expect("a rate");
    assert_eq!(pushed(0), 0.0, "{json}");
    // A request that was begun passes, and then nothing until it is paid.
    assert!(pushed(2) > 4.0 * pushed(1), "{json}");
    for part in 0..3 {
        assert!(json["parts"][part]["quiet_records"].as_u64() > Some(0), "{json}");
    }
}

#[test]
fn a_load_with_and_without_tls_tells_the_ratio_of_what_a_busy_core_delivers() {
    let flags = ["--only", "kafka-fanout", "--consumers-kafka", "2", "--rate-mbit", "1", "--rounds", "1"];
    let json = measured(&[&["tls"], &flags[..]].concat());
    let part = &json["parts"][0];
    assert_eq!((&part["load"], &part["server"]), (&"kafka-fanout".into(), &"tailwater".into()));
    assert!(part["ratio"].as_f64() > Some(0.0) && part["keeps_up"].is_boolean(), "{json}");
    assert_eq!(json["tailwater_over_kafka"], serde_json::json!([]), "no broker was given");
}
