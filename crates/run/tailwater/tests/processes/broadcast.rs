//! Broadcasts through real nodes, one or several, and the command line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Follower, Node, free_port, wait_for};
use serde_json::Value;

fn address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// What `/v1/broadcast` tells.
fn view(node: &Node) -> Option<Value> {
    serde_json::from_str(&node.get("/v1/broadcast")?).ok()
}

/// Addresses of the chain's members, head first; none if the node can't be asked.
fn members(node: &Node) -> Vec<String> {
    let view = view(node).unwrap_or_default();
    let members = view["chain"].as_array().cloned().unwrap_or_default();
    let members = members.iter().filter(|member| member["role"] != "joining");
    members.filter_map(|member| Some(member["address"].as_str()?.to_owned())).collect()
}

fn wait_until_in_chain(node: &Node) {
    wait_for("the node to be in its chain", || members(node).contains(&node.broadcast).then_some(()));
}

fn publish(node: &Node, args: &[&str], lines: &str) {
    let output = node.output(&[&["broadcast", "publish"], args].concat(), lines.as_bytes());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn heard(node: &Node, args: &[&str]) -> Vec<String> {
    let args = [&["broadcast", "listen", "--exit-at-end"], args].concat();
    node.run(&args).lines().map(str::to_owned).collect()
}

#[test]
fn what_is_published_is_heard_listed_and_resumed_behind_by_a_token() {
    let (dir, node) = Node::start_anew();
    publish(&node, &["prices", "-k", "=", "--header", "from=test"], "a=1\nb=2\nno key\n");
    let lines = heard(&node, &["prices", "--format", "%S %n %k|%v|%h\\n"]);
    assert_eq!(
        lines,
        ["local/prices 1 a|1|from=test", "local/prices 2 b|2|from=test", "local/prices 3 |no key|from=test"]
    );

    // The end tells a token, and what came since is all that follows from it.
    let ended = node.output(&["broadcast", "listen", "-n", "2"], b"");
    let token = String::from_utf8(ended.stderr).expect("text");
    let token = token.lines().find(|line| line.starts_with("token:")).expect("a token").to_owned();
    publish(&node, &["other"], "x\n");
    let mut since = heard(&node, &["--from", &token]);
    since.sort(); // the two streams' events come in either order
    assert_eq!(since, ["no key", "x"]);

    // A file keeps it.
    let file = dir.path().join("token").display().to_string();
    assert_eq!(heard(&node, &["--token-file", &file]).len(), 4);
    assert_eq!(heard(&node, &["--token-file", &file]).len(), 0);
    publish(&node, &["other"], "y\n");
    assert_eq!(heard(&node, &["other", "--token-file", &file]), ["y"]);

    // From now on: what was published before is not heard.
    let now =
        Follower::of(&mut node.command(&["broadcast", "listen", "prices", "--from", "now", "-o", "json"]));
    let first = {
        let mut number = 0;
        wait_for("an event that was published after the listener began", || {
            publish(&node, &["prices", "--collect", "same-key", "--key", "k"], &format!("new {number}\n"));
            number += 1;
            now.try_next()
        })
    };
    let event: Value = serde_json::from_str(&first).expect("JSON");
    assert_eq!(
        (&event["stream"], &event["key"], &event["collect"]),
        (&"local/prices".into(), &"k".into(), &"same-key".into())
    );
    assert!(event["payload"].as_str().is_some_and(|payload| payload.starts_with("new ")), "{event}");

    let streams = node.run(&["broadcast", "streams", "-o", "json"]);
    let other: Value = serde_json::from_str(streams.lines().next().expect("a stream")).expect("JSON");
    assert_eq!(
        (&other["stream"], &other["last"], &other["held"]),
        (&"local/other".into(), &2.into(), &2.into())
    );
    assert!(node.run(&["broadcast", "stats"]).contains("only"));

    // A stream begins with its first event, so it may be listened to before; who mistyped a name is told at least.
    let early = node.output(&["broadcast", "listen", "price", "other", "--exit-at-end"], b"");
    let told = String::from_utf8(early.stderr).expect("text");
    let notes: Vec<&str> = told.lines().filter(|line| !line.starts_with("token:")).collect();
    assert_eq!(notes, ["local/price has no event here yet"]);
}

#[test]
fn what_can_not_be_published_or_listened_to_is_refused_with_what_to_do() {
    let (dir, node) = Node::start_anew();
    let refused = |args: &[&str], expected: &str| {
        let error = node.run_failing(&[&["broadcast"], args].concat());
        assert!(error.contains(expected), "{error}");
    };
    refused(&["publish", "elsewhere/prices"], "belongs to region elsewhere, and the node knows local: name");
    refused(
        &["listen", "elsewhere/prices", "--exit-at-end"],
        "belongs to region elsewhere, and the node knows local",
    );
    refused(&["listen", "elsewhere/prices"], "there is no region elsewhere");
    refused(&["publish", "no name"], "wants a name");
    refused(&["publish", "s", "--collect", "older-than=5w"], "keep-last=N");
    let error = node.output(&["broadcast", "publish", "s", "--collect", "matching=key = 7"], b"x\n");
    let error = String::from_utf8_lossy(&error.stderr).into_owned();
    assert!(error.contains("predicate, line 1, column 7: a string should be here instead of 7"), "{error}");
    refused(&["listen", "--from", "token:abc"], "no resume token");
    refused(&["listen", "--from", "yesterday"], "start, now or token");
    let many: Vec<String> = (0..4_097).map(|n| n.to_string()).collect();
    let mut args = vec!["listen", "--exit-at-end"];
    args.extend(many.iter().map(String::as_str));
    refused(&args, "4097 streams are named, and a listener names 4096 at most: name fewer");
    let off = [("TAILWATER_BROADCAST__ENABLED", "false")];
    let without = Node::start_with(&dir.path().join("without"), &[], &off);
    assert!(without.run_failing(&["broadcast", "streams"]).contains("[broadcast] enabled"));
}

#[test]
fn every_way_to_say_what_is_obsolete_leaves_what_it_says_and_a_tombstone_for_the_rest() {
    let (_dir, node) = Node::start_anew();
    for (stream, collect, expected) in [
        ("key", "same-key", &["# 1-1", "b=2 ", "# 3-4", "a=end same-key"][..]),
        ("last", "keep-last=2", &["# 1-2", "a=3 ", "a=4 ", "a=end keep-last=2"]),
        ("number", "before=3", &["# 1-2", "a=3 ", "a=4 ", "a=end before=3"]),
        ("age", "older-than=0ms", &["# 1-4", "a=end older-than"]),
        (
            "predicate",
            "matching=key = \"a\" and seq < 4 and header.kind is missing",
            &["# 1-1", "b=2 ", "# 3-3", "a=4 ", "a=end matching=key = \"a\" and seq < 4"],
        ),
    ] {
        publish(&node, &[stream, "-k", "="], "a=1\nb=2\na=3\na=4\n");
        // Times are in milliseconds: by then it is a later one.
        let before = now_ms();
        wait_for("the next millisecond", || (now_ms() > before).then_some(()));
        publish(&node, &[stream, "-k", "=", "--collect", collect], "a=end\n");
        let fits = |heard: &[String]| {
            heard.len() == expected.len()
                && heard.iter().zip(expected).all(|(line, start)| line.starts_with(start))
        };
        wait_for(&format!("what {collect} leaves: {expected:?}"), || {
            let formats = ["--format", "%k=%v %c\\n", "--tombstone-format", "# %a-%n\\n"];
            let heard = heard(&node, &[&[stream][..], &formats].concat());
            // A predicate is applied in the background, event by event, and until then all are heard.
            println!("{stream}: {heard:?}");
            fits(&heard).then_some(())
        });
    }
}

fn now_ms() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis()
}

