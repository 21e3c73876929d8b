//! A cell of backends that are processes of their own, under load while they are killed, start again, come and leave.
//! What was acknowledged is looked for all the time, key by key.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tailwater_cache::{BackendPlace, Backends, Cell, CellValue, ItemExtras, Lookup, UpdateError, UpdateTo};
use tailwater_env::Env;

use crate::support::{Node, Process, tailwater, wait_for_or_tell};

/// Keys that are set, each by one writer.
const KEYS: usize = 64;
/// What the load's operations may take: it is no matter of time.
const DEADLINE: Duration = Duration::from_secs(60);

fn described(node: &Node) -> Value {
    serde_json::from_str(&node.run(&["cell", "describe", "tiles", "-o", "json"])).expect("JSON")
}

/// Waits until all backends of the cell are live, and hold what they should.
fn wait_for_whole(node: &Node, backends: usize) {
    let is_whole = |cell: &Value| {
        let places = cell["places"].as_array().expect("places");
        let of_place = |place: &Value| place["is_live"] == true && place["filled_percent"] == 100.0;
        places.len() == backends && places.iter().all(of_place)
    };
    let look = || is_whole(&described(node)).then_some(());
    wait_for_or_tell("all backends to be refilled", look, || described(node).to_string());
}

fn start_backend(socket: &Path) -> Process {
    let mut command = tailwater();
    command.args(["cache", "serve", "--cell", "tiles", "--capacity-bytes", "8388608", "--ttl-ms", "3600000"]);
    command.arg("--unix").arg(socket);
    Process::start(&mut command, &socket.with_extension("log"))
}

/// Clients that set, get and count until they are stopped.
struct CellLoad {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    running: std::thread::JoinHandle<CellLoaded>,
}

/// What is known when they have stopped.
struct CellLoaded {
    /// Of each key the number that was acknowledged last.
    last: Vec<u64>,
    /// Updates that were acknowledged, and those of which nothing is known.
    counted: (u64, u64),
}

impl CellLoad {
    fn start(seeds: Vec<String>) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counting) = (Arc::clone(&stop), Arc::clone(&rounds));
        let running = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(load(&seeds, &stopped, &counting))
        });
        Self { stop, rounds, running }
    }

    /// Waits until it has gone round some more times.
    fn wait_for_rounds(&self) {
        let until = self.rounds.load(Ordering::Relaxed) + 5;
        let done =
            || (self.rounds.load(Ordering::Relaxed) >= until || self.running.is_finished()).then_some(());
        wait_for_or_tell("the load to go on", done, String::new);
    }

    fn stop(self) -> CellLoaded {
        self.stop.store(true, Ordering::Relaxed);
        self.running.join().expect("nothing was lost")
    }
}

async fn client(seeds: &[String]) -> Cell {
    let env = Env::real();
    let place = |address: &String| BackendPlace::new(0, vec![address.clone()]);
    let places: Vec<BackendPlace> = seeds.iter().map(place).collect();
    let client_id = env.random_u64() as u32;
    let change = |config: &mut tailwater_cache::CellConfig| config.deadline = DEADLINE;
    Cell::at_seeds(&env, Backends::by_address(&env), &places, client_id, change)
        .await
        .expect("a backend answers")
}

fn key(number: usize) -> Bytes {
    Bytes::from(format!("key {number}"))
}

fn number_of(value: &[u8]) -> u64 {
    String::from_utf8_lossy(value).trim_end_matches('.').parse().expect("a number that was set")
}

