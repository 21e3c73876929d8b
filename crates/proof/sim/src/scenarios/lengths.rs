//! A writer that is cut off from the cells, which go on answering its readers: the published lengths stand still while
//! the file grows. And what it costs readers to notice that, while nothing happens.
//!
//! The code that runs is that of `tail`'s writer and reader, and `cache`. Checked: how long a record takes to every
//! reader, when the writer is cut off from an idle log and when it is under load; and that a process of idle readers
//! asks the durable layer every two seconds, however many files it follows and however many cursors it has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tailwater_format::{
    DurableTo, Offset, Position, SHARDS_PER_PAGE, SegmentNumber, ShardId, ShardNumber, StreamId, Tail,
};
use tailwater_tail::limits::DURABLE_LENGTHS_EVERY;
use tailwater_tail::testing::{DecoratedSource, MemoryLog, SourceHooks};
use tailwater_tail::{Cursor, Place, TailReader, TailWriter, Waiter};

use crate::checkers::{Report, Violation, ensure};
use crate::net::Net;
use crate::planted::Plant;
use crate::rng::Rng;
use crate::world::{Node, World};

use super::cells;

const CHUNK_BYTES: u32 = 512;
/// How long nothing happens while calls are counted.
const IDLE: Duration = Duration::from_secs(60);
/// How long a load lasts, and its pause between two records.
const LOAD: Duration = Duration::from_secs(4);
const LOAD_EVERY: Duration = Duration::from_millis(20);
/// How long the writer takes to publish again once it reaches the cells.
const MENDED: Duration = Duration::from_secs(20);
/// Longer than anything takes.
const NEVER: Duration = Duration::from_secs(120);
/// What messages take, and the look at what is known to be behind, in all.
const SLACK: Duration = Duration::from_millis(400);

/// Counts how often a source is asked how long it is.
struct CountingLengths(Arc<AtomicU64>);

impl SourceHooks for CountingLengths {
    fn told(&self, _: StreamId, _: &[ShardNumber], _: &mut [Option<Tail>]) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct LengthsState {
    appended: BTreeMap<(ShardId, Offset), Instant>,
    /// How far each consumer is.
    seen: Vec<(ShardId, Offset)>,
    /// The longest that a record took to any of them.
    delay_max: Duration,
    violation: Option<Violation>,
}

/// What the parts of the scenario work on.
struct Cluster<'a> {
    world: &'a World,
    net: Net,
    backends: Vec<Node>,
    writer_node: Node,
    writer: TailWriter,
    log: MemoryLog,
    asked: Arc<AtomicU64>,
    shards: Vec<ShardId>,
    state: Arc<Mutex<LengthsState>>,
}

/// Runs the scenario.
pub fn run(world: &mut World, plant: Plant) -> Result<Report, Violation> {
    let mut rng = Rng::new(world.seed(), "scenario/lengths");
    let pages = rng.between(1, 4);
    let cluster = Cluster::start(world, &mut rng, pages, plant)?;
    cluster.append_to_all();
    cluster.all_seen()?;
    world.run_for(MENDED)?;
    cluster.idle()?;

    // Nothing is written when it is cut off, and then one record is.
    cluster.cut();
    world.run_for(Duration::from_millis(rng.between(0, 5_000)))?;
    cluster.append(cluster.shards[rng.index(cluster.shards.len())]);
    cluster.all_seen()?;
    cluster.was_within(
        DURABLE_LENGTHS_EVERY * pages as u32,
        "the first record behind a page that stands still",
    )?;
    // The others are suspect, too.
    cluster.load(&mut rng)?;
    cluster.was_within(DURABLE_LENGTHS_EVERY, "a record while a page is known to stand still")?;

    cluster.heal();
    cluster.append_to_all();
    cluster.all_seen()?;
    world.run_for(MENDED)?;
    cluster.idle()?;

    cluster.load(&mut rng)?;
    cluster.cut();
    cluster.load(&mut rng)?;
    cluster.was_within(DURABLE_LENGTHS_EVERY, "a record under load")?;
    let mut report = Report::default();
    report.count("pages", pages);
    report.count("records", cluster.state.lock().appended.len() as u64);
    Ok(report)
}

