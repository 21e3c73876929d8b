use bytes::BytesMut;
use tailwater_format::{ChunkKey, Offset, SegmentNumber, Term};

use super::*;

const CHUNK: u32 = 64;

fn at(ms: u64) -> Instant {
    Instant::from_ns(ms * 1_000_000)
}

fn stream() -> StreamId {
    StreamId(uuid::Uuid::from_u128(5))
}

fn shard(number: u32) -> ShardId {
    ShardId { stream: stream(), shard: ShardNumber(number) }
}

fn segment(of: ShardId, number: u64) -> SegmentId {
    SegmentId { shard: of, number: SegmentNumber(number), term: Term(1) }
}

fn tail(segment: SegmentId, durable: u64) -> Tail {
    Tail {
        segment: segment.number,
        term: segment.term,
        base_offset: Offset(0),
        cached: Position(0),
        durable: Position(durable),
        next_offset: Offset(durable),
        sealed: false,
        previous: None,
        chunk_bytes: CHUNK,
        cells: true,
        log_start: Offset(0),
    }
}

fn config() -> WriterConfig {
    WriterConfig { shadow_bytes_max: 10_000, shadow_bytes_total_max: 25_000, ..WriterConfig::default() }
}

/// A writer, how long each segment is, and the chunks that a cell would hold.
struct Rig {
    state: WriterState,
    now: Instant,
    lengths: BTreeMap<SegmentId, u64>,
    cell: BTreeMap<Bytes, Bytes>,
}

impl Rig {
    /// One whose page 0 is locked.
    fn new() -> Self {
        Self::locked(Self::unlocked())
    }

    fn locked(mut rig: Self) -> Self {
        rig.state.open(rig.now, shard(0), tail(segment(shard(0), 1), 0));
        rig.state.set_locked(rig.now, PageId::of(shard(0)), true);
        rig.publish(true);
        rig
    }

    fn unlocked() -> Self {
        Self::unlocked_with(config())
    }

    fn unlocked_with(config: WriterConfig) -> Self {
        let state = WriterState::new(config);
        // Not at 0, so that times to refresh at do not coincide with the beginning.
        Self { state, now: at(1_000_000), lengths: BTreeMap::new(), cell: BTreeMap::new() }
    }

    fn extend(&mut self, segment: SegmentId, len: usize) {
        let from = self.lengths.entry(segment).or_default();
        let bytes: Bytes = (0..len).map(|index| byte(segment, *from + index as u64)).collect();
        *from += len as u64;
        let durable = DurableTo::new(Position(*from));
        self.state.extend(self.now, segment, &bytes, durable, tail(segment, *from), self.now);
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
    }

    fn round(&mut self) -> Option<WriteRound> {
        let round = self.state.next_round(self.now)?;
        assert_eq!(round.parts.iter().map(|part| part.chunks).sum::<usize>(), round.chunks.len());
        assert!(!round.parts.is_empty() && round.parts.iter().all(|part| part.chunks > 0));
        Some(round)
    }

    /// Ends a round; its chunks are in the cell then if it is `ok`.
    fn end(&mut self, round: WriteRound, ok: bool) {
        if ok {
            self.cell.extend(round.chunks);
        }
        let parts: Vec<_> = round.parts.into_iter().map(|part| (part, ok)).collect();
        self.state.round_done(self.now, &parts);
    }

    /// Writes all there is to write now.
    fn write_all(&mut self) {
        while let Some(round) = self.round() {
            self.end(round, true);
        }
    }

    /// Publishes what is due; the pages.
    fn publish(&mut self, ok: bool) -> Vec<TailPage> {
        let mut pages = Vec::new();
        while let Some(publish) = self.state.next_publish(self.now) {
            assert_eq!(publish.key, tail_page_key(publish.page.stream, publish.page.page));
            pages.push(TailPage::decode(&publish.value).expect("what it publishes can be read"));
            self.state.publish_done(self.now, publish.page, ok);
        }
        pages
    }

    /// The one tail of the one page that is published now.
    fn published(&mut self) -> Tail {
        let pages = self.publish(true);
        let [page] = &pages[..] else { panic!("one page, not {pages:?}") };
        page.tails[0].expect("of the one shard")
    }

