//! Cursors follow a log, whatever happens to the cells.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{Env, Task};
use tailwater_format::batch::Records;
use tailwater_format::{
    DurableTo, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail,
};

use super::{TestCell, in_runtime, until};
use crate::limits::{CATCH_UP_READS_MAX, FETCHES_MAX, LENGTHS_EVERY, TAIL_READS_MAX, WINDOW_BYTES};
use crate::lock::LockTiming;
use crate::testing::{DecoratedSource, MemoryLog, SourceHooks};
use crate::{
    Cells, Cursor, DurableSource, Entries, FeedReadError, FromSource, Place, ReaderConfig, TailReader,
    TailWriter, Waiter, WriterConfig,
};

const DATA: u64 = 1;
const METADATA: u64 = 2;

pub(super) fn shard(number: u32) -> ShardId {
    ShardId { stream: StreamId(uuid::Uuid::from_u128(9)), shard: ShardNumber(number) }
}

fn writer_config() -> WriterConfig {
    WriterConfig {
        retry_delay: Duration::from_millis(5),
        page_refresh: Duration::from_millis(100),
        chunk_refresh: Duration::from_millis(200),
        lock: LockTiming {
            check_every: Duration::from_millis(5),
            seize_after: Duration::from_millis(30),
            retry_after: Duration::from_millis(100),
        },
        ..WriterConfig::default()
    }
}

pub(super) fn reader_config() -> ReaderConfig {
    ReaderConfig {
        delay_max: Duration::from_millis(30),
        watch_deadline: Duration::from_millis(10),
        silent_after: Duration::from_millis(30),
        silence_check_every: Duration::from_millis(10),
        durable_lengths_every: Duration::from_millis(500),
        page_refresh: Duration::from_millis(100),
        ..ReaderConfig::default()
    }
}

/// A log, its writer, and a process that reads.
pub(super) struct World {
    pub(super) env: Env,
    pub(super) log: MemoryLog,
    pub(super) data: TestCell,
    pub(super) metadata: TestCell,
    pub(super) writer: TailWriter,
    pub(super) reader: TailReader,
}

impl World {
    pub(super) async fn start(env: Env, config: ReaderConfig) -> Self {
        let (data, metadata) = (TestCell::start(&env, DATA).await, TestCell::start(&env, METADATA).await);
        let log = MemoryLog::new(256);
        let cells = Cells { data: data.cell.clone(), metadata: metadata.cell.clone() };
        let writer = TailWriter::start_with(&env, Some(cells), writer_config());
        let cells = Cells { data: data.again(DATA, 2).await, metadata: metadata.again(METADATA, 2).await };
        let reader = TailReader::start(&env, Some(cells), Arc::new(log.clone()), config);
        Self { env, log, data, metadata, writer, reader }
    }

    pub(super) fn append(&self, shard: ShardId, values: &[&[u8]]) -> Tail {
        let appended = self.log.append(shard, values);
        let now = self.env.now();
        let durable = DurableTo::new(appended.tail.durable);
        self.writer.extend(appended.segment, &appended.bytes, durable, appended.tail, now);
        appended.tail
    }

    /// Appends so many entries of one to three records each.
    pub(super) fn append_some(&self, shard: ShardId, entries: usize) {
        for entry in 0..entries {
            let value = [entry as u8; 90];
            let values: Vec<&[u8]> = vec![&value; entry % 3 + 1];
            self.append(shard, &values);
        }
    }

    pub(super) fn roll(&self, shard: ShardId) {
        self.writer.update(shard, self.log.roll(shard));
    }

    pub(super) fn cursor(&self, shard: ShardId, offset: u64) -> Cursor {
        let place = self.log.locate(shard, Offset(offset));
        Cursor::new(&self.reader, shard, place, Offset(offset), Arc::default())
    }

    /// Reads in a task of its own from `offset` on.
    pub(super) fn follow(&self, shard: ShardId, offset: u64) -> Follower {
        self.follow_with(self.cursor(shard, offset))
    }

    /// The same from where a cursor is.
    fn follow_with(&self, cursor: Cursor) -> Follower {
        let (shard, offset) = (cursor.shard(), cursor.next_offset().0);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let task = self.env.spawn("follower", follow(cursor, Arc::clone(&seen)));
        Follower { shard, from: offset, seen, _task: task }
    }

