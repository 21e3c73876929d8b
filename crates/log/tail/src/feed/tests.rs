use std::collections::BTreeSet;

use bytes::BytesMut;
use proptest::prelude::*;
use tailwater_format::{ShardNumber, StreamId};

use super::*;
use crate::testing::{MemoryAppended, MemoryLog};

mod fed;
mod shared;

const CHUNK: u32 = 64;
const DELAY: Duration = Duration::from_secs(1);
/// Bytes a second where no test is about them.
const RATE: u64 = 1 << 30;

fn shard() -> ShardId {
    ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) }
}

fn config(shared: bool, window_bytes: usize) -> FeedConfig {
    FeedConfig { window_bytes, delay_max: DELAY, catch_up_bytes_per_s: RATE, shared }
}

/// A feed over a log in memory. Fetches are answered at once: from the cell with what the log holds, or, if the
/// range is among the damaged, with something else.
struct Rig {
    log: MemoryLog,
    feed: Feed,
    budget: RateBudget,
    now: Instant,
    cell_is_damaged: bool,
    durable_fails: bool,
    cell_fetches: u32,
    fetched_bytes: u64,
    durable_fetches: u32,
    listings: u32,
}

/// One reader of the feed.
struct Reader {
    seen: Option<u64>,
    place: Place,
    offsets: Vec<u64>,
}

impl Reader {
    fn at(place: Place) -> Self {
        Self { seen: None, place, offsets: Vec::new() }
    }

    /// Takes what is there; the last look.
    fn drain(&mut self, feed: &mut Feed) -> Look {
        loop {
            match feed.look(self.seen, self.place) {
                Look::Block(number, block) => {
                    self.seen = Some(number);
                    self.place = Place { segment: block.segment.number, position: block.end };
                    for entry in block.entries() {
                        let header = entry.header;
                        self.offsets.extend(header.base_offset.0..header.next_offset().0);
                    }
                    if !feed.config.shared {
                        feed.release(number);
                    }
                }
                look => return look,
            }
        }
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(Feed::shared(shard(), config(true, 1 << 20)))
    }

    /// A shared feed with a small window.
    fn narrow() -> Self {
        Self::with(Feed::shared(shard(), config(true, 2_000)))
    }

    fn with(feed: Feed) -> Self {
        Self::limited(feed, RATE)
    }

    /// A feed whose process reads so many bytes a second in all.
    fn limited(feed: Feed, bytes_per_s: u64) -> Self {
        let budget = RateBudget::new(bytes_per_s, feed.config.catch_up_bytes_per_s, Instant::default());
        Self {
            log: MemoryLog::new(CHUNK),
            feed,
            budget,
            now: Instant::default(),
            cell_is_damaged: false,
            durable_fails: false,
            cell_fetches: 0,
            durable_fetches: 0,
            fetched_bytes: 0,
            listings: 0,
        }
    }

    fn tail(&self) -> Tail {
        self.log.tail(shard()).expect("something was appended")
    }

    fn append(&mut self, records: usize) -> MemoryAppended {
        self.log.append(shard(), &vec![&[7_u8; 40][..]; records])
    }

    /// Publishes the log's tail with all of it cached.
    fn publish(&mut self) {
        let tail = self.tail();
        self.feed.observe(Tail { cached: tail.durable, ..tail });
    }

    /// Publishes the log's tail with nothing cached.
    fn publish_uncached(&mut self) {
        self.feed.observe(self.tail());
    }

    /// A feed of so many records, which has begun at the first and read all of them.
    fn begun(records: usize) -> Self {
        let mut rig = Self::new();
        rig.append(records);
        rig.begin();
        rig
    }

    /// Publishes the log's tail, and begins at its start, unless it has begun or that is too far; until when the feed
    /// waits then.
    fn begin(&mut self) -> Option<Instant> {
        self.publish();
        self.feed.begin_near(start());
        self.run()
    }

    /// The same, where the feed has begun.
    fn go_on(&mut self) -> Option<Instant> {
        self.publish();
        self.run()
    }

    /// What a new reader sees from the start on.
    fn read(&mut self) -> Vec<u64> {
        let mut reader = Reader::at(start());
        reader.drain(&mut self.feed);
        reader.offsets
    }

    /// Plans and answers until the feed waits; until when.
    fn run(&mut self) -> Option<Instant> {
        for _ in 0..10_000 {
            self.unpark();
            match self.plan() {
                FeedPlan::Wait { at } => {
                    assert!(at.is_none_or(|at| at > self.now), "a feed that waits for the past spins");
                    return at;
                }
                plan => self.answer(plan),
            }
        }
        panic!("the feed spins: {:?}", self.feed);
    }

