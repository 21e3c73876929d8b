//! A cluster's consumers at the level of chunks: the real writer, cells and readers, each consumer with a reader of its
//! own. It is what a model of many consumers is compared with.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::{
    Backend, BackendConfig, BackendPlace, Cell, CellConfig, Configuration, Connecting, Connector,
    EvictionPolicy, Mode,
};
use tailwater_env::{Env, Instant};
use tailwater_format::{DurableTo, Offset, Position, SegmentNumber, ShardId, ShardNumber, StreamId};
use tailwater_rma::{Backing, LocalDoorbell};
use tailwater_tail::testing::MemoryLog;
use tailwater_tail::{Cells, Cursor, Place, ReaderConfig, ReaderStats, TailReader, TailWriter, Waiter};

use crate::checkers::Violation;
use crate::net::{Net, Weather};
use crate::rng::Rng;
use crate::world::{Crash, Node, World};

/// The most backends of the data cell.
const NAMES: [&str; 12] = [
    "data-0", "data-1", "data-2", "data-3", "data-4", "data-5", "data-6", "data-7", "data-8", "data-9",
    "data-10", "data-11",
];
/// Backends of the metadata cell, which are on the first nodes of the data cell.
const METADATA: usize = 3;
/// Records of one flush.
const RECORDS: u64 = 10;
/// How long the last records are waited for.
const DRAIN: Duration = Duration::from_secs(20);

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct ChunkLoad {
    /// Consumers.
    pub consumers: u32,
    /// Shards that are written, and of these each consumer's.
    pub shards: u32,
    /// See above.
    pub shards_per_consumer: u32,
    /// Bytes that are written in a second, in all, entries' heads among them.
    pub bytes_per_s: u64,
    /// How long messages gather before they are written.
    pub gather: Duration,
    /// How often a consumer reads lengths.
    pub poll: Duration,
    /// Backends of the data cell, from 3 to 12.
    pub backends: usize,
    /// Bytes that each of them holds.
    pub backend_bytes: u64,
    /// What a message takes one way, in ns.
    pub line_ns: u64,
    /// What is not counted, and what is.
    pub warmup: Duration,
    /// See above.
    pub measured: Duration,
    /// How many backends die in the middle of what is counted: those of the highest numbers.
    pub killed: usize,
}

/// What it came to.
#[derive(Clone, Debug, Default)]
pub struct ChunkRun {
    /// Reads of all consumers together.
    pub reads: ReaderStats,
    /// Delays of all records at all consumers, in ns, sorted.
    pub delays_ns: Vec<u64>,
    /// Bytes of one flush of one shard.
    pub flush_bytes: u64,
    /// Records that a consumer did not get, though they were written.
    pub lost: u64,
}

impl ChunkRun {
    /// A quantile of the delays, in ms.
    pub fn delay_ms(&self, quantile: f64) -> f64 {
        let last = self.delays_ns.len().saturating_sub(1);
        self.delays_ns.get((last as f64 * quantile) as usize).map_or(0.0, |ns| *ns as f64 / 1e6)
    }
}

/// Where a consumer is in each of its shards.
type ChunkProgress = Arc<Mutex<Vec<(ShardId, Offset)>>>;

/// Reaches the backends of one cell over the simulated network, none of them through shared memory.
struct ChunkConnector {
    net: Net,
    node: Node,
    cell: &'static str,
}

fn address(cell: &str, number: usize) -> String {
    format!("{cell}/{number}")
}

impl Connector for ChunkConnector {
    fn connect<'a>(&'a self, backend: &'a BackendPlace) -> Connecting<'a> {
        Box::pin(async move {
            let address = address(self.cell, backend.number as usize);
            self.net.connect(&self.node, &address, false).await.map_err(|lost| lost.to_string())
        })
    }
}

