//! One replica of a broadcast and its disk, the real one of `tailwater_broadcast_server::disk`, through many lives: a publisher
//! that tries again, collections by key, checkpoints all the time; a disk that fails or gets full, crashes at any I/O,
//! recovery included.
//!
//! Checked: what was acknowledged is there after every start, each event once and under the number that its publisher
//! gave it; what is collected has been so by an event that is there; and where the disk works again, so does the replica.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_broadcast::checks::{Observer, Published};
use tailwater_broadcast::message::{Chain, Member, Message, PublisherId, Role};
use tailwater_broadcast::replica::stream::StreamState;
use tailwater_broadcast::replica::{Config, Output, Peer, Replica, size_of_message};
use tailwater_broadcast::{Batch, Collect, Content, Durability, Event, Kind, Stream, Writer};
use tailwater_broadcast_server::disk::{Disk, DiskOptions, Keeper};
use tailwater_env::Env;
use tailwater_journal::JournalConfig;

use super::faults::{End, Life};
use super::journal::{EVERY_IO, RECOVERY_IO};
use super::lives::{self, Lives, Outcome};
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Crash, Node, World};

const DIR: &str = "/data/broadcast";
const CLIENT: PublisherId = 7;
const LINK: u64 = 1;
/// All events have this time.
const WALL_MS: u64 = 1_700_000_000_000;
/// Longest time that a disk which works again may leave events without an answer.
const RESUME_MAX: Duration = Duration::from_secs(60);

const LIVES: Lives = Lives {
    name: "broadcast-disk",
    most: 5,
    changes_max: 150,
    length_max: Duration::from_millis(100),
    calm: Duration::from_millis(50),
    every_io: (EVERY_IO, RECOVERY_IO),
};

/// What the world outside of the node knows.
#[derive(Default)]
struct Model {
    /// The publisher's last event that was acknowledged; it has the same number in the stream.
    acknowledged: u64,
    violation: Option<Violation>,
    report: Report,
}

