//! Cells that are loaded as a whole: from a directory and a file, while backends die.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Node, Process, tailwater, wait_for};

fn described(node: &Node) -> Value {
    serde_json::from_str(&node.run(&["cell", "describe", "roads", "-o", "json"])).expect("JSON")
}

fn load(node: &Node, from: &Path) -> String {
    node.run(&["cell", "load", "roads", "--from", from.to_str().expect("text")])
}

fn get(node: &Node, key: &str) -> String {
    node.run_in_time(&["cache", "get", "--cell", "roads", key]).trim_end().to_owned()
}

#[test]
fn a_cell_is_loaded_from_a_directory_and_anew_from_a_file_and_its_keys_are_not_changed_otherwise() {
    let (dir, node) = Node::start_anew();
    let create = [
        "cell",
        "create",
        "roads",
        "--backends",
        "2",
        "--mode",
        "r2-immutable",
        "--capacity-bytes",
        "8388608",
    ];
    assert_eq!(node.run(&create), "cell roads with 2 backends in mode R2/Immutable created\n");
    let status = |key: &str| {
        let output = node.command(&["cache", "get", "--cell", "roads", key]).output().expect("it runs");
        output.status.code()
    };
    assert_eq!(status("a"), Some(3), "nothing is loaded, which is no miss");
    let corpus = dir.path().join("corpus");
    fs::create_dir_all(corpus.join("north")).expect("a directory");
    fs::write(corpus.join("a"), "road a").expect("a file");
    fs::write(corpus.join("north/b"), "road b").expect("a file");
    assert!(load(&node, &corpus).starts_with("cell roads has 2 keys of "));
    assert_eq!((get(&node, "a"), get(&node, "north/b")), ("road a".to_owned(), "road b".to_owned()));
    assert_eq!(status("c"), Some(1));

    let lines = dir.path().join("lines");
    fs::write(&lines, "a\tanother a\nc\tc\twith a tab\n").expect("a file");
    load(&node, &lines);
    assert_eq!((get(&node, "a"), get(&node, "c")), ("another a".to_owned(), "c\twith a tab".to_owned()));
    assert_eq!(status("north/b"), Some(1), "the load before is gone");
    let generation = described(&node)["generation"].as_u64().expect("a number");

    fs::write(&lines, "a\tthird a\nno tab\n").expect("a file");
    let from = lines.to_str().expect("text");
    let told = node.run_failing(&["cell", "load", "roads", "--from", from]);
    assert!(told.contains("line 2 of") && told.contains("a key, a tab and its value"), "{told}");
    for change in [&["set", "--cell", "roads", "a", "x"][..], &["delete", "--cell", "roads", "a"]] {
        let told = node.run_failing(&[&["cache"], change].concat());
        assert!(told.contains("its keys can't be changed one by one; load it anew"), "{told}");
    }
    let told = node.run_failing(&["cache", "touch", "--cell", "roads", "a", "--ttl-ms", "1000"]);
    assert!(told.contains("nothing has changed: the cell is in mode R2/Immutable"), "{told}");
    assert!(node.run_failing(&["cache", "clear", "roads"]).contains("`tailwater cell load` replaces"));
    let large: String = (0..24).map(|n| format!("large {n}\t{}\n", "x".repeat(1 << 19))).collect();
    fs::write(&lines, large).expect("a file");
    let told = node.run_failing(&["cell", "load", "roads", "--from", from]);
    assert!(told.contains("and the load is larger: give backends more capacity"), "{told}");
    assert_eq!(get(&node, "a"), "another a");
    assert_eq!(described(&node)["generation"].as_u64(), Some(generation));
    numbers_of_no_load_are_refused(&node, generation);
    assert_eq!(get(&node, "a"), "another a");
    node.run(&["cell", "create", "tiles", "--backends", "1", "--mode", "r1"]);
    let told = node.run_failing(&["cell", "load", "tiles", "--from", from]);
    assert!(told.contains("only one in mode R2/Immutable is loaded"), "{told}");
}

/// Whoever asks for a load to be read that no backend has is refused, and the cell can be loaded afterwards.
fn numbers_of_no_load_are_refused(node: &Node, generation: u64) {
    let config_id = described(node)["config_id"].as_u64().expect("a number");
    for typed in [generation + 1, u64::MAX] {
        let asked = ureq::post(format!("http://{}/v1/cells/roads/load", node.admin))
            .header("content-type", "application/json")
            .config()
            .http_status_as_error(false)
            .build()
            .send(format!("{{\"generation\":{typed},\"config_id\":{config_id}}}"));
        let mut answer = asked.expect("an answer");
        let told = answer.body_mut().read_to_string().expect("text");
        assert_eq!(answer.status().as_u16(), 503, "{told}");
        assert!(told.contains("does not take the load"), "{told}");
        assert_eq!(described(node)["generation"].as_u64(), Some(generation));
    }
}

