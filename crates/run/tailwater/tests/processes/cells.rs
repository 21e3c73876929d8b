//! Cells beside the log's own: created, found by one of their backends, and kept over restarts.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Follower, Node, Process, TIME_ENOUGH, free_port, tailwater, wait_for};

fn described(node: &Node, cell: &str) -> Value {
    serde_json::from_str(&node.run(&["cell", "describe", cell, "-o", "json"])).expect("JSON")
}

/// A command that needs no node, but a cell.
fn alone(args: &[&str]) -> (bool, String) {
    let output = tailwater().args(args).args(TIME_ENOUGH).output().expect("it runs");
    let told = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&told).into_owned())
}

fn set(seed: &str, key: &str, value: &str) {
    let (is_set, told) = alone(&["cache", "set", "--seed", seed, key, value]);
    assert!(is_set, "{told}");
}

fn got(seed: &str, key: &str) -> String {
    alone(&["cache", "get", "--seed", seed, key]).1.trim().to_owned()
}

#[test]
fn a_cell_that_was_created_is_used_by_who_knows_one_of_its_backends_and_is_there_again_after_a_restart() {
    let (_dir, mut node) = Node::start_anew();
    let create =
        ["cell", "create", "tiles", "--backends", "3", "--mode", "r3.2", "--capacity-bytes", "1048576"];
    assert_eq!(node.run(&create), "cell tiles with 3 backends in mode R3.2 created\n");
    let before = described(&node, "tiles");
    assert_eq!((&before["live"], &before["mode"]), (&3.into(), &"R3.2".into()));
    let addresses = |cell: &Value, at: usize, which: usize| {
        cell["backends"][at][which].as_str().expect("an address").to_owned()
    };
    // Through shared memory at one backend, over TCP at another.
    set(&addresses(&before, 2, 0), "tea", "1");
    assert_eq!(got(&addresses(&before, 0, 1), "tea"), "1");
    assert!(got(&addresses(&before, 0, 1), "coffee").contains("the cell has no value for coffee"));
    node.run(&["cache", "clear", "tiles"]);
    assert!(got(&addresses(&before, 1, 0), "tea").contains("the cell has no value for tea"));

    let log = described(&node, "data");
    assert!(node.process.stop(), "a graceful stop ends well");
    node.restart();
    let after = wait_for("all of its backends", || {
        Some(described(&node, "tiles")).filter(|tiles| tiles["live"] == 3)
    });
    let id = |cell: &Value| cell["config_id"].as_u64().expect("a number");
    // The ports are others.
    assert!(id(&after) > id(&before), "{after}");
    assert_eq!(id(&described(&node, "data")), id(&log), "nothing has changed");
    set(&addresses(&after, 1, 1), "tea", "2");
    assert_eq!(got(&addresses(&after, 2, 0), "tea"), "2");

    assert!(node.run_failing(&create).contains("there is a cell tiles already"));
    assert!(node.run_failing(&["cell", "describe", "tile"]).contains("`tailwater cell ls` lists the cells"));
    let too_few = ["cell", "create", "more", "--backends", "2", "--mode", "r3.2"];
    assert!(node.run_failing(&too_few).contains("has 3 backends at least, not 2"));
    assert!(
        node.run_failing(&["cell", "create", "a b", "--backends", "1", "--mode", "r1"])
            .contains("no cell's name")
    );
    let listed = node.run(&["cell", "ls"]);
    assert!(["data", "metadata", "tiles"].iter().all(|cell| listed.contains(cell)), "{listed}");
}

#[test]
fn a_command_that_follows_a_key_prints_its_value_each_time_that_somebody_changes_it() {
    let (_dir, node) = Node::start_anew();
    let create = ["--backends", "3", "--mode", "r3.2", "--capacity-bytes", "1048576"];
    node.run(&[&["cell", "create", "tiles"], &create[..]].concat());
    wait_for("all of its backends", || (described(&node, "tiles")["live"] == 3).then_some(()));
    let follow = [&["cache", "follow", "--cell", "tiles", "tea", "coffee"], &TIME_ENOUGH[..]].concat();
    let follower = Follower::of(&mut node.command(&follow));
    let mut first = [follower.next(), follower.next()];
    first.sort();
    assert_eq!(first, ["coffee has no value", "tea has no value"]);
    for value in ["1", "2"] {
        node.run_in_time(&["cache", "set", "--cell", "tiles", "tea", value]);
        assert_eq!(follower.next(), format!("tea = {value}"));
    }
    node.run(&["cache", "clear", "tiles"]);
    assert_eq!(follower.next(), "tea has no value");
}

