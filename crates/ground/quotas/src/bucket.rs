//! What each taker has left: one bucket for each quota that applies to it.

use std::time::Duration;

use tailwater_env::{HashMap, Instant};

use crate::entity::QuotaBound;
use crate::limits::{QUOTA_TAKERS_MAX, QUOTA_TIDY};

/// Whose bucket: those whom a quota counts together, of which each part is given that the quota tells them apart by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BucketOwner {
    pub bound: QuotaBound,
    pub user: Option<String>,
    /// What a client calls itself.
    pub client: Option<String>,
    /// Its address, by itself.
    pub address: Option<String>,
}

/// Fills at a rate, up to a second's worth; what is below nothing is owed.
#[derive(Clone, Copy, Debug)]
struct OwedBucket {
    level: f64,
    filled_at: Instant,
}

impl OwedBucket {
    fn full(rate: u64, now: Instant) -> Self {
        Self { level: rate as f64, filled_at: now }
    }

    fn fill(&mut self, rate: u64, now: Instant) {
        let rate = rate as f64;
        self.level = (self.level + rate * now.since(self.filled_at).as_secs_f64()).min(rate);
        self.filled_at = now;
    }

    /// How long until nothing is owed.
    fn owed(&self, rate: u64) -> Duration {
        if self.level >= 0.0 {
            return Duration::ZERO;
        }
        // Even of the greatest request at the smallest rate it is no more than years.
        Duration::try_from_secs_f64(-self.level / rate as f64).unwrap_or(Duration::MAX)
    }
}

/// The buckets of all takers: a table for each bound, so that those of one bound take no room from those of another.
#[derive(Debug, Default)]
pub(crate) struct QuotaBuckets {
    of: HashMap<QuotaBound, BucketTable>,
}

impl QuotaBuckets {
    /// How long until `owner` owes nothing, where it may have `rate`.
    pub fn owed(&mut self, owner: &BucketOwner, rate: u64, now: Instant) -> Duration {
        self.of.get_mut(&owner.bound).map_or(Duration::ZERO, |table| table.owed(owner, rate, now))
    }

    /// Takes so much; how long until `owner` owes nothing.
    pub fn take(&mut self, owner: BucketOwner, amount: u64, rate: u64, now: Instant) -> Duration {
        self.of.entry(owner.bound).or_default().take(owner, amount, rate, now)
    }
}

/// Those who share a bucket because the table is full: all who are told apart in the same way, and may have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SharedBy {
    by_user: bool,
    by_client: bool,
    by_address: bool,
    rate: u64,
}

impl SharedBy {
    fn of(owner: &BucketOwner, rate: u64) -> Self {
        Self {
            by_user: owner.user.is_some(),
            by_client: owner.client.is_some(),
            by_address: owner.address.is_some(),
            rate,
        }
    }
}

/// The buckets of one bound.
#[derive(Debug, Default)]
struct BucketTable {
    of: HashMap<BucketOwner, (OwedBucket, u64)>,
    /// For all takers beyond those that are remembered: no more than there are rates in quotas.
    others: HashMap<SharedBy, OwedBucket>,
    tidied: Option<Instant>,
}

impl BucketTable {
    fn owed(&mut self, owner: &BucketOwner, rate: u64, now: Instant) -> Duration {
        let is_full = self.is_full();
        let bucket = match self.of.get_mut(owner) {
            Some((bucket, last)) => {
                *last = rate;
                Some(bucket)
            }
            None if is_full => self.others.get_mut(&SharedBy::of(owner, rate)),
            None => None,
        };
        let Some(bucket) = bucket else { return Duration::ZERO };
        bucket.fill(rate, now);
        bucket.owed(rate)
    }

    fn take(&mut self, owner: BucketOwner, amount: u64, rate: u64, now: Instant) -> Duration {
        self.tidy(now);
        let is_remembered = !self.is_full() || self.of.contains_key(&owner);
        let full = OwedBucket::full(rate, now);
        let bucket = match is_remembered {
            true => {
                let (bucket, last) = self.of.entry(owner).or_insert((full, rate));
                *last = rate;
                bucket
            }
            false => self.others.entry(SharedBy::of(&owner, rate)).or_insert(full),
        };
        bucket.fill(rate, now);
        bucket.level -= amount as f64;
        bucket.owed(rate)
    }

    fn is_full(&self) -> bool {
        self.of.len() >= QUOTA_TAKERS_MAX
    }

