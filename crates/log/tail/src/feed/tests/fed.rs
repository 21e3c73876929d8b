//! Feeds that a window of another process feeds.

use super::*;
use crate::window::{UndecodedMessage, encode_block, records_of};

/// The window's end of a rig: it has read the log up to here.
struct Window {
    at: Place,
}

impl Window {
    fn new() -> Self {
        Self { at: start() }
    }

    /// The block of all that the log has of the window's segment; `None` if it has it.
    fn block(&mut self, log: &MemoryLog) -> Option<Block> {
        let segments = log.list(shard(), self.at.segment).expect("a log");
        let info = segments.first().filter(|info| info.number == self.at.segment)?;
        let (term, end) = (info.term, info.length);
        let segment = SegmentId { shard: shard(), number: self.at.segment, term };
        let mut cutter = Cutter::new(segment, self.at.position);
        let (block, result) = cutter.push(log.bytes(segment, self.at.position, end));
        result.expect("the log's own bytes");
        self.at.position = end;
        if info.sealed {
            self.at = Place { segment: self.at.segment.next(), position: Position(0) };
        }
        block
    }

    /// Tells the feed where it is.
    fn tell(&self, rig: &mut Rig) {
        let tail = rig.log.tail(shard()).expect("something was appended");
        if tail.segment == self.at.segment {
            rig.feed.window_at(Some((tail.segment_id(shard()), self.at.position)));
        }
    }
}

/// A block as the window says it, in an arena.
fn said(block: &Block, arena: u64) -> UndecodedMessage {
    let mut bytes = encode_block(block).expect("a short block");
    records_of(block).for_each(|records| bytes.extend_from_slice(records));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    UndecodedMessage::take(&mut bytes.into(), arena).expect("a message").expect("one")
}

impl Rig {
    /// The window says a block; what the feed takes now of all that was said.
    fn offered(&mut self, block: Block) -> News {
        self.said(&block, 0)
    }

    fn said(&mut self, block: &Block, arena: u64) -> News {
        self.feed.park(said(block, arena));
        self.unpark()
    }
}

impl Reader {
    /// Takes what is there as a cursor does: entries that it has seen are not seen again.
    fn drain_new(&mut self, feed: &mut Feed) -> Look {
        let seen = std::mem::take(&mut self.offsets);
        let look = self.drain(feed);
        for offset in std::mem::replace(&mut self.offsets, seen) {
            if offset >= self.offsets.len() as u64 {
                self.offsets.push(offset);
            }
        }
        assert!(self.offsets.iter().copied().eq(0..self.offsets.len() as u64), "{:?}", self.offsets);
        look
    }
}

/// A feed that has begun at the beginning of a log with a record, and a window that has read it as well.
fn fed() -> (Rig, Window, Reader) {
    fed_in(Rig::new())
}

fn fed_in(mut rig: Rig) -> (Rig, Window, Reader) {
    let mut window = Window::new();
    rig.append(1);
    rig.publish();
    rig.feed.begin_near(start());
    rig.run();
    window.block(&rig.log).expect("a record");
    window.tell(&mut rig);
    assert!(rig.feed.is_fed());
    (rig.cell_fetches, rig.fetched_bytes) = (0, 0);
    (rig, window, Reader::at(start()))
}

#[test]
fn what_a_window_brings_is_not_fetched() {
    let (mut rig, mut window, mut reader) = fed();
    for _ in 0..10 {
        rig.append(3);
        rig.publish();
        assert!(rig.run().is_some(), "it is waited for, as the cached layer is");
        assert!(!rig.feed.is_fed_all());
        let block = window.block(&rig.log).expect("records");
        assert!(rig.offered(block).announce);
        assert!(rig.feed.is_fed_all());
        rig.run();
        reader.drain_new(&mut rig.feed);
    }
    assert_eq!(reader.offsets.len(), 31);
    assert_eq!((rig.cell_fetches, rig.durable_fetches), (0, 0));
}

#[test]
fn what_a_window_leaves_out_is_fetched_and_what_it_said_since_is_not() {
    let (mut rig, mut window, mut reader) = fed();
    let before = rig.tail().durable;
    rig.append(3);
    let left_out = rig.tail().durable.0 - before.0;
    window.block(&rig.log).expect("records that never come");
    for _ in 0..5 {
        rig.append(2);
        rig.publish();
        let block = window.block(&rig.log).expect("records");
        assert_eq!(rig.offered(block), News::default(), "it does not continue what was read");
    }
    assert!(!rig.feed.is_fed());
    rig.run();
    reader.drain_new(&mut rig.feed);
    assert_eq!((reader.offsets.len(), rig.cell_fetches), (14, 1));
    assert_eq!(rig.fetched_bytes, left_out, "what comes behind lies in the arenas");
    assert!(rig.feed.is_fed(), "it has caught up with the window");
    rig.append(2);
    rig.publish();
    assert!(rig.offered(window.block(&rig.log).expect("records")).announce);
    reader.drain_new(&mut rig.feed);
    assert_eq!((reader.offsets.len(), rig.cell_fetches), (16, 1));
}