fn start_backend(net: &Net, node: &Node, cell: &'static str, number: usize, capacity_bytes: u64) {
    let config = BackendConfig {
        capacity_bytes,
        buckets: capacity_bytes / 4_096 / 4,
        ttl: Duration::from_secs(60),
        eviction_at: 0.8,
        eviction: EvictionPolicy::Lrm,
        config_id: 0,
        backing: Backing::Private,
    };
    let backend = Backend::start(&node.env(), config).expect("memory for a backend");
    backend.is_for(cell);
    let doorbell = LocalDoorbell::new();
    let bell = doorbell.clone();
    backend.ring_on_change(move || bell.ring());
    net.listen(node, &address(cell, number), backend, doorbell);
}

/// What all consumers add to.
#[derive(Default)]
struct ChunkSeen {
    delays_ns: Vec<u64>,
    from: Option<Instant>,
    to: Option<Instant>,
    violation: Option<Violation>,
}

type SharedChunkSeen = Arc<Mutex<ChunkSeen>>;

struct ChunkCluster<'a> {
    world: &'a World,
    load: ChunkLoad,
    net: Net,
    backends: Vec<Node>,
    log: MemoryLog,
    readers: Vec<TailReader>,
    /// How far each consumer is in each of its shards.
    seen: SharedChunkSeen,
    progress: ChunkProgress,
    /// When each shard's entry with that number was written.
    written: ChunksWritten,
}

type ChunksWritten = Arc<Mutex<Vec<Vec<Instant>>>>;

/// Runs it.
///
/// # Errors
/// A consumer can't read, or the world comes to a halt.
pub fn run(world: &World, load: ChunkLoad) -> Result<ChunkRun, Violation> {
    let cluster = ChunkCluster::start(world, load)?;
    world.run_for(load.warmup)?;
    let before = cluster.reads();
    cluster.seen.lock().from = Some(world.now());
    if load.killed > 0 {
        world.run_for(load.measured / 2)?;
        for node in cluster.backends.iter().rev().take(load.killed) {
            node.crash(Crash::Process);
        }
        world.run_for(load.measured / 2)?;
    } else {
        world.run_for(load.measured)?;
    }
    cluster.seen.lock().to = Some(world.now());
    let after = cluster.reads();
    cluster.end(before, after)
}

fn shard_id(number: u32) -> ShardId {
    ShardId { stream: StreamId(uuid::Uuid::from_u128(0xf10)), shard: ShardNumber(number) }
}

impl<'a> ChunkCluster<'a> {
    fn start(world: &'a World, load: ChunkLoad) -> Result<Self, Violation> {
        assert!((METADATA..=NAMES.len()).contains(&load.backends), "3 to 12 backends");
        let net = Net::new(world);
        let fair = Weather::FAIR;
        net.set_weather(Weather {
            delay_ns: (load.line_ns, load.line_ns + load.line_ns / 10),
            slow_per_million: 0,
            splice_per_million: 0,
            ..fair
        });
        let backends: Vec<Node> = NAMES[..load.backends].iter().map(|name| world.node(name)).collect();
        for (number, node) in backends.iter().enumerate() {
            start_backend(&net, node, "data", number, load.backend_bytes);
            if number < METADATA {
                start_backend(&net, node, "metadata", number, 16 << 20);
            }
        }
        let [writer_node, reader_node] = ["writer", "consumers"].map(|name| world.node(name));
        let mut cluster = Self {
            world,
            load,
            net,
            backends,
            log: MemoryLog::new(4_096),
            readers: Vec::new(),
            seen: Arc::default(),
            progress: Arc::default(),
            written: Arc::new(Mutex::new(vec![Vec::new(); load.shards as usize])),
        };
        let writer = TailWriter::start(&writer_node.env(), Some(cluster.cells(&writer_node)?));
        let mut rng = Rng::new(world.seed(), "chunks");
        for shard in 0..load.shards {
            let phase = Duration::from_nanos(rng.below(load.gather.as_nanos() as u64));
            let (log, written) = (cluster.log.clone(), Arc::clone(&cluster.written));
            let env = writer_node.env();
            let writing = write(env.clone(), log, writer.clone(), written, load, (shard, phase));
            env.spawn("shard", writing).detach();
        }
        // Every shard has something by then: one of which nothing was ever written is not there.
        world.run_for(2 * load.gather)?;
        for consumer in 0..load.consumers {
            cluster.add_consumer(&reader_node, consumer, &mut rng)?;
        }
        Ok(cluster)
    }

