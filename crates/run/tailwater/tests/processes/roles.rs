//! Nodes that are there for a part of what a node can be.

use std::net::TcpStream;

use crate::support::{Follower, Node};

/// Bytes of shared memory that a process has touched.
fn shared_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).expect("Linux tells");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

#[test]
fn a_proxy_of_broadcasts_and_nothing_else_reserves_no_memory_for_cells_and_its_streams_are_read_all_the_same()
{
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let roles = [
        ("TAILWATER_LOG__CELLS", "false"),
        ("TAILWATER_KAFKA__ENABLED", "false"),
        ("TAILWATER_SQS__ENABLED", "false"),
    ];
    let mut node = Node::start_with(&data, &[], &roles);
    for closed in [&node.kafka, &node.sqs] {
        assert!(TcpStream::connect(closed).is_err(), "{closed} is not spoken on");
    }
    assert!(node.output(&["broadcast", "publish", "news"], b"first\n").status.success());
    assert_eq!(node.run(&["broadcast", "listen", "news", "--exit-at-end"]), "first\n");

    // A node with cells has touched all that they may hold.
    assert!(shared_bytes(node.process.id()) < 32 << 20, "{}", shared_bytes(node.process.id()));
    assert_eq!(node.run(&["cache", "ls", "-o", "json"]), "");
    assert!(!data.join("data-cell.sock").exists() && !data.join("metadata-cell.sock").exists());
    assert_eq!(node.metric("tailwater_backend_entries{cell=\"data\"}"), None);

    // The log is there, without cells, and is followed.
    node.run(&["stream", "create", "s"]);
    let follower = Follower::start(&node, &["consume", "s", "--from", "start", "--follow"]);
    for line in ["one", "two"] {
        node.produce("s", &[line.to_owned()]);
        assert_eq!(follower.next(), line);
    }
    assert!(node.process.stop(), "a graceful stop ends well");
    node.restart();
    assert_eq!(node.consume("s"), ["one", "two"]);
}
