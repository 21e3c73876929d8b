//! The packages for other languages, built as they are shipped, against a real node.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Node, cargo, kafka, told};

const LINES: usize = 2_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Runs a command that must succeed; what it wrote.
fn done(command: &mut Command) -> String {
    let (ok, out, err) = told(command, "");
    assert!(ok, "{command:?}\n{out}\n{err}");
    out
}

/// A node with what the packages' programs expect, and the address of one of the cell's backends.
fn node() -> (tempfile::TempDir, Node, String) {
    let (dir, node) = Node::with_stream(&["news", "--shards", "2"]);
    let cell =
        ["cell", "create", "tiles", "--backends", "3", "--mode", "r3.2", "--capacity-bytes", "33554432"];
    node.run(&cell);
    for (shard, codec) in [("0", "none"), ("1", "zstd")] {
        let line = |number: usize| {
            let key = if number.is_multiple_of(2) { format!("key {number}:") } else { String::new() };
            format!("{key}{shard} {number}\n")
        };
        let lines: String = (0..LINES).map(line).collect();
        let produce = ["produce", "news", "--shard", shard, "--codec", codec, "--key-delimiter", ":"];
        assert!(node.output(&produce, lines.as_bytes()).status.success());
    }
    node.run(&["stream", "create", "headed"]);
    kafka::need("kcat");
    kafka::kcat(&node, &["-P", "-t", "headed", "-H", "colour=red", "-H", "empty="], "with headers\n");
    let described: Value =
        serde_json::from_str(&node.run(&["cell", "describe", "tiles", "-o", "json"])).expect("JSON");
    let seed = described["backends"][0][0].as_str().expect("an address").to_owned();
    (dir, node, seed)
}

/// Builds the wheel, installs it, and runs the package's program.
fn python_does_what_its_guide_says(dir: &Path, library: &Path, node: &Node, seed: &str) {
    let wheels = dir.join("wheels");
    let wheel = done(Command::new(root().join(".ci/wheel")).arg(library).arg(&wheels));
    assert!(wheel.contains("-py3-none-") && !wheel.contains("-any"), "{wheel}");
    let packages = dir.join("packages");
    let python = root().join(".tools/wheel/python/bin/python");
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    done(Command::new(&python).args(install).arg("--target").arg(&packages).arg(wheel.trim()));
    let mut run = Command::new(&python);
    run.env("PYTHONPATH", &packages).args(["-X", "dev", "-W", "error"]);
    run.arg(root().join("clients/python/tests/scenarios.py"));
    let out = done(run.args([node.data.as_str(), seed]).arg(root().join("docs/languages.md")));
    assert!(out.ends_with("all done\n"), "{out}");
}

/// Runs the module's own tests.
fn go_does_what_its_tests_say(library: &Path, node: &Node, seed: &str) {
    done(Command::new(root().join(".ci/need")).arg("go=golang-go"));
    let libraries = library.parent().expect("a directory").to_str().expect("text");
    let mut test = Command::new("go");
    test.args(["test", "-count=1", "-v", "./..."]).current_dir(root().join("clients/go"));
    test.env("CGO_LDFLAGS", format!("-L{libraries}")).env("LD_LIBRARY_PATH", libraries);
    let out = done(test.env("TAILWATER_TEST_NODE", &node.data).env("TAILWATER_TEST_SEED", seed));
    assert!(out.contains("--- PASS: Test") && !out.contains("SKIP"), "{out}");
}

/// One test, as one node serves both.
#[test]
fn the_python_wheel_and_the_go_module_do_what_they_say_on_a_real_node() {
    let library = cargo::libtailwater();
    let (dir, node, seed) = node();
    python_does_what_its_guide_says(dir.path(), &library, &node, &seed);
    go_does_what_its_tests_say(&library, &node, &seed);
}
