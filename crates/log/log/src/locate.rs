//! Positioning: from an offset, a time, a transaction id or a DLSN to the entry to begin reading with.
//!
//! The answer is exact to the record: `offset` is the first record asked for, and `position` is where the entry
//! that holds it begins. The store's sparse indexes lead close to it, a scan of a few entries' headers to it, and
//! only a time or a transaction id needs the records of one entry to be looked at.
//!
//! A record's transaction id is the largest timestamp of the shard up to and including that record, so the first
//! record whose id is at least T is the first one whose timestamp is: Kafka's `ListOffsets`. Where that one was
//! removed, it is the first one that is left.

use tailwater_format::limits::RECORDS_DECOMPRESSED_BYTES_MAX;
use tailwater_format::{
    Decompressor, Dlsn, Offset, Position, SegmentId, SegmentNumber, Term, TransactionId, batches,
};
use tailwater_store::StoreContract;

use crate::error::ReadError;
use crate::scan::{Scan, ScannedSegment, read_error};
use crate::view::View;

/// Where to begin reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocateRead {
    /// With the first record that is left.
    Start,
    /// With the next record to come.
    End,
    /// With the record at this offset.
    Offset(Offset),
    /// So many records before the end; from the first one that is left, if there are fewer.
    Last(u64),
    /// With the first record whose transaction id is at least this; by default that is the first one with a
    /// timestamp of at least so many ms. At the end if there is none.
    TransactionId(TransactionId),
    /// With this record; with the one after it if there is no such slot.
    Dlsn(Dlsn),
}

/// Where reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLocation {
    /// The first record to read.
    pub offset: Offset,
    /// The segment that it is, or will be, in. At the end of a sealed segment the record will be in the next.
    pub segment: SegmentNumber,
    /// That segment's term.
    pub term: Term,
    /// Where the entry that holds the record begins, or will begin.
    pub position: Position,
}

/// A segment that readers may see, with its visible end.
#[derive(Clone, Copy, Debug)]
struct LocatePart {
    id: SegmentId,
    base_offset: Offset,
    next_offset: Offset,
    end: Position,
}

/// Finds the place in the shard that `view` shows.
///
/// # Errors
/// `Truncated`, `BeyondEnd`; `NoSegment` if retention removed the segment meanwhile: look again with a newer view;
/// `Corrupt`, `Unavailable`.
pub(crate) async fn locate(
    view: &View,
    store: &dyn StoreContract,
    what: LocateRead,
) -> Result<ReadLocation, ReadError> {
    let (start, end) = (view.tail.log_start, view.tail.next_offset);
    match what {
        LocateRead::Start => by_offset(view, store, start).await,
        LocateRead::End => Ok(end_of(view)),
        LocateRead::Offset(offset) => by_offset(view, store, offset).await,
        LocateRead::Last(count) => {
            by_offset(view, store, Offset(end.0.saturating_sub(count)).max(start)).await
        }
        LocateRead::TransactionId(id) => by_transaction_id(view, store, id).await,
        LocateRead::Dlsn(dlsn) => by_dlsn(view, store, dlsn).await,
    }
}

fn end_of(view: &View) -> ReadLocation {
    let tail = &view.tail;
    ReadLocation { offset: tail.next_offset, segment: tail.segment, term: tail.term, position: tail.durable }
}

fn part(view: &View, index: usize) -> Option<LocatePart> {
    if let Some(segment) = view.completed.get(index) {
        return Some(LocatePart {
            id: view.id(segment),
            base_offset: segment.base_offset,
            next_offset: segment.next_offset,
            end: segment.length,
        });
    }
    let tail = &view.tail;
    view.open().filter(|_| index == view.completed.len()).map(|id| LocatePart {
        id,
        base_offset: tail.base_offset,
        next_offset: tail.next_offset,
        end: tail.durable,
    })
}

/// A segment's name and its visible end.
pub(crate) fn end_of_segment(view: &View, number: SegmentNumber) -> Option<(SegmentId, Position)> {
    let index = view.completed.partition_point(|segment| segment.number < number);
    part(view, index).filter(|part| part.id.number == number).map(|part| (part.id, part.end))
}

