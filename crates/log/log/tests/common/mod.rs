//! What the tests of the whole log share: real disk, journal, store and metadata in a temporary directory.

#![allow(dead_code)] // each test binary uses a part of it

pub mod members;
pub mod told;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{AbortHandle, BoxFuture, FutureExt, abortable};
use parking_lot::Mutex;
use tailwater_env::{Clock, Disk, Env, File, Instant, LockGuard, OpenMode, Random, Task, Tasks};
use tailwater_format::{
    BatchBuilder, Codec, Decompressor, Offset, Position, Producer, SegmentId, SegmentNumber, ShardId,
    ShardNumber, StreamId, batches, parse_entry,
};
use tailwater_log::{Log, LogConfig, StreamConfig};

/// Runs a test in a runtime of its own, in the real world.
pub fn in_world<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let env = Env::real();
        // A test that waits for what does not come is better named than waited for.
        let ended = env.timeout(Duration::from_secs(600), test(env.clone())).await;
        assert!(ended.is_some(), "the test never ends");
    });
}

/// Small files and frequent looks, so that tests of what takes long take little.
pub fn config() -> LogConfig {
    let mut config = LogConfig { tick: Duration::from_millis(5), ..LogConfig::default() };
    config.journal.file_bytes = 16 << 20;
    config.journal.files_max = 8;
    config
}

pub async fn open(env: &Env, dir: &Path) -> Log {
    open_with(env, dir, config()).await
}

/// Opens a log; if the directory is still held by the tasks of one that was dropped a moment ago, again.
pub async fn open_with(env: &Env, dir: &Path, config: LogConfig) -> Log {
    until_some(env, async || match Log::open(env, config.clone(), dir, None).await {
        Ok(log) => Some(log),
        Err(error) if error.to_string().contains("in use") => None,
        Err(error) => panic!("{error}"),
    })
    .await
}

pub async fn create(log: &Log, name: &str, config: StreamConfig) -> StreamId {
    log.create_stream(name, config).await.expect("created").id
}

pub fn shard(stream: StreamId, shard: u32) -> ShardId {
    ShardId { stream, shard: ShardNumber(shard) }
}

/// A batch of these records: timestamp and value.
pub fn batch(records: &[(i64, String)], codec: Codec, producer: Option<(i64, i16, i32)>) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (timestamp, value) in records {
        builder.append(None, Some(value.as_bytes()), &[], *timestamp).expect("small");
    }
    if let Some((id, epoch, base_sequence)) = producer {
        builder.set_producer(Producer { id, epoch, base_sequence });
    }
    builder.finish(codec)
}

pub fn values(values: &[&str]) -> Bytes {
    let records: Vec<_> = values.iter().map(|value| (1_000, (*value).to_owned())).collect();
    batch(&records, Codec::None, None)
}

/// A record as it is read back, with the place its entry has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub offset: u64,
    pub timestamp: i64,
    pub value: String,
    pub segment: SegmentId,
    pub entry: u64,
    pub slot: u32,
    pub position: Position,
    pub transaction_id: i64,
}

/// All durable records of a shard from its first segment on, read by position as a consumer's fallback does.
/// Checks that entries continue each other over segments.
pub async fn read_all(log: &Log, id: ShardId) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut running = -1;
    for segment in log.segments(id, SegmentNumber(0)).expect("the shard") {
        let name = SegmentId { shard: id, number: segment.number, term: segment.term };
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < segment.length.0 {
            let at = Position(bytes.len() as u64);
            let left = (segment.length.0 - at.0) as u32;
            let piece = log.read_durable(name, at, left).await.expect("durable");
            assert!(!piece.is_empty());
            bytes.extend_from_slice(&piece);
        }
        let mut at = 0;
        while at < bytes.len() {
            let entry = parse_entry(&bytes[at..]).expect("an entry");
            assert_eq!(entry.header.segment_id(), name);
            let position = Position(at as u64);
            let mut slot = 0;
            for batch in batches(entry.batches) {
                let batch = batch.expect("a batch");
                batch.check_crc().expect("right");
                assert_eq!(batch.header().leader_epoch, segment.term.0 as i32);
                let mut decompressor = Decompressor::new();
                for record in batch.records(&mut decompressor, 1 << 20).expect("readable") {
                    let record = record.expect("a record");
                    running = running.max(record.timestamp_ms);
                    seen.push(Seen {
                        offset: record.offset.0,
                        timestamp: record.timestamp_ms,
                        value: String::from_utf8(record.value.expect("a value").to_vec()).expect("UTF-8"),
                        segment: name,
                        entry: entry.header.entry_id.0,
                        slot,
                        position,
                        transaction_id: running,
                    });
                    slot += 1;
                }
            }
            at += entry.header.len as usize;
        }
    }
    for pair in seen.windows(2) {
        assert_eq!(pair[0].offset + 1, pair[1].offset, "offsets are dense");
    }
    seen
}

pub async fn values_of(log: &Log, id: ShardId) -> Vec<String> {
    read_all(log, id).await.into_iter().map(|seen| seen.value).collect()
}

/// Waits until `holds`; what it waits for is bound to come.
pub async fn until(env: &Env, mut holds: impl FnMut() -> bool) {
    until_some(env, async || holds().then_some(())).await;
}

/// Tries until there is something; what it waits for is bound to come, and nobody tells of it.
pub async fn until_some<T>(env: &Env, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    loop {
        if let Some(there) = attempt().await {
            return there;
        }
        env.sleep(Duration::from_millis(1)).await;
    }
}

