//! Bridges between log streams and broadcast streams, and from cells, through real nodes and the command line.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::support::{Follower, Node, free_port, wait_for};
use serde_json::Value;
use tailwater_client::broadcast::{InvalidatingCache, InvalidatingConfig, Stream, cell_event_key};
use tailwater_env::Env;

/// A node of region `b`, which has the broadcast streams, and one of region `a`, which has the log and the bridge.
fn two_regions(dir: &Path, bridge: &str) -> (Node, Node) {
    let (a, b) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let start = |region: &str, own: &str, regions: &str, bridge: &str| {
        let environment = [
            ("TAILWATER_BROADCAST__REGION", region),
            ("TAILWATER_BROADCAST__REGIONS", regions),
            ("TAILWATER_BRIDGE", bridge),
        ];
        Node::start_at(&dir.join(region), own, &[], &environment)
    };
    let far = start("b", &b, &format!("{{a=[\"{a}\"]}}"), "[]");
    let near = start("a", &a, &format!("{{b=[\"{b}\"]}}"), bridge);
    (near, far)
}

fn bridges(node: &Node) -> Vec<Value> {
    let view: Value =
        serde_json::from_str(&node.get("/v1/broadcast").unwrap_or_default()).unwrap_or_default();
    view["bridges"].as_array().cloned().unwrap_or_default()
}

fn lines(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|n| format!("k{}={n}\n", n % 7)).collect()
}

#[test]
fn records_of_a_log_stream_are_heard_with_key_and_offset_once_and_in_order_though_the_node_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let bridge = "[{from=\"log:orders\", to=\"broadcast:b/orders\"}]";
    let (mut near, far) = two_regions(dir.path(), bridge);
    wait_for("the bridge to say that there is no log stream", || {
        let error = bridges(&near).first()?["error"].as_str()?.to_owned();
        error.contains("tailwater stream create orders").then_some(())
    });
    near.run(&["stream", "create", "orders", "--shards", "3"]);
    let format = ["--format", "%k %v %h\\n"];
    let args = [&["broadcast", "listen", "orders"][..], &format].concat();
    let listener = Follower::of(&mut far.command(&args));
    let mut heard: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut values = Vec::new();
    let mut hear = |until: usize| {
        while values.len() < until {
            let line = listener.next();
            let mut words = line.split([' ', ',', ';']);
            let (key, value) = (words.next().expect("a key"), words.next().expect("a value"));
            let number: u32 = value.parse().expect("a number");
            assert_eq!(key, format!("k{}", number % 7));
            let headers: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
            assert_eq!(headers["tailwater-from"], "log:orders");
            let shard = headers["tailwater-shard"].parse().expect("a shard");
            let offset = headers["tailwater-offset"].parse().expect("an offset");
            heard.entry(shard).or_default().push(offset);
            values.push(number);
        }
    };
    // Killed while it carries, each time at another place.
    let mut produced = 0;
    for round in 0..4 {
        let more = 2_000;
        near.output(&["produce", "orders", "-k", "="], lines(produced..produced + more).as_bytes());
        produced += more;
        hear(produced as usize - 1_900 + 600 * round);
        near.process.kill();
        near.restart();
    }
    hear(produced as usize);
    values.sort_unstable();
    assert_eq!(values, (0..produced).collect::<Vec<_>>());
    for (shard, offsets) in heard {
        assert_eq!(offsets, (0..offsets.len() as u64).collect::<Vec<_>>(), "shard {shard}");
    }
    wait_for("no lag", || (bridges(&near).first()?["lag"] == 0).then_some(()));
    let page = near.get("/metrics").expect("a page");
    assert!(page.contains("tailwater_bridge_lag{bridge=\"log:orders>broadcast:b/orders\"} 0"), "{page}");
    assert!(near.run(&["broadcast", "stats"]).contains("log:orders"));
}