    /// Takes what a window said, as far as it can be taken now.
    fn unpark(&mut self) -> News {
        let mut all = News::default();
        while let Some(unparked) = self.feed.unpark(self.now).expect("it is what a window says") {
            let Unparked::Block(news) = unparked else { panic!("no tail is said here") };
            all = News { announce: true, entry_bytes: all.entry_bytes + news.entry_bytes };
        }
        all
    }

    /// What the feed wants next. It is the only one in its line.
    fn plan(&mut self) -> FeedPlan {
        let plan = self.feed.plan(self.now, &mut self.budget, None);
        let FeedPlan::Line(line) = plan else { return plan };
        match self.budget.is_ready(line, 1, self.now) {
            Ok(granted) => self.feed.plan(self.now, &mut self.budget, Some(granted)),
            Err(pause) => FeedPlan::Wait { at: Some(self.now + pause) },
        }
    }

    fn answer(&mut self, plan: FeedPlan) {
        match plan {
            FeedPlan::Wait { .. } => {}
            FeedPlan::Line(line) => panic!("{line:?} was waited for"),
            FeedPlan::Fetch { durable: true, .. } if self.durable_fails => {
                let error = SourceError::Unavailable("a test".to_owned());
                self.feed.failed(self.now, error, &mut self.budget);
            }
            FeedPlan::Fetch { range, durable } => {
                assert!(range.from < range.to && range.len() <= FETCH_BYTES_MAX, "{range:?}");
                *(if durable { &mut self.durable_fetches } else { &mut self.cell_fetches }) += 1;
                self.fetched_bytes += range.len();
                let mut bytes = BytesMut::from(&self.log.bytes(range.segment, range.from, range.to)[..]);
                if bytes.len() as u64 != range.len() {
                    let error = self.log.read_some(range.segment, range.to, 1).expect_err("it is not there");
                    self.feed.failed(self.now, error, &mut self.budget);
                    return;
                }
                if !durable && self.cell_is_damaged {
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 0x5a;
                }
                self.feed.fetched(&range, bytes.freeze(), durable);
            }
            FeedPlan::Segments { from } => {
                self.listings += 1;
                match self.log.list(shard(), from) {
                    Ok(segments) => drop(self.feed.listed(self.now, from, &segments)),
                    Err(error) => drop(self.feed.failed(self.now, error, &mut self.budget)),
                }
            }
        }
    }

    /// Lets time pass until the feed waits for nothing any more.
    fn run_for_long(&mut self) {
        for _ in 0..1_000 {
            match self.run() {
                Some(at) => self.now = at,
                None => return,
            }
        }
        panic!("the feed waits for ever: {:?}", self.feed);
    }
}

fn start() -> Place {
    Place { segment: SegmentNumber(1), position: Position(0) }
}

#[test]
fn what_is_cached_is_read_from_the_cell_and_seen_once_and_in_order() {
    let mut rig = Rig::new();
    let mut reader = Reader::at(start());
    for round in 1..20 {
        rig.append(3);
        assert_eq!(rig.begin(), None);
        assert!(matches!(reader.drain(&mut rig.feed), Look::Front));
        assert_eq!(reader.offsets.len(), 3 * round);
    }
    assert!(reader.offsets.iter().copied().eq(0..57));
    assert_eq!((rig.durable_fetches, rig.listings), (0, 0));
}

#[test]
fn an_entry_whose_bytes_come_in_parts_is_seen_when_it_is_whole() {
    let mut rig = Rig::new();
    let tail = rig.append(10).tail;
    let mut reader = Reader::at(start());
    for cached in (0..=tail.durable.0).step_by(7).chain([tail.durable.0]) {
        rig.feed.observe(Tail { cached: Position(cached), ..tail });
        rig.feed.begin_near(start());
        rig.run();
        reader.drain(&mut rig.feed);
        assert_eq!(reader.offsets.len(), if cached == tail.durable.0 { 10 } else { 0 }, "{cached}");
    }
}

#[test]
fn a_control_entry_moves_the_place_and_is_not_seen() {
    let mut rig = Rig::new();
    rig.append(0);
    rig.append(2);
    rig.append(0);
    rig.begin();
    let mut reader = Reader::at(start());
    reader.drain(&mut rig.feed);
    assert_eq!(reader.offsets, [0, 1]);
    assert_eq!(reader.place.position, rig.tail().durable);
}

#[test]
fn a_segment_is_left_at_its_sealed_length_for_the_next_one() {
    let mut rig = Rig::new();
    let mut reader = Reader::at(start());
    rig.append(2);
    rig.publish();
    rig.feed.begin_near(start());
    for _ in 0..5 {
        rig.append(2);
        rig.log.roll(shard());
        rig.append(1);
        rig.go_on();
        reader.drain(&mut rig.feed);
    }
    assert!(reader.offsets.iter().copied().eq(0..17), "{:?}", reader.offsets);
    assert_eq!(rig.listings, 0, "tails tell of the segment before");
}

