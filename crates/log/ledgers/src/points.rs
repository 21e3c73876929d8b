//! Entries of a ledger whose places are known: where a search for another one begins.

use std::cmp::Ordering;

use tailwater_format::{
    EntryError, EntryHeader, Offset, Position, SegmentId, TransactionId, parse_entry_header,
};

use crate::limits::POINTS_MAX;

/// Where an entry lies, in its ledger and in its segment, and what its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LedgerPoint {
    /// Its number in the ledger, from 0.
    pub(crate) entry: i64,
    pub(crate) position: Position,
    /// Where the next one begins.
    pub(crate) end: Position,
    pub(crate) base_offset: Offset,
    pub(crate) next_offset: Offset,
    /// Of its last record, running.
    pub(crate) transaction_id: TransactionId,
}

impl LedgerPoint {
    /// That of the entry with these bytes, which is to be one of `id`.
    pub(crate) fn of(id: &SegmentId, entry: i64, position: Position, bytes: &[u8]) -> Result<Self, String> {
        let header: EntryHeader = parse_entry_header(bytes).map_err(|error: EntryError| error.to_string())?;
        if header.segment_id() != *id {
            return Err(format!("the ledger has an entry of segment {}", header.segment_id()));
        }
        if header.len as usize != bytes.len() {
            return Err(format!("an entry of {} bytes says that it has {}", bytes.len(), header.len));
        }
        Ok(Self {
            entry,
            position,
            end: Position(position.0 + bytes.len() as u64),
            base_offset: header.base_offset,
            next_offset: header.next_offset(),
            transaction_id: header.transaction_id,
        })
    }

    /// Where it is, seen from the entry that holds `position`.
    pub(crate) fn beside_position(&self, position: Position) -> Ordering {
        within(&position, &self.position, &self.end)
    }

    /// Where it is, seen from the entry that holds `offset`.
    pub(crate) fn beside_offset(&self, offset: Offset) -> Ordering {
        within(&offset, &self.base_offset, &self.next_offset)
    }
}

/// `Less` if the part from `begin` to `end` lies before `wanted`, `Greater` behind it.
fn within<T: Ord>(wanted: &T, begin: &T, end: &T) -> Ordering {
    if end <= wanted {
        Ordering::Less
    } else if begin > wanted {
        Ordering::Greater
    } else {
        Ordering::Equal
    }
}

/// Some of a segment's entries, in order.
#[derive(Debug, Default)]
pub(crate) struct LedgerPoints(Vec<LedgerPoint>);

impl LedgerPoints {
    /// One more.
    pub(crate) fn note(&mut self, point: LedgerPoint) {
        let at = self.0.partition_point(|known| known.entry < point.entry);
        if self.0.get(at).is_some_and(|known| known.entry == point.entry) {
            return;
        }
        self.0.insert(at, point);
        if self.0.len() > POINTS_MAX {
            let mut keep = false;
            self.0.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }

    /// The last one that lies before what is looked for or is it, and the first one behind it.
    pub(crate) fn around(
        &self,
        beside: impl Fn(&LedgerPoint) -> Ordering,
    ) -> (Option<LedgerPoint>, Option<LedgerPoint>) {
        let behind = self.0.partition_point(|point| beside(point) != Ordering::Greater);
        (behind.checked_sub(1).map(|before| self.0[before]), self.0.get(behind).copied())
    }

    /// Where the last one begins.
    pub(crate) fn last(&self) -> Option<Position> {
        self.0.last().map(|point| point.position)
    }

    /// Forgets those that end behind `length`.
    pub(crate) fn cut(&mut self, length: Position) {
        self.0.retain(|point| point.end <= length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(entry: i64) -> LedgerPoint {
        let at = entry as u64;
        LedgerPoint {
            entry,
            position: Position(at * 10),
            end: Position(at * 10 + 10),
            base_offset: Offset(at * 3),
            next_offset: Offset(at * 3 + 3),
            transaction_id: TransactionId(entry),
        }
    }

    #[test]
    fn the_points_around_a_place_are_found_in_whatever_order_they_were_noted() {
        let mut points = LedgerPoints::default();
        for entry in [8, 2, 5, 2] {
            points.note(point(entry));
        }
        let around = |position| points.around(|point| point.beside_position(Position(position)));
        assert_eq!(around(29), (Some(point(2)), Some(point(5))));
        assert_eq!(around(30), (Some(point(2)), Some(point(5))));
        assert_eq!(around(50), (Some(point(5)), Some(point(8))));
        assert_eq!(around(0), (None, Some(point(2))));
        assert_eq!(around(99), (Some(point(8)), None));
        assert_eq!(points.around(|point| point.beside_offset(Offset(15))).0, Some(point(5)));
        points.cut(Position(60));
        assert_eq!(points.last(), Some(Position(50)));
    }

    #[test]
    fn they_are_bounded_and_stay_spread() {
        let mut points = LedgerPoints::default();
        for entry in 0..4 * POINTS_MAX as i64 {
            points.note(point(entry));
        }
        assert!(points.0.len() <= POINTS_MAX);
        assert_eq!(points.0[0], point(0));
        assert!(points.0.is_sorted_by_key(|point| point.entry));
    }
}
