use std::time::Duration;

use tailwater_cache::{ItemExtras, Version};
use tailwater_env::Env;
use tailwater_format::{SegmentNumber, ShardId, ShardNumber, StreamId, Term};

use super::*;
use crate::FromSource;
use crate::testing::{DecoratedSource, MemoryLog, SourceHooks};
use crate::tests::{TestCell, in_runtime, until};

const CHUNK: u32 = 64;

fn shard() -> ShardId {
    ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) }
}

fn segment() -> SegmentId {
    SegmentId { shard: shard(), number: SegmentNumber(1), term: Term(1) }
}

/// A cell, a log of some 20 chunks, and what reads both.
struct World {
    env: Env,
    cell: TestCell,
    log: MemoryLog,
    fetcher: Fetcher,
    len: u64,
}

impl World {
    async fn start(env: Env) -> Self {
        let cell = TestCell::start(&env, 1).await;
        let log = MemoryLog::new(CHUNK);
        for entry in 0..8 {
            log.append(shard(), &[&[entry; 100]]);
        }
        let len = log.tail(shard()).expect("it is there").durable.0;
        let fetcher = Fetcher::new(Some(cell.cell.clone()), Arc::new(log.clone()));
        Self { env, cell, log, fetcher, len }
    }

    fn range(&self, from: u64, to: u64) -> ByteRange {
        ByteRange { segment: segment(), chunk_bytes: CHUNK, from: Position(from), to: Position(to) }
    }

    fn bytes(&self, from: u64, to: u64) -> Bytes {
        self.log.bytes(segment(), Position(from), Position(to))
    }