#[test]
fn segments_that_rolled_unseen_are_asked_of_the_durable_layer() {
    let mut rig = Rig::new();
    let mut reader = Reader::at(start());
    rig.append(2);
    rig.begin();
    for _ in 0..4 {
        rig.log.roll(shard());
        rig.append(3);
    }
    rig.go_on();
    reader.drain(&mut rig.feed);
    assert!(reader.offsets.iter().copied().eq(0..14), "{:?}", reader.offsets);
    assert_eq!(rig.listings, 1);
}

#[test]
fn a_number_that_is_left_out_is_taken_for_no_removal() {
    let mut rig = Rig::begun(2);
    rig.log.roll(shard());
    rig.log.leave_number_out(shard());
    rig.append(3);
    rig.go_on();
    assert_eq!(rig.listings, 1);
    assert_eq!(rig.feed.log_start(), Offset(0), "nothing was removed");
    assert!(rig.read().iter().copied().eq(0..5), "one that has yet to read the first segment does so");
}

#[test]
fn records_that_come_again_behind_a_number_that_is_left_out_are_taken_for_no_removal() {
    let mut rig = Rig::begun(2);
    let durable = rig.tail().durable;
    rig.append(3);
    rig.go_on();
    // A copy had shown them before they were on its disk, and was killed.
    rig.log.lose_in_term(shard(), durable);
    rig.log.leave_number_out(shard());
    rig.append(3);
    rig.go_on();
    assert_eq!((rig.listings, rig.feed.log_start()), (1, Offset(0)));
    assert!(rig.read().iter().copied().eq((0..5).chain(2..5)), "{:?}", rig.read());
}

#[test]
fn a_reader_at_the_end_of_a_sealed_segment_finds_the_next_one() {
    for looks_in_between in [false, true] {
        let mut rig = Rig::new();
        rig.append(4);
        let tail = rig.log.roll(shard());
        let end = Place { segment: tail.segment, position: tail.durable };
        let mut reader = Reader::at(end);
        rig.publish();
        assert!(rig.feed.begin_near(end));
        rig.run();
        if looks_in_between {
            assert!(matches!(reader.drain(&mut rig.feed), Look::Front));
        }
        rig.append(2);
        rig.go_on();
        assert!(matches!(reader.drain(&mut rig.feed), Look::Front));
        assert_eq!(reader.offsets, [4, 5]);
    }
}

#[test]
fn what_is_put_into_no_cell_is_read_from_the_durable_layer_at_once_and_the_cell_is_not_asked() {
    let mut rig = Rig::new();
    let mut reader = Reader::at(start());
    for round in 1..=3 {
        let tail = rig.append(2).tail;
        rig.feed.observe(Tail { cells: false, ..tail });
        rig.feed.begin_near(start());
        rig.run();
        reader.drain(&mut rig.feed);
        assert_eq!(reader.offsets.len(), 2 * round);
    }
    rig.log.roll(shard());
    let tail = rig.append(2).tail;
    rig.feed.observe(Tail { cells: false, ..tail });
    rig.run();
    reader.drain(&mut rig.feed);
    assert!(reader.offsets.iter().copied().eq(0..8));
    assert_eq!((rig.now, rig.cell_fetches), (Instant::default(), 0), "nothing was waited for");
}

#[test]
fn a_cache_that_is_late_is_waited_for_and_then_left() {
    let mut rig = Rig::new();
    rig.append(2);
    rig.publish_uncached();
    rig.feed.begin_near(start());
    let deadline = rig.run().expect("there is something to wait for");
    assert_eq!(deadline, rig.now + DELAY);
    rig.now = deadline;
    rig.run();
    assert_eq!((rig.cell_fetches, rig.durable_fetches), (0, 1));
    assert_eq!(rig.read(), [0, 1]);
}

#[test]
fn a_late_cache_that_trickles_is_left_all_the_same() {
    let mut rig = Rig::new();
    rig.append(200);
    let tail = rig.tail();
    rig.feed.observe(tail);
    rig.feed.begin_near(start());
    rig.run();
    rig.now = rig.now + DELAY;
    // At the very moment at which the wait is over there is something cached, too.
    rig.feed.observe(Tail { cached: Position(100), ..tail });
    rig.run();
    assert_eq!((rig.cell_fetches, rig.durable_fetches), (1, 1));
}

