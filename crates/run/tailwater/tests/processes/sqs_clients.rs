//! Clients of Amazon SQS against the node, unmodified, one program for each below `tests/sqs/`: boto3, a new one, which
//! speaks JSON, and an old one, which speaks Query; the AWS command line; the AWS SDKs for Java, Go and JavaScript. The
//! node has an account, so what each of them signs is verified.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Node, Process, free_port, tailwater, told, wait_for};

/// What boto3 does.
const BOTO3: [&str; 9] = [
    "work_queue",
    "redrive",
    "fifo",
    "long_polling",
    "batches",
    "administration",
    "keys",
    "presigned",
    "clocks",
];

/// What they sign with: with characters that need care wherever a secret is written.
const KEY: (&str, &str) = ("AKIDTAILWATER", "secret/of+the=account");

/// Where a client is, once it is installed.
pub fn client(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let done = Command::new(root.join(".ci/sqs-clients")).arg(name).status().expect("it runs");
    assert!(done.success(), "{name} can't be installed: see above");
    root.join(".tools/sqs-clients").join(name)
}

/// A program below `tests/sqs`.
fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sqs").join(name)
}

/// Runs scenarios on a node; all have to hold.
fn holds(command: &mut Command, scenarios: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let (id, secret) = KEY;
    let accounts = format!(r#"[{{id="000000000000", keys=[{{id="{id}", secret="{secret}"}}]}}]"#);
    let environment = [("TAILWATER_SQS__ACCOUNTS", accounts.as_str())];
    let node = Node::start_with(&dir.path().join("data"), &[], &environment);
    command.env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", secret);
    command.arg(format!("http://{}", node.sqs)).args(scenarios);
    let (ok, out, err) = told(command, "");
    assert!(ok, "after these scenarios:\n{out}\n{err}");
    assert_eq!(out.lines().collect::<Vec<_>>(), scenarios);
}

#[test]
fn a_new_boto3_does_its_work_in_json() {
    holds(Command::new(client("boto3").join("bin/python")).arg(program("scenarios.py")), &BOTO3);
}

#[test]
fn an_old_boto3_does_its_work_in_the_query_protocol() {
    holds(Command::new(client("boto3-query").join("bin/python")).arg(program("scenarios.py")), &BOTO3);
}

#[test]
fn the_lines_of_the_guide_make_a_node_that_stands_in_for_an_emulator_in_a_suite_of_tests() {
    let guide = include_str!("../../../../../docs/queues.md");
    let (_, lines) = guide.split_once("### In tests").expect("the guide has them");
    let lines =
        lines.lines().skip_while(|line| !line.starts_with("    ")).take_while(|line| !line.is_empty());
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    // The shell becomes the node, on a port that is free.
    let address = format!("127.0.0.1:{}", free_port());
    let script = lines
        .join("\n")
        .replace("127.0.0.1:4566", &address)
        .replace("tailwater serve", "exec tailwater serve");
    assert!(script.contains(&address) && script.contains("exec "), "{script}");
    let dir = tempfile::tempdir().expect("a directory");
    let binary = tailwater();
    let folder = Path::new(binary.get_program()).parent().expect("a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-euc", &script]).env("PATH", path).env("TMPDIR", dir.path());
    for listen in ["DATA", "ADMIN"] {
        shell.env(format!("TAILWATER_LISTEN__{listen}"), "127.0.0.1:0");
    }
    let mut node = Process::start(&mut shell, &dir.path().join("log"));
    wait_for("the node to be there", || {
        assert!(node.is_running(), "{}", node.log());
        ureq::get(format!("http://{address}/health")).call().ok()
    });
    for python in ["boto3", "boto3-query"] {
        let mut suite = Command::new(client(python).join("bin/python"));
        suite.arg(program("scenarios.py")).arg(format!("http://{address}")).arg("test_double");
        suite.env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "one");
        let (ok, out, err) = told(&mut suite, "");
        assert!(ok, "{out}\n{err}\n{}", node.log());
    }
}

#[test]
fn the_aws_command_line_sends_batches_and_brings_dead_letters_back() {
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", client("aws").join("bin").display());
    for scenario in ["batches", "redrive", "keys"] {
        holds(Command::new(program("aws.sh")).env("PATH", &path), &[scenario]);
    }
}

#[test]
fn the_aws_sdk_for_java_works_off_a_queue_keeps_groups_in_order_and_sends_batches() {
    let tools = client("java");
    let mut command = Command::new("java");
    // Small and short-lived: what optimizes would take longer than it saves.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m", "-cp"]);
    command.arg(format!("{}:{}", tools.join("classes").display(), tools.join("lib/*").display()));
    holds(command.arg("Scenarios"), &["work_queue", "fifo", "batches"]);
}

#[test]
fn the_aws_sdk_for_go_keeps_groups_in_order_waits_with_fifty_clients_and_brings_dead_letters_back() {
    holds(&mut Command::new(client("go").join("scenarios")), &["fifo", "long_polling", "redrive"]);
}

#[test]
fn the_aws_sdk_for_javascript_works_off_a_queue_waits_with_fifty_clients_and_sends_batches() {
    let tools = client("js");
    // Modules are found from where a program is.
    std::fs::copy(program("js/scenarios.mjs"), tools.join("scenarios.mjs")).expect("it is copied");
    holds(Command::new("node").arg(tools.join("scenarios.mjs")), &["work_queue", "long_polling", "batches"]);
}
