//! Cells that are read over libfabric, by its provider in software.

use crate::support::{Node, Process, free_port, run, tailwater, wait_for};

const PROVIDER: &str = "tcp;ofi_rxm";

#[test]
fn a_node_s_records_and_a_cell_s_values_are_read_over_libfabric() {
    let dir = tempfile::tempdir().expect("a directory");
    let environment = [("TAILWATER_DATA_CELL__OFI", PROVIDER), ("TAILWATER_METADATA_CELL__OFI", PROVIDER)];
    let node = Node::start_with(&dir.path().join("data"), &[], &environment);
    let told = node.run(&["cell", "describe", "data", "-o", "json"]);
    assert!(told.contains("\"ofi:127.0.0.1:"), "{told}");
    node.run(&["stream", "create", "s"]);
    let lines: Vec<String> = (0..2_000).map(|number| format!("line {number}")).collect();
    node.produce("s", &lines);
    let consume = ["consume", "s", "--from", "start", "--exit-at-end", "--transport", "ofi"];
    assert_eq!(node.run(&consume).lines().collect::<Vec<_>>(), lines);

    let at: Vec<String> = (0..3).map(|_| format!("127.0.0.1:{}", free_port())).collect();
    let start = |at: &String| {
        let mut command = tailwater();
        command.args(["cache", "serve", "--cell", "tiles", "--capacity-bytes", "1048576"]);
        command.args(["--tcp", at, "--ofi", PROVIDER]);
        Process::start(&mut command, &dir.path().join(at.replace(':', "-")))
    };
    let _backends: Vec<Process> = at.iter().map(start).collect();
    let addresses: Vec<String> = at.iter().map(|at| format!("ofi:{at}")).collect();
    let mut create = vec!["cell", "create", "tiles", "--mode", "r3.2"];
    addresses.iter().for_each(|address| create.extend(["--backend", address]));
    node.run(&create);
    wait_for("the node to reach them", || {
        node.run(&["cell", "describe", "tiles", "-o", "json"]).contains("\"live\":3").then_some(())
    });
    node.run_in_time(&["cache", "set", "--seed", &addresses[0], "tea", "Darjeeling"]);
    assert_eq!(node.run_in_time(&["cache", "get", "--seed", &addresses[1], "tea"]).trim(), "Darjeeling");
    // Who asks for TCP gets TCP, at the same place.
    let over_tcp = format!("tcp:{}", at[2]);
    assert_eq!(node.run_in_time(&["cache", "get", "--seed", &over_tcp, "tea"]).trim(), "Darjeeling");
}

#[test]
fn a_backend_without_its_provider_does_not_start_and_says_what_to_do() {
    let mut command = tailwater();
    command.args(["cache", "serve", "--cell", "tiles", "--capacity-bytes", "1048576"]);
    command.args(["--tcp", "127.0.0.1:0", "--ofi", "carrier-pigeon"]);
    let output = run(&mut command, b"");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(told.contains("carrier-pigeon") && told.contains("libfabric-bin"), "{told}");
}