#[test]
fn what_readers_have_no_room_for_waits_in_the_arenas_and_not_for_long() {
    let (mut rig, mut window, mut reader) = fed_in(Rig::narrow());
    reader.drain_new(&mut rig.feed);
    let more_than_fits = |rig: &mut Rig, window: &mut Window| {
        let mut said = 0;
        while rig.feed.waiting.is_none() {
            rig.append(10);
            rig.publish();
            rig.offered(window.block(&rig.log).expect("records"));
            said += 10;
            assert!(said < 10_000, "a window is bounded");
        }
        said
    };
    let place = rig.feed.place().expect("a place");
    let next = rig.feed.joined(place);
    assert!(next.is_some(), "a reader that takes nothing for now");
    let said = more_than_fits(&mut rig, &mut window);
    assert_eq!(rig.run(), Some(rig.now + READERS_WAIT_MAX), "it is waited for");
    assert!(rig.feed.is_fed(), "and nothing is read beside the window");
    reader.drain_new(&mut rig.feed);
    rig.feed.left(next);
    rig.run();
    assert!(rig.feed.waiting.is_none(), "there is room");
    reader.drain_new(&mut rig.feed);
    assert_eq!((reader.offsets.len(), rig.cell_fetches, rig.durable_fetches), (said + 1, 0, 0));

    let place = rig.feed.place().expect("a place");
    assert!(rig.feed.joined(place).is_some(), "a reader that takes nothing any more");
    more_than_fits(&mut rig, &mut window);
    rig.now = rig.run().expect("it is waited for");
    rig.run();
    assert!(rig.feed.waiting.is_none(), "whoever takes nothing for so long is left behind");
    assert_eq!((rig.cell_fetches, rig.durable_fetches), (0, 0));
}

#[test]
fn where_a_segment_ends_the_window_goes_on_and_nothing_is_fetched() {
    let (mut rig, mut window, mut reader) = fed();
    for _ in 0..5 {
        // The window tells of the new segment first, and then brings what is left of the old one.
        rig.append(3);
        rig.log.roll(shard());
        rig.append(2);
        rig.publish();
        for _ in 0..2 {
            assert!(rig.offered(window.block(&rig.log).expect("records")).announce);
        }
        rig.run();
        assert!(rig.feed.is_fed_all());
        reader.drain_new(&mut rig.feed);
        // It has brought all, and tells of a segment that has nothing yet.
        rig.log.roll(shard());
        rig.publish();
        rig.run();
        assert!(rig.feed.is_fed(), "what comes next is in the new segment");
        window.at = rig.feed.place().expect("a place");
    }
    assert_eq!(reader.offsets.len(), 26);
    assert_eq!((rig.cell_fetches, rig.durable_fetches), (0, 0));
}

#[test]
fn arenas_that_are_let_go_take_what_waited_in_them_along_and_the_gap_is_fetched() {
    let (mut rig, mut window, mut reader) = fed();
    let before = rig.tail().durable;
    rig.append(3);
    window.block(&rig.log).expect("records that never come");
    let mut gap = 0;
    for arena in 0..4 {
        rig.append(2);
        rig.publish();
        let block = window.block(&rig.log).expect("records");
        gap = if arena < 2 { block.end.0 - before.0 } else { gap };
        rig.said(&block, arena);
    }
    rig.feed.let_go_before(2);
    assert!(rig.feed.waiting.is_none());
    rig.unpark();
    rig.run();
    reader.drain_new(&mut rig.feed);
    assert_eq!((reader.offsets.len(), rig.cell_fetches), (12, 1));
    assert_eq!(rig.fetched_bytes, gap, "what is in the arenas that are left is not fetched");
}

#[test]
fn a_window_that_is_gone_takes_what_waited_along() {
    let (mut rig, mut window, mut reader) = fed();
    rig.append(3);
    window.block(&rig.log).expect("records that never come");
    rig.append(2);
    rig.publish();
    rig.offered(window.block(&rig.log).expect("records"));
    rig.feed.window_is_gone();
    rig.run();
    reader.drain_new(&mut rig.feed);
    assert_eq!((reader.offsets.len(), rig.cell_fetches), (6, 1));
    assert!(!rig.feed.is_fed());
}

