//! A node with cold storage: a directory, an S3 server, and ledgers in place of the disk.

use std::path::Path;

use crate::support::kafka::{kcat, need};
use crate::support::{Node, wait_for};
#[cfg(feature = "cold")]
use crate::support::{Process, free_port};

const LINES: usize = 2_000;

fn lines(from: usize, count: usize) -> Vec<String> {
    (from..from + count).map(|number| format!("line {number:06} {}", "x".repeat(80))).collect()
}

fn described(node: &Node, stream: &str) -> serde_json::Value {
    serde_json::from_str(&node.run(&["stream", "describe", stream, "-o", "json"])).expect("JSON")
}

/// The completed segments of a stream's one shard, as `stream describe` has them.
fn completed(node: &Node, stream: &str) -> Vec<serde_json::Value> {
    let described = described(node, stream);
    let segments = described["shards"][0]["segments"].as_array().cloned().unwrap_or_default();
    segments.into_iter().filter(|segment| segment["sealed"] == true).collect()
}

/// Appends some, and some more, as a segment is completed by what does not fit in it: appended at once they may be one.
fn produce(node: &Node, stream: &str, all: &[String]) {
    for some in all.chunks(200) {
        node.produce(stream, some);
    }
}

/// Waits until there are so many completed segments at least, and all have left the node.
fn wait_until_released(node: &Node, stream: &str, at_least: usize) {
    wait_for("all completed segments to leave the node", || {
        let segments = completed(node, stream);
        let all = segments.iter().all(|segment| segment["released"] == true);
        (all && segments.len() >= at_least).then_some(())
    });
}

/// A node whose stream "s" has short segments, which leave it at once.
fn node(dir: &Path, environment: &[(&str, &str)]) -> Node {
    let node = Node::start_with(&dir.join("data"), &[], environment);
    let flags = ["--cold", "--cold-after-ms", "0", "--segment-bytes", "20000"];
    node.run(&[&["stream", "create", "s"], &flags[..]].concat());
    node
}

/// That everybody is given all `lines`, whichever way they ask.
fn check_read(node: &Node, expected: &[String]) {
    assert!(node.consume("s") == expected, "one-sided readers");
    let read = kcat(node, &["-C", "-q", "-t", "s", "-o", "beginning", "-e"], "");
    assert!(read.lines().eq(expected), "Kafka's clients");
    let last = kcat(node, &["-C", "-q", "-t", "s", "-o", "17", "-c", "2"], "");
    assert!(last.lines().eq(&expected[17..19]), "from an offset: {last}");
}

fn in_order_and_whole(node: &mut Node) {
    need("kcat");
    let all = lines(0, LINES);
    produce(node, "s", &all);
    wait_until_released(node, "s", 6);
    check_read(node, &all);
    node.process.kill();
    node.restart();
    wait_until_released(node, "s", 6);
    check_read(node, &all);
    assert_eq!(node.metric("tailwater_cold_up"), Some(1.0));
    assert!(node.metric("tailwater_cold_read_bytes_total").expect("it is told") > 100_000.0);

    // Removed, kept, and back.
    node.run(&["stream", "truncate", "s", "--before", "1500"]);
    assert!(node.consume("s") == all[1_500..]);
    wait_for("the removed segments to go", || {
        let first = completed(node, "s")[0]["base_offset"].as_u64()?;
        (first > 1_000).then_some(())
    });
    node.process.kill();
    node.restart();
    let told = node.run(&["stream", "restore", "s", "--from", "700"]);
    assert_eq!(told, "shard 0 now begins at offset 700\n");
    assert!(node.consume("s") == all[700..]);
    node.run(&["stream", "restore", "s"]);
    check_read(node, &all);
    assert!(node.run_failing(&["stream", "restore", "s"]).contains("begins at offset 0"));
}

fn files(dir: &Path) -> usize {
    // One that the node has just removed has none.
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

#[test]
fn segments_leave_for_a_directory_are_read_there_removed_and_restored_over_kills() {
    let dir = tempfile::tempdir().expect("a directory");
    let cold = dir.path().join("cold");
    std::fs::create_dir(&cold).expect("made");
    let url = format!("file://{}", cold.display());
    let mut node = node(dir.path(), &[("TAILWATER_COLD__URL", &url), ("TAILWATER_COLD__SWEEP_MS", "1000")]);
    in_order_and_whole(&mut node);
    let shown = node.run(&["stream", "describe", "s"]);
    assert!(shown.contains("of them only there") && shown.contains("cold-after-ms"), "{shown}");
    assert!(files(&cold) > 10);
    node.run(&["stream", "delete", "s"]);
    wait_for("the copies of a deleted stream to go", || (files(&cold) == 0).then_some(()));

    // What is configured otherwise is refused by name.
    let why = node.run_failing(&["stream", "create", "t", "--cold-after-ms", "soon"]);
    assert!(why.contains("--cold-after-ms"), "{why}");
    node.run(&["stream", "create", "t", "--retention-ms", "60000"]);
    let why = node.run_failing(&["stream", "alter", "t", "--cold", "--cold-after-ms", "70000"]);
    assert!(why.contains("cold-after-ms is 70000"), "{why}");
    node.run(&["stream", "alter", "t", "--cold", "--cold-after-ms", "30000", "--retention-ms", "none"]);
    assert_eq!(described(&node, "t")["config"]["cold_after_ms"], 30_000);
    assert!(node.process.stop());
    let why = node.restart_failing_with(&[("TAILWATER_COLD__URL", "cold")]);
    assert!(why.contains("[cold] url = \"cold\"") && why.contains("file:///DIR"), "{why}");
}

#[test]
fn a_node_without_its_cold_storage_says_what_is_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let cold = dir.path().join("cold");
    std::fs::create_dir(&cold).expect("made");
    let url = format!("file://{}", cold.display());
    let mut node = node(dir.path(), &[("TAILWATER_COLD__URL", &url)]);
    produce(&node, "s", &lines(0, 400));
    wait_until_released(&node, "s", 1);
    // Its disk is away: what is on the node goes on, and it says so.
    let away = dir.path().join("away");
    std::fs::rename(&cold, &away).expect("moved");
    produce(&node, "s", &lines(400, 400));
    wait_for("the node to notice", || (node.metric("tailwater_cold_up") == Some(0.0)).then_some(()));
    assert!(node.get("/readyz").is_some(), "it takes appends");
    wait_for("a line about it", || node.process.log().contains("mount its disk").then_some(()));
    wait_for("segments to wait", || {
        node.metric("tailwater_cold_segments_waiting").filter(|waiting| *waiting > 0.0)
    });
    std::fs::rename(&away, &cold).expect("moved back");
    wait_until_released(&node, "s", 1);
    assert!(node.consume("s") == lines(0, 800));
    wait_for("the node to say that it is over", || {
        (node.metric("tailwater_cold_up") == Some(1.0)).then_some(())
    });

    assert!(node.process.stop());
    let why = node.restart_failing_with(&[("TAILWATER_COLD__URL", "")]);
    assert!(why.contains("in cold storage alone"), "{why}");
}

