//! The load programs tell what they measured in the form that scripts read.

use crate::support::{run, tailwater};

/// The last line that a bench writes to standard output.
fn measured(args: &[&str]) -> serde_json::Value {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = tailwater();
    command.arg("bench").args(args).args(["--duration-s", "2", "--warmup-s", "0", "-o", "json"]);
    let output = run(command.current_dir(dir.path()), b"");
    assert!(output.status.success(), "bench {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let last = text.lines().last().expect("a line");
    let json: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert!(json.is_object(), "{last}");
    json
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