#[cfg(feature = "cold")]
#[test]
fn a_cell_is_loaded_from_an_s3_server_and_keeps_what_it_has_if_nothing_lies_there() {
    use crate::cold::{S3, s3_environment};

    let (dir, node) = Node::start_anew();
    let port = crate::support::free_port();
    let server = S3::start(dir.path(), port);
    node.run(&["cell", "create", "roads", "--backends", "2", "--mode", "r2-immutable"]);
    let load = |url: &str| {
        let mut command = node.command(&["cell", "load", "roads", "--from", url]);
        let (loaded, out, why) = crate::support::told(command.envs(s3_environment(port)), "");
        (loaded, out + &why)
    };
    // Besides values there is what some programs put for a folder.
    (0..50).for_each(|n| server.put(&format!("corpus/north/{n}"), &format!("road {n}")));
    server.put("corpus/north/", "");
    server.put("corpus/empty", "");
    server.put("corpus-of-others/a", "another one's");
    let (loaded, told) = load("s3://bucket/corpus");
    assert!(loaded && told.starts_with("cell roads has 51 keys of "), "{told}");
    assert_eq!((get(&node, "north/0"), get(&node, "north/49")), ("road 0".to_owned(), "road 49".to_owned()));
    assert_eq!(get(&node, "empty"), "");
    let (loaded, told) = load("s3://bucket/corpora");
    assert!(!loaded && told.contains("no object lies below s3://bucket/corpora"), "{told}");
    let (loaded, told) = load("s3://basket/corpus");
    assert!(!loaded && told.contains("s3://basket/corpus can't be read"), "{told}");
    server.put("corpus/large", &"x".repeat((1 << 20) + 1));
    let (loaded, told) = load("s3://bucket/corpus");
    assert!(!loaded && told.contains("large has 1048577 bytes, and a value has 1048576 at most"), "{told}");
    assert_eq!(get(&node, "north/17"), "road 17");
}

fn start_backend(socket: &Path) -> Process {
    let mut command = tailwater();
    command.args(["cache", "serve", "--cell", "roads", "--capacity-bytes", "8388608", "--unix"]).arg(socket);
    Process::start(&mut command, &socket.with_extension("log"))
}

#[test]
fn with_one_of_two_backends_killed_what_was_loaded_is_read_and_is_at_it_again_after_its_restart() {
    let (dir, node) = Node::start_anew();
    let sockets: Vec<PathBuf> = (0..2).map(|number| dir.path().join(format!("roads{number}.sock"))).collect();
    let mut backends: Vec<Process> = sockets.iter().map(|socket| start_backend(socket)).collect();
    let seeds: Vec<String> = sockets.iter().map(|socket| format!("unix:{}", socket.display())).collect();
    node.run(&[
        "cell",
        "create",
        "roads",
        "--mode",
        "r2-immutable",
        "--backend",
        &seeds[0],
        "--backend",
        &seeds[1],
    ]);
    let lines = dir.path().join("lines");
    let corpus = |what: &str| (0..50).map(|n| format!("key {n}\t{what} {n}\n")).collect::<String>();
    fs::write(&lines, corpus("first")).expect("a file");
    wait_for("both backends to take a load", || {
        let args = ["cell", "load", "roads", "--from", lines.to_str().expect("text")];
        node.command(&args).output().expect("it runs").status.success().then_some(())
    });
    for number in 0..2 {
        backends[number].kill();
        for n in [0, 17, 49] {
            assert_eq!(get(&node, &format!("key {n}")), format!("first {n}"));
        }
        let told = node.run_failing(&["cell", "load", "roads", "--from", lines.to_str().expect("text")]);
        assert!(told.contains(&format!("backend {number} does not take the load")), "{told}");
        backends[number] = start_backend(&sockets[number]);
        wait_for("it to be refilled", || {
            let cell = described(&node);
            let places = cell["places"].as_array().expect("backends").clone();
            places.iter().all(|place| place["filled_percent"] == 100.0).then_some(())
        });
    }
    fs::write(&lines, corpus("second")).expect("a file");
    load(&node, &lines);
    assert_eq!(get(&node, "key 49"), "second 49");
}