    /// Whether the cell holds all of a segment's bytes in a range.
    fn has(&self, segment: SegmentId, from: u64, to: u64) -> bool {
        (from..to).all(|position| {
            let key = ChunkKey { segment, chunk_bytes: CHUNK, chunk: position / u64::from(CHUNK) };
            let chunk = self.cell.get(&key.to_bytes());
            let at = (position % u64::from(CHUNK)) as usize;
            chunk.and_then(|chunk| chunk.get(at).copied()) == Some(byte(segment, position))
        })
    }
}

fn byte(segment: SegmentId, position: u64) -> u8 {
    (segment.number.0 * 131 + u64::from(segment.shard.shard.0) * 31 + position * 7) as u8
}

#[test]
fn every_chunk_is_written_from_its_beginning_and_what_is_cached_is_there() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 1);
    for len in [10, 50, 4, 64, 1, 63, 128, 200, 3, 1_000] {
        rig.extend(open, len);
        let round = rig.round().expect("there is something to write");
        for (key, chunk) in &round.chunks {
            let number = (0..100).find(|number| {
                *key == ChunkKey { segment: open, chunk_bytes: CHUNK, chunk: *number }.to_bytes()
            });
            let start = number.expect("a chunk of the segment") * u64::from(CHUNK);
            let expected: BytesMut = (start..start + chunk.len() as u64).map(|at| byte(open, at)).collect();
            assert_eq!(chunk[..], expected[..]);
        }
        rig.end(round, true);
        let tail = rig.published();
        assert_eq!(tail.cached, tail.durable);
        assert!(rig.has(open, 0, tail.cached.0));
        assert!(rig.round().is_none(), "nothing is written twice");
    }
}

#[test]
fn a_shard_is_in_one_round_at_a_time_and_what_came_meanwhile_goes_next() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 1);
    rig.extend(open, 10);
    let first = rig.round().expect("there is something to write");
    rig.extend(open, 10);
    assert!(rig.round().is_none(), "the partial chunk is written in order");
    rig.end(first, true);
    assert_eq!(rig.published().cached, Position(10));
    let second = rig.round().expect("the rest");
    assert_eq!(second.parts[0].end, Position(20));
    rig.end(second, true);
    assert_eq!(rig.published().cached, Position(20));
}

#[test]
fn a_durable_length_is_published_alone_when_caching_it_takes_too_long() {
    let mut rig = Rig::new();
    rig.extend(segment(shard(0), 1), 100);
    let round = rig.round();
    assert!(rig.publish(true).is_empty(), "it waits for the round");
    assert_eq!(rig.state.next_deadline(), rig.now + config().publish_delay);
    rig.pass(10);
    let tail = rig.published();
    assert_eq!((tail.cached, tail.durable), (Position(0), Position(100)));
    rig.end(round.expect("there was something to write"), true);
    assert_eq!(rig.published().cached, Position(100));
}

/// The sum of what was counted, in ms, and how much was.
fn publish_times(rig: &Rig) -> (u128, u64) {
    let times = rig.state.publish_times().read();
    (times.sum.as_millis(), times.count())
}

#[test]
fn how_long_an_entry_takes_until_it_is_told_of_is_counted_when_the_publication_is_acknowledged() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 1);
    rig.extend(open, 100);
    rig.pass(5);
    // Told of by the same publication, and younger.
    rig.extend(open, 100);
    let round = rig.round().expect("there is something to write");
    rig.pass(10);
    // The durable length alone: readers wait for the cell.
    assert_eq!(rig.published().cached, Position(0));
    assert_eq!(publish_times(&rig), (0, 0));
    rig.end(round, true);
    rig.write_all();
    assert_eq!(rig.publish(false).len(), 1);
    assert_eq!(publish_times(&rig), (0, 0));
    rig.pass(100);
    assert_eq!(rig.published().cached, Position(200));
    assert_eq!(publish_times(&rig), (115, 1));
    rig.extend(open, 100);
    rig.pass(3);
    rig.write_all();
    rig.publish(true);
    assert_eq!(publish_times(&rig), (118, 2));
}

#[test]
fn an_entry_of_a_segment_that_others_followed_is_told_of_and_one_that_was_lost_is_not() {
    let mut rig = Rig::new();
    let [first, second] = [1, 2].map(|number| segment(shard(0), number));
    rig.extend(first, 100);
    rig.pass(20);
    rig.extend(second, 10);
    rig.write_all();
    rig.publish(true);
    assert_eq!(publish_times(&rig), (20, 1));
    rig.extend(second, 10);
    // Another term has the number.
    let again = SegmentId { term: Term(2), ..second };
    rig.state.update(rig.now, shard(0), tail(again, 0));
    rig.write_all();
    rig.publish(true);
    assert_eq!(publish_times(&rig), (20, 1));
}

