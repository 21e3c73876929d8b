//! The source of a stream moves from cluster to cluster, in order and by force; a cluster is drained.

use serde_json::Value;

use crate::copies::{bounds, cluster, place_in_a_chain, records, stream, three, wait_until_copied};
use crate::support::kafka::{kcat, kcat_failing, need};
use crate::support::{Node, wait_for, wait_for_or_tell};

fn lines(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{what} {number}")).collect()
}

fn source_of(node: &Node, name: &str) -> Option<String> {
    let source = stream(node, name)?["source"].clone();
    Some(source.as_str().unwrap_or("here").to_owned())
}

fn term(node: &Node, name: &str) -> u64 {
    stream(node, name).and_then(|stream| stream["shards"][0]["term"].as_u64()).expect("a term")
}

/// Waits until two clusters have the same records.
fn wait_until_same(a: &Node, b: &Node, name: &str) {
    let tell = || format!("{:?}\n{:?}\n{}", bounds(a, name), bounds(b, name), a.run(&["tree", "show", name]));
    wait_for_or_tell("the same records", || (records(a, name) == records(b, name)).then_some(()), tell);
}

#[test]
fn the_source_moves_with_everything_and_there_and_back_and_kafkas_clients_follow() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let [mut us, mut eu, asia] = three(dir.path());
    us.run(&["stream", "create", "orders", "--shards", "2"]);
    place_in_a_chain(dir.path(), &us, "orders");
    us.produce("orders", &lines("before", 200));
    let term_before = term(&us, "orders");

    // A consumer that began before the move, where the source was, goes on.
    let following = {
        let kafka = us.kafka.clone();
        std::thread::spawn(move || {
            let mut command = std::process::Command::new("kcat");
            command.args([
                "-b",
                &kafka,
                "-C",
                "-t",
                "orders",
                "-o",
                "beginning",
                "-c",
                "403",
                "-q",
                "-f",
                "%s\\n",
            ]);
            String::from_utf8(crate::support::run(&mut command, b"").stdout).expect("text")
        })
    };
    let refused = us.run_failing(&["stream", "place", "orders", "--source", "nowhere"]);
    assert!(refused.contains("place the stream there too"), "{refused}");
    let moved = us.run(&["stream", "place", "orders", "--source", "eu"]);
    assert!(moved.contains("has its source in eu"), "{moved}");
    assert_eq!(source_of(&us, "orders").as_deref(), Some("eu"));
    assert_eq!(source_of(&eu, "orders").as_deref(), Some("here"));

    let refused = String::from_utf8(us.output(&["produce", "orders"], b"late\n").stderr).expect("text");
    assert!(refused.contains("its source is in the cluster \"eu\""), "{refused}");
    assert!(kcat_failing(&us, &["-P", "-t", "orders"], "late\n").contains("Policy"));
    eu.produce("orders", &lines("after", 200));
    kcat(&eu, &["-P", "-t", "orders", "-p", "0"], "one\ntwo\nthree\n");
    assert!(term(&eu, "orders") > term_before, "the new source has a higher term");
    wait_until_copied(&eu, &us, "orders");
    wait_until_copied(&eu, &asia, "orders");
    assert_eq!(following.join().expect("it ends").lines().count(), 403);
    let source = records(&eu, "orders");
    assert_eq!(source.len(), 403);
    assert!(records(&us, "orders") == source && records(&asia, "orders") == source, "all have the same");
    let shown = eu.run(&["tree", "show", "orders"]);
    assert!(shown.contains("orders from eu"), "{shown}");

    // Both know what they are after a restart, and the source moves back.
    us.process.kill();
    eu.process.kill();
    us.restart();
    eu.restart();
    eu.produce("orders", &lines("again", 50));
    wait_until_copied(&eu, &us, "orders");
    eu.run(&["stream", "place", "orders", "--source", "us"]);
    us.produce("orders", &lines("home", 50));
    wait_until_copied(&us, &asia, "orders");
    assert_eq!(records(&asia, "orders"), records(&us, "orders"));
    assert_eq!(records(&us, "orders").len(), 503);
}

#[test]
fn a_move_that_is_interrupted_goes_on_when_both_clusters_run_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let [mut us, mut eu, asia] = three(dir.path());
    us.run(&["stream", "create", "orders"]);
    place_in_a_chain(dir.path(), &us, "orders");
    us.produce("orders", &lines("a", 20));
    wait_until_copied(&us, &asia, "orders");
    // What the other cluster lacks it can't get, and no more records come.
    eu.process.kill();
    us.produce("orders", &lines("b", 20));
    let server = us.admin.clone();
    let moving = std::thread::spawn(move || {
        let mut command = crate::support::tailwater();
        command.args(["--server", &server, "stream", "place", "orders", "--source", "eu"]);
        command.output().expect("it runs").status.success()
    });
    wait_for("the source to take no more", || {
        (source_of(&us, "orders").as_deref() == Some("eu")).then_some(())
    });
    us.process.kill();
    assert!(!moving.join().expect("it ends"), "nobody says that it has moved");
    us.restart();
    assert_eq!(source_of(&us, "orders").as_deref(), Some("eu"), "it does not take records again");
    eu.restart();
    wait_for("the source to have moved", || (source_of(&eu, "orders")? == "here").then_some(()));
    eu.produce("orders", &lines("c", 20));
    wait_until_copied(&eu, &asia, "orders");
    wait_until_same(&eu, &us, "orders");
    assert_eq!(records(&asia, "orders").len(), 60);
}