/// An idle file after a restart: its node's cell has nothing of it, and never will.
#[test]
fn a_file_that_a_new_reader_finds_far_ahead_of_its_cell_is_read_without_waiting_for_it() {
    let mut rig = Rig::with(Feed::shared(shard(), config(true, 1 << 24)));
    while rig.log.tail(shard()).is_none_or(|tail| tail.durable.0 <= 2 * FETCH_BYTES_MAX) {
        rig.append(1_000);
    }
    rig.publish_uncached();
    assert!(rig.feed.begin_near(start()), "the window holds it");
    rig.run_for_long();
    assert!(rig.now < Instant::default() + DELAY, "nothing but the rate was waited for: {:?}", rig.now);
    let length = rig.tail().durable;
    assert_eq!(rig.feed.place().map(|place| place.position), Some(length), "all was read");
    // What comes now is waited for as ever.
    rig.append(1);
    rig.publish_uncached();
    assert_eq!(rig.run(), Some(rig.now + DELAY));
}

/// A restart: the writer brings the end of the segment back while a reader is already at it.
#[test]
fn what_comes_back_into_a_cell_that_was_given_up_is_read_from_there() {
    let mut rig = Rig::with(Feed::shared(shard(), config(true, 1 << 24)));
    while rig.log.tail(shard()).is_none_or(|tail| tail.durable.0 <= 2 * FETCH_BYTES_MAX) {
        rig.append(1_000);
    }
    rig.publish_uncached();
    assert!(rig.feed.begin_near(start()), "the window holds it");
    let plan = rig.plan();
    assert!(matches!(plan, FeedPlan::Fetch { durable: true, .. }), "{plan:?}");
    rig.answer(plan);
    rig.publish();
    rig.run_for_long();
    let length = rig.log.tail(shard()).expect("it is there").durable;
    assert_eq!(rig.feed.place().map(|place| place.position), Some(length), "all was read");
    assert_eq!(rig.durable_fetches, 1);
    assert!(rig.cell_fetches > 0);
}

/// A takeover, an eviction: the cell had been there before, and is far behind for once.
#[test]
fn a_cell_that_falls_far_behind_is_waited_for_once_and_not_before_each_piece() {
    let mut rig = Rig::limited(Feed::shared(shard(), config(true, 1 << 24)), 1 << 18);
    rig.append(1);
    rig.begin();
    while rig.log.tail(shard()).is_none_or(|tail| tail.durable.0 <= 1 << 20) {
        rig.append(1_000);
    }
    rig.publish_uncached();
    rig.run_for_long();
    let length = rig.tail().durable;
    assert_eq!(rig.feed.place().map(|place| place.position), Some(length), "all was read");
    assert!(rig.durable_fetches >= 4, "the limit makes pieces of it: {}", rig.durable_fetches);
    // A second for the cell, four for the limit, and no second for each piece.
    assert!(rig.now < Instant::default() + DELAY * 7, "{:?}", rig.now);
}

#[test]
fn a_rate_limit_does_not_make_the_wait_for_the_cache_begin_anew() {
    let mut rig = Rig::limited(Feed::shared(shard(), config(true, 1 << 20)), 1_000);
    rig.append(100);
    rig.begin();
    rig.append(1);
    rig.publish_uncached();
    let paused = rig.run().expect("the cache is waited for");
    assert_eq!(paused, rig.now + DELAY);
    rig.now = paused;
    let limited = rig.run().expect("the first fetch has to be paid for");
    rig.now = limited;
    assert_eq!(rig.run(), None);
    assert_eq!(rig.durable_fetches, 1);
}

const CATCH_UP_BYTES_PER_S: u64 = 1 << 20;

fn catching_up(shared: bool) -> FeedConfig {
    FeedConfig { catch_up_bytes_per_s: CATCH_UP_BYTES_PER_S, ..config(shared, 1 << 24) }
}

#[test]
fn a_backlog_is_read_as_slowly_by_a_shared_feed_as_by_a_private_one() {
    let read = |feed: Feed| {
        let mut rig = Rig::with(feed);
        for _ in 0..400 {
            rig.append(100);
        }
        rig.publish();
        assert!(rig.feed.place().is_some() || rig.feed.begin_near(start()), "the window holds it");
        let begun = rig.now;
        rig.run_for_long();
        let length = rig.tail().durable;
        assert_eq!(rig.feed.place().map(|place| place.position), Some(length), "all was read");
        // The first of it was heard of before anything was read: a bucket's worth is free, and the last read overdraws.
        let paid = length.0.saturating_sub(CATCH_UP_BYTES_PER_S / 16 + CATCH_UP_STEP_BYTES);
        let took = rig.now.since(begun);
        assert!(paid > CATCH_UP_BYTES_PER_S, "{paid} bytes are a second's worth");
        assert!(took >= Duration::from_secs(paid / CATCH_UP_BYTES_PER_S), "{paid} bytes in {took:?}");
        took
    };
    let shared = read(Feed::shared(shard(), catching_up(true)));
    let alone = read(Feed::private(shard(), catching_up(false), start(), None));
    assert_eq!(shared, alone);
}