#[test]
fn a_node_that_restarts_alone_takes_events_again() {
    let (_dir, mut node) = Node::start_anew();
    publish(&node, &["s"], "before\n");
    node.process.kill();
    node.restart();
    publish(&node, &["s"], "after\n");
    assert_eq!(heard(&node, &["s"]).last().map(String::as_str), Some("after"));
}

#[test]
fn events_of_either_region_are_heard_in_both() {
    let dir = tempfile::tempdir().expect("a directory");
    let (us, eu) = (address(), address());
    let start = |region: &str, own: &str, other: (&str, &str)| {
        let regions = format!("{{{}=[\"{}\"]}}", other.0, other.1);
        let environment =
            [("TAILWATER_BROADCAST__REGION", region), ("TAILWATER_BROADCAST__REGIONS", &regions)];
        Node::start_at(&dir.path().join(region), own, &[], &environment)
    };
    let us_node = start("us", &us, ("eu", &eu));
    let eu_node = start("eu", &eu, ("us", &us));
    let far =
        Follower::of(&mut eu_node.command(&["broadcast", "listen", "us/prices", "--format", "%S %n %v\\n"]));
    let lines: String = (1..=1000).map(|n| format!("{n}\n")).collect();
    publish(&us_node, &["prices"], &lines);
    for n in 1..=1000 {
        assert_eq!(far.next(), format!("us/prices {n} {n}"));
    }
    let page = eu_node.get("/metrics").expect("a page");
    let delays = "tailwater_broadcast_delay_seconds_count{region=\"us\"} ";
    let count = page.lines().find_map(|line| line.strip_prefix(delays)?.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count > 0), "{page}");
    let far = Follower::of(&mut us_node.command(&["broadcast", "listen", "eu/flags"]));
    publish(&eu_node, &["flags"], "on\n");
    assert_eq!(far.next(), "on");
    // To another region's stream as well, which that region numbers.
    publish(&us_node, &["eu/flags"], "off\n");
    assert_eq!(far.next(), "off");
    let error = eu_node.run_failing(&["broadcast", "publish", "asia/prices"]);
    assert!(error.contains("belongs to region asia, and the node knows eu, us"), "{error}");
}

