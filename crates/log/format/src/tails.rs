//! Tails: how far the newest segment of each shard reaches in either layer.
//!
//! The tails of [`SHARDS_PER_PAGE`] shards of a stream share one value in the metadata cell, a *tail page*, so that
//! one consistent read follows 64 files (Fast ACS, section 8: combining metadata). The stream's owner writes a
//! page as a whole; every reader process reads it. The cell checks the bytes, so there is no checksum here.
//!
//! ```text
//! page: offset size field          (little-endian)
//!            0    4 magic          "TWtp"
//!            4    2 version        1
//!            6    1 flags          bit 0: the stream is deleted
//!            7    1 slots          number of slots, at most 64
//!            8    4 page           slot i is shard page * 64 + i
//!           12    4 zero
//!           16   16 stream         UUID, in the order in which it is printed
//!           32      slots times 80 bytes
//!
//! slot: offset size field
//!            0    8 segment
//!            8    8 base_offset
//!           16    8 cached
//!           24    8 durable
//!           32    8 next_offset
//!           40    8 log_start
//!           48    8 previous segment, zero if there is none
//!           56    8 previous length
//!           64    4 previous term
//!           68    4 term
//!           72    4 chunk_bytes
//!           76    1 flags          bit 0: there is a tail; bit 1: sealed; bit 2: there is a previous segment;
//!                                  bit 3: the stream's bytes are not in the data cell
//!           77    3 zero
//! ```
//! A slot without a tail is all zeros. A value has one encoding only: what decodes encodes to the same bytes.

use bytes::{BufMut, Bytes, BytesMut};
use uuid::Uuid;

use crate::bytes_at::{bytes16, put_u32_le, put_u64_le, u16_le, u32_le, u64_le};
use crate::ids::{Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};
use crate::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, OFFSET_MAX, SHARDS_PER_PAGE, TERM_MAX};

/// Length of the longest tail page in bytes.
pub const TAIL_PAGE_BYTES_MAX: usize = HEADER_BYTES + SHARDS_PER_PAGE as usize * SLOT_BYTES;
/// Length of a tail page's key in bytes.
pub const TAIL_PAGE_KEY_BYTES: usize = 24;

const MAGIC: [u8; 4] = *b"TWtp";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 32;
const SLOT_BYTES: usize = 80;
const PAGE_DELETED: u8 = 1;
const SLOT_TAIL: u8 = 1;
const SLOT_SEALED: u8 = 2;
const SLOT_PREVIOUS: u8 = 4;
const SLOT_NO_CELLS: u8 = 8;

/// The newest segment of one shard, and how far it reaches. All positions and offsets are exclusive ends, but
/// the starts that say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The newest segment.
    pub segment: SegmentNumber,
    /// Its term.
    pub term: Term,
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Its length in the data cell. At the source at most `durable`; with duelling writers it may go back.
    pub cached: Position,
    /// Its durable length; never past what the source has made durable.
    pub durable: Position,
    /// Offset of the first record that is not below `durable`.
    pub next_offset: Offset,
    /// Nothing will be appended to it any more: `durable` is its final length.
    pub sealed: bool,
    /// The segment before it, with its term and its final length. Bytes of it past that length do not exist.
    pub previous: Option<(SegmentNumber, Term, Position)>,
    /// Size of its chunks in bytes.
    pub chunk_bytes: u32,
    /// Whether the stream's bytes are put into the data cell. If not, `cached` is 0, and readers ask the node for all.
    pub cells: bool,
    /// First offset of the shard that was not removed by retention or truncation.
    pub log_start: Offset,
}

impl Tail {
    /// Bytes between a place in one of the shard's segments and its end; `None` if this does not tell of that segment.
    pub fn rest(&self, segment: SegmentNumber, position: Position) -> Option<u64> {
        if segment > self.segment {
            return Some(0);
        }
        if segment == self.segment {
            return Some(self.durable.0.saturating_sub(position.0));
        }
        let (_, _, end) = self.previous.filter(|(number, ..)| *number == segment)?;
        Some(end.0.saturating_sub(position.0).saturating_add(self.durable.0))
    }

    /// The newest segment's full name.
    pub fn segment_id(&self, shard: ShardId) -> SegmentId {
        SegmentId { shard, number: self.segment, term: self.term }
    }

