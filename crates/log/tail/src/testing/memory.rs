//! A log in memory: what a node has, without durability, time or a network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tailwater_format::batch::{self, BatchBuilder, Codec};
use tailwater_format::{
    EntryFields, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail,
    Term, TransactionId, encode_entry_with,
};

use crate::{DurableSource, FromSource, Place, SourceError, SourceSegment};

/// Some shards, in memory. Cheap to clone; clones are the same log.
#[derive(Clone)]
pub struct MemoryLog {
    inner: Arc<Mutex<MemoryInner>>,
    chunk_bytes: u32,
}

#[derive(Default)]
struct MemoryInner {
    shards: BTreeMap<ShardId, Shard>,
    deleted: BTreeSet<StreamId>,
    refused: BTreeSet<ShardId>,
    unavailable: bool,
    reads: u64,
}

struct Segment {
    term: Term,
    base_offset: Offset,
    bytes: BytesMut,
    entries: Vec<(Position, Offset)>,
    sealed: bool,
}

struct Shard {
    segments: BTreeMap<SegmentNumber, Segment>,
    term: Term,
    next_segment: SegmentNumber,
    next_offset: Offset,
    log_start: Offset,
    values: BTreeMap<Offset, Bytes>,
}

/// What an append made durable: what a writer is told.
#[derive(Clone, Debug)]
pub struct MemoryAppended {
    /// The segment.
    pub segment: SegmentId,
    /// Where the bytes begin.
    pub from: Position,
    /// The entry.
    pub bytes: Bytes,
    /// The tail with it.
    pub tail: Tail,
}

impl MemoryLog {
    /// One without shards; `chunk_bytes` is said in tails.
    pub fn new(chunk_bytes: u32) -> Self {
        Self { inner: Arc::default(), chunk_bytes }
    }

    /// Appends an entry of one batch with a record for each of `values`, or a control entry if there are none. A
    /// shard that is not there begins with it.
    pub fn append(&self, id: ShardId, values: &[&[u8]]) -> MemoryAppended {
        self.append_with(id, values, Codec::None)
    }

    /// The same, compressed.
    pub fn append_with(&self, id: ShardId, values: &[&[u8]], codec: Codec) -> MemoryAppended {
        let mut inner = self.inner.lock();
        let shard = inner.shards.entry(id).or_insert_with(|| Shard {
            segments: BTreeMap::new(),
            term: Term(1),
            next_segment: SegmentNumber(1),
            next_offset: Offset(0),
            log_start: Offset(0),
            values: BTreeMap::new(),
        });
        let open = shard.segments.last_key_value().filter(|(_, segment)| !segment.sealed);
        let number = open.map_or(shard.next_segment, |(number, _)| *number);
        let (term, base_offset) = (shard.term, shard.next_offset);
        shard.next_segment = number.next();
        let segment = shard.segments.entry(number).or_insert_with(|| Segment {
            term,
            base_offset,
            bytes: BytesMut::new(),
            entries: Vec::new(),
            sealed: false,
        });
        let segment_id = SegmentId { shard: id, number, term };
        let mut builder = BatchBuilder::new();
        for value in values {
            builder.append(None, Some(value), &[], 1_000).expect("a short record");
            shard.values.insert(shard.next_offset, Bytes::copy_from_slice(value));
            shard.next_offset = shard.next_offset.next();
        }
        let batches: Vec<Bytes> = (!values.is_empty()).then(|| builder.finish(codec)).into_iter().collect();
        let fields = EntryFields {
            segment: segment_id,
            entry_id: EntryId(segment.entries.len() as u64),
            base_offset,
            record_count: values.len() as u32,
            transaction_id: TransactionId(1_000),
        };
        let bytes = encode_entry_with(&fields, batches.iter(), |body| {
            if !body.is_empty() {
                batch::assign(body, base_offset, term);
            }
        });
        let from = Position(segment.bytes.len() as u64);
        segment.entries.push((from, base_offset));
        segment.bytes.extend_from_slice(&bytes);
        let tail = tail_of(shard, self.chunk_bytes).expect("it has a segment");
        MemoryAppended { segment: segment_id, from, bytes, tail }
    }

    /// Seals the open segment; the next append begins another one.
    pub fn roll(&self, id: ShardId) -> Tail {
        self.with(id, |shard| {
            if let Some(mut last) = shard.segments.last_entry() {
                last.get_mut().sealed = true;
            }
        })
    }

    /// The same, with a higher term from here on: another owner.
    pub fn roll_with_new_term(&self, id: ShardId) -> Tail {
        self.with(id, |shard| shard.term = shard.term.next());
        self.roll(id)
    }

