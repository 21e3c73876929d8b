//! After a start readers have the ends of the shards from the data cell again.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{batch, config, create, in_world, shard, until, until_some};
use tailwater_cache::{
    Backend, BackendConfig, BackendPlace, Backends, Cell, CellConfig, Connecting, Connector, Mode,
};
use tailwater_env::Env;
use tailwater_format::{Codec, Offset, Position, SegmentId, ShardId, ShardNumber, StreamId};
use tailwater_log::{LocateRead, Log, LogConfig, StreamConfig};
use tailwater_rma::{Backing, LocalDoorbell};
use tailwater_tail::testing::{DecoratedSource, SourceHooks};
use tailwater_tail::{Cells, Cursor, DurableSource, FromSource, Place, ReaderConfig, TailReader};

/// Whoever waits for as long as this waits for ever.
const NEVER: Duration = Duration::from_secs(3_000);

/// A cell of one backend in this process.
struct OneBackend {
    env: Env,
    backend: Arc<Backend>,
    doorbell: LocalDoorbell,
}

impl Connector for OneBackend {
    fn connect<'a>(&'a self, _: &'a BackendPlace) -> Connecting<'a> {
        let service = Arc::clone(&self.backend);
        let connection = tailwater_rma::local::connect(service, self.doorbell.clone(), &self.env);
        Box::pin(std::future::ready(Ok(connection)))
    }
}

async fn cell(env: &Env, id: u64) -> Cell {
    cell_of(env, id, 16 << 20).await
}

/// One whose backend has so many bytes for values.
async fn cell_of(env: &Env, id: u64, bytes: u64) -> Cell {
    let backend = BackendConfig { ttl: NEVER, ..BackendConfig::data(bytes, 4_096, id, Backing::Private) };
    let backend = Backend::start(env, backend).expect("memory for a small backend");
    let doorbell = LocalDoorbell::new();
    let ring = doorbell.clone();
    backend.ring_on_change(move || ring.ring());
    let connector = Arc::new(OneBackend { env: env.clone(), backend, doorbell });
    let mut config = CellConfig::new(id, Mode::R1, Backends::through(connector, 1), 1);
    (config.deadline, config.connect_deadline) = (NEVER, NEVER);
    Cell::connect(env, config).await.expect("it is there")
}

/// Cells that hold nothing.
async fn cells(env: &Env) -> Cells {
    Cells { data: cell(env, 1).await, metadata: cell(env, 2).await }
}

async fn open(env: &Env, dir: &Path, config: &LogConfig, cells: &Cells) -> Log {
    until_some(env, async || match Log::open(env, config.clone(), dir, Some(cells.clone())).await {
        Ok(log) => Some(log),
        Err(error) if error.to_string().contains("in use") => None,
        Err(error) => panic!("{error}"),
    })
    .await
}

/// Counts the bytes that are read.
#[derive(Default)]
struct CountedReads(AtomicU64);

impl SourceHooks for CountedReads {
    fn read<'a>(
        &'a self,
        inner: &'a dyn DurableSource,
        segment: SegmentId,
        from: Position,
        len: u32,
    ) -> FromSource<'a, Bytes> {
        Box::pin(async move {
            let bytes = inner.read(segment, from, len).await?;
            self.0.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            Ok(bytes)
        })
    }
}

fn value(number: u64) -> String {
    format!("{number:0>900}")
}

async fn append(log: &Log, stream: StreamId, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let records = batch(&[(1_000, value(number))], Codec::None, None);
        log.append(stream, ShardNumber(0), records).await.expect("appended");
    }
}

/// Reads a shard's records from one on to the end, which has so many; how many bytes came from the durable layer.
async fn read(env: &Env, log: &Log, cells: &Cells, id: ShardId, from: u64, end: u64) -> u64 {
    let source = Arc::new(DecoratedSource { inner: Arc::new(log.clone()), hooks: CountedReads::default() });
    let config = ReaderConfig { delay_max: NEVER, ..ReaderConfig::default() };
    let reader = TailReader::start(env, Some(cells.clone()), Arc::clone(&source) as _, config);
    let found = log.locate(id, LocateRead::Offset(Offset(from))).await.expect("there");
    let place = Place { segment: found.segment, position: found.position };
    let mut cursor = Cursor::new(&reader, id, place, Offset(from), Arc::default());
    let mut next = from;
    while next < end {
        let entries = cursor.next().await.expect("readable");
        for batch in entries.batches() {
            for record in tailwater_format::Records::new(&batch.header, &batch.records) {
                let record = record.expect("a record");
                if record.offset.0 >= next {
                    assert_eq!(record.offset.0, next);
                    assert_eq!(record.value.expect("a value"), value(next).as_bytes());
                    next += 1;
                }
            }
        }
    }
    source.hooks.0.load(Ordering::SeqCst)
}

fn is_cached(log: &Log, id: ShardId) -> bool {
    log.tail_writer().cached(id) == log.view(id).expect("the shard").tail.durable
}

