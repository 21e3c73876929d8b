//! What dies while producers append and one-sided consumers, each a process of its own, read: nobody else may notice
//! more than a delay.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::load::{Lines, Load, Reader};
use crate::support::{Node, Process, free_port, tailwater, wait_for};

/// Bytes of a line where it does not matter.
const LINE_BYTES: usize = 100;

/// Consumers from the start of `stream`, through shared memory and over TCP.
fn readers(node: &Node, stream: &str, dir: &Path) -> [Reader; 2] {
    ["shm", "tcp"].map(|transport| {
        let log = dir.join(format!("{transport}.log"));
        Reader::start(node, stream, &log, &["--transport", transport])
    })
}

/// Six backend processes, as the variables that a node needs to use them with R=3.2.
struct Backends {
    /// Three of the data cell, then three of the metadata cell.
    processes: Vec<Process>,
    /// Their addresses on TCP.
    tcp: Vec<String>,
    data: Vec<String>,
    metadata: Vec<String>,
}

impl Backends {
    fn start(dir: &Path) -> Self {
        let mut backends =
            Self { processes: Vec::new(), tcp: Vec::new(), data: Vec::new(), metadata: Vec::new() };
        for cell in ["data", "metadata"] {
            for number in 0..3 {
                let socket = dir.join(format!("{cell}{number}.sock"));
                let addresses = if cell == "data" { &mut backends.data } else { &mut backends.metadata };
                let tcp = format!("127.0.0.1:{}", free_port());
                addresses.push(format!("[\"unix:{}\",\"tcp:{tcp}\"]", socket.display()));
                backends.processes.push(Self::spawn(dir, cell, number, &tcp));
                backends.tcp.push(tcp);
                wait_for("a backend to listen", || std::os::unix::net::UnixStream::connect(&socket).ok());
            }
        }
        backends
    }

    /// Starts the one at this place again, after it ended.
    fn respawn(&mut self, dir: &Path, place: usize) {
        let cell = if place < 3 { "data" } else { "metadata" };
        self.processes[place] = Self::spawn(dir, cell, place % 3, &self.tcp[place]);
    }

    fn spawn(dir: &Path, cell: &str, number: usize, tcp: &str) -> Process {
        let socket = dir.join(format!("{cell}{number}.sock"));
        let mut command = tailwater();
        command.args(["cache", "serve", "--cell", cell, "--capacity-bytes", "33554432", "--tcp", tcp]);
        Process::start(command.arg("--unix").arg(&socket), &dir.join(format!("{cell}{number}.log")))
    }

    /// Starts a node that uses them.
    fn node(&self, dir: &Path) -> Node {
        let [data, metadata] = [&self.data, &self.metadata].map(|cell| format!("[{}]", cell.join(",")));
        let environment = [
            ("TAILWATER_DATA_CELL__MODE", "R3.2"),
            ("TAILWATER_DATA_CELL__BACKENDS", data.as_str()),
            ("TAILWATER_METADATA_CELL__MODE", "R3.2"),
            ("TAILWATER_METADATA_CELL__BACKENDS", metadata.as_str()),
        ];
        Node::start_with(&dir.join("data"), &[], &environment)
    }

    /// Starts those at these places again, and waits until `node` has found them.
    fn revive(&mut self, dir: &Path, places: std::ops::Range<usize>, node: &Node) {
        for place in places {
            self.respawn(dir, place);
        }
        wait_for("the node to find them again", || {
            let cells = node.run(&["cache", "ls", "-o", "json"]);
            (cells.matches("\"live\":3").count() == 2).then_some(())
        });
    }
}

/// More is acknowledged and read.
fn go_on(load: &Load, lines: &Lines, readers: &[Reader], what: &str) {
    let acked = load.wait_for_more(500);
    for reader in readers {
        reader.follow(lines, acked, what);
    }
}

fn until_they_read_from_a_cell(readers: &[Reader]) {
    readers.iter().for_each(Reader::until_it_reads_from_a_cell);
}

/// Nobody was told of an error, and all that was sent is there and was read, once and in order.
fn end_well(node: &Node, load: Load, lines: &Lines, readers: &[Reader]) {
    let sent = load.finish();
    for reader in readers {
        reader.follow(lines, sent, "to its end");
        assert!(!reader.log().contains("error"), "{}", reader.log());
    }
    assert!(lines.range(0..sent).eq(node.consume("s")));
}

