//! boto3 against the node, unmodified: a new one, which speaks JSON, and an old one, which speaks Query.

#![allow(clippy::disallowed_methods)] // tests of real processes

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::Node;
use support::kafka::run;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs all scenarios with one boto3.
fn holds(client: &str) {
    let done = Command::new(root().join(".ci/sqs-clients")).arg(client).status().expect("it runs");
    assert!(done.success(), "{client} can't be installed: see above");
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start(&dir.path().join("data"));
    let scenarios = ["work_queue", "redrive", "fifo", "long_polling", "batches", "administration"];
    let mut command = Command::new(root().join(format!(".tools/sqs-clients/{client}/bin/python")));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sqs/scenarios.py"));
    command.arg(format!("http://{}", node.sqs)).args(scenarios);
    let (ok, out, err) = run(&mut command, "");
    assert!(ok, "after these scenarios:\n{out}\n{err}");
    assert_eq!(out.lines().collect::<Vec<_>>(), scenarios);
}

#[test]
fn a_new_boto3_does_its_work_in_json() {
    holds("boto3");
}

#[test]
fn an_old_boto3_does_its_work_in_the_query_protocol() {
    holds("boto3-query");
}