/// A takeover: another node goes on in a later term. Its cell has nothing of what was before, and not yet what is new.
#[test]
fn a_reader_that_is_behind_when_another_node_takes_its_shard_over_goes_on_at_the_catch_up_rate() {
    const EACH: u64 = 4 * CATCH_UP_BYTES_PER_S;
    let feeds =
        [Feed::shared(shard(), catching_up(true)), Feed::private(shard(), catching_up(false), start(), None)];
    for feed in feeds {
        let mut rig = Rig::with(feed);
        let grow = |rig: &Rig| {
            while rig.log.tail(shard()).is_none_or(|tail| tail.durable.0 < EACH) {
                rig.log.append(shard(), &[&[7; 40][..]; 100]);
            }
        };
        grow(&rig);
        rig.publish();
        assert!(rig.feed.place().is_some() || rig.feed.begin_near(start()), "the window holds it");
        let begun = rig.now;
        while rig.fetched_bytes < EACH / 2 {
            rig.now = rig.run().expect("the rate is in its way");
        }
        rig.log.roll_with_new_term(shard());
        rig.append(1);
        grow(&rig);
        rig.publish_uncached();
        rig.run_for_long();
        let tail = rig.tail();
        assert_eq!(
            rig.feed.place(),
            Some(Place { segment: tail.segment, position: tail.durable }),
            "all was read"
        );
        // A bucket's worth is free, and the last read overdraws.
        let paid = rig.fetched_bytes - CATCH_UP_BYTES_PER_S / 16 - CATCH_UP_STEP_BYTES;
        let worth = Duration::from_secs_f64(paid as f64 / CATCH_UP_BYTES_PER_S as f64);
        let took = rig.now.since(begun);
        assert!(took >= worth, "{paid} bytes in {took:?}");
        // The new cell is waited for once, and not before each of many pieces.
        assert!(rig.durable_fetches > 4 && took < worth + DELAY * 2, "{paid} bytes in {took:?}");
    }
}

#[test]
fn what_is_written_meanwhile_does_not_count_as_a_backlog() {
    let mut rig = Rig::with(Feed::shared(shard(), catching_up(true)));
    rig.append(1);
    rig.begin();
    assert!(rig.feed.place().is_some());
    let begun = rig.now;
    // A bucket's worth at a time, and several seconds' worth in no time at all.
    while rig.tail().durable.0 < 4 * CATCH_UP_BYTES_PER_S {
        rig.append(10);
        assert_eq!(rig.go_on(), None, "nothing is held back");
    }
    assert_eq!(rig.now, begun);
}

#[test]
fn what_many_segments_got_meanwhile_does_not_count_as_a_backlog() {
    let mut rig = Rig::with(Feed::shared(shard(), catching_up(true)));
    rig.append(1);
    rig.begin();
    assert!(rig.feed.place().is_some());
    let mut read = 0;
    while read < 4 * CATCH_UP_BYTES_PER_S {
        rig.append(10);
        read += rig.tail().durable.0;
        rig.log.roll(shard());
        assert_eq!(rig.go_on(), None, "nothing is held back");
    }
}

#[test]
fn without_a_metadata_cell_nothing_is_waited_for() {
    let mut rig = Rig::new();
    rig.append(2);
    rig.publish_uncached();
    rig.feed.begin_near(start());
    assert!(rig.feed.set_silent(true));
    assert_eq!(rig.run(), None);
    assert_eq!(rig.read(), [0, 1]);
}

#[test]
fn lengths_that_go_back_change_nothing() {
    let mut rig = Rig::new();
    let old = rig.append(2).tail;
    rig.append(2);
    rig.begin();
    let known = rig.feed.tail();
    for stale in [old, Tail { cached: Position(0), ..old }, Tail { durable: Position(0), ..old }] {
        assert!(!rig.feed.observe(stale));
    }
    assert_eq!(rig.feed.tail(), known);
    rig.log.roll(shard());
    rig.append(1);
    rig.publish();
    assert!(!rig.feed.observe(old), "the tail of an old segment");
}

#[test]
fn two_writers_that_publish_in_turn_are_survived() {
    let mut rig = Rig::new();
    let mut reader = Reader::at(start());
    let mut behind = rig.append(1).tail;
    rig.feed.observe(behind);
    rig.feed.begin_near(start());
    for round in 0..50 {
        let tail = rig.append(1).tail;
        rig.feed.observe(Tail { cached: tail.durable, ..tail });
        rig.run();
        rig.feed.observe(Tail { cached: Position(behind.durable.0 / 2), ..behind });
        rig.run();
        reader.drain(&mut rig.feed);
        if round % 7 == 0 {
            behind = tail;
        }
    }
    assert!(reader.offsets.iter().copied().eq(0..51));
}

