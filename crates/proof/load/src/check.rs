//! Whether one consumer sees every record of one shard once, in order.

use std::ops::Range;

use crate::limits::GAPS_MAX;
use crate::messages::{FaultFlags, ShardTotal};

/// What one consumer has seen of one shard.
#[derive(Clone, Debug, Default)]
pub struct ShardCheck {
    /// The sequence number that is due.
    next: u64,
    /// The first one that was due.
    first: u64,
    /// Sum of the checksums of what came, but not of what came again.
    checksums: u64,
    /// Numbers below `next` that did not come, in order.
    missing: Vec<Range<u64>>,
}

impl ShardCheck {
    /// A consumer that begins with record `first`.
    pub fn starting_at(first: u64) -> Self {
        Self { next: first, first, ..Self::default() }
    }

    /// Takes in a record.
    #[inline(always)]
    pub fn accept(&mut self, sequence: u64, checksum: u64, faults: &mut FaultFlags) {
        if sequence == self.next {
            self.next += 1;
            self.checksums = self.checksums.wrapping_add(checksum);
        } else {
            self.accept_out_of_turn(sequence, checksum, faults);
        }
    }

    #[cold]
    fn accept_out_of_turn(&mut self, sequence: u64, checksum: u64, faults: &mut FaultFlags) {
        if sequence > self.next {
            faults.lost += sequence - self.next;
            if self.missing.len() < GAPS_MAX {
                self.missing.push(self.next..sequence);
            }
            self.next = sequence + 1;
            self.checksums = self.checksums.wrapping_add(checksum);
            return;
        }
        match self.missing.iter().position(|gap| gap.contains(&sequence)) {
            Some(index) => {
                let gap = self.missing.remove(index);
                let rest = [gap.start..sequence, sequence + 1..gap.end];
                self.missing.splice(index..index, rest.into_iter().filter(|gap| !gap.is_empty()));
                faults.reordered += 1;
                faults.lost -= 1;
                self.checksums = self.checksums.wrapping_add(checksum);
            }
            None => faults.duplicated += 1,
        }
    }

    /// Whether everything came that there is.
    pub fn is_complete(&self, total: ShardTotal) -> bool {
        self.next >= total.records
    }

    /// Compares with what was appended, at the end.
    pub fn finish(&self, total: ShardTotal, faults: &mut FaultFlags) {
        faults.lost += total.records.saturating_sub(self.next);
        let all = self.first == 0 && self.missing.is_empty() && self.next == total.records;
        // Records that were never appended, or other ones, although each has the checksum it says.
        if self.next > total.records || (all && self.checksums != total.checksums) {
            faults.corrupted += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_after(sequences: &[u64], records: u64) -> FaultFlags {
        let (mut check, mut faults) = (ShardCheck::default(), FaultFlags::default());
        for &sequence in sequences {
            check.accept(sequence, sequence + 1, &mut faults);
        }
        check.finish(ShardTotal { records, checksums: (1..=records).sum() }, &mut faults);
        faults
    }

    #[test]
    fn all_in_order_is_no_fault() {
        assert_eq!(faults_after(&[0, 1, 2], 3), FaultFlags::default());
    }

    #[test]
    fn what_does_not_come_is_lost_in_the_middle_and_at_the_end() {
        assert_eq!(faults_after(&[0, 3], 6), FaultFlags { lost: 4, ..FaultFlags::default() });
    }

    #[test]
    fn what_comes_late_is_reordered_and_not_lost() {
        assert_eq!(faults_after(&[0, 3, 2, 1], 4), FaultFlags { reordered: 2, ..FaultFlags::default() });
    }

    #[test]
    fn what_comes_again_is_duplicated_and_does_not_count_as_another() {
        assert_eq!(faults_after(&[0, 1, 1, 0, 2], 3), FaultFlags { duplicated: 2, ..FaultFlags::default() });
    }

    #[test]
    fn a_record_that_was_never_appended_is_noticed() {
        assert_eq!(faults_after(&[0, 1, 2, 3], 3), FaultFlags { corrupted: 1, ..FaultFlags::default() });
    }

    #[test]
    fn another_record_in_the_place_of_one_is_noticed() {
        let (mut check, mut faults) = (ShardCheck::default(), FaultFlags::default());
        check.accept(0, 5, &mut faults);
        check.finish(ShardTotal { records: 1, checksums: 6 }, &mut faults);
        assert_eq!(faults, FaultFlags { corrupted: 1, ..FaultFlags::default() });
    }

    #[test]
    fn a_consumer_that_begins_in_the_middle_owes_nothing_from_before() {
        let (mut check, mut faults) = (ShardCheck::starting_at(7), FaultFlags::default());
        check.accept(7, 1, &mut faults);
        let total = ShardTotal { records: 8, checksums: 99 };
        assert!(check.is_complete(total));
        check.finish(total, &mut faults);
        assert_eq!(faults, FaultFlags::default());
    }
}
