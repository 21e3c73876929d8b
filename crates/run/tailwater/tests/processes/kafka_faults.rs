//! Kafka's clients beside many readers of ours, and when the node is killed under them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::kafka::{need, program};
use crate::support::{Follower, Node, wait_for, wait_for_or_tell};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tailwater_client::{Client, ConsumerConfig, Start};

/// Groups that don't wait for their first members.
fn node(dir: &tempfile::TempDir) -> Node {
    let quick = [("TAILWATER_KAFKA__GROUPS__INITIAL_REBALANCE_DELAY_MS", "0")];
    Node::start_with(&dir.path().join("data"), &[], &quick)
}

fn describe(node: &Node, group: &str) -> Option<Value> {
    serde_json::from_str(&node.get(&format!("/v1/groups/{group}"))?).ok()
}

/// librdkafka, which sends as many of the numbers 0, 1, 2 .. to the stream `numbers` as it is told.
struct Sender {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Sender {
    fn start(node: &Node) -> Self {
        let mut command = program("librdkafka_faults.py");
        command.args([&node.kafka, "numbers"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    /// Returns when they are acknowledged.
    fn send(&mut self, count: usize) {
        writeln!(self.input, "{count}").expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        assert_eq!(line, "sent\n");
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the node did so far.
#[derive(Debug)]
struct Work {
    /// CPU time in clock ticks.
    ticks: f64,
    appended_bytes: f64,
    /// Bytes that it sent to Kafka's consumers.
    fetched_bytes: f64,
    fetches: f64,
    /// Bytes that it sent to one-sided consumers.
    durable_read_bytes: f64,
    calls: f64,
    /// Times that it woke readers who waited for something new.
    wakes: f64,
    /// How many those were.
    woken: f64,
}

impl Work {
    fn of(node: &Node) -> Self {
        let page = node.get("/metrics").expect("metrics");
        let sum = |series: &str| -> f64 {
            let values = page.lines().filter_map(|line| line.strip_prefix(series)?.rsplit(' ').next());
            let values: Vec<f64> = values.map(|value| value.parse().expect("a number")).collect();
            assert!(!values.is_empty(), "there is no {series}");
            values.iter().sum()
        };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.process.id())).expect("it runs");
        // User and system time, counted from the field behind the name.
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().expect("ticks"));
        Self {
            ticks: ticks.sum(),
            appended_bytes: sum("tailwater_kafka_appended_bytes_total"),
            fetched_bytes: sum("tailwater_kafka_fetched_bytes_total{"),
            fetches: sum("tailwater_kafka_requests_total{api=\"Fetch\"}"),
            durable_read_bytes: sum("tailwater_durable_read_bytes_total"),
            calls: sum("tailwater_calls_total{"),
            wakes: sum("tailwater_backend_wakes_total{"),
            woken: sum("tailwater_backend_woken_total{"),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            ticks: self.ticks - before.ticks,
            appended_bytes: self.appended_bytes - before.appended_bytes,
            fetched_bytes: self.fetched_bytes - before.fetched_bytes,
            fetches: self.fetches - before.fetches,
            durable_read_bytes: self.durable_read_bytes - before.durable_read_bytes,
            calls: self.calls - before.calls,
            wakes: self.wakes - before.wakes,
            woken: self.woken - before.woken,
        }
    }
}

/// The values of each shard in the order of their offsets, which begin with 0 and have no gaps.
type Sequences = BTreeMap<u32, Vec<u64>>;

fn add(sequences: &mut Sequences, shard: u32, offset: u64, value: u64) {
    let sequence = sequences.entry(shard).or_default();
    assert_eq!(offset, sequence.len() as u64, "the next offset of shard {shard}");
    sequence.push(value);
}

/// Reads until these members have got so many records, all together.
fn read_group(members: &[Follower], sequences: &mut Sequences, count: usize) {
    wait_for("the group to read them all", || {
        for line in members.iter().flat_map(|member| std::iter::from_fn(|| member.try_next())) {
            let numbers: Vec<u64> =
                line.split(' ').map(|word| word.parse().expect("shard, offset and value")).collect();
            add(sequences, numbers[0] as u32, numbers[1], numbers[2]);
        }
        (sequences.values().map(Vec::len).sum::<usize>() == count).then_some(())
    });
}

/// Reads `numbers` from its start until so many records came, and counts them all in `read`.
async fn read_one_sided(client: Client, count: usize, read: Arc<AtomicUsize>) -> Sequences {
    let config = ConsumerConfig { start: Start::Beginning, ..ConsumerConfig::default() };
    let mut consumer = client.consumer("numbers", config).await.expect("a consumer");
    let mut sequences = Sequences::new();
    let mut seen = 0;
    while seen < count {
        let batch = consumer.next().await.expect("readable").expect("records");
        for record in batch.records() {
            let value = std::str::from_utf8(record.value.expect("a value")).expect("text");
            add(&mut sequences, batch.shard, record.offset.0, value.parse().expect("a number"));
            seen += 1;
            read.fetch_add(1, Ordering::Relaxed);
        }
    }
    sequences
}

#[test]
fn a_kafka_group_and_200_one_sided_consumers_see_one_producer_s_sequence_and_the_node_serves_the_group_alone()
{
    const COUNT: usize = 4_000;
    const CLIENTS: usize = 10;
    const READERS: usize = 200;
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir);
    node.run(&["stream", "create", "numbers", "--shards", "4"]);
    let members: [Follower; 3] = std::array::from_fn(|_| {
        let mut command = Command::new("kcat");
        command.args(["-b", &node.kafka, "-G", "g", "numbers", "-q", "-u", "-f", "%p %o %s\\n"]);
        command.args(["-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=200"]);
        // Nobody is out before the test is, however busy the machine.
        command.args(["-X", "session.timeout.ms=300000"]);
        Follower::of(&mut command)
    });
    wait_for("three members", || {
        let group = describe(&node, "g")?;
        let members = group["member_list"].as_array()?;
        let shards = members.iter().filter_map(|member| member["shards"].as_u64());
        (group["state"] == "Stable" && members.len() == 3 && shards.sum::<u64>() == 4).then_some(())
    });
    let mut sender = Sender::start(&node);
    let mut expected = Sequences::new();

    let before = Work::of(&node);
    sender.send(COUNT);
    read_group(&members, &mut expected, COUNT);
    let alone = Work::of(&node).since(&before);

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let read = Arc::new(AtomicUsize::new(0));
    let mut readers = Vec::new();
    for _ in 0..CLIENTS {
        let client = runtime.block_on(Client::connect(&node.data)).expect("connected");
        for _ in 0..READERS / CLIENTS {
            readers.push(runtime.spawn(read_one_sided(client.clone(), 2 * COUNT, Arc::clone(&read))));
        }
    }
    let all_have_read = |count: usize| {
        wait_for("the one-sided consumers", || {
            assert!(readers.iter().all(|reader| !reader.is_finished()) || count == 2 * COUNT, "one failed");
            (read.load(Ordering::Relaxed) == READERS * count).then_some(())
        });
    };
    all_have_read(COUNT);
    let before = Work::of(&node);
    sender.send(COUNT);
    read_group(&members, &mut expected, 2 * COUNT);
    all_have_read(2 * COUNT);
    let beside = Work::of(&node).since(&before);
    println!("the group alone: {alone:?}\nbeside {READERS} one-sided consumers: {beside:?}");

    for reader in readers {
        assert!(runtime.block_on(reader).expect("it ended") == expected, "another sequence than the group's");
    }
    let mut values: Vec<u64> = expected.into_values().flatten().collect();
    values.sort();
    assert!(values == (0..2 * COUNT as u64).collect::<Vec<_>>());
    // It sent each record to one member of the group, and not to 200 others.
    assert!(beside.appended_bytes > 0.0 && beside.fetched_bytes >= beside.appended_bytes, "{beside:?}");
    assert!(beside.fetched_bytes <= 2.0 * beside.appended_bytes, "{beside:?}");
    assert!(beside.durable_read_bytes <= READERS as f64 / 2.0 * beside.appended_bytes, "{beside:?}");
    // It woke clients, which tell their own consumers, and nobody where there were none.
    assert!(alone.wakes == 0.0 && alone.woken == 0.0, "{alone:?}");
    assert!(beside.wakes > 0.0 && beside.woken <= CLIENTS as f64 * beside.wakes, "{beside:?}");
}

fn terminate(follower: &mut Follower) {
    kill_process(Pid::from_child(follower.child()), Signal::TERM).expect("it is there");
}

fn ends_well(mut follower: Follower) {
    assert!(wait_for("it to end", || follower.child().try_wait().expect("ours")).success());
}

/// Waits until it says so.
fn says(follower: &Follower, word: &str) {
    while follower.next() != word {}
}

/// The last of the counts that it writes, once it has reached `count`.
fn reach(follower: &Follower, count: u64) -> u64 {
    loop {
        let reached: u64 = follower.next().parse().expect("a count");
        if reached >= count {
            return reached;
        }
    }
}

/// Waits until a group has committed all that there is. If it does not, its members say what they were told, and the
/// node what it knows of the group.
fn wait_for_all_committed(node: &Node, members: &mut Follower, group: &str) {
    let has_all = || (describe(node, group)?["lag_records"] == 0).then_some(());
    wait_for_or_tell("all of it to be committed", has_all, || {
        kill_process(Pid::from_child(members.child()), Signal::USR1).expect("it is there");
        let has_told = std::iter::from_fn(|| members.next_or_end()).any(|line| line == "told");
        format!("its members have told what they saw: {has_told}; the group: {:#?}", describe(node, group))
    });
}

#[test]
fn kill_9_under_librdkafka_s_idempotent_producer_and_groups_of_both_protocols_loses_repeats_and_reorders_nothing()
 {
    /// Records that the producer has in flight and queued, at most.
    const IN_FLIGHT_MAX: u64 = 1_000;
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(&dir);
    node.run(&["stream", "create", "endless", "--shards", "4"]);
    let start =
        |scenario: &str| Follower::of(program("librdkafka_faults.py").args([node.kafka.as_str(), scenario]));
    let mut producer = start("endless_producer");
    let groups = ["endless_group", "endless_group_848"].map(start);
    let mut acknowledged = 0;
    for _ in 0..5 {
        // All have gone on behind what there was when the node was killed.
        acknowledged = reach(&producer, acknowledged + IN_FLIGHT_MAX + 500);
        for group in &groups {
            reach(group, acknowledged);
        }
        while let Some(count) = producer.try_next() {
            acknowledged = count.parse().expect("a count");
        }
        node.process.kill();
        node.restart();
    }
    reach(&producer, acknowledged + IN_FLIGHT_MAX + 500);
    terminate(&mut producer);
    let total: u64 = loop {
        if let Some(total) = producer.next().strip_prefix("total ") {
            break total.parse().expect("a count");
        }
    };
    ends_well(producer);
    for (mut group, name) in groups.into_iter().zip(["endless", "endless_848"]) {
        assert_eq!(reach(&group, total), total, "{name} has seen each record, and none that was never sent");
        wait_for_all_committed(&node, &mut group, name);
        terminate(&mut group);
        ends_well(group);
    }

    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    let there = node.run(&["consume", "endless", "--exit-at-end", "--format", "%k:%v\\n"]);
    for line in there.lines() {
        let (key, number) = line.split_once(':').expect("key and value");
        let next = numbers.entry(key.to_owned()).or_default();
        assert_eq!(number.parse(), Ok(*next), "what follows in {key}");
        *next += 1;
    }
    assert_eq!((numbers.len(), numbers.values().sum::<u64>()), (8, total));
}

#[test]
fn after_kill_9_members_of_kip_848_are_in_their_group_and_commit_and_nothing_is_delivered_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let groups = [
        ("TAILWATER_KAFKA__GROUPS__CONSUMER_HEARTBEAT_MS", "200"),
        // Nobody is out before the test is, however busy the machine.
        ("TAILWATER_KAFKA__GROUPS__CONSUMER_SESSION_TIMEOUT_MS", "600000"),
    ];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &groups);
    node.run(&["stream", "create", "endless", "--shards", "4"]);
    let start =
        |scenario: &str| Follower::of(program("librdkafka_faults.py").args([node.kafka.as_str(), scenario]));
    let mut group = start("steady_group_848");
    says(&group, "steady");
    let members = |node: &Node| {
        let described = describe(node, "steady")?;
        let members = described["member_list"].as_array()?.iter();
        let members: Vec<_> =
            members.map(|member| (member["id"].clone(), member["shards"].clone())).collect();
        (described["state"] == "Stable").then(|| (described["generation"].clone(), members))
    };
    let before = wait_for("a settled group", || members(&node));
    let mut producer = start("endless_producer");
    let mut acknowledged = 0;
    for _ in 0..3 {
        acknowledged = reach(&producer, acknowledged + 500);
        reach(&group, acknowledged);
        node.process.kill();
        node.restart();
        assert_eq!(wait_for("the group as it was", || members(&node)), before);
        while let Some(count) = producer.try_next() {
            acknowledged = count.parse().expect("a count");
        }
    }
    reach(&producer, acknowledged + 500);
    terminate(&mut producer);
    let total: u64 = loop {
        if let Some(total) = producer.next().strip_prefix("total ") {
            break total.parse().expect("a count");
        }
    };
    ends_well(producer);
    assert_eq!(reach(&group, total), total, "each record came once");
    wait_for_all_committed(&node, &mut group, "steady");
    terminate(&mut group);
    ends_well(group);
}