#[test]
fn a_round_that_fails_makes_the_cached_stream_jump_to_the_chunk_that_the_durable_one_is_in() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 1);
    rig.extend(open, 1_000);
    let round = rig.round().expect("there is something to write");
    rig.end(round, false);
    assert!(rig.round().is_none(), "not before the pause is over");
    assert_eq!(rig.state.next_deadline(), rig.now + config().publish_delay, "for the durable length");
    rig.pass(10);
    let tail = rig.published();
    assert_eq!((tail.cached, tail.durable), (Position(0), Position(1_000)));
    assert_eq!(rig.state.next_deadline(), rig.now + (config().retry_delay - config().publish_delay));
    rig.pass(90);
    let round = rig.round().expect("it is tried again");
    assert_eq!(round.chunks.len(), 1, "the last chunk alone");
    rig.end(round, true);
    assert_eq!(rig.published().cached, Position(1_000));
    assert!(rig.has(open, 960, 1_000) && !rig.has(open, 0, 960));
    assert_eq!((rig.state.stats().jumps, rig.state.stats().rounds_failed), (1, 1));
}

#[test]
fn a_partial_chunk_that_failed_is_written_again_and_nothing_was_jumped_over() {
    let mut rig = Rig::new();
    rig.extend(segment(shard(0), 1), 10);
    let round = rig.round().expect("there is something to write");
    rig.end(round, false);
    rig.pass(100);
    rig.write_all();
    assert!(rig.has(segment(shard(0), 1), 0, 10));
    assert_eq!(rig.state.stats().jumps, 0);
}

#[test]
fn bytes_that_end_with_a_chunk_and_failed_wait_for_the_next_ones() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 1);
    rig.extend(open, 128);
    let round = rig.round().expect("there is something to write");
    rig.end(round, false);
    rig.pass(200);
    assert!(rig.round().is_none(), "there is no chunk left to write");
    rig.publish(true);
    rig.extend(open, 5);
    rig.write_all();
    assert_eq!(rig.published().cached, Position(133));
}

#[test]
fn parts_of_a_round_fail_by_themselves() {
    let mut rig = Rig::new();
    for number in 1..4 {
        rig.state.open(rig.now, shard(number), tail(segment(shard(number), 1), 0));
    }
    for number in 0..4 {
        rig.extend(segment(shard(number), 1), 100);
    }
    let round = rig.round().expect("there is something to write");
    assert_eq!(round.parts.len(), 4, "one round takes all");
    let parts: Vec<_> = round.parts.iter().map(|part| (*part, part.segment.shard != shard(2))).collect();
    rig.state.round_done(rig.now, &parts);
    let pages = rig.publish(true);
    let cached: Vec<_> = pages[0].tails.iter().map(|tail| tail.expect("all are there").cached.0).collect();
    assert_eq!(cached, [100, 100, 0, 100]);
}

#[test]
fn a_cell_that_is_too_slow_makes_the_stream_jump_and_memory_stays_bounded() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 1);
    rig.extend(open, 100);
    let round = rig.round().expect("there is something to write");
    for _ in 0..1_000 {
        rig.extend(open, 100);
        assert!(rig.state.buffered_bytes <= config().shadow_bytes_max);
    }
    assert!(rig.state.stats().jumps > 0);
    rig.end(round, true);
    let tail = rig.published();
    assert_eq!(tail.cached, Position(100), "what is cached is where it was, until more is");
    rig.write_all();
    let tail = rig.published();
    assert_eq!((tail.cached, tail.durable), (Position(100_100), Position(100_100)));
    assert!(rig.has(open, 100_100 / 64 * 64, 100_100));
}

#[test]
fn all_shards_together_are_bounded_too() {
    let mut rig = Rig::unlocked();
    for round in 0..100 {
        for number in 0..10 {
            rig.extend(segment(shard(number), 1), 90);
            let sum: usize = rig.state.shards.values().map(Shard::buffered_bytes).sum();
            assert_eq!(rig.state.buffered_bytes, sum, "round {round}");
            assert!(sum <= config().shadow_bytes_total_max + 10 * CHUNK as usize, "{sum}");
        }
    }
}

