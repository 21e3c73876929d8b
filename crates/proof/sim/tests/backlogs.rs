//! Backlogs of many shards that one process reads, in virtual time: their rate is the process's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_format::{Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId};
use tailwater_sim::World;
use tailwater_tail::limits::CATCH_UP_STEP_BYTES;
use tailwater_tail::testing::{DecoratedSource, MemoryLog, SourceHooks};
use tailwater_tail::{Cursor, DurableSource, FromSource, Place, ReaderConfig, TailReader, Waiter};

const CHUNK_BYTES: u32 = 4 << 10;
const VALUE: [u8; 16 << 10] = [7; 16 << 10];
/// Bytes a second of the process's backlogs.
const RATE: u64 = 8 << 20;
/// How long backlogs are read before it is looked at what was.
const LASTS: Duration = Duration::from_secs(5);
/// What a durable read takes.
const READ_TAKES: Duration = Duration::from_millis(2);
/// What may be over the rate: what there is at first, and a fetch that overdraws.
const SLACK: u64 = 2 * CATCH_UP_STEP_BYTES;

/// Counts the bytes that are read of each shard.
struct Counting {
    env: Env,
    read: Arc<Mutex<BTreeMap<ShardId, u64>>>,
}

impl SourceHooks for Counting {
    fn read<'a>(
        &'a self,
        inner: &'a dyn DurableSource,
        segment: SegmentId,
        from: Position,
        len: u32,
    ) -> FromSource<'a, Bytes> {
        Box::pin(async move {
            let bytes = inner.read(segment, from, len).await?;
            *self.read.lock().entry(segment.shard).or_default() += bytes.len() as u64;
            self.env.sleep(READ_TAKES).await;
            Ok(bytes)
        })
    }
}

/// A process that reads shards without cells.
struct Process {
    world: World,
    env: Env,
    log: MemoryLog,
    reader: TailReader,
    read: Arc<Mutex<BTreeMap<ShardId, u64>>>,
    /// The offset that each consumer reads next.
    consumed: Arc<Mutex<Vec<u64>>>,
}

fn shard(number: u32) -> ShardId {
    ShardId { stream: StreamId(uuid::Uuid::from_u128(9)), shard: ShardNumber(number) }
}

impl Process {
    fn new(config: ReaderConfig) -> Self {
        let world = World::new(1);
        let env = world.node("reader").env();
        let (log, read) = (MemoryLog::new(CHUNK_BYTES), Arc::default());
        let hooks = Counting { env: env.clone(), read: Arc::clone(&read) };
        let source = Arc::new(DecoratedSource { inner: Arc::new(log.clone()), hooks });
        let reader = TailReader::start(&env, None, source, config);
        Self { world, env, log, reader, read, consumed: Arc::default() }
    }

    /// Appends so many bytes to a shard, at least.
    fn append(&self, number: u32, bytes: u64) {
        for _ in 0..bytes.div_ceil(VALUE.len() as u64) {
            self.log.append(shard(number), &[&VALUE]);
        }
    }

    /// Reads a shard from its beginning; the consumer's number.
    fn consume(&self, number: u32) -> usize {
        let place = Place { segment: SegmentNumber(1), position: Position(0) };
        let mut cursor =
            Cursor::new(&self.reader, shard(number), place, Offset(0), Arc::new(Waiter::default()));
        let consumed = Arc::clone(&self.consumed);
        let consumer = {
            let mut consumed = consumed.lock();
            consumed.push(0);
            consumed.len() - 1
        };
        let consuming = async move {
            while let Ok(entries) = cursor.next().await {
                consumed.lock()[consumer] = entries.next_offset().0;
            }
        };
        self.env.spawn("consumer", consuming).detach();
        consumer
    }

    fn run_for(&self, duration: Duration) {
        self.world.run_for(duration).expect("the world goes on");
    }

    fn read_of(&self, number: u32) -> u64 {
        self.read.lock().get(&shard(number)).copied().unwrap_or_default()
    }

    fn read(&self) -> u64 {
        self.read.lock().values().sum()
    }
}

fn config() -> ReaderConfig {
    ReaderConfig { catch_up_bytes_per_s: RATE, ..ReaderConfig::default() }
}

fn worth(duration: Duration) -> u64 {
    (RATE as f64 * duration.as_secs_f64()) as u64
}