    /// Waits until all followers have seen all of their shards, and compares.
    pub(super) async fn assert_all_seen(&self, followers: &[Follower]) {
        for follower in followers {
            let expected = self.expected(follower);
            let end = expected.keys().last().copied();
            until(&self.env, "a follower has seen everything", || {
                let seen = follower.seen.lock();
                assert_eq!(seen.error, None);
                seen.values.last().map(|(offset, _)| *offset) >= end
            })
            .await;
            let seen = follower.seen.lock();
            assert!(seen.values.iter().cloned().eq(expected), "from {}", follower.from);
        }
    }

    fn expected(&self, follower: &Follower) -> BTreeMap<Offset, Bytes> {
        self.log.values(follower.shard).split_off(&Offset(follower.from))
    }
}

#[derive(Default)]
pub(super) struct Seen {
    pub(super) values: Vec<(Offset, Bytes)>,
    pub(super) error: Option<FeedReadError>,
}

pub(super) struct Follower {
    shard: ShardId,
    from: u64,
    pub(super) seen: Arc<Mutex<Seen>>,
    _task: Task,
}

impl Follower {
    pub(super) fn count(&self) -> usize {
        self.seen.lock().values.len()
    }
}

async fn follow(mut cursor: Cursor, seen: Arc<Mutex<Seen>>) {
    loop {
        match cursor.next().await {
            Ok(entries) => seen.lock().values.extend(values(&entries)),
            Err(error) => {
                seen.lock().error = Some(error);
                return;
            }
        }
    }
}

pub(super) fn values(entries: &Entries) -> Vec<(Offset, Bytes)> {
    let records = entries.batches().iter().flat_map(|batch| Records::new(&batch.header, &batch.records));
    let records = records.map(|record| record.expect("it was checked"));
    records
        .filter(|record| record.offset >= entries.from)
        .map(|record| (record.offset, Bytes::copy_from_slice(record.value.expect("it has one"))))
        .collect()
}

/// Runs a test in a world of its own.
fn in_world<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    in_runtime(|env| async move { test(World::start(env, reader_config()).await).await });
}

#[test]
fn in_a_process_of_many_cursors_flushes_that_follow_closely_share_a_wake_up() {
    in_world(|world| async move {
        world.append_some(shard(0), 1);
        let inner = &world.reader.inner;
        let mut cursors: Vec<Cursor> = (0..49).map(|_| world.cursor(shard(0), 0)).collect();
        assert_eq!(inner.pause(), Duration::ZERO);
        cursors.push(world.cursor(shard(0), 0));
        assert_eq!(inner.pause(), LENGTHS_EVERY);
        cursors.pop();
        assert_eq!(inner.pause(), Duration::ZERO, "few again");
    });
}

#[test]
fn how_often_lengths_are_read_at_most_holds_for_one_cursor_too_if_it_is_configured() {
    in_runtime(|env| async move {
        let lengths_every = Some(Duration::from_millis(20));
        let world = World::start(env, ReaderConfig { lengths_every, ..reader_config() }).await;
        world.append_some(shard(0), 1);
        let _cursor = world.cursor(shard(0), 0);
        assert_eq!(world.reader.inner.pause(), Duration::from_millis(20));
    });
}

#[test]
fn where_lengths_are_read_at_intervals_what_flows_and_what_comes_after_a_pause_is_seen() {
    in_runtime(|env| async move {
        let never = Duration::from_secs(3_600);
        let config = ReaderConfig {
            lengths_every: Some(Duration::from_millis(5)),
            delay_max: never,
            watch_deadline: never / 2,
            silent_after: never,
            durable_lengths_every: never,
            ..reader_config()
        };
        let world = World::start(env, config).await;
        world.append_some(shard(0), 1);
        let followers = [world.follow(shard(0), 0)];
        for round in 0..30 {
            world.append_some(shard(0), 3);
            match round % 3 {
                0 => world.assert_all_seen(&followers).await,
                pause => world.env.sleep(Duration::from_millis(4 * pause)).await,
            }
        }
        world.assert_all_seen(&followers).await;
        assert_eq!(world.reader.stats().durable_bytes, 0, "{:?}", world.reader.stats());
    });
}

