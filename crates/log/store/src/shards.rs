//! Which segments there are, shard by shard, and who may begin one. No I/O.
//!
//! Shards are spread over stripes, each with a lock of its own ([`crate::limits::STRIPES`]). An append holds its
//! stripe's lock while it is put into the journal's queue, so that the records of a segment are in the order of their
//! positions. No other lock is taken under it but the journal's.

use std::collections::BTreeMap;

use tailwater_format::{SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};
use tailwater_journal::{Incarnation, JournalPosition};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::StoreError;
use crate::segment::{Phase, Segment};

/// One shard's segments.
#[derive(Debug, Default)]
pub struct Shard {
    /// The highest term seen, and the highest number in it. It outlives the segments, as long as the process.
    pub highest: Option<(Term, SegmentNumber)>,
    /// In the order of the shard: by number, then term.
    pub segments: BTreeMap<(SegmentNumber, Term), Box<Segment>>,
}

/// A deleted segment whose files are still to be removed.
#[derive(Clone, Copy, Debug)]
pub struct Deleting {
    /// Which.
    pub id: SegmentId,
    /// Where the record of the deletion ends in the journal.
    pub record_end: JournalPosition,
    /// See [`Segment::needs_from`].
    pub needs_from: JournalPosition,
}

/// Some of the shards, under one lock.
#[derive(Debug, Default)]
pub struct Stripe {
    /// Their segments.
    pub shards: Shards,
    /// What the filler has to do.
    pub work: Work,
    /// The journal's incarnation that all appends here were made under.
    pub incarnation: Incarnation,
}

/// The shards of a stripe. A tree, because a stripe has few and an append looks one up.
#[derive(Debug, Default)]
pub struct Shards(BTreeMap<(StreamId, ShardNumber), Shard>);

/// What the filler has to do in a stripe.
#[derive(Debug, Default)]
pub struct Work {
    /// Segments that the files don't cover yet.
    pub dirty: Vec<SegmentId>,
    /// Segments with enough to write, ahead of the next round.
    pub ready: Vec<SegmentId>,
    /// Files to remove.
    pub deleting: Vec<Deleting>,
}

impl Work {
    /// Notes that the files don't cover `segment`, which needs no record before `floor`.
    pub fn mark_dirty(&mut self, segment: &mut Segment, floor: JournalPosition) {
        debug_assert!(segment.phase != Phase::Filed, "{}: its files have all of it", segment.id);
        if !segment.dirty {
            segment.dirty = true;
            segment.needs_from = floor;
            self.dirty.push(segment.id);
        }
    }
}

/// The stripe that a shard is in.
pub fn stripe_of(shard: &ShardId) -> usize {
    let hash = xxh3_64_with_seed(shard.stream.0.as_bytes(), u64::from(shard.shard.0));
    (hash % crate::limits::STRIPES as u64) as usize
}

impl Shards {
    /// The segment.
    pub fn get(&self, id: &SegmentId) -> Result<&Segment, StoreError> {
        let shard = self.0.get(&key(&id.shard)).ok_or(StoreError::Unknown(*id))?;
        shard.segments.get(&(id.number, id.term)).map(|segment| &**segment).ok_or(StoreError::Unknown(*id))
    }

    /// The segment.
    pub fn get_mut(&mut self, id: &SegmentId) -> Result<&mut Segment, StoreError> {
        let shard = self.0.get_mut(&key(&id.shard)).ok_or(StoreError::Unknown(*id))?;
        let segment = shard.segments.get_mut(&(id.number, id.term));
        segment.map(|segment| &mut **segment).ok_or(StoreError::Unknown(*id))
    }

    /// The segment, for an append: refused if a higher term has been seen in its shard.
    pub fn get_unfenced(&mut self, id: &SegmentId) -> Result<&mut Segment, StoreError> {
        let shard = self.0.get_mut(&key(&id.shard)).ok_or(StoreError::Unknown(*id))?;
        if let Some((highest, _)) = shard.highest
            && id.term < highest
        {
            return Err(StoreError::Fenced { term: id.term, highest });
        }
        let segment = shard.segments.get_mut(&(id.number, id.term));
        segment.map(|segment| &mut **segment).ok_or(StoreError::Unknown(*id))
    }