#[test]
fn after_kill_9_under_load_every_acknowledged_record_is_there_in_order_and_one_sided_consumers_go_on() {
    let (dir, mut node) = Node::with_stream(&["s"]);
    let readers = readers(&node, "s", dir.path());
    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&node, "s", &lines);
    for round in 0..2 {
        let what = format!("before kill {round}");
        load.wait_for_more(1_000);
        for reader in &readers {
            reader.until_it_reads_from_a_cell();
            reader.follow(&lines, load.acked(), &what);
        }
        kill_and_restart(&mut node, &load, &lines, round);
    }
    // The same processes, which nobody told anything.
    load.wait_for_more(1_000);
    for reader in &readers {
        reader.until_it_reads_from_a_cell();
        reader.follow(&lines, load.acked(), "at the end");
    }
    let sent = load.finish();
    for reader in &readers {
        reader.follow(&lines, sent, "to its end");
    }
    assert_eq!(node.consume("s").len() as u64, sent, "each of them once");
}

#[test]
fn a_producer_and_a_consumer_killed_under_load_are_nobody_else_s_concern() {
    let (dir, node) = Node::with_stream(&["s"]);
    let survivor = Reader::start(&node, "s", &dir.path().join("survivor.log"), &[]);
    let mut victim = Reader::start(&node, "s", &dir.path().join("victim.log"), &[]);
    let [killed, going_on] =
        ["killed", "going-on"].map(|name| Load::start(&node, "s", &Lines::new(name, LINE_BYTES)));
    killed.wait_for_more(500);
    for _ in 0..500 {
        victim.follower.next();
    }
    victim.follower.child().kill().expect("killed");
    let acked = killed.kill();
    going_on.wait_for_more(2_000);
    let sent = going_on.finish();
    let there = node.consume("s");
    for line in &there {
        assert_eq!(&survivor.follower.next(), line);
    }
    let of = |name: &str| {
        let of: Vec<&str> = there.iter().map(String::as_str).filter(|line| line.starts_with(name)).collect();
        let lines = Lines::new(name, LINE_BYTES);
        assert!(lines.range(0..of.len() as u64).eq(of.iter().copied()), "those of {name} in order");
        of.len() as u64
    };
    assert_eq!(of("going-on"), sent);
    let left = of("killed");
    assert!(left >= acked, "{left} of {acked} that were acknowledged");
    assert_eq!(sent + left, there.len() as u64);
}

/// kill -9 of a node under a load, and a restart; how many lines are there then: in order, and all that were
/// acknowledged.
fn kill_and_restart(node: &mut Node, load: &Load, lines: &Lines, round: usize) -> u64 {
    node.process.kill();
    let acked = load.acked();
    node.restart();
    let there = node.consume("s");
    let count = there.len() as u64;
    assert!(count >= acked, "{count} of {acked} acknowledged before kill {round}");
    assert!(lines.range(0..count).eq(there), "after kill {round}");
    count
}

#[test]
fn readers_of_a_stream_deleted_and_created_again_are_told_and_nobody_sees_old_bytes() {
    let (dir, node) = Node::with_stream(&["s"]);
    let old = Lines::new("old", 1_000);
    let load = Load::start(&node, "s", &old);
    // One that is far behind, in the durable layer, when it happens.
    let log = dir.path().join("slow.log");
    let slow = Reader::start(&node, "s", &log, &["--catch-up-bytes-per-s", "100000"]);
    load.wait_for_more(6_000);
    node.run(&["cache", "clear", "data"]);
    let mut attached = Vec::from(readers(&node, "s", dir.path()));
    for reader in &attached {
        reader.follow(&old, 6_000, "before it is deleted");
    }
    attached.push(slow);
    node.run(&["stream", "delete", "s"]);
    node.run(&["stream", "create", "s"]);
    let fresh: Vec<String> = (0..500).map(|number| format!("fresh {number}")).collect();
    node.produce("s", &fresh);
    let (_, why) = load.failed();
    assert!(why.contains("the stream does not exist"), "{why}");
    for mut reader in attached {
        let child = reader.follower.child();
        let told = wait_for("a reader to be told", || child.try_wait().expect("ours"));
        assert!(!told.success());
        let log = reader.log();
        assert!(log.contains("stream s was deleted"), "{log}");
        // Records of the old one in order, and then no more: neither those of the new one nor any twice.
        reader.follow_to_its_end(&old);
    }
    assert_eq!(node.consume("s"), fresh);
}

#[test]
fn backends_die_one_by_one_and_cells_are_emptied_under_load_without_an_error_or_a_lost_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut backends = Backends::start(dir.path());
    let node = backends.node(dir.path());
    node.run(&["stream", "create", "s"]);
    let readers = readers(&node, "s", dir.path());
    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&node, "s", &lines);
    let go_on = |what: &str| go_on(&load, &lines, &readers, what);
    until_they_read_from_a_cell(&readers);
    go_on("all is well");
    for cell in ["data", "metadata"] {
        node.run(&["cache", "clear", cell]);
        go_on(&format!("the {cell} cell was emptied"));
    }
    for (place, process) in backends.processes.iter_mut().enumerate() {
        process.kill();
        go_on(&format!("{} of three data and three metadata backends are dead", place + 1));
    }
    for reader in &readers {
        let durable = || reader.bytes().map_or(0, |(_, durable)| durable);
        let before = durable();
        wait_for("reads of the durable layer", || (durable() > before).then_some(()));
    }
    let unreached = node.run_failing(&["cache", "clear", "data"]);
    assert!(unreached.contains("0 of 3 backends") && unreached.contains("tailwater cell ls"), "{unreached}");
    backends.revive(dir.path(), 0..6, &node);
    go_on("all are back");
    until_they_read_from_a_cell(&readers);
    go_on("and connected");
    end_well(&node, load, &lines, &readers);
}