    /// Puts chunks into the cell, each as long as there are bytes up to `len`, on all replicas.
    async fn cache(&self, chunks: impl Iterator<Item = u64>, len: u64) {
        let chunk = u64::from(CHUNK);
        let items = chunks
            .map(|n| (self.range(0, 0).key(n).to_bytes(), self.bytes(n * chunk, ((n + 1) * chunk).min(len))));
        let items: Vec<_> = items.collect();
        let keys: Vec<Bytes> = items.iter().map(|(key, _)| key.clone()).collect();
        for result in self.cell.cell.set(items).await {
            result.expect("all backends are there");
        }
        // The third replica of each may still be on its way: these reads are of one at a time.
        for _ in 0..20 {
            while !self
                .cell
                .cell
                .get_relaxed(&keys)
                .await
                .iter()
                .all(|found| matches!(found, Lookup::Hit { .. }))
            {
                self.env.sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn fetch(&self, from: u64, to: u64) -> Result<Bytes, SourceError> {
        let mut assembly =
            self.fetcher.relaxed(&[self.range(from, to)]).await.pop().expect("one for each range");
        match assembly.complete() {
            Some(bytes) => Ok(bytes),
            None => self.fetcher.finish(assembly, Lane::Tail).await,
        }
    }

    fn durable_bytes(&self) -> u64 {
        self.fetcher.counters.durable_bytes.load(Ordering::Relaxed)
    }

    fn durable_reads(&self) -> u64 {
        self.fetcher.counters.durable.load(Ordering::Relaxed)
    }
}

#[test]
fn any_range_of_what_is_cached_comes_from_the_cell() {
    in_runtime(|env| async move {
        let world = World::start(env).await;
        world.cache(0..world.len.div_ceil(64), world.len).await;
        for (from, to) in [(0, 1), (0, 64), (63, 65), (10, 500), (0, world.len), (world.len - 1, world.len)] {
            let bytes = world.fetch(from, to).await.expect("it is there");
            assert_eq!(bytes[..], world.bytes(from, to)[..], "{from}..{to}");
        }
        assert_eq!(world.durable_reads(), 0);
    });
}

#[test]
fn many_ranges_are_one_read_and_each_gets_its_own_bytes() {
    in_runtime(|env| async move {
        let world = World::start(env).await;
        world.cache(0..world.len.div_ceil(64), world.len).await;
        let ranges: Vec<_> = (0..20).map(|n| world.range(n * 10, n * 10 + 100)).collect();
        for (range, mut assembly) in ranges.iter().zip(world.fetcher.relaxed(&ranges).await) {
            let Some(bytes) = assembly.complete() else { panic!("{range:?} is cached") };
            assert_eq!(bytes[..], world.bytes(range.from.0, range.to.0)[..]);
        }
    });
}

#[test]
fn missing_chunks_are_one_durable_read_that_spans_them() {
    in_runtime(|env| async move {
        let world = World::start(env).await;
        world.cache([0, 1, 4, 5, 9, 10].into_iter(), world.len).await;
        let before = world.log.reads();
        let bytes = world.fetch(10, 11 * 64).await.expect("the rest is durable");
        assert_eq!(bytes[..], world.bytes(10, 11 * 64)[..]);
        assert_eq!(world.log.reads() - before, 1, "for chunks 2 to 8 together");
        assert_eq!(world.durable_bytes(), 7 * 64);
    });
}

#[test]
fn a_partial_chunk_that_is_too_short_counts_as_missing() {
    in_runtime(|env| async move {
        let world = World::start(env).await;
        world.cache(0..3, 150).await;
        assert_eq!(world.fetch(100, 150).await.expect("it is cached")[..], world.bytes(100, 150)[..]);
        assert_eq!(world.durable_reads(), 0);
        assert_eq!(world.fetch(100, 160).await.expect("the rest is durable")[..], world.bytes(100, 160)[..]);
        assert_eq!(world.durable_reads(), 1);
        assert!(world.fetcher.counters.consistent.load(Ordering::Relaxed) > 0, "the quorum was asked first");
    });
}

#[test]
fn without_a_cell_or_with_a_dead_one_everything_is_durable() {
    in_runtime(|env| async move {
        let mut world = World::start(env).await;
        world.cell.set_gone(3);
        until(&world.env, "the cell notices", || world.cell.cell.live_backends() == 0).await;
        assert_eq!(world.fetch(5, 300).await.expect("it is durable")[..], world.bytes(5, 300)[..]);
        world.fetcher.data = None;
        assert_eq!(world.fetch(5, 300).await.expect("it is durable")[..], world.bytes(5, 300)[..]);
        let range = world.range(7, world.len);
        let fetched = world.fetcher.durable(&range, Lane::CatchUp).await.expect("it is durable");
        assert_eq!(fetched[..], world.bytes(7, world.len)[..]);
    });
}

#[test]
fn what_is_neither_cached_nor_durable_is_an_error_and_no_loop() {
    in_runtime(|env| async move {
        let world = World::start(env).await;
        let error = world.fetch(0, world.len + 10).await.expect_err("it is not there");
        assert!(matches!(error, SourceError::Unavailable(_)), "{error}");
    });
}

#[test]
fn chunks_that_came_in_one_piece_are_not_copied_and_others_are_not_taken_for_such() {
    let chunk = 64 << 10;
    let frame = Bytes::from((0..4 * chunk).map(|place| (place % 251) as u8).collect::<Vec<_>>());
    let (from, to) = (Position(3 * chunk as u64 + 100), Position(6 * chunk as u64 + 10));
    let range = ByteRange { segment: segment(), chunk_bytes: chunk as u32, from, to };
    let hit = |value: Bytes| {
        let version = Version { timestamp_us: 1, client_id: 0, sequence: 0 };
        Lookup::Hit { version, value, extras: ItemExtras::default() }
    };
    let whole = || [0, 1, 2, 3].map(|n| hit(frame.slice(n * chunk..(n + 1) * chunk)));
    let frames = [Bytes::from_static(b"another"), frame.clone()];
    let mut assembly = Assembly::new(range);
    assert!(assembly.accept_whole(&whole(), &frames));
    let Some(fetched) = assembly.complete() else { panic!("nothing is short") };
    assert_eq!(fetched.as_ptr(), frame[100..].as_ptr());
    assert!(fetched[..] == frame[100..3 * chunk + 10]);

    for (n, other) in [
        (0, Lookup::Miss),
        (1, hit(Bytes::copy_from_slice(&frame[chunk..2 * chunk]))),
        (1, hit(frame.slice(2 * chunk..3 * chunk))),
        (2, hit(frame.slice(2 * chunk..3 * chunk - 1))),
        (3, hit(frame.slice(3 * chunk..3 * chunk + 9))),
    ] {
        let mut found = whole();
        found[n] = other;
        assert!(!Assembly::new(range).accept_whole(&found, &frames), "chunk {n}");
    }
    assert!(!Assembly::new(range).accept_whole(&whole(), &frames[..1]), "no frame");
}

/// Answers with as many bytes as it likes.
struct Liar(usize);

impl SourceHooks for Liar {
    fn read<'a>(
        &'a self,
        _: &'a dyn DurableSource,
        _: SegmentId,
        _: Position,
        _: u32,
    ) -> FromSource<'a, Bytes> {
        Box::pin(std::future::ready(Ok(Bytes::from(vec![0; self.0]))))
    }
}

#[test]
fn a_source_that_answers_too_much_or_nothing_is_refused() {
    in_runtime(|_| async {
        let range =
            ByteRange { segment: segment(), chunk_bytes: CHUNK, from: Position(3), to: Position(103) };
        for (len, is_good) in [(0, false), (101, false), (100, true), (1, true)] {
            let fetcher = Fetcher::new(
                None,
                Arc::new(DecoratedSource { inner: Arc::new(MemoryLog::new(CHUNK)), hooks: Liar(len) }),
            );
            let answer = fetcher.durable(&range, Lane::Tail).await;
            assert_eq!(answer.is_ok(), is_good, "{len}: {answer:?}");
            assert!(is_good || matches!(answer, Err(SourceError::Invalid(_))));
        }
    });
}