#[test]
fn chunks_that_change_on_their_way_are_read_from_the_durable_layer() {
    in_runtime(|env| async move {
        let patient = Duration::from_secs(600);
        let config = ReaderConfig { delay_max: patient, silent_after: patient, ..reader_config() };
        let mut world = World::start(env, config).await;
        world.data.set_torn(true);
        let cells = Cells {
            data: world.data.again(DATA, 3).await,
            metadata: world.metadata.again(METADATA, 3).await,
        };
        let log = Arc::new(world.log.clone());
        world.reader = TailReader::start(&world.env, Some(cells), log, config);
        world.append_some(shard(0), 1);
        let followers = [world.follow(shard(0), 0)];
        for _ in 0..10 {
            world.append_some(shard(0), 3);
            world.assert_all_seen(&followers).await;
        }
        let torn = world.reader.stats();
        assert!(torn.cell_bytes > 0 && torn.durable_bytes > 0, "{torn:?}");
        world.data.set_torn(false);
        // Until the cell is trusted again.
        loop {
            let before = world.reader.stats().durable_bytes;
            world.append_some(shard(0), 3);
            world.assert_all_seen(&followers).await;
            if world.reader.stats().durable_bytes == before {
                break;
            }
        }
    });
}

#[test]
fn what_the_only_cursor_has_taken_is_not_kept_and_another_one_that_begins_before_it_sees_everything() {
    in_runtime(|env| async move {
        // Each time six records in three entries.
        let world = World::start(env, reader_config()).await;
        world.append_some(shard(0), 3);
        let mut only = world.cursor(shard(0), 0);
        for round in 1..10 {
            while only.next_offset() < Offset(6 * round) {
                only.next().await.expect("it is there");
            }
            assert_eq!(world.reader.inner.kept_bytes(shard(0)), 0);
            world.append_some(shard(0), 3);
        }
        let other = world.follow(shard(0), 0);
        let only = world.follow_with(only);
        world.append_some(shard(0), 3);
        world.assert_all_seen(&[other, only]).await;
    });
}

#[test]
fn a_hundred_cursors_of_several_shards_see_everything_from_the_cell() {
    in_runtime(|env| async move {
        // Nobody turns to the durable layer because everything stood still for a moment.
        let patient = Duration::from_secs(600);
        let config = ReaderConfig { delay_max: patient, silent_after: patient, ..reader_config() };
        let world = World::start(env, config).await;
        for number in [0, 1, 63, 64] {
            world.append(shard(number), &[b"first"]);
        }
        let followers: Vec<_> = (0..100).map(|n| world.follow(shard([0, 1, 63, 64][n % 4]), 0)).collect();
        for _ in 0..20 {
            for number in [0, 1, 63, 64] {
                world.append_some(shard(number), 3);
            }
            world.env.sleep(Duration::from_millis(1)).await;
        }
        world.assert_all_seen(&followers).await;
        let stats = world.reader.stats();
        assert!(stats.relaxed > 0 && stats.cell_bytes > stats.durable_bytes, "{stats:?}");
    });
}

#[test]
fn a_shard_that_is_followed_later_hears_of_a_page_that_others_have_seen() {
    in_runtime(|env| async move {
        let config = ReaderConfig { page_refresh: Duration::from_secs(3_600), ..reader_config() };
        let world = World::start(env, config).await;
        world.append(shard(0), &[b"first"]);
        world.append(shard(1), &[b"second"]);
        let first = world.follow(shard(0), 0);
        until(&world.env, "the page was read", || first.count() == 1).await;
        let second = world.follow(shard(1), 0);
        world.assert_all_seen(&[second]).await;
    });
}

#[test]
fn segments_roll_under_cursors_at_the_end_and_in_the_past() {
    in_world(|world| async move {
        world.append_some(shard(0), 5);
        world.roll(shard(0));
        // At the end of a sealed segment, before there is another one.
        let end = world.log.values(shard(0)).len() as u64;
        let mut followers = vec![world.follow(shard(0), end)];
        for _ in 0..10 {
            world.append_some(shard(0), 4);
            world.roll(shard(0));
        }
        world.append(shard(0), &[b"last"]);
        // In every old segment, in the middle of entries too.
        let end = world.log.values(shard(0)).len() as u64;
        followers.extend((0..end).step_by(3).map(|offset| world.follow(shard(0), offset)));
        world.append_some(shard(0), 3);
        world.assert_all_seen(&followers).await;
    });
}