/// Sets each key to a number that grows, gets it from another client, and counts a counter up, until it is stopped.
async fn load(seeds: &[String], stop: &AtomicBool, rounds: &AtomicU64) -> CellLoaded {
    let (writer, reader) = (client(seeds).await, client(seeds).await);
    let mut loaded = CellLoaded { last: vec![0; KEYS], counted: (0, 0) };
    let keys: Vec<Bytes> = (0..KEYS).map(key).collect();
    for round in 1_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let value = Bytes::from(format!("{round}{}", ".".repeat(500)));
        let set = writer.set(keys.iter().map(|key| (key.clone(), value.clone())).collect()).await;
        for (last, result) in loaded.last.iter_mut().zip(set) {
            if result.is_ok() {
                *last = round;
            }
        }
        for (key, (lookup, last)) in reader.get_consistent(&keys).await.iter().zip(&loaded.last).enumerate() {
            check(key, lookup, *last);
        }
        match writer.update(Bytes::from_static(b"count"), one_more).await {
            Ok(_) => loaded.counted.0 += 1,
            Err(UpdateError::Unknown) => loaded.counted.1 += 1,
            Err(_) => {}
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    loaded
}

fn one_more(held: Option<&CellValue>) -> UpdateTo {
    let before = held.map_or(0, |held| number_of(&held.value));
    UpdateTo::Set((before + 1).to_string().into(), ItemExtras::default())
}

/// What a consistent get answers that began when `last` had been acknowledged.
fn check(key: usize, lookup: &Lookup, last: u64) {
    match lookup {
        Lookup::Hit { value, .. } => {
            let got = number_of(value);
            assert!(got >= last, "key {key} is {got}, and {last} was acknowledged");
        }
        Lookup::Miss => assert_eq!(last, 0, "key {key} is missing"),
        Lookup::Failed(why) => println!("key {key} could not be read: {why}"),
    }
}

/// Whether all is there in the end.
fn check_the_end(seeds: &[String], loaded: &CellLoaded) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let cell = client(seeds).await;
        let keys: Vec<Bytes> = (0..KEYS).map(key).collect();
        for (key, (lookup, last)) in cell.get_consistent(&keys).await.iter().zip(&loaded.last).enumerate() {
            assert!(matches!(lookup, Lookup::Hit { .. }), "key {key}: {lookup:?}");
            check(key, lookup, *last);
        }
        let count = cell.update(Bytes::from_static(b"count"), |_| UpdateTo::Keep).await.expect("it is read");
        let held = count.before.map_or(0, |held| number_of(&held.value));
        let (counted, unknown) = loaded.counted;
        assert!((counted..=counted + unknown).contains(&held), "{held}, of {counted} and {unknown} unknown");
    });
}

#[test]
fn backends_are_killed_one_after_another_come_and_leave_under_load_and_nothing_acknowledged_is_lost() {
    let (dir, node) = Node::start_anew();
    let sockets: Vec<PathBuf> = (0..4).map(|number| dir.path().join(format!("tiles{number}.sock"))).collect();
    let seeds: Vec<String> = sockets.iter().map(|socket| format!("unix:{}", socket.display())).collect();
    let mut backends: Vec<Process> = sockets.iter().map(|socket| start_backend(socket)).collect();
    let mut create = vec!["cell", "create", "tiles", "--mode", "r3.2"];
    seeds[..3].iter().for_each(|seed| create.extend(["--backend", seed]));
    node.run(&create);
    wait_for_whole(&node, 3);
    let load = CellLoad::start(seeds.clone());
    load.wait_for_rounds();
    // kill -9 of one, and of another one when the first is refilled.
    for number in [1, 2, 0] {
        backends[number].kill();
        load.wait_for_rounds();
        backends[number] = start_backend(&sockets[number]);
        wait_for_whole(&node, 3);
        load.wait_for_rounds();
    }
    let resized = node.run(&["cell", "resize", "tiles", "--backend", &seeds[3]]);
    assert_eq!(resized, "cell tiles has 4 backends now: 0, 1, 2, 3\n");
    load.wait_for_rounds();
    // One that is dead leaves.
    backends[1].kill();
    let drained = node.run(&["cell", "drain", "tiles", "1"]);
    assert_eq!(drained, "cell tiles has 3 backends now: 0, 2, 3\n");
    wait_for_whole(&node, 3);
    load.wait_for_rounds();
    assert!(node.run_failing(&["cell", "drain", "tiles", "1"]).contains("has no backend 1: it has 0, 2, 3"));
    assert!(node.run_failing(&["cell", "drain", "tiles", "2"]).contains("3 backends at least"));
    let loaded = load.stop();
    check_the_end(&[seeds[0].clone(), seeds[3].clone()], &loaded);
}

/// Between two looks at whether it runs.
#[allow(clippy::disallowed_methods)]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

