//! What flags of the command line do on a real node, beyond being taken.

use std::time::{Duration, Instant};

use crate::support::{Node, preloaded, run, tailwater, told, wait_for};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

/// A stream as the node describes it.
fn described(node: &Node, stream: &str) -> serde_json::Value {
    json(&node.run(&["stream", "describe", stream, "-o", "json"]))
}

fn numbered(count: usize, bytes: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:0bytes$}")).collect()
}

#[test]
fn a_stream_is_created_with_what_its_flags_say_and_with_the_defaults_of_those_that_are_not_given() {
    let (_dir, node) = Node::start_anew();
    let default = json(&node.run(&["stream", "create", "default", "-o", "json"]))["config"].clone();
    for (flag, given, field, value) in [
        ("--shards", "3", "shards", serde_json::json!(3)),
        ("--retention-ms", "60000", "retention_ms", 60_000.into()),
        ("--retention-ms", "none", "retention_ms", ().into()),
        ("--retention-bytes", "123456789", "retention_bytes", 123_456_789.into()),
        ("--segment-bytes", "2097152", "segment_bytes", 2_097_152.into()),
        ("--segment-ms", "12345", "segment_ms", 12_345.into()),
        ("--cold-after-ms", "5", "cold_after_ms", 5.into()),
        ("--cold-after-bytes", "7", "cold_after_bytes", 7.into()),
        ("--chunk-bytes", "512", "chunk_bytes", 512.into()),
        ("--cells", "false", "cells", false.into()),
        ("--flush", "immediate", "flush", "immediate".into()),
        ("--flush", "20", "flush", serde_json::json!({ "every_ms": 20 })),
        ("--durability", "fsync", "durability", "fsync".into()),
        ("--durability", "interval", "durability", "interval".into()),
        ("--timestamps", "append", "timestamps", "append".into()),
    ] {
        let name = format!("s{flag}-{given}");
        node.run(&["stream", "create", &name, flag, given]);
        let config = described(&node, &name)["config"].clone();
        let mut expected = default.clone();
        expected[field] = value;
        assert_eq!(config, expected, "{flag} {given}");
    }
    for (flag, given) in [("--flush", "soon"), ("--durability", "much"), ("--chunk-bytes", "1000")] {
        let refused = node.run_failing(&["stream", "create", "refused", flag, given]);
        assert!(refused.contains(given), "{flag} {given}: {refused}");
    }
    assert!(!node.run(&["stream", "ls"]).contains("refused"));
}

#[test]
fn records_wait_for_a_periodic_flush_and_not_for_an_immediate_one() {
    const FLUSH_MS: u64 = 700;
    let (_dir, node) = Node::start_anew();
    node.run(&["stream", "create", "late", "--flush", &FLUSH_MS.to_string()]);
    node.run(&["stream", "create", "now", "--flush", "immediate"]);
    let took = |stream: &str| {
        let started = Instant::now();
        node.produce(stream, &numbered(1, 10));
        started.elapsed()
    };
    assert!(took("late") >= Duration::from_millis(FLUSH_MS));
    // Once of many times is enough on a machine that does much else.
    wait_for("an append that waits for less", || {
        (took("now") < Duration::from_millis(FLUSH_MS)).then_some(())
    });
}

#[test]
fn a_stream_with_durability_interval_is_acknowledged_before_a_sync_and_one_with_fsync_after_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = preloaded(dir.path(), "failing_sync");
    let trigger = dir.path().join("fail");
    // A broadcast's chain commits to the same journal a second after the start, or later, and what was written before
    // is synced a second later: nothing else may need a sync here.
    let environment = [
        ("LD_PRELOAD", library.as_str()),
        ("FAILING_SYNC", trigger.to_str().expect("text")),
        ("TAILWATER_BROADCAST__ENABLED", "false"),
        ("TAILWATER_JOURNAL__SYNC_INTERVAL_MS", "600000"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &environment);
    node.run(&["stream", "create", "interval", "--durability", "interval"]);
    node.run(&["stream", "create", "fsync", "--durability", "fsync"]);
    for stream in ["interval", "fsync"] {
        node.produce(stream, &numbered(3, 10));
    }
    std::fs::write(&trigger, "").expect("written");
    node.produce("interval", &numbered(1, 10));
    let args = ["produce", "fsync", "--deadline-ms", "1000"];
    assert!(!node.output(&args, b"not durable\n").status.success());
    std::fs::remove_file(&trigger).expect("removed");
    wait_for("service to resume", || node.output(&args, b"durable\n").status.success().then_some(()));
}