fn start_backend(socket: &Path) -> Process {
    let mut command = tailwater();
    command.args(["cache", "serve", "--cell", "tiles", "--capacity-bytes", "1048576", "--unix"]).arg(socket);
    Process::start(&mut command, &socket.with_extension("log"))
}

#[test]
fn every_way_to_look_up_gets_a_value_over_tcp_while_one_of_three_backends_is_stopped() {
    let (dir, node) = Node::start_anew();
    let tcp: Vec<String> = (0..3).map(|_| format!("127.0.0.1:{}", free_port())).collect();
    let start = |number: usize| {
        let mut command = tailwater();
        command.args([
            "cache",
            "serve",
            "--cell",
            "far",
            "--capacity-bytes",
            "1048576",
            "--tcp",
            &tcp[number],
        ]);
        Process::start(&mut command, &dir.path().join(format!("far{number}.log")))
    };
    let backends: Vec<Process> = (0..3).map(start).collect();
    let addresses: Vec<String> = tcp.iter().map(|tcp| format!("tcp:{tcp}")).collect();
    let mut create = vec!["cell", "create", "far", "--mode", "r3.2"];
    addresses.iter().for_each(|address| create.extend(["--backend", address]));
    node.run(&create);
    wait_for("the node to reach them", || (described(&node, "far")["live"] == 3).then_some(()));
    set(&addresses[0], "tea", "1");
    let ways = ["auto", "two", "all", "2xr", "scar", "call"];
    let run = |way: &str, key: &str, more: &[&str]| {
        let args = ["cache", "get", "--seed", &addresses[0], "--lookup", way, key];
        let output = tailwater().args(args).args(more).output().expect("it runs");
        let told = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&told).into_owned())
    };
    for way in ways {
        assert_eq!(run(way, "tea", &TIME_ENOUGH), (Some(0), "1\n".to_owned()), "{way}");
        assert_eq!(run(way, "coffee", &TIME_ENOUGH).0, Some(1), "{way}");
    }
    backends[2].signal(rustix::process::Signal::STOP);
    for way in ways {
        // The one that is stopped holds each command up for the time that it has, which is the default.
        let (_, told) = wait_for("a command that had time enough", || {
            Some(run(way, "tea", &[])).filter(|(status, _)| *status == Some(0))
        });
        assert_eq!(told, "1\n", "{way}");
    }
    backends[1].signal(rustix::process::Signal::STOP);
    let (status, why) = run("all", "tea", &[]);
    assert_eq!(status, Some(3), "nothing can be said: {why}");
    assert!(run("three", "tea", &[]).1.contains("use one of auto, two, all, 2xr, scar, call"));
}

#[test]
fn backends_that_start_after_their_node_one_at_a_time_make_a_cell_that_goes_on_without_the_node() {
    let (dir, mut node) = Node::start_anew();
    let sockets: Vec<PathBuf> = (0..3).map(|number| dir.path().join(format!("tiles{number}.sock"))).collect();
    let seeds: Vec<String> = sockets.iter().map(|socket| format!("unix:{}", socket.display())).collect();
    let mut create = vec!["cell", "create", "tiles", "--mode", "r3.2"];
    seeds.iter().for_each(|seed| create.extend(["--backend", seed]));
    node.run(&create);
    assert_eq!(described(&node, "tiles")["live"], 0);
    let mut backends: Vec<Option<Process>> = vec![None, None, None];
    for (started, number) in [2, 0, 1].into_iter().enumerate() {
        backends[number] = Some(start_backend(&sockets[number]));
        wait_for("the node to reach it", || (described(&node, "tiles")["live"] == started + 1).then_some(()));
    }
    set(&seeds[0], "tea", "1");

    // Metadata is away, and one of three starts again: who uses the cell next tells it.
    node.process.kill();
    assert_eq!(got(&seeds[1], "tea"), "1");
    backends[2].as_mut().expect("it was started").kill();
    backends[2] = Some(start_backend(&sockets[2]));
    let why = || got(&seeds[2], "tea");
    wait_for("it to answer that it knows nothing", || {
        why().contains("no configuration of its cell yet").then_some(())
    });
    // Whoever is done with the two others may not have come to tell it.
    wait_for("it to be told", || {
        set(&seeds[0], "tea", "2");
        (why() == "2").then_some(())
    });
}