#[test]
fn a_slow_cursor_falls_out_of_the_window_catches_up_alone_and_holds_nobody_back() {
    in_runtime(|env| async move {
        let config = ReaderConfig { window_bytes: 3_000, catch_up_window_bytes: 2_000, ..reader_config() };
        let world = World::start(env, config).await;
        world.append(shard(0), &[b"first"]);
        let fast = [world.follow(shard(0), 0)];
        let mut slow = world.cursor(shard(0), 0);
        let mut seen = values(&slow.next().await.expect("the first is there"));
        for _ in 0..10 {
            world.append_some(shard(0), 30);
            world.assert_all_seen(&fast).await;
        }
        let expected = world.log.values(shard(0));
        while seen.len() < expected.len() {
            seen.extend(values(&slow.next().await.expect("it is only slow")));
        }
        assert!(seen.into_iter().eq(expected));
        // Back in the shared window, it needs no reads of its own.
        assert!(matches!(slow.poll(), Ok(None)));
        world.append(shard(0), &[b"last"]);
        let last = slow.next().await.expect("it follows again");
        assert_eq!(values(&last)[0].1, &b"last"[..]);
    });
}

#[test]
fn one_two_and_three_backends_of_the_data_cell_are_gone_and_come_back() {
    in_world(|world| async move {
        world.append(shard(0), &[b"first"]);
        let followers: Vec<_> = (0..10).map(|_| world.follow(shard(0), 0)).collect();
        for gone in [1, 2, 3, 0, 3, 1, 0] {
            world.data.set_gone(gone);
            world.append_some(shard(0), 20);
            world.assert_all_seen(&followers).await;
        }
        let tail = world.append(shard(0), &[b"last"]);
        until(&world.env, "the cell is used again", || world.writer.cached(shard(0)) >= tail.durable).await;
        assert!(world.reader.stats().durable > 0);
    });
}

#[test]
fn the_metadata_cell_is_silent_and_lengths_come_from_the_durable_layer() {
    in_world(|world| async move {
        world.append(shard(0), &[b"first"]);
        let followers: Vec<_> = (0..10).map(|_| world.follow(shard(0), 0)).collect();
        world.assert_all_seen(&followers).await;
        for (gone, data_gone) in [(3, 0), (2, 0), (0, 0), (3, 3), (0, 0)] {
            world.metadata.set_gone(gone);
            world.data.set_gone(data_gone);
            for _ in 0..3 {
                world.append_some(shard(0), 5);
                world.assert_all_seen(&followers).await;
            }
        }
    });
}

#[test]
fn emptied_cells_cost_time_and_nothing_else() {
    in_world(|world| async move {
        world.append(shard(0), &[b"first"]);
        let followers: Vec<_> = (0..10).map(|_| world.follow(shard(0), 0)).collect();
        for round in 0..10 {
            world.append_some(shard(0), 10);
            if round % 2 == 0 {
                world.data.clear().await;
            }
            if round % 3 == 0 {
                world.metadata.clear().await;
            }
            world.append_some(shard(0), 10);
            world.assert_all_seen(&followers).await;
        }
        // The locks are written again, too: lengths go on coming from the cell.
        let before = world.writer.stats().pages_published;
        world.append(shard(0), &[b"last"]);
        until(&world.env, "pages are published", || world.writer.stats().pages_published > before).await;
    });
}

#[test]
fn without_cells_everything_comes_from_the_durable_layer() {
    in_runtime(|env| async move {
        let log = MemoryLog::new(256);
        let reader = TailReader::start(&env, None, Arc::new(log.clone()), reader_config());
        log.append(shard(0), &[b"one", b"two"]);
        let place = Place { segment: SegmentNumber(1), position: Position(0) };
        let mut cursor = Cursor::new(&reader, shard(0), place, Offset(0), Arc::default());
        assert_eq!(values(&cursor.next().await.expect("it is durable")).len(), 2);
        log.append(shard(0), &[b"three"]);
        assert_eq!(values(&cursor.next().await.expect("it is durable"))[0].1, &b"three"[..]);
    });
}

/// The bytes of some shards never come.
struct Stalled {
    shards: Range<u32>,
    /// So many bytes more than they are their tails tell of.
    more: u64,
}

