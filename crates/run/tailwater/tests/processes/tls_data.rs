//! CALLs, and one-sided reads, over TCP in TLS: commands and the client library against real nodes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use tailwater_client::{Client, Error};

use crate::support::{Follower, Node, run, tailwater, told};
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
fn command(node: &Node, files: &Files, args: &[&str]) -> Command {
    let (ca, orders) = (files.text("ca.pem"), files.text("orders.pem"));
    let mut command = by(node, &["--ca", &ca, "--certificate", &orders]);
    command.args(args);
    command
}

/// A command that says by itself whom it trusts. Admin HTTP is asked without TLS.
fn by(node: &Node, options: &[&str]) -> Command {
    let mut command = tailwater();
    command.args(["--server", &format!("http://{}", node.admin)]).args(options);
    command
}

fn done(command: &mut Command, input: &str) -> String {
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
    let plain = crate::tls::node(&files, "none", &[("TAILWATER_LISTEN__TLS", "false")]);
    std::fs::remove_file(plain.dir.join("node.sock")).expect("there");
    done(&mut command(&plain, &files, &["stream", "create", "s"]), "");
    done(&mut command(&plain, &files, &["consume", "s", "--exit-at-end"]), "");
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
    let garbage: Vec<u8> = (0..10_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for beginning in [&hello_of_65_535_bytes[..], &[22, 3, 1, 0, 5], &[23, 3, 3, 0, 1], &[8, 0, 0, 0], b"GET / HTTP/1.1", &[]] {
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