#[test]
fn events_become_records_with_key_and_number_once_and_in_order_though_the_node_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let bridge = "[{from=\"broadcast:b/flags\", to=\"log:flags\"}]";
    let (mut near, far) = two_regions(dir.path(), bridge);
    near.run(&["stream", "create", "flags", "--shards", "2"]);
    let mut published = 0;
    for _ in 0..4 {
        let output = far.output(
            &["broadcast", "publish", "flags", "-k", "="],
            lines(published..published + 1_000).as_bytes(),
        );
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        published += 1_000;
        wait_for("some records", || {
            let stream: Value = serde_json::from_str(&near.get("/v1/streams/flags")?).ok()?;
            let shards = stream["shards"].as_array()?.clone();
            let ends = shards.iter().map(|shard| shard["next_offset"].as_u64());
            (ends.sum::<Option<u64>>()? > u64::from(published) - 900).then_some(())
        });
        near.process.kill();
        near.restart();
    }
    let args = ["consume", "flags", "--from", "start", "--format", "%s %k %v %h\\n"];
    let records = Follower::of(&mut near.command(&args));
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    let mut values = Vec::new();
    while values.len() < published as usize {
        let line = records.next();
        let mut words = line.split([' ', ',', ';']);
        let [shard, key, value] = [(); 3].map(|()| words.next().expect("a word"));
        let number: u32 = value.parse().expect("a number");
        assert_eq!(key, format!("k{}", number % 7));
        let headers: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
        assert_eq!(headers["tailwater-from"], "broadcast:b/flags");
        let seq: u64 = headers["tailwater-seq"].parse().expect("a number");
        assert_eq!(seq, u64::from(number) + 1);
        let before = last.insert(shard.to_owned(), seq);
        assert!(before.is_none_or(|before| before < seq), "{line} after {before:?}");
        values.push(number);
    }
    values.sort_unstable();
    assert_eq!(values, (0..published).collect::<Vec<_>>());
    wait_for("no lag", || (bridges(&near).first()?["lag"] == 0).then_some(()));
    assert_eq!(records.try_next(), None);
}

#[test]
fn a_broadcast_stream_that_all_replicas_lost_is_filled_again_from_the_log_and_collects_as_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let bridge = "[{from=\"log:prices\", to=\"broadcast:local/prices\", collect=\"same-key\"}]";
    let environment = [("TAILWATER_BRIDGE", bridge), ("TAILWATER_BROADCAST__DURABILITY", "memory")];
    let mut node = Node::start_with(&dir.path().join("data"), &[], &environment);
    node.run(&["stream", "create", "prices"]);
    for round in 0..2 {
        node.output(&["produce", "prices", "-k", "="], lines(round * 700..(round + 1) * 700).as_bytes());
        let live = wait_for("the events", || {
            let streams: Value = serde_json::from_str(&node.get("/v1/broadcast/streams")?).ok()?;
            let found = streams.as_array()?.iter().find(|stream| stream["stream"] == "local/prices")?.clone();
            (found["held"] == 700 * (round + 1)).then(|| found["live"].as_u64())
        });
        assert_eq!(live, Some(7), "the last one of each key");
        // Its events were in memory only.
        node.process.kill();
        node.restart();
    }
}

#[test]
fn bridges_begin_again_with_a_region_that_began_anew_although_it_has_more_events_by_then_than_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let start = |region: &str, own: &str, regions: &str, bridge: &str| {
        let environment = [
            ("TAILWATER_BROADCAST__REGION", region),
            ("TAILWATER_BROADCAST__REGIONS", regions),
            ("TAILWATER_BROADCAST__DURABILITY", "memory"),
            ("TAILWATER_BRIDGE", bridge),
        ];
        Node::start_at(&dir.path().join(region), own, &[], &environment)
    };
    let mut far = start("b", &b, &format!("{{a=[\"{a}\"]}}"), "[]");
    let both =
        "[{from=\"log:orders\", to=\"broadcast:b/orders\"}, {from=\"broadcast:b/flags\", to=\"log:flags\"}]";
    let mut near = start("a", &a, &format!("{{b=[\"{b}\"]}}"), both);
    ["orders", "flags"].iter().for_each(|name| drop(near.run(&["stream", "create", name])));
    let publish = |node: &Node, stream: &str, count: u32| {
        let output = node.output(&["broadcast", "publish", stream, "-k", "="], lines(0..count).as_bytes());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let held = |node: &Node, stream: &str| {
        let streams: Value = serde_json::from_str(&node.get("/v1/broadcast/streams")?).ok()?;
        streams.as_array()?.iter().find(|found| found["stream"] == stream)?["held"].as_u64()
    };
    let records = |node: &Node| {
        let stream: Value = serde_json::from_str(&node.get("/v1/streams/flags")?).ok()?;
        stream["shards"].as_array()?.iter().map(|shard| shard["next_offset"].as_u64()).sum::<Option<u64>>()
    };
    near.output(&["produce", "orders", "-k", "="], lines(0..300).as_bytes());
    publish(&far, "flags", 200);
    let is_carried = || (held(&far, "b/orders")? == 300 && records(&near)? == 200).then_some(());
    wait_for("what was there", is_carried);
    // What was carried is written down once a second.
    near.output(&["produce", "orders", "-k", "="], lines(0..10).as_bytes());
    wait_for("the rest", || (held(&far, "b/orders")? == 310).then_some(()));
    near.process.kill();
    far.process.kill();
    far.restart();
    publish(&far, "orders", 500);
    publish(&far, "flags", 350);
    near.restart();
    wait_for("all of the log beside what others published", || {
        (held(&far, "b/orders")? == 810).then_some(())
    });
    wait_for("what was there, and all that there is now", || (records(&near)? == 550).then_some(()));
}

