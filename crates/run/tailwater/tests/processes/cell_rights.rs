//! Rights to read a cell that are taken from a process which has mapped it, and streams that no cell gets.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

use crate::support::{Follower, Node, namespaces, wait_for};

/// A user of the system who is neither root nor the node's.
const NOBODY: u32 = 65_534;

/// The memory of the cells' backends in a process, as whoever is given it can keep it.
fn memory_of(process: u32) -> Vec<File> {
    let all = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it lives");
    let paths = all.map(|entry| entry.expect("an entry").path());
    let is_memory = |path: &Path| {
        let link = std::fs::read_link(path).unwrap_or_default();
        link.to_string_lossy().starts_with("/memfd:cache-")
    };
    paths.filter(|path| is_memory(path)).map(|path| File::open(path).expect("root may")).collect()
}

fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().expect("a file").len()).expect("it fits")];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

fn is_empty(file: &File) -> bool {
    bytes_of(file).iter().all(|byte| *byte == 0)
}

fn let_all(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("the test's own");
}

/// A node that enforces rules, with a stream `s`.
fn node(dir: &tempfile::TempDir) -> Node {
    let variables = [
        ("TAILWATER_ACCESS__RULES", "report"),
        ("TAILWATER_ACCESS__SUPER_USERS", "[\"ops\"]"),
        ("TAILWATER_METADATA_CELL__CAPACITY_BYTES", "16777216"),
    ];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &variables);
    assert!(node.output(&["user", "add", "ops"], b"correct horse\n").status.success());
    node.run(&["acl", "add", "--user", "anonymous", "--allow", "all", "--node"]);
    node.run(&["acl", "add", "--user", "*", "--allow", "all", "--stream", "*"]);
    node.run(&["stream", "create", "s"]);
    assert!(node.process.stop());
    node.restart_with(&[("TAILWATER_ACCESS__RULES", "enforce")]);
    // Whoever may connect is a matter of the files' modes.
    for name in ["", "data/", "data/node.sock", "data/data-cell.sock", "data/metadata-cell.sock"] {
        let_all(&dir.path().join(name));
    }
    node
}

#[test]
fn what_a_process_without_rights_has_mapped_is_emptied_and_another_one_reads_on() {
    const TEST: &str =
        "cell_rights::what_a_process_without_rights_has_mapped_is_emptied_and_another_one_reads_on";
    // Only root can start a process of another user. Anybody is root in a namespace that has other users, too.
    if !rustix::process::geteuid().is_root() {
        if let Err(why) = namespaces::run_again("--map-root-user --map-auto", TEST) {
            panic!(
                "no process of another user can be started. {why}. Users beside one's own are those of /etc/subuid, \
                 and newuidmap is in uidmap: apt-get install uidmap"
            );
        }
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    let names = [("data", format!("uid:{NOBODY}")), ("metadata", format!("gid:{NOBODY}"))];
    for (cell, name) in &names {
        node.run(&["acl", "add", "--user", name, "--allow", "read", "--cell", cell]);
    }
    let follow = ["consume", "s", "--from", "start"];
    let mut theirs = Follower::of(node.command(&follow).uid(NOBODY).gid(NOBODY));
    let process = theirs.child().id();
    let ours = Follower::of(&mut node.command(&follow));
    let mut sent = 0;
    let mut send = || {
        sent += 1;
        let line = format!("record {sent}");
        assert!(node.output(&["produce", "s"], format!("{line}\n").as_bytes()).status.success());
        line
    };
    wait_for("both to have mapped the cells and read them", || {
        let line = send();
        let read = [&theirs, &ours].iter().all(|follower| follower.next() == line);
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("it lives");
        (read && maps.contains("memfd:cache-data")).then_some(())
    });
    let kept = memory_of(node.process.id());
    assert_eq!(kept.len(), 4, "an index and the data of two cells");
    assert!(!kept.iter().any(is_empty));

    for (_, name) in &names {
        node.run(&["acl", "rm", "--user", name]);
    }
    wait_for("what was mapped to be emptied", || {
        let line = send();
        assert_eq!(ours.next(), line);
        kept.iter().all(is_empty).then_some(())
    });
    for _ in 0..3 {
        let line = send();
        assert_eq!(ours.next(), line);
    }
    assert!(kept.iter().all(is_empty), "nothing new is written there");
    wait_for("the cells to go on elsewhere, and what was there to be let go of", || {
        let now = memory_of(node.process.id());
        (now.len() == 4 && !now.iter().any(is_empty)).then_some(())
    });
    wait_for("a line about it", || node.process.log().contains("moved a cell's memory").then_some(()));
}

/// Whether the memory of a node's cells has these bytes.
fn cells_hold(node: &Node, wanted: &str) -> bool {
    memory_of(node.process.id()).iter().any(|file| String::from_utf8_lossy(&bytes_of(file)).contains(wanted))
}

#[test]
fn a_stream_without_cells_is_read_while_it_is_written_and_after_a_restart_and_no_cell_ever_has_its_records() {
    let dir = tempfile::tempdir().expect("a directory");
    let capacity = [
        ("TAILWATER_DATA_CELL__CAPACITY_BYTES", "33554432"),
        ("TAILWATER_METADATA_CELL__CAPACITY_BYTES", "16777216"),
    ];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &capacity);
    let follow =
        |node: &Node, stream| Follower::of(&mut node.command(&["consume", stream, "--from", "start"]));
    node.run(&["stream", "create", "shown"]);
    node.run(&["stream", "create", "hidden", "--cells", "false"]);
    let followers = ["shown", "hidden"].map(|stream| follow(&node, stream));
    for round in 0..3 {
        for (stream, follower) in ["shown", "hidden"].iter().zip(&followers) {
            let line = format!("{stream} record {round} of a long and plain text");
            assert!(node.output(&["produce", stream], format!("{line}\n").as_bytes()).status.success());
            assert_eq!(follower.next(), line);
        }
    }
    wait_for("the cell to have what it gets", || cells_hold(&node, "shown record 2").then_some(()));
    assert!(!cells_hold(&node, "hidden record"));

    assert!(node.process.stop());
    drop(followers);
    node.restart();
    let again = follow(&node, "hidden");
    for round in 0..3 {
        assert_eq!(again.next(), format!("hidden record {round} of a long and plain text"));
    }
    wait_for("the cell to have again what it gets", || cells_hold(&node, "shown record 2").then_some(()));
    assert!(!cells_hold(&node, "hidden record"));
}
