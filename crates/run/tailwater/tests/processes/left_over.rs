//! `tailwater segment gc`, and sweeps of nodes: ledgers that no record names, in a real BookKeeper cluster, of nodes
//! whose metadata is in a real ZooKeeper.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;
use serde_json::Value;
use tailwater_bookkeeper::digest::DigestKind;
use tailwater_bookkeeper::{BookKeeper, LedgerId, LedgerOptions, Quorums};
use tokio::runtime::Runtime;

use crate::segments::{alone, cluster};
use crate::support::load::{Lines, Load};
use crate::support::{Node, tailwater, told, wait_for};

const LINE_BYTES: usize = 200;

/// A store with the metadata of nodes.
struct Place {
    runtime: Runtime,
    client: BookKeeper,
    store: String,
    metadata: String,
}

/// A segment of a stream: its number and its term.
type Named = (u64, u64);

impl Place {
    fn new(name: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let client = runtime.block_on(cluster().client());
        let (store, metadata) =
            (cluster().uri().to_string(), format!("zookeeper://{}/{name}", cluster().zookeeper));
        Self { runtime, client, store, metadata }
    }

    fn start(&self, data: &Path, more: &[(&str, &str)]) -> Node {
        let variables = [
            ("TAILWATER_SEGMENTS", self.store.as_str()),
            ("TAILWATER_METADATA", self.metadata.as_str()),
            ("TAILWATER_ZOOKEEPER__SESSION_MS", "2000"),
            ("TAILWATER_SQS__ENABLED", "false"),
            ("TAILWATER_BROADCAST__ENABLED", "false"),
        ];
        Node::start_with(data, &[], &[&variables[..], more].concat())
    }

    /// Runs `tailwater segment gc` with more flags; what it said.
    fn gc_text(&self, flags: &[&str]) -> String {
        let mut command = tailwater();
        command.args(["segment", "gc", "--store", &self.store, "--metadata", &self.metadata]);
        let (ok, out, errors) = told(command.args(flags), "");
        assert!(ok, "{out}{errors}");
        out
    }

    /// The same; the reason of each ledger.
    fn gc(&self, flags: &[&str]) -> BTreeMap<LedgerId, String> {
        let of = |line: &str| {
            let ledger: Value = serde_json::from_str(line).expect("JSON");
            let number = ledger["ledger"].as_i64().and_then(LedgerId::new).expect("a number");
            (number, ledger["reason"].as_str().expect("text").to_owned())
        };
        self.gc_text(&[flags, &["-o", "json"]].concat()).lines().map(of).collect()
    }

    /// An empty ledger that nobody closes, with these metadata of its own.
    fn plant(&self, custom: &BTreeMap<&str, String>) -> LedgerId {
        let custom = custom.iter().map(|(key, value)| (format!("tailwater.{key}"), value.clone().into()));
        let options = LedgerOptions {
            quorums: Quorums::new(3, 3, 2).expect("in order"),
            digest: DigestKind::Crc32c,
            password: Bytes::from_static(b"tailwater"),
            custom: custom.collect(),
        };
        self.runtime.block_on(self.client.create(&options)).expect("bookies are there").ledger()
    }

    fn is_there(&self, ledger: LedgerId) -> bool {
        self.runtime.block_on(self.client.ledgers().read_latest(ledger)).is_ok()
    }

    /// The ledgers of a stream, with what their metadata say.
    fn ledgers(&self, stream: &str) -> BTreeMap<LedgerId, BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        for ledger in self.runtime.block_on(self.client.ledgers().list()).expect("ZooKeeper answers") {
            // One that is deleted meanwhile is not there.
            let Ok(read) = self.runtime.block_on(self.client.ledgers().read(ledger)) else { continue };
            let custom = read.metadata.custom.into_iter().map(|(key, value)| {
                (key.replace("tailwater.", ""), String::from_utf8_lossy(&value).into_owned())
            });
            let custom: BTreeMap<String, String> = custom.collect();
            if custom.get("stream").is_some_and(|of| of == stream) {
                found.insert(ledger, custom);
            }
        }
        found
    }

    /// The segments that the ledgers of a stream are, those of other clusters left out. None is there twice.
    fn named(&self, cluster: &str, stream: &str) -> BTreeSet<Named> {
        let mut ledgers = self.ledgers(stream);
        ledgers.retain(|_, custom| custom.get("cluster").is_some_and(|of| of == cluster));
        let number = |custom: &BTreeMap<String, String>, key: &str| custom[key].parse().expect("a number");
        let named: BTreeSet<Named> =
            ledgers.values().map(|custom| (number(custom, "segment"), number(custom, "term"))).collect();
        assert_eq!(named.len(), ledgers.len(), "{ledgers:?}");
        named
    }
}

