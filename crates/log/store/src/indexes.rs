//! Indexes of filed segments that are kept in memory, within a bound.
//!
//! One whose sidecar has its points costs a small read if it is not here. Those used last are kept whole.
//!
//! One that took a scan of its segment's file would cost that again: its sidecar has no points, as a segment's that was
//! open when its node ended, or damaged ones. So none is left out. Where they become too many, the largest one loses
//! every second point, and with that lookups in its segment read on from further before. That way all of them have
//! about as many points, however many segments there are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tailwater_format::SegmentId;

use crate::index::SparseIndex;
use crate::limits::INDEX_POINTS_MAX;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct FiledIndexes {
    read: IndexesRead,
    scanned: IndexesScanned,
}

impl FiledIndexes {
    /// The segment's index, if it is here.
    pub(crate) fn get(&mut self, id: &SegmentId) -> Option<Arc<SparseIndex>> {
        self.scanned.of.get(id).cloned().or_else(|| self.read.get(id))
    }

    /// Keeps an index whose points a sidecar has.
    pub(crate) fn keep_read(&mut self, id: SegmentId, index: Arc<SparseIndex>) {
        self.forget(&id);
        self.read.keep(id, index);
    }

    /// Keeps an index that took a scan.
    pub(crate) fn keep_scanned(&mut self, id: SegmentId, index: Arc<SparseIndex>) {
        self.forget(&id);
        self.scanned.keep(id, index);
    }

    /// Forgets the index of a segment that is deleted.
    pub(crate) fn forget(&mut self, id: &SegmentId) {
        self.read.forget(id);
        self.scanned.forget(id);
    }
}

/// Those of sidecars: of all that were used those used last.
#[derive(Debug, Default)]
struct IndexesRead {
    /// With when it was used.
    of: BTreeMap<SegmentId, (u64, Arc<SparseIndex>)>,
    by_use: BTreeMap<u64, SegmentId>,
    points: usize,
    uses: u64,
}

impl IndexesRead {
    fn get(&mut self, id: &SegmentId) -> Option<Arc<SparseIndex>> {
        let (used, index) = self.of.get_mut(id)?;
        self.by_use.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.by_use.insert(*used, *id);
        Some(index.clone())
    }

    fn keep(&mut self, id: SegmentId, index: Arc<SparseIndex>) {
        self.uses += 1;
        self.points += cost(&index);
        self.by_use.insert(self.uses, id);
        self.of.insert(id, (self.uses, index));
        while self.points > INDEX_POINTS_MAX
            && let Some(oldest) = self.by_use.first_key_value().map(|(_, id)| *id)
        {
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, id: &SegmentId) {
        if let Some((used, index)) = self.of.remove(id) {
            self.by_use.remove(&used);
            self.points -= cost(&index);
        }
    }
}

/// Those of scans: all of them, with fewer points the more they are.
#[derive(Debug, Default)]
struct IndexesScanned {
    of: BTreeMap<SegmentId, Arc<SparseIndex>>,
    by_points: BTreeSet<(usize, SegmentId)>,
    points: usize,
}

impl IndexesScanned {
    fn keep(&mut self, id: SegmentId, index: Arc<SparseIndex>) {
        self.insert(id, index);
        while self.points > INDEX_POINTS_MAX
            && let Some((_, largest)) = self.by_points.last().copied()
            && let Some(index) = self.forget(&largest)
        {
            // With a single point each the segments themselves take more memory than their indexes.
            if index.points().len() <= 1 {
                self.insert(largest, index);
                return;
            }
            self.insert(largest, Arc::new(index.thinned()));
        }
    }

    fn insert(&mut self, id: SegmentId, index: Arc<SparseIndex>) {
        self.points += cost(&index);
        self.by_points.insert((cost(&index), id));
        self.of.insert(id, index);
    }

    fn forget(&mut self, id: &SegmentId) -> Option<Arc<SparseIndex>> {
        let index = self.of.remove(id)?;
        self.by_points.remove(&(cost(&index), *id));
        self.points -= cost(&index);
        Some(index)
    }
}

/// An index without points takes memory, too.
fn cost(index: &SparseIndex) -> usize {
    index.points().len().max(1)
}

#[cfg(test)]
mod tests {
    use tailwater_format::{
        Offset, Position, SegmentNumber, ShardId, ShardNumber, StreamId, Term, TransactionId,
    };
    use uuid::Uuid;

    use super::*;
    use crate::index::Point;

    fn segment(number: u64) -> SegmentId {
        let shard = ShardId { stream: StreamId(Uuid::from_u128(1)), shard: ShardNumber(0) };
        SegmentId { shard, number: SegmentNumber(number), term: Term(1) }
    }

    fn index(points: usize) -> Arc<SparseIndex> {
        let point = |number: u64| Point {
            position: Position(number * 100),
            base_offset: Offset(number * 10),
            transaction_id: TransactionId(number as i64),
        };
        Arc::new(SparseIndex::from_points(100, (0..points as u64).map(point).collect()))
    }

    fn points(indexes: &FiledIndexes) -> (usize, usize) {
        (indexes.read.points, indexes.scanned.points)
    }

    #[test]
    fn of_indexes_that_sidecars_have_those_used_last_are_kept() {
        let mut indexes = FiledIndexes::default();
        let third = INDEX_POINTS_MAX / 3;
        (0..3).for_each(|number| indexes.keep_read(segment(number), index(third)));
        assert!(indexes.get(&segment(0)).is_some());
        indexes.keep_read(segment(3), index(third));
        let kept = [0, 1, 2, 3].map(|number| indexes.get(&segment(number)).is_some());
        assert_eq!(kept, [true, false, true, true]);
        assert_eq!(points(&indexes), (3 * third, 0));
    }

    #[test]
    fn no_index_that_took_a_scan_is_left_out_and_all_get_coarser_alike() {
        let mut indexes = FiledIndexes::default();
        let whole = index(INDEX_POINTS_MAX / 64);
        for number in 0..1_000 {
            indexes.keep_scanned(segment(number), Arc::clone(&whole));
            assert!(indexes.scanned.points <= INDEX_POINTS_MAX);
        }
        let counts: Vec<usize> = (0..1_000)
            .map(|number| indexes.get(&segment(number)).expect("all are kept").points().len())
            .collect();
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(
            least.zip(most).is_some_and(|(least, most)| most.div_ceil(2) <= *least + 1),
            "{least:?}, {most:?}"
        );
        assert!(counts.iter().sum::<usize>() > INDEX_POINTS_MAX / 4, "the memory is used");
    }

    #[test]
    fn what_a_coarser_index_answers_is_at_or_before_the_entry() {
        let whole = index(1_000);
        let coarse = whole.thinned().thinned();
        for offset in 0..11_000 {
            let (found, exact) = (coarse.by_offset(Offset(offset)), whole.by_offset(Offset(offset)));
            assert!(found <= exact && exact.0 - found.0 <= 300, "{found} and {exact}");
        }
    }

    #[test]
    fn a_deleted_segment_s_index_takes_no_memory() {
        let mut indexes = FiledIndexes::default();
        indexes.keep_read(segment(0), index(10));
        indexes.keep_scanned(segment(1), index(10));
        // Scanned after its sidecar was damaged.
        indexes.keep_scanned(segment(0), index(10));
        assert_eq!(points(&indexes), (0, 20));
        (0..2).for_each(|number| indexes.forget(&segment(number)));
        assert_eq!(points(&indexes), (0, 0));
        assert!(indexes.get(&segment(0)).is_none());
    }
}
