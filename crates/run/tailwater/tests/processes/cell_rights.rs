//! Rights to read a cell that are taken from a process which has mapped it.

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

fn is_empty(file: &File) -> bool {
    let mut bytes = vec![0; usize::try_from(file.metadata().expect("a file").len()).expect("it fits")];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes.iter().all(|byte| *byte == 0)
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
    for cell in ["data", "metadata"] {
        node.run(&["acl", "add", "--user", &format!("uid:{NOBODY}"), "--allow", "read", "--cell", cell]);
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

    node.run(&["acl", "rm", "--user", &format!("uid:{NOBODY}")]);
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
