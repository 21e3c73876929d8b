//! Kafka's clients, installed by `.ci/kafka-clients` when they are not there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Node, PATIENCE};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Makes sure that a client is there: `kcat`, `python`, `java`, `go`.
pub fn need(client: &str) {
    let done = Command::new(root().join(".ci/kafka-clients")).arg(client).status().expect("it runs");
    assert!(done.success(), "{client} can't be installed: see above");
}

/// Runs kcat with `args` on a node's broker; its standard output.
pub fn kcat(node: &Node, args: &[&str], input: &str) -> String {
    let (ok, out, err) = run(Command::new("kcat").args(["-b", &node.kafka]).args(args), input);
    assert!(ok, "kcat {args:?} failed:\n{err}");
    out
}

/// kcat, when it has to fail; what it wrote to standard error.
pub fn kcat_failing(node: &Node, args: &[&str], input: &str) -> String {
    let (ok, out, err) = run(Command::new("kcat").args(["-b", &node.kafka]).args(args), input);
    assert!(!ok, "kcat {args:?} should fail, and wrote {out}");
    err
}

/// A program below `tests/clients`, with what runs it.
pub fn program(name: &str) -> Command {
    let tools = root().join(".tools/kafka-clients");
    let (_, extension) = name.split_once('.').expect("a source file");
    match extension {
        "py" => {
            need("python");
            let mut command = Command::new(tools.join("python/bin/python"));
            command.arg(root().join("crates/tailwater/tests/clients/python").join(name));
            command
        }
        "java" => {
            need("java");
            let mut command = Command::new("java");
            // Small and short-lived: what optimizes would take longer than it saves.
            command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-cp"]);
            let path =
                format!("{}:{}", tools.join("java").display(), root().join(".tools/kafka/lib/*").display());
            command.arg(path).arg(name.trim_end_matches(".java"));
            command
        }
        "go" => {
            need("go");
            Command::new(tools.join("go/clients"))
        }
        other => panic!("nothing runs {other}"),
    }
}

/// Runs one scenario of a program on a node's broker; it has to hold.
pub fn scenario(node: &Node, name: &str, scenario: &str) {
    let (ok, out, err) = run(program(name).args([&node.kafka, scenario]), "");
    assert!(ok, "{name} {scenario} failed:\n{out}\n{err}");
}

/// Runs a command to its end, which has to come in time; whether it ended well, and what it wrote.
pub fn run(command: &mut Command, input: &str) -> (bool, String, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    let writer = std::thread::Builder::new()
        .spawn(move || {
            let _ = std::io::Write::write_all(&mut stdin, input.as_bytes());
        })
        .expect("a thread");
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let id = rustix::process::Pid::from_child(&child);
    let watch = std::thread::Builder::new()
        .spawn(move || {
            // A client that waits for ever is a failure, not a test that never ends.
            if ended.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
            }
        })
        .expect("a thread");
    let output = child.wait_with_output().expect("it ends");
    drop(done);
    watch.join().expect("it watched");
    writer.join().expect("it wrote");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}
