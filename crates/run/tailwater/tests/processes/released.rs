//! The last release beside this build: its clients at a node of ours and ours at one of its, a cell of backends of
//! both, and nodes that are given backends of the other one. `.ci/test-long release` builds the release from its
//! commit, and runs these tests.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tailwater_cache::{
    Backend, BackendConfig, Backends, Cell, CellConfig, CellValue, ItemExtras, Lookup, Mode, UpdateError,
    UpdateTo,
};
use tailwater_env::Env;
use tailwater_rma::{Address, Backing, Server, ServerConfig};

use crate::support::{Node, Place, Process, free_port, run, tailwater, wait_for};

/// The release's id of the log's data cell.
const DATA: u64 = 1;

/// The release's program.
fn program() -> String {
    std::env::var("RELEASED_TAILWATER")
        .expect("RELEASED_TAILWATER, which `make test-long PARTS=release` sets")
}

/// The release's program in place of ours, without what it does not know.
fn released() -> Place {
    let start = format!("shift; unset TAILWATER_LISTEN__INSECURE; exec '{}' \"$@\"", program());
    Place { starter: ["sh", "-c", &start, "sh"].map(str::to_owned).to_vec(), ..Place::here() }
}

fn released_node(dir: &Path, environment: &[(&str, &str)]) -> Node {
    Node::start_in(released(), dir, &format!("127.0.0.1:{}", free_port()), &[], environment)
}

/// A command of the other one at a node.
fn foreign(mut command: Command, node: &Node, args: &[&str], input: &str) -> String {
    let output = run(command.args(["--server", &node.admin]).args(args), input.as_bytes());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

fn lines(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|number| format!("record {number} of both\n")).collect()
}

/// Clients of either one append and read, while the records are in the cells and from the beginning.
fn both_read_what_both_append(node: &Node, theirs: fn() -> Command) {
    node.run(&["stream", "create", "news", "--shards", "2"]);
    let mut expected = BTreeSet::new();
    for round in 0..4 {
        let text = lines(round * 500..(round + 1) * 500);
        match round % 2 {
            0 => drop(foreign(theirs(), node, &["produce", "news"], &text)),
            _ => node.produce("news", &text.lines().map(str::to_owned).collect::<Vec<_>>()),
        }
        expected.extend(text.lines().map(str::to_owned));
        let ours: Vec<String> = node.consume("news");
        assert_eq!(ours.len(), expected.len());
        assert_eq!(ours.into_iter().collect::<BTreeSet<_>>(), expected);
        for transport in ["auto", "tcp"] {
            let args = ["consume", "news", "--from", "start", "--exit-at-end", "--transport", transport];
            let heard = foreign(theirs(), node, &args, "");
            assert_eq!(heard.lines().count(), expected.len());
            assert_eq!(heard.lines().map(str::to_owned).collect::<BTreeSet<_>>(), expected);
        }
    }
}

#[test]
#[ignore = "a part of `make test-long`: needs the release's program"]
fn clients_of_the_release_and_of_this_build_read_and_append_at_a_node_of_this_build() {
    let (_dir, node) = Node::start_anew();
    both_read_what_both_append(&node, || Command::new(program()));
}

#[test]
#[ignore = "a part of `make test-long`: needs the release's program"]
fn clients_of_this_build_and_of_the_release_read_and_append_at_a_node_of_the_release() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = released_node(&dir.path().join("data"), &[]);
    both_read_what_both_append(&node, tailwater);
}

/// A backend process of the data cell.
fn backend(mut command: Command, dir: &Path, name: &str) -> (Process, SocketAddr) {
    let tcp: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    command.args(["cache", "serve", "--cell", "data", "--capacity-bytes", "8388608", "--tcp"]);
    (Process::start(command.arg(tcp.to_string()), &dir.join(format!("{name}.log"))), tcp)
}

/// A backend of this build in this process, with the release's id, which never changes.
fn own_backend(env: &Env) -> (Server, SocketAddr) {
    let backend = Backend::start(env, BackendConfig::data(8 << 20, 4_096, DATA, Backing::Shared));
    let backend = backend.expect("memory");
    let listen = ServerConfig { tcp: Some(([127, 0, 0, 1], 0).into()), ..ServerConfig::default() };
    let server = Server::start(env, listen, Arc::clone(&backend) as _).expect("a server");
    let doorbell = server.doorbell();
    backend.ring_on_change(move || doorbell.ring());
    let tcp = server.tcp_addr().expect("it listens");
    (server, tcp)
}

async fn whole_cell(env: &Env, at: &[SocketAddr]) -> Cell {
    loop {
        let backends = Backends::at(env, at.iter().map(|tcp| vec![Address::Tcp(*tcp)]).collect());
        let mut config = CellConfig::new(DATA, Mode::R32, backends, env.random_u64() as u32);
        config.deadline = Duration::from_secs(60);
        let cell = Cell::connect(env, config).await.expect("a cell");
        // A process takes a while to listen.
        if cell.live_backends() == at.len() {
            return cell;
        }
    }
}

