//! One replica of a broadcast and its disk, the real one of `tailwater_broadcast_server::disk`, through many lives: a
//! publisher that tries again, collections by key, checkpoints all the time; a disk that fails or gets full, crashes at
//! any I/O, recovery included.
//!
//! Checked: what was acknowledged is there after every start, each event once and under the number that its publisher
//! gave it; what is collected has been so by an event that is there; and where the disk works again, so does the
//! replica.
//!
//! In one variant the region begins anew in some of the lives, and the replica drops what it has: after every start all
//! of that is still what the replica has, or all of it lies aside.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_broadcast::HistoryOptions;
use tailwater_broadcast::checks::{Observer, Published};
use tailwater_broadcast::message::{Chain, Member, Message, PublisherId, Role};
use tailwater_broadcast::recovered::RecoveredStream;
use tailwater_broadcast::replica::stream::StreamState;
use tailwater_broadcast::replica::{Config, Peer, Replica, ReplicaOutput, size_of_message};
use tailwater_broadcast::{Batch, Collect, Content, Durability, Event, Kind, Stream, Writer};
use tailwater_broadcast_server::disk::{Disk, DiskOptions, Keeper, checkpoint};
use tailwater_env::{Env, OpenMode};
use tailwater_journal::JournalConfig;

use super::journal::{EVERY_IO, RECOVERY_IO};
use super::lives::{self, Lives, Living};
use super::outcome::{Noted, Outcome};
use crate::checkers::{Report, Violation, ensure};
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::World;

const DIR: &str = "/data/broadcast";
const CLIENT: PublisherId = 7;
const LINK: u64 = 1;
/// The replica that another lineage begins with, and the connection to it.
const OTHER: u64 = 999;
const OTHER_LINK: u64 = 2;
/// All events have this time.
const WALL_MS: u64 = 1_700_000_000_000;

const LIVES: Lives = Lives {
    name: "broadcast-disk",
    most: 5,
    changes_max: 150,
    length_max: Duration::from_millis(100),
    calm: Duration::from_millis(50),
    resume_max: Duration::from_secs(60),
    every_io: (EVERY_IO, RECOVERY_IO),
};

/// What the world outside of the node knows.
#[derive(Default)]
struct Model {
    /// The lineage of the replica's chain, and how many there were.
    lineage: u64,
    lineages: u64,
    /// The publisher's last event in it that was acknowledged; it has the same number in the stream.
    acknowledged: u64,
    /// The same of the lineage before, while the disk may still be of that.
    before: Option<(u64, u64)>,
    noted: Noted,
}

impl Outcome for Model {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.drawn(world, plant, Model::default(), live)
}

/// Runs the variant in which the replica's region begins anew.
pub fn run_anew(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let anew = Lives { name: "broadcast-disk-anew", ..LIVES };
    anew.drawn(world, plant, Model::default(), live_anew)
}