#[test]
fn the_data_cell_has_a_stream_in_chunks_of_the_size_that_it_was_created_with() {
    let (_dir, node) = Node::start_anew();
    for (stream, chunk_bytes) in [("small", 512), ("large", 65_536)] {
        node.run(&["cache", "clear", "data"]);
        node.run(&["stream", "create", stream, "--chunk-bytes", &chunk_bytes.to_string()]);
        node.produce(stream, &numbered(100, 1_000));
        let bytes = wait_for("all of it to be in the cell", || {
            let shard = described(&node, stream)["shards"][0].clone();
            let bytes = shard["durable"].as_u64().expect("a number");
            (shard["cached"] == shard["durable"] && bytes > 100_000).then_some(bytes)
        });
        let entries = node.metric("tailwater_backend_entries{cell=\"data\"}").expect("it is told");
        assert_eq!(entries as u64, bytes.div_ceil(chunk_bytes), "{stream}");
    }
}

#[test]
fn segments_are_completed_at_their_age_and_removed_at_theirs_and_readers_begin_behind_them() {
    let (_dir, node) = Node::with_stream(&["kept", "--segment-ms", "200"]);
    node.run(&["stream", "create", "removed", "--segment-ms", "200", "--retention-ms", "400"]);
    for stream in ["kept", "removed"] {
        node.produce(stream, &numbered(10, 10));
    }
    let shard = |stream: &str| described(&node, stream)["shards"][0].clone();
    wait_for("a segment that is complete, though it has hardly any bytes", || {
        (shard("kept")["segments"][0]["sealed"] == true).then_some(())
    });
    wait_for("its records to be removed", || (shard("removed")["log_start"] == 10).then_some(()));
    let files = || walk(&node.dir.join("segments")).into_iter().filter(|file| file.ends_with(".seg")).count();
    // Those of the other stream are left: one, but for a producer that stood still in the midst of its lines.
    let kept = || shard("kept")["segments"].as_array().map_or(0, Vec::len);
    wait_for("its file to be removed", || (files() == kept()).then_some(()));
    assert_eq!(node.consume("removed"), [""; 0]);
    assert_eq!(node.consume("kept"), numbered(10, 10));
    let told = node.run_failing(&["consume", "removed", "--from", "3", "--exit-at-end"]);
    assert!(told.contains("10"), "{told}");
    let acked = node.output(&["produce", "removed", "-o", "json"], b"and goes on\n");
    let acked = json(&String::from_utf8(acked.stdout).expect("text"));
    assert_eq!((&acked["first_offset"], &acked["count"]), (&10.into(), &1.into()));
}

/// The names of all files below a directory.
fn walk(dir: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(walk(&entry.path())),
            _ => found.push(entry.path().display().to_string()),
        }
    }
    found
}

#[test]
fn records_go_to_shards_one_after_the_other_or_to_any_whatever_their_keys() {
    const LINES: usize = 400;
    const SHARDS: usize = 4;
    let (_dir, node) = Node::start_anew();
    let lines: String = (0..LINES).map(|number| format!("one:{number}\n")).collect();
    let shards_with = |partitioner: &str| {
        node.run(&["stream", "create", partitioner, "--shards", &SHARDS.to_string()]);
        let args = ["produce", partitioner, "--key-delimiter", ":", "--partitioner", partitioner];
        let output = node.output(&args, lines.as_bytes());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut shards = vec![None; LINES];
        for line in node.run(&["consume", partitioner, "--exit-at-end", "--format", "%s %v\\n"]).lines() {
            let (shard, number) = line.split_once(' ').expect("two words");
            let number: usize = number.parse().expect("a number");
            let before = shards[number].replace(shard.parse::<usize>().expect("a number"));
            assert_eq!(before, None, "line {number} is there twice");
        }
        shards.into_iter().map(|shard| shard.expect("all are there")).collect::<Vec<_>>()
    };
    let one_by_one = shards_with("round-robin");
    assert!(one_by_one.windows(2).all(|pair| pair[1] == (pair[0] + 1) % SHARDS), "{one_by_one:?}");
    let any = shards_with("random");
    assert!((0..SHARDS).all(|shard| any.contains(&shard)), "{any:?}");
    assert!(any.windows(2).any(|pair| pair[0] == pair[1]), "{any:?}");
    let by_key = shards_with("key");
    assert!(by_key.iter().all(|shard| *shard == by_key[0]), "{by_key:?}");
}