/// Sets, replaces, erases and gets keys in a cell whose backends are of both, and once more when one of them is gone.
async fn a_mixed_cell_works(env: &Env, at: &[SocketAddr], one_ends: impl FnOnce(), are_updates_known: bool) {
    let cell = whole_cell(env, at).await;
    let key = |n: u32| Bytes::from(format!("key {n}"));
    let value =
        |n: u32, round: u32| Bytes::from(format!("{n}, set in round {round}. ").repeat(1 + n as usize));
    let keys: Vec<Bytes> = (0..300).map(key).collect();
    let mut one_ends = Some(one_ends);
    for round in 0..4 {
        if round == 2
            && let Some(one_ends) = one_ends.take()
        {
            one_ends();
        }
        let items = (0..300).map(|n| (key(n), value(n, round))).collect();
        for done in cell.set(items).await {
            done.expect("two of three take it");
        }
        for done in cell.erase(keys[..50].to_vec()).await {
            done.expect("two of three take it");
        }
        let relaxed = cell.get_relaxed(&keys).await;
        let consistent = cell.get_consistent(&keys).await;
        for (n, (relaxed, consistent)) in (0..).zip(relaxed.into_iter().zip(consistent)) {
            match consistent {
                Lookup::Hit { value: held, .. } => assert!(n >= 50 && held == value(n, round), "key {n}"),
                Lookup::Miss => assert!(n < 50, "key {n} is missing"),
                Lookup::Failed(why) => panic!("key {n}: {why}"),
            }
            // One replica may be behind.
            if let Lookup::Hit { value: held, .. } = relaxed {
                assert!((0..=round).any(|round| held == value(n, round)), "key {n}");
            }
        }
    }
    let mut counted = 0;
    for _ in 0..3 {
        let one_more = |held: Option<&CellValue>| {
            let count: u32 =
                held.map_or(0, |held| String::from_utf8_lossy(&held.value).parse().expect("a number"));
            UpdateTo::Set((count + 1).to_string().into(), ItemExtras::default())
        };
        match cell.update("counter".into(), one_more).await {
            Ok(_) => counted += 1,
            Err(UpdateError::NotApplied(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(counted, if are_updates_known { 3 } else { 0 }, "two of three have to promise");
}

#[test]
#[ignore = "a part of `make test-long`: needs the release's program"]
fn a_cell_of_backends_of_both_keeps_what_is_acknowledged_with_one_of_them_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let env = Env::real();
        let (old, new) = (own_backend(&env), own_backend(&env));
        let (mut gone, at) = backend(Command::new(program()), dir.path(), "one");
        a_mixed_cell_works(&env, &[old.1, new.1, at], || gone.kill(), true).await;
        let own = own_backend(&env);
        let (_one, first) = backend(Command::new(program()), dir.path(), "two");
        let (mut gone, second) = backend(Command::new(program()), dir.path(), "three");
        // The two that are left are one of each.
        a_mixed_cell_works(&env, &[own.1, first, second], || gone.kill(), false).await;
    });
}

#[test]
#[ignore = "a part of `make test-long`: needs the release's program"]
fn a_node_of_the_release_works_on_a_cell_of_backends_of_both() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    let env = Env::real();
    let own = [own_backend(&env), own_backend(&env)];
    let (_process, at) = backend(Command::new(program()), dir.path(), "backend");
    let addresses: Vec<String> =
        own.iter().map(|own| own.1).chain([at]).map(|tcp| format!("[\"tcp:{tcp}\"]")).collect();
    let environment = [
        ("TAILWATER_DATA_CELL__BACKENDS", format!("[{}]", addresses.join(", "))),
        ("TAILWATER_DATA_CELL__MODE", "r3.2".to_owned()),
    ];
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let node = released_node(&dir.path().join("data"), &environment);
    wait_for("all three backends", || {
        let cells: Value = serde_json::from_str(&node.get("/v1/cells")?).ok()?;
        let data = cells.as_array()?.iter().find(|cell| cell["name"] == "data")?.clone();
        (data["live"] == 3).then_some(())
    });
    both_read_what_both_append(&node, tailwater);
}

#[test]
#[ignore = "a part of `make test-long`: needs the release's program"]
fn a_node_that_is_given_backends_of_the_other_one_alone_says_so_and_serves_from_its_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    for is_ours in [true, false] {
        let name = if is_ours { "ours" } else { "theirs" };
        let their_program: fn() -> Command = || Command::new(program());
        let (of_backend, of_client) =
            if is_ours { (their_program(), tailwater()) } else { (tailwater(), their_program()) };
        let (_process, at) = backend(of_backend, dir.path(), name);
        let backends = format!("[[\"tcp:{at}\"]]");
        let environment = [("TAILWATER_DATA_CELL__BACKENDS", backends.as_str())];
        let data = dir.path().join(name).join("data");
        let node = if is_ours {
            Node::start_with(&data, &[], &environment)
        } else {
            released_node(&data, &environment)
        };
        node.run(&["stream", "create", "news"]);
        node.produce("news", &["one".to_owned(), "two".to_owned()]);
        assert_eq!(node.consume("news"), ["one", "two"]);
        let args = ["consume", "news", "--from", "start", "--exit-at-end"];
        assert_eq!(foreign(of_client, &node, &args, ""), "one\ntwo\n");
        wait_for("the node to say why it does not use the backend", || {
            let log = node.process.log();
            (log.contains("no method") || log.contains("config")).then_some(())
        });
    }
}