#[test]
fn a_source_that_is_dead_is_replaced_by_force_and_puts_its_surplus_aside_when_it_returns() {
    let dir = tempfile::tempdir().expect("a directory");
    let [mut us, mut eu, asia] = three(dir.path());
    us.run(&["stream", "create", "orders"]);
    us.run(&["stream", "place", "orders", "--source", "us", "--to", "eu,asia"]);
    us.produce("orders", &lines("before", 100));
    wait_until_copied(&us, &eu, "orders");
    eu.process.kill();
    us.produce("orders", &lines("surplus", 30));
    wait_until_copied(&us, &asia, "orders");
    us.process.kill();
    eu.restart();

    let refused = eu.run_failing(&["stream", "place", "orders", "--source", "asia", "--force"]);
    assert!(refused.contains("by a node of the cluster that shall have it"), "{refused}");
    let taken = eu.run(&["stream", "place", "orders", "--source", "eu", "--force"]);
    let row = |cluster: &str| {
        let is_of =
            |line: &&str| line.split(|byte: char| !byte.is_alphanumeric()).any(|word| word == cluster);
        let line = taken.lines().find(is_of);
        line.unwrap_or_else(|| panic!("{taken}")).to_owned()
    };
    assert!(row("eu").contains("100"), "{taken}");
    assert!(row("asia").contains("130") && row("asia").contains("30"), "{taken}");
    assert!(row("us").contains("not known"), "{taken}");
    eu.produce("orders", &lines("after", 50));
    let source = records(&eu, "orders");
    assert_eq!(source.len(), 150);
    // One that was ahead of the new source gives up what it had beyond.
    wait_until_same(&eu, &asia, "orders");

    us.restart();
    wait_for("the old source to be a copy", || (source_of(&us, "orders")? == "eu").then_some(()));
    wait_until_same(&eu, &us, "orders");
    assert!(records(&eu, "orders") == source, "nothing of the surplus has come back");
    for name in ["us", "asia"] {
        let aside = dir.path().join(name).join("aside");
        let files: Vec<_> = std::fs::read_dir(&aside).expect("put aside").flatten().collect();
        assert_eq!(files.len(), 1, "{name}");
        let bytes = std::fs::read(files[0].path()).expect("a file");
        assert!(
            bytes.windows(10).any(|window| window == b"surplus 29"),
            "{name}: what was put aside is whole"
        );
    }
    us.process.kill();
    us.restart();
    eu.produce("orders", &lines("later", 10));
    wait_until_same(&eu, &us, "orders");
    let refused = eu.run_failing(&["stream", "place", "orders", "--source", "eu", "--force"]);
    assert!(refused.contains("has its source in this cluster already"), "{refused}");
}

#[test]
fn nothing_is_copied_through_a_cluster_that_is_drained_and_nothing_is_placed_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let [us, mut eu, asia] = three(dir.path());
    us.run(&["stream", "create", "orders"]);
    place_in_a_chain(dir.path(), &us, "orders");
    us.produce("orders", &lines("a", 10));
    wait_until_copied(&us, &asia, "orders");
    let drained = us.run(&["cluster", "drain", "eu"]);
    assert!(drained.contains("orders is copied around it"), "{drained}");
    wait_for("the other way", || {
        let shown: Value = serde_json::from_str(&us.run(&["tree", "show", "orders", "-o", "json"])).ok()?;
        let hops = shown["hops"].as_array()?.clone();
        let asia = hops.iter().find(|hop| hop["to"] == "asia")?;
        (asia["from"] == "us" && asia["is_copying"] == true).then_some(())
    });
    eu.process.kill();
    us.produce("orders", &lines("b", 10));
    wait_until_copied(&us, &asia, "orders");
    us.run(&["stream", "create", "others"]);
    let refused = us.run_failing(&["stream", "place", "others", "--source", "us", "--to", "eu,asia"]);
    assert!(refused.contains("is being drained"), "{refused}");
    let refused = us.run_failing(&["stream", "place", "orders", "--source", "eu"]);
    assert!(refused.contains("is being drained"), "{refused}");
    assert!(us.run(&["cluster", "ls"]).contains("draining"));
    us.run(&["cluster", "drain", "eu", "--undo"]);
    us.run(&["stream", "place", "others", "--source", "us", "--to", "eu,asia"]);
    let other = cluster(dir.path(), "za");
    let refused = other.run_failing(&["cluster", "drain", "za"]);
    assert!(refused.contains("is this cluster itself"), "{refused}");
}
