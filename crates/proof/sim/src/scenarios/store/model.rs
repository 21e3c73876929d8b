//! What the segments of a store have to be like, as plain byte strings.

use std::collections::BTreeMap;

use bytes::Bytes;
use tailwater_format::{
    EntryFields, EntryId, Offset, Position, SegmentId, ShardId, Term, TransactionId, encode_entry,
};
use tailwater_store::RecoveredSegment;

use crate::checkers::{Violation, ensure};
use crate::scenarios::outcome::{Noted, Outcome};

/// One segment.
#[derive(Clone, Debug, Default)]
pub(super) struct SegmentModel {
    /// All that was ever appended, minus what a recovery or a seal cut.
    bytes: Vec<u8>,
    /// Where entries end.
    ends: Vec<u64>,
    /// Records in it, and its first offset.
    records: u64,
    base: u64,
    /// Its record of creation was acknowledged.
    created: bool,
    /// What has to be there: acknowledged, or seen by a reader.
    promised: u64,
    /// The length that an acknowledged seal said.
    sealed: Option<u64>,
    /// Asked for, perhaps done.
    deleting: bool,
    /// Done for certain.
    deleted: bool,
    /// It was there when the store was opened last.
    recovered: bool,
}

/// All segments, and what the scenario counts.
#[derive(Default)]
pub(super) struct Model {
    segments: BTreeMap<SegmentKey, SegmentModel>,
    /// The highest term created in each shard.
    terms: BTreeMap<u32, Term>,
    noted: Noted,
    /// Appends acknowledged.
    pub(super) acknowledged: u64,
}

/// A segment's id in an order.
type SegmentKey = (u32, u64, u32);

fn key(id: &SegmentId) -> SegmentKey {
    (id.shard.shard.0, id.number.0, id.term.0)
}

impl Outcome for Model {
    fn noted(&mut self) -> &mut Noted {
        &mut self.noted
    }
}

impl Model {
    fn segment(&mut self, id: &SegmentId) -> &mut SegmentModel {
        self.segments.entry(key(id)).or_default()
    }

    /// The number and the term that the next segment of the shard gets, if its owner changes or not.
    pub(super) fn next_segment(&self, shard: &ShardId, term: Option<Term>) -> (u64, Term) {
        let numbers = self.segments.keys().filter(|(other, ..)| *other == shard.shard.0);
        let number = numbers.map(|(_, number, _)| number + 1).max().unwrap_or(0);
        let highest = self.terms.get(&shard.shard.0).copied().unwrap_or(Term(0));
        (number, term.unwrap_or(highest.next()))
    }

    /// A segment was created; its offsets go on from where the shard's end.
    pub(super) fn created(&mut self, id: &SegmentId) -> Result<(), Violation> {
        let term = self.terms.entry(id.shard.shard.0).or_default();
        ensure(id.term >= *term, || format!("{id} was created after term {term}"))?;
        *term = id.term;
        let fresh = !self.segments.contains_key(&key(id));
        ensure(fresh, || format!("{id} was created twice"))?;
        self.segment(id);
        Ok(())
    }

    pub(super) fn creation_acknowledged(&mut self, id: &SegmentId) {
        self.segment(id).created = true;
    }

    /// The entry that continues a segment, with a body of `body` bytes.
    pub(super) fn next_entry(&mut self, id: &SegmentId, body: usize) -> Bytes {
        let segment = self.segment(id);
        let entry_id = EntryId(segment.ends.len() as u64);
        let record_count = (body as u32).min(3);
        let base_offset = Offset(segment.base + segment.records);
        // Bytes that belong to this entry of this segment and to no other.
        let salt = entry_id.0.wrapping_mul(31) ^ id.number.0.wrapping_mul(7) ^ u64::from(id.term.0);
        let batch: Bytes = (0..body).map(|at| (salt as u8).wrapping_add(at as u8)).collect();
        let fields = EntryFields {
            segment: *id,
            entry_id,
            base_offset,
            record_count,
            transaction_id: TransactionId(entry_id.0 as i64),
        };
        encode_entry(&fields, if body == 0 { &[] } else { std::slice::from_ref(&batch) })
    }

    /// An entry was appended; where it ends.
    pub(super) fn appended(&mut self, id: &SegmentId, entry: &Bytes, records: u32) -> Result<u64, Violation> {
        let highest = self.terms.get(&id.shard.shard.0).copied().unwrap_or_default();
        ensure(id.term >= highest, || format!("{id} took an append after term {highest} had begun"))?;
        let segment = self.segment(id);
        ensure(!segment.recovered, || format!("{id} took an append after a recovery"))?;
        ensure(segment.sealed.is_none(), || format!("{id} took an append after its seal"))?;
        segment.bytes.extend_from_slice(entry);
        segment.ends.push(segment.bytes.len() as u64);
        segment.records += u64::from(records);
        Ok(segment.bytes.len() as u64)
    }

    /// Where a segment ends as far as anybody knows.
    pub(super) fn end(&mut self, id: &SegmentId) -> Position {
        Position(self.segment(id).bytes.len() as u64)
    }