#[test]
fn stats_tell_place_lineage_tombstones_and_delays_of_each_region_and_what_sharing_listeners_ask_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let (us, eu) = (address(), address());
    let start = |region: &str, own: &str, regions: &str| {
        let environment =
            [("TAILWATER_BROADCAST__REGION", region), ("TAILWATER_BROADCAST__REGIONS", regions)];
        Node::start_at(&dir.path().join(region), own, &[], &environment)
    };
    let us_node = start("us", &us, &format!("{{eu=[\"{eu}\"]}}"));
    let eu_node = start("eu", &eu, &format!("{{us=[\"{us}\"], asia=[\"{}\"]}}", address()));
    publish(&us_node, &["prices", "--collect", "keep-last=9"], &"x\n".repeat(100));
    let stats = |node: &Node| -> Value {
        serde_json::from_str(&node.run(&["broadcast", "stats", "-o", "json"])).expect("JSON")
    };
    let told = wait_for("all of the other region", || {
        Some(stats(&eu_node)).filter(|stats| stats["by_region"]["us"]["events"] == 100)
    });
    assert_eq!((&told["place"], &told["role"]), (&1.into(), &"only".into()));
    let [of_us, of_eu, of_asia] = ["us", "eu", "asia"].map(|region| &told["by_region"][region]);
    assert_eq!(of_us["lineage"], stats(&us_node)["lineage"]);
    assert!(told["lineage"].as_str().is_some_and(|lineage| !lineage.is_empty()), "{told}");
    assert_eq!(
        (&of_us["streams"], &of_us["live"], &of_us["tombstone_ratio"]),
        (&1.into(), &10.into(), &0.9.into())
    );
    let delay = &of_us["delay"];
    let batches = delay["batches"].as_u64().expect("a number");
    assert!((1..=100).contains(&batches), "{told}");
    let ms = ["p50_ms", "p90_ms", "p99_ms"].map(|key| delay[key].as_u64().unwrap_or(u64::MAX));
    assert!(ms.is_sorted() && ms[0] > 0, "{told}");
    for none in [of_eu, of_asia] {
        assert_eq!((&none["streams"], &none["events"], &none["delay"]), (&0.into(), &0.into(), &Value::Null));
    }

    // A listener that shares asks for what was published before it came.
    let sharing = Follower::of(&mut eu_node.command(&["broadcast", "listen", "us/prices", "--share"]));
    let first = sharing.next();
    assert!(first.starts_with("# us/prices: 1 to "), "{first}");
    let shared = wait_for("its requests", || {
        let stats = stats(&eu_node)["sharing"].clone();
        (stats["requests"].as_u64() > Some(0) && stats["events"].as_u64() >= Some(10)).then_some(stats)
    });
    assert_eq!(shared["members"], 1);
    let table = eu_node.run(&["broadcast", "stats"]);
    let row = |begin: &str| {
        let row = table.lines().find(|line| line.trim_start().starts_with(begin));
        row.unwrap_or_else(|| panic!("{begin} in {table}")).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(row("place in the chain")[4..], ["1", "of", "1"]);
    let lineage = of_us["lineage"].as_str().expect("text");
    assert_eq!(row("us ")[..7], ["us", lineage, "1", "100", "10", "90.0", "%"]);
    assert_eq!(row("asia ")[1..], ["-", "0", "0", "0", "0.0", "%", "-", "-", "-"]);
    assert_eq!(row("lineage")[1], told["lineage"].as_str().expect("text"));
    for begin in ["of those, in the view", "requests of them", "of those, dropped", "delayed by quotas"] {
        row(begin);
    }
    let streams = eu_node.run(&["broadcast", "streams"]);
    assert!(streams.lines().any(|line| line.contains("us/prices") && line.contains(lineage)), "{streams}");
}

