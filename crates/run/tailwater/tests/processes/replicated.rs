//! A node whose segments are ledgers of a real BookKeeper cluster.

use std::collections::BTreeMap;

use tailwater_bookkeeper::{BookKeeper, LedgerId, LedgerStatus};

use crate::segments::{alone, cluster};
use crate::support::kafka::{kcat, scenario};
use crate::support::load::{Lines, Load, Reader};
use crate::support::{Node, wait_for};

const LINE_BYTES: usize = 200;

/// A node on ledgers, with a stream called "s" whose segments are short.
fn node(dir: &tempfile::TempDir, store: &str) -> Node {
    node_of_segments(dir, store, "300000")
}

fn node_of_segments(dir: &tempfile::TempDir, store: &str, segment_bytes: &str) -> Node {
    let node = Node::start_with(&dir.path().join("data"), &[], &[("TAILWATER_SEGMENTS", store)]);
    node.run(&["stream", "create", "s", "--segment-bytes", segment_bytes]);
    node
}

/// The ledgers of streams, by whether they are closed, and the bookies of the newest that is open.
struct Seen {
    closed: BTreeMap<LedgerId, bool>,
    bookies: Vec<String>,
}

async fn look(client: &BookKeeper, stream: &str) -> Seen {
    let mut seen = Seen { closed: BTreeMap::new(), bookies: Vec::new() };
    // The newest first: with many ledgers it would be closed by the time that all others were read.
    for ledger in client.ledgers().list().await.expect("ZooKeeper answers").into_iter().rev() {
        // One that is deleted meanwhile is not there.
        let Ok(read) = client.ledgers().read(ledger).await else { continue };
        if read.metadata.custom.get("tailwater.stream").is_none_or(|of| of != stream.as_bytes()) {
            continue;
        }
        let is_closed = matches!(read.metadata.state, LedgerStatus::Closed { .. });
        seen.closed.insert(ledger, is_closed);
        if !is_closed && seen.bookies.is_empty() {
            seen.bookies =
                read.metadata.last_ensemble().1.iter().map(|bookie| bookie.name().to_owned()).collect();
        }
    }
    seen
}

fn described(node: &Node) -> serde_json::Value {
    serde_json::from_str(&node.run(&["stream", "describe", "s", "-o", "json"])).expect("JSON")
}

fn stream_id(node: &Node) -> String {
    described(node)["id"].as_str().expect("an id").to_owned()
}

