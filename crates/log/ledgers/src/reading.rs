//! Reads by position, and searches. A ledger is read entry by entry, and each entry tells how many bytes the ledger
//! has up to and with it: where it begins follows from that. So an entry is found by halving, from the places that
//! are known.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

use bytes::{Bytes, BytesMut};
use tailwater_bookkeeper::{EntryId, LedgerFault, LedgerId, LedgerReader};
use tailwater_format::{Offset, Position, SegmentId, TransactionId};
use tailwater_store::StoreError;
use tailwater_store::limits::READ_BYTES_MAX;

use crate::cache::HeldEntry;
use crate::held::HeldSegment;
use crate::limits::{ENTRY_HEAD_BYTES, READS_MAX};
use crate::names::PASSWORD;
use crate::points::LedgerPoint;
use crate::store::LedgerStore;

/// What is read together with an entry that is looked for, where that comes from bookies.
#[derive(Clone, Copy)]
struct ReadTogether {
    entries: usize,
    bytes: usize,
}

impl ReadTogether {
    /// Nothing but the entry.
    const ALONE: Self = Self { entries: 1, bytes: 0 };

    /// The same behind an entry of so many bytes, if the others are no smaller. Where each entry is a request of its
    /// own nothing else bounds their bytes.
    fn behind(self, entry_bytes: usize) -> Self {
        Self { entries: self.entries.min(self.bytes / entry_bytes.max(1) + 1), ..self }
    }
}

/// What may be read of a segment: so many entries of a ledger, up to `end`.
#[derive(Clone, Copy)]
struct Extent {
    ledger: LedgerId,
    entries: i64,
    end: Position,
}

impl LedgerStore {
    pub(crate) async fn read_bytes(
        &self,
        id: &SegmentId,
        position: Position,
        length: usize,
    ) -> Result<Bytes, StoreError> {
        let held = self.get(id)?;
        let durable = held.state.lock().durable.get();
        if position > durable {
            return Err(StoreError::BeyondDurable { position, durable });
        }
        let wanted = length.min(READ_BYTES_MAX).min((durable.0 - position.0) as usize);
        let Some(extent) = extent_of(&held).filter(|_| wanted > 0) else { return Ok(Bytes::new()) };
        // As many entries as it will take if they are of the ledger's usual size.
        let usual = (extent.end.0 / extent.entries as u64).max(1) as usize;
        let entries = wanted.div_ceil(usual).saturating_add(1).min(READS_MAX);
        let together = ReadTogether { entries, bytes: wanted.saturating_add(entries * ENTRY_HEAD_BYTES) };
        let found = self.find(&held, extent, together, |point| point.beside_position(position)).await?;
        let found = found.filter(|point| point.beside_position(position) == Ordering::Equal);
        let first = found.ok_or_else(|| unreadable(&held, position, "no entry of its ledger holds that"))?;
        let with_it = together.behind((first.end.0 - first.position.0) as usize);
        let entry = self.entry(&held, extent, first.entry, with_it).await?;
        let begin = (position.0 - first.position.0) as usize;
        let head = entry.bytes.slice(begin..entry.bytes.len().min(begin + wanted));
        let end = extent.entries.min(first.entry + READS_MAX as i64);
        if head.len() == wanted || first.entry + 1 == end {
            return Ok(head);
        }
        let mut bytes = BytesMut::with_capacity(wanted);
        bytes.extend_from_slice(&head);
        let mut last = (first.entry, entry);
        for number in first.entry + 1..end {
            if bytes.len() == wanted {
                break;
            }
            let left = wanted - bytes.len();
            let entries = left.div_ceil(usual).min(together.entries);
            let left = ReadTogether { entries, bytes: left.saturating_add(entries * ENTRY_HEAD_BYTES) };
            let left = left.behind(last.1.bytes.len());
            let next = self.entry(&held, extent, number, left).await?;
            let at = Position(last.1.position.0 + last.1.bytes.len() as u64);
            if next.position != at {
                return Err(unreadable(&held, at, "its ledger's entries do not lie behind each other"));
            }
            bytes.extend_from_slice(&next.bytes[..next.bytes.len().min(wanted - bytes.len())]);
            last = (number, next);
        }
        // The next read goes on behind it.
        let (number, last) = last;
        if let Ok(point) = LedgerPoint::of(&held.id, number, last.position, &last.bytes) {
            held.state.lock().points.note(point);
        }
        Ok(bytes.freeze())
    }

    pub(crate) async fn position_of_offset(
        &self,
        id: &SegmentId,
        offset: Offset,
    ) -> Result<Position, StoreError> {
        let held = self.get(id)?;
        let Some(extent) = extent_of(&held) else { return Ok(Position(0)) };
        let found =
            self.find(&held, extent, ReadTogether::ALONE, |point| point.beside_offset(offset)).await?;
        Ok(found.map_or(Position(0), |point| point.position))
    }