    /// Leaves a number out: the next segment has the one behind it.
    pub fn leave_number_out(&self, id: ShardId) -> Tail {
        self.with(id, |shard| shard.next_segment = shard.next_segment.next())
    }

    /// Cuts the open segment at `length`, where an entry ends, and seals it, as if the rest had never become
    /// durable; without anything left, its number is free again. Appends go on in a higher term.
    pub fn lose(&self, id: ShardId, length: Position) -> Option<Tail> {
        self.with(id, |shard| shard.term = shard.term.next());
        self.lose_in_term(id, length)
    }

    /// The same, but appends go on in the same term, as those of a copy do: they bring what was lost.
    pub fn lose_in_term(&self, id: ShardId, length: Position) -> Option<Tail> {
        let mut inner = self.inner.lock();
        let shard = inner.shards.get_mut(&id).expect("the shard is there");
        let mut last = shard.segments.last_entry().expect("it has a segment");
        let number = *last.key();
        let segment = last.get_mut();
        segment.bytes.truncate(length.0 as usize);
        segment.sealed = true;
        let lost = segment.entries.iter().position(|(from, _)| *from >= length);
        if let Some(lost) = lost {
            shard.next_offset = segment.entries[lost].1;
            segment.entries.truncate(lost);
        }
        shard.values.split_off(&shard.next_offset);
        if length == Position(0) {
            last.remove();
            shard.next_segment = number;
        }
        tail_of(shard, self.chunk_bytes)
    }

    /// Removes sealed segments that have no record from `before` on, which becomes the start of the log.
    pub fn truncate(&self, id: ShardId, before: Offset) -> Tail {
        self.with(id, |shard| {
            shard.log_start = shard.log_start.max(before).min(shard.next_offset);
            while let Some((&number, next)) =
                shard.segments.keys().next().zip(shard.segments.values().nth(1).map(|next| next.base_offset))
            {
                if next > shard.log_start {
                    break;
                }
                shard.segments.remove(&number);
            }
            shard.values = shard.values.split_off(&shard.log_start);
        })
    }

    /// Deletes a stream with all its shards.
    pub fn delete_stream(&self, stream: StreamId) {
        let mut inner = self.inner.lock();
        inner.shards.retain(|shard, _| shard.stream != stream);
        inner.deleted.insert(stream);
    }

    /// Has the source refuse a shard from here on.
    pub fn refuse(&self, id: ShardId) {
        self.inner.lock().refused.insert(id);
    }

    /// Whether the source answers.
    pub fn set_available(&self, available: bool) {
        self.inner.lock().unavailable = !available;
    }

    /// Reads that the source answered.
    pub fn reads(&self) -> u64 {
        self.inner.lock().reads
    }

    /// The shard's tail.
    pub fn tail(&self, id: ShardId) -> Option<Tail> {
        tail_of(self.inner.lock().shards.get(&id)?, self.chunk_bytes)
    }

    /// The entry that holds `offset`, or the end of the log.
    ///
    /// # Panics
    /// If the shard has no segment.
    pub fn locate(&self, id: ShardId, offset: Offset) -> Place {
        let inner = self.inner.lock();
        let shard = &inner.shards[&id];
        let mut place = None;
        for (number, segment) in &shard.segments {
            for (position, base_offset) in &segment.entries {
                if *base_offset <= offset && offset < shard.next_offset {
                    place = Some(Place { segment: *number, position: *position });
                }
            }
        }
        place.unwrap_or_else(|| {
            let (number, last) = shard.segments.last_key_value().expect("it has a segment");
            Place { segment: *number, position: Position(last.bytes.len() as u64) }
        })
    }

    /// The values of a shard by their offsets.
    pub fn values(&self, id: ShardId) -> BTreeMap<Offset, Bytes> {
        self.inner.lock().shards.get(&id).map(|shard| shard.values.clone()).unwrap_or_default()
    }

    /// Bytes of a segment, as many as there are in the range.
    pub fn bytes(&self, segment: SegmentId, from: Position, to: Position) -> Bytes {
        let inner = self.inner.lock();
        let found = inner.shards.get(&segment.shard).and_then(|shard| shard.segments.get(&segment.number));
        let Some(found) = found.filter(|found| found.term == segment.term) else { return Bytes::new() };
        let to = (to.0 as usize).min(found.bytes.len());
        found.bytes.get(from.0 as usize..to).map(Bytes::copy_from_slice).unwrap_or_default()
    }