#[test]
fn backends_of_the_metadata_cell_die_one_by_one_while_the_data_cell_is_there_without_an_error_or_a_lost_record()
 {
    let dir = tempfile::tempdir().expect("a directory");
    let mut backends = Backends::start(dir.path());
    let node = backends.node(dir.path());
    node.run(&["stream", "create", "s"]);
    let readers = readers(&node, "s", dir.path());
    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&node, "s", &lines);
    let go_on = |what: &str| go_on(&load, &lines, &readers, what);
    until_they_read_from_a_cell(&readers);
    go_on("all is well");
    for (place, process) in backends.processes[3..].iter_mut().enumerate() {
        process.kill();
        go_on(&format!("{} of three metadata backends are dead", place + 1));
    }
    // Nobody tells of lengths but the node, and all three data backends are there.
    let unreached = node.run_failing(&["cache", "clear", "metadata"]);
    assert!(unreached.contains("0 of 3 backends"), "{unreached}");
    node.run(&["cache", "clear", "data"]);
    go_on("the data cell was emptied meanwhile");
    backends.revive(dir.path(), 3..6, &node);
    until_they_read_from_a_cell(&readers);
    go_on("all are back");
    end_well(&node, load, &lines, &readers);
}

#[test]
fn after_kill_9_of_a_node_whose_cells_survive_nothing_is_lost_and_consumers_go_on_by_themselves() {
    let dir = tempfile::tempdir().expect("a directory");
    let backends = Backends::start(dir.path());
    let mut node = backends.node(dir.path());
    node.run(&["stream", "create", "s"]);
    let readers = readers(&node, "s", dir.path());
    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&node, "s", &lines);
    for round in 0..3 {
        load.wait_for_more(1_000);
        until_they_read_from_a_cell(&readers);
        // The cells have chunks and lengths of a term that is over, and of what nobody was told is durable.
        let there = kill_and_restart(&mut node, &load, &lines, round);
        for reader in &readers {
            reader.follow(&lines, there, &format!("after kill {round}"));
        }
    }
    load.wait_for_more(1_000);
    until_they_read_from_a_cell(&readers);
    let sent = load.finish();
    for reader in &readers {
        reader.follow(&lines, sent, "to its end");
    }
    assert!(lines.range(0..sent).eq(node.consume("s")), "each of them once");
}

#[test]
fn a_consumer_that_learns_of_a_truncation_while_the_node_is_away_waits_for_it_and_goes_on() {
    // A minute's worth, of which the reader has hardly anything when it is stopped.
    const LINES: u64 = 6_000;
    let dir = tempfile::tempdir().expect("a directory");
    let backends = Backends::start(dir.path());
    let mut node = backends.node(dir.path());
    node.run(&["stream", "create", "s"]);
    let lines: Vec<String> = Lines::new("a", 1_000).range(0..LINES).collect();
    node.produce("s", &lines);
    // So that it reads all of it at the rate of the durable layer, and is far behind.
    node.run(&["cache", "clear", "data"]);
    let log = dir.path().join("behind.log");
    let mut reader = Reader::start(&node, "s", &log, &["--catch-up-bytes-per-s", "100000"]);
    assert_eq!(reader.follower.next(), lines[0]);
    let pid = rustix::process::Pid::from_child(reader.follower.child());
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    node.run(&["stream", "truncate", "s", "--before", "-10"]);
    // The reader will hear of it from the metadata cell. A page that is on its way now may be from before; the next one
    // is not.
    let published = || metric(&node, "tailwater_tail_pages_published_total ");
    let before = published();
    wait_for("the truncation to be told", || (published() >= before + 2.0).then_some(()));
    node.process.kill();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continued");
    wait_for("it to miss the node", || reader.log().contains("trying again").then_some(()));
    node.restart();
    let mut next = 1;
    while next < lines.len() {
        let line = reader.follower.next();
        if line == lines[lines.len() - 10] {
            next = lines.len() - 10;
        }
        assert_eq!(line, lines[next], "in order, with one gap");
        next += 1;
    }
    assert_eq!(reader.log().matches("were removed").count(), 1, "{}", reader.log());
}

