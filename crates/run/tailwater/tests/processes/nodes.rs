//! Several active nodes, whose metadata is in a real ZooKeeper and whose segments are in a real BookKeeper cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use crate::segments::{alone, cluster};
use crate::support::kafka::need;
use crate::support::load::{Lines, Load};
use crate::support::{Node, tailwater, told, wait_for};

const SHARDS: usize = 24;

fn start(data: &Path, name: &str, metadata: &str) -> Node {
    let store = cluster().uri().to_string();
    let variables = [
        ("TAILWATER_SEGMENTS", store.as_str()),
        ("TAILWATER_METADATA", metadata),
        ("TAILWATER_CLUSTER__ACTIVE", "all"),
        ("TAILWATER_CLUSTER__NODE", name),
        ("TAILWATER_LOG__CELLS", "false"),
        ("TAILWATER_ZOOKEEPER__SESSION_MS", "2000"),
        ("TAILWATER_SQS__ENABLED", "false"),
        ("TAILWATER_BROADCAST__ENABLED", "false"),
        ("TAILWATER_KAFKA__GROUPS__INITIAL_REBALANCE_DELAY_MS", "0"),
    ];
    Node::start_with(data, &[], &variables)
}

/// Nodes that are all active on metadata of their own.
struct Nodes {
    nodes: Vec<Node>,
    dir: tempfile::TempDir,
    metadata: String,
}

impl Nodes {
    fn start(count: usize, name: &str) -> Self {
        need("kcat");
        let metadata = format!("zookeeper://{}/{name}", cluster().zookeeper);
        let dir = tempfile::tempdir().expect("a directory");
        let start = |number| start(&dir.path().join(format!("n{number}")), &format!("n{number}"), &metadata);
        let nodes = (0..count).map(start).collect();
        Self { nodes, dir, metadata }
    }

    fn brokers(&self) -> String {
        let all: Vec<&str> = self.nodes.iter().map(|node| &*node.kafka).collect();
        all.join(",")
    }

    /// Waits until a node is told by every other one, and leads shards of `t` as all of them say.
    fn wait_until_all_lead(&self, nodes: &[usize]) {
        for asked in nodes {
            wait_for("all nodes to lead", || {
                let listed = Listed::at(&self.nodes[*asked].kafka, "t")?;
                let wanted: BTreeSet<&str> = nodes.iter().map(|node| &*self.nodes[*node].kafka).collect();
                let led: BTreeSet<&str> = listed.leaders.values().map(String::as_str).collect();
                (listed.leaders.len() == SHARDS && led == wanted).then_some(())
            });
        }
    }
}

/// What kcat is told of the brokers and of a topic.
#[derive(Debug)]
struct Listed {
    brokers: BTreeSet<String>,
    /// The addresses of partitions' leaders, of those that have one.
    leaders: BTreeMap<usize, String>,
    topics: BTreeSet<String>,
}

impl Listed {
    fn at(broker: &str, topic: &str) -> Option<Self> {
        let (ok, out, _) = told(Command::new("kcat").args(["-b", broker, "-L", "-J", "-m", "10"]), "");
        let listed: serde_json::Value = serde_json::from_str(&out).ok().filter(|_| ok)?;
        let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let brokers: BTreeMap<i64, String> = list(&listed["brokers"])
            .iter()
            .map(|broker| (broker["id"].as_i64().unwrap_or(-1), text(&broker["name"])))
            .collect();
        let topics = list(&listed["topics"]);
        let found = topics.iter().find(|found| found["topic"] == topic);
        let partitions = found.map(|found| list(&found["partitions"])).unwrap_or_default();
        let leaders = partitions.iter().filter_map(|partition| {
            let leader = brokers.get(&partition["leader"].as_i64()?)?;
            Some((usize::try_from(partition["partition"].as_u64()?).ok()?, leader.clone()))
        });
        let leaders = leaders.collect();
        let topics = topics.iter().map(|found| text(&found["topic"])).collect();
        Some(Self { brokers: brokers.into_values().collect(), leaders, topics })
    }
}