    pub(crate) async fn position_of_transaction_id(
        &self,
        id: &SegmentId,
        wanted: TransactionId,
    ) -> Result<Position, StoreError> {
        let held = self.get(id)?;
        let Some(extent) = extent_of(&held) else { return Ok(Position(0)) };
        // The last entry that does not reach it; the one that does is the next.
        let beside = |point: &LedgerPoint| match point.transaction_id < wanted {
            true => Ordering::Less,
            false => Ordering::Greater,
        };
        let found = self.find(&held, extent, ReadTogether::ALONE, beside).await?;
        Ok(found.map_or(Position(0), |point| point.position))
    }

    /// The entry that is looked for, or else the last one before it; `None` if all are behind it.
    async fn find(
        &self,
        held: &HeldSegment,
        extent: Extent,
        together: ReadTogether,
        beside: impl Fn(&LedgerPoint) -> Ordering,
    ) -> Result<Option<LedgerPoint>, StoreError> {
        let (mut before, behind) = held.state.lock().points.around(&beside);
        let mut end = behind.map_or(extent.entries, |point| point.entry).min(extent.entries);
        // Whoever reads on wants the entry behind one that is known.
        let mut guess = before.map(|point| point.entry + 1);
        loop {
            if let Some(point) = before.filter(|point| beside(point) == Ordering::Equal) {
                return Ok(Some(point));
            }
            let begin = before.map_or(0, |point| point.entry + 1);
            if begin >= end {
                return Ok(before);
            }
            let (number, together) = match guess.take() {
                Some(number) => {
                    let size = before.map_or(0, |point| (point.end.0 - point.position.0) as usize);
                    (number, together.behind(size))
                }
                None => (begin + (end - begin) / 2, ReadTogether::ALONE),
            };
            let entry = self.entry(held, extent, number, together).await?;
            let point = LedgerPoint::of(&held.id, number, entry.position, &entry.bytes)
                .map_err(|why| unreadable(held, entry.position, &why))?;
            held.state.lock().points.note(point);
            match beside(&point) {
                Ordering::Greater => end = number,
                _ => before = Some(point),
            }
        }
    }

    /// An entry before the end of what may be read. Where it comes from bookies some behind it come with it, and are
    /// kept.
    async fn entry(
        &self,
        held: &HeldSegment,
        extent: Extent,
        number: i64,
        together: ReadTogether,
    ) -> Result<HeldEntry, StoreError> {
        if let Some(kept) = self.shared.cache.get(extent.ledger, number) {
            return Ok(kept);
        }
        let failed = |fault: LedgerFault| unreadable(held, extent.end, &fault.to_string());
        let reader = self.reader(held, extent).await.map_err(failed)?;
        let count = together.entries.min(usize::try_from(extent.entries - number).unwrap_or(1));
        let read = reader.read_some(EntryId::new(number), count, together.bytes).await.map_err(failed)?;
        self.shared.counters.entries_read.fetch_add(read.len() as u64, Relaxed);
        let mut first = None;
        for entry in read {
            let number = entry.entry.get();
            let position = entry.length.checked_sub(entry.payload.len() as u64);
            let position = position.ok_or_else(|| {
                unreadable(held, extent.end, &format!("entry {number} is longer than the ledger up to it"))
            })?;
            let entry = HeldEntry { position: Position(position), bytes: entry.payload };
            self.shared.cache.put(extent.ledger, number, entry.clone());
            first.get_or_insert(entry);
        }
        first.ok_or_else(|| unreadable(held, extent.end, &format!("entry {number} did not come")))
    }

    async fn reader<'a>(
        &self,
        held: &'a HeldSegment,
        extent: Extent,
    ) -> Result<&'a LedgerReader, LedgerFault> {
        let open = || self.shared.client.open(extent.ledger, PASSWORD);
        let reader = held.reader.get_or_try_init(open).await?;
        reader.learn(EntryId::new(extent.entries - 1)).await;
        Ok(reader)
    }
}

/// What may be read of a segment, if it has an entry that may be.
fn extent_of(held: &HeldSegment) -> Option<Extent> {
    let state = held.state.lock();
    let extent = Extent { ledger: state.ledger?, entries: state.entries, end: state.durable.get() };
    (extent.entries > 0 && extent.end > Position(0)).then_some(extent)
}

fn unreadable(held: &HeldSegment, position: Position, why: &str) -> StoreError {
    StoreError::Read { id: held.id, position, why: why.to_owned() }
}
