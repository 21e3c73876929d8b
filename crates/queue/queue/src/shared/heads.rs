//! Where the head of a queue is: what one front end knows of the index without asking, and which tuples it has to ask
//! for.
//!
//! A deleted row costs a reader until its partition is dropped. So nobody reads what is surely empty:
//! - The **floor** is the lowest bucket of a queue. It is in the store, and only ever moves up, past empty buckets
//!   whose time was over longer ago than [`Margin`]; these are dropped whole.
//! - Within a bucket each front end has a **cursor** for each part: below it there was nothing when it looked. It stays
//!   the margin behind the clock, too.
//!
//! The margin is what makes both safe without a lock: a tuple is put at its writer's now or later, clocks differ by no
//! more than the allowed skew, and a writer whose put took longer than [`WRITE_MS`] to be answered puts the tuple
//! again. Where a clock is further off, or a replica has not got the row yet, a look-back finds the tuple
//! ([`LOOK_BACK_MS`]: cursors are forgotten), and where its bucket is gone the sweeper does.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::Number;
use crate::limits::{BUCKET_MS, DROP_AFTER_MS, LOOK_BACK_MS, REFRESH_MS, SLICE_MS, WRITE_MS};

/// How far behind the clock tuples may still arrive, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Margin(u64);

impl Margin {
    pub(crate) fn of_skew(skew_ms: u64) -> Self {
        Self(skew_ms + WRITE_MS)
    }

    /// Nothing arrives before this any more.
    pub(crate) fn before(self, now: u64) -> u64 {
        now.saturating_sub(self.0)
    }
}

/// The bucket of a time.
pub(crate) fn bucket_of(ms: u64) -> u64 {
    ms / BUCKET_MS
}

/// The time at which a bucket begins.
pub(crate) fn begin_of(bucket: u64) -> u64 {
    bucket * BUCKET_MS
}

/// Times to be read one after the other, from included to included: a read through many deleted rows is refused by
/// Cassandra.
pub(crate) fn slices(from: u64, upto: u64) -> impl Iterator<Item = (u64, u64)> {
    // What every receive reads, at the end of the index, is one.
    let step = if upto.saturating_sub(from) <= 2 * SLICE_MS { 2 * SLICE_MS } else { SLICE_MS };
    let count = if from > upto { 0 } else { (upto - from) / step + 1 };
    (0..count).map(move |at| (from + at * step, (from + (at + 1) * step - 1).min(upto)))
}

/// The part of a message: evenly, and not by its time.
pub(crate) fn part_of(number: Number, parts: u16) -> u16 {
    let mixed = number.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * u128::from(parts.max(1))) >> 64) as u16
}

/// What a front end knows of a queue's index.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    floor: u64,
    /// Buckets that were listed, from the floor on.
    listed: BTreeSet<u64>,
    /// When they were; 0 for never.
    listed_at: u64,
    /// Of a bucket and part: nothing is below.
    cursors: BTreeMap<(u64, u16), u64>,
    looked_back_at: u64,
    /// Buckets that this front end has put into the list.
    registered: BTreeSet<u64>,
}

impl Heads {
    /// Whether the list of buckets is to be read again.
    pub(crate) fn is_stale(&self, now: u64) -> bool {
        self.listed_at == 0 || now >= self.listed_at + REFRESH_MS || now < self.listed_at
    }

    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// The list was read when it was `now`.
    pub(crate) fn list(&mut self, floor: u64, buckets: Vec<u64>, now: u64) {
        self.raise(floor);
        self.listed = buckets.into_iter().filter(|bucket| *bucket >= self.floor).collect();
        self.listed_at = now;
    }

    /// The floor is there, or higher.
    pub(crate) fn raise(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        self.listed = self.listed.split_off(&self.floor);
        self.registered = self.registered.split_off(&self.floor);
        self.cursors = self.cursors.split_off(&(self.floor, 0));
    }

    /// The buckets that may have something visible, lowest first.
    pub(crate) fn readable(&mut self, now: u64, margin: Margin) -> Vec<u64> {
        if now >= self.looked_back_at + LOOK_BACK_MS || now < self.looked_back_at {
            self.cursors.clear();
            self.looked_back_at = now;
        }
        let upto = bucket_of(now);
        let mut buckets: BTreeSet<u64> = self.listed.range(..=upto).copied().collect();
        // Others may have put buckets into the list since it was read, but none that ended longer ago than this.
        let from = bucket_of(margin.before(self.listed_at.min(now))).max(self.floor);
        buckets.extend(from..=upto);
        buckets.into_iter().collect()
    }

    /// From where on a part of a bucket is to be read; `None` if there can be nothing.
    pub(crate) fn from(&self, bucket: u64, part: u16) -> Option<u64> {
        let from = self.cursors.get(&(bucket, part)).copied().unwrap_or(begin_of(bucket));
        (from < begin_of(bucket + 1)).then_some(from)
    }

    /// A part of a bucket was read up to `now` when it was `now`; the first tuple that there was.
    pub(crate) fn read(&mut self, bucket: u64, part: u16, first: Option<u64>, now: u64, margin: Margin) {
        let seen = first.unwrap_or(begin_of(bucket + 1));
        let cursor = seen.min(margin.before(now));
        let known = self.cursors.entry((bucket, part)).or_insert(begin_of(bucket));
        *known = cursor.max(*known);
    }

