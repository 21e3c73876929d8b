//! Four regions, each in a network namespace of its own, whose links are cut without a word and healed under load:
//! the experiment of section 5.3 (figure 8), with real nodes on real connections.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broadcast::Load;
use crate::support::namespaces::{self, Network};
use crate::support::{Node, wait_for};

const REGIONS: usize = 4;
/// Where each region's node is reached, in its namespace.
const PORT: u16 = 9400;
/// How often each region publishes: for a stream with many events another proxy that has more tells of a cut, for one
/// with few its source's silence.
const EVERY_MS: [u64; REGIONS] = [5, 5, 50, 5];
/// Events of each region that each of them has to get before the next thing happens.
const EVENTS: usize = 20;
/// How long events take at most to come around a link that was cut while they were on it (section 5.3), beyond what
/// those take that did not need the link.
const AROUND_MAX: Duration = Duration::from_secs(2);

/// The regions at its ends.
type Link = (usize, usize);

#[test]
fn links_between_regions_are_cut_and_healed_under_load_and_nothing_is_lost_or_out_of_order() {
    const TEST: &str = "broadcast_links::\
                        links_between_regions_are_cut_and_healed_under_load_and_nothing_is_lost_or_out_of_order";
    if !namespaces::are_own() {
        if let Err(why) = namespaces::run_again("-rn", TEST) {
            skip(TEST, &why);
        }
        return;
    }
    match Network::of(REGIONS) {
        Ok(network) => cut_and_heal(&network),
        Err(why) => skip(TEST, &why),
    }
}

fn cut_and_heal(network: &Network) {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes: Vec<Node> = (0..REGIONS).map(|region| start(network, dir.path(), region)).collect();
    let begin = Instant::now();
    let listeners: Vec<Listener> = nodes.iter().map(|node| Listener::start(node, begin)).collect();
    // An event says when it was about to be published.
    let stamp = move |_| begin.elapsed().as_micros().to_string();
    let load = |(node, every): (&Node, u64)| Load::start(node, "s", (1, Duration::from_millis(every)), stamp);
    let loads: Vec<Load> = nodes.iter().zip(EVERY_MS).map(load).collect();
    let events_flow = || {
        let now = begin.elapsed();
        wait_for("events of every region in every region", || {
            listeners.iter().all(|listener| listener.has_from(now, EVENTS)).then_some(())
        });
    };
    // A link over which a region fetches the events of the one at its other end: which ones those are is decided by who
    // was connected first.
    let in_use = || {
        let direct = |here: usize, of: usize| source(&nodes[here], of) == Some(format!("r{of}"));
        let links = [(2, 3), (0, 3), (1, 3), (0, 1), (0, 2), (1, 2)];
        links.into_iter().find(|(one, other)| direct(*one, *other) || direct(*other, *one))
    };
    let mut phases: Vec<(Instant, &str, &[Link])> = vec![(begin, "all links", &[])];
    events_flow();

    let first = [wait_for("a region to be fetched from directly", in_use)];
    let [(one, other)] = first;
    network.cut(one, other);
    phases.push((Instant::now(), "a link in use is cut", &first));
    events_flow();

    network.heal(one, other);
    phases.push((Instant::now(), "it is healed", &[]));
    // It can be used again: with the others cut, it is the only one.
    events_flow();
    network.cut(0, 3);
    network.cut(1, 3);
    phases.push((Instant::now(), "0-3 and 1-3 are cut", &[(0, 3), (1, 3)]));
    events_flow();
    wait_for("everything to come over the link that is left", || {
        (0..3).all(|of| source(&nodes[3], of).as_deref() == Some("r2")).then_some(())
    });

    // A source that lives, and gets nothing itself: 2 reaches only 3, which is fed by it.
    let publish_rare = |count: u64| {
        let published = nodes[0].output(&["broadcast", "publish", "rare"], b"event\n");
        assert!(published.status.success(), "{}", String::from_utf8_lossy(&published.stderr));
        wait_for("an event of a stream that has few", || {
            let rare = stream(&nodes[3], "r0/rare")?;
            (rare["held"] == count).then(|| rare["source"].as_str().map(str::to_owned))
        })
    };
    assert_eq!(publish_rare(1).as_deref(), Some("r2"));
    network.cut(0, 2);
    network.cut(1, 2);
    network.heal(0, 3);
    network.heal(1, 3);
    let cut: &[Link] = &[(0, 2), (1, 2)];
    phases.push((Instant::now(), "0-2 and 1-2 are cut, which fed 3", cut));
    // Whichever of the two is connected again first.
    let source = publish_rare(2);
    assert!(matches!(source.as_deref(), Some("r0" | "r1")), "2 brings nothing any more: {source:?}");
    events_flow();

    network.heal(0, 2);
    network.heal(1, 2);
    phases.push((Instant::now(), "all are healed", &[]));
    events_flow();

    let published: Vec<usize> = loads.into_iter().map(|load| load.end().len()).collect();
    wait_for("all events in every region", || {
        listeners.iter().all(|listener| listener.counts() == published).then_some(())
    });
    phases.push((Instant::now(), "the end", &[]));
    say("delays of the events that were published in a time, ms:");
    for phase in phases.windows(2) {
        let (begun, name, cut) = phase[0];
        let (from, until) = (begun - begin, phase[1].0 - begin);
        say(&format!("{name}, for {:.1} s", (until - from).as_secs_f64()));
        let is_cut = |here: usize, of: usize| cut.contains(&(here, of)) || cut.contains(&(of, here));
        let others = delays(&listeners, (from, until), |here, of| !is_cut(here, of));
        if !cut.is_empty() {
            let around = delays(&listeners, (from, until), is_cut);
            say(&format!("  where the link is cut: {}", told(&around)));
            // What the machine lets everybody wait for is no way around.
            let longest = |delays: &[Duration]| delays.last().copied().unwrap_or_default();
            let most = AROUND_MAX + longest(&others);
            assert!(longest(&around) <= most, "{name}: an event had no way around within {most:?}");
        }
        say(&format!("  where it is not: {}", told(&others)));
    }
}