#[test]
fn the_rest_of_a_segment_is_written_before_the_next_one() {
    let mut rig = Rig::new();
    let (old, new) = (segment(shard(0), 1), segment(shard(0), 2));
    rig.extend(old, 100);
    let round = rig.round().expect("there is something to write");
    rig.extend(old, 100);
    rig.extend(new, 50);
    assert!(rig.round().is_none());
    rig.end(round, true);
    assert_eq!(rig.published().cached, Position(0), "of the new one");
    let round = rig.round().expect("the rest of the old one");
    assert_eq!((round.parts[0].segment, round.parts[0].end), (old, Position(200)));
    rig.end(round, true);
    let round = rig.round().expect("the new one");
    assert_eq!(round.parts[0].segment, new);
    rig.end(round, true);
    assert!(rig.has(old, 0, 200) && rig.has(new, 0, 50));
    assert_eq!(rig.published().cached, Position(50));
}

#[test]
fn a_segment_that_the_stream_jumped_away_from_while_it_was_in_flight_does_not_hold_the_next_one_up() {
    let mut rig = Rig::new();
    rig.extend(segment(shard(0), 1), 100);
    let round = rig.round().expect("there is something to write");
    let new = segment(shard(0), 2);
    for _ in 0..300 {
        rig.extend(new, 100);
    }
    rig.end(round, true);
    let round = rig.round().expect("the new segment is written at once");
    assert_eq!(round.parts[0].segment, new);
    rig.end(round, true);
    assert_eq!(rig.published().cached, Position(30_000));
}

#[test]
fn nothing_is_written_without_the_lock_and_everything_with_it() {
    let mut rig = Rig::unlocked();
    let page = PageId::of(shard(0));
    rig.state.open(rig.now, shard(0), tail(segment(shard(0), 1), 0));
    assert!(rig.state.take_new_page() && !rig.state.take_new_page());
    rig.extend(segment(shard(0), 1), 100);
    for _ in 0..10 {
        assert!(rig.round().is_none() && rig.publish(true).is_empty());
        rig.pass(5);
    }
    rig.state.set_locked(rig.now, page, true);
    assert!(!rig.publish(true).is_empty(), "what was dirty before the lock came is published");
    rig.write_all();
    assert_eq!(rig.published().cached, Position(100));
    rig.state.set_locked(rig.now, page, false);
    rig.extend(segment(shard(0), 1), 100);
    rig.pass(50);
    assert!(rig.round().is_none() && rig.publish(true).is_empty());
    assert!(rig.state.next_deadline() > rig.now, "and nothing is waited for");
}

#[test]
fn a_page_that_changes_while_it_is_published_is_published_again() {
    let mut rig = Rig::new();
    rig.extend(segment(shard(0), 1), 10);
    rig.write_all();
    let first = rig.state.next_publish(rig.now).expect("it is due");
    rig.extend(segment(shard(0), 1), 10);
    rig.write_all();
    assert!(rig.state.next_publish(rig.now).is_none(), "one at a time");
    rig.state.publish_done(rig.now, first.page, true);
    assert_eq!(rig.published().cached, Position(20));
}

#[test]
fn a_publication_that_fails_is_repeated_after_the_pause_with_what_is_true_by_then() {
    let mut rig = Rig::new();
    rig.extend(segment(shard(0), 1), 10);
    rig.write_all();
    assert_eq!(rig.publish(false).len(), 1);
    assert!(rig.publish(true).is_empty());
    assert_eq!(rig.state.next_deadline(), rig.now + config().retry_delay);
    rig.extend(segment(shard(0), 1), 10);
    rig.write_all();
    rig.pass(100);
    assert_eq!(rig.published().cached, Position(20));
    assert_eq!(rig.state.stats().publishes_failed, 1);
}