/// An S3 server in memory, with one bucket.
#[cfg(feature = "cold")]
pub struct S3 {
    process: Process,
    port: u16,
    log: std::path::PathBuf,
}

#[cfg(feature = "cold")]
fn s3(args: &[&str]) -> std::process::Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut command = std::process::Command::new(root.join(".ci/s3"));
    command.args(args);
    command
}

#[cfg(feature = "cold")]
impl S3 {
    pub fn start(dir: &Path, port: u16) -> Self {
        assert!(s3(&["install"]).status().expect("it runs").success(), "it can't be installed: see above");
        let log = dir.join("s3.log");
        let process = Process::start(&mut s3(&["run", &port.to_string()]), &log);
        let server = Self { process, port, log };
        let bucket = format!("http://127.0.0.1:{port}/bucket");
        wait_for("the S3 server to answer", || ureq::put(&bucket).send_empty().ok());
        server
    }

    /// Puts an object into the bucket.
    pub fn put(&self, name: &str, bytes: &str) {
        let url = format!("http://127.0.0.1:{}/bucket/{name}", self.port);
        ureq::put(&url).send(bytes).expect("it takes it");
    }

    /// What is in the bucket.
    fn listed(&self) -> String {
        let url = format!("http://127.0.0.1:{}/bucket?list-type=2", self.port);
        let mut answer = ureq::get(&url).call().expect("it answers");
        answer.body_mut().read_to_string().expect("text")
    }
}

/// What clients of that server have in their environment.
#[cfg(feature = "cold")]
pub fn s3_environment(port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ENDPOINT", format!("http://127.0.0.1:{port}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "id".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ]
}

#[cfg(feature = "cold")]
#[test]
fn segments_leave_for_an_s3_server_that_comes_late_and_are_read_there_removed_and_restored_over_kills() {
    let dir = tempfile::tempdir().expect("a directory");
    let port = free_port();
    let environment = [
        vec![
            ("TAILWATER_COLD__URL", "s3://bucket/some/prefix".to_owned()),
            ("TAILWATER_COLD__SWEEP_MS", "1000".to_owned()),
        ],
        s3_environment(port),
    ]
    .concat();
    let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, &**value)).collect();
    let mut node = node(dir.path(), &environment);
    node.run(&["stream", "create", "early", "--cold", "--cold-after-ms", "0", "--segment-bytes", "20000"]);
    produce(&node, "early", &lines(0, 400));
    wait_for("the node to notice that nobody is there", || {
        (node.metric("tailwater_cold_up") == Some(0.0)).then_some(())
    });
    assert!(node.get("/readyz").is_some() && node.consume("early") == lines(0, 400));
    let server = S3::start(dir.path(), port);
    wait_until_released(&node, "early", 1);
    in_order_and_whole(&mut node);
    assert!(server.listed().contains("<Key>some/prefix/"), "{}", server.listed());
    node.run(&["stream", "delete", "s"]);
    node.run(&["stream", "delete", "early"]);
    wait_for("the copies of deleted streams to go", || (!server.listed().contains("<Key>")).then_some(()));
    assert!(server.process.id() > 0 && server.log.exists());
}

#[cfg(feature = "bookkeeper")]
#[test]
fn segments_leave_ledgers_for_a_directory_and_their_ledgers_go() {
    let (cluster, _alone) = (crate::segments::cluster(), crate::segments::alone());
    let dir = tempfile::tempdir().expect("a directory");
    let cold = dir.path().join("cold");
    std::fs::create_dir(&cold).expect("made");
    let (url, store) = (format!("file://{}", cold.display()), cluster.uri().to_string());
    let mut node = node(dir.path(), &[("TAILWATER_COLD__URL", &url), ("TAILWATER_SEGMENTS", &store)]);
    in_order_and_whole(&mut node);
    let entries = node.metric("tailwater_ledger_entries_read_total").expect("it is told");
    check_read(&node, &lines(0, LINES));
    let again = node.metric("tailwater_ledger_entries_read_total").expect("it is told");
    assert_eq!(entries, again, "no ledger has what has left them");
}