pub fn log_start(log: &Log, id: ShardId) -> Offset {
    log.view(id).expect("the shard").tail.log_start
}

/// The real world with a disk that fails when told to.
#[derive(Clone)]
pub struct Faults {
    /// Syncs of the journal's files fail.
    pub journal_syncs: Arc<AtomicBool>,
    /// Writes of new files and of segments fail as on a full disk.
    pub full: Arc<AtomicBool>,
    /// Writes of the journal's files fail in that way.
    pub journal_full: Arc<AtomicBool>,
}

struct Parts(Env);

impl Clock for Parts {
    fn now(&self) -> Instant {
        self.0.now()
    }
    fn wall_ms(&self) -> i64 {
        self.0.wall_ms()
    }
    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        self.0.sleep_until(deadline)
    }
}

impl Random for Parts {
    fn next_u64(&self) -> u64 {
        self.0.random_u64()
    }
}

impl Tasks for Parts {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        self.0.spawn(name, future)
    }
    fn spawn_dedicated(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        self.0.spawn_dedicated(name, future)
    }
}

/// The clock of the real world, ahead of it by so many milliseconds.
struct Ahead(Env, Arc<AtomicU64>);

impl Clock for Ahead {
    fn now(&self) -> Instant {
        self.0.now() + Duration::from_millis(self.1.load(Ordering::SeqCst))
    }
    fn wall_ms(&self) -> i64 {
        self.0.wall_ms()
    }
    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        self.0.sleep(deadline.since(self.now()))
    }
}

/// The real world with a clock that can be put ahead: by so many milliseconds.
pub fn ahead(env: &Env) -> (Env, Arc<AtomicU64>) {
    let ahead = Arc::<AtomicU64>::default();
    let (clock, parts) = (Arc::new(Ahead(env.clone(), Arc::clone(&ahead))), Arc::new(Parts(env.clone())));
    (Env::new(clock, parts.clone(), parts, Arc::clone(env.disk())), ahead)
}

/// Tasks of one name, which can be lost.
struct Losing {
    env: Env,
    name: &'static str,
    tasks: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Tasks for Losing {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        if name != self.name {
            return self.env.spawn(name, future);
        }
        let (future, handle) = abortable(future);
        self.tasks.lock().push(handle);
        self.env.spawn(name, future.map(|_| ()))
    }
    fn spawn_dedicated(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        self.env.spawn_dedicated(name, future)
    }
}

/// The real world in which the tasks of that name end when their handles are told to, as they do in a panic.
pub fn losing(env: &Env, name: &'static str) -> (Env, Arc<Mutex<Vec<AbortHandle>>>) {
    let tasks = Arc::<Mutex<Vec<AbortHandle>>>::default();
    let losing = Losing { env: env.clone(), name, tasks: Arc::clone(&tasks) };
    let parts = Arc::new(Parts(env.clone()));
    (Env::new(parts.clone(), parts, Arc::new(losing), Arc::clone(env.disk())), tasks)
}

struct FaultyDisk {
    real: Arc<dyn Disk>,
    faults: Faults,
}

struct FaultyFile {
    real: Arc<dyn File>,
    in_journal: bool,
    faults: Faults,
}

pub fn faulty(env: &Env) -> (Env, Faults) {
    let faults = Faults { journal_syncs: Arc::default(), full: Arc::default(), journal_full: Arc::default() };
    let disk = FaultyDisk { real: Arc::clone(env.disk()), faults: faults.clone() };
    let parts = Arc::new(Parts(env.clone()));
    (Env::new(parts.clone(), parts.clone(), parts, Arc::new(disk)), faults)
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> std::io::Result<Arc<dyn File>> {
        let real = self.real.open(path, mode)?;
        let in_journal = path.components().any(|part| part.as_os_str() == "journal");
        Ok(Arc::new(FaultyFile { real, in_journal, faults: self.faults.clone() }))
    }
    fn create_dir_all(&self, dir: &Path) -> std::io::Result<()> {
        self.real.create_dir_all(dir)
    }
    fn list(&self, dir: &Path) -> std::io::Result<Vec<String>> {
        self.real.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.real.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> std::io::Result<()> {
        self.real.remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> std::io::Result<()> {
        self.real.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> std::io::Result<()> {
        self.real.sync_dir(dir)
    }
    fn free_bytes(&self, dir: &Path) -> std::io::Result<u64> {
        if self.faults.full.load(Ordering::SeqCst) { Ok(0) } else { self.real.free_bytes(dir) }
    }
    fn lock(&self, path: &Path) -> std::io::Result<LockGuard> {
        self.real.lock(path)
    }
}

impl File for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> std::io::Result<usize> {
        self.real.read_at(buffer, position)
    }
    fn write_all_at(&self, bytes: &[u8], position: u64) -> std::io::Result<()> {
        let full = if self.in_journal { &self.faults.journal_full } else { &self.faults.full };
        if full.load(Ordering::SeqCst) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.real.write_all_at(bytes, position)
    }
    fn len(&self) -> std::io::Result<u64> {
        self.real.len()
    }
    fn set_len(&self, length: u64) -> std::io::Result<()> {
        self.real.set_len(length)
    }
    fn sync_data(&self) -> std::io::Result<()> {
        // One failure each time it is armed: the next file works.
        if self.in_journal && self.faults.journal_syncs.swap(false, Ordering::SeqCst) {
            return Err(std::io::Error::other("the disk failed, as it was told to"));
        }
        self.real.sync_data()
    }
}