impl Outcome for Model {
    fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    fn violation(&mut self) -> &mut Option<Violation> {
        &mut self.violation
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.drawn(world, plant, Model::default(), live)
}

/// The power fails at every I/O: seed after seed at the next one, then at every one of the recovery after it.
pub fn run_every_io(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.every_io(world, plant, Model::default(), live)
}

fn stream() -> Stream {
    Stream::parse("a/s").expect("it is a name")
}

/// The publisher's event of a number: all follows from that.
fn content(number: u64) -> (Content, Option<Collect>) {
    let key = Some(Bytes::copy_from_slice(&(number * 7 % 5).to_le_bytes()));
    let filler = (0..number * 31 % 700).map(|at| (number + at) as u8);
    let payload = number.to_le_bytes().into_iter().chain(filler).collect::<Vec<_>>().into();
    (Content { key, payload, ..Content::default() }, (!number.is_multiple_of(4)).then_some(Collect::SameKey))
}

fn published(last: u64) -> Published {
    let mut published = Published::default();
    for seq in 1..=last {
        let (content, collect) = content(seq);
        let kind = match collect {
            None => Kind::Data(content),
            Some(collect) => Kind::Collection(content, collect),
        };
        published.push(Event { seq, range: 1, time_ms: WALL_MS, kind });
    }
    published
}

/// From a start to a crash or a close.
fn live(
    world: &World,
    node: &Node,
    rng: &mut Rng,
    life: &Life,
    plant: Plant,
    model: &Arc<Mutex<Model>>,
) -> Result<(), Violation> {
    life.begin(node);
    let env = node.env_with_disk(|disk| plant.disk(disk));
    model.lock().report.count("lives", 1);
    let options = DiskOptions {
        journal: JournalConfig {
            file_bytes: 64 << 10,
            files_max: rng.between(3, 8) as u32,
            reserve_bytes: 0,
            backlog_bytes: rng.between(8, 32) as usize * 1024,
            record_bytes_max: 6_000,
            sync_interval: Duration::from_millis(rng.between(1, 20)),
        },
        checkpoint_bytes: rng.between(1, 8) * 1024,
        ..DiskOptions::new(Durability::Fsync.into())
    };
    let opening = env.clone();
    let open = async move { Disk::open(&opening, Path::new(DIR), "a", options).map_err(|e| e.to_string()) };
    let opened = world.run(node.run("open", open))?;
    let Some(disk) = lives::opened(node, life, model, opened)? else {
        return Ok(());
    };
    let found = disk.streams.get(&stream());
    let last = check(found, model.lock().acknowledged)?;
    model.lock().report.count("recovered", last);

    let (id, Disk { keeper, streams, .. }) = (disk.id(), disk);
    let mut replica =
        Replica::recovered(Config { durability: Durability::Fsync.into(), ..Config::new("a", id) }, streams);
    let members = vec![Member { id, address: String::new() }];
    replica.configure(0, Chain { epoch: 1, region: "a".to_owned(), members, joining: Vec::new() });
    replica.connected(0, LINK, Peer::In("client".to_owned(), Role::Client(CLIENT)));
    let journal = keeper.journal().clone();
    let running = run_replica(env.clone(), replica, keeper, model.clone());
    env.spawn("replica", running).detach();
    if !lives::pass(world, node, life, model)? {
        return Ok(());
    }
    match life.end {
        End::Crash(how) => node.crash(how),
        End::Close => {
            Life::mend(node);
            let before = model.lock().acknowledged;
            let outside = world.outside();
            let resumed = async {
                while model.lock().acknowledged == before && model.lock().violation.is_none() {
                    outside.sleep(Duration::from_millis(2)).await;
                }
            };
            let resumed = world.run(outside.timeout(RESUME_MAX, resumed))?;
            ensure(resumed.is_some(), || "the disk works again, but no event is acknowledged".to_owned())?;
            let closed = node.run("close", async move { journal.close().await });
            match world.run(outside.timeout(RESUME_MAX, closed))? {
                Some(Ok(Ok(()))) => model.lock().report.count("closes", 1),
                other => {
                    return Err(Violation::new(format!("closing with a disk that works: {other:?}")));
                }
            }
            node.crash(Crash::Power);
        }
    }
    model.lock().take_violation()
}

/// That what a disk had is what it must have; its last number.
fn check(found: Option<&StreamState>, acknowledged: u64) -> Result<u64, Violation> {
    let last = found.map_or(0, StreamState::last);
    ensure(last >= acknowledged, || {
        format!("event {acknowledged} was acknowledged and is not there: the last one is {last}")
    })?;
    let Some(state) = found else { return Ok(0) };
    let newest = state.publishers.newest(CLIENT);
    ensure(newest == Some(last), || {
        format!("the publisher's last event is {last}, but known is {newest:?}")
    })?;
    let (truth, mut observer) = (published(last), Observer::new(0));
    let bad = |error: String| Violation::new(format!("after a start: {error}"));
    let mut deliver = |batch: &Batch| {
        for event in batch.events() {
            let event = event.map_err(|error| bad(error.to_string()))?;
            observer.deliver(&truth, &event).map_err(|error| bad(error.to_string()))?;
        }
        Ok::<(), Violation>(())
    };
    let mut after = 0;
    while let Some(batch) = state.history.read(after, u64::MAX, 4_000) {
        after = batch.last;
        deliver(&batch)?;
    }
    for entry in state.unsettled() {
        deliver(&entry.batch)?;
    }
    observer.finish(&truth).map_err(|error| bad(error.to_string()))?;
    Ok(last)
}

/// The replica with its disk, as the server's core task runs them, and a publisher that tries again in every life.
async fn run_replica(env: Env, mut replica: Replica, mut keeper: Keeper, model: Arc<Mutex<Model>>) {
    let now_ms = |env: &Env| env.now().as_ns() / 1_000_000;
    let mut next = model.lock().acknowledged + 1;
    let mut next_tick = env.now();
    let mut checkpoints = 0;
    loop {
        tokio::select! {
            biased;
            () = env.sleep_until(next_tick) => {
                next_tick = env.now() + Duration::from_micros(env.random_below(2_000));
                replica.tick(now_ms(&env), WALL_MS);
                keeper.tick(&replica);
                if next < model.lock().acknowledged + 20 {
                    let count = 1 + env.random_below(3);
                    let mut writer = Writer::new(0);
                    for number in next..next + count {
                        let (content, collect) = content(number);
                        writer.publish(&content, collect.as_ref()).expect("it is small");
                    }
                    let (first, batch) = (next, writer.finish(0));
                    next += count;
                    let publish =
                        Message::Publish { stream: stream(), client: CLIENT, answered: 0, first, batch };
                    replica.receive(now_ms(&env), LINK, publish);
                }
            }
            happened = keeper.happened() => {
                for ticket in keeper.handle(happened, &replica) {
                    replica.persisted(now_ms(&env), &ticket);
                }
            }
        }
        for output in replica.outputs() {
            match output {
                Output::Send(link, message) => {
                    replica.drained(link, size_of_message(&message));
                    let mut model = model.lock();
                    match message {
                        Message::Published { number, .. } => {
                            let new = number.saturating_sub(model.acknowledged);
                            model.report.count("acknowledged", new);
                            model.acknowledged = model.acknowledged.max(number);
                        }
                        Message::Refused { text, .. } => {
                            model.note(Err(Violation::new(format!("a publish was refused: {text}"))));
                        }
                        _ => {}
                    }
                }
                Output::Close(_, why) => model.lock().note(Err(Violation::new(why))),
                output => keeper.take(output),
            }
        }
        let stats = keeper.stats();
        model.lock().report.count("checkpoints", stats.checkpoints - checkpoints);
        checkpoints = stats.checkpoints;
    }
}