impl Stalled {
    fn in_front_of(log: &MemoryLog, shards: Range<u32>, more: u64) -> Arc<dyn DurableSource> {
        Arc::new(DecoratedSource { inner: Arc::new(log.clone()), hooks: Self { shards, more } })
    }
}

impl SourceHooks for Stalled {
    fn read<'a>(
        &'a self,
        inner: &'a dyn DurableSource,
        segment: SegmentId,
        from: Position,
        len: u32,
    ) -> FromSource<'a, Bytes> {
        if self.shards.contains(&segment.shard.shard.0) {
            return Box::pin(std::future::pending());
        }
        inner.read(segment, from, len)
    }

    fn told(&self, _: StreamId, shards: &[ShardNumber], tails: &mut [Option<Tail>]) {
        let stalled = shards.iter().zip(tails).filter(|(shard, _)| self.shards.contains(&shard.0));
        for tail in stalled.filter_map(|(_, tail)| tail.as_mut()) {
            tail.durable.0 += self.more;
        }
    }
}

#[test]
fn any_number_of_cursors_that_wait_for_a_slow_durable_layer_hold_no_cursor_at_the_tail_back() {
    in_runtime(|env| async move {
        let log = MemoryLog::new(256);
        let place = Place { segment: SegmentNumber(1), position: Position(0) };
        log.append(shard(1), &[b"first"]);
        for _ in 0..100 {
            log.append(shard(0), &[&[7; 90]]);
        }
        let source = Stalled::in_front_of(&log, 0..1, 0);
        let config = ReaderConfig { window_bytes: 3_000, ..reader_config() };
        let reader = TailReader::start(&env, None, source, config);
        let mut hot = Cursor::new(&reader, shard(1), place, Offset(0), Arc::default());
        hot.next().await.expect("it is durable");
        let mut behind: Vec<_> = (0..2 * FETCHES_MAX)
            .map(|_| Cursor::new(&reader, shard(0), place, Offset(0), Arc::default()))
            .collect();
        until(&env, "they read by themselves", || {
            behind.iter_mut().all(|cursor| matches!(cursor.poll(), Ok(None)))
                && reader.stats().durable > CATCH_UP_READS_MAX as u64
        })
        .await;
        for _ in 0..FETCHES_MAX {
            log.append(shard(1), &[b"more"]);
            assert_eq!(values(&hot.next().await.expect("it is durable"))[0].1, &b"more"[..]);
        }
    });
}

#[test]
fn shards_far_behind_whose_reads_wait_for_their_turn_hold_no_shard_at_its_tail_back() {
    in_runtime(|env| async move {
        let log = MemoryLog::new(256);
        let place = Place { segment: SegmentNumber(1), position: Position(0) };
        let far = 1..TAIL_READS_MAX as u32 + 1;
        (0..far.end).for_each(|number| drop(log.append(shard(number), &[b"first"])));
        let source = Stalled::in_front_of(&log, far.clone(), WINDOW_BYTES as u64);
        // All of them are near enough for a feed that is shared.
        let config = ReaderConfig { window_bytes: 2 * WINDOW_BYTES, ..reader_config() };
        let reader = TailReader::start(&env, None, source, config);
        let cursor = |number| Cursor::new(&reader, shard(number), place, Offset(0), Arc::default());
        let mut behind: Vec<_> = far.map(cursor).collect();
        until(&env, "their reads are under way", || {
            behind.iter_mut().all(|cursor| matches!(cursor.poll(), Ok(None)))
                && reader.stats().durable >= CATCH_UP_READS_MAX as u64
        })
        .await;
        let mut hot = cursor(0);
        for _ in 0..3 {
            until(&env, "it reads", || hot.poll().expect("it is durable").is_some()).await;
            log.append(shard(0), &[b"more"]);
        }
    });
}

#[test]
fn a_source_that_is_away_is_waited_for() {
    in_world(|world| async move {
        world.append_some(shard(0), 10);
        world.data.set_gone(3);
        world.metadata.set_gone(3);
        world.log.set_available(false);
        let followers = [world.follow(shard(0), 0), world.follow(shard(0), 7)];
        world.append_some(shard(0), 10);
        world.env.sleep(Duration::from_millis(20)).await;
        assert!(followers.iter().all(|follower| follower.count() == 0));
        world.log.set_available(true);
        world.assert_all_seen(&followers).await;
    });
}

