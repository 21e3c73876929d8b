//! The client library's examples, built and run as the programs they are, against a real node.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::cargo::examples;
use crate::support::{Follower, Node, wait_for};

/// Runs a program that must succeed; the lines of its standard output.
fn lines_of(program: &Path, args: &[&str]) -> Vec<String> {
    let output = Command::new(program).args(args).output().expect("it starts");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// The first lines that a program writes, which is killed then.
fn first_lines_of(program: &Path, args: &[&str], count: usize) -> Vec<String> {
    let mut child = Command::new(program).args(args).stdout(Stdio::piped()).spawn().expect("it starts");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let lines = out.lines().take(count).map(|line| line.expect("text")).collect();
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    lines
}

#[test]
fn what_the_produce_example_appends_the_consume_example_prints_in_order() {
    let built = examples(&["produce", "consume"]);
    let [produce, consume] = &built[..] else { panic!("{built:?}") };
    let (_dir, node) = Node::with_stream(&["s", "--shards", "3"]);

    let acknowledged = lines_of(produce, &[&node.data, "s", "500"]);
    assert_eq!(acknowledged.len(), 500);
    let printed = first_lines_of(consume, &[&node.data, "s", "120"], 500);
    // Once nothing has come for as long as it is told to wait, it ends, and well.
    lines_of(consume, &[&node.data, "s", "0"]);

    // The producer prints a place for each line in the order of the lines, the consumer the places with the lines.
    let mut expected: Vec<(String, String)> =
        (0..).zip(acknowledged).map(|(number, place)| (place, format!("line {number}"))).collect();
    let mut received: Vec<(String, String)> = printed
        .iter()
        .map(|line| {
            let (place, value) = line.rsplit_once('\t').expect("shard, offset and value");
            (place.to_owned(), value.to_owned())
        })
        .collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let place = |place: &str| place.split_once('\t').map(|(shard, offset)| (number(shard), number(offset)));
    for shard in 0..3 {
        let offsets: Vec<_> =
            received.iter().filter_map(|(at, _)| place(at)).filter(|at| at.0 == shard).collect();
        assert!(offsets.is_sorted(), "shard {shard} in order");
    }
    expected.sort();
    received.sort();
    assert_eq!(received, expected);
}

#[test]
fn the_cache_example_reads_what_it_changed() {
    let (_dir, node) = Node::start_anew();
    let printed = lines_of(&examples(&["cache"])[0], &[&node.broadcast, "local/prices", "tea"]);
    assert_eq!(printed, ["tea costs 1", "tea costs 2", "tea costs 3"]);
}

#[test]
fn the_cache_example_says_that_it_may_be_stale_while_the_node_is_gone_and_that_it_is_not_when_it_is_back() {
    let (_dir, mut node) = Node::start_anew();
    let mut cache = Command::new(&examples(&["cache"])[0]);
    let cache = Follower::of(cache.args([&node.broadcast, "local/prices", "tea", "watch"]));
    let next = |line: &str| while cache.next() != line {};
    next("tea costs 4");
    node.process.kill();
    next("tea cost 4 when this was last known");
    node.restart();
    next("tea costs 4");
}

#[test]
fn the_broadcast_example_hands_events_and_tombstones_to_its_callback_and_goes_on_from_a_token() {
    let (_dir, node) = Node::start_anew();
    let example = &examples(&["broadcast"])[0];
    let run = |args: &[&str]| lines_of(example, &[&[node.broadcast.as_str(), "local/prices"], args].concat());
    for (number, [key, value]) in [["tea", "1"], ["coffee", "2"], ["tea", "3"]].into_iter().enumerate() {
        assert_eq!(run(&["publish", key, value]), [(number + 1).to_string()]);
    }
    let heard = run(&["listen", "2"]);
    assert_eq!(heard[..2], ["local/prices 1 to 1: obsolete", "local/prices 2: coffee is 2"]);
    let rest = run(&["listen", "1", &heard[2]]);
    assert_eq!(rest[0], "local/prices 3: tea is 3");
    run(&["publish", "coffee", "4"]);
    assert_eq!(run(&["listen", "1", &rest[1]])[0], "local/prices 4: coffee is 4");
}

#[test]
fn the_worker_example_keeps_what_takes_longer_than_its_timeout_and_does_what_failed_again() {
    let (_dir, node) = Node::start_anew();
    node.run(&["queue", "create", "jobs", "--visibility-timeout", "30"]);
    node.run(&["queue", "send", "jobs", "36000"]);
    let worker = &examples(&["worker"])[0];
    let printed = std::thread::scope(|scope| {
        let work = scope.spawn(|| lines_of(worker, &[&node.sqs, "jobs", "1"]));
        wait_for("the message to be in hand", || {
            let is_in_flight = node.run(&["queue", "ls", "-o", "json"]).contains("\"in_flight\":1");
            (is_in_flight || work.is_finished()).then_some(())
        });
        while !work.is_finished() {
            assert_eq!(node.run(&["queue", "receive", "jobs", "--wait", "1"]), "", "somebody works on it");
        }
        work.join().expect("it ends")
    });
    assert_eq!(printed, ["36000 done, receive 1"]);

    node.run(&["queue", "send", "jobs", "5!"]);
    let printed = lines_of(worker, &[&node.sqs, "jobs", "1"]);
    assert_eq!(printed, ["5! failed: the first time", "5 done, receive 2"]);
    let left = node.run(&["queue", "ls", "-o", "json"]);
    assert!(left.contains("\"messages\":0") && left.contains("\"in_flight\":0"), "{left}");
}

#[test]
fn the_state_example_starts_from_a_snapshot_without_the_updates_before_it_and_follows_those_behind() {
    let (_dir, node) = Node::with_stream(&["prices"]);
    let produce = |lines: &str| {
        let produced = node.output(&["produce", "prices", "-k", "="], lines.as_bytes());
        assert!(produced.status.success(), "{}", String::from_utf8_lossy(&produced.stderr));
    };
    produce("tea=1\ncoffee=2\ntea=3\n");
    node.run(&["snapshot", "publish", "prices", "--trim", "--keep", "1"]);

    let server = Follower::of(Command::new(&examples(&["state"])[0]).args([&node.data, "prices"]));
    let listens = server.next();
    let address = listens.strip_prefix("listening on ").expect("it says where");
    assert_eq!(server.next(), "shard 0: 2 keys up to offset 3");
    assert!(server.next().starts_with("loaded after "));

    let mut socket = BufReader::new(TcpStream::connect(address).expect("it listens"));
    let mut ask = |key: &str| {
        socket.get_mut().write_all(format!("{key}\n").as_bytes()).expect("it listens");
        let mut line = String::new();
        socket.read_line(&mut line).expect("it answers");
        line.trim_end().to_owned()
    };
    assert_eq!([ask("tea"), ask("coffee"), ask("water")], ["+3", "+2", "-"]);
    produce("water=5\n");
    wait_for("the update", || (ask("water") == "+5").then_some(()));
    assert_eq!(ask("tea"), "+3");
}

#[test]
fn examples_without_arguments_say_how_they_are_used() {
    for example in examples(&["produce", "consume", "state", "cache", "worker", "broadcast"]) {
        let output = Command::new(&example).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage: "));
    }
}
