//! kcat, unmodified: produce, consume, positions, codecs, acknowledgements.

use std::io::{Read, Write};

use tailwater_kafka_wire::messages::cluster::ApiVersionsRequest;

use crate::support::kafka::{kcat, kcat_failing, need};
use crate::support::raw::Raw;
use crate::support::{Follower, Node, wait_for};

fn lines(count: usize) -> String {
    (0..count).map(|number| format!("line {number}\n")).collect()
}

fn node(dir: &tempfile::TempDir) -> Node {
    need("kcat");
    Node::start(&dir.path().join("data"))
}

#[test]
fn what_is_produced_with_any_codec_is_consumed_by_both_kinds_of_readers_at_the_same_offsets() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(&dir);
    let text = lines(2_000);
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = format!("with-{codec}");
        kcat(&node, &["-P", "-t", &topic, "-z", codec], &text);
        assert!(kcat(&node, &["-C", "-t", &topic, "-e", "-q"], "") == text, "{codec}");
        let theirs = kcat(&node, &["-C", "-t", &topic, "-e", "-q", "-f", "%o %T %s\\n"], "");
        let ours = node.run(&["consume", &topic, "--exit-at-end", "--format", "%o %t %v\\n"]);
        assert!(theirs == ours, "{codec}");
    }
    // From the durable layer too.
    assert!(node.process.stop());
    node.restart();
    for codec in ["none", "zstd"] {
        let again = kcat(&node, &["-C", "-t", &format!("with-{codec}"), "-e", "-q"], "");
        assert!(again == text, "{codec}");
    }
    let topics = kcat(&node, &["-L"], "");
    assert!(
        topics.contains("5 topics:") && topics.contains("topic \"with-lz4\" with 1 partitions:"),
        "{topics}"
    );
}

#[test]
fn every_position_begins_where_it_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "s", "--segment-bytes", "65536"]);
    kcat(&node, &["-P", "-t", "s"], &lines(5_000));
    let from = |offset: &str| kcat(&node, &["-C", "-t", "s", "-o", offset, "-e", "-q", "-f", "%o %s\\n"], "");
    let first = |offset: &str| from(offset).lines().next().unwrap_or_default().to_owned();
    assert_eq!(first("beginning"), "0 line 0");
    assert_eq!(first("3210"), "3210 line 3210");
    assert_eq!(from("-3"), "4997 line 4997\n4998 line 4998\n4999 line 4999\n");
    assert_eq!(from("end"), "");
    let query = |what: &str| kcat(&node, &["-Q", "-t", &format!("s:0:{what}")], "").trim().to_owned();
    assert_eq!(query("-1"), "s [0] offset 5000");
    assert_eq!(query("-2"), "s [0] offset 0");
    assert_eq!(query("1"), "s [0] offset 0");
    // The first record of a later time, and the first one that has it.
    let times = kcat(&node, &["-C", "-t", "s", "-e", "-q", "-f", "%T %o\\n"], "");
    let times: Vec<(i64, u64)> = times
        .lines()
        .map(|line| {
            let (time, offset) = line.split_once(' ').expect("two words");
            (time.parse().expect("a time"), offset.parse().expect("an offset"))
        })
        .collect();
    let (last, _) = *times.last().expect("records");
    let expected = times.iter().find(|(time, _)| *time >= last).expect("the last one has it").1;
    assert_eq!(query(&last.to_string()), format!("s [0] offset {expected}"));
    node.run(&["stream", "truncate", "s", "--before", "1000"]);
    assert_eq!(query("-2"), "s [0] offset 1000");
    assert_eq!(first("beginning"), "1000 line 1000");
}