#[test]
fn who_reads_what_retention_removed_is_told_where_to_go_on() {
    in_runtime(|env| async move {
        // It reads one segment ahead and no more, so that it can't be faster than the truncation.
        let config = ReaderConfig { window_bytes: 1_000, catch_up_window_bytes: 1, ..reader_config() };
        let world = World::start(env, config).await;
        for _ in 0..5 {
            world.append_some(shard(0), 6);
            world.roll(shard(0));
        }
        world.append_some(shard(0), 6);
        let mut behind = world.cursor(shard(0), 0);
        behind.next().await.expect("it is there");
        let read = behind.next_offset();
        // Nor are removed bytes left in the cell, which would be as good as any.
        world.data.set_gone(3);
        let tail = world.log.truncate(shard(0), Offset(40));
        world.writer.update(shard(0), tail);
        let error = loop {
            match behind.next().await {
                Ok(entries) => assert!(entries.next_offset() > read),
                Err(error) => break error,
            }
        };
        assert_eq!(error, FeedReadError::Truncated { log_start: Offset(40) });
        let go_on = world.follow(shard(0), 40);
        world.append_some(shard(0), 2);
        world.assert_all_seen(&[go_on]).await;
    });
}

#[test]
fn a_deleted_stream_is_told_by_the_page_or_by_the_source() {
    in_runtime(|env| async move {
        for metadata_is_gone in [false, true] {
            let world = World::start(env.clone(), reader_config()).await;
            world.append_some(shard(0), 3);
            let followers = [world.follow(shard(0), 0), world.follow(shard(0), 3)];
            world.assert_all_seen(&followers).await;
            if metadata_is_gone {
                world.metadata.set_gone(3);
            }
            world.log.delete_stream(shard(0).stream);
            world.writer.delete_stream(shard(0).stream);
            for follower in &followers {
                until(&world.env, "it is told", || follower.seen.lock().error.is_some()).await;
                assert_eq!(follower.seen.lock().error, Some(FeedReadError::StreamDeleted));
            }
        }
    });
}

#[test]
fn a_shard_that_the_source_refuses_is_an_error_for_its_readers_and_the_others_of_its_page_go_on() {
    in_world(|world| async move {
        world.append_some(shard(0), 3);
        world.append_some(shard(1), 3);
        let [at_its_end, other] = [0, 1].map(|number| world.follow(shard(number), 0));
        until(&world.env, "it is at the end", || at_its_end.count() == 6).await;
        // From here on lengths, and bytes, come from the source alone.
        world.metadata.set_gone(3);
        world.data.set_gone(3);
        world.log.refuse(shard(0));
        let in_the_past = world.follow(shard(0), 0);
        world.append_some(shard(1), 3);
        world.assert_all_seen(&[other]).await;
        for follower in [at_its_end, in_the_past] {
            until(&world.env, "it is told", || follower.seen.lock().error.is_some()).await;
            assert_eq!(follower.seen.lock().error, Some(FeedReadError::Refused("damaged".to_owned())));
        }
    });
}

#[test]
fn a_second_writer_takes_the_page_over_and_cursors_go_on() {
    in_world(|world| async move {
        world.append_some(shard(0), 3);
        let followers = [world.follow(shard(0), 0)];
        world.assert_all_seen(&followers).await;
        // The first one goes on publishing what it knew until it notices.
        let cells = Cells {
            data: world.data.again(DATA, 3).await,
            metadata: world.metadata.again(METADATA, 3).await,
        };
        let second = TailWriter::start_with(&world.env, Some(cells), writer_config());
        second.open(shard(0), world.log.roll_with_new_term(shard(0)));
        let mut last = None;
        for _ in 0..20 {
            let appended = world.log.append(shard(0), &[&[7; 300]]);
            let (durable, now) = (DurableTo::new(appended.tail.durable), world.env.now());
            second.extend(appended.segment, &appended.bytes, durable, appended.tail, now);
            last = Some(appended.tail.durable);
            world.env.sleep(Duration::from_millis(2)).await;
        }
        world.assert_all_seen(&followers).await;
        until(&world.env, "the second one caches", || second.cached(shard(0)) >= last.expect("20 of them"))
            .await;
    });
}