#[test]
fn completion_scripts_of_three_shells_know_the_commands_and_their_flags() {
    for (shell, begins) in
        [("bash", "_tailwater"), ("zsh", "#compdef tailwater"), ("fish", "complete -c tailwater")]
    {
        let (ended, script, why) = told(tailwater().args(["completion", shell]), "");
        assert!(ended && why.is_empty(), "{shell}: {why}");
        assert!(script.contains(begins), "{shell}: {script}");
        for word in ["serve", "produce", "partitioner", "retention-ms", "round-robin", "doctor"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
    let (ended, script, _) = told(tailwater().args(["completion", "bash"]), "");
    assert!(ended);
    // The shell that is everywhere takes it, and offers what begins so.
    let words = "COMP_WORDS=(tailwater stream cr); COMP_CWORD=2; _tailwater tailwater cr stream; echo \"${COMPREPLY[@]}\"";
    let (ended, offered, why) =
        told(&mut std::process::Command::new("bash"), &format!("{script}\n{words}\n"));
    assert!(ended, "{why}");
    assert_eq!(offered.trim(), "create", "{why}");
    let (ended, _, why) = told(tailwater().args(["completion", "none"]), "");
    assert!(!ended && why.contains("bash"), "{why}");
}

#[test]
fn the_doctor_tells_of_each_check_and_fails_only_where_a_node_would() {
    let dir = tempfile::tempdir().expect("a directory");
    let doctor = |data: &std::path::Path| {
        let output = run(tailwater().args(["doctor", "-o", "json", "--data"]).arg(data), b"");
        let checks = json(&String::from_utf8(output.stdout).expect("text"));
        (output.status.success(), checks.as_array().expect("a list").clone())
    };
    let of = |checks: &[serde_json::Value], name: &str| {
        let found = checks.iter().find(|check| check["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not among {checks:?}")).clone()
    };
    let (ended, checks) = doctor(dir.path());
    for (name, tells) in [
        ("shared memory", "64 MiB"),
        ("file descriptors", "allowed"),
        ("append of 4 KiB + fdatasync", "p99"),
        ("free disk space", "B"),
        ("TCP congestion control", "available"),
        ("io_uring", ""),
        ("clock", "a reading"),
    ] {
        let check = of(&checks, name);
        assert!(check["found"].as_str().is_some_and(|found| found.contains(tells)), "{check}");
        // What is not well is told with what to do; whether a machine is well is not this test's to say.
        assert!(["ok", "warn", "fail"].iter().any(|verdict| check["verdict"] == *verdict), "{check}");
    }
    let fails = checks.iter().any(|check| check["verdict"] == "fail");
    assert_eq!(ended, !fails, "{checks:?}");

    let (ended, checks) = doctor(&dir.path().join("nowhere"));
    assert!(!ended);
    let check = of(&checks, "append of 4 KiB + fdatasync");
    assert_eq!(check["verdict"], "fail", "{check}");
    assert!(check["mend"].as_str().is_some_and(|mend| mend.contains("--data")), "{check}");
    let (ended, table, why) =
        told(tailwater().args(["doctor", "--data"]).arg(dir.path().join("nowhere")), "");
    assert!(!ended && why.contains("checks failed"), "{why}");
    assert!(table.contains("FAIL") && table.contains("-> choose a directory"), "{table}");
    // Few descriptors are what a node can't do with.
    let limited = format!("ulimit -n 512; exec {} doctor -o json", env!("CARGO_BIN_EXE_tailwater"));
    let output = run(std::process::Command::new("sh").args(["-c", &limited]).current_dir(dir.path()), b"");
    let checks = json(&String::from_utf8(output.stdout).expect("text"));
    let check = of(checks.as_array().expect("a list"), "file descriptors");
    assert_eq!((&check["verdict"], &check["found"]), (&"fail".into(), &"512 allowed".into()), "{check}");
    assert!(!output.status.success());
}