    /// Forgets those of whom nothing is missing, where there are as many as there may be.
    fn tidy(&mut self, now: Instant) {
        if !self.is_full() || self.tidied.is_some_and(|tidied| now.since(tidied) < QUOTA_TIDY) {
            return;
        }
        self.tidied = Some(now);
        let is_missed = |bucket: &mut OwedBucket, rate: u64| {
            bucket.fill(rate, now);
            bucket.level < rate as f64
        };
        self.of.retain(|_, (bucket, rate)| is_missed(bucket, *rate));
        self.others.retain(|shared, bucket| is_missed(bucket, shared.rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(user: usize) -> BucketOwner {
        BucketOwner {
            bound: QuotaBound::RequestRate,
            user: Some(user.to_string()),
            client: None,
            address: None,
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::default() + Duration::from_millis(ms)
    }

    #[test]
    fn a_second_s_worth_is_there_at_once_and_what_is_taken_beyond_it_is_owed_until_it_is_made_up_for() {
        let mut buckets = QuotaBuckets::default();
        assert_eq!(buckets.take(owner(1), 100, 100, at(0)), Duration::ZERO);
        assert_eq!(buckets.take(owner(1), 250, 100, at(0)), Duration::from_millis(2_500));
        assert_eq!(buckets.owed(&owner(1), 100, at(1_000)), Duration::from_millis(1_500));
        assert_eq!(buckets.owed(&owner(1), 100, at(2_500)), Duration::ZERO);
        assert_eq!(buckets.owed(&owner(2), 100, at(0)), Duration::ZERO, "another one");
        // No more than that is saved up.
        assert_eq!(buckets.take(owner(1), 200, 100, at(1_000_000)), Duration::from_secs(1));
    }

    #[test]
    fn a_rate_that_is_raised_makes_up_for_what_is_owed_the_sooner() {
        let mut buckets = QuotaBuckets::default();
        assert_eq!(buckets.take(owner(1), 1_100, 100, at(0)), Duration::from_secs(10));
        assert_eq!(buckets.owed(&owner(1), 1_000, at(0)), Duration::from_secs(1));
    }

    #[test]
    fn takers_beyond_those_that_are_remembered_have_together_what_one_may_have() {
        let mut buckets = QuotaBuckets::default();
        for user in 0..QUOTA_TAKERS_MAX {
            buckets.take(owner(user), 1_000, 1, at(0));
        }
        let beyond = QUOTA_TAKERS_MAX;
        assert_eq!(buckets.take(owner(beyond), 1, 1, at(0)), Duration::ZERO);
        assert_eq!(buckets.take(owner(beyond + 1), 1, 1, at(0)), Duration::from_secs(1));
        assert_eq!(buckets.owed(&owner(beyond + 2), 1, at(0)), Duration::from_secs(1));
        let remembered = |buckets: &QuotaBuckets| buckets.of[&QuotaBound::RequestRate].of.len();
        assert_eq!(remembered(&buckets), QUOTA_TAKERS_MAX);
        // Those who owe nothing make room.
        assert_eq!(buckets.take(owner(beyond + 2), 1, 1, at(2_000_000)), Duration::ZERO);
        assert_eq!(remembered(&buckets), 1);
    }

    #[test]
    fn takers_beyond_those_that_are_remembered_share_with_none_of_another_bound_kind_of_quota_or_rate() {
        let mut buckets = QuotaBuckets::default();
        for user in 0..QUOTA_TAKERS_MAX {
            buckets.take(owner(user), 1_000, 1, at(0));
        }
        let beyond = owner(QUOTA_TAKERS_MAX);
        let owed = buckets.take(beyond.clone(), 1_000_000, 1_000, at(0));
        assert_eq!(owed, Duration::from_secs(999), "it takes a thousand times what it may have");
        // Another bound has a table of its own, with room.
        let other_bound = BucketOwner { bound: QuotaBound::ProducerByteRate, ..owner(QUOTA_TAKERS_MAX + 1) };
        assert_eq!(buckets.take(other_bound, 1, 1_000, at(0)), Duration::ZERO);
        // A client with a quota of its own kind.
        let client = BucketOwner { user: None, client: Some("app".to_owned()), ..beyond };
        assert_eq!(buckets.owed(&client, 1_000, at(0)), Duration::ZERO);
        assert_eq!(buckets.take(client, 1_000, 1_000, at(0)), Duration::ZERO);
        // A user whose quota has another rate.
        assert_eq!(buckets.take(owner(QUOTA_TAKERS_MAX + 2), 2_000, 2_000, at(0)), Duration::ZERO);
        // One with the same.
        assert_eq!(buckets.owed(&owner(QUOTA_TAKERS_MAX + 3), 1_000, at(0)), Duration::from_secs(999));
    }
}