    /// Everything up to `end` was acknowledged.
    pub(super) fn acknowledged(&mut self, id: &SegmentId, end: u64) {
        let segment = self.segment(id);
        segment.promised = segment.promised.max(end);
        self.acknowledged += 1;
        self.count("acknowledged", 1);
    }

    /// The store says how far a segment is durable: a promise too.
    pub(super) fn durable(&mut self, id: &SegmentId, durable: u64, appended: u64) -> Result<(), Violation> {
        let segment = self.segment(id);
        ensure(durable <= appended, || format!("{id}: durable {durable} is beyond appended {appended}"))?;
        ensure(durable <= segment.bytes.len() as u64, || {
            format!("{id}: durable {durable}, but only {} bytes were appended", segment.bytes.len())
        })?;
        segment.promised = segment.promised.max(durable);
        Ok(())
    }

    /// A seal at `length` was acknowledged.
    pub(super) fn sealed(&mut self, id: &SegmentId, length: u64) -> Result<(), Violation> {
        let segment = self.segment(id);
        ensure(length >= segment.promised, || {
            format!("{id} was sealed at {length}, but {} bytes were promised", segment.promised)
        })?;
        let before = *segment.sealed.get_or_insert(length);
        ensure(before == length, || format!("{id} was sealed at {before}, and then at {length}"))?;
        segment.cut(length);
        self.count("seals", 1);
        Ok(())
    }

    pub(super) fn deleting(&mut self, id: &SegmentId) {
        self.segment(id).deleting = true;
    }

    pub(super) fn deleted(&mut self, id: &SegmentId) {
        self.segment(id).deleted = true;
        self.count("deletes", 1);
    }

    /// A reader got `bytes` at `position`.
    pub(super) fn read(&mut self, id: &SegmentId, position: u64, bytes: &[u8]) -> Result<(), Violation> {
        let segment = self.segment(id);
        let end = position + bytes.len() as u64;
        let there = segment.bytes.get(position as usize..end as usize);
        ensure(there == Some(bytes), || {
            format!("{id}: what was read at {position}..{end} is not what was appended")
        })?;
        segment.promised = segment.promised.max(end);
        Ok(())
    }

    /// Checks what a start found, and takes it as what there is.
    pub(super) fn recovered(&mut self, found: &[RecoveredSegment]) -> Result<(), Violation> {
        let mut present: BTreeMap<SegmentKey, &RecoveredSegment> = BTreeMap::new();
        for recovered in found {
            let id = recovered.id;
            if let Some(damage) = &recovered.damaged {
                return Err(Violation::new(format!("{id} is damaged: {damage}")));
            }
            present.insert(key(&id), recovered);
            let Some(segment) = self.segments.get_mut(&key(&id)) else {
                return Err(Violation::new(format!("{id} was found, but never created")));
            };
            ensure(!segment.deleted, || format!("{id} was deleted, and came back"))?;
            let length = recovered.length.0;
            ensure(length >= segment.promised, || {
                format!("{id} has {length} bytes, but {} were acknowledged or read", segment.promised)
            })?;
            ensure(length == 0 || segment.ends.contains(&length), || {
                format!("{id} ends at {length}, which is no end of an entry of its {}", segment.bytes.len())
            })?;
            if let Some(sealed) = segment.sealed {
                ensure(recovered.sealed && length == sealed, || {
                    format!("{id} was sealed at {sealed}, and has {length} bytes")
                })?;
            }
            segment.cut(length);
            segment.promised = length;
            segment.deleting = false;
            segment.created = true;
            segment.recovered = true;
            if recovered.sealed {
                segment.sealed = Some(length);
            }
        }
        for (key, segment) in &mut self.segments {
            if present.contains_key(key) {
                continue;
            }
            let promised = (segment.created || segment.promised > 0 || segment.sealed.is_some())
                && !segment.deleting
                && !segment.deleted;
            ensure(!promised, || {
                let (shard, number, term) = key;
                format!("segment {shard}/{number}.{term} of {} bytes is not there", segment.promised)
            })?;
            segment.deleted = true;
        }
        self.count("segments recovered", found.len() as u64);
        Ok(())
    }

    /// A sealed segment of the shard that may be deleted, the oldest first.
    pub(super) fn oldest_sealed(&self, shard: &ShardId) -> Option<(u64, Term)> {
        let mut all = self.segments.iter();
        let oldest = all.find(|((other, ..), segment)| {
            *other == shard.shard.0 && segment.sealed.is_some() && !segment.deleting && !segment.deleted
        });
        oldest.map(|((_, number, term), _)| (*number, Term(*term)))
    }

    /// Segments of the shard that a start found and that nobody has sealed yet.
    pub(super) fn unsealed(&self, shard: &ShardId) -> Vec<(u64, Term, u64)> {
        let all = self.segments.iter().filter(|((other, ..), segment)| {
            *other == shard.shard.0 && segment.sealed.is_none() && !segment.deleting && !segment.deleted
        });
        all.map(|((_, number, term), segment)| (*number, Term(*term), segment.bytes.len() as u64)).collect()
    }
}

impl SegmentModel {
    fn cut(&mut self, length: u64) {
        self.bytes.truncate(length as usize);
        self.ends.retain(|end| *end <= length);
    }
}