#[test]
fn after_kill_9_of_the_node_and_of_a_bookie_under_load_every_acknowledged_record_is_there_in_order() {
    let (cluster, _alone) = (cluster(), alone());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(cluster.client());
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = node(&dir, &cluster.uri().to_string());
    let stream = stream_id(&node);
    let lines = Lines::new("a", LINE_BYTES);
    let reader = Reader::start(&node, "s", &dir.path().join("reader.log"), &[]);
    let load = Load::start(&node, "s", &lines);
    reader.follow(&lines, load.wait_for_more(2_000), "before anything dies");

    let victim = wait_for("an open ledger", || runtime.block_on(look(&client, &stream)).bookies.pop());
    let number = cluster.kill(&victim);
    reader.follow(&lines, load.wait_for_more(2_000), "without a bookie");
    for round in 0..2 {
        node.process.kill();
        node.restart();
        reader.follow(&lines, load.wait_for_more(2_000), &format!("after kill {round} of the node"));
    }
    cluster.restart(number);
    let sent = load.finish();
    reader.follow(&lines, sent, "to its end");
    assert!(lines.range(0..sent).eq(node.consume("s")), "once and in order");
    let read = kcat(&node, &["-C", "-q", "-t", "s", "-o", "beginning", "-e"], "");
    assert!(lines.range(0..sent).eq(read.lines().map(str::to_owned)), "by Kafka's clients, too");

    // Whoever wrote them before was shut out: at most the newest is open.
    let seen = wait_for("those that are full to be closed", || {
        let seen = runtime.block_on(look(&client, &stream));
        (seen.closed.values().filter(|closed| !**closed).count() <= 1).then_some(seen)
    });
    assert!(seen.closed.len() > 5, "{:?}", seen.closed);
    // From the middle, in a ledger that is not read from its start.
    let middle = sent / 2;
    let from = middle.to_string();
    let some = node.run(&["consume", "s", "--from", &from, "--count", "3"]);
    assert!(lines.range(middle..middle + 3).eq(some.lines().map(str::to_owned)), "{some}");

    assert!(node.process.stop(), "it ends well");
    let seen = runtime.block_on(look(&client, &stream));
    assert!(seen.closed.values().all(|closed| *closed), "{:?}", seen.closed);
    node.restart();
    assert!(lines.range(0..sent).eq(node.consume("s")), "after a restart");
    // What is removed leaves no ledger behind.
    node.run(&["stream", "truncate", "s", "--before", &from]);
    let described = described(&node);
    let left = described["shards"][0]["segments"].as_array().expect("a list").len();
    assert!(left < seen.closed.len(), "{left} of {:?}", seen.closed);
    wait_for("the ledgers of others to be deleted", || {
        (runtime.block_on(look(&client, &stream)).closed.len() == left).then_some(())
    });
    assert!(lines.range(middle..sent).eq(node.consume("s")), "what is left");
    node.run(&["stream", "delete", "s"]);
    wait_for("all of them to be deleted", || {
        runtime.block_on(look(&client, &stream)).closed.is_empty().then_some(())
    });
}

#[test]
fn a_shard_goes_on_in_another_ledger_when_somebody_recovers_its_own_under_load() {
    let (cluster, _alone) = (cluster(), alone());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(cluster.client());
    let dir = tempfile::tempdir().expect("a directory");
    // So long that none is full, and closed by the node, before it is recovered.
    let node = node_of_segments(&dir, &cluster.uri().to_string(), "1000000000");
    let stream = stream_id(&node);
    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&node, "s", &lines);
    for _ in 0..3 {
        load.wait_for_more(300);
        let open = wait_for("an open ledger", || {
            let seen = runtime.block_on(look(&client, &stream));
            seen.closed.into_iter().rfind(|(_, is_closed)| !is_closed).map(|(ledger, _)| ledger)
        });
        runtime.block_on(client.recover(open, b"tailwater")).expect("bookies answer");
    }
    load.wait_for_more(300);
    let sent = load.finish();
    assert!(lines.range(0..sent).eq(node.consume("s")), "once and in order");
    assert!(node.get("/readyz").is_some(), "it is no trouble");
    assert!(node.metric("tailwater_ledger_given_up_total") >= Some(3.0), "it was shut out each time");
    let page = node.get("/metrics").expect("metrics");
    let documented =
        crate::metrics::documented().into_iter().filter(|name| name.starts_with("tailwater_ledger_"));
    documented.for_each(|name| assert!(page.contains(&format!("\n{name} ")), "{name}"));
}

#[test]
fn without_a_quorum_of_bookies_appends_wait_or_are_refused_and_go_on_by_themselves_when_there_is_one() {
    let (cluster, _alone) = (cluster(), alone());
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, &cluster.uri().to_string());
    let lines = Lines::new("a", LINE_BYTES);
    let load = Load::start(&node, "s", &lines);
    let before = load.wait_for_more(300);
    let numbers = cluster.kill_all_but(1);
    wait_for("the node to say what is wrong", || {
        let ask = ureq::get(format!("http://{}/readyz", node.admin));
        let mut answer = ask.config().http_status_as_error(false).build().call().ok()?;
        let told = answer.body_mut().read_to_string().ok()?;
        (answer.status() == 503 && told.contains("the replicated store: ")).then_some(())
    });
    // What was acknowledged last is in the node's memory.
    let count = before.to_string();
    let read = node.run(&["consume", "s", "--from", "start", "--count", &count]);
    assert!(lines.range(0..before).eq(read.lines().map(str::to_owned)), "what is there is read");
    numbers.into_iter().for_each(|number| cluster.restart(number));
    load.wait_for_more(300);
    let sent = load.finish();
    assert!(lines.range(0..sent).eq(node.consume("s")), "once and in order");
}