    /// The full name of the segment before it, with its final length.
    pub fn previous_segment_id(&self, shard: ShardId) -> Option<(SegmentId, Position)> {
        self.previous.map(|(number, term, len)| (SegmentId { shard, number, term }, len))
    }

    /// What every tail keeps to, on either side. It says nothing of how `cached` and `durable` relate: outside
    /// the source's cluster either may be ahead.
    pub fn is_possible(&self) -> bool {
        let terms = self.term.0 <= TERM_MAX && self.previous.is_none_or(|(_, term, _)| term.0 <= TERM_MAX);
        let order = self.previous.is_none_or(|(number, _, _)| number < self.segment);
        let offsets = self.base_offset <= self.next_offset
            && self.next_offset.0 <= OFFSET_MAX
            && self.log_start <= self.next_offset;
        let apart = self.cells || self.cached == Position(0);
        terms && order && offsets && apart && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&self.chunk_bytes)
    }
}

/// The tails of up to [`SHARDS_PER_PAGE`] consecutive shards of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailPage {
    /// The stream.
    pub stream: StreamId,
    /// Which page; its first tail is that of shard `page * SHARDS_PER_PAGE`.
    pub page: u32,
    /// The stream does not exist any more, and its id never will again.
    pub deleted: bool,
    /// One for each shard in order; `None` where no segment exists yet.
    pub tails: Vec<Option<Tail>>,
}

/// Why bytes are not a tail page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TailPageError {
    /// Too short or too long for what it says to contain.
    #[error("tail page of {found} bytes, expected {expected}")]
    Length {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        expected: usize,
    },
    /// It does not begin as a tail page does.
    #[error("begins with {found:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version that this program does not know.
    #[error("tail page version {found}, but only {VERSION} is known")]
    Version {
        /// The version.
        found: u16,
    },
    /// No writer writes this.
    #[error("impossible tail page header")]
    Header,
    /// No writer writes this.
    #[error("impossible tail in slot {slot}")]
    Slot {
        /// Which slot.
        slot: usize,
    },
}

/// The page that holds a shard's tail, and the place in it.
pub fn tail_page_of(shard: ShardNumber) -> (u32, usize) {
    (shard.0 / SHARDS_PER_PAGE, (shard.0 % SHARDS_PER_PAGE) as usize)
}

/// The key of a tail page in the metadata cell: "TWtp", the page's number (little-endian), the stream's UUID.
pub fn tail_page_key(stream: StreamId, page: u32) -> Bytes {
    let mut key = [0; TAIL_PAGE_KEY_BYTES];
    key[..4].copy_from_slice(&MAGIC);
    put_u32_le(&mut key, 4, page);
    key[8..].copy_from_slice(stream.0.as_bytes());
    Bytes::copy_from_slice(&key)
}

impl TailPage {
    /// The tail of a shard, if this is its page and it has one.
    pub fn tail(&self, shard: ShardNumber) -> Option<&Tail> {
        let (page, slot) = tail_page_of(shard);
        if page == self.page { self.tails.get(slot)?.as_ref() } else { None }
    }

    /// The bytes of the page.
    ///
    /// # Panics
    /// If there are more tails than a page holds, or one breaks the bounds that [`TailPage::decode`] checks.
    pub fn encode(&self) -> Bytes {
        assert!(self.tails.len() <= SHARDS_PER_PAGE as usize, "{} tails in one page", self.tails.len());
        let mut page = BytesMut::with_capacity(HEADER_BYTES + self.tails.len() * SLOT_BYTES);
        page.put_slice(&MAGIC);
        page.put_u16_le(VERSION);
        page.put_u8(if self.deleted { PAGE_DELETED } else { 0 });
        page.put_u8(self.tails.len() as u8);
        page.put_u32_le(self.page);
        page.put_u32_le(0);
        page.put_slice(self.stream.0.as_bytes());
        for tail in &self.tails {
            let mut slot = [0; SLOT_BYTES];
            if let Some(tail) = tail {
                assert!(tail.is_possible(), "a writer publishes possible tails only: {tail:?}");
                encode_slot(tail, &mut slot);
            }
            page.put_slice(&slot);
        }
        page.freeze()
    }

    /// One that says nothing, to decode others into.
    pub fn empty() -> Self {
        Self { stream: StreamId(Uuid::nil()), page: 0, deleted: false, tails: Vec::new() }
    }