/// Starts a backend's process again each time it asks for that by its exit status, until it is told to stop.
struct Supervised {
    stop: Arc<AtomicBool>,
    starts: Arc<AtomicU64>,
    running: std::thread::JoinHandle<()>,
}

impl Supervised {
    fn start(socket: PathBuf) -> Self {
        let (stop, starts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counting) = (Arc::clone(&stop), Arc::clone(&starts));
        let running = std::thread::spawn(move || {
            let mut backend = start_backend(&socket);
            counting.fetch_add(1, Ordering::Relaxed);
            while !stopped.load(Ordering::Relaxed) {
                if !backend.is_running() {
                    assert_eq!(backend.ended().code(), Some(10), "it ends because it was asked to");
                    backend = start_backend(&socket);
                    counting.fetch_add(1, Ordering::Relaxed);
                }
                pause();
            }
        });
        Self { stop, starts, running }
    }

    /// How often it was started.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.running.join().expect("it ended only when it was asked to");
        self.starts.load(Ordering::Relaxed)
    }
}

#[test]
fn a_spare_stands_for_a_backend_that_is_drained_and_for_each_while_all_are_restarted_under_load() {
    let (dir, node) = Node::start_anew();
    let sockets: Vec<PathBuf> = (0..5).map(|number| dir.path().join(format!("tiles{number}.sock"))).collect();
    let seeds: Vec<String> = sockets.iter().map(|socket| format!("unix:{}", socket.display())).collect();
    let backends: Vec<Supervised> = sockets.iter().cloned().map(Supervised::start).collect();
    let mut create = vec!["cell", "create", "tiles", "--mode", "r3.2", "--spare", &seeds[4]];
    seeds[..4].iter().for_each(|seed| create.extend(["--backend", seed]));
    node.run(&create);
    wait_for_whole(&node, 4);
    let load = CellLoad::start(seeds.clone());
    load.wait_for_rounds();
    let before = described(&node)["places"][1]["copies_percent"].clone();
    let drained = node.run(&["cell", "drain", "tiles", "1"]);
    assert_eq!(drained, "cell tiles has 4 backends now: 0, 2, 3, 4 for 1; 1 spare: 1\n");
    let cell = described(&node);
    assert_eq!((&cell["places"][1]["copies_percent"], &cell["spares"][0]["stand_in"]), (&before, &4.into()));
    load.wait_for_rounds();
    assert!(node.run_failing(&["cell", "drain", "tiles", "1"]).contains("backend 4 stands for it"));
    assert!(node.run_failing(&["cell", "roll", "tiles"]).contains("cell restore tiles 1"));
    assert!(node.run_failing(&["cell", "restore", "tiles", "2"]).contains("is not drained"));
    let restored = node.run(&["cell", "restore", "tiles", "1"]);
    assert_eq!(restored, "cell tiles has 4 backends now: 0, 1, 2, 3; 1 spare: 4\n");
    load.wait_for_rounds();

    assert_eq!(node.run(&["cell", "roll", "tiles"]), "cell tiles: 5 backends restarted\n");
    load.wait_for_rounds();
    wait_for_whole(&node, 4);
    let loaded = load.stop();
    check_the_end(&seeds[..4], &loaded);
    let starts: Vec<u64> = backends.into_iter().map(Supervised::stop).collect();
    assert_eq!(starts, [2; 5]);
}