#[test]
fn a_node_on_ledgers_refuses_what_ledgers_do_not_promise_and_a_directory_that_was_begun_elsewhere() {
    let (cluster, _alone) = (cluster(), alone());
    let store = cluster.uri().to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let mut replicated = node(&dir, &store);
    let error = replicated.run_failing(&["stream", "create", "t", "--durability", "interval"]);
    assert!(error.contains("interval") && error.contains("use \"fsync\""), "{error}");
    assert!(replicated.process.stop(), "it ends well");
    let log = replicated.restart_failing_with(&[("TAILWATER_SEGMENTS", "embedded")]);
    assert!(log.contains("in a replicated store: set `segments` to it"), "{log}");

    let (_dir, mut embedded) = Node::with_stream(&["s"]);
    embedded.produce("s", &["here".to_owned()]);
    assert!(embedded.process.stop(), "it ends well");
    let log = embedded.restart_failing_with(&[("TAILWATER_SEGMENTS", &store)]);
    assert!(log.contains("has 1 segments of its own"), "{log}");
    let log = embedded.restart_failing_with(&[("TAILWATER_SEGMENTS", "bookeeper://zk1/ledgers")]);
    assert!(log.contains("is no place for segments"), "{log}");
}

/// The quorums of a stream's newest ledger.
async fn newest_quorums(client: &BookKeeper, stream: &str) -> Option<String> {
    let newest = *look(client, stream).await.closed.last_key_value()?.0;
    Some(client.ledgers().read(newest).await.ok()?.metadata.quorums.to_string())
}