#[test]
fn what_retention_removed_before_it_was_carried_or_heard_is_said_and_what_is_left_comes() {
    let dir = tempfile::tempdir().expect("a directory");
    let bridge = "[{from=\"broadcast:local/flags\", to=\"log:flags\"}]";
    let environment = [("TAILWATER_BRIDGE", bridge), ("TAILWATER_BROADCAST__RETENTION_MS", "1000")];
    let node = Node::start_with(&dir.path().join("data"), &[], &environment);
    // The bridge waits for its log stream.
    node.output(&["broadcast", "publish", "flags", "-k", "="], lines(0..5).as_bytes());
    let view = || serde_json::from_str::<Value>(&node.get("/v1/broadcast")?).ok();
    wait_for("all but the last event to be removed", || (view()?["removed"] == 4).then_some(()));
    node.run(&["stream", "create", "flags"]);
    wait_for("the bridge to say so", || {
        let bridge = bridges(&node).into_iter().next()?;
        (bridge["removed"] == 1 && bridge["carried"] == 1).then_some(())
    });
    let heard = node.output(&["broadcast", "listen", "flags", "--from", "start", "--exit-at-end"], b"");
    let [out, said] = [&heard.stdout, &heard.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(said.contains("retention removed events of local/flags, up to number 4"), "{said}");
    assert_eq!(out.lines().last(), Some("4"));
    let page = node.get("/metrics").expect("a page");
    assert!(page.contains("tailwater_broadcast_removed_total 4"), "{page}");
}

#[test]
fn a_cache_elsewhere_is_told_what_changes_in_a_cell_and_forgets_all_when_nobody_knows_what_has_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let bridge = "[{from=\"cell:tiles\", to=\"broadcast:local/tiles\"}]";
    let mut node = Node::start_with(&dir.path().join("data"), &[], &[("TAILWATER_BRIDGE", bridge)]);
    wait_for("the bridge to say that there is no cell", || {
        let error = bridges(&node).first()?["error"].as_str()?.to_owned();
        error.contains("tailwater cell create tiles").then_some(())
    });
    let create = ["--backends", "3", "--mode", "r3.2", "--capacity-bytes", "1048576"];
    node.run(&[&["cell", "create", "tiles"], &create[..]].concat());

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    let config = InvalidatingConfig {
        of_cell: true,
        fresh_for: Duration::from_secs(3_600),
        ..InvalidatingConfig::default()
    };
    let stream = Stream::parse("local/tiles").expect("a name");
    let at = vec![node.broadcast.clone()];
    let cache: InvalidatingCache<u32> = InvalidatingCache::new(&Env::real(), at, stream, config);
    let [tea, coffee] = ["tea", "coffee"].map(|key| cell_event_key(key.as_bytes()));
    runtime.block_on(cache.fresh());
    let told = cache.fresh_as_of();
    // While all backends are heard for the first time, everything may be told to have changed more than once.
    wait_for("one key to be forgotten, and not another one", || {
        for key in [&tea, &coffee] {
            cache.load(key).store(1);
        }
        node.run_in_time(&["cache", "set", "--cell", "tiles", "tea", "new"]);
        wait_for("the key to be forgotten", || cache.get(&tea).is_none().then_some(()));
        cache.get(&coffee)
    });
    wait_for("all to be told up to a later time", || (cache.fresh_as_of() > told).then_some(()));

    wait_for("a value to be kept", || cache.load(&coffee).store(1).then_some(()));
    node.process.kill();
    node.restart();
    wait_for("all to be forgotten", || cache.is_empty().then_some(()));
    let args = ["broadcast", "listen", "tiles", "--from", "start", "--exit-at-end", "--format", "<%k>\\n"];
    let heard = node.run(&args);
    let events: Vec<&str> = heard.lines().filter(|line| line.starts_with('<')).collect();
    assert_eq!(
        events.first(),
        Some(&"<>"),
        "what tells that any key may have changed collects all before: {heard}"
    );
    assert!(bridges(&node)[0]["carried"].as_u64() >= Some(1));
}