/// kcat on several brokers; its standard output.
fn kcat(brokers: &str, args: &[&str], input: &str) -> String {
    let (ok, out, err) = told(Command::new("kcat").args(["-b", brokers, "-m", "60"]).args(args), input);
    assert!(ok, "kcat {args:?} failed:\n{err}");
    out
}

/// All lines of `t`, by partition, in order.
fn read(brokers: &str) -> BTreeMap<usize, Vec<u64>> {
    let args = ["-C", "-t", "t", "-o", "beginning", "-e", "-q", "-f", "%p %s\\n"];
    let mut read: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for line in kcat(brokers, &args, "").lines() {
        let (partition, number) = line.split_once(' ').expect("two numbers");
        let number = number.parse().expect("a number");
        read.entry(partition.parse().expect("a number")).or_default().push(number);
    }
    read
}

fn assert_whole(read: &BTreeMap<usize, Vec<u64>>, sent: u64) {
    for (partition, numbers) in read {
        assert!(numbers.is_sorted(), "partition {partition} is out of order: {numbers:?}");
    }
    let mut all: Vec<u64> = read.values().flatten().copied().collect();
    all.sort_unstable();
    let missing: Vec<u64> = (0..sent).filter(|number| all.binary_search(number).is_err()).collect();
    assert!(missing.is_empty(), "{} of {sent} are lost: {missing:?}", missing.len());
    assert_eq!(all.len() as u64, sent, "some are there twice");
}

/// What a group has not read yet.
fn read_as_group(brokers: &str) -> Vec<u64> {
    let out = kcat(brokers, &["-X", "auto.offset.reset=earliest", "-e", "-q", "-G", "g", "t"], "");
    out.lines().map(|line| line.parse().expect("a number")).collect()
}

/// An idempotent producer of librdkafka, which sends numbers to random partitions of `t` until it is told to finish.
struct Sender {
    child: Child,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    feeding: JoinHandle<()>,
}

impl Sender {
    fn start(brokers: &str, first: u64) -> Self {
        let mut child = Command::new("kcat")
            .args(["-b", brokers, "-P", "-t", "t", "-X", "enable.idempotence=true", "-X", "linger.ms=5"])
            .args(["-X", "sticky.partitioning.linger.ms=0", "-X", "message.timeout.ms=600000"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdin = child.stdin.take().expect("piped");
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::new(AtomicU64::new(first)));
        let (stopping, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let feeding = std::thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                let next = count.load(Ordering::Relaxed);
                let lines: String = (next..next + 5).map(|number| format!("{number}\n")).collect();
                if stdin.write_all(lines.as_bytes()).is_err() {
                    return;
                }
                count.store(next + 5, Ordering::Relaxed);
                // What makes it a load of some rate.
                std::thread::park_timeout(Duration::from_millis(5));
            }
        });
        Self { child, stop, sent, feeding }
    }

    fn wait_for_more(&self, more: u64) {
        let wanted = self.sent.load(Ordering::Relaxed) + more;
        wait_for("more to be sent", || (self.sent.load(Ordering::Relaxed) >= wanted).then_some(()));
    }

    /// How many were sent, all of which are acknowledged.
    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.feeding.join().expect("it ends");
        let ended = self.child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && !errors.contains("Delivery failed"), "{errors}");
        self.sent.load(Ordering::Relaxed)
    }
}