/// A publisher that is given lines until it is told to end.
pub(crate) struct Load {
    child: Publisher,
    feeding: Arc<AtomicBool>,
    feeder: std::thread::JoinHandle<u64>,
    acknowledged: std::thread::JoinHandle<Vec<Value>>,
}

/// Killed with the test, whatever becomes of that.
struct Publisher(Child);

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Load {
    /// Publishes so many lines at once every so often, each made of its number, from 0 on.
    pub(crate) fn start(
        node: &Node,
        stream: &str,
        (at_once, every): (usize, Duration),
        line: impl Fn(u64) -> String + Send + 'static,
    ) -> Self {
        let mut child = node
            .command(&["broadcast", "publish", stream, "-o", "json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let feeding = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&feeding);
        let feed = move || {
            let mut fed = 0;
            while goes_on.load(Ordering::Relaxed) {
                for _ in 0..at_once {
                    writeln!(input, "{}", line(fed)).expect("it reads");
                    fed += 1;
                }
                // So many a second: there is nothing to wait for.
                std::thread::park_timeout(every);
            }
            fed
        };
        let read = move || output.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        let thread = std::thread::Builder::new;
        Self {
            child: Publisher(child),
            feeding,
            feeder: thread().spawn(feed).expect("a thread"),
            acknowledged: thread().spawn(read).expect("a thread"),
        }
    }

    /// Ends it; what was acknowledged, which is all that it was given.
    pub(crate) fn end(mut self) -> Vec<Value> {
        self.feeding.store(false, Ordering::Relaxed);
        let fed = self.feeder.join().expect("it fed");
        assert!(self.child.0.wait().expect("it ends").success());
        let acknowledged = self.acknowledged.join().expect("it read");
        assert_eq!(acknowledged.len() as u64, fed);
        acknowledged
    }
}

fn start_chain(dir: &Path) -> Vec<Node> {
    let addresses = [address(), address(), address()];
    let mut nodes = Vec::new();
    for (number, own) in addresses.iter().enumerate() {
        let environment =
            [("TAILWATER_BROADCAST__REGION", "eu"), ("TAILWATER_BROADCAST__CONFIGURATION", &addresses[0])];
        nodes.push(Node::start_at(&dir.join(number.to_string()), own, &[], &environment));
        wait_until_in_chain(&nodes[number]);
    }
    nodes
}

#[test]
fn head_middle_and_tail_are_killed_in_turn_under_load_and_nothing_is_lost_repeated_or_out_of_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut nodes = start_chain(dir.path());
    let load = Load::start(&nodes[0], "prices", (5, Duration::from_millis(5)), |number| number.to_string());
    let listener =
        Follower::of(&mut nodes[0].command(&["broadcast", "listen", "prices", "--format", "%n %v\\n"]));
    let mut heard_to = 0u64;
    let mut hear = |until: u64| {
        while heard_to < until {
            assert_eq!(listener.next(), format!("{} {heard_to}", heard_to + 1));
            heard_to += 1;
        }
        heard_to
    };
    hear(100);
    // The last round's head decides who is in the chain: nothing moves until it is back.
    for place in [1, 2, 0, 1, 2, 0] {
        // One that stood still for a second is out of it for a while.
        let chain =
            wait_for("a chain of three", || Some(members(&nodes[0])).filter(|chain| chain.len() == 3));
        let killed = nodes.iter().position(|node| node.broadcast == chain[place]).expect("one of ours");
        nodes[killed].process.kill();
        if killed != 0 {
            let dead = nodes[killed].broadcast.clone();
            wait_for("the chain to go on without it", || {
                let chain = members(&nodes[0]);
                (chain.len() == 2 && !chain.contains(&dead)).then_some(())
            });
            let more = hear(0) + 200;
            hear(more);
        }
        nodes[killed].restart();
        wait_for("it to join again", || (members(&nodes[0]).len() == 3).then_some(()));
        wait_until_in_chain(&nodes[killed]);
        let more = hear(0) + 200;
        hear(more);
    }
    let acknowledged = load.end();
    let published = acknowledged.len() as u64;
    hear(published);
    for (number, answer) in (1u64..).zip(&acknowledged) {
        let seq = answer["seq"].as_u64().expect("a number");
        assert!(seq == number || answer["repeated"] == true && seq > number, "{answer} of event {number}");
    }
    let expected: Vec<String> = (0..published).map(|number| number.to_string()).collect();
    for node in &nodes {
        wait_for("it to hold all", || (view_of_stream(node) == Some(published)).then_some(()));
        assert_eq!(heard(node, &["prices"]), expected);
    }
}

#[test]
fn each_replica_is_killed_for_good_while_it_is_the_head_and_the_region_goes_on_if_another_node_decides_the_chain()
 {
    let dir = tempfile::tempdir().expect("a directory");
    let decides = [("TAILWATER_BROADCAST__REGION", "eu"), ("TAILWATER_BROADCAST__REPLICA", "false")];
    let decides = Node::start_at(&dir.path().join("decides"), &address(), &[], &decides);
    let environment =
        [("TAILWATER_BROADCAST__REGION", "eu"), ("TAILWATER_BROADCAST__CONFIGURATION", &*decides.broadcast)];
    let start = |number: usize| {
        let node = Node::start_at(&dir.path().join(number.to_string()), &address(), &[], &environment);
        wait_until_in_chain(&node);
        node
    };
    let mut nodes: Vec<Node> = (0..3).map(start).collect();
    let load = Load::start(&decides, "prices", (5, Duration::from_millis(5)), |number| number.to_string());
    let listener =
        Follower::of(&mut decides.command(&["broadcast", "listen", "prices", "--format", "%n %v\\n"]));
    let mut heard_to = 0u64;
    let mut hear = |until: u64| {
        while heard_to < until {
            assert_eq!(listener.next(), format!("{} {heard_to}", heard_to + 1));
            heard_to += 1;
        }
        heard_to
    };
    hear(100);
    for number in 3..6 {
        let head = wait_for("a chain of three", || Some(members(&decides)).filter(|chain| chain.len() == 3));
        let head = nodes.iter().position(|node| node.broadcast == head[0]).expect("one of ours");
        let mut killed = nodes.remove(head);
        killed.process.kill();
        wait_for("the chain to go on without it", || {
            let chain = members(&decides);
            (chain.len() == 2 && !chain.contains(&killed.broadcast)).then_some(())
        });
        let more = hear(0) + 100;
        hear(more);
        nodes.push(start(number));
    }
    let acknowledged = load.end();
    let published = acknowledged.len() as u64;
    hear(published);
    let expected: Vec<String> = (0..published).map(|number| number.to_string()).collect();
    for node in &nodes {
        wait_for("it to hold all", || (view_of_stream(node) == Some(published)).then_some(()));
        assert_eq!(heard(node, &["prices"]), expected);
    }
    assert_eq!(view_of_stream(&decides), None);
}

#[test]
fn a_replica_that_stood_still_and_was_taken_for_dead_joins_again_with_what_it_missed() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = start_chain(dir.path());
    publish(&nodes[0], &["s"], "before\n");
    nodes[1].process.signal(rustix::process::Signal::STOP);
    wait_for("it to be taken for dead", || {
        let chain = members(&nodes[0]);
        (chain.len() == 2 && !chain.contains(&nodes[1].broadcast)).then_some(())
    });
    publish(&nodes[0], &["s"], "meanwhile\n");
    nodes[1].process.signal(rustix::process::Signal::CONT);
    wait_for("it to join again", || (members(&nodes[0]).len() == 3).then_some(()));
    publish(&nodes[0], &["s"], "after\n");
    let last = || wait_for("what it holds", || view_of_stream(&nodes[1]));
    wait_for("it to hold all", || (last() == 3).then_some(()));
    assert_eq!(heard(&nodes[1], &["s"]), ["before", "meanwhile", "after"]);
}