    /// The shard, if a segment of it was ever seen.
    pub fn shard(&self, shard: &ShardId) -> Option<&Shard> {
        self.0.get(&key(shard))
    }

    /// The shard, if a segment of it was ever seen.
    pub fn shard_mut(&mut self, shard: &ShardId) -> Option<&mut Shard> {
        self.0.get_mut(&key(shard))
    }

    /// Whether a segment of this id may begin: its term is the highest seen, and its number the highest in it. Its
    /// writer, the one of its term, knows of all that was lost: it would go on behind a gap otherwise.
    pub fn check_create(&self, id: &SegmentId) -> Result<(), StoreError> {
        let Some(shard) = self.0.get(&key(&id.shard)) else { return Ok(()) };
        let Some((term, number)) = shard.highest else { return Ok(()) };
        if id.term < term {
            return Err(StoreError::Fenced { term: id.term, highest: term });
        }
        if id.term == term && id.number <= number {
            return Err(StoreError::NotNext { number: id.number, term, highest: number });
        }
        let mut lost =
            shard.segments.values().filter(|segment| segment.id.term == id.term && segment.has_lost);
        if let Some(lost) = lost.next() {
            return Err(StoreError::LostBefore { id: lost.id, durable: lost.pending.appended() });
        }
        Ok(())
    }

    /// Adds a segment, and fences lower terms.
    pub fn insert(&mut self, segment: Segment) -> &mut Segment {
        let id = segment.id;
        let shard = self.0.entry(key(&id.shard)).or_default();
        shard.highest = shard.highest.max(Some((id.term, id.number)));
        let slot = shard.segments.entry((id.number, id.term));
        slot.insert_entry(Box::new(segment)).into_mut()
    }

    /// Takes a segment out. Its shard keeps its fence.
    pub fn remove(&mut self, id: &SegmentId) -> Option<Box<Segment>> {
        self.0.get_mut(&key(&id.shard))?.segments.remove(&(id.number, id.term))
    }

    /// All segments of the stripe.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.0.values().flat_map(|shard| shard.segments.values().map(|segment| &**segment))
    }

    /// All segments of the stripe.
    pub fn segments_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.0.values_mut().flat_map(|shard| shard.segments.values_mut().map(|segment| &mut **segment))
    }
}

fn key(shard: &ShardId) -> (StreamId, ShardNumber) {
    (shard.stream, shard.shard)
}

#[cfg(test)]
mod tests {
    use tailwater_format::{ShardNumber, StreamId};
    use uuid::Uuid;

    use super::*;

    fn id(number: u64, term: u32) -> SegmentId {
        let shard = ShardId { stream: StreamId(Uuid::from_u128(1)), shard: ShardNumber(0) };
        SegmentId { shard, number: SegmentNumber(number), term: Term(term) }
    }

    #[test]
    fn a_higher_term_fences_the_lower_ones_even_after_its_segment_is_gone() {
        let mut stripe = Shards::default();
        stripe.insert(Segment::new(id(0, 1), Phase::Open, 4096));
        assert!(stripe.get_unfenced(&id(0, 1)).is_ok());
        stripe.check_create(&id(1, 3)).expect("higher");
        stripe.insert(Segment::new(id(1, 3), Phase::Open, 4096));
        stripe.remove(&id(1, 3));
        let fenced = StoreError::Fenced { term: Term(1), highest: Term(3) };
        assert_eq!(stripe.get_unfenced(&id(0, 1)).map(|_| ()), Err(fenced));
        let fenced = StoreError::Fenced { term: Term(2), highest: Term(3) };
        assert_eq!(stripe.check_create(&id(9, 2)), Err(fenced));
        let used = StoreError::NotNext { number: SegmentNumber(1), term: Term(3), highest: SegmentNumber(1) };
        assert_eq!(stripe.check_create(&id(1, 3)), Err(used));
        assert_eq!(stripe.check_create(&id(2, 3)), Ok(()));
        assert_eq!(stripe.check_create(&id(0, 4)), Ok(()), "another owner may begin the same number again");
    }
}