fn described(node: &Node, stream: &str) -> Value {
    serde_json::from_str(&node.run(&["stream", "describe", stream, "-o", "json"])).expect("JSON")
}

fn id_of(node: &Node, stream: &str) -> String {
    described(node, stream)["id"].as_str().expect("an id").to_owned()
}

/// The segments of a stream's one shard, the open one too.
fn segments(node: &Node, stream: &str) -> BTreeSet<Named> {
    let described = described(node, stream);
    let segments = described["shards"][0]["segments"].as_array().expect("a list");
    let of = |segment: &Value| Some((segment["number"].as_u64()?, segment["term"].as_u64()?));
    segments.iter().map(|segment| of(segment).expect("numbers")).collect()
}

#[test]
fn after_kills_under_load_gc_leaves_the_ledgers_that_records_name_and_those_of_others() {
    let _alone = alone();
    let (place, dir) = (Place::new("left-over"), tempfile::tempdir().expect("a directory"));
    let mut node = place.start(&dir.path().join("data"), &[]);
    node.run(&["stream", "create", "s", "--segment-bytes", "100000"]);
    node.run(&["stream", "create", "gone"]);
    let (stream, gone) = (id_of(&node, "s"), id_of(&node, "gone"));
    node.run(&["stream", "delete", "gone"]);
    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&node, "s", &lines);
    for _ in 0..4 {
        load.wait_for_more(700);
        node.process.kill();
        // Beside what it has left open, and beside its start.
        place.gc(&[]);
        node.restart_unready();
        place.gc(&[]);
    }
    load.wait_for_more(700);
    let sent = load.finish();
    let before = segments(&node, "s");
    let from = 600;
    node.run(&["stream", "truncate", "s", "--before", &from.to_string()]);
    let left = segments(&node, "s");
    let removed = *before.difference(&left).next().expect("one is removed");
    let (newest, term) = *left.last().expect("one is open");
    let later = *left.iter().find(|(_, term)| *term > 1).expect("there were many terms");
    assert!(term > later.1, "{left:?}");

    let cluster = place.ledgers(&stream).into_values().next().expect("it has ledgers")["cluster"].clone();
    let of = |cluster: &str, stream: &str, (number, term): Named| {
        let numbers =
            [("segment", number.to_string()), ("term", term.to_string()), ("shard", "0".to_owned())];
        let ids = [("cluster", cluster.to_owned()), ("stream", stream.to_owned())];
        numbers.into_iter().chain(ids).collect::<BTreeMap<_, _>>()
    };
    let another = uuid::Uuid::from_u128(1).to_string();
    let taken_over = (later.0, later.1 - 1);
    let goes = [
        (of(&cluster, &stream, taken_over), "not-named"),
        (of(&cluster, &stream, removed), "not-named"),
        (of(&cluster, &gone, (0, 1)), "stream-gone"),
    ];
    let (to_come, owners) = ((newest + 5, 1), (removed.0, term));
    let stays = [
        (of(&cluster, &stream, to_come), "undecided"),
        (of(&cluster, &stream, owners), "owners-term"),
        (of(&another, &stream, taken_over), "other-cluster"),
        (of(&another, &gone, (0, 1)), "other-cluster"),
        ([("cluster", cluster.clone())].into(), "unreadable"),
        ([("stream", gone.clone())].into(), "other-program"),
        (BTreeMap::new(), "other-program"),
    ];
    let plant = |(custom, reason): &(_, &'static str)| (place.plant(custom), *reason);
    let (goes, stays) = (goes.each_ref().map(plant), stays.each_ref().map(plant));

    let tried = place.gc(&["--dry-run"]);
    for (ledger, reason) in goes.iter().chain(&stays) {
        assert_eq!(tried[ledger], *reason, "{tried:?}");
        assert!(place.is_there(*ledger), "it was a trial");
    }
    let text = place.gc_text(&[]);
    let row = |ledger: &LedgerId| {
        let begins = |line: &&str| line.split_whitespace().next() == Some(&ledger.to_string());
        text.lines().find(begins).unwrap_or_default()
    };
    for (ledger, reason) in &goes {
        assert!(row(ledger).contains("deleted") && !place.is_there(*ledger), "{reason}: {text}");
    }
    for (ledger, reason) in &stays {
        assert!(place.is_there(*ledger), "{reason}: {text}");
    }
    assert!(row(&stays[0].0).contains("kept") && row(&stays[1].0).contains("kept"), "{text}");
    assert!(text.contains("ledgers were deleted; ") && text.contains(" named by records, "), "{text}");
    // Those that the truncation has removed its owner deletes.
    let named: BTreeSet<Named> = left.into_iter().chain([to_come, owners]).collect();
    wait_for("the ledgers that records name to be all", || {
        let there = place.gc(&[]).into_values().any(|reason| reason == "not-named");
        (!there && place.named(&cluster, &stream) == named).then_some(())
    });
    assert!(lines.range(from..sent).eq(node.consume("s")), "once and in order");

    // A node does the same by itself.
    node.process.kill();
    node.restart_with(&[("TAILWATER_LEDGERS__SWEEP_MS", "1000")]);
    let left_over = place.plant(&of(&cluster, &gone, (7, 1)));
    wait_for("a sweep", || {
        let is_counted = node.metric("tailwater_ledger_swept_away_total") >= Some(1.0);
        (is_counted && !place.is_there(left_over)).then_some(())
    });
    assert!(node.metric("tailwater_ledger_swept_total") >= Some(named.len() as f64));
    assert!(stays[2..].iter().all(|(ledger, _)| place.is_there(*ledger)), "they are others'");
    assert!(lines.range(from..sent).eq(node.consume("s")), "once and in order");
}

