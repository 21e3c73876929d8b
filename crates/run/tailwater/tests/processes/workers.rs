//! Workers of a cluster as processes, which copy streams for its node.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::copies::{bounds, cluster, keep_producing, records, wait_until_copied};
use crate::support::{Node, Process, tailwater, wait_for, wait_for_or_tell};

fn worker(dir: &Path, of: &Node, name: &str) -> Process {
    let mut command = tailwater();
    command.args(["worker", "--node", &of.data, "--name", name]);
    Process::start(&mut command, &dir.join(name))
}

/// Who runs what, as the node says.
fn crew(node: &Node) -> Option<Value> {
    serde_json::from_str(&node.get("/v1/operations")?).ok()
}

/// Waits until every operation flows at one of these, and each of these has one.
fn wait_until_all_flow_at(node: &Node, workers: &[&str]) {
    let tell = || node.run(&["tree", "operations"]);
    let all = || {
        let crew = crew(node)?;
        let operations = crew["operations"].as_array().filter(|all| !all.is_empty())?;
        let owner = |of: &Value| of["worker"].as_str().map(str::to_owned);
        let is_there =
            |of: &Value| of["state"] == "flows" && owner(of).is_some_and(|owner| workers.contains(&&*owner));
        let has_one = |name: &&str| operations.iter().any(|of| owner(of).as_deref() == Some(*name));
        (operations.iter().all(is_there) && workers.iter().all(has_one)).then_some(())
    };
    wait_for_or_tell(&format!("all operations at {workers:?}"), all, tell);
}

#[test]
fn a_worker_that_is_killed_under_load_has_its_operations_go_on_elsewhere_and_nothing_is_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let [us, eu] = ["us", "eu"].map(|name| cluster(dir.path(), name));
    us.run(&["cluster", "add", "eu", &eu.data]);
    us.run(&["stream", "create", "orders", "--shards", "4"]);
    let [mut a, mut b] = ["a", "b"].map(|name| worker(dir.path(), &eu, name));
    wait_for("two workers and the node", || (crew(&eu)?["workers"].as_array()?.len() == 3).then_some(()));
    us.run(&["stream", "place", "orders", "--source", "us", "--to", "eu"]);
    wait_until_all_flow_at(&eu, &["a", "b"]);

    let stop = Arc::new(AtomicBool::new(false));
    let producing = keep_producing(&us, "orders", &stop);
    let end =
        |node: &Node| bounds(node, "orders").map(|bounds| bounds.iter().map(|(_, end)| end).sum::<u64>());
    wait_for("records that workers have copied", || end(&eu).filter(|end| *end > 1_000));
    a.kill();
    wait_until_all_flow_at(&eu, &["b"]);
    let before = end(&us).expect("the source");
    wait_for("the copy to go on without the dead worker", || end(&eu).filter(|end| *end > before));
    assert_eq!(eu.metric("tailwater_copy_workers_dead_total"), Some(1.0));
    assert!(eu.metric("tailwater_copy_operations_displaced_total").is_some_and(|of| of >= 1.0));

    assert!(b.stop(), "one that is to leave ends well: {}", b.log());
    let before = end(&us).expect("the source");
    wait_for("the node to copy by itself", || end(&eu).filter(|end| *end > before));
    stop.store(true, Ordering::Relaxed);
    let sent = producing.join().expect("it ends");
    wait_until_copied(&us, &eu, "orders");
    let source = records(&us, "orders");
    assert_eq!(source.len(), sent);
    assert!(records(&eu, "orders") == source, "the copy has the source's records");
}
