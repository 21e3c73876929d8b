//! memcached's protocol over a node's cell: clients that others wrote, and a backend that dies.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::{Node, Process, TIME_ENOUGH, free_port, tailwater, told, wait_for};

/// A node that speaks it, and where.
fn node(dir: &tempfile::TempDir, flags: &[&str]) -> (Node, String) {
    let address = format!("127.0.0.1:{}", free_port());
    let flags = [&["--memcached", &address], flags].concat();
    (Node::start_with(&dir.path().join("data"), &flags, &[]), address)
}

fn need(client: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let done = Command::new(root.join(".ci/memcached-clients")).arg(client).status().expect("it runs");
    assert!(done.success(), "{client} can't be installed: see above");
    root
}

struct Client {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Client {
    fn connect(address: &str) -> Self {
        let writer = TcpStream::connect(address).expect("the node listens");
        let reader = BufReader::new(writer.try_clone().expect("a descriptor"));
        Self { reader, writer }
    }

    /// Sends a request, and reads one line.
    fn says(&mut self, request: &str) -> String {
        self.writer.write_all(request.as_bytes()).expect("the node reads");
        let mut line = String::new();
        assert!(self.reader.read_line(&mut line).expect("the node answers") > 0, "to {request:?}");
        line.trim_end().to_owned()
    }

    /// Sends a request, and is closed in place of an answer.
    fn is_closed_for(&mut self, request: &str) {
        self.writer.write_all(request.as_bytes()).expect("the node reads");
        assert_eq!(self.reader.read_line(&mut String::new()).expect("it is closed in order"), 0);
    }
}

#[test]
fn libmemcached_s_conformance_tool_passes_and_its_programs_do_their_work() {
    need("libmemcached");
    let dir = tempfile::tempdir().expect("a directory");
    let (node, address) = node(&dir, &[]);
    let port = address.rsplit(':').next().expect("a port");
    let (ok, out, err) = told(Command::new("memccapable").args(["-a", "-h", "127.0.0.1", "-p", port]), "");
    assert!(ok, "{out}\n{err}");
    let servers = format!("--servers={address}");
    let file = dir.path().join("tea");
    std::fs::write(&file, "Darjeeling").expect("a file");
    let run = |program: &str, of: &str| told(Command::new(program).args([&servers, of]), "");
    assert!(run("memccp", file.to_str().expect("text")).0);
    assert_eq!(run("memccat", "tea").1.trim_end(), "Darjeeling");
    assert!(run("memcexist", "tea").0 && !run("memcexist", "coffee").0);
    // The same cell by the commands of this program.
    assert_eq!(node.run_in_time(&["cache", "get", "--cell", "memcached", "tea"]), "Darjeeling\n");
    assert!(run("memcrm", "tea").0);
    assert!(node.run_failing(&["cache", "get", "--cell", "memcached", "tea"]).contains("no value for tea"));
    assert!(run("memcstat", "").1.contains("curr_items"));
    let metrics = node.get("/metrics").expect("a page");
    assert!(metrics.contains("tailwater_memcached_commands_total{command=\"set\"}"), "{metrics}");
}

#[test]
fn pymemcache_does_its_work() {
    let root = need("python");
    let dir = tempfile::tempdir().expect("a directory");
    let (_node, address) = node(&dir, &[]);
    let program = root.join("crates/run/tailwater/tests/clients/python/memcached.py");
    let python = root.join(".tools/memcached-clients/python/bin/python");
    let (ok, out, err) = told(Command::new(python).arg(program).arg(&address), "");
    assert!(ok && out.trim_end() == "all done", "{out}\n{err}");
}

#[test]
fn clients_that_have_to_log_in_are_told_nothing_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let address = format!("127.0.0.1:{}", free_port());
    let environment = [("TAILWATER_MEMCACHED__LOGIN", "true")];
    let node = Node::start_with(&dir.path().join("data"), &["--memcached", &address], &environment);
    assert!(node.output(&["user", "add", "tea"], b"correct horse\n").status.success());
    let mut client = Client::connect(&address);
    assert_eq!(client.says("get k\r\n"), "CLIENT_ERROR unauthenticated");
    assert_eq!(client.says("set x 0 0 9\r\ntea wrong\r\n"), "CLIENT_ERROR authentication failure");
    assert_eq!(client.says("set x 0 0 1\r\nt\r\n"), "CLIENT_ERROR unauthenticated");
    // A password may have spaces in it.
    assert_eq!(client.says("set x 0 0 17\r\ntea correct horse\r\n"), "STORED");
    assert_eq!(client.says("get x\r\n"), "END");
    assert_eq!(client.says("set k 0 0 1\r\nv\r\n"), "STORED");