#[test]
fn three_nodes_share_a_topic_and_the_others_take_over_what_a_killed_one_has_with_nothing_lost_or_repeated() {
    let _alone = alone();
    let mut all = Nodes::start(3, "three");
    all.nodes[0].run(&["stream", "create", "t", "--shards", &SHARDS.to_string()]);
    all.wait_until_all_lead(&[0, 1, 2]);
    let brokers = all.brokers();

    let sender = Sender::start(&brokers, 0);
    sender.wait_for_more(1_000);
    let before = sender.finish();
    assert_whole(&read(&brokers), before);
    assert_eq!(read_as_group(&brokers).len() as u64, before);

    let sender = Sender::start(&brokers, before);
    sender.wait_for_more(1_000);
    all.nodes[1].process.kill();
    sender.wait_for_more(1_000);
    all.wait_until_all_lead(&[0, 2]);
    sender.wait_for_more(1_000);
    let sent = sender.finish();
    assert_whole(&read(&brokers), sent);
    let mut later = read_as_group(&brokers);
    later.sort_unstable();
    assert_eq!(later, (before..sent).collect::<Vec<_>>(), "the group goes on where it was");

    // It comes back, and gets its part again.
    let sender = Sender::start(&brokers, sent);
    all.nodes[1].restart();
    all.wait_until_all_lead(&[0, 1, 2]);
    sender.wait_for_more(1_000);
    let drain = ["node", "drain", "n2", "--metadata", &all.metadata];
    let (ok, drained, errors) = told(tailwater().args(drain), "");
    assert!(ok && drained.contains("is drained"), "{drained}{errors}");
    all.wait_until_all_lead(&[0, 1]);
    assert!(all.nodes[2].process.stop(), "it ends well");
    sender.wait_for_more(1_000);
    let sent = sender.finish();
    assert_whole(&read(&brokers), sent);

    // What one creates and deletes the other sees.
    all.nodes[1].run(&["stream", "create", "u"]);
    let has = |node: &Node| Listed::at(&node.kafka, "u").map(|listed| listed.topics.contains("u"));
    wait_for("the topic to be seen", || has(&all.nodes[0]).filter(|has| *has));
    all.nodes[0].run(&["stream", "delete", "u"]);
    wait_for("the topic to be gone", || has(&all.nodes[1]).filter(|has| !*has));
    wait_for("two brokers", || {
        Listed::at(&all.nodes[0].kafka, "t").filter(|listed| listed.brokers.len() == 2)
    });
}

#[test]
fn a_node_that_was_frozen_while_another_took_its_shard_acknowledges_nothing_more_and_owns_again_later() {
    let _alone = alone();
    let all = Nodes::start(2, "frozen-of-two");
    // Each knows of the other once both lead: then no shard is given to one and moved to the other.
    all.nodes[0].run(&["stream", "create", "t", "--shards", &SHARDS.to_string()]);
    all.wait_until_all_lead(&[0, 1]);
    all.nodes[0].run(&["stream", "create", "s", "--segment-bytes", "300000"]);
    let leader = |asked: &Node| Listed::at(&asked.kafka, "s")?.leaders.remove(&0);
    let first = wait_for("the shard to have an owner", || leader(&all.nodes[1]));
    let (frozen, next) = match first == all.nodes[0].kafka {
        true => (&all.nodes[0], &all.nodes[1]),
        false => (&all.nodes[1], &all.nodes[0]),
    };
    let lines = Lines::new("a", 200);
    wait_for("the owner to be open", || {
        frozen.output(&["produce", "s"], b"first\n").status.success().then_some(())
    });
    let load = Load::start(frozen, "s", &lines);
    let before = load.wait_for_more(1_000);
    frozen.process.signal(Signal::STOP);
    wait_for("the other node to take over", || leader(next).filter(|leader| *leader == next.kafka));
    kcat(&next.kafka, &["-P", "-t", "s"], "from the next one\n");
    frozen.process.signal(Signal::CONT);
    let read = || kcat(&next.kafka, &["-C", "-t", "s", "-e", "-q", "-o", "beginning"], "");
    wait_for("the frozen one to know", || {
        frozen.process.log().contains("another node owns the shard by now").then_some(())
    });
    let acked = load.kill();
    let read: Vec<String> = read().lines().map(str::to_owned).collect();
    let at = read.iter().position(|line| line == "from the next one").expect("it is there");
    assert_eq!(read[0], "first");
    // What comes behind it was sent again once the shard was back: nothing was acknowledged that is not there.
    let others: Vec<&String> = read[1..at].iter().chain(&read[at + 1..]).collect();
    assert!(acked >= before && others.len() as u64 >= acked, "{acked} of {} were acknowledged", others.len());
    assert!(lines.range(0..others.len() as u64).eq(others.into_iter().cloned()), "once and in order");
    // It is the one that should have it.
    wait_for("the shard to come back", || leader(next).filter(|leader| *leader == frozen.kafka));
    kcat(&all.brokers(), &["-P", "-t", "s"], "again\n");
    drop((all.dir, all.metadata));
}