#[test]
fn after_a_kill_the_end_of_an_idle_shard_is_read_from_cells_that_held_nothing_and_the_rest_from_the_disk() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config();
        config.tail.refill_bytes_max = 128 << 10;
        let (first, second) = (cells(&env).await, cells(&env).await);
        let log = open(&env, dir.path(), &config, &first).await;
        let stream = create(&log, "a", StreamConfig { shards: 2, ..StreamConfig::default() }).await;
        append(&log, stream, 0..500).await;
        drop(log);

        let log = open(&env, dir.path(), &config, &second).await;
        let (id, empty) = (shard(stream, 0), shard(stream, 1));
        until(&env, || is_cached(&log, id)).await;
        assert!(log.tail_writer().stats().refilled_bytes <= 128 << 10);
        // 128 KiB, less a chunk, are 120 records and more.
        assert_eq!(read(&env, &log, &second, id, 400, 500).await, 0);
        assert!(read(&env, &log, &second, id, 0, 500).await > 250 << 10);
        assert!(is_cached(&log, empty), "a shard without records has nothing to bring back");

        // What is appended next is another segment, which the cell has from its beginning.
        append(&log, stream, 500..520).await;
        until(&env, || is_cached(&log, id)).await;
        assert_eq!(read(&env, &log, &second, id, 400, 520).await, 0);
        // A restart that was clean is no different.
        log.close().await;
        drop(log);
        let third = cells(&env).await;
        let log = open(&env, dir.path(), &config, &third).await;
        until(&env, || is_cached(&log, id)).await;
        assert_eq!(read(&env, &log, &third, id, 500, 520).await, 0);
    });
}

#[test]
fn many_shards_share_what_is_brought_back_into_the_cell() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config();
        config.tail.refill_bytes_total_max = 40 << 10;
        let (first, second) = (cells(&env).await, cells(&env).await);
        let log = open(&env, dir.path(), &config, &first).await;
        let mut shards = Vec::new();
        for name in ["a", "b", "c", "d"] {
            let stream = create(&log, name, StreamConfig { shards: 2, ..StreamConfig::default() }).await;
            append(&log, stream, 0..40).await;
            shards.push(shard(stream, 0));
        }
        drop(log);
        let log = open(&env, dir.path(), &config, &second).await;
        until(&env, || shards.iter().all(|id| is_cached(&log, *id))).await;
        let refilled = log.tail_writer().stats().refilled_bytes;
        // A chunk less than the share of each of the four at most.
        assert!((4 * (6 << 10)..=40 << 10).contains(&refilled), "{refilled}");
        for id in shards {
            assert_eq!(read(&env, &log, &second, id, 36, 40).await, 0);
        }
    });
}

#[test]
fn what_the_cell_has_evicted_of_an_open_segment_is_read_from_the_disk_at_once_and_its_end_from_the_cell() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        // As small as a backend can be: some 3 MiB.
        let small = Cells { data: cell_of(&env, 1, 1).await, metadata: cell(&env, 2).await };
        let log = open(&env, dir.path(), &config(), &small).await;
        let stream = create(&log, "a", StreamConfig::default()).await;
        for from in (0..8_000).step_by(50) {
            let records: Vec<_> = (from..from + 50).map(|number| (1_000, value(number))).collect();
            let appended = log.append(stream, ShardNumber(0), batch(&records, Codec::None, None)).await;
            appended.expect("appended");
        }
        let id = shard(stream, 0);
        until(&env, || is_cached(&log, id)).await;
        let from_disk = read(&env, &log, &small, id, 0, 8_000).await;
        assert!(from_disk > 3 << 20, "{from_disk} bytes");
        assert_eq!(read(&env, &log, &small, id, 7_900, 8_000).await, 0);
    });
}

#[test]
fn whoever_reads_when_a_shard_is_taken_over_goes_on_from_cells_that_have_nothing_of_its_open_segment() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config();
        (config.tail.refill_bytes_max, config.tail.refill_bytes_total_max) = (0, 0);
        let cells = Cells { data: cell(&env, 1).await, metadata: cell(&env, 2).await };
        let log = open(&env, dir.path(), &config, &cells).await;
        let stream = create(&log, "a", StreamConfig::default()).await;
        append(&log, stream, 0..500).await;
        let id = shard(stream, 0);
        until(&env, || is_cached(&log, id)).await;
        drop(log);
        // The lengths are in the metadata cell still, of the term before, and the data cell was lost with its host.
        let after = Cells { data: cell(&env, 1).await, metadata: cells.metadata.clone() };
        let log = open(&env, dir.path(), &config, &after).await;
        assert!(read(&env, &log, &after, id, 0, 500).await > 400 << 10);
        append(&log, stream, 500..520).await;
        until(&env, || is_cached(&log, id)).await;
        assert!(read(&env, &log, &after, id, 400, 520).await > 80 << 10);
        assert_eq!(read(&env, &log, &after, id, 500, 520).await, 0);
    });
}