    fn cells(&self, node: &Node) -> Result<Cells, Violation> {
        let connect = |cell: &'static str, id: u64, backends: usize| -> Result<Cell, Violation> {
            let addresses = vec![Vec::new(); backends];
            let configuration = Configuration::first(id << 32 | 1, cell, Mode::R32, addresses);
            let configuration = configuration.map_err(|error| Violation::new(error.to_string()))?;
            let connector = Arc::new(ChunkConnector { net: self.net.clone(), node: node.clone(), cell });
            let env = node.env();
            let config = CellConfig::of(configuration, connector, env.random_u64() as u32);
            let cell = self.world.run(Cell::connect(&env, config))?;
            cell.map_err(|error| Violation::new(error.to_string()))
        };
        Ok(Cells {
            data: connect("data", 0xda7a, self.load.backends)?,
            metadata: connect("metadata", 0x4e7a, METADATA)?,
        })
    }

    fn add_consumer(&mut self, node: &Node, consumer: u32, rng: &mut Rng) -> Result<(), Violation> {
        let load = self.load;
        let env = node.env();
        let config = ReaderConfig { lengths_every: Some(load.poll), ..ReaderConfig::default() };
        // Readers begin one after the other, so that their polls lie anywhere.
        self.world.run_for(Duration::from_nanos(
            rng.below(2 * load.poll.as_nanos() as u64 / u64::from(load.consumers) + 1),
        ))?;
        let reader = TailReader::start(&env, Some(self.cells(node)?), Arc::new(self.log.clone()), config);
        let first = consumer * load.shards_per_consumer;
        for shard in first..first + load.shards_per_consumer {
            let shard = shard_id(shard % load.shards);
            let place = Place { segment: SegmentNumber(1), position: Position(0) };
            let cursor = Cursor::new(&reader, shard, place, Offset(0), Arc::new(Waiter::default()));
            let number = {
                let mut progress = self.progress.lock();
                progress.push((shard, Offset(0)));
                progress.len() - 1
            };
            let (seen, written) = (Arc::clone(&self.seen), Arc::clone(&self.written));
            let progress = Arc::clone(&self.progress);
            let gather = load.gather;
            let consuming = consume(env.clone(), cursor, (number, progress), seen, written, gather);
            env.spawn("consumer", consuming).detach();
        }
        self.readers.push(reader);
        Ok(())
    }

    fn reads(&self) -> ReaderStats {
        let mut sum = ReaderStats::default();
        for reader in &self.readers {
            let stats = reader.stats();
            sum.relaxed += stats.relaxed;
            sum.hedged += stats.hedged;
            sum.consistent += stats.consistent;
            sum.durable += stats.durable;
            sum.cell_bytes += stats.cell_bytes;
            sum.durable_bytes += stats.durable_bytes;
            sum.entry_bytes += stats.entry_bytes;
        }
        sum
    }

    /// Waits until all has been read that was written by now.
    fn end(self, before: ReaderStats, after: ReaderStats) -> Result<ChunkRun, Violation> {
        let ends: Vec<Offset> = (0..self.load.shards)
            .map(|shard| self.log.tail(shard_id(shard)).map_or(Offset(0), |tail| tail.next_offset))
            .collect();
        let behind = || -> u64 {
            let progress = self.progress.lock();
            let left =
                |(shard, seen): &(ShardId, Offset)| ends[shard.shard.0 as usize].0.saturating_sub(seen.0);
            progress.iter().map(left).sum()
        };
        let outside = self.world.outside();
        let all_read = async {
            while behind() > 0 {
                outside.sleep(Duration::from_millis(20)).await;
            }
        };
        self.world.run(outside.timeout(DRAIN, all_read))?;
        let mut seen = self.seen.lock();
        seen.violation.take().map_or(Ok(()), Err)?;
        let mut delays_ns = std::mem::take(&mut seen.delays_ns);
        delays_ns.sort_unstable();
        let flush_bytes = {
            let tail = self.log.tail(shard_id(0));
            let flushes = self.written.lock()[0].len() as u64;
            tail.map_or(0, |tail| tail.durable.0 / flushes.max(1))
        };
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let reads = ReaderStats {
            relaxed: since(after.relaxed, before.relaxed),
            hedged: since(after.hedged, before.hedged),
            consistent: since(after.consistent, before.consistent),
            durable: since(after.durable, before.durable),
            cell_bytes: since(after.cell_bytes, before.cell_bytes),
            durable_bytes: since(after.durable_bytes, before.durable_bytes),
            entry_bytes: since(after.entry_bytes, before.entry_bytes),
            ..ReaderStats::default()
        };
        Ok(ChunkRun { reads, delays_ns, flush_bytes, lost: behind() })
    }
}