/// The power fails at every I/O: seed after seed at the next one, then at every one of the recovery after it.
pub fn run_every_io(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    LIVES.every_io(world, plant, |_| Model::default(), live)
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
fn live(living: &Living<'_, Model>, rng: &mut Rng) -> Result<(), Violation> {
    live_and(false, living, rng)
}

/// The same, and the region may have begun anew before.
fn live_anew(living: &Living<'_, Model>, rng: &mut Rng) -> Result<(), Violation> {
    live_and(rng.chance(500_000), living, rng)
}

fn live_and(anew: bool, living: &Living<'_, Model>, rng: &mut Rng) -> Result<(), Violation> {
    let Living { env, model, .. } = living;
    let options = DiskOptions {
        journal: JournalConfig { reserve_bytes: 0, ..lives::draw_journal(rng, (3, 8), (8, 32)) },
        checkpoint_bytes: rng.between(1, 8) * 1024,
        ..DiskOptions::new(Durability::Fsync.into())
    };
    let opening = env.clone();
    let before = model.lock().before;
    let open = async move {
        let disk = Disk::open(&opening, Path::new(DIR), "a", options).map_err(|e| e.to_string())?;
        let aside = match before {
            Some((lineage, 1..)) if disk.lineages.own != lineage => Some(aside(&opening, lineage)?),
            _ => None,
        };
        Ok((disk, aside))
    };
    let Some((disk, aside)) = living.open(open)? else { return Ok(()) };
    let found = disk.streams.get(&stream());
    look_at_lineage(&mut model.lock(), disk.lineages.own, aside.as_ref())?;
    let last = check(found, model.lock().acknowledged)?;
    model.lock().count("recovered", last);

    let (id, Disk { keeper, streams, lineages, .. }) = (disk.id(), disk);
    let lineage = lineages.own;
    let config = Config { durability: Durability::Fsync.into(), ..Config::new("a", id) };
    let mut replica = Replica::recovered(config, lineages, streams);
    if anew {
        let mut model = model.lock();
        model.lineages += 1;
        model.before = Some((lineage, model.acknowledged));
        (model.lineage, model.acknowledged) = (model.lineages, 0);
        replica.configure(0, chain(1, model.lineage, OTHER, Some(id)));
        replica.connected(0, OTHER_LINK, Peer::Out("a".to_owned(), OTHER));
        model.count("begun anew", 1);
    }
    replica.configure(0, chain(2, model.lock().lineage, id, None));
    replica.connected(0, LINK, Peer::In("client".to_owned(), Role::Client(CLIENT)));
    let journal = keeper.journal().clone();
    let running = run_replica(env.clone(), replica, keeper, Arc::clone(model));
    env.spawn("replica", running).detach();
    living.end(|| {
        let before = model.lock().acknowledged;
        let otherwise = "the disk works again, but no event is acknowledged";
        living.world.run(living.until(otherwise, |model| model.acknowledged != before))??;
        living.world.run(living.close(async move { journal.close().await }))?
    })
}

fn chain(epoch: u64, lineage: u64, head: u64, joining: Option<u64>) -> Chain {
    let member = |id| Member { id, address: String::new() };
    let (members, joining) = (vec![member(head)], joining.map(member).into_iter().collect());
    Chain { epoch, lineage, region: "a".to_owned(), members, joining }
}

/// What lies aside of a lineage.
fn aside(env: &Env, lineage: u64) -> Result<RecoveredStream, String> {
    let path = Path::new(DIR).join(format!("aside-{lineage:016x}")).join("checkpoint");
    let file =
        env.disk().open(&path, OpenMode::Read).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut reader = checkpoint::Reader::open(file).map_err(|error| error.to_string())?;
    let mut recovered = RecoveredStream::new(HistoryOptions::default());
    while let Some(record) = reader.next_record().map_err(|error| error.to_string())? {
        recovered.apply(record)?;
    }
    Ok(recovered)
}

/// That a disk is of the newest lineage, or of the one before if nothing was acknowledged since; and in the first case
/// all that was acknowledged in that lies aside.
fn look_at_lineage(model: &mut Model, found: u64, aside: Option<&RecoveredStream>) -> Result<(), Violation> {
    if let Some((lineage, acknowledged)) = model.before.take() {
        if let Some(aside) = aside {
            ensure(aside.lineages().own == lineage, || {
                format!("what lies aside is of lineage {}", aside.lineages().own)
            })?;
            check(aside.stream(&stream()), acknowledged)?;
            model.count("found aside", 1);
        } else if found == lineage && model.acknowledged == 0 {
            // The disk had not come to it.
            (model.lineage, model.acknowledged) = (lineage, acknowledged);
        }
    }
    ensure(found == model.lineage || model.acknowledged == 0, || {
        format!(
            "the disk is of lineage {found}, but event {} of {} was acknowledged",
            model.acknowledged, model.lineage
        )
    })
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
                ReplicaOutput::Send(link, message) => {
                    replica.drained(link, size_of_message(&message));
                    let mut model = model.lock();
                    match message {
                        Message::Published { number, .. } => {
                            let new = number.saturating_sub(model.acknowledged);
                            model.count("acknowledged", new);
                            model.acknowledged = model.acknowledged.max(number);
                        }
                        Message::Refused { text, .. } => {
                            model.note(Err(Violation::new(format!("a publish was refused: {text}"))));
                        }
                        _ => {}
                    }
                }
                ReplicaOutput::Close(_, why) => model.lock().note(Err(Violation::new(why))),
                output => keeper.take(output),
            }
        }
        let stats = keeper.stats();
        model.lock().count("checkpoints", stats.checkpoints - checkpoints);
        checkpoints = stats.checkpoints;
    }
}