impl<'a> Cluster<'a> {
    fn start(world: &'a World, rng: &mut Rng, pages: u64, plant: Plant) -> Result<Self, Violation> {
        let net = Net::new(world);
        let backends = cells::backend_nodes(world);
        for (number, node) in backends.iter().enumerate() {
            cells::start_backends(&net, node, number, 64);
        }
        let [writer_node, reader_node] = ["writer", "reader"].map(|name| world.node(name));
        let cells_of = |node: &Node| cells::connect_both(world, &net, node, Plant::None);
        let writer = TailWriter::start(&writer_node.env(), Some(cells_of(&writer_node)?));
        let (log, asked, state) =
            (MemoryLog::new(CHUNK_BYTES), Arc::default(), Arc::<Mutex<LengthsState>>::default());
        let stream = StreamId(uuid::Uuid::from_u128(0x1e46));
        let shards = (0..pages as u32).flat_map(|page| [page * SHARDS_PER_PAGE, page * SHARDS_PER_PAGE + 1]);
        let shards: Vec<_> = shards.map(|shard| ShardId { stream, shard: ShardNumber(shard) }).collect();
        let reader_env = reader_node.env();
        let hooks = CountingLengths(Arc::clone(&asked));
        let source = DecoratedSource { inner: Arc::new(log.clone()), hooks };
        let cells = cells_of(&reader_node)?;
        let source = plant.source(Arc::new(source));
        let reader = TailReader::start(&reader_env, Some(cells), source, plant.reader_config());
        for &shard in &shards {
            for _ in 0..rng.between(1, 5) {
                let place = Place { segment: SegmentNumber(1), position: Position(0) };
                let cursor = Cursor::new(&reader, shard, place, Offset(0), Arc::new(Waiter::default()));
                let number = {
                    let mut state = state.lock();
                    state.seen.push((shard, Offset(0)));
                    state.seen.len() - 1
                };
                let consuming = consume(reader_env.clone(), cursor, number, Arc::clone(&state));
                reader_env.spawn("consumer", consuming).detach();
            }
        }
        Ok(Self { world, net, backends, writer_node, writer, log, asked, shards, state })
    }

    fn append(&self, shard: ShardId) {
        let appended = self.log.append(shard, &[b"a record"]);
        let offset = Offset(appended.tail.next_offset.0 - 1);
        self.state.lock().appended.insert((shard, offset), self.world.now());
        let now = self.world.now();
        let durable = DurableTo::new(appended.tail.durable);
        self.writer.extend(appended.segment, &appended.bytes, durable, appended.tail, now);
    }

    fn append_to_all(&self) {
        self.shards.iter().for_each(|shard| self.append(*shard));
    }

    /// Appends to any of the shards until it is over, and waits until all of it was read.
    fn load(&self, rng: &mut Rng) -> Result<(), Violation> {
        let began = self.world.now();
        while self.world.now().since(began) < LOAD {
            self.append(self.shards[rng.index(self.shards.len())]);
            self.world.run_for(LOAD_EVERY)?;
        }
        self.all_seen()
    }

    fn all_seen(&self) -> Result<(), Violation> {
        let outside = self.world.outside();
        let end = |shard| self.log.tail(shard).map_or(Offset(0), |tail| tail.next_offset);
        let all_seen = async {
            while !self.state.lock().seen.iter().all(|(shard, seen)| *seen >= end(*shard)) {
                outside.sleep(Duration::from_millis(1)).await;
            }
        };
        let seen = self.world.run(outside.timeout(NEVER, all_seen))?;
        self.state.lock().violation.take().map_or(Ok(()), Err)?;
        ensure(seen.is_some(), || "a record is never read".to_owned())
    }

    /// Since the call before no record took longer than this, and the time of the messages.
    fn was_within(&self, most: Duration, what: &str) -> Result<(), Violation> {
        let took = std::mem::take(&mut self.state.lock().delay_max);
        ensure(took <= most + SLACK, || format!("{what} took {took:?}, of {most:?} that it may"))
    }

    /// While nothing happens the durable layer is asked at each [`DURABLE_LENGTHS_EVERY`].
    fn idle(&self) -> Result<(), Violation> {
        let before = self.asked.load(Ordering::Relaxed);
        self.world.run_for(IDLE)?;
        let asked = self.asked.load(Ordering::Relaxed) - before;
        std::mem::take(&mut self.state.lock().delay_max);
        let most = IDLE.div_duration_f64(DURABLE_LENGTHS_EVERY) as u64 + 1;
        ensure(asked <= most, || format!("an idle process asked {asked} times in {IDLE:?}"))
    }

    fn cut(&self) {
        self.backends.iter().for_each(|backend| self.net.partition(&self.writer_node, backend));
    }

    fn heal(&self) {
        self.backends.iter().for_each(|backend| self.net.heal(&self.writer_node, backend));
    }
}

async fn consume(env: Env, mut cursor: Cursor, number: usize, state: Arc<Mutex<LengthsState>>) {
    loop {
        let entries = match cursor.next().await {
            Ok(entries) => entries,
            Err(error) => {
                let violation = Violation::new(format!("{} can't be read: {error}", cursor.shard()));
                state.lock().violation.get_or_insert(violation);
                return;
            }
        };
        let mut state = state.lock();
        let (shard, from) = state.seen[number];
        for offset in from.0..entries.next_offset().0 {
            let at = state.appended.get(&(shard, Offset(offset))).copied();
            let took = at.map_or(Duration::ZERO, |at| env.now().since(at));
            state.delay_max = state.delay_max.max(took);
        }
        state.seen[number].1 = entries.next_offset();
    }
}
