//! CALLs, and one-sided reads, over TCP in TLS: commands and the client library against real nodes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use tailwater_client::{Client, ClientConfig, Dialer, DialerConfig, Error};
use tailwater_env::Env;

use crate::support::{Follower, Node, Process, free_port, run, tailwater, told, wait_for};
use crate::tls::{Files, node, replace_certificate, wait_for_line};

/// A node whose commands find no socket of it on this host, as those of other hosts.
fn far_node(files: &Files, client_certificates: &str, more: &[(&str, &str)]) -> Node {
    let node = node(files, client_certificates, more);
    for socket in ["node.sock", "data-cell.sock", "metadata-cell.sock"] {
        std::fs::remove_file(node.dir.join(socket)).expect("there");
    }
    node
}

/// A command that trusts the CA of `files`, and shows a certificate of it.
pub fn command(node: &Node, files: &Files, args: &[&str]) -> Command {
    let (ca, orders) = (files.text("ca.pem"), files.text("orders.pem"));
    let mut command = by(node, &["--ca", &ca, "--certificate", &orders]);
    command.args(args);
    command
}

/// A command that says by itself whom it trusts. Admin HTTP is asked without TLS.
pub fn by(node: &Node, options: &[&str]) -> Command {
    let mut command = tailwater();
    command.args(["--server", &format!("http://{}", node.admin)]).args(options);
    command
}