#[test]
fn what_is_idle_is_written_again_before_it_expires() {
    let mut rig = Rig::new();
    rig.extend(segment(shard(0), 1), 100);
    rig.write_all();
    rig.publish(true);
    let (mut pages, mut chunks, began) = (0, 0, rig.now);
    while rig.now.since(began) < Duration::from_secs(120) {
        let wake_at = rig.state.next_deadline();
        assert!(wake_at > rig.now);
        rig.now = wake_at;
        while let Some(round) = rig.round() {
            assert_eq!(round.chunks.len(), 1, "the partial chunk alone");
            chunks += 1;
            rig.end(round, true);
        }
        pages += rig.publish(true).len();
    }
    let (pages_due, chunks_due) =
        (120 / config().page_refresh.as_secs(), 120 / config().chunk_refresh.as_secs());
    assert!((pages_due as usize..=2 * pages_due as usize + 7).contains(&pages), "{pages} pages");
    assert!((chunks_due as usize..=2 * chunks_due as usize).contains(&chunks), "{chunks} chunks");
}

#[test]
fn what_a_loss_takes_back_is_not_told_as_cached_and_a_round_under_way_does_not_bring_it_back() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 1);
    rig.extend(open, 100);
    rig.write_all();
    rig.extend(open, 50);
    let round = rig.round().expect("it may be written");
    assert_eq!(rig.published().cached, Position(100));
    rig.state.update(rig.now, shard(0), Tail { sealed: true, ..tail(open, 80) });
    assert_eq!(rig.published().cached, Position(80));
    rig.end(round, true);
    let told = rig.published();
    assert_eq!((told.cached, told.durable), (Position(80), Position(80)));
    rig.extend(segment(shard(0), 2), 10);
    rig.write_all();
    let told = rig.published();
    assert_eq!((told.segment, told.cached), (SegmentNumber(2), Position(10)));
}

#[test]
fn sealed_and_truncated_tails_are_told_at_once_and_do_not_overtake_their_bytes() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 1);
    rig.extend(open, 10);
    rig.write_all();
    rig.publish(true);
    rig.state.update(rig.now, shard(0), Tail { sealed: true, ..tail(open, 10) });
    let tail_now = rig.published();
    assert!(tail_now.sealed && tail_now.cached == Position(10));
    rig.extend(segment(shard(0), 2), 10);
    rig.state.update(rig.now, shard(0), Tail { log_start: Offset(5), ..tail(segment(shard(0), 2), 10) });
    assert!(rig.publish(true).is_empty(), "the bytes are on their way");
    rig.write_all();
    assert_eq!(rig.published().log_start, Offset(5));
}

#[test]
fn a_deleted_stream_is_told_until_it_is_acknowledged_and_then_forgotten() {
    let mut rig = Rig::new();
    rig.extend(segment(shard(0), 1), 100);
    let round = rig.round().expect("there is something to write");
    rig.state.delete_stream(rig.now, stream());
    let pages = rig.publish(false);
    assert!(pages.iter().all(|page| page.deleted && page.tails.is_empty()) && pages.len() == 1);
    rig.end(round, true);
    rig.pass(100);
    assert_eq!(rig.publish(true).len(), 1);
    assert!(rig.state.pages().is_empty() && rig.state.shards.is_empty());
    assert_eq!(rig.state.buffered_bytes, 0);
    assert!(rig.round().is_none());
}

#[test]
fn only_the_deleted_stream_s_shards_go() {
    let mut rig = Rig::new();
    let other = ShardId { stream: StreamId(uuid::Uuid::from_u128(6)), shard: ShardNumber(0) };
    rig.state.open(rig.now, other, tail(segment(other, 1), 0));
    rig.state.open(rig.now, shard(200), tail(segment(shard(200), 1), 0));
    rig.state.delete_stream(rig.now, stream());
    assert!(rig.state.shards.keys().eq([&other]));
}

#[test]
fn a_shard_that_is_opened_anew_does_not_get_two_rounds_at_once() {
    let mut rig = Rig::new();
    rig.extend(segment(shard(0), 1), 100);
    let round = rig.round().expect("there is something to write");
    let new = SegmentId { term: Term(2), ..segment(shard(0), 2) };
    rig.state.open(rig.now, shard(0), tail(new, 0));
    rig.extend(new, 50);
    assert!(rig.round().is_none());
    rig.end(round, true);
    rig.write_all();
    assert_eq!(rig.published().cached, Position(50));
}

