//! When the records of a shard came in one cluster, so that who reads the cluster below it, too, can tell how long the
//! hop took. All of it is by the reader's own clock, whatever the clusters' clocks are.

use std::collections::VecDeque;
use std::time::Duration;

use tailwater_env::Instant;

/// Batches of a shard whose arrival is remembered: a hop is slower than the ones above it by fewer batches, or how long
/// it took is not known.
const ARRIVALS_MAX: usize = 1_024;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct ShardArrivals {
    /// When what came before the first of them came is not known.
    before: u64,
    /// The offset after the last record of a batch, and when that came.
    batches: VecDeque<(u64, Instant)>,
}

impl ShardArrivals {
    /// Records from `first` up to `next` came.
    pub fn came(&mut self, first: u64, next: u64, now: Instant) {
        // A reader begins anew, or was told that records were removed.
        if self.batches.back().is_none_or(|(last, _)| *last != first) {
            self.batches.clear();
            self.before = first;
        }
        self.batches.push_back((next, now));
        if self.batches.len() > ARRIVALS_MAX
            && let Some((next, _)) = self.batches.pop_front()
        {
            self.before = next;
        }
    }

    /// How long before `now` everything below `next` had come: zero if it has not come yet, and `None` if that is not
    /// known.
    pub fn age(&self, next: u64, now: Instant) -> Option<Duration> {
        if next <= self.before || self.batches.is_empty() {
            return None;
        }
        let at = self.batches.partition_point(|(came, _)| *came < next);
        Some(self.batches.get(at).map_or(Duration::ZERO, |(_, came_at)| now.since(*came_at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    fn ms(age: Option<Duration>) -> Option<u128> {
        age.map(|age| age.as_millis())
    }

    #[test]
    fn a_record_is_as_old_as_the_batch_that_it_came_with_whatever_the_batches_below_are() {
        let mut above = ShardArrivals::default();
        above.came(10, 20, at(100));
        above.came(20, 21, at(150));
        assert_eq!(ms(above.age(15, at(160))), Some(60));
        assert_eq!(ms(above.age(20, at(160))), Some(60));
        assert_eq!(ms(above.age(21, at(160))), Some(10));
        assert_eq!(ms(above.age(22, at(160))), Some(0), "below it came first");
        assert_eq!(above.age(10, at(160)), None, "it came before somebody looked");
    }

    #[test]
    fn what_is_not_known_any_more_is_not_told() {
        let mut above = ShardArrivals::default();
        assert_eq!(above.age(1, at(1)), None);
        let batches = ARRIVALS_MAX as u64 + 2;
        (0..batches).for_each(|batch| above.came(batch, batch + 1, at(batch)));
        assert_eq!(
            (above.age(2, at(batches)), ms(above.age(3, at(batches)))),
            (None, Some(u128::from(batches - 2)))
        );
        above.came(5_000, 5_001, at(9_000));
        assert_eq!((above.age(3, at(9_001)), above.age(5_000, at(9_001))), (None, None));
        assert_eq!(ms(above.age(5_001, at(9_001))), Some(1));
    }
}