/// How far a node is in its only stream.
fn view_of_stream(node: &Node) -> Option<u64> {
    let streams: Value = serde_json::from_str(&node.get("/v1/broadcast/streams")?).ok()?;
    streams[0]["held"].as_u64()
}

#[test]
fn listeners_share_events_and_one_that_is_killed_is_missed_by_nobody() {
    let (_dir, node) = Node::start_anew();
    publish(&node, &["prices"], "first\n");
    let listen = ["broadcast", "listen", "prices", "--share", "--format", "%n %v\\n"];
    let mut listeners: Vec<Follower> = (0..6)
        .map(|_| Follower::of(&mut node.command(&[&listen[..], &["--count", "2001"]].concat())))
        .collect();
    listeners.iter().for_each(|listener| assert_eq!(listener.next(), "1 first"));
    wait_for("six members at /metrics", || {
        node.get("/metrics")?.contains("tailwater_broadcast_region_members 6").then_some(())
    });
    wait_for("six members in the command's answer", || {
        let stats = node.run(&["broadcast", "stats", "-o", "json"]);
        let stats: Value = serde_json::from_str(&stats).expect("JSON");
        (stats["sharing"]["members"] == 6).then_some(())
    });
    assert!(node.run(&["broadcast", "stats"]).contains("listeners that share"));
    // Killed with -9 in the middle.
    let killed = listeners.pop().expect("six");
    let lines: String = (2..=1001).map(|n| format!("{n}\n")).collect();
    publish(&node, &["prices"], &lines);
    assert_eq!(killed.next(), "2 2");
    drop(killed);
    let lines: String = (1002..=2001).map(|n| format!("{n}\n")).collect();
    publish(&node, &["prices"], &lines);
    for listener in &listeners {
        for n in 2..=2001 {
            assert_eq!(listener.next(), format!("{n} {n}"));
        }
    }
    let output = node.output(&[&listen[..], &["--exit-at-end", "--stats"]].concat(), b"");
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 2001);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("shared: 2001 events"), "{told}");
    let error = node.run_failing(&["broadcast", "listen", "--share", "--share-listen", "0.0.0.0:0"]);
    assert!(error.contains("--share-advertised"), "{error}");
}