    // Whoever has logged in takes nobody's place.
    let mut strangers: Vec<Client> = (0..256).map(|_| Client::connect(&address)).collect();
    let mut one_more = Client::connect(&address);
    assert_eq!(one_more.reader.read_line(&mut String::new()).expect("it is closed in order"), 0);
    assert_eq!(strangers[0].says("set x 0 0 17\r\ntea correct horse\r\n"), "STORED");
    wait_for("its place to be another one's", || {
        let mut next = Client::connect(&address);
        let mut line = String::new();
        let _ = next.writer.write_all(b"get k\r\n");
        let is_answered = next.reader.read_line(&mut line).is_ok_and(|read| read > 0);
        is_answered.then(|| assert_eq!(line.trim_end(), "CLIENT_ERROR unauthenticated"))
    });

    node.run(&["user", "rm", "tea"]);
    client.is_closed_for("get k\r\n");
}

#[test]
fn commands_exchange_delete_and_touch_keys() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, _) = node(&dir, &["--memcached-cell", "tea"]);
    let run = |args: &[&str]| {
        node.output(&[&["cache", args[0], "--cell", "tea"], &args[1..], &TIME_ENOUGH].concat(), b"")
    };
    let cache = |args: &[&str]| {
        let output = run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let failing = |args: &[&str]| {
        let output = run(args);
        assert!(!output.status.success(), "{args:?} should fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    cache(&["cas", "k", "1", "--absent"]);
    assert!(failing(&["cas", "k", "2", "--absent"]).contains("was left as it is"));
    let told: serde_json::Value = serde_json::from_str(&cache(&["get", "k", "-o", "json"])).expect("JSON");
    let version = told["version"].as_str().expect("a version").to_owned();
    assert_eq!((&told["value"], &told["expires_ms"]), (&"1".into(), &serde_json::Value::Null));
    cache(&["cas", "k", "2", "--at", &version, "--ttl-ms", "3600000"]);
    assert!(failing(&["cas", "k", "3", "--at", &version]).contains("was left as it is"));
    cache(&["touch", "k", "--ttl-ms", "1"]);
    wait_for("it to expire", || {
        let output =
            tailwater().args(["--server", &node.admin, "cache", "get", "--cell", "tea", "k"]).output();
        (!output.expect("it runs").status.success()).then_some(())
    });
    cache(&["set", "k", "4"]);
    cache(&["delete", "k"]);
    assert!(failing(&["touch", "k", "--ttl-ms", "0"]).contains("no value for k"));
    assert!(cache(&["stats"]).contains("1 of 1 backends answer; a value has one copy"));
}

#[test]
fn while_a_backend_of_three_is_killed_and_started_again_no_increment_is_lost_or_made_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let sockets: Vec<PathBuf> = (0..3).map(|number| dir.path().join(format!("m{number}.sock"))).collect();
    let start = |socket: &Path| {
        let mut command = tailwater();
        command.args(["cache", "serve", "--cell", "m", "--capacity-bytes", "1048576", "--unix"]).arg(socket);
        Process::start(&mut command, &socket.with_extension("log"))
    };
    let mut backends: Vec<Process> = sockets.iter().map(|socket| start(socket)).collect();
    let (mut node, address) = {
        let node = Node::start(&dir.path().join("data"));
        let seeds: Vec<String> = sockets.iter().map(|socket| format!("unix:{}", socket.display())).collect();
        let mut create = vec!["cell", "create", "m", "--mode", "r3.2"];
        seeds.iter().for_each(|seed| create.extend(["--backend", seed]));
        node.run(&create);
        drop(node);
        self::node(&dir, &["--memcached-cell", "m"])
    };
    wait_for("all backends to be reached", || {
        let stats = node.run(&["cell", "describe", "m", "-o", "json"]);
        let told: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        (told["live"] == 3).then_some(())
    });
    assert_eq!(Client::connect(&address).says("set n 0 0 1\r\n0\r\n"), "STORED");
    let stop = AtomicBool::new(false);
    let (counted, unknown) = std::thread::scope(|scope| {
        let counting: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Client::connect(&address);
                    let (mut counted, mut unknown) = (Vec::new(), 0);
                    while !stop.load(Ordering::Relaxed) {
                        let answer = client.says("incr n 1\r\n");
                        match answer.parse::<u64>() {
                            Ok(number) => counted.push(number),
                            Err(_) if answer.contains("it is not known whether") => unknown += 1,
                            Err(_) => {
                                assert!(answer.starts_with("SERVER_ERROR nothing has changed"), "{answer}")
                            }
                        }
                    }
                    (counted, unknown)
                })
            })
            .collect();
        let mut watching = Client::connect(&address);
        let mut beyond = |number: u64| {
            wait_for("more increments", || {
                let header = watching.says("get n\r\n");
                if !header.starts_with("VALUE") {
                    assert!(header.starts_with("SERVER_ERROR"), "{header}");
                    return None;
                }
                let mut lines = [String::new(), String::new()];
                for line in &mut lines {
                    assert!(watching.reader.read_line(line).expect("the node answers") > 0);
                }
                let now: u64 = lines[0].trim_end().parse().expect("a number");
                (now > number).then_some(now)
            })
        };
        let before = beyond(50);
        backends[1].kill();
        let without = beyond(before + 100);
        backends[1] = start(&sockets[1]);
        beyond(without + 100);
        stop.store(true, Ordering::Relaxed);
        let mut all = (Vec::new(), 0_u64);
        for of in counting {
            let (counted, unknown) = of.join().expect("it does not panic");
            all.0.extend(counted);
            all.1 += unknown;
        }
        all
    });
    let mut numbers = counted.clone();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), counted.len(), "a number was answered twice");
    let last = *numbers.last().expect("some");
    let missing = last - numbers.len() as u64;
    assert!(missing <= unknown, "{missing} of {last} were answered to nobody, and {unknown} are unknown");
    assert!(node.process.is_running());
}