#[test]
fn records_that_were_lost_and_replaced_are_delivered_again_in_a_higher_term() {
    in_world(|world| async move {
        world.append(shard(0), &[b"kept"]);
        world.roll(shard(0));
        world.append(shard(0), &[b"lost"]);
        let mut cursor = world.cursor(shard(0), 0);
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.extend(values(&cursor.next().await.expect("it is there")));
        }
        let tail = world.log.lose(shard(0), Position(0)).expect("the kept one is there");
        world.writer.open(shard(0), tail);
        world.append(shard(0), &[b"replaced", b"more"]);
        while seen.len() < 4 {
            seen.extend(values(&cursor.next().await.expect("it is there")));
        }
        let seen: Vec<_> = seen.iter().map(|(offset, value)| (offset.0, &value[..])).collect();
        assert_eq!(seen, [(0, &b"kept"[..]), (1, b"lost"), (1, b"replaced"), (2, b"more")]);
    });
}

#[test]
fn cursors_that_come_and_go_at_once_leave_a_feed_to_whoever_stays() {
    in_runtime(|env| async move {
        let world = Arc::new(World::start(env, reader_config()).await);
        world.append_some(shard(0), 5);
        let mut tasks = Vec::new();
        let ended = Arc::new(Mutex::new(0));
        for n in 0..8_u64 {
            let (world, ended) = (Arc::clone(&world), Arc::clone(&ended));
            let env = world.env.clone();
            tasks.push(env.spawn("coming and going", async move {
                for round in 0..50 {
                    let mut cursor = world.cursor(shard(0), (n + round) % 5);
                    assert!(!values(&cursor.next().await.expect("it is there")).is_empty());
                }
                *ended.lock() += 1;
            }));
        }
        until(&world.env, "all have read", || *ended.lock() == 8).await;
        drop(tasks);
        let state = world.reader.inner.followed_shards();
        assert_eq!(state, 0, "nothing is left behind");
    });
}

#[test]
fn one_waiter_is_woken_by_any_of_its_shards() {
    in_world(|world| async move {
        let waiter = Arc::new(Waiter::default());
        let mut cursors = Vec::new();
        for number in 0..20 {
            world.append(shard(number), &[b"first"]);
            let place = Place { segment: SegmentNumber(1), position: Position(0) };
            cursors.push(Cursor::new(&world.reader, shard(number), place, Offset(0), Arc::clone(&waiter)));
        }
        let mut count = 0;
        for round in 0..5 {
            for number in 0..20 {
                world.append(shard((number * 7) % 20), &[b"more"]);
            }
            while count < 20 * (round + 2) {
                waiter.arm();
                let before = count;
                for cursor in &mut cursors {
                    while let Some(entries) = cursor.poll().expect("it is there") {
                        count += values(&entries).len();
                    }
                }
                if count == before {
                    waiter.woken().await;
                }
            }
        }
        assert_eq!(count, 120);
    });
}

#[test]
fn what_a_copy_showed_before_it_was_durable_and_got_again_is_seen_once() {
    in_runtime(|env| async move {
        let patient = Duration::from_secs(600);
        let config = ReaderConfig { delay_max: patient, silent_after: patient, ..reader_config() };
        let world = World::start(env, config).await;
        let durable = world.append(shard(0), &[b"first"]);
        let follower = world.follow(shard(0), 0);
        until(&world.env, "the first one is seen", || follower.count() == 1).await;
        for value in [b"second", b"third."] {
            let taken = world.log.append(shard(0), &[value]);
            let now = world.env.now();
            let source_durable = DurableTo::new(taken.tail.durable);
            world.writer.extend_ahead(taken.segment, &taken.bytes, source_durable, now);
        }
        until(&world.env, "what is ahead is seen", || follower.count() == 3).await;
        assert_eq!(world.reader.stats().durable_bytes, 0, "it came from the cell");
        // The copy is killed, and goes on in the next segment with what it had shown.
        let cut = world.log.lose_in_term(shard(0), durable.durable).expect("a part of it is left");
        assert!(cut.sealed && world.writer.cached(shard(0)) > cut.durable);
        world.writer.update(shard(0), cut);
        assert_eq!(world.writer.cached(shard(0)), cut.durable, "what is sealed ends where it is sealed");
        for value in [b"second", b"third.", b"fourth"] {
            world.append(shard(0), &[value]);
        }
        world.assert_all_seen(&[follower]).await;
    });
}
