//! A node whose ledgers and metadata are where only who logs in may write, in TLS.

#[path = "../../../../log/bookkeeper/tests/real/security.rs"]
mod security;

use std::fs;

use crate::segments::cluster::Cluster;
use crate::support::{Node, tailwater, told};

#[test]
fn a_node_logs_in_to_zookeeper_and_to_bookies_and_so_do_the_commands_that_have_its_configuration() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("security")).expect("a folder");
    let trusted = security::write(&path("security"));
    let cluster = Cluster::start_with(1, Some(path("security")));
    fs::write(path("password"), "secret\n").expect("written");
    let zookeeper = cluster.secure.as_ref().expect("it speaks TLS");
    let config = format!(
        "metadata = \"zookeeper://{zookeeper}/tailwater\"\nsegments = \"bookkeeper://{zookeeper}/ledgers\"\n\
         [cluster]\nnode = \"n1\"\n[sqs]\nenabled = false\n[broadcast]\nenabled = false\n\
         [zookeeper]\nuser = \"tailwater\"\npassword_file = {password:?}\n{files}\
         [ledgers]\nensemble = 1\nwrite_quorum = 1\nack_quorum = 1\nuser = \"tailwater\"\npassword_file = {password:?}\n\
         {files}",
        password = path("password"),
        files = format_args!(
            "ca = {:?}\ncertificate = {:?}\nkey = {:?}\n",
            trusted.ca.expect("a path"),
            trusted.certificate.expect("a path"),
            trusted.key.expect("a path"),
        ),
    );
    fs::write(path("node.toml"), config).expect("written");
    let file = path("node.toml");
    let file = file.to_str().expect("UTF-8");

    let node = Node::start_with(&path("data"), &["--config", file], &[]);
    node.run(&["stream", "create", "s"]);
    let lines: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
    node.produce("s", &lines);
    assert_eq!(node.consume("s"), lines);

    let (ok, told_lines, error) = told(tailwater().args(["--config", file, "segment", "verify"]), "");
    assert!(ok && told_lines.contains("open"), "{told_lines}{error}");
    let (ok, told_lines, error) = told(tailwater().args(["--config", file, "node", "ls"]), "");
    assert!(ok && told_lines.contains("n1"), "{told_lines}{error}");
    // The same place without who one is.
    let store = cluster.uri().to_string();
    let (ok, _, error) = told(tailwater().args(["segment", "ls", "--store", &store]), "");
    assert!(!ok && error.contains("[zookeeper]"), "{error}");
    let (ok, _, error) = told(tailwater().args(["segment", "ls"]), "");
    assert!(!ok && error.contains("--store") && error.contains("--config"), "{error}");
}
