//! What was read in a cluster, beside what was written at the source: between the same offsets there have to be as many
//! records and as many bytes, and the same ones.
//!
//! Offsets are compared in ranges, so that readers which are given other batches at other times compare the same. What
//! was read of a range that its reader did not see from the same offset on is not compared, and counted as such.

use std::collections::VecDeque;

use tailwater_client::Batch;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Offsets of a range, which begins at a multiple of it.
const RANGE_RECORDS: u64 = 1_024;
/// Ranges of all shards of a stream that a reader keeps until the other one has read them, too. Beyond that the oldest
/// are not compared.
const RANGES_MAX: usize = 64 << 10;
/// Ranges of one shard that are kept at most, however few shards there are.
const SHARD_RANGES_MAX: usize = 1_024;
/// Ranges of one shard that are kept in any case, however many shards there are.
const SHARD_RANGES_MIN: usize = 16;

/// What a reader was given of a range, or of its beginning.
#[derive(Clone, Copy, Debug)]
struct CheckedRange {
    /// Its first record's offset.
    from: u64,
    /// The offset after its last one.
    next: u64,
    /// Bytes of keys and values.
    bytes: u64,
    /// Of everything in its records, in order.
    digest: u64,
    /// Records and bytes of it that were compared already.
    compared: (u64, u64),
    /// It was told to be another one than was written.
    differs: bool,
}

impl CheckedRange {
    /// Which range it is.
    fn number(&self) -> u64 {
        self.from / RANGE_RECORDS
    }

    fn spans_the_same_as(&self, other: &Self) -> bool {
        (self.from, self.next) == (other.from, other.next)
    }
}

/// What came of comparing, since it was begun.
#[derive(Clone, Debug, Default)]
pub struct CheckedSums {
    /// Records that were compared.
    pub records: u64,
    /// Bytes of them, as they were read.
    pub read_bytes: u64,
    /// Bytes between the same offsets, as they were written.
    pub written_bytes: u64,
    /// Ranges that are not the same.
    pub differing: u64,
    /// Records that could not be compared: one of both readers began later, or was away for too long.
    pub uncompared: u64,
    /// Records that did not come although later ones did, and of which no reader was told that they were removed.
    pub lost: u64,
    /// The first thing that was not as it should be.
    pub first: Option<String>,
}

impl CheckedSums {
    fn compare(&mut self, shard: usize, read: &mut CheckedRange, written: &CheckedRange) {
        let (records, bytes) = (read.next - read.from, read.bytes);
        let (records_before, bytes_before) = std::mem::replace(&mut read.compared, (records, bytes));
        self.records += records - records_before;
        self.read_bytes += bytes - bytes_before;
        // As written, of what is new of it: they are the same up to there, or it is told.
        self.written_bytes += written.bytes.saturating_sub(bytes_before);
        let differs = (read.bytes, read.digest) != (written.bytes, written.digest);
        if differs && !std::mem::replace(&mut read.differs, true) {
            self.differing += 1;
            let (from, last) = (read.from, read.next - 1);
            let what = match read.bytes == written.bytes {
                true => format!("{bytes} bytes were read, as many as were written, and not the same"),
                false => format!("{bytes} bytes were read, and {} were written", written.bytes),
            };
            self.tell(|| format!("shard {shard}, offsets {from} to {last}: {what}"));
        }
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if self.first.is_none() {
            self.first = Some(what());
        }
    }
}

/// What a reader was given of one shard.
#[derive(Clone, Debug, Default)]
struct CheckedShard {
    /// The range that it is in.
    current: Option<CheckedRange>,
    /// Those before it that are whole and wait to be compared.
    done: VecDeque<CheckedRange>,
}

/// What becomes of a range when it is to be compared.
enum CheckNow<'a> {
    With(&'a CheckedRange),
    /// The other reader is not that far.
    Later,
    /// The other reader did not see it, or not any more.
    Never,
}

impl CheckedShard {
    /// Takes in a record; how many before it did not come.
    fn take(&mut self, offset: u64, bytes: u64, digest: u64, sums: &mut CheckedSums, kept_max: usize) -> u64 {
        let number = offset / RANGE_RECORDS;
        let mut missing = 0;
        match &mut self.current {
            Some(range) if range.next == offset && range.number() == number => {
                range.next += 1;
                range.bytes += bytes;
                range.digest = range.digest.rotate_left(1).wrapping_add(digest);
                return 0;
            }
            Some(range) if range.next == offset => {
                self.done.push_back(*range);
                if self.done.len() > kept_max
                    && let Some(oldest) = self.done.pop_front()
                {
                    sums.uncompared += oldest.next - oldest.from - oldest.compared.0;
                }
            }
            Some(range) if range.next < offset => {
                missing = offset - range.next;
                sums.uncompared += range.next - range.from - range.compared.0;
            }
            // Records that were delivered and then lost come again as others (durability `interval`).
            Some(_) => self.done.retain(|range| range.number() < number),
            None => {}
        }
        let (from, next) = (offset, offset + 1);
        self.current = Some(CheckedRange { from, next, bytes, digest, compared: (0, 0), differs: false });
        missing
    }