#[test]
fn impossible_tails_are_ignored() {
    let mut rig = Rig::new();
    let tail = rig.append(1).tail;
    for impossible in [
        Tail { chunk_bytes: 0, ..tail },
        Tail { durable: Position(u64::MAX), ..tail },
        Tail { cached: Position(u64::MAX), ..tail },
        Tail { segment: SegmentNumber(u64::MAX), ..tail },
        Tail { next_offset: Offset(u64::MAX), ..tail },
    ] {
        assert!(!rig.feed.observe(impossible));
        assert_eq!(rig.feed.tail(), None);
    }
}

#[test]
fn cached_bytes_that_make_no_sense_are_read_from_the_durable_layer() {
    let mut rig = Rig::new();
    rig.append(3);
    rig.publish();
    rig.feed.begin_near(start());
    rig.cell_is_damaged = true;
    rig.run();
    assert_eq!((rig.cell_fetches, rig.durable_fetches), (1, 1));
    assert_eq!(rig.read(), [0, 1, 2]);
    rig.cell_is_damaged = false;
    rig.append(1);
    rig.go_on();
    assert_eq!((rig.cell_fetches, rig.durable_fetches), (2, 1), "the cell is believed again");
}

#[test]
fn damage_in_the_durable_layer_is_an_error_behind_what_can_be_read() {
    let mut rig = Rig::new();
    rig.append(2);
    let bad = rig.append(2);
    rig.append(2);
    rig.log.damage(bad.segment, Position(bad.from.0 + bad.bytes.len() as u64 - 1));
    assert_eq!(rig.begin(), None);
    let mut reader = Reader::at(start());
    let look = reader.drain(&mut rig.feed);
    let Look::Failed(FeedReadError::Corrupt { segment, position, .. }) = look else { panic!("{look:?}") };
    assert_eq!((segment, position), (bad.segment, bad.from));
    assert_eq!(reader.offsets, [0, 1]);
}

#[test]
fn an_entry_that_ends_behind_its_sealed_segment_is_an_error_and_not_left_out() {
    let mut rig = Rig::new();
    rig.append(2);
    let last = rig.append(2);
    let tail = rig.log.roll(shard());
    let short = Position(last.from.0 + 10);
    rig.feed.observe(Tail { cached: short, durable: short, ..tail });
    rig.feed.begin_near(start());
    rig.run();
    let mut reader = Reader::at(start());
    let look = reader.drain(&mut rig.feed);
    assert!(matches!(look, Look::Failed(FeedReadError::Corrupt { .. })), "{look:?}");
    assert_eq!(reader.offsets, [0, 1]);
}

#[test]
fn who_falls_behind_what_retention_removed_is_told_and_the_feed_goes_on() {
    let mut rig = Rig::with(Feed::private(shard(), config(false, 1), start(), None));
    for _ in 0..4 {
        rig.append(2);
        rig.log.roll(shard());
    }
    rig.go_on();
    let mut reader = Reader::at(start());
    reader.drain(&mut rig.feed);
    assert_eq!(reader.offsets, [0, 1]);
    rig.append(2);
    rig.log.truncate(shard(), Offset(6));
    rig.publish();
    rig.run_for_long();
    assert_eq!(rig.feed.log_start(), Offset(6), "who reads at 2 is told so");
    while matches!(reader.drain(&mut rig.feed), Look::Front) && reader.offsets.last() != Some(&9) {
        rig.run_for_long();
    }
    assert_eq!(reader.offsets, [0, 1, 6, 7, 8, 9]);
}

#[test]
fn a_segment_that_is_removed_behind_its_reader_is_no_truncation() {
    let mut rig = Rig::begun(3);
    let mut reader = Reader::at(start());
    reader.drain(&mut rig.feed);
    // Two segments further, and what was read is removed: the end of its segment can't be asked any more.
    rig.log.roll(shard());
    rig.append(1);
    rig.log.roll(shard());
    rig.append(1);
    rig.log.truncate(shard(), Offset(3));
    rig.publish();
    rig.run_for_long();
    assert_eq!(rig.feed.log_start(), Offset(3));
    assert!(matches!(reader.drain(&mut rig.feed), Look::Front));
    assert_eq!(reader.offsets, [0, 1, 2, 3, 4]);
}

#[test]
fn a_deleted_stream_ends_everything_at_once() {
    let mut rig = Rig::begun(3);
    rig.feed.observe_deleted();
    assert_eq!(rig.run(), None);
    let look = rig.feed.look(None, start());
    assert!(matches!(look, Look::Failed(FeedReadError::StreamDeleted)), "old bytes are not shown: {look:?}");
}