#[test]
fn a_backend_that_names_its_readers_lets_nobody_else_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = |name: &str| {
        let address = format!("127.0.0.1:{}", free_port());
        let seed = format!("tcp:{address}");
        let mut command = tailwater();
        command.args(["cache", "serve", "--cell", "tiles", "--capacity-bytes", "1048576"]);
        command.args(["--tcp", &address, "--reader", name]);
        (Process::start(&mut command, &dir.path().join(name.replace(':', "-"))), seed)
    };
    // Whoever is let in learns that nobody has told it its configuration.
    let (_reading, seed) = start("anonymous");
    wait_for("the reader to be let in", || {
        got(&seed, "tea").contains("no configuration of its cell yet").then_some(())
    });
    let (refusing, seed) = start("uid:4711");
    wait_for("a line about who was refused", || {
        let told = got(&seed, "tea");
        assert!(!told.contains("no configuration"), "{told}");
        refusing.log().contains("anonymous may not read the cell tiles").then_some(())
    });
}

#[test]
fn what_a_cell_does_is_in_the_node_s_series_and_in_cache_top() {
    let address = format!("127.0.0.1:{}", free_port());
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_with(&dir.path().join("data"), &["--memcached", &address], &[]);
    // What the node answers, and how often it was asked: a node that is late with its cell says so.
    let says = |request: &str, ends: &str| {
        let mut asked = 0;
        let answer = wait_for("a node that is in time", || {
            asked += 1;
            let mut stream = std::net::TcpStream::connect(&address).expect("the node listens");
            stream.write_all(request.as_bytes()).expect("the node reads");
            let mut answer = Vec::new();
            for line in std::io::BufReader::new(stream).lines() {
                let line = line.expect("the node answers");
                if line.starts_with("SERVER_ERROR") {
                    return None;
                }
                answer.push(line);
                if answer.last().is_some_and(|line| line == ends) {
                    break;
                }
            }
            Some(answer)
        });
        (answer, asked)
    };
    assert_eq!(says("set tea 0 0 2\r\nmy\r\n", "STORED").0, ["STORED"]);
    let (got, asked) = says("get tea coffee\r\n", "END");
    assert_eq!(got, ["VALUE tea 0 2", "my", "END"]);
    let series = |name: &str| node.metric(&format!("tailwater_cell_{name}_total{{cell=\"memcached\"}}"));
    let lookups = ["hit", "miss", "inconclusive"].map(|outcome| {
        let labels = format!("cell=\"memcached\",operation=\"consistent\",outcome=\"{outcome}\"");
        node.metric(&format!("tailwater_cell_lookups_total{{{labels}}}"))
    });
    if asked == 1 {
        assert_eq!(lookups, [Some(1.0), Some(1.0), Some(0.0)]);
    } else {
        assert!(lookups[..2].iter().all(|outcome| *outcome >= Some(1.0)), "{lookups:?} of {asked}");
    }
    let retries = "tailwater_cell_lookup_retries_total{cell=\"memcached\",cause=\"disagreed\"}";
    assert_eq!(node.metric(retries), Some(0.0));
    assert!(series("updates").or(series("sets")).is_some());
    assert_eq!(node.metric("tailwater_backend_dirty{cell=\"memcached\"}"), Some(0.0));
    // A cell of memcached's keeps what is read, which the node tells it in the background.
    wait_for("the backend to be told of a read", || {
        node.metric("tailwater_backend_touches_total{cell=\"memcached\"}").filter(|touches| *touches >= 1.0)
    });

    let told =
        node.run(&["cache", "top", "--cell", "memcached", "--every-ms", "100", "-n", "2", "-o", "json"]);
    let looks: Vec<Value> =
        told.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    assert_eq!((looks.len(), &looks[1][0]["entries"]), (2, &1.into()), "{told}");
    let table = node.run(&["cache", "top", "--cell", "memcached", "--every-ms", "100", "-n", "1"]);
    assert!(table.contains("EVICTED/S") && table.contains("1 of 1 backends answer"), "{table}");
}