/// This machine does not permit the test: said where it is seen, and a failure where everything has to be run.
fn skip(test: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{test} can't be run: {why}");
    say(&format!("SKIPPED {test}: {why}"));
}

/// Writes it where it is seen, whether or not the test passes.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn start(network: &Network, dir: &std::path::Path, region: usize) -> Node {
    let at = |region: usize| format!("{}:{PORT}", network.place(region).host);
    let others = (0..REGIONS).filter(|other| *other != region);
    let others: Vec<String> = others.map(|other| format!("r{other}=[\"{}\"]", at(other))).collect();
    let (name, others) = (format!("r{region}"), format!("{{{}}}", others.join(",")));
    // Only a million events put somebody ahead of a source of region 3: it goes by what sources say and bring.
    let damping = if region == 3 { "1000000.0" } else { "100.0" };
    let environment = [
        ("TAILWATER_BROADCAST__DAMPING", damping),
        ("TAILWATER_BROADCAST__REGION", &*name),
        ("TAILWATER_BROADCAST__REGIONS", &others),
        // Whoever is not on loopback has to sign.
        ("TAILWATER_SQS__ENABLED", "false"),
    ];
    Node::start_in(network.place(region), &dir.join(&name), &at(region), &[], &environment)
}

/// The region from which a node fetches a region's stream.
fn source(node: &Node, region: usize) -> Option<String> {
    Some(stream(node, &format!("r{region}/s"))?["source"].as_str()?.to_owned())
}

/// What a node tells of a stream.
fn stream(node: &Node, name: &str) -> Option<Value> {
    let streams: Value = serde_json::from_str(&node.get("/v1/broadcast/streams")?).ok()?;
    streams.as_array()?.iter().find(|stream| stream["stream"] == name).cloned()
}

/// A listener to all regions' streams, which checks that their events are all there and in order.
struct Listener {
    child: Child,
    heard: Arc<Mutex<[Vec<Heard>; REGIONS]>>,
}

/// When an event was about to be published, since the test began, and how long it then took.
#[derive(Clone, Copy)]
struct Heard {
    published: Duration,
    delay: Duration,
}

impl Listener {
    fn start(node: &Node, begin: Instant) -> Self {
        let mut command =
            node.command(&["broadcast", "listen", "--from", "start", "--format", "%S %n %v\\n"]);
        command.args((0..REGIONS).map(|region| format!("r{region}/s")));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let heard = Arc::new(Mutex::new([const { Vec::new() }; REGIONS]));
        let all = Arc::clone(&heard);
        let hear = move || {
            for line in lines.map_while(Result::ok) {
                let now = begin.elapsed();
                let words: Vec<&str> = line.split(' ').collect();
                let [region, seq, published] = words[..] else { panic!("{line:?} is no event") };
                let region: usize = region[1..2].parse().expect("a region");
                let of = &mut all.lock().expect("no other holder panicked")[region];
                assert_eq!(seq.parse(), Ok(of.len() + 1), "the next event of r{region}: {line}");
                let published = Duration::from_micros(published.parse().expect("a time"));
                of.push(Heard { published, delay: now.saturating_sub(published) });
            }
        };
        std::thread::Builder::new().spawn(hear).expect("a thread");
        Self { child, heard }
    }

    /// Whether it heard so many events of each stream that were published from then on.
    fn has_from(&self, from: Duration, count: usize) -> bool {
        let heard = self.heard.lock().expect("it hears");
        heard.iter().all(|of| of.len() >= count && of[of.len() - count].published >= from)
    }

    fn counts(&self) -> Vec<usize> {
        self.heard.lock().expect("it hears").iter().map(Vec::len).collect()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The delays of the events of a time between some pairs of regions, in order.
fn delays(
    listeners: &[Listener],
    (from, until): (Duration, Duration),
    wanted: impl Fn(usize, usize) -> bool,
) -> Vec<Duration> {
    let mut delays = Vec::new();
    for (here, listener) in listeners.iter().enumerate() {
        let heard = listener.heard.lock().expect("it hears");
        for of in (0..REGIONS).filter(|of| wanted(here, *of)) {
            let then = heard[of].iter().filter(|heard| (from..until).contains(&heard.published));
            delays.extend(then.map(|heard| heard.delay));
        }
    }
    delays.sort_unstable();
    delays
}

/// The middle and the longest of delays.
fn told(delays: &[Duration]) -> String {
    let ms = |delay: Option<&Duration>| delay.map_or(0.0, |delay| delay.as_secs_f64() * 1e3);
    format!("middle {:.1}, longest {:.0}", ms(delays.get(delays.len() / 2)), ms(delays.last()))
}