#[test]
fn rounds_are_bounded_and_every_shard_gets_its_turn() {
    let mut rig = Rig::new();
    for number in 0..40 {
        rig.state.open(rig.now, shard(number), tail(segment(shard(number), 1), 0));
    }
    let mut under_way = Vec::new();
    for number in 0..40 {
        rig.extend(segment(shard(number), 1), 100);
        under_way.extend(rig.round());
    }
    assert_eq!(under_way.len(), SHADOW_ROUNDS_MAX);
    for round in under_way {
        rig.end(round, true);
    }
    rig.write_all();
    assert!((0..40).all(|number| rig.has(segment(shard(number), 1), 0, 100)));
}

#[test]
fn beyond_the_rate_what_shards_have_to_write_gathers_and_each_has_its_turn() {
    let mut rig = Rig::locked(Rig::unlocked_with(WriterConfig { shadow_writes_per_s: 100, ..config() }));
    let segments: Vec<_> = (0..10).map(|number| segment(shard(number), 1)).collect();
    let (mut writes, mut rounds) = (BTreeMap::<SegmentId, u64>::new(), 0);
    for _ in 0..2_000 {
        for segment in &segments {
            rig.extend(*segment, 1);
        }
        while let Some(round) = rig.round() {
            round.parts.iter().for_each(|part| *writes.entry(part.segment).or_default() += 1);
            rounds += 1;
            rig.end(round, true);
        }
        rig.publish(true);
        assert!(rig.state.next_deadline() > rig.now, "the task would run and find nothing to do");
        rig.pass(1);
    }
    let sum: u64 = writes.values().sum();
    assert!((190..=220).contains(&sum), "{sum} writes in two seconds");
    assert!(
        segments.iter().all(|segment| (sum / 10 - 1..=sum / 10 + 1).contains(&writes[segment])),
        "{writes:?}"
    );
    assert!(rounds < sum / 5, "{rounds} rounds: what waits for its turn goes together");
    // Nothing is left behind where nothing more comes.
    rig.pass(200);
    rig.write_all();
    assert!(segments.iter().all(|segment| rig.has(*segment, 0, 2_000)));
}

#[test]
fn a_shard_that_comes_after_a_pause_is_written_at_once() {
    let mut rig = Rig::locked(Rig::unlocked_with(WriterConfig { shadow_writes_per_s: 100, ..config() }));
    for number in 0..10 {
        rig.extend(segment(shard(number), 1), 1);
    }
    rig.write_all();
    rig.extend(segment(shard(3), 1), 1);
    assert!(rig.round().is_none(), "more was written than the rate allows");
    rig.pass(100);
    let round = rig.round().expect("its turn has come");
    rig.end(round, true);
    rig.extend(segment(shard(4), 1), 1);
    assert!(rig.round().is_some());
}

proptest::proptest! {
    /// Whatever fails and whatever the order: what a page says is cached was acknowledged or jumped over, never
    /// exceeds what is durable, and once the cell works, everything is cached.
    #[test]
    fn published_lengths_are_true(steps in proptest::collection::vec((0_u8..8, 1_usize..300), 1..150)) {
        let mut rig = Rig::new();
        let (mut number, mut under_way, mut failed) = (1, Vec::new(), false);
        for (what, len) in steps {
            match what {
                0..=2 => rig.extend(segment(shard(0), number), len),
                3 => number += 1,
                4 => under_way.extend(rig.round()),
                5 | 6 => if let Some(round) = under_way.pop() {
                    failed |= what == 6;
                    rig.end(round, what == 5);
                },
                _ => rig.pass(len as u64),
            }
            for page in rig.publish(what != 6) {
                let tail = page.tails[0].expect("of the one shard");
                let id = SegmentId { shard: shard(0), number: tail.segment, term: tail.term };
                proptest::prop_assert!(tail.cached <= tail.durable);
                proptest::prop_assert!(failed || rig.state.stats().jumps > 0 || rig.has(id, 0, tail.cached.0));
            }
        }
        for round in under_way {
            rig.end(round, true);
        }
        rig.extend(segment(shard(0), number), 1);
        for _ in 0..3 {
            rig.pass(200);
            rig.write_all();
        }
        let length = rig.lengths[&segment(shard(0), number)];
        rig.publish(true);
        proptest::prop_assert_eq!(rig.state.cached(shard(0)), Position(length));
        let chunk = length / u64::from(CHUNK) * u64::from(CHUNK);
        proptest::prop_assert!(rig.has(segment(shard(0), number), chunk, length));
    }
}

