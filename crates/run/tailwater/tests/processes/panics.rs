//! A panic ends a process that serves. What the operating system can refuse and the program can't do without, a thread,
//! is what makes it panic here.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::support::{Node, Process, preloaded, serve, tailwater, wait_for};

const ABORTED: i32 = 6;

fn start_backend(dir: &Path, environment: &[(&str, &str)]) -> Process {
    let mut command = tailwater();
    command.args(["cache", "serve", "--cell", "data", "--capacity-bytes", "33554432", "--unix"]);
    command.arg(dir.join("backend.sock")).envs(environment.iter().copied());
    Process::start(&mut command, &dir.join("backend.log"))
}

/// Starts one that listens.
fn ready_backend(dir: &Path) -> Process {
    let backend = start_backend(dir, &[]);
    let socket = dir.join("backend.sock");
    wait_for("a backend to listen", || std::os::unix::net::UnixStream::connect(&socket).ok());
    backend
}

#[test]
fn a_panic_of_one_task_ends_the_node_with_a_line_that_says_why_and_the_next_start_recovers() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = preloaded(dir.path(), "failing_threads");
    let trigger = dir.path().join("no-threads");
    let mut backend = ready_backend(dir.path());
    let backends = format!("[[\"unix:{}\"]]", dir.path().join("backend.sock").display());
    let environment = [
        ("LD_PRELOAD", library.as_str()),
        ("FAILING_THREADS", trigger.to_str().expect("text")),
        ("TAILWATER_LOGGING__FORMAT", "json"),
        ("TAILWATER_DATA_CELL__BACKENDS", &backends),
    ];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &environment);
    node.run(&["stream", "create", "s"]);
    let lines: Vec<String> = (0..100).map(|number| format!("line {number}")).collect();
    node.produce("s", &lines);
    // A process waits for its backends on a thread that ends with the last of them.
    backend.kill();
    wait_for("that thread to end", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", node.process.id())).expect("it runs");
        let mut names = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("comm")));
        (!names.any(|name| name.is_ok_and(|name| name.trim() == "rma-waiter"))).then_some(())
    });
    std::fs::write(&trigger, "").expect("written");
    let _backend = ready_backend(dir.path());
    assert_eq!(node.process.ended().signal(), Some(ABORTED));
    let log = node.process.log();
    let told = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let panics: Vec<_> = told.filter(|line| line["fields"]["why"].is_string()).collect();
    let named = |line: &serde_json::Value| {
        let why = line["fields"]["why"].as_str().unwrap_or_default();
        line["level"] == "ERROR" && why.contains("starts a thread") && line["fields"]["at"].is_string()
    };
    assert!(panics.iter().any(named), "{panics:?}");
    std::fs::remove_file(&trigger).expect("removed");
    node.restart();
    assert_eq!(node.consume("s"), lines);
}

#[test]
fn a_panic_ends_a_cache_backend_with_a_line_that_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = preloaded(dir.path(), "failing_threads");
    let trigger = dir.path().join("no-threads");
    std::fs::write(&trigger, "").expect("written");
    let environment =
        [("LD_PRELOAD", library.as_str()), ("FAILING_THREADS", trigger.to_str().expect("text"))];
    let mut backend = start_backend(dir.path(), &environment);
    assert_eq!(backend.ended().signal(), Some(ABORTED));
    let log = backend.log();
    assert!(log.contains("ERROR") && log.contains("the process ends") && log.contains("why="), "{log}");
}

#[test]
fn a_log_that_can_not_be_written_ends_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
    let mut command = serve(&dir.path().join("data"));
    // It says of everything where it listens.
    command.env("TAILWATER_LOGGING__FILTER", "debug");
    let mut node = command.stderr(full).spawn().expect("it starts");
    let socket = dir.path().join("data/node.sock");
    wait_for("the node to listen", || {
        assert_eq!(node.try_wait().expect("a process"), None, "it ended");
        std::os::unix::net::UnixStream::connect(&socket).ok()
    });
    assert_eq!(node.try_wait().expect("a process"), None, "it ended");
    node.kill().expect("it is there");
    node.wait().expect("it ended");
}