#[test]
fn gc_leaves_acknowledged_records_that_a_new_owner_has_yet_to_find() {
    let (cluster, _alone) = (cluster(), alone());
    let (place, dir) = (Place::new("left-to-find"), tempfile::tempdir().expect("a directory"));
    let all = [("TAILWATER_CLUSTER__ACTIVE", "all"), ("TAILWATER_LOG__CELLS", "false")];
    let mut node = place.start(&dir.path().join("data"), &all);
    node.run(&["stream", "create", "s"]);
    let lines: Vec<String> = Lines::new("a", LINE_BYTES).range(0..100).collect();
    let text = lines.join("\n") + "\n";
    wait_for("the shard to have an owner", || {
        node.output(&["produce", "s"], text.as_bytes()).status.success().then_some(())
    });
    let (ledger, custom) = place.ledgers(&id_of(&node, "s")).pop_last().expect("one is open");
    node.process.kill();
    let read = place.runtime.block_on(place.client.ledgers().read(ledger)).expect("it is there");
    let bookies = read.metadata.last_ensemble().1.to_vec();
    // One of three can't say what was acknowledged: the next owner waits for another one.
    let dead: Vec<usize> = bookies[..2].iter().map(|bookie| cluster.kill(bookie.name())).collect();
    node.restart_unready();
    // Its claim has begun the next term.
    let reason = wait_for("the claim", || {
        let reason = place.gc(&["--dry-run"]).remove(&ledger).expect("it is there");
        (reason != "owners-term").then_some(reason)
    });
    assert_eq!(place.gc(&[]).get(&ledger), Some(&reason));
    dead.into_iter().for_each(|number| cluster.restart(number));
    assert!(place.is_there(ledger) && reason == "undecided", "{reason}: {custom:?}");
    let read = wait_for("the shard to be open", || {
        let output = node.output(&["consume", "s", "--from", "start", "--exit-at-end"], b"");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    assert_eq!(read, text, "once and in order");
}
