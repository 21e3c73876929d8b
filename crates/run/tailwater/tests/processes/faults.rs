//! What must go well when things go wrong, with real processes.

mod under_load;

use std::io::{Read, Write};
use std::path::Path;

use crate::support::{Follower, Node, Process, namespaces, preloaded, wait_for};

fn numbered(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("line {number}")).collect()
}

/// A connection to any port, TCP or Unix.
trait Socket: Read + Write {}
impl<T: Read + Write> Socket for T {}

/// Ports of a node: admin HTTP first, then those that speak frames.
const PORTS: usize = 5;

fn connect(node: &Node, port: usize) -> Box<dyn Socket> {
    let unix = |name: &str| {
        Box::new(std::os::unix::net::UnixStream::connect(node.dir.join(name)).expect("it listens"))
    };
    match port {
        0 => Box::new(std::net::TcpStream::connect(&node.admin).expect("it listens")),
        1 => Box::new(std::net::TcpStream::connect(&node.data).expect("it listens")),
        port => unix(["node.sock", "data-cell.sock", "metadata-cell.sock"][port - 2]),
    }
}

/// Bytes that mean nothing, always the same.
fn garbage(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn garbage_on_every_port_costs_its_sender_the_connection_and_nobody_else_anything() {
    let (_dir, mut node) = Node::with_stream(&["s"]);
    let follower = Follower::start(&node, &["consume", "s"]);
    let garbage = garbage(64 << 10);
    for port in 0..PORTS {
        for length in [1, 100, garbage.len()] {
            // The far side may hang up in the midst of it, which is the point.
            let _ = connect(&node, port).write_all(&garbage[..length]);
            let _ = connect(&node, port).write_all(&vec![0; length]);
            let _ = connect(&node, port).write_all(&vec![0xff; length]);
        }
    }
    node.produce("s", &numbered(0..50));
    for line in numbered(0..50) {
        assert_eq!(follower.next(), line);
    }
    assert!(node.process.is_running());
}

/// Resident memory of a process in bytes.
fn resident_bytes(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// What promises a node much and keeps none of it, still connected.
fn half_open(node: &Node, port: usize) -> Box<dyn Socket> {
    let mut socket = connect(node, port);
    if port == 0 {
        let head = b"POST /v1/streams HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\n\
            content-length: 1099511627776\r\n\r\n{\"name\":\"";
        let _ = socket.write_all(head);
    } else {
        // A frame is a header (length of the body, version, kind, argument, request id) and a body. After a HELLO
        // comes a CALL that announces the longest body there is.
        let header = |length: u32, kind: u8| {
            let argument = [0; 2];
            [&length.to_le_bytes()[..], &[2, kind], &argument, &1_u64.to_le_bytes()].concat()
        };
        let hello = [&header(8, 1)[..], b"rma\0", &[2, 2, 0, 0]].concat();
        let _ = socket.write_all(&hello);
        // It is answered: what was sent is what a node understands.
        socket.read_exact(&mut [0; 16]).expect("an answer to HELLO");
        let _ = socket.write_all(&header(8 << 20, 5));
    }
    let _ = socket.write_all(&vec![b'x'; 1 << 10]);
    socket
}

/// Sends bytes to a port, and waits until it hangs up; what it answered.
fn send_to_its_end(mut socket: impl Read + Write, bytes: &[u8]) -> Vec<u8> {
    // It may hang up in the midst of it.
    let _ = socket.write_all(bytes);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    answer
}

/// The lines in a node's log in which all of these words are.
fn lines_with(node: &Node, words: &[&str]) -> Vec<String> {
    let log = node.process.log();
    log.lines().filter(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned).collect()
}

/// Whether one of these lines tells that others were left out before it.
fn tells_how_many_were_left_out(lines: &[String]) -> bool {
    let left_out = |line: &String| {
        let told = line.split("left_out=").nth(1)?.split_whitespace().next()?;
        told.parse::<u64>().ok()
    };
    lines.iter().filter_map(left_out).any(|left_out| left_out > 0)
}

#[test]
fn a_flood_of_garbage_on_every_port_is_logged_and_takes_bounded_memory() {
    const CONNECTIONS: usize = 150;
    /// What all of it together may cost at most: about 90 KiB for each connection that is held open. Whoever believed
    /// the lengths that these announce would take 8 MiB for each, or more.
    const RESIDENT_BYTES_MAX: u64 = 64 << 20;
    let (_dir, mut node) = Node::with_stream(&["s"]);
    node.produce("s", &numbered(0..50));
    let garbage = garbage(256 << 10);
    let at = |socket: &str| format!("at=\"unix:{}\"", node.dir.join(socket).display());
    let lines_of = |port: usize| match port {
        0 => lines_with(&node, &["admin HTTP: connection dropped"]),
        1 => lines_with(&node, &["connection dropped", &format!("at=\"tcp:{}\"", node.data)]),
        port => lines_with(
            &node,
            &["connection dropped", &at(["node.sock", "data-cell.sock", "metadata-cell.sock"][port - 2])],
        ),
    };
    // Threads and their buffers that come with the first connections are not what is looked for.
    for port in 0..PORTS {
        send_to_its_end(connect(&node, port), &garbage);
        wait_for("a line in the log about this port", || (!lines_of(port).is_empty()).then_some(()));
        drop(half_open(&node, port));
    }
    let before = resident_bytes(&node.process);
    let mut most = before;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        for port in 0..PORTS {
            for bytes in [&garbage[..], &[0; 1 << 10], &[0xff; 1 << 10]] {
                let _ = connect(&node, port).write_all(bytes);
            }
            held.push(half_open(&node, port));
        }
        most = most.max(resident_bytes(&node.process));
    }
    assert!(most - before < RESIDENT_BYTES_MAX, "from {before} to {most} bytes while it lasted");
    // Whoever sent it is told, in the words of the port's protocol or by the connection's end.
    let answer = wait_for("room for one more connection", || {
        let answer = send_to_its_end(connect(&node, 0), b"\x16\x03\x01 this is no HTTP\r\n\r\n");
        (!answer.starts_with(b"HTTP/1.1 503 ")).then_some(answer)
    });
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    for port in 1..PORTS {
        let answer = send_to_its_end(connect(&node, port), &garbage);
        assert!(answer.is_empty(), "{answer:?}");
    }
    for port in 0..PORTS {
        // Each connection with garbage would have one.
        let lines = lines_of(port).len();
        assert!(lines < 3 * CONNECTIONS, "{lines} lines about port {port}");
        wait_for("the log to tell how many were left out on this port", || {
            send_to_its_end(connect(&node, port), &garbage);
            tells_how_many_were_left_out(&lines_of(port)).then_some(())
        });
    }
    drop(held);
    assert_eq!(node.consume("s"), numbered(0..50));
    assert!(node.process.is_running());
    let after = resident_bytes(&node.process);
    assert!(after < before + RESIDENT_BYTES_MAX, "from {before} to {after} bytes");
}

#[test]
fn garbage_on_the_ports_of_clients_of_others_is_logged_and_takes_bounded_memory() {
    const CONNECTIONS: usize = 150;
    const RESIDENT_BYTES_MAX: u64 = 64 << 20;
    let (_dir, mut node) = Node::with_stream(&["s"]);
    let view: serde_json::Value =
        serde_json::from_str(&node.get("/v1/node").expect("it answers")).expect("JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("an address").to_owned();
    let cells = view["cells"].as_array().expect("the cells").iter();
    let cells = cells.flat_map(|cell| cell["backends"][0].as_array().expect("addresses"));
    let cells = cells.filter_map(|address| address.as_str()?.strip_prefix("tcp:"));
    let mut ports: Vec<String> = cells.map(str::to_owned).collect();
    assert_eq!(ports.len(), 2, "both cells listen: {view}");
    ports.extend([node.kafka.clone(), node.sqs.clone(), node.broadcast.clone()]);
    ports.push(text(&view["broadcast"]["http"]));
    let garbage = garbage(256 << 10);
    // The beginnings of what is longest in each protocol, and of what is in none.
    let long_http = b"POST / HTTP/1.1\r\nhost: node\r\ncontent-length: 1099511627776\r\n\r\nAction=";
    let nobodys = b"\xff\xff this is nobody's protocol\r\n\r\n";
    let beginnings: [&[u8]; 6] =
        [&garbage, &[0; 1 << 10], &[0xff; 1 << 10], nobodys, long_http, &[3, 0, 0, 0, 0, 0, 0, 9, 0, 0]];
    let connect = |port: &String| std::net::TcpStream::connect(port).expect("it listens");
    let words = [
        "connection dropped",
        "connection dropped",
        "closed a Kafka client's connection",
        "SQS: connection dropped",
        "a broadcast connection was ended",
        "broadcast HTTP: connection dropped",
    ];
    // The address of a connection of ours, about which its port alone can have a line.
    let send_nobodys = |port: &String| {
        let socket = connect(port);
        let peer = socket.local_addr().expect("bound").to_string();
        send_to_its_end(socket, nobodys);
        peer
    };
    for (port, words) in ports.iter().zip(words) {
        let peer = send_nobodys(port);
        let told = || (!lines_with(&node, &[words, &peer]).is_empty()).then_some(());
        wait_for(&format!("a line in the log: {words}"), told);
    }
    let mut held = Vec::new();
    let mut send_all = || {
        for port in &ports {
            for bytes in beginnings {
                let mut socket = connect(port);
                let _ = socket.write_all(bytes);
                held.push(socket);
            }
        }
        // What is still connected is let go of as others come.
        held.drain(..held.len().saturating_sub(ports.len() * beginnings.len() * 20));
    };
    send_all();
    let before = resident_bytes(&node.process);
    let mut most = before;
    for _ in 0..CONNECTIONS {
        send_all();
        most = most.max(resident_bytes(&node.process));
    }
    assert!(most - before < RESIDENT_BYTES_MAX, "from {before} to {most} bytes while it lasted");
    for (port, words) in ports.iter().zip(words) {
        let mut peers = Vec::new();
        wait_for(&format!("the log to tell how many were left out: {words}"), || {
            peers.push(send_nobodys(port));
            let lines = peers.iter().flat_map(|peer| lines_with(&node, &[words, peer]));
            tells_how_many_were_left_out(&lines.collect::<Vec<_>>()).then_some(())
        });
    }
    drop(held);
    node.produce("s", &numbered(0..50));
    assert_eq!(node.consume("s"), numbered(0..50));
    assert!(node.process.is_running());
}

#[test]
fn admin_http_refuses_what_is_too_much_too_long_or_too_slow_and_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let environment = [
        ("TAILWATER_ADMIN__CONNECTIONS_MAX", "3"),
        ("TAILWATER_ADMIN__HEADER_BYTES_MAX", "8192"),
        ("TAILWATER_ADMIN__BODY_BYTES_MAX", "1024"),
        ("TAILWATER_ADMIN__TIMEOUT_MS", "500"),
    ];
    let node = Node::start_with(&dir.path().join("data"), &[], &environment);
    // All that comes until the node hangs up, which it does by itself.
    let ask_once = |request: &str| {
        let mut socket = connect(&node, 0);
        let _ = socket.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let is_one_too_many =
        |answer: &str| answer.starts_with("HTTP/1.1 503 ") && answer.contains("connections_max");
    // The node may not have seen yet that the connections before have ended.
    let ask = |request: &str| {
        wait_for("room for a connection", || {
            Some(ask_once(request)).filter(|answer| !is_one_too_many(answer))
        })
    };
    let post = |announced: usize, sent: usize| {
        let head = "POST /v1/streams HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\n";
        ask(&format!("{head}content-length: {announced}\r\n\r\n{}", "x".repeat(sent)))
    };
    let head = |bytes: usize| ask(&format!("GET /healthz HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(bytes)));
    let chunked = || {
        let head = "POST /v1/streams HTTP/1.1\r\nhost: node\r\ntransfer-encoding: chunked\r\n\r\n";
        ask(&format!("{head}7d0\r\n{}\r\n0\r\n\r\n", "x".repeat(2_000)))
    };
    let refused: [(&str, &str, &dyn Fn() -> String); 6] = [
        ("HTTP/1.1 431 ", "", &|| head(20_000)),
        ("HTTP/1.1 413 ", "", &|| post(2_000, 0)),
        ("HTTP/1.1 408 ", "", &|| post(1_000, 10)),
        ("HTTP/1.1 400 ", "", &|| post(10, 10)),
        ("HTTP/1.1 404 ", "", &|| ask("GET /v2 HTTP/1.1\r\nhost: node\r\n\r\n")),
        ("HTTP/1.1 413 ", "body_bytes_max", &chunked),
    ];
    for (status, why, asked) in refused {
        // Whoever stands still for half a second on the way gets no answer.
        let answer = wait_for(status, || Some(asked()).filter(|answer| !answer.is_empty()));
        assert!(answer.starts_with(status) && answer.contains(why), "{status}: {answer:?}");
    }
    // A head that does not come costs the connection, without an answer.
    assert_eq!(ask("GET /healthz HTTP/1.1\r\nhost: no"), "");
    assert_eq!(ask(""), "");
    wait_for("one connection too many to be refused", || {
        let _others = [connect(&node, 0), connect(&node, 0), connect(&node, 0)];
        is_one_too_many(&ask_once("GET /healthz HTTP/1.1\r\nhost: node\r\n\r\n")).then_some(())
    });
    wait_for("a line about it", || node.process.log().contains("connections_max").then_some(()));
    wait_for("room for connections again", || node.get("/healthz"));
}

#[test]
fn a_node_that_recovers_is_alive_and_not_ready_and_says_so_and_can_be_told_to_stop() {
    let (_dir, mut node) = Node::with_stream(&["s"]);
    node.produce("s", &numbered(0..100));
    node.process.kill();
    // The newest snapshot of metadata, which recovery reads, is a pipe in which nothing comes.
    let pipe = node.dir.join("meta").join(format!("{:020}.snapshot", u64::MAX));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("it is in coreutils");
    assert!(made.success());
    node.restart_recovering();
    let ready = || {
        let mut socket = connect(&node, 0);
        socket.write_all(b"GET /readyz HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("answered");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("takes no requests yet"), "{answer}");
        answer
    };
    for _ in 0..3 {
        assert_eq!(node.get("/healthz").as_deref(), Some("ok\n"));
        ready();
    }
    wait_for("it to say where it is", || ready().ends_with("it is at metadata\n").then_some(()));
    let told = || node.process.log().contains(r#"recovering what="metadata" done=0 whole=0"#).then_some(());
    wait_for("its log to say so", told);
    let error = node.run_failing(&["stream", "ls"]);
    assert!(error.contains("takes no requests yet"), "{error}");
    assert!(node.process.stop(), "it was told to stop:\n{}", node.process.log());
    std::fs::remove_file(&pipe).expect("removed");
    node.restart();
    assert_eq!(node.consume("s"), numbered(0..100));
}

#[test]
fn a_full_disk_refuses_appends_with_the_reason_keeps_what_was_acknowledged_and_resumes_when_there_is_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some((disk, mut node)) = on_a_small_disk(
        dir.path(),
        "faults::a_full_disk_refuses_appends_with_the_reason_keeps_what_was_acknowledged_and_resumes_when_there_is_room",
    ) else {
        return;
    };
    node.run(&["stream", "create", "s", "--segment-bytes", "1048576"]);
    let ballast = disk.0.join("ballast");
    std::fs::write(&ballast, vec![1_u8; 60 << 20]).expect("room for ballast");
    let line = "x".repeat(1_000);
    let mut acknowledged = 0;
    let mut attempts = 0;
    let refusal = loop {
        attempts += 1;
        assert!(attempts < 300, "the disk is full, but nobody says so");
        let lines: Vec<String> =
            (0..1_000).map(|number| format!("{} {line}", acknowledged + number)).collect();
        match try_produce(&node, &lines) {
            Ok(count) => acknowledged += count,
            Err(why) if why.contains("space") => break why,
            // A producer with little patience may hear something else of a disk that slows down.
            Err(_) => {}
        }
        assert!(acknowledged < 200_000, "160 MiB do not hold this");
    };
    assert!(refusal.contains("free"), "it says what to do: {refusal}");
    assert!(node.get("/readyz").is_none(), "it takes no appends, and says so");
    let there = node.consume("s");
    assert!(there.len() >= acknowledged, "{} of {acknowledged}", there.len());
    let patient = Producing::start(&node, "patient\n", dir.path());
    wait_for("the reason why it waits", || patient.told().contains("space").then_some(()));
    std::fs::remove_file(&ballast).expect("removed");
    patient.finish();
    wait_for("service to resume", || try_produce(&node, &["after".to_owned()]).ok());
    wait_for("/readyz to say so", || node.get("/readyz"));
    let there = node.consume("s");
    assert!(["patient", "after"].iter().all(|line| there.iter().any(|read| read == line)));
    node.process.kill();
    node.restart();
    assert!(node.consume("s").len() > acknowledged);
}

#[test]
fn a_producer_with_the_usual_patience_says_once_why_it_waits_and_goes_on_when_the_node_is_back() {
    let (dir, mut node) = Node::with_stream(&["s"]);
    let mut patient = Producing::start(&node, "first\n", dir.path());
    wait_for("the first line", || node.consume("s").contains(&"first".to_owned()).then_some(()));
    node.process.kill();
    patient.write("second\n");
    wait_for("the reason why it waits", || patient.told().contains("no node answers").then_some(()));
    node.restart();
    let told = patient.finish();
    assert_eq!(told.matches("no node answers").count(), 1, "{told}");
    assert_eq!(node.consume("s"), ["first", "second"]);
}

#[test]
fn a_node_killed_on_a_full_disk_starts_again_and_again_and_what_was_acknowledged_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some((disk, mut node)) = on_a_small_disk(
        dir.path(),
        "faults::a_node_killed_on_a_full_disk_starts_again_and_again_and_what_was_acknowledged_is_read",
    ) else {
        return;
    };
    node.run(&["stream", "create", "s"]);
    let line = "x".repeat(1_000);
    let mut acknowledged = 0;
    let mut append = |node: &Node| {
        let lines: Vec<String> =
            (0..1_000).map(|number| format!("{} {line}", acknowledged + number)).collect();
        try_produce(node, &lines).map(|count| acknowledged += count)
    };
    let mut appended = 0;
    wait_for("five appends while there is room", || {
        appended += usize::from(append(&node).is_ok());
        (appended == 5).then_some(())
    });
    let ballast = disk.0.join("ballast");
    let mut file = std::fs::File::create(&ballast).expect("created");
    wait_for("the disk to be full, with the node's appends on it", || {
        while file.write_all(&[1; 4096]).is_ok() {}
        append(&node).err().filter(|why| why.contains("space"))
    });
    // Each start needs a file for the journal, and there is at most one spare.
    for start in 0..3 {
        node.process.kill();
        while file.write_all(&[1; 4096]).is_ok() {}
        node.restart_unready();
        let there = node.consume("s");
        assert!(there.len() >= acknowledged, "{} of {acknowledged} after start {start}", there.len());
    }
    std::fs::remove_file(&ballast).expect("removed");
    drop(file);
    wait_for("service to resume", || try_produce(&node, &["after".to_owned()]).ok());
    node.process.kill();
    node.restart();
    assert_eq!(node.consume("s").last().map(String::as_str), Some("after"));
}

#[test]
fn a_failing_sync_refuses_appends_with_the_reason_keeps_what_was_acknowledged_and_resumes() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = preloaded(dir.path(), "failing_sync");
    let trigger = dir.path().join("fail");
    let environment = [("LD_PRELOAD", library.as_str()), ("FAILING_SYNC", trigger.to_str().expect("text"))];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &environment);
    node.run(&["stream", "create", "s"]);
    node.produce("s", &numbered(0..500));
    std::fs::write(&trigger, "").expect("written");
    wait_for("a refusal that says why", || {
        let refusal = try_produce(&node, &["lost".to_owned()]).expect_err("it can't be durable");
        (refusal.contains("sync") && refusal.contains("Input/output error")).then_some(())
    });
    assert_eq!(node.consume("s"), numbered(0..500), "while syncs fail");
    std::fs::remove_file(&trigger).expect("removed");
    wait_for("service to resume", || try_produce(&node, &["after".to_owned()]).ok());
    let resumed = node.consume("s");
    assert_eq!(resumed[..500], numbered(0..500));
    assert_eq!(resumed.last().expect("records"), "after");
    node.process.kill();
    node.restart();
    assert_eq!(node.consume("s"), resumed);
}

/// `produce` with the usual deadline, and what it says on standard error.
struct Producing {
    child: std::process::Child,
    told: std::path::PathBuf,
}

impl Producing {
    fn start(node: &Node, input: &str, dir: &Path) -> Self {
        let told = dir.join("told");
        let mut command = node.command(&["produce", "s"]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
        let errors = std::fs::File::create(&told).expect("created");
        let mut producing = Self { child: command.stderr(errors).spawn().expect("it starts"), told };
        producing.write(input);
        producing
    }

    fn write(&mut self, input: &str) {
        self.child.stdin.as_mut().expect("piped").write_all(input.as_bytes()).expect("it reads");
    }

    fn told(&self) -> String {
        std::fs::read_to_string(&self.told).expect("text")
    }

    /// Waits until all is acknowledged; what it said.
    fn finish(mut self) -> String {
        drop(self.child.stdin.take());
        let ended = wait_for("it to end", || self.child.try_wait().expect("it is ours"));
        assert!(ended.success(), "{}", self.told());
        self.told()
    }
}

impl Drop for Producing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Appends lines, waiting for no longer than a few seconds; the number acknowledged, or why not.
fn try_produce(node: &Node, lines: &[String]) -> Result<usize, String> {
    use std::io::Write;
    let mut child = node
        .command(&["produce", "s", "--deadline-ms", "3000"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut text = lines.join("\n");
    text.push('\n');
    let mut stdin = child.stdin.take().expect("piped");
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    if output.status.success() {
        Ok(lines.len())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// A memory file system of a given size, unmounted with the test.
struct SmallDisk(std::path::PathBuf);

/// A node on a disk of 160 MiB below `dir`, with a journal of at most 64; [`SmallDisk::mount`] says when there is none.
fn on_a_small_disk(dir: &Path, test: &str) -> Option<(SmallDisk, Node)> {
    let at = dir.join("disk");
    std::fs::create_dir(&at).expect("a directory");
    let disk = SmallDisk::mount(&at, "160m", test)?;
    let environment = [("TAILWATER_JOURNAL__FILE_BYTES", "16777216"), ("TAILWATER_JOURNAL__FILES_MAX", "4")];
    let node = Node::start_with(&at.join("data"), &[], &environment);
    Some((disk, node))
}

impl SmallDisk {
    /// Mounts one for `test`. Where that is not permitted, runs the test again in a user and a mount namespace, where
    /// anybody may mount; `None` says that it passed there.
    fn mount(at: &Path, size: &str, test: &str) -> Option<Self> {
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tailwater-test"])
            .arg(at)
            .output()
            .expect("mount is part of every Debian: apt-get install mount");
        if mounted.status.success() {
            return Some(Self(at.to_owned()));
        }
        let refused = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(!namespaces::are_own(), "not even in a namespace of its own: {refused}");
        if let Err(why) = namespaces::run_again("-rm", test) {
            panic!(
                "no small disk can be mounted, so that it can't be tested what happens when one is full.\n\
                 mount: {refused}{why}"
            );
        }
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