#[test]
fn a_feed_that_is_ahead_of_a_window_waits_for_it_and_takes_the_rest_of_a_block() {
    let (mut rig, mut window, mut reader) = fed();
    rig.append(3);
    rig.publish();
    rig.feed.window_at(None);
    rig.run();
    window.tell(&mut rig);
    assert!(rig.feed.is_fed(), "the window is about to be where this is");
    rig.append(3);
    rig.publish();
    assert!(rig.run().is_some());
    let block = window.block(&rig.log).expect("six records");
    assert!(rig.offered(block).announce);
    reader.drain_new(&mut rig.feed);
    assert_eq!((reader.offsets.len(), rig.cell_fetches), (7, 1));
}

#[test]
fn a_window_that_does_not_bring_what_is_durable_is_waited_for_as_long_as_the_cells_and_no_longer() {
    let (mut rig, _, mut reader) = fed();
    rig.append(3);
    rig.publish();
    assert_eq!(rig.run(), Some(rig.now + DELAY));
    rig.now = rig.now + DELAY;
    rig.run();
    reader.drain_new(&mut rig.feed);
    assert_eq!((reader.offsets.len(), rig.cell_fetches), (4, 1));
    assert!(!rig.feed.is_fed());
}

#[test]
fn whoever_a_window_or_the_metadata_cell_leaves_alone_reads_by_itself() {
    type Change = fn(&mut Feed);
    let changes: [Change; 2] = [|feed| feed.window_at(None), |feed| _ = feed.set_silent(true)];
    for change in changes {
        let (mut rig, _, mut reader) = fed();
        rig.append(3);
        rig.publish();
        rig.run();
        change(&mut rig.feed);
        assert!(!rig.feed.is_fed());
        rig.run();
        reader.drain_new(&mut rig.feed);
        assert_eq!((reader.offsets.len(), rig.cell_fetches), (4, 1));
    }
}

#[test]
fn a_block_of_another_term_is_not_taken() {
    let (mut rig, mut window, mut reader) = fed();
    rig.append(3);
    rig.publish();
    let mut block = window.block(&rig.log).expect("records");
    block.segment.term = Term(block.segment.term.0 + 1);
    assert_eq!(rig.offered(block), News::default());
    assert!(!rig.feed.is_fed());
    rig.run();
    reader.drain_new(&mut rig.feed);
    assert_eq!(reader.offsets.len(), 4);
}

#[test]
fn blocks_that_keep_old_arenas_are_let_go() {
    let (mut rig, mut window, _) = fed();
    for arena in 0..4 {
        rig.append(3);
        rig.publish();
        let Block { segment, start, end, .. } = window.block(&rig.log).expect("records");
        rig.said(&Block::of_window(segment, start..end, Vec::new(), Vec::new(), 100, arena), arena);
    }
    let before = rig.feed.window.len();
    rig.feed.let_go_before(2);
    // What was read by itself before keeps the others in the window: they go in order.
    assert_eq!(rig.feed.window.len(), before);
    rig.feed.release(0);
    rig.feed.let_go_before(2);
    assert_eq!(rig.feed.window.len(), 2);
}

proptest! {
    #[test]
    fn whatever_a_window_brings_and_leaves_out_every_entry_is_seen_once_and_in_order(
        steps in prop::collection::vec((0u8..9, 1usize..4), 1..80),
    ) {
        let (mut rig, mut window, mut reader) = fed();
        let mut late = None;
        for (step, records) in steps {
            match step {
                0..=2 => drop(rig.append(records)),
                3 => drop(rig.log.roll(shard())),
                4 | 5 => {
                    if let Some(block) = window.block(&rig.log) {
                        rig.publish();
                        rig.offered(block);
                    }
                }
                6 => late = window.block(&rig.log).or(late.take()),
                7 => {
                    // Out of its order, and perhaps long ago.
                    if let Some(block) = late.take() {
                        rig.offered(block);
                    }
                    window.tell(&mut rig);
                }
                _ => {
                    rig.publish();
                    if rig.run().is_some() {
                        rig.feed.window_at(None);
                    }
                }
            }
            reader.drain_new(&mut rig.feed);
        }
        rig.feed.window_at(None);
        rig.publish();
        rig.run_for_long();
        reader.drain_new(&mut rig.feed);
        prop_assert_eq!(reader.offsets.len() as u64, rig.log.tail(shard()).expect("a tail").next_offset.0);
    }
}