#[test]
fn a_consumer_whose_shard_lost_bytes_while_the_node_was_away_is_told_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut node = Node::start(&data);
    node.run(&["stream", "create", "s"]);
    let lines: Vec<String> = Lines::new("a", 1_000).range(0..4_000).collect();
    node.produce("s", &lines);
    // What a stop has sealed the next start looks at.
    assert!(node.process.stop());
    node.restart();
    let log = dir.path().join("behind.log");
    let mut reader = Reader::start(&node, "s", &log, &["--catch-up-bytes-per-s", "100000"]);
    assert_eq!(reader.follower.next(), lines[0]);
    node.process.kill();
    let mut cut = 0;
    for stream in std::fs::read_dir(data.join("segments")).expect("there").flatten() {
        for file in std::fs::read_dir(stream.path().join("0")).into_iter().flatten().flatten() {
            if file.path().extension().is_some_and(|kind| kind == "seg") {
                let file = std::fs::OpenOptions::new().write(true).open(file.path()).expect("there");
                file.set_len(3_000_000).expect("cut");
                cut += 1;
            }
        }
    }
    assert_eq!(cut, 1);
    node.restart();
    let child = reader.follower.child();
    let told = wait_for("it to be told", || child.try_wait().expect("ours"));
    assert!(!told.success());
    let log = reader.log();
    assert!(log.contains("shard 0 can't be read: damaged") && log.contains("backup"), "{log}");
}

/// A number that the node tells at `/metrics`.
fn metric(node: &Node, name: &str) -> f64 {
    let page = node.get("/metrics").expect("it answers");
    let line = page.lines().find_map(|line| line.strip_prefix(name)).expect("it is told");
    line.trim().parse().expect("a number")
}

#[test]
fn a_stopped_consumer_catches_up_through_the_durable_layer_at_its_rate_and_holds_nobody_back() {
    const BYTES_PER_S: u64 = 2 << 20;
    const LINE_BYTES: usize = 1_000;
    const BACKLOG: u64 = 6_000;
    const OTHERS: usize = 4;
    let dir = tempfile::tempdir().expect("a directory");
    // Chunks that are forgotten long before the consumer goes on.
    let node = Node::start_with(&dir.path().join("data"), &[], &[("TAILWATER_DATA_CELL__TTL_MS", "5000")]);
    node.run(&["stream", "create", "s"]);
    let lines = Lines::new("a", LINE_BYTES);
    let rate = BYTES_PER_S.to_string();
    let log = dir.path().join("stopped.log");
    let mut stopped = Reader::start(&node, "s", &log, &["--catch-up-bytes-per-s", &rate]);
    let others: Vec<Reader> = (0..OTHERS)
        .map(|number| {
            let transport = ["shm", "tcp"][number % 2];
            let log = dir.path().join(format!("other{number}.log"));
            Reader::start(&node, "s", &log, &["--transport", transport])
        })
        .collect();
    let others_follow = |to: u64, what: &str| others.iter().for_each(|other| other.follow(&lines, to, what));
    // Behind the readers, or one that is slow to start would have to catch up.
    let load = Load::start(&node, "s", &lines);
    load.wait_for_more(100);
    stopped.until_it_reads_from_a_cell();
    stopped.follow(&lines, load.acked(), "before it is stopped");
    let pid = rustix::process::Pid::from_child(stopped.follower.child());
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    // It may have read what the producer had not told of yet.
    let from = load.wait_for_more(1_000);
    let to = load.wait_for_more(BACKLOG);
    others_follow(to, "while one is stopped");
    let expired = || metric(&node, "tailwater_backend_expirations_total{cell=\"data\"}");
    let chunks = (to * LINE_BYTES as u64 / 4_096) as f64;
    wait_for("its chunks to be forgotten", || (expired() >= chunks).then_some(()));
    let gone = load.acked();
    let (_, before) = stopped.bytes().expect("it told");
    let continued = Instant::now();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continued");
    // It is to read as much as lies behind it, and no others wait for that.
    others_follow(load.wait_for_more(500), "while it catches up");
    stopped.follow(&lines, gone, "after it went on");
    let took = continued.elapsed();
    let sent = load.finish();
    others_follow(sent, "to their end");
    stopped.follow(&lines, sent, "to its end");
    // What came at last it may have from a cell. Some may be saved up, and a read overdraw: less than two
    // seconds' worth.
    let backlog = (to - from) * LINE_BYTES as u64;
    let least = Duration::from_millis(1_000 * (backlog - 2 * BYTES_PER_S) / BYTES_PER_S);
    assert!(took >= least, "{backlog} bytes in {took:?}");
    let durable = || stopped.bytes().map_or(0, |(_, durable)| durable - before);
    wait_for("it to tell that they were durable reads", || (durable() >= backlog / 2).then_some(()));
}
