//! Streams through the command line: create, append, read, describe, truncate, delete.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Node, Process, serve, tailwater, told, wait_for};

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("line {number}")).collect()
}

#[test]
fn what_is_produced_is_consumed_in_order_also_after_a_restart() {
    let (_dir, mut node) = Node::with_stream(&["orders"]);
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
fn a_last_line_without_an_end_is_sent_although_an_acknowledgement_came_in_its_midst() {
    let (_dir, node) = Node::with_stream(&["s"]);
    for command in [&["produce", "s"][..], &["broadcast", "publish", "s"]] {
        let mut command = node.command(command);
        let piped = command.args(["-o", "json"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(b"first\nlast").expect("written");
        let mut told = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert!(told.next().is_some_and(|line| line.is_ok()), "the first one is acknowledged");
        drop(stdin);
        assert_eq!(told.count(), 1, "the last one is acknowledged");
        assert!(child.wait().expect("ours").success());
    }
    assert_eq!(node.consume("s"), ["first", "last"]);
    assert_eq!(node.run(&["broadcast", "listen", "s", "--exit-at-end"]), "first\nlast\n");
}

#[test]
fn every_position_begins_where_it_says() {
    let (_dir, node) = Node::with_stream(&["s", "--segment-bytes", "65536"]);
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
    let (_dir, node) = Node::with_stream(&["s"]);
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
fn a_consumer_reads_as_fast_as_its_flag_says_or_its_variable_and_not_at_a_rate_that_can_not_be() {
    const BYTES_PER_S: &str = "1000000";
    let (_dir, node) = Node::with_stream(&["s"]);
    let lines: Vec<String> = (0..5_000).map(|number| format!("{number:01000}")).collect();
    node.produce("s", &lines);
    let variable = "TAILWATER_CONSUME_BYTES_PER_S";
    for (given, flags) in [(BYTES_PER_S, &[][..]), ("1000000000", &["--bytes-per-s", BYTES_PER_S])] {
        let started = Instant::now();
        // A window that has room for all of it, or what is far behind would have a rate of its own.
        let mut command = node.command(&["consume", "s", "--exit-at-end", "--window-bytes", "8388608"]);
        let (ended, read, why) = told(command.args(flags).env(variable, given), "");
        assert!(ended, "{why}");
        assert!(read.lines().eq(&lines));
        // Hardly anything is there at first, and two reads of 2 MiB are behind when the third one begins.
        assert!(started.elapsed() >= Duration::from_secs(3), "{:?}", started.elapsed());
    }
    for (flag, given) in [("--bytes-per-s", "0"), ("--silent-after-ms", "1"), ("--window-bytes", "100")] {
        let refused = node.run_failing(&["consume", "s", flag, given]);
        assert!(refused.contains(flag) && refused.contains("use a whole number"), "{refused}");
    }
}

#[test]
fn lengths_that_nobody_changes_are_written_again_as_often_as_configured() {
    let dir = tempfile::tempdir().expect("a directory");
    let often = [("TAILWATER_METADATA_CELL__REFRESH_MS", "10"), ("TAILWATER_LOG__LOCK_SEIZE_MS", "200")];
    let node = Node::start_with(&dir.path().join("data"), &[], &often);
    node.run(&["stream", "create", "s"]);
    node.produce("s", &numbered(1));
    let sets = || {
        let page = node.get("/metrics").expect("it answers");
        let mut found = page.lines().filter_map(|line| {
            line.strip_prefix("tailwater_backend_sets_total{cell=\"metadata\"}")?.trim().parse::<u64>().ok()
        });
        found.next().expect("it is told")
    };
    let before = sets();
    // As often as they are by default, that would take eight minutes, and nobody waits so long.
    wait_for("a hundred writes of what is idle", || (sets() > before + 100).then_some(()));
    let mut check = tailwater();
    let (_, _, refused) = told(check.args(["serve", "--config-check"]).env(often[0].0, "0"), "");
    assert!(refused.contains("refresh_ms = 0 is not between 10 and 60000"), "{refused}");
}

#[test]
fn keys_choose_shards_and_come_back() {
    let (dir, node) = Node::with_stream(&["keyed", "--shards", "4"]);
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
    let (_dir, node) = Node::with_stream(&["s"]);
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
fn a_truncation_of_all_shards_leaves_those_that_begin_later_and_does_nothing_where_one_ends_earlier() {
    let (_dir, node) = Node::with_stream(&["s", "--shards", "3"]);
    let lines = numbered(100).join("\n");
    for shard in ["0", "1", "2"] {
        assert!(node.output(&["produce", "s", "--shard", shard], lines.as_bytes()).status.success());
    }
    let starts = |command: &[&str]| {
        let told = node.run(&[&["stream", "truncate", "s"], command].concat());
        let starts = told.lines().filter_map(|line| line.split("begins at offset ").nth(1));
        starts.map(|start| start.trim().parse::<u64>().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(starts(&["--shard", "0", "--before", "60"]), [60]);
    assert_eq!(starts(&["--before", "40"]), [60, 40, 40], "the first one begins later");
    assert_eq!(starts(&["--before", "40"]), [60, 40, 40], "again");
    let more = node.output(&["produce", "s", "--shard", "0"], lines.as_bytes());
    assert!(more.status.success());
    let beyond = node.run_failing(&["stream", "truncate", "s", "--before", "150"]);
    assert!(beyond.contains("shard 1") && beyond.contains("nothing was truncated"), "{beyond}");
    assert_eq!(starts(&["--before", "start"]), [60, 40, 40], "not the first one either");
    assert_eq!(starts(&["--before", "-10"]), [190, 90, 90]);
    assert_eq!(starts(&["--before", "end"]), [200, 100, 100]);
}

#[test]
fn the_list_of_streams_leaves_their_segments_to_the_description_of_each() {
    let (_dir, node) = Node::with_stream(&["s", "--shards", "2"]);
    node.produce("s", &numbered(10));
    let shards = |path: &str| -> Vec<serde_json::Value> {
        let answer: serde_json::Value =
            serde_json::from_str(&node.get(path).expect("answered")).expect("JSON");
        let stream = if answer.is_array() { &answer[0] } else { &answer };
        stream["shards"].as_array().expect("shards").clone()
    };
    let (listed, described) = (shards("/v1/streams"), shards("/v1/streams/s"));
    for (listed, described) in listed.iter().zip(&described) {
        assert_eq!(listed["segments"], serde_json::Value::Null, "{listed}");
        assert_eq!(described["segments"].as_array().map(Vec::len), Some(1), "{described}");
        assert_eq!(
            (&listed["next_offset"], &listed["bytes"]),
            (&described["next_offset"], &described["bytes"])
        );
    }
    assert_eq!((listed.len(), described.len()), (2, 2));
    let row = node.run(&["stream", "ls"]);
    assert!(row.lines().any(|line| line.split_whitespace().take(3).eq(["s", "2", "10"])), "{row}");
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let nobody = tailwater().args(["--server", "127.0.0.1:1", "stream", "ls"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("tailwater serve"));

    let (dir, node) = Node::with_stream(&["s"]);
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
    for flag in ["--listen", "--admin", "--kafka", "--sqs", "--broadcast"] {
        let error = node.run_failing(&["serve", flag, "localhost:7420"]);
        assert!(error.contains("127.0.0.1:7420"), "{error}");
    }
    let everywhere = node.run_failing(&["serve", "--listen", "0.0.0.0:7420", "--config-check"]);
    assert!(everywhere.contains("advertised_data"), "{everywhere}");
    let crowd =
        tailwater().args(["serve", "--config-check"]).env("TAILWATER_LISTEN__WORKERS", "1025").output();
    let crowd = String::from_utf8(crowd.expect("it runs").stderr).expect("text");
    assert!(crowd.contains("1024 at most"), "{crowd}");
    node.run(&["stream", "create", "endless", "--retention-ms", "-1", "--retention-bytes", "-1"]);
    assert!(node.run(&["stream", "describe", "endless"]).contains("none"));
    for value in ["127.0.0.1", "127.0.0.1:70000", "localhost:7421"] {
        let mut check = tailwater();
        let (_, _, refused) =
            told(check.args(["serve", "--config-check"]).env("TAILWATER_LISTEN__ADMIN", value), "");
        assert!(refused.contains("as in 127.0.0.1:7420"), "{value}: {refused}");
    }
    for (server, right) in [("node", "node:7421"), ("node:70000", "from 1 to 65535")] {
        let (_, _, refused) = told(tailwater().args(["stream", "ls", "--server", server]), "");
        assert!(refused.contains(right), "{refused}");
    }
    let misspelt = tailwater().args(["serve", "--config-check"]).env("TAILWATER_LSTEN__ADMIN", "x").output();
    let misspelt = String::from_utf8(misspelt.expect("it runs").stderr).expect("text");
    assert!(misspelt.contains("TAILWATER_LSTEN__ADMIN") && misspelt.contains("--print-config"), "{misspelt}");
    assert!(node.run_failing(&["consume", "s", "--from", "whenever"]).contains("OFFSET"));
    assert!(node.run_failing(&["consume", "s", "--from", "@noon"]).contains("RFC 3339"));
    assert!(node.run_failing(&["queue", "--endpoint", "http://localhost:x", "ls"]).contains("1 to 65535"));
    assert!(
        node.run_failing(&["stream", "truncate", "s", "--before", "dlsn:1"]).contains("SEGMENT/ENTRY/SLOT")
    );
    assert!(node.run_failing(&["produce", "s", "/no/such/file"]).contains("/no/such/file"));
    let backend = ["cache", "serve", "--cell", "data", "--tcp", "127.0.0.1:0"];
    assert!(node.run_failing(&[&backend[..], &["--ttl-ms", "999"]].concat()).contains("1000 or more"));
    assert!(node.run_failing(&["stream", "create", "t", "--shards", "0"]).contains("shards"));
}

#[test]
fn a_data_directory_whose_sockets_have_no_room_in_an_address_is_refused_with_what_to_shorten() {
    let dir = tempfile::tempdir().expect("a directory");
    let long = dir.path().join("long".repeat(30));
    std::fs::create_dir(&long).expect("created");
    let told = |command: &mut std::process::Command| {
        let output = command.output().expect("it runs");
        assert!(!output.status.success());
        let (out, err) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
        format!("{}{}", out.expect("text"), err.expect("text"))
    };
    let absolute = told(tailwater().args(["serve", "--data"]).arg(&long));
    assert!(absolute.contains("shorter") && absolute.contains("107"), "{absolute}");
    // Clients have another working directory.
    let relative = told(tailwater().args(["serve", "--data", "data"]).current_dir(&long));
    assert!(relative.contains("shorter"), "{relative}");
    let doctor = told(tailwater().args(["doctor", "-o", "json", "--data"]).arg(&long));
    assert!(doctor.contains("path of the sockets") && doctor.contains("shorter"), "{doctor}");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&long, &link).expect("linked");
    let node = Node::start(&link);
    node.run(&["stream", "create", "s"]);
    node.produce("s", &numbered(3));
    assert_eq!(node.consume("s"), numbered(3));
}

/// How many threads of this name a process has.
fn threads(process: u32, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|of| of.starts_with(name)).count()
}

/// A process has so many threads of this name, no more. A thread has it once it has begun to run.
fn wait_for_threads(process: u32, name: &str, count: usize) {
    wait_for("threads to begin", || (threads(process, name) >= count).then_some(()));
    assert_eq!(threads(process, name), count, "{name}");
}

#[test]
fn engines_are_as_many_as_configured_and_at_most_as_there_are_cores_but_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let most = (std::thread::available_parallelism().expect("known").get() - 1).max(1);
    for (configured, engines) in [("0", most), ("3", most.min(3))] {
        let data = dir.path().join(configured);
        let node = Node::start_with(&data, &[], &[("TAILWATER_LISTEN__ENGINES", configured)]);
        // Its own server, and one for each cell.
        wait_for_threads(node.process.id(), "rma-engine", 3 * engines);
        let socket = dir.path().join(format!("backend{configured}.sock"));
        let mut command = tailwater();
        command.args(["cache", "serve", "--cell", "data", "--capacity-bytes", "1048576"]);
        command.args(["--engines", configured, "--unix"]).arg(&socket);
        let backend = Process::start(&mut command, &dir.path().join("backend.log"));
        wait_for("the backend to be ready", || backend.log().contains("is ready").then_some(()));
        wait_for_threads(backend.id(), "rma-engine", engines);
    }
}

#[test]
fn a_node_that_is_told_to_stop_while_it_starts_ends_well_and_has_everything_when_it_starts_again() {
    let (_dir, mut node) = Node::with_stream(&["s"]);
    let lines: Vec<String> = (0..1_000).map(|line| line.to_string()).collect();
    node.produce("s", &lines);
    for _ in 0..5 {
        assert!(node.process.stop());
        // It answers before it has started all of its parts.
        node.restart_recovering();
    }
    assert!(node.process.stop());
    node.restart();
    assert!(lines.iter().cloned().eq(node.consume("s")));
}

#[test]
fn a_second_node_on_the_same_directory_is_told_so_and_who_has_it_even_where_its_ports_are_taken_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let node = Node::start(&data);
    // As somebody starts it who does not know that it runs: by the same command.
    let same =
        ["--admin", &node.admin, "--kafka", &node.kafka, "--sqs", &node.sqs, "--broadcast", &node.broadcast];
    for flags in [&[][..], &same] {
        let second = serve(&data).args(flags).output().expect("it runs");
        let why = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(!second.status.success());
        let holder = format!("is in use by process {}: stop that process", node.process.id());
        assert!(why.contains(&holder) && !why.contains("listen"), "{why}");
    }
    node.run(&["stream", "create", "still-works"]);
}

#[test]
fn a_node_whose_port_is_taken_leaves_its_directory_to_the_next_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("bound").to_string();
    for (flag, other) in [("--admin", "--admin"), ("--sqs", "--no-sqs"), ("--broadcast", "--no-broadcast")] {
        let refused = serve(&data).args([flag, &taken]).output().expect("it runs");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && why.contains(&taken) && why.contains(other), "{why}");
    }
    Node::start(&data).run(&["stream", "create", "works"]);
}