/// Has the load end, however its test ends.
struct StopsAtEnd<'a>(&'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sets some keys to numbers that grow, and gets each of them at once, until it is to stop. Counts its rounds.
fn set_and_get(address: &str, stop: &AtomicBool, rounds: &AtomicU64) {
    let mut client = Client::connect(address);
    let mut acknowledged = [0_u64; 32];
    for round in 1.. {
        for (key, last) in acknowledged.iter_mut().enumerate() {
            let value = round.to_string();
            let answer = client.says(&format!("set key{key} 0 0 {}\r\n{value}\r\n", value.len()));
            // What is not acknowledged may have come about, and is newer then.
            assert!(answer == "STORED" || answer.starts_with("SERVER_ERROR"), "{answer}");
            if answer == "STORED" {
                *last = round;
            }
            let header = client.says(&format!("get key{key}\r\n"));
            if header.starts_with("SERVER_ERROR") {
                continue;
            }
            assert!(header.starts_with("VALUE") || *last == 0, "key {key} is lost, {last} was acknowledged");
            if header.starts_with("VALUE") {
                let got: u64 = client.says("").parse().expect("a number that was set");
                assert_eq!(client.says(""), "END");
                assert!((*last..=round).contains(&got), "key {key} is {got}, {last} was acknowledged");
            }
        }
        rounds.store(round, Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[test]
fn while_a_node_s_own_backends_are_restarted_one_after_another_its_clients_lose_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, address) = node(&dir, &[]);
    node.run(&["cell", "resize", "memcached", "--backends", "2"]);
    node.run(&["cell", "resize", "memcached", "--spares", "1"]);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stops = StopsAtEnd(&stop);
        let loading = scope.spawn(|| set_and_get(&address, &stop, &rounds));
        let more = || {
            let before = rounds.load(Ordering::Relaxed);
            let done = || rounds.load(Ordering::Relaxed) > before + 1 || loading.is_finished();
            wait_for("the load to go on", || done().then_some(()));
        };
        more();
        // One copy of each key: whoever went on with a backend that has ended would lose what it sets.
        assert_eq!(node.run(&["cell", "roll", "memcached"]), "cell memcached: 2 backends restarted\n");
        more();
        assert_eq!(node.run(&["cell", "roll", "memcached"]), "cell memcached: 2 backends restarted\n");
        more();
        stop.store(true, Ordering::Relaxed);
        loading.join().expect("nothing was lost");
    });
}