/// Asserts that the process read as much as it may since `before` bytes, and no more.
fn assert_read(process: &Process, before: u64, during: Duration, what: &str) {
    let (read, worth) = (process.read() - before, worth(during));
    assert!(read <= worth + SLACK, "{what}: {read} bytes in {during:?}, of {worth}");
    assert!(read + SLACK >= worth, "{what}: {read} bytes in {during:?}, of {worth}");
}

#[test]
fn the_backlogs_of_one_shard_and_of_many_are_read_at_the_same_rate_and_none_is_left_out() {
    for shards in [1_u32, 3, 40, 120] {
        let process = Process::new(config());
        let each = worth(LASTS) / u64::from(shards) + 4 * CATCH_UP_STEP_BYTES;
        for number in 0..shards {
            process.append(number, each);
            process.consume(number);
        }
        process.run_for(LASTS);
        assert_read(&process, 0, LASTS, &format!("{shards} shards"));
        let of_each: Vec<u64> = (0..shards).map(|number| process.read_of(number)).collect();
        let (least, most) = (of_each.iter().min(), of_each.iter().max());
        let apart = most.zip(least).map_or(0, |(most, least)| most - least);
        assert!(apart <= CATCH_UP_STEP_BYTES, "{shards} shards are read alike: {of_each:?}");
        assert!(least.is_some_and(|least| *least > 0), "{of_each:?}");
    }
}

#[test]
fn consumers_that_each_read_by_themselves_share_the_rate_of_their_process() {
    let config = ReaderConfig { window_bytes: 64 << 10, catch_up_window_bytes: 64 << 10, ..config() };
    let process = Process::new(config);
    for number in 0..4 {
        process.append(number, worth(LASTS) / 20 + 4 * CATCH_UP_STEP_BYTES);
        for _ in 0..5 {
            process.consume(number);
        }
    }
    process.run_for(LASTS);
    assert_read(&process, 0, LASTS, "five consumers of each of four shards");
    assert!(process.consumed.lock().iter().all(|consumed| *consumed > 0), "each gets on");
}

#[test]
fn when_some_backlogs_end_the_others_get_all_of_the_rate() {
    let process = Process::new(config());
    for number in 0..50 {
        let bytes = if number < 48 { CATCH_UP_STEP_BYTES / 2 } else { 2 * worth(LASTS) };
        process.append(number, bytes);
        process.consume(number);
    }
    process.run_for(LASTS);
    assert_read(&process, 0, LASTS, "some of them short");
    let left =
        |number| process.log.tail(shard(number)).map_or(0, |tail| tail.durable.0) - process.read_of(number);
    assert!((0..48).all(|number| left(number) == 0), "the short ones are read");
    let before = process.read();
    process.run_for(LASTS);
    assert_read(&process, before, LASTS, "two that are left");
}

#[test]
fn a_shard_that_is_read_at_its_end_does_not_wait_for_the_backlogs_of_others_and_is_not_part_of_their_rate() {
    let process = Process::new(config());
    process.append(0, 1);
    let hot = process.consume(0);
    process.run_for(Duration::from_secs(1));
    for number in 1..100 {
        process.append(number, worth(LASTS) / 50);
        process.consume(number);
    }
    process.run_for(Duration::from_secs(1));
    let (before, of_hot) = (process.read(), process.read_of(0));
    let (mut written, every) = (0, Duration::from_millis(100));
    for _ in 0..20 {
        process.append(0, worth(every) / 8);
        written += worth(every) / 8;
        process.run_for(every);
    }
    let end = process.log.tail(shard(0)).map_or(0, |tail| tail.next_offset.0);
    process.run_for(ReaderConfig::default().silence_check_every + 10 * READ_TAKES);
    let during = every * 20 + ReaderConfig::default().silence_check_every + 10 * READ_TAKES;
    assert_eq!(process.consumed.lock()[hot], end, "it is at its end");
    assert!(process.read_of(0) - of_hot >= written);
    assert_read(&process, before + process.read_of(0) - of_hot, during, "the others");
}

#[test]
fn all_that_a_process_reads_is_bounded_too() {
    let config = ReaderConfig { bytes_per_s: RATE / 2, ..config() };
    let process = Process::new(config);
    for number in 0..20 {
        process.append(number, worth(LASTS) / 10);
        process.consume(number);
    }
    process.run_for(LASTS);
    assert_read(&process, 0, LASTS / 2, "in twice the time, for half of the rate");
}