    /// The page with these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, TailPageError> {
        let mut page = Self::empty();
        page.decode_into(bytes)?;
        Ok(page)
    }

    /// Becomes the page with these bytes, in the memory that this one has. After an error it is no page in particular.
    pub fn decode_into(&mut self, bytes: &[u8]) -> Result<(), TailPageError> {
        let Some((header, slots)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(TailPageError::Length { found: bytes.len(), expected: HEADER_BYTES });
        };
        if header[..4] != MAGIC {
            return Err(TailPageError::Magic { found: [header[0], header[1], header[2], header[3]] });
        }
        let version = u16_le(header, 4);
        if version != VERSION {
            return Err(TailPageError::Version { found: version });
        }
        let (flags, count) = (header[6], usize::from(header[7]));
        if flags & !PAGE_DELETED != 0 || count > SHARDS_PER_PAGE as usize || u32_le(header, 12) != 0 {
            return Err(TailPageError::Header);
        }
        let expected = HEADER_BYTES + count * SLOT_BYTES;
        if bytes.len() != expected {
            return Err(TailPageError::Length { found: bytes.len(), expected });
        }
        self.tails.clear();
        for (number, slot) in slots.chunks_exact(SLOT_BYTES).enumerate() {
            self.tails.push(decode_slot(slot).ok_or(TailPageError::Slot { slot: number })?);
        }
        self.stream = StreamId(Uuid::from_bytes(bytes16(header, 16)));
        self.page = u32_le(header, 8);
        self.deleted = flags & PAGE_DELETED != 0;
        Ok(())
    }
}

fn encode_slot(tail: &Tail, slot: &mut [u8; SLOT_BYTES]) {
    put_u64_le(slot, 0, tail.segment.0);
    put_u64_le(slot, 8, tail.base_offset.0);
    put_u64_le(slot, 16, tail.cached.0);
    put_u64_le(slot, 24, tail.durable.0);
    put_u64_le(slot, 32, tail.next_offset.0);
    put_u64_le(slot, 40, tail.log_start.0);
    put_u32_le(slot, 68, tail.term.0);
    put_u32_le(slot, 72, tail.chunk_bytes);
    slot[76] = SLOT_TAIL;
    if tail.sealed {
        slot[76] |= SLOT_SEALED;
    }
    if !tail.cells {
        slot[76] |= SLOT_NO_CELLS;
    }
    if let Some((number, term, len)) = tail.previous {
        put_u64_le(slot, 48, number.0);
        put_u64_le(slot, 56, len.0);
        put_u32_le(slot, 64, term.0);
        slot[76] |= SLOT_PREVIOUS;
    }
}

/// `Some(None)` for a slot without a tail; `None` for one that no writer writes.
fn decode_slot(slot: &[u8]) -> Option<Option<Tail>> {
    let flags = slot[76];
    if flags & SLOT_TAIL == 0 {
        return slot.iter().all(|byte| *byte == 0).then_some(None);
    }
    let previous = (SegmentNumber(u64_le(slot, 48)), Term(u32_le(slot, 64)), Position(u64_le(slot, 56)));
    let has_previous = flags & SLOT_PREVIOUS != 0;
    let tail = Tail {
        segment: SegmentNumber(u64_le(slot, 0)),
        term: Term(u32_le(slot, 68)),
        base_offset: Offset(u64_le(slot, 8)),
        cached: Position(u64_le(slot, 16)),
        durable: Position(u64_le(slot, 24)),
        next_offset: Offset(u64_le(slot, 32)),
        sealed: flags & SLOT_SEALED != 0,
        previous: has_previous.then_some(previous),
        chunk_bytes: u32_le(slot, 72),
        cells: flags & SLOT_NO_CELLS == 0,
        log_start: Offset(u64_le(slot, 40)),
    };
    let canonical = flags & !(SLOT_TAIL | SLOT_SEALED | SLOT_PREVIOUS | SLOT_NO_CELLS) == 0
        && slot[77..].iter().all(|byte| *byte == 0)
        && (has_previous || previous == (SegmentNumber(0), Term(0), Position(0)));
    (canonical && tail.is_possible()).then_some(Some(tail))
}

#[cfg(test)]
mod tests;