#[test]
fn what_lies_between_two_times_is_consumed_from_all_shards_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "s", "--shards", "3"]);
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let mut times = Vec::new();
    for begin in [0, 1_000, 2_000_u32] {
        let lines: String = (begin..begin + 300).map(|number| format!("{number}:{number}\n")).collect();
        kcat(&node, &["-P", "-t", "s", "-K", ":"], &lines);
        // What comes next is later than this, and what has come is earlier.
        let done = now();
        while now() == done {
            std::thread::yield_now();
        }
        times.push(now());
    }
    let between = |offsets: &[&str]| {
        let options: Vec<&str> = offsets.iter().flat_map(|offset| ["-o", *offset]).collect();
        let text = kcat(&node, &[&["-C", "-t", "s", "-e", "-q"], &options[..]].concat(), "");
        let mut numbers: Vec<u32> = text.lines().map(|line| line.parse().expect("a number")).collect();
        numbers.sort();
        numbers
    };
    let (start, end) = (|at: u128| format!("s@{at}"), |at: u128| format!("e@{at}"));
    let second: Vec<u32> = (1_000..1_300).collect();
    assert_eq!(between(&[&start(times[0]), &end(times[1])]), second);
    assert_eq!(between(&[&start(times[1])]), (2_000..2_300).collect::<Vec<_>>());
    assert_eq!(between(&[&start(0), &end(times[0])]), (0..300).collect::<Vec<_>>());
    assert!(between(&[&start(times[2])]).is_empty());
}

#[test]
fn every_kind_of_acknowledgement_is_given_and_what_can_t_be_taken_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    for acks in ["0", "1", "all"] {
        kcat(&node, &["-P", "-t", "acks", "-X", &format!("acks={acks}")], &format!("with {acks}\n"));
    }
    // Nobody says when records that are not acknowledged have arrived.
    let mut all = wait_for("three records", || {
        let all = kcat(&node, &["-C", "-t", "acks", "-e", "-q"], "");
        let all: Vec<String> = all.lines().map(str::to_owned).collect();
        (all.len() == 3).then_some(all)
    });
    // Nor do they arrive before what was sent later on other connections.
    all.sort();
    assert_eq!(all, ["with 0", "with 1", "with all"]);
    let far = ["-P", "-t", "acks", "-p", "7", "-X", "message.timeout.ms=60000"];
    assert!(kcat_failing(&node, &far, "lost\n").contains("Unknown partition"));
}

#[test]
fn the_time_of_the_append_replaces_the_producer_s_where_the_stream_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "s", "--timestamps", "append"]);
    for codec in ["none", "lz4"] {
        // So patient that a producer which stands still between two lines sends few batches all the same.
        kcat(&node, &["-P", "-t", "s", "-z", codec, "-X", "linger.ms=3000"], &lines(100));
    }
    // librdkafka checks each batch's checksum.
    let times = kcat(&node, &["-C", "-t", "s", "-e", "-q", "-X", "check.crcs=true", "-f", "%T\\n"], "");
    let times: std::collections::BTreeSet<&str> = times.lines().collect();
    assert!(times.len() <= 4, "the records of a batch have one time: {times:?}");
    let ours = node.run(&["consume", "s", "--exit-at-end", "--format", "%t\\n"]);
    assert_eq!(times, ours.lines().collect());
}

#[test]
fn topics_are_not_created_where_that_is_switched_off() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let off = [("TAILWATER_KAFKA__AUTO_CREATE_TOPICS", "false")];
    let node = Node::start_with(&dir.path().join("data"), &[], &off);
    let refused = kcat_failing(&node, &["-P", "-t", "missing", "-X", "message.timeout.ms=3000"], "lost\n");
    assert!(refused.contains("Unknown topic") || refused.contains("timed out"), "{refused}");
    assert!(!node.run(&["stream", "ls"]).contains("missing"));
}