#[test]
fn a_node_s_own_backends_are_restarted_one_after_another_and_one_that_is_drained_is_so_after_the_node_starts_again()
 {
    let (_dir, mut node) = Node::start_anew();
    let create =
        ["cell", "create", "tiles", "--backends", "3", "--mode", "r3.2", "--capacity-bytes", "8388608"];
    node.run(&create);
    wait_for_whole(&node, 3);
    node.run_in_time(&["cache", "set", "--cell", "tiles", "tea", "1"]);
    assert!(node.run_failing(&["cell", "roll", "tiles"]).contains("has no spare"));
    assert!(node.run_failing(&["cell", "drain", "tiles", "1"]).contains("3 backends at least"));
    let resized = node.run(&["cell", "resize", "tiles", "--spares", "1"]);
    assert_eq!(resized, "cell tiles has 3 backends now: 0, 1, 2; 1 spare: 3\n");
    assert_eq!(node.run(&["cell", "roll", "tiles"]), "cell tiles: 3 backends restarted\n");
    assert_eq!(node.run_in_time(&["cache", "get", "--cell", "tiles", "tea"]).trim(), "1");
    let drained = node.run(&["cell", "drain", "tiles", "0"]);
    assert_eq!(drained, "cell tiles has 3 backends now: 1, 2, 3 for 0; 1 spare: 0\n");
    let refused = node.run_failing(&["cell", "resize", "tiles", "--backends", "4"]);
    assert!(refused.contains("backend 0 is drained"), "{refused}");

    assert!(node.process.stop(), "a graceful stop ends well");
    node.restart();
    wait_for_whole(&node, 3);
    node.run_in_time(&["cache", "set", "--cell", "tiles", "tea", "2"]);
    let restored = node.run(&["cell", "restore", "tiles", "0"]);
    assert_eq!(restored, "cell tiles has 3 backends now: 0, 1, 2; 1 spare: 3\n");
    assert_eq!(node.run_in_time(&["cache", "get", "--cell", "tiles", "tea"]).trim(), "2");
    // The spare leaves, and comes again as another one.
    assert_eq!(node.run(&["cell", "drain", "tiles", "3"]), "cell tiles has 3 backends now: 0, 1, 2\n");
    let resized = node.run(&["cell", "resize", "tiles", "--spares", "1"]);
    assert_eq!(resized, "cell tiles has 3 backends now: 0, 1, 2; 1 spare: 4\n");
}

#[test]
fn a_cell_of_the_node_s_own_backends_is_resized_and_drained_and_is_the_same_after_a_restart() {
    let (_dir, mut node) = Node::start_anew();
    node.run(&[
        "cell",
        "create",
        "tiles",
        "--backends",
        "3",
        "--mode",
        "r3.2",
        "--capacity-bytes",
        "8388608",
    ]);
    wait_for_whole(&node, 3);
    for number in 0..20 {
        node.run_in_time(&["cache", "set", "--cell", "tiles", &format!("key {number}"), &number.to_string()]);
    }
    assert_eq!(
        node.run(&["cell", "resize", "tiles", "--backends", "5"]),
        "cell tiles has 5 backends now: 0, 1, 2, 3, 4\n"
    );
    let drained = node.output(&["cell", "drain", "tiles", "1"], b"");
    assert_eq!(String::from_utf8_lossy(&drained.stdout), "cell tiles has 4 backends now: 0, 2, 3, 4\n");
    let told = String::from_utf8_lossy(&drained.stderr);
    assert!(told.starts_with("tailwater: cell tiles: copying what it holds"), "{told}");
    assert_eq!(
        node.run(&["cell", "resize", "tiles", "--backends", "3"]),
        "cell tiles has 3 backends now: 0, 2, 3\n"
    );
    for number in 0..20 {
        let got = node.run_in_time(&["cache", "get", "--cell", "tiles", &format!("key {number}")]);
        assert_eq!(got.trim(), number.to_string());
    }
    let copied = node.metric("tailwater_backend_copied_total{cell=\"tiles\"}").expect("a series");
    assert!(copied > 0.0, "{copied}");
    assert!(
        node.run_failing(&["cell", "resize", "tiles", "--backends", "2"]).contains("has 3 to 16 backends"),
        "too few"
    );
    assert!(node.run_failing(&["cell", "drain", "data", "0"]).contains("[data_cell]"), "a cell of the log");
    let refused = node.run_failing(&["cell", "resize", "data", "--backend", "tcp:127.0.0.1:1"]);
    assert!(refused.contains("name backends in [data_cell] first"), "{refused}");

    assert!(node.process.stop(), "a graceful stop ends well");
    node.restart();
    wait_for_whole(&node, 3);
    let numbers: Vec<u64> = described(&node)["places"]
        .as_array()
        .expect("places")
        .iter()
        .map(|place| place["number"].as_u64().expect("a number"))
        .collect();
    assert_eq!(numbers, [0, 2, 3]);
    node.run_in_time(&["cache", "set", "--cell", "tiles", "tea", "again"]);
    assert_eq!(node.run_in_time(&["cache", "get", "--cell", "tiles", "tea"]).trim(), "again");
}