    /// What it has of the range `number`, for a reader that has all of it.
    fn whole(&self, number: u64) -> CheckNow<'_> {
        if let Ok(at) = self.done.binary_search_by_key(&number, CheckedRange::number) {
            return CheckNow::With(&self.done[at]);
        }
        let newest = self.current.as_ref().or(self.done.back());
        match newest.is_some_and(|newest| newest.number() > number) {
            true => CheckNow::Never,
            false => CheckNow::Later,
        }
    }

    /// Compares what can be compared by now with what was written.
    fn compare(&mut self, shard: usize, written: &CheckedShard, sums: &mut CheckedSums) {
        while let Some(mut range) = self.done.front().copied() {
            match written.whole(range.number()) {
                CheckNow::Later => break,
                CheckNow::With(of) if range.spans_the_same_as(of) => sums.compare(shard, &mut range, of),
                CheckNow::With(_) | CheckNow::Never => {
                    sums.uncompared += range.next - range.from - range.compared.0;
                }
            }
            self.done.pop_front();
        }
        // Where nothing more comes, the range that both are in is as good as whole.
        if let (Some(range), Some(of)) = (&mut self.current, &written.current)
            && range.spans_the_same_as(of)
            && range.compared.0 < range.next - range.from
        {
            sums.compare(shard, range, of);
        }
    }

    /// The first range that is not compared.
    fn first(&self) -> Option<u64> {
        self.done.front().or(self.current.as_ref()).map(CheckedRange::number)
    }
}

/// What a reader was given of a stream.
#[derive(Clone, Debug, Default)]
pub struct CheckedReader {
    shards: Vec<CheckedShard>,
    /// What came of comparing it with what was written.
    pub sums: CheckedSums,
}

impl CheckedReader {
    /// It begins anew, with a stream of so many shards. What was read and not compared is not compared.
    pub fn begin(&mut self, shards: usize) {
        self.sums.uncompared += self.waiting();
        self.shards = vec![CheckedShard::default(); shards];
    }

    /// Records of a shard were removed before they were read, of which the reader was told.
    pub fn removed(&mut self, shard: u32) {
        if let Some(shard) = self.shards.get_mut(shard as usize) {
            self.sums.uncompared +=
                shard.current.take().map_or(0, |range| range.next - range.from - range.compared.0);
        }
    }

    /// Takes in what it was given.
    pub fn take(&mut self, batch: &Batch) {
        for record in batch.records() {
            let bytes = record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
            let part = |digest: u64, bytes: Option<&[u8]>| match bytes {
                Some(bytes) => xxh3_64_with_seed(bytes, digest),
                None => digest.rotate_left(17),
            };
            let place = record.offset.0.wrapping_mul(31) ^ record.timestamp_ms as u64;
            let mut digest = part(part(place, record.key), record.value);
            for header in record.headers.iter().flatten() {
                digest = part(part(digest, Some(header.key.as_bytes())), header.value);
            }
            self.take_record(batch.shard, record.offset.0, bytes as u64, digest);
        }
    }

    /// Takes in one record.
    fn take_record(&mut self, shard: u32, offset: u64, bytes: u64, digest: u64) {
        let kept_max = (RANGES_MAX / self.shards.len().max(1)).clamp(SHARD_RANGES_MIN, SHARD_RANGES_MAX);
        let Some(of) = self.shards.get_mut(shard as usize) else { return };
        let missing = of.take(offset, bytes, digest, &mut self.sums, kept_max);
        if missing > 0 {
            self.sums.lost += missing;
            self.sums.tell(|| {
                let from = offset - missing;
                format!("shard {shard}, offsets {from} to {}: they did not come", offset - 1)
            });
        }
    }

    /// Compares it with what was written, as far as both have been read.
    pub fn compare(&mut self, written: &CheckedReader) {
        for (number, (shard, written)) in self.shards.iter_mut().zip(&written.shards).enumerate() {
            shard.compare(number, written, &mut self.sums);
        }
    }