#[test]
fn a_source_that_fails_is_asked_again_after_a_pause_that_grows_up_to_a_bound() {
    let mut rig = Rig::new();
    rig.append(1);
    rig.publish_uncached();
    rig.feed.begin_near(start());
    rig.durable_fails = true;
    rig.now = rig.run().expect("the cache is waited for");
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let at = rig.run().expect("it will be asked again");
        pauses.push(at.since(rig.now).as_millis());
        rig.now = at;
        // The layer's delay may pass in between; the pause is what counts here.
        if rig.feed.retry_at.is_none() {
            pauses.pop();
        }
    }
    assert!(
        pauses.is_sorted() && pauses.contains(&50) && pauses.iter().all(|pause| *pause <= 1_000),
        "{pauses:?}"
    );
    rig.durable_fails = false;
    rig.run_for_long();
    assert!(matches!(rig.feed.look(None, start()), Look::Block(0, _)));
}

#[test]
fn what_a_source_did_not_give_is_not_paid_for() {
    let limit = FeedConfig { catch_up_bytes_per_s: 1_000, ..config(false, 1 << 20) };
    let mut rig = Rig::limited(Feed::private(shard(), limit, start(), None), 1_000);
    rig.append(100);
    rig.publish_uncached();
    rig.durable_fails = true;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        pauses.push(rig.run().expect("it will be asked again").since(rig.now));
        rig.now = rig.now + pauses[pauses.len() - 1];
    }
    // Seconds, had one of them been paid for: it is the source alone that is waited for.
    assert!(pauses.iter().all(|pause| *pause <= DELAY), "{pauses:?}");
    rig.durable_fails = false;
    rig.run();
    assert_eq!(rig.durable_fetches, 1);
}

#[test]
fn a_listing_that_does_not_help_is_repeated_after_a_pause() {
    let mut rig = Rig::with(Feed::private(shard(), config(false, 1 << 20), start(), None));
    rig.append(1);
    for _ in 0..3 {
        rig.log.roll(shard());
        rig.append(1);
    }
    rig.publish();
    let FeedPlan::Segments { from } = rig.plan() else { panic!("it knows nothing of segment 1") };
    let stale = SourceSegment {
        number: from,
        term: Term(1),
        base_offset: Offset(0),
        length: Position(10),
        sealed: false,
    };
    rig.feed.listed(rig.now, from, &[stale]);
    assert!(matches!(rig.plan(), FeedPlan::Wait { at: Some(_) }));
    rig.now = rig.now + DELAY;
    assert_eq!(rig.plan(), FeedPlan::Segments { from });
    rig.feed.listed(rig.now, from, &[]);
    assert!(matches!(rig.plan(), FeedPlan::Wait { at: Some(_) }));
}

#[test]
fn a_number_that_is_used_again_is_read_from_its_beginning() {
    let mut rig = Rig::begun(3);
    let mut reader = Reader::at(start());
    reader.drain(&mut rig.feed);
    // With durability `interval`, what was published can be lost; its number and offsets are given again.
    rig.log.lose(shard(), Position(0));
    rig.append(5);
    rig.go_on();
    assert!(matches!(reader.drain(&mut rig.feed), Look::Front));
    assert_eq!(reader.offsets, [0, 1, 2, 0, 1, 2, 3, 4]);
}

#[test]
fn a_segment_that_was_sealed_shorter_than_it_was_seen_is_left() {
    let mut rig = Rig::new();
    let first = rig.append(3);
    rig.append(3);
    rig.begin();
    let end = Position(first.bytes.len() as u64);
    rig.feed.observe(rig.log.lose(shard(), end).expect("a part of it is left"));
    rig.append(2);
    rig.go_on();
    let mut reader = Reader::at(start());
    assert!(matches!(reader.drain(&mut rig.feed), Look::Front));
    assert_eq!(reader.offsets, [0, 1, 2, 3, 4, 5, 3, 4], "the cursor hands out both, in two terms");
}

#[test]
fn a_shared_feed_does_not_begin_far_behind_the_tail() {
    let mut rig = Rig::narrow();
    assert!(matches!(rig.feed.look(None, start()), Look::Front), "who knows");
    for _ in 0..100 {
        rig.append(1);
    }
    rig.publish();
    assert!(!rig.feed.begin_near(start()));
    assert!(matches!(rig.feed.look(None, start()), Look::Behind));
    let tail = rig.tail();
    assert!(rig.feed.begin_near(Place { segment: tail.segment, position: tail.durable }));
}

#[test]
fn what_is_far_from_the_tail_is_the_same_for_feeds_of_any_window() {
    let far = WINDOW_BYTES as u64 + 1;
    let at = |number, position| Place { segment: SegmentNumber(number), position: Position(position) };
    for window_bytes in [1_000, 100 << 20] {
        let mut feed = Feed::shared(shard(), config(true, window_bytes));
        assert!(feed.is_far(at(3, 0)), "who knows");
        let mut rig = Rig::new();
        rig.append(1);
        let tail = rig.tail();
        let previous = Some((SegmentNumber(2), tail.term, Position(1_000)));
        feed.observe(Tail { segment: SegmentNumber(3), durable: Position(far), previous, ..tail });
        assert!(feed.is_far(at(3, 0)));
        assert!(!feed.is_far(at(3, 1)) && !feed.is_far(at(3, far)) && !feed.is_far(at(4, 0)));
        assert!(feed.is_far(at(2, 1_000)) && feed.is_far(at(1, 1_000)));
    }
}