pub fn done(command: &mut Command, input: &str) -> String {
    let (ok, out, err) = told(command, input);
    assert!(ok, "{command:?}: {err}");
    out
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

#[test]
fn records_are_produced_consumed_and_shared_by_a_group_over_tls_by_who_has_a_certificate() {
    let files = Files::make();
    let node = far_node(&files, "required", &[]);
    let with = |args: &[&str]| command(&node, &files, args);
    done(&mut with(&["stream", "create", "s", "--shards", "2"]), "");
    let lines: Vec<String> = (0..2_000).map(|number| format!("{number:05} {}", "x".repeat(500))).collect();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    done(&mut with(&["produce", "s"]), &lines.join("\n"));
    let all = done(&mut with(&["consume", "s", "--exit-at-end"]), "");
    assert!(sorted(&all) == lines, "{} lines", all.lines().count());
    let grouped = done(&mut with(&["consume", "s", "--exit-at-end", "--group", "g"]), "");
    assert!(sorted(&grouped) == lines, "{} lines", grouped.lines().count());
}

#[test]
fn a_stream_is_copied_between_clusters_that_show_certificates_to_each_other() {
    let files = Files::make();
    let us = node(&files, "required", &[("TAILWATER_CLUSTER__NAME", "us")]);
    let variables = files.variables("required");
    let mut variables: Vec<(&str, &str)> =
        variables.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    variables.push(("TAILWATER_CLUSTER__NAME", "eu"));
    let eu = Node::start_with(&files.path("eu-data"), &[], &variables);
    let of = |node: &Node, args: &[&str]| done(&mut command(node, &files, args), "");
    of(&us, &["stream", "create", "s"]);
    done(&mut command(&us, &files, &["produce", "s"]), "first\nsecond\n");
    of(&us, &["cluster", "add", "eu", &format!("tls:{}", eu.data)]);
    of(&us, &["stream", "place", "s", "--source", "us", "--to", "eu"]);
    wait_for("the copy", || {
        let (ok, out, _) =
            told(&mut command(&eu, &files, &["consume", "s", "--exit-at-end", "--from", "start"]), "");
        (ok && out == "first\nsecond\n").then_some(())
    });
    // Without TLS nobody is told of anything, and the tree says why.
    of(&us, &["stream", "place", "s", "--source", "us", "--to", "none"]);
    of(&us, &["cluster", "remove", "eu"]);
    of(&us, &["cluster", "add", "eu", &eu.data]);
    of(&us, &["stream", "place", "s", "--source", "us", "--to", "eu"]);
    wait_for("the tree to tell why", || {
        let shown = of(&us, &["tree", "show", "s"]);
        (shown.contains("interrupted") && shown.contains("TLS")).then_some(())
    });
}

#[test]
fn queues_are_used_over_https_by_the_same_options() {
    let files = Files::make();
    let node = node(&files, "required", &[]);
    let with = |args: &[&str]| command(&node, &files, args);
    done(&mut with(&["queue", "create", "q"]), "");
    done(&mut with(&["queue", "send", "q", "hello"]), "");
    let received = done(&mut with(&["queue", "receive", "q"]), "");
    assert!(received.contains("hello"), "{received}");
}

#[test]
fn whoever_speaks_no_tls_or_shows_no_certificate_is_told_so_at_once_and_in_the_log() {
    let files = Files::make();
    let node = far_node(&files, "required", &[]);
    done(&mut command(&node, &files, &["stream", "create", "s"]), "");
    // The library, by an address without TLS.
    let refused = runtime().block_on(Client::connect(&node.data)).err().expect("refused");
    assert!(matches!(refused, Error::Secure { .. }), "{refused:?}");
    assert!(refused.to_string().contains("it speaks TLS: connect with the file of its CA"), "{refused}");
    wait_for_line(&node, &["[listen] data", "Tailwater's own protocol without TLS", "takes TLS only"]);
    // Commands without a CA, without a certificate, and with the CA of another node.
    let (ok, _, err) = told(&mut node.command(&["produce", "s"]), "");
    assert!(!ok && err.contains("--ca or TAILWATER_CA"), "{err}");
    let consume = |files: &Files, more: &[&str]| {
        let mut command = by(&node, &["--ca", &files.text("ca.pem")]);
        told(command.args(more).args(["consume", "s", "--exit-at-end"]), "")
    };
    let (ok, _, err) = consume(&files, &[]);
    assert!(!ok && err.contains("lets nobody in without a certificate"), "{err}");
    let other = Files::make();
    let (ok, _, err) = consume(&other, &["--certificate", &files.text("orders.pem")]);
    assert!(!ok && err.contains("is of none of the CAs that are trusted here"), "{err}");
    // And one in TLS at a listener without.
    let plain = far_node(&other, "none", &[("TAILWATER_LISTEN__TLS", "false")]);
    done(&mut command(&plain, &other, &["stream", "create", "s"]), "");
    done(&mut command(&plain, &other, &["consume", "s", "--exit-at-end"]), "");
    let refused = runtime().block_on(async {
        let env = Env::real();
        let trusted = DialerConfig { ca: Some(other.path("ca.pem")), ..DialerConfig::default() };
        let dialer = Dialer::open(&env, &trusted).expect("a CA");
        let config = ClientConfig { dialer, ..ClientConfig::default() };
        Client::connect_with(env, &format!("tls:{}", plain.data), config).await.err().expect("refused")
    });
    assert!(refused.to_string().contains("does this listener speak TLS?"), "{refused}");
    wait_for_line(&plain, &["the client speaks TLS, and this listener does not"]);
}

#[test]
fn a_consumer_goes_on_over_the_replacement_of_the_certificate() {
    let files = Files::make();
    let node = far_node(&files, "none", &[]);
    done(&mut command(&node, &files, &["stream", "create", "s"]), "");
    done(&mut command(&node, &files, &["produce", "s"]), "first\n");
    // It is not to see the new CA.
    let old = files.path("old-ca.pem");
    std::fs::copy(files.path("ca.pem"), &old).expect("copied");
    let consume = || {
        let mut command = by(&node, &["--ca", old.to_str().expect("text")]);
        command.args(["consume", "s"]);
        command
    };
    let follower = Follower::of(&mut consume());
    assert_eq!(follower.next(), "first");
    let new = Files::make();
    replace_certificate(&files, &new, &node);
    done(&mut command(&node, &new, &["produce", "s"]), "second\n");
    assert_eq!(follower.next(), "second", "over the connections from before");
    let (ok, _, err) = told(&mut consume(), "");
    assert!(!ok && err.contains("is of none of the CAs"), "{err}");
}

#[test]
fn what_is_no_tls_ends_its_connection_and_nobody_else_s() {
    let files = Files::make();
    let node = far_node(&files, "none", &[]);
    done(&mut command(&node, &files, &["stream", "create", "s"]), "");
    done(&mut command(&node, &files, &["produce", "s"]), "first\n");
    let follower = Follower::of(&mut command(&node, &files, &["consume", "s"]));
    assert_eq!(follower.next(), "first");
    let hello_of_65_535_bytes = [22, 3, 1, 255, 255];
    let garbage: Vec<u8> =
        (0..10_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for beginning in [
        &hello_of_65_535_bytes[..],
        &[22, 3, 1, 0, 5],
        &[23, 3, 3, 0, 1],
        &[8, 0, 0, 0],
        b"GET / HTTP/1.1",
        &[],
    ] {
        let mut socket = TcpStream::connect(&node.data).expect("it listens");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a valid time");
        let _ = socket.write_all(beginning);
        let _ = socket.write_all(&garbage);
        let mut answer = Vec::new();
        // It may be reset, as not all was read.
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.len() < 200, "{answer:?}");
    }
    let produced = run(&mut command(&node, &files, &["produce", "s"]), b"second\n");
    assert!(produced.status.success(), "{produced:?}");
    assert_eq!(follower.next(), "second");
}

/// One backend of each cell as a process of its own, which lets in who has a certificate of the CA of `files`.
fn backends(files: &Files) -> (Vec<Process>, [String; 2]) {
    let mut processes = Vec::new();
    let addresses = ["data", "metadata"].map(|cell| {
        let tcp = format!("127.0.0.1:{}", free_port());
        let log = files.path(&format!("{cell}.log"));
        let mut command = tailwater();
        command.args(["cache", "serve", "--cell", cell, "--capacity-bytes", "33554432", "--tcp", &tcp]);
        command.args(["--tls-certificate", &files.text("node.pem"), "--tls-key", &files.text("node.key")]);
        let backend = Process::start(command.args(["--tls-client-ca", &files.text("ca.pem")]), &log);
        wait_for("the backend to be ready", || backend.log().contains("the backend is ready").then_some(()));
        processes.push(backend);
        format!("[[\"tls:{tcp}\"]]")
    });
    (processes, addresses)
}

/// What a consumer says at its end of where its bytes came from.
fn bytes_from(node: &Node, files: &Files, what: &str) -> u64 {
    let (ok, _, err) = told(&mut command(node, files, &["consume", "s", "--exit-at-end", "--stats=60"]), "");
    assert!(ok, "{err}");
    let last = err.lines().last().expect("a line");
    let counts = last.rsplit("bytes: ").next().expect("counts").split(", ");
    let mut counts = counts.filter_map(|count| count.strip_suffix(what)?.trim().parse().ok());
    counts.next().unwrap_or_else(|| panic!("{last}"))
}

#[test]
fn backends_in_tls_are_written_by_their_node_and_read_by_readers_and_by_the_window() {
    // A reader that is at the end goes, also within a handshake: that is no complaint about what it has shown.
    const GONE: [&str; 4] = ["within the handshake", "was not done in", "reset by peer", "Broken pipe"];
    let files = Files::make();
    let (backends, [data, metadata]) = backends(&files);
    let window = [("TAILWATER_LISTEN__WINDOW", "true"), ("TAILWATER_LISTEN__WINDOW_FROM", "1")];
    let cells =
        [("TAILWATER_DATA_CELL__BACKENDS", &*data), ("TAILWATER_METADATA_CELL__BACKENDS", &*metadata)];
    let node = node(&files, "required", &[&cells[..], &window].concat());
    done(&mut command(&node, &files, &["stream", "create", "s"]), "");
    let lines: String = (0..1_000).map(|number| format!("{number} {}\n", "x".repeat(200))).collect();
    done(&mut command(&node, &files, &["produce", "s"]), &lines);
    wait_for("a reader to read from a cell", || (bytes_from(&node, &files, " from cells") > 0).then_some(()));
    // Nothing of a cell is on this host but for the window, whose process is told the files.
    let follower = Follower::of(&mut command(&node, &files, &["consume", "s", "--from", "end"]));
    let readers = "tailwater_window_readers_fed";
    wait_for("the window to feed a reader", || node.metric(readers).filter(|readers| *readers > 0.0));
    done(&mut command(&node, &files, &["produce", "s"]), "last\n");
    assert_eq!(follower.next(), "last");
    let complains =
        |line: &str| line.contains("TLS: connection dropped") && !GONE.iter().any(|gone| line.contains(gone));
    assert!(backends.iter().all(|backend| !backend.log().lines().any(complains)));
}

#[test]
fn a_backend_in_tls_that_a_node_does_not_trust_is_left_out_and_the_node_serves_from_its_disk() {
    let (files, other) = (Files::make(), Files::make());
    let (_backends, [data, metadata]) = backends(&other);
    let cells =
        [("TAILWATER_DATA_CELL__BACKENDS", &*data), ("TAILWATER_METADATA_CELL__BACKENDS", &*metadata)];
    let node = node(&files, "required", &cells);
    let view = node.get("/v1/cells").expect("cells");
    assert_eq!(view.matches("\"live\":0").count(), 2, "{view}");
    done(&mut command(&node, &files, &["stream", "create", "s"]), "");
    done(&mut command(&node, &files, &["produce", "s"]), "first\n");
    assert_eq!(done(&mut command(&node, &files, &["consume", "s", "--exit-at-end"]), ""), "first\n");
}