/// The bytes of a segment in a range, in pieces of at most 100.
fn pieces(segment: SegmentId, from: u64, to: u64) -> Vec<Bytes> {
    let bytes: Vec<u8> = (from..to).map(|position| byte(segment, position)).collect();
    bytes.chunks(100).map(Bytes::copy_from_slice).collect()
}

/// A shard that a start found with one segment, of which this writer has told no bytes yet.
fn found(rig: &mut Rig, length: u64) -> SegmentId {
    let found = segment(shard(0), 1);
    rig.state.open(rig.now, shard(0), Tail { sealed: true, ..tail(found, length) });
    assert_eq!(rig.published().cached, Position(0));
    found
}

#[test]
fn the_end_of_a_segment_from_before_the_start_is_written_again_and_then_told() {
    let mut rig = Rig::new();
    let found = found(&mut rig, 1_000);
    assert!(rig.state.refill(rig.now, found, Position(640), &pieces(found, 640, 1_000)));
    let round = rig.round().expect("there is something to write");
    assert_eq!(rig.state.cached(shard(0)), Position(0), "not before it is in the cell");
    rig.end(round, true);
    let told = rig.published();
    assert_eq!((told.cached, told.durable, told.sealed), (Position(1_000), Position(1_000), true));
    assert!(rig.has(found, 640, 1_000) && !rig.has(found, 0, 640));
    assert_eq!(rig.state.stats().refilled_bytes, 360);
    assert!(!rig.state.refill(rig.now, found, Position(640), &pieces(found, 640, 1_000)), "once");
    // What the cell forgets of an idle shard comes back as it does for any other.
    rig.cell.clear();
    rig.pass(25_000);
    rig.write_all();
    assert!(rig.has(found, 960, 1_000));
}

#[test]
fn a_shard_that_was_appended_to_before_its_old_end_came_gets_both_into_the_cell() {
    let mut rig = Rig::new();
    let found = found(&mut rig, 1_000);
    let next = segment(shard(0), 2);
    let bytes = pieces(next, 0, 100).remove(0);
    let previous = Some((found.number, found.term, Position(1_000)));
    let durable = DurableTo::new(Position(100));
    rig.state.extend(rig.now, next, &bytes, durable, Tail { previous, ..tail(next, 100) }, rig.now);
    assert!(rig.state.refill(rig.now, found, Position(896), &pieces(found, 896, 1_000)));
    rig.write_all();
    assert!(rig.has(found, 896, 1_000) && rig.has(next, 0, 100));
    let told = rig.published();
    assert_eq!((told.segment, told.cached), (next.number, Position(100)));
}

#[test]
fn what_is_not_the_end_of_a_shard_or_has_no_room_is_not_taken_back() {
    let mut rig = Rig::new();
    let found = found(&mut rig, 20_000);
    let refused = |rig: &mut Rig, segment: SegmentId, from, to| {
        assert!(!rig.state.refill(rig.now, segment, Position(from), &pieces(segment, from, to)));
        assert!(rig.round().is_none());
    };
    refused(&mut rig, found, 19_200, 19_999);
    refused(&mut rig, found, 20_032, 20_032);
    refused(&mut rig, found, 6_400, 20_000);
    refused(&mut rig, segment(shard(0), 2), 0, 20_000);
    refused(&mut rig, segment(shard(1), 1), 19_968, 20_000);
    rig.state.delete_stream(rig.now, stream());
    refused(&mut rig, found, 19_968, 20_000);
}

#[test]
fn an_old_end_that_the_cell_does_not_take_is_left_to_the_durable_layer() {
    let mut rig = Rig::new();
    let found = found(&mut rig, 1_000);
    assert!(rig.state.refill(rig.now, found, Position(640), &pieces(found, 640, 1_000)));
    let round = rig.round().expect("there is something to write");
    rig.end(round, false);
    rig.pass(1_000);
    rig.write_all();
    assert_eq!(rig.published().cached, Position(1_000), "readers look, and go on to the durable layer");
    assert!(rig.has(found, 960, 1_000) && !rig.has(found, 640, 960));
}

