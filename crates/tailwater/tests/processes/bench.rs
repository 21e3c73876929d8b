//! The load programs tell what they measured in the form that scripts read.

use crate::support::{run, tailwater};

/// The last line that a bench of two seconds writes to standard output.
fn measured(args: &[&str]) -> serde_json::Value {
    last_line(&[&["bench"], args, &["--duration-s", "2", "--warmup-s", "0"]].concat())
}

/// The object in the last line of a command that must end well.
fn last_line(args: &[&str]) -> serde_json::Value {
    let text = written(&[args, &["-o", "json"]].concat());
    let last = text.lines().last().expect("a line");
    let json: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert!(json.is_object(), "{last}");
    json
}

/// What a command writes to standard output, which must end well.
fn written(args: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(tailwater().args(args).current_dir(dir.path()), b"");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Whether all of these are there and numbers; a dot goes into an object.
fn assert_numbers(json: &serde_json::Value, fields: &[&str]) {
    for field in fields {
        let found = field.split('.').fold(json, |json, name| &json[name]);
        assert!(found.is_number(), "{field} is {found} in {json}");
    }
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

/// Few consumers, for as long as the demo's own warm-up and a little more.
const SHORT_DEMO: [&str; 9] =
    ["demo", "--consumers", "6", "--processes", "2", "--seconds", "2.5", "--rate", "500"];

#[test]
fn the_demo_shows_a_table_of_this_machine_s_text_and_ends_with_its_verdict() {
    let text = written(&SHORT_DEMO);
    let heads = ["appended/s", "relaxed/s", "verified so far"];
    assert!(heads.iter().all(|head| text.contains(head)), "{text}");
    let last = text.lines().last().expect("a line");
    assert!(last.starts_with("verdict ") && last.ends_with("0 lost, 0 reordered, 0 corrupted"), "{text}");
}

#[test]
fn the_demo_appends_a_file_of_one_s_own_and_every_consumer_reads_all_of_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let input = dir.path().join("own.txt");
    std::fs::write(&input, "a line\nand another one\n").expect("written");
    let input = input.to_str().expect("text");
    let json = last_line(&[&SHORT_DEMO[..], &["--input", input]].concat());
    let appended = json["appended"].as_u64().expect("a count");
    assert!(appended > 0);
    assert_eq!(json["delivered"].as_u64(), Some(6 * appended), "{json}");
    assert_eq!(json["verdict"], "0 lost, 0 reordered, 0 corrupted");
    assert_numbers(&json, &["delay_ms.p50", "ack_ms.p99", "reads.relaxed", "delivered_per_s"]);
    let absent = run(tailwater().args(SHORT_DEMO).args(["--input", "/no/such/file"]), b"");
    assert!(!absent.status.success());
    let told = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(told.contains("/no/such/file can't be read"), "{told}");
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