    /// Changes one byte of what is stored.
    pub fn damage(&self, segment: SegmentId, at: Position) {
        let mut inner = self.inner.lock();
        let shard = inner.shards.get_mut(&segment.shard).expect("the shard is there");
        shard.segments.get_mut(&segment.number).expect("the segment is there").bytes[at.0 as usize] ^= 0x5a;
    }

    /// [`DurableSource::segments`] at this moment.
    pub fn list(&self, id: ShardId, from: SegmentNumber) -> Result<Vec<SourceSegment>, SourceError> {
        let inner = self.inner.lock();
        check(&inner, id)?;
        let shard = inner.shards.get(&id).ok_or(SourceError::NoStream)?;
        let info = |(number, segment): (&SegmentNumber, &Segment)| SourceSegment {
            number: *number,
            term: segment.term,
            base_offset: segment.base_offset,
            length: Position(segment.bytes.len() as u64),
            sealed: segment.sealed,
        };
        Ok(shard.segments.range(from..).map(info).collect())
    }

    /// [`DurableSource::read`] at this moment.
    pub fn read_some(&self, segment: SegmentId, from: Position, len: u32) -> Result<Bytes, SourceError> {
        {
            let mut inner = self.inner.lock();
            check(&inner, segment.shard)?;
            inner.reads += 1;
            let shard = inner.shards.get(&segment.shard).ok_or(SourceError::NoStream)?;
            let oldest = shard.segments.keys().next();
            if oldest.is_none_or(|oldest| segment.number < *oldest) {
                return Err(SourceError::Truncated { log_start: shard.log_start });
            }
        }
        let bytes = self.bytes(segment, from, Position(from.0.saturating_add(u64::from(len))));
        if bytes.is_empty() {
            return Err(SourceError::Unavailable(format!("{segment} has nothing at {from}")));
        }
        Ok(bytes)
    }

    fn with(&self, id: ShardId, change: impl FnOnce(&mut Shard)) -> Tail {
        let mut inner = self.inner.lock();
        let shard = inner.shards.get_mut(&id).expect("the shard is there");
        change(shard);
        tail_of(shard, self.chunk_bytes).expect("it has a segment")
    }
}

fn check(inner: &MemoryInner, shard: ShardId) -> Result<(), SourceError> {
    if inner.refused.contains(&shard) {
        return Err(SourceError::Refused("damaged".to_owned()));
    }
    check_stream(inner, shard.stream)
}

fn check_stream(inner: &MemoryInner, stream: StreamId) -> Result<(), SourceError> {
    if inner.unavailable {
        return Err(SourceError::Unavailable("switched off".to_owned()));
    }
    if inner.deleted.contains(&stream) || !inner.shards.keys().any(|shard| shard.stream == stream) {
        return Err(SourceError::NoStream);
    }
    Ok(())
}

fn tail_of(shard: &Shard, chunk_bytes: u32) -> Option<Tail> {
    let mut newest = shard.segments.iter().rev();
    let (number, segment) = newest.next()?;
    let previous = newest.next().map(|(number, old)| (*number, old.term, Position(old.bytes.len() as u64)));
    Some(Tail {
        segment: *number,
        term: segment.term,
        base_offset: segment.base_offset,
        cached: Position(0),
        durable: Position(segment.bytes.len() as u64),
        next_offset: shard.next_offset,
        sealed: segment.sealed,
        previous,
        chunk_bytes,
        cells: true,
        log_start: shard.log_start,
    })
}

impl DurableSource for MemoryLog {
    fn read(&self, segment: SegmentId, from: Position, len: u32) -> FromSource<'_, Bytes> {
        Box::pin(std::future::ready(self.read_some(segment, from, len)))
    }

    fn tails<'a>(&'a self, stream: StreamId, shards: &'a [ShardNumber]) -> FromSource<'a, Vec<Option<Tail>>> {
        let inner = self.inner.lock();
        let tail = |shard: &ShardNumber| {
            tail_of(inner.shards.get(&ShardId { stream, shard: *shard })?, self.chunk_bytes)
        };
        let mut checked = shards.iter().map(|shard| check(&inner, ShardId { stream, shard: *shard }));
        let checked = checked.find(Result::is_err).unwrap_or(Ok(()));
        let answer = checked.and_then(|()| check_stream(&inner, stream));
        let answer = answer.map(|()| shards.iter().map(tail).collect());
        Box::pin(std::future::ready(answer))
    }

    fn segments(&self, shard: ShardId, from: SegmentNumber) -> FromSource<'_, Vec<SourceSegment>> {
        Box::pin(std::future::ready(self.list(shard, from)))
    }
}