#[test]
fn limits_that_are_set_low_refuse_what_is_beyond_them_and_nothing_else() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let limits =
        [("TAILWATER_LOG__DECOMPRESSED_BYTES_MAX", "4194304"), ("TAILWATER_KAFKA__ITEMS_MAX", "100")];
    let node = Node::start_with(&dir.path().join("data"), &[], &limits);
    // One record from standard input, which is small when compressed.
    let send = ["-P", "-t", "s", "-z", "zstd", "-D", "\\x01", "-X", "message.max.bytes=8000000"];
    kcat(&node, &send, &"x".repeat((4 << 20) - 200));
    let refused = kcat_failing(&node, &send, &"x".repeat(4 << 20));
    assert!(refused.contains("Message size too large"), "{refused}");
    assert_eq!(kcat(&node, &["-C", "-t", "s", "-e", "-q", "-f", "%S\\n"], ""), "4194104\n");

    let metadata_of_topics = |count: u32| {
        let header = [0, 3, 0, 1, 0, 0, 0, 1, 255, 255];
        let body = [&header[..], &count.to_be_bytes(), &vec![0; 2 * count as usize]].concat();
        let mut stream = std::net::TcpStream::connect(&node.kafka).expect("it listens");
        stream.write_all(&[&(body.len() as u32).to_be_bytes()[..], &body].concat()).expect("sent");
        stream.read_exact(&mut [0; 4])
    };
    metadata_of_topics(100).expect("an answer");
    metadata_of_topics(101).expect_err("closed");
    wait_for("a line in the log", || node.process.log().contains("items_max is 100").then_some(()));
}

#[test]
fn a_connection_more_than_there_may_be_is_closed_with_a_line_that_says_who_and_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let limits = [("TAILWATER_KAFKA__CONNECTIONS_MAX", "1")];
    let node = Node::start_with(&dir.path().join("data"), &[], &limits);
    let mut first = Raw::connect(&node);
    first.call(0, &ApiVersionsRequest::default());
    let mut second = Raw::connect(&node).stream;
    let mut answer = Vec::new();
    second.read_to_end(&mut answer).expect("closed");
    assert!(answer.is_empty(), "{answer:?}");
    let peer = second.local_addr().expect("bound").to_string();
    wait_for("a line in the log", || {
        let log = node.process.log();
        log.lines().any(|line| line.contains(&peer) && line.contains("connections_max")).then_some(())
    });
    first.call(0, &ApiVersionsRequest::default());
}

#[test]
fn a_consumer_that_waits_at_the_end_is_woken_by_what_comes() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "s"]);
    let mut command = std::process::Command::new("kcat");
    // A wait that is longer than any patience: only being woken ends it.
    command.args(["-b", &node.kafka, "-C", "-t", "s", "-u", "-q", "-X", "fetch.wait.max.ms=200000"]);
    command.args(["-X", "socket.timeout.ms=300000"]);
    let follower = Follower::of(&mut command);
    for number in 0..20 {
        kcat(&node, &["-P", "-t", "s"], &format!("{number}\n"));
        assert_eq!(follower.next(), number.to_string());
    }
}

#[test]
fn garbage_and_frames_that_are_too_long_close_one_connection_with_a_line_that_says_who_and_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    let send = |bytes: &[u8]| {
        let mut stream = std::net::TcpStream::connect(&node.kafka).expect("it listens");
        stream.write_all(bytes).expect("sent");
        let mut answer = Vec::new();
        // Closed, without an answer; with what was not read yet, that may show as a reset.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
        stream.local_addr().expect("bound").to_string()
    };
    let metadata_of_many_topics = [0, 0, 0, 14, 0, 3, 0, 1, 0, 0, 0, 1, 255, 255, 0x7f, 255, 255, 255];
    let peers = [
        (send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "frame_bytes_max"),
        (send(&[255; 100]), "a frame of -1 bytes"),
        (send(&metadata_of_many_topics), "malformed Metadata request"),
        (send(&[0, 0, 0, 10, 0, 0, 0, 2, 0, 0, 0, 1, 255, 255]), "API 0 in version 2"),
        (send(&[0, 0, 0, 10, 0, 99, 0, 2, 0, 0, 0, 1, 255, 255]), "API 99 in version 2"),
    ];
    for (peer, why) in peers {
        wait_for("a line in the log", || {
            let log = node.process.log();
            log.lines().any(|line| line.contains(&peer) && line.contains(why)).then_some(())
        });
    }
    kcat(&node, &["-P", "-t", "still-works"], "yes\n");
}