    /// Forgets what was written before all that `readers` have yet to compare.
    pub fn forget_compared<'a>(&mut self, readers: impl Iterator<Item = &'a CheckedReader> + Clone) {
        for (number, shard) in self.shards.iter_mut().enumerate() {
            let first = readers.clone().filter_map(|reader| reader.shards.get(number)?.first()).min();
            while let Some(range) = shard.done.front()
                && first.is_some_and(|first| range.number() < first)
            {
                shard.done.pop_front();
            }
        }
    }

    /// What came of comparing, without what waits for it.
    pub fn sums_only(&self) -> Self {
        Self { shards: Vec::new(), sums: self.sums.clone() }
    }

    /// Records that were read and wait to be compared.
    pub fn waiting(&self) -> u64 {
        let ranges = self.shards.iter().flat_map(|shard| shard.done.iter().chain(&shard.current));
        ranges.map(|range| range.next - range.from - range.compared.0).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader of one shard that was given the records of some offsets, each of ten bytes.
    fn given(offsets: impl IntoIterator<Item = u64>) -> CheckedReader {
        let mut reader = CheckedReader::default();
        reader.begin(1);
        offsets.into_iter().for_each(|offset| reader.take_record(0, offset, 10, offset * 7));
        reader
    }

    #[test]
    fn what_was_read_is_what_was_written_whatever_the_readers_began_with_and_however_far_they_are() {
        let written = given(100..5_000);
        let mut read = given(1_000..4_000);
        read.compare(&written);
        let CheckedSums { records, read_bytes, written_bytes, differing, .. } = read.sums;
        // The first range was not seen from its beginning, and of the last one another part.
        assert_eq!((records, differing), (2 * RANGE_RECORDS, 0), "{:?}", read.sums);
        assert_eq!((read_bytes, written_bytes), (records * 10, records * 10));
        assert_eq!(read.sums.uncompared + read.waiting() + records, 3_000);
        (4_000..5_000).for_each(|offset| read.take_record(0, offset, 10, offset * 7));
        read.compare(&written);
        assert_eq!(read.waiting(), 0, "where nothing more comes, all is compared");
        assert_eq!((read.sums.read_bytes, read.sums.differing), (read.sums.written_bytes, 0));
        let before = read.sums.records;
        read.compare(&written);
        assert_eq!(read.sums.records, before, "and once");
    }

    #[test]
    fn what_is_compared_while_it_grows_is_counted_once() {
        let (mut written, mut read) = (given(0..10), given(0..10));
        read.compare(&written);
        for offset in 10..3_000 {
            written.take_record(0, offset, 10, offset * 7);
            read.take_record(0, offset, 10, offset * 7);
            if offset % 100 == 0 {
                read.compare(&written);
            }
        }
        read.compare(&written);
        assert_eq!(
            (read.sums.records, read.sums.read_bytes, read.sums.written_bytes),
            (3_000, 30_000, 30_000)
        );
        assert_eq!((read.sums.differing, read.sums.uncompared, read.sums.lost), (0, 0, 0));
    }

    #[test]
    fn bytes_that_are_missing_and_bytes_that_are_others_are_noticed_and_told_with_their_offsets() {
        let written = given(0..2_100);
        for (bytes, digest, what) in [(9, 1_500 * 7, "and 10240 were written"), (10, 1, "and not the same")] {
            let mut read = given(0..1_500);
            read.take_record(0, 1_500, bytes, digest);
            (1_501..2_100).for_each(|offset| read.take_record(0, offset, 10, offset * 7));
            read.compare(&written);
            assert_eq!((read.sums.differing, read.sums.lost), (1, 0));
            let first = read.sums.first.expect("it is told");
            assert!(first.contains("offsets 1024 to 2047") && first.contains(what), "{first}");
        }
    }

    #[test]
    fn records_that_did_not_come_are_lost_unless_the_reader_was_told_that_they_were_removed() {
        let mut read = given((0..100).chain(103..200));
        assert_eq!(read.sums.lost, 3);
        assert_eq!(read.sums.first.as_deref(), Some("shard 0, offsets 100 to 102: they did not come"));
        read.removed(0);
        (500..600).for_each(|offset| read.take_record(0, offset, 10, offset * 7));
        assert_eq!(read.sums.lost, 3);
        // What took the offsets of records that were lost is no loss either.
        (550..700).for_each(|offset| read.take_record(0, offset, 10, offset));
        assert_eq!(read.sums.lost, 3);
    }

    #[test]
    fn what_the_other_reader_does_not_read_is_kept_within_bounds_and_told_as_not_compared() {
        let ranges = SHARD_RANGES_MAX as u64 + 3;
        let mut read = given(0..ranges * RANGE_RECORDS);
        read.compare(&given([]));
        assert_eq!(read.sums.uncompared, 2 * RANGE_RECORDS);
        assert_eq!(read.waiting(), (SHARD_RANGES_MAX as u64 + 1) * RANGE_RECORDS);
        let mut written = given(0..10 * RANGE_RECORDS);
        written.forget_compared([&read].into_iter());
        assert_eq!(written.shards[0].done.front().map(CheckedRange::number), Some(2));
        read.compare(&written);
        assert_eq!((read.sums.records, read.sums.differing), (7 * RANGE_RECORDS, 0));
        read.begin(1);
        assert_eq!(read.waiting(), 0);
        assert_eq!(read.sums.uncompared + read.sums.records, ranges * RANGE_RECORDS);
    }
}