#[test]
fn a_private_feed_reads_no_further_than_its_reader_has_room_for() {
    let mut rig = Rig::with(Feed::private(shard(), config(false, 5_000), start(), None));
    // More than one fetch: chunks of 64 bytes are fetched 512 at a time.
    for _ in 0..800 {
        rig.append(5);
    }
    rig.publish();
    let mut reader = Reader::at(start());
    for _ in 0..1_000 {
        rig.run();
        assert!(rig.feed.window_bytes <= 5_000 + 80_000, "{} bytes", rig.feed.window_bytes);
        reader.drain(&mut rig.feed);
    }
    assert!(reader.offsets.iter().copied().eq(0..4_000));
    assert!(rig.cell_fetches > 3);
}

/// What can happen to a feed.
#[derive(Clone, Debug)]
enum Event {
    Append(usize),
    Roll,
    NewTerm,
    /// A tail with so many hundredths of it cached, as of so many appends ago.
    Publish {
        cached: u64,
        stale: usize,
    },
    Pass(u64),
    Run,
    Damage(bool),
    Fail(bool),
    Silent(bool),
    Read(usize),
    Restart(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_usize..6).prop_map(Event::Append),
        1 => Just(Event::Roll),
        1 => Just(Event::NewTerm),
        4 => (0_u64..=100, 0_usize..4).prop_map(|(cached, stale)| Event::Publish { cached, stale }),
        1 => (0_u64..2_000).prop_map(Event::Pass),
        4 => Just(Event::Run),
        1 => any::<bool>().prop_map(Event::Damage),
        1 => any::<bool>().prop_map(Event::Fail),
        1 => any::<bool>().prop_map(Event::Silent),
        4 => (0_usize..3).prop_map(Event::Read),
        1 => (0_usize..3).prop_map(Event::Restart),
    ]
}

proptest! {
    /// Whatever is published when, and whatever fails: every reader sees a run of the log without holes, or is told
    /// that it is behind; and once everything works, all of it.
    #[test]
    fn every_reader_sees_what_was_appended(
        events in prop::collection::vec(event(), 1..200),
        window in prop_oneof![Just(400_usize), Just(3_000), Just(1 << 20)],
    ) {
        let mut rig = Rig::with(Feed::shared(shard(), config(true, window)));
        let mut tails = vec![rig.append(1).tail];
        let mut readers: Vec<Reader> = (0..3).map(|_| Reader::at(start())).collect();
        let mut first = [0_u64; 3];
        rig.feed.observe(tails[0]);
        rig.feed.begin_near(start());
        for event in events {
            match event {
                Event::Append(records) => tails.push(rig.append(records).tail),
                Event::Roll => tails.push(rig.log.roll(shard())),
                Event::NewTerm => tails.push(rig.log.roll_with_new_term(shard())),
                Event::Publish { cached, stale } => {
                    let tail = tails[tails.len().saturating_sub(1 + stale)];
                    let cached = Position(tail.durable.0 * cached / 100);
                    rig.feed.observe(Tail { cached, ..tail });
                }
                Event::Pass(ms) => rig.now = rig.now + Duration::from_millis(ms),
                Event::Run => drop(rig.run()),
                Event::Damage(damaged) => rig.cell_is_damaged = damaged,
                Event::Fail(fails) => rig.durable_fails = fails,
                Event::Silent(silent) => drop(rig.feed.set_silent(silent)),
                Event::Read(which) => drop(readers[which].drain(&mut rig.feed)),
                Event::Restart(which) => {
                    let next = readers[which].offsets.last().map_or(first[which], |last| last + 1);
                    first[which] = next;
                    readers[which] = Reader::at(rig.log.locate(shard(), Offset(next)));
                }
            }
        }
        rig.durable_fails = false;
        rig.publish();
        rig.run_for_long();
        let end = rig.log.values(shard()).len() as u64;
        for (reader, first) in readers.iter_mut().zip(first) {
            let look = reader.drain(&mut rig.feed);
            // An entry may begin before the offset that was asked for.
            let seen: BTreeSet<u64> = reader.offsets.iter().copied().filter(|offset| *offset >= first).collect();
            prop_assert!(reader.offsets.is_sorted_by(|a, b| *b == a + 1), "{:?}", reader.offsets);
            match look {
                Look::Front => prop_assert!(seen.into_iter().eq(first..end), "{:?} of {first}..{end}", reader.offsets),
                Look::Behind => prop_assert!(window < 1 << 20, "nothing is dropped from a large window"),
                look => prop_assert!(false, "{:?}", look),
            }
        }
    }
}