async fn by_offset(
    view: &View,
    store: &dyn StoreContract,
    offset: Offset,
) -> Result<ReadLocation, ReadError> {
    if offset < view.tail.log_start {
        return Err(ReadError::Truncated { log_start: view.tail.log_start });
    }
    if offset >= view.tail.next_offset {
        let end = view.tail.next_offset;
        return if offset == end { Ok(end_of(view)) } else { Err(ReadError::BeyondEnd { end }) };
    }
    let index = view.completed.partition_point(|segment| segment.next_offset <= offset);
    let part = part(view, index).ok_or(ReadError::NoSegment)?;
    let position = store.locate_offset(&part.id, offset).await.map_err(read_error)?;
    let mut scan = Scan::new(store, part.id, position, part.end);
    while let Some(scanned) = scan.next().await? {
        if scanned.header.next_offset() > offset {
            return Ok(at(offset, &scanned));
        }
    }
    Err(ReadError::Corrupt(format!("{} has no entry with offset {offset}", part.id)))
}

fn at(offset: Offset, scanned: &ScannedSegment) -> ReadLocation {
    let header = &scanned.header;
    ReadLocation { offset, segment: header.segment, term: header.term, position: scanned.position }
}

async fn by_transaction_id(
    view: &View,
    store: &dyn StoreContract,
    wanted: TransactionId,
) -> Result<ReadLocation, ReadError> {
    let index = view.completed.partition_point(|segment| segment.last_transaction_id < wanted);
    let Some(part) = part(view, index) else { return Ok(end_of(view)) };
    let position = store.locate_transaction_id(&part.id, wanted).await.map_err(read_error)?;
    let mut scan = Scan::new(store, part.id, position, part.end);
    while let Some(scanned) = scan.next().await? {
        if scanned.header.is_control() || scanned.header.transaction_id < wanted {
            continue;
        }
        // Everything before this entry that is left is below `wanted`, so the timestamps in it decide. Where none of
        // them reaches it, something did that was removed: all that is left has an id of at least that.
        let offset =
            first_reaching(&scan.batches(&scanned).await?, wanted)?.unwrap_or(scanned.header.base_offset);
        return if offset < view.tail.log_start {
            by_offset(view, store, view.tail.log_start).await
        } else {
            Ok(at(offset, &scanned))
        };
    }
    Ok(end_of(view))
}

/// Offset of the first record in `bytes`, an entry's batches, whose timestamp is at least `wanted`. Headers say what
/// their largest timestamp is as well, but that is the producer's word; the records were looked at when they came.
fn first_reaching(bytes: &[u8], wanted: TransactionId) -> Result<Option<Offset>, ReadError> {
    let corrupt = |error: &dyn std::fmt::Display| ReadError::Corrupt(error.to_string());
    let mut decompressor = Decompressor::new();
    for batch in batches(bytes) {
        let batch = batch.map_err(|error| corrupt(&error))?;
        let records = batch.records(&mut decompressor, RECORDS_DECOMPRESSED_BYTES_MAX);
        for record in records.map_err(|error| corrupt(&error))? {
            let record = record.map_err(|error| corrupt(&error))?;
            if record.timestamp_ms >= wanted.0 {
                return Ok(Some(record.offset));
            }
        }
    }
    Ok(None)
}

async fn by_dlsn(view: &View, store: &dyn StoreContract, dlsn: Dlsn) -> Result<ReadLocation, ReadError> {
    let log_start = view.tail.log_start;
    let index = view.completed.partition_point(|segment| segment.number < dlsn.segment);
    let Some(part) = part(view, index) else {
        return Err(ReadError::BeyondEnd { end: view.tail.next_offset });
    };
    if part.id.number > dlsn.segment {
        return Err(ReadError::Truncated { log_start });
    }
    if part.id.number < dlsn.segment {
        return Err(ReadError::BeyondEnd { end: view.tail.next_offset });
    }
    // Entry ids are dense and the index knows offsets, so halving the offsets finds an index point before the
    // entry; then the scan is as short as for an offset.
    let (mut low, mut high) = (part.base_offset.0, part.next_offset.0);
    let mut position = Position(0);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let point = store.locate_offset(&part.id, Offset(middle)).await.map_err(read_error)?;
        let first = Scan::new(store, part.id, point, part.end).next().await?;
        if first.is_some_and(|scanned| scanned.header.entry_id <= dlsn.entry) {
            (low, position) = (middle, point);
        } else {
            high = middle;
        }
    }
    let mut scan = Scan::new(store, part.id, position, part.end);
    let mut offset = part.next_offset;
    while let Some(scanned) = scan.next().await? {
        if scanned.header.entry_id >= dlsn.entry {
            let slot = dlsn.slot.0.min(scanned.header.record_count);
            offset = Offset(scanned.header.base_offset.0 + u64::from(slot));
            break;
        }
    }
    by_offset(view, store, offset).await
}