#[test]
fn what_is_appended_while_an_old_end_waits_goes_into_the_cell_as_well() {
    let mut rig = Rig::unlocked();
    let (old, next) = (segment(shard(0), 1), segment(shard(0), 2));
    rig.state.open(rig.now, shard(0), Tail { sealed: true, ..tail(old, 5_000) });
    assert!(rig.state.refill(rig.now, old, Position(0), &pieces(old, 0, 5_000)));
    rig.extend(next, 5_000);
    assert!(rig.round().is_none(), "the lock is not held yet");
    rig.state.set_locked(rig.now, PageId::of(shard(0)), true);
    rig.write_all();
    assert!(rig.has(old, 0, 5_000) && rig.has(next, 0, 5_000));
    assert_eq!(rig.state.stats().jumps, 0);
    // What is more than may wait together is jumped over, the oldest first and all of it.
    let mut rig = Rig::unlocked();
    rig.state.open(rig.now, shard(0), Tail { sealed: true, ..tail(old, 5_000) });
    assert!(rig.state.refill(rig.now, old, Position(0), &pieces(old, 0, 5_000)));
    rig.extend(next, 5_001);
    rig.state.set_locked(rig.now, PageId::of(shard(0)), true);
    rig.write_all();
    assert!(!rig.has(old, 0, 64) && rig.has(next, 4_992, 5_001));
    assert_eq!(rig.state.stats().jumps, 1);
}

#[test]
fn what_a_copy_has_ahead_is_shown_until_its_segment_is_sealed() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 1);
    rig.extend(open, 10);
    let ahead: Bytes = (10..100).map(|at| byte(open, at)).collect();
    rig.state.extend_ahead(rig.now, open, &ahead, DurableTo::new(Position(100)), rig.now);
    rig.write_all();
    let shown = rig.published();
    assert_eq!((shown.cached, shown.durable), (Position(100), Position(10)));
    assert!(rig.has(open, 0, 100));
    rig.state.catch_up(rig.now, shard(0), tail(open, 60));
    assert!(rig.publish(true).is_empty(), "nobody waits for it");
    rig.pass(10);
    let shown = rig.published();
    assert_eq!((shown.cached, shown.durable), (Position(100), Position(60)));
    rig.state.update(rig.now, shard(0), Tail { sealed: true, ..tail(open, 60) });
    let shown = rig.published();
    assert_eq!((shown.cached, shown.durable), (Position(60), Position(60)), "the rest was lost");
}

#[test]
fn what_a_copy_had_ahead_and_lost_counts_as_told_of_by_nobody() {
    let mut rig = Rig::new();
    let lost = segment(shard(0), 1);
    rig.extend(lost, 10);
    rig.write_all();
    rig.publish(true);
    let times = publish_times(&rig);
    let ahead: Bytes = (10..100).map(|at| byte(lost, at)).collect();
    rig.state.extend_ahead(rig.now, lost, &ahead, DurableTo::new(Position(100)), rig.now);
    rig.state.update(rig.now, shard(0), Tail { sealed: true, ..tail(lost, 10) });
    rig.write_all();
    rig.pass(1_000);
    rig.publish(true);
    rig.extend(segment(shard(0), 2), 5);
    rig.write_all();
    rig.publish(true);
    assert_eq!(publish_times(&rig), (times.0, times.1 + 1), "the one that came behind it, and at once");
}

#[test]
fn bytes_of_a_stream_without_cells_are_told_at_once_and_never_written() {
    let mut rig = Rig::new();
    let open = segment(shard(0), 2);
    let without = |durable| Tail { cells: false, ..tail(open, durable) };
    rig.state.open(rig.now, shard(0), without(0));
    rig.publish(true);
    let durable = |bytes| DurableTo::new(Position(bytes));
    rig.state.extend(rig.now, open, &Bytes::from_static(&[7; 200]), durable(200), without(200), rig.now);
    assert!(rig.round().is_none());
    assert_eq!(rig.published(), without(200));

    // A copy's bytes that run ahead are told of when they are durable.
    rig.state.extend_ahead(rig.now, open, &Bytes::from_static(&[7; 100]), durable(300), rig.now);
    assert!(rig.round().is_none() && rig.publish(true).is_empty());
    rig.state.catch_up(rig.now, shard(0), without(300));
    assert_eq!(rig.published(), without(300));

    // After a restart as well.
    let sealed = Tail { sealed: true, ..without(300) };
    rig.state.open(rig.now, shard(0), sealed);
    assert!(!rig.state.refill(rig.now, open, Position(0), &[Bytes::from_static(&[7; 300])]));
    assert!(rig.round().is_none());
    assert_eq!(rig.published(), sealed);
}