    /// Whether a bucket has to be put into the list first.
    pub(crate) fn is_registered(&self, bucket: u64) -> bool {
        self.registered.contains(&bucket)
    }

    /// This front end has put a bucket into the list. Where nobody receives the list is not read, nor what is below the
    /// floor forgotten: nothing is kept then that is not needed.
    pub(crate) fn register(&mut self, bucket: u64, now: u64, margin: Margin) {
        // What is before that is put there again, should it be.
        self.registered = self.registered.split_off(&bucket_of(margin.before(now)));
        self.registered.insert(bucket);
        // A list that is too old is read again before it is used.
        if !self.is_stale(now) {
            self.listed.insert(bucket);
        }
    }

    /// The buckets that can be dropped if they are empty, lowest first; the floor may go to behind the last that is,
    /// without a gap.
    pub(crate) fn droppable(&self, now: u64, margin: Margin) -> Vec<u64> {
        let upto = bucket_of(margin.before(now).saturating_sub(DROP_AFTER_MS));
        self.listed.range(..upto).copied().collect()
    }

    /// Where the floor goes when all buckets below `first` are empty.
    pub(crate) fn next_floor(now: u64, margin: Margin, first: Option<u64>) -> u64 {
        let upto = bucket_of(margin.before(now).saturating_sub(DROP_AFTER_MS));
        first.map_or(upto, |first| first.min(upto))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000 * BUCKET_MS + 5_000;

    fn margin() -> Margin {
        Margin::of_skew(1_000)
    }

    #[test]
    fn what_can_still_be_put_by_another_clock_is_read_again() {
        let mut heads = Heads::default();
        heads.list(990, vec![995, 1_010], NOW);
        assert_eq!(heads.readable(NOW, margin()), [995, 1_000]);
        heads.read(1_000, 0, None, NOW, margin());
        assert_eq!(heads.from(1_000, 0), Some(margin().before(NOW)));
        heads.read(1_000, 1, Some(NOW - 4_000), NOW, margin());
        assert_eq!(heads.from(1_000, 1), Some(NOW - 4_000));
        // An old bucket that is empty is not read again, but for a look back.
        heads.read(995, 0, None, NOW, margin());
        assert_eq!(heads.from(995, 0), None);
        let later = NOW + LOOK_BACK_MS;
        heads.readable(later, margin());
        assert_eq!(heads.from(995, 0), Some(begin_of(995)));
    }

    #[test]
    fn buckets_that_others_put_since_the_list_was_read_are_read() {
        let mut heads = Heads::default();
        heads.list(0, vec![], begin_of(1_000) - 1);
        assert!(!heads.is_stale(begin_of(1_000) + REFRESH_MS - 2));
        assert_eq!(heads.readable(begin_of(1_000) + 500, margin()), [999, 1_000]);
    }

    #[test]
    fn the_floor_only_goes_up_and_only_past_what_nobody_puts_to_any_more() {
        let mut heads = Heads::default();
        let now = begin_of(1_000);
        heads.list(5, vec![7, 900, 999, 1_000], now);
        let old = bucket_of(margin().before(now) - DROP_AFTER_MS);
        assert_eq!(heads.droppable(now, margin()), [7, 900]);
        assert_eq!(Heads::next_floor(now, margin(), None), old);
        assert_eq!(Heads::next_floor(now, margin(), Some(900)), 900);
        heads.raise(900);
        heads.raise(8);
        assert_eq!(heads.floor(), 900);
        assert_eq!(heads.readable(now, margin())[0], 900);
    }

    #[test]
    fn where_nobody_receives_the_buckets_of_what_was_sent_long_ago_are_forgotten() {
        let mut heads = Heads::default();
        heads.list(0, vec![7], NOW);
        for bucket in bucket_of(NOW)..bucket_of(NOW) + 1_000 {
            heads.register(bucket, begin_of(bucket), margin());
            // Of messages with a delay.
            heads.register(bucket + 90, begin_of(bucket), margin());
            assert!(heads.is_registered(bucket) && heads.is_registered(bucket + 90));
        }
        let kept = (heads.registered.len(), heads.listed.len());
        assert!(kept.0 <= 92 && kept.1 <= 3, "{kept:?}");
    }

    #[test]
    fn slices_follow_each_other_and_leave_nothing_out() {
        let all = |from, upto| slices(from, upto).collect::<Vec<_>>();
        assert_eq!(all(7, 7), [(7, 7)]);
        assert_eq!(all(0, 2 * SLICE_MS), [(0, 2 * SLICE_MS - 1), (2 * SLICE_MS, 2 * SLICE_MS)]);
        assert_eq!(all(8, 7), []);
        let long = all(5, 5 + 3 * SLICE_MS);
        assert_eq!((long.len(), long[0].0, long[3].1), (4, 5, 5 + 3 * SLICE_MS));
        assert!(long.windows(2).all(|two| two[0].1 + 1 == two[1].0), "{long:?}");
    }

    #[test]
    fn messages_are_spread_over_all_parts() {
        let mut counts = [0; 8];
        for ms in 0..1_000_u64 {
            counts[usize::from(part_of(Number(ms << 22 | 5 << 10), 8))] += 1;
        }
        assert!(counts.iter().all(|count| (90..160).contains(count)), "{counts:?}");
        assert_eq!(part_of(Number(u64::MAX), 1), 0);
    }
}