#[test]
fn a_stream_has_the_copies_that_its_creator_asks_for_and_goes_on_with_fewer_while_bookies_are_dead() {
    let (cluster, _alone) = (cluster(), alone());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(cluster.client());
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, &cluster.uri().to_string());
    wait_for("all bookies to be there", || {
        (node.metric("tailwater_ledger_bookies") == Some(5.0)).then_some(())
    });
    scenario(&node, "Clients.java", "replicas");

    node.run(&[
        "stream",
        "create",
        "wide",
        "--write-quorum",
        "5",
        "--ack-quorum",
        "3",
        "--segment-bytes",
        "20000",
    ]);
    let id = |name: &str| {
        let told = node.run(&["stream", "describe", name, "-o", "json"]);
        let stream: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        stream["id"].as_str().expect("an id").to_owned()
    };
    let quorums = |name: &str| runtime.block_on(newest_quorums(&client, &id(name)));
    let lines: Vec<String> = (0..100).map(|number| format!("{number:0>200}")).collect();
    node.produce("wide", &lines);
    node.produce("four", &lines);
    node.produce("s", &lines);
    assert_eq!(quorums("wide").as_deref(), Some("5/5/3"));
    assert_eq!(quorums("four").as_deref(), Some("4/4/3"));
    assert_eq!(quorums("s").as_deref(), Some("3/3/2"), "the node's");
    let why = node.run_failing(&["stream", "create", "t", "--write-quorum", "3", "--ack-quorum", "4"]);
    assert!(why.contains("an ack quorum of 4"), "{why}");
    let why = node.run_failing(&["stream", "alter", "wide", "--ensemble", "6"]);
    assert!(why.contains("6 bookies") && why.contains("5 take entries"), "{why}");

    // Only bookies of the open segment count, and it has another one when the next entry is appended.
    let in_sync = |stream: &str| {
        let listed = kcat(&node, &["-L", "-t", stream], "");
        let isrs = listed.split_once("isrs: ").and_then(|(_, isrs)| isrs.lines().next());
        isrs.map_or(0, |isrs| isrs.split(',').count())
    };
    let own = runtime.block_on(look(&client, &id("s"))).bookies;
    assert_eq!((in_sync("s"), node.metric("tailwater_ledger_short")), (3, Some(0.0)), "{own:?}");
    let dead = cluster.kill(own.first().expect("it has an open segment"));
    wait_for("the node to notice", || (node.metric("tailwater_ledger_bookies") == Some(4.0)).then_some(()));
    assert_eq!((in_sync("s"), node.metric("tailwater_ledger_short") >= Some(1.0)), (2, true));
    let listed = crate::segments::segment(&cluster.uri().to_string(), &["ls", "--short"]).1;
    assert!(listed.contains(&id("s")) && listed.contains("short of copies"), "{listed}");
    node.produce("s", &lines);
    wait_for("another bookie to have its place", || (in_sync("s") == 3).then_some(()));
    cluster.restart(dead);
    wait_for("the bookie to be back", || {
        (node.metric("tailwater_ledger_bookies") == Some(5.0)).then_some(())
    });

    let dead = cluster.kill_all_but(3);
    wait_for("the node to notice", || (node.metric("tailwater_ledger_bookies") == Some(3.0)).then_some(()));
    let listed = kcat(&node, &["-L", "-t", "wide"], "");
    assert!(listed.contains("isrs: 1,1000000001,1000000002\n"), "{listed}");
    node.produce("wide", &lines);
    node.produce("wide", &lines);
    assert_eq!(quorums("wide").as_deref(), Some("3/3/3"), "as many as there are, and as many acknowledge");
    assert!(node.metric("tailwater_ledger_begun_short_total") >= Some(1.0));
    dead.into_iter().for_each(|number| cluster.restart(number));
    wait_for("the bookies to be back", || {
        (node.metric("tailwater_ledger_bookies") == Some(5.0)).then_some(())
    });
    node.run(&["stream", "alter", "wide", "--write-quorum", "default", "--ack-quorum", "default"]);
    node.produce("wide", &lines);
    node.produce("wide", &lines);
    assert_eq!(quorums("wide").as_deref(), Some("3/3/2"), "the node's from the next segment on");
    assert_eq!(node.consume("wide").len(), 500);

    let (_dir, embedded) = Node::start_anew();
    let why = embedded.run_failing(&["stream", "create", "t", "--write-quorum", "3"]);
    assert!(why.contains("on this node's disk"), "{why}");
    embedded.run(&["stream", "create", "t", "--write-quorum", "1"]);
}

