//! Kafka's clients, installed by `.ci/kafka-clients` when they are not there.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Node, told};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Makes sure that a client is there: `kcat`, `python`, `java`, `go`.
pub fn need(client: &str) {
    let done = Command::new(root().join(".ci/kafka-clients")).arg(client).status().expect("it runs");
    assert!(done.success(), "{client} can't be installed: see above");
}

/// Runs kcat with `args` on a node's broker; its standard output.
pub fn kcat(node: &Node, args: &[&str], input: &str) -> String {
    let (ok, out, err) = told(Command::new("kcat").args(["-b", &node.kafka, "-m", "60"]).args(args), input);
    assert!(ok, "kcat {args:?} failed:\n{err}");
    out
}

/// kcat, when it has to fail; what it wrote to standard error.
pub fn kcat_failing(node: &Node, args: &[&str], input: &str) -> String {
    let (ok, out, err) = told(Command::new("kcat").args(["-b", &node.kafka, "-m", "60"]).args(args), input);
    assert!(!ok, "kcat {args:?} should fail, and wrote {out}");
    err
}

/// Runs a class of Apache Kafka, a tool of its own among them, or of our program in Java.
pub fn java(class: &str) -> Command {
    need("java");
    let mut command = Command::new("java");
    // Small and short-lived: what optimizes would take longer than it saves.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx512m", "-cp"]);
    let classes = root().join(".tools/kafka-clients/java");
    let path = format!("{}:{}", classes.display(), root().join(".tools/kafka/lib/*").display());
    command.arg(path).arg(class);
    command
}

/// A program below `tests/clients`, with what runs it.
pub fn program(name: &str) -> Command {
    let tools = root().join(".tools/kafka-clients");
    let (_, extension) = name.split_once('.').expect("a source file");
    match extension {
        "py" => {
            need("python");
            let mut command = Command::new(tools.join("python/bin/python"));
            command.arg(root().join("crates/run/tailwater/tests/clients/python").join(name));
            command
        }
        "java" => java(name.trim_end_matches(".java")),
        "go" => {
            need("go");
            Command::new(tools.join("go/clients"))
        }
        other => panic!("nothing runs {other}"),
    }
}

/// Runs one scenario of a program on a node's broker; it has to hold.
pub fn scenario(node: &Node, name: &str, scenario: &str) {
    let (ok, out, err) = told(program(name).args([&node.kafka, scenario]), "");
    assert!(ok, "{name} {scenario} failed:\n{out}\n{err}");
}