/// Writes what has gathered of a shard, again and again.
async fn write(
    env: Env,
    log: MemoryLog,
    writer: TailWriter,
    written: ChunksWritten,
    load: ChunkLoad,
    (shard, phase): (u32, Duration),
) {
    let bytes = load.bytes_per_s as f64 * load.gather.as_secs_f64() / f64::from(load.shards);
    // Heads of entry, batch and record; what they are exactly is told by the log.
    let value = Bytes::from(vec![b'x'; (bytes as usize).saturating_sub(160).max(16)]);
    let mut at = env.now() + phase;
    loop {
        env.sleep_until(at).await;
        let now = env.now();
        let appended = log.append(shard_id(shard), &[&value]);
        written.lock()[shard as usize].push(now);
        let durable = DurableTo::new(appended.tail.durable);
        writer.extend(appended.segment, &appended.bytes, durable, appended.tail, now);
        at = at + load.gather;
    }
}

async fn consume(
    env: Env,
    mut cursor: Cursor,
    (number, progress): (usize, ChunkProgress),
    seen: SharedChunkSeen,
    written: ChunksWritten,
    gather: Duration,
) {
    loop {
        let entries = match cursor.next().await {
            Ok(entries) => entries,
            Err(error) => {
                let violation = Violation::new(format!("{} can't be read: {error}", cursor.shard()));
                seen.lock().violation.get_or_insert(violation);
                return;
            }
        };
        let now = env.now();
        let (shard, from) = progress.lock()[number];
        let next = entries.next_offset();
        let mut seen = seen.lock();
        for offset in from.0..next.0 {
            // One record for each entry.
            let at = written.lock()[shard.shard.0 as usize][offset as usize];
            let counts = seen.from.is_some_and(|from| at >= from) && seen.to.is_none_or(|to| at < to);
            if counts {
                // Its messages came evenly over the time before it.
                let flushed = now.since(at).as_nanos() as u64;
                let each = gather.as_nanos() as u64 / RECORDS;
                seen.delays_ns.extend((0..RECORDS).map(|record| flushed + record * each + each / 2));
            }
        }
        progress.lock()[number].1 = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_consumers_get_all_records_from_the_cells_within_a_flush_and_a_poll() {
        let load = ChunkLoad {
            consumers: 6,
            shards: 12,
            shards_per_consumer: 4,
            bytes_per_s: 1_500_000,
            gather: Duration::from_millis(100),
            poll: Duration::from_millis(100),
            backends: 3,
            backend_bytes: 32 << 20,
            line_ns: 100_000,
            warmup: Duration::from_secs(1),
            measured: Duration::from_secs(2),
            killed: 0,
        };
        let run = run(&World::new(1), load).expect("it runs");
        assert_eq!((run.lost, run.reads.durable), (0, 0), "{:?}", run.reads);
        assert!(run.delay_ms(1.0) < 220.0, "{} ms", run.delay_ms(1.0));
        let flushes = 2 * 10 * 6 * 4;
        assert!(run.delays_ns.len().abs_diff(flushes * RECORDS as usize) <= 24 * RECORDS as usize);
    }
}