#[test]
fn copies_are_in_as_many_regions_as_are_wanted_and_a_stream_is_refused_where_that_can_not_be() {
    let (cluster, _alone) = (cluster(), alone());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(cluster.client());
    let bookies = wait_for("all bookies", || {
        let known = runtime.block_on(client.ledgers().bookies()).ok()?;
        (known.len() == 5).then_some(known)
    });
    let (lonely, others) = bookies.split_first().expect("five");
    let racks =
        others.iter().enumerate().map(|(rack, bookie)| format!("{:?} = \"/eu/{rack}\"", bookie.name()));
    let places = racks.chain([format!("{:?} = \"/us/0\"", lonely.name())]).collect::<Vec<_>>().join(", ");
    let places = format!("{{ {places} }}");
    let dir = tempfile::tempdir().expect("a directory");
    let store = cluster.uri().to_string();
    let environment = [
        ("TAILWATER_SEGMENTS", &*store),
        ("TAILWATER_LEDGERS__PLACES", &*places),
        ("TAILWATER_LEDGERS__MIN_REGIONS", "2"),
        ("TAILWATER_LEDGERS__ENSEMBLE", "2"),
        ("TAILWATER_LEDGERS__WRITE_QUORUM", "2"),
    ];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &environment);
    node.run(&["stream", "create", "s", "--segment-bytes", "20000"]);
    let lines: Vec<String> = (0..100).map(|number| format!("{number:0>200}")).collect();
    for _ in 0..5 {
        node.produce("s", &lines);
    }
    let stream = stream_id(&node);
    let seen = runtime.block_on(look(&client, &stream));
    assert!(seen.closed.len() >= 4, "{:?}", seen.closed);
    for ledger in seen.closed.keys() {
        let metadata = runtime.block_on(client.ledgers().read(*ledger)).expect("it is there").metadata;
        let (_, ensemble) = metadata.last_ensemble();
        assert!(ensemble.contains(lonely) && ensemble.len() == 2, "{ensemble:?}");
    }
    // Three copies, any two of which acknowledge: two of them are in one region.
    let why = node.run_failing(&["stream", "create", "t", "--write-quorum", "3", "--ack-quorum", "2"]);
    assert!(why.contains("every ack quorum in 2 regions"), "{why}");
    node.run(&["stream", "create", "t", "--write-quorum", "3", "--ack-quorum", "3"]);
    // A stream has regions of its own, from its next segment on.
    let why = node.run_failing(&["stream", "create", "wide", "--min-regions", "3"]);
    assert!(why.contains("3/3/3") && why.contains("3 regions: they are in 2"), "{why}");
    let why = node.run_failing(&["stream", "create", "one", "--write-quorum", "1"]);
    assert!(why.contains("an ack quorum of 1 is not in 2 regions"), "{why}");
    node.run(&["stream", "create", "one", "--write-quorum", "1", "--min-regions", "1"]);
    assert!(node.run(&["stream", "describe", "one"]).contains("min-regions"));
    node.produce("one", &lines);
    node.run(&["stream", "alter", "s", "--min-regions", "1"]);
    for _ in 0..2 {
        node.produce("s", &lines);
    }
    let seen = runtime.block_on(look(&client, &stream));
    let said = |ledger: &LedgerId| {
        let metadata = runtime.block_on(client.ledgers().read(*ledger)).expect("it is there").metadata;
        String::from_utf8_lossy(&metadata.custom["tailwater.min_regions"]).into_owned()
    };
    let said: Vec<String> = seen.closed.keys().map(said).collect();
    assert!(said.first().is_some_and(|first| first == "2"), "a segment keeps what it began with: {said:?}");
    assert!(said.last().is_some_and(|last| last == "1"), "{said:?}");
    assert!(node.process.stop(), "it ends well");
    let why = node.restart_failing_with(&[("TAILWATER_LEDGERS__PLACES", "{ \"b:1\" = \"eu\" }")]);
    assert!(why.contains("/REGION/RACK"), "{why}");
}

#[test]
fn a_node_waits_for_zookeeper_and_says_so() {
    let (_dir, mut node) = Node::start_anew();
    assert!(node.process.stop(), "it ends well");
    let nowhere = format!("bookkeeper://127.0.0.1:{}/ledgers", crate::support::free_port());
    node.restart_recovering_with(&[("TAILWATER_SEGMENTS", &nowhere)]);
    wait_for("the node to say what it waits for", || {
        let ask = ureq::get(format!("http://{}/readyz", node.admin));
        let mut answer = ask.config().http_status_as_error(false).build().call().ok()?;
        let told = answer.body_mut().read_to_string().ok()?;
        (answer.status() == 503 && told.contains("the wait for ZooKeeper")).then_some(())
    });
    wait_for("a line in the log", || node.process.log().contains(&nowhere).then_some(()));
    let (cluster, _alone) = (cluster(), alone());
    let there = cluster.uri().to_string();
    node.process.kill();
    node.restart_with(&[("TAILWATER_SEGMENTS", &there)]);
    node.run(&["stream", "create", "s"]);
    node.produce("s", &["it goes on".to_owned()]);
    assert_eq!(node.consume("s"), ["it goes on"]);
}
