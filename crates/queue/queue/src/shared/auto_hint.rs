//! K = auto, which the paper leaves to future work (BDQS, section III.B.2).
//!
//! [`AutoHint`] finds the smallest K whose duplicates stay at or under a target. It knows only what it can see: after
//! some of its receives it is told whether another receiver took the same message before. Two that choose one of K each
//! collide with a chance that is inverse to K: so K times the share of receives that collided is how many there are to
//! collide with, whatever K was while it was seen, and that over the target is the K to be used. What holds:
//! - Alone it stays at K = 1: there is nothing to be seen, and order costs nothing.
//! - Where the chance is not quite inverse to K, it still settles where duplicates are what is aimed at: below the
//!   target, as it is met by chance and not exactly.
//! - What was seen counts for half after some 700 looks, so K follows a load that changes.
//! - It is near after the first few duplicates: until it has looked a hundred times it looks after every receive.

use crate::limits::{AUTO_LOOKS_EVERY, ORDER_HINT_MAX};

/// Looks that the mean is over.
const LOOKS: f64 = 1024.0;

/// Looks before the first one that count as without duplicates.
const LOOKS_BEFORE: f64 = 16.0;

/// Looks, those before the first one included, until which every receive is looked after.
const LOOKS_EAGER: f64 = 128.0;

/// Part of the target that is aimed at: some duplicates are not seen, and K is at times too small by as much as it is
/// too large, which costs more than it saves.
const AIM: f64 = 0.65;

/// K, as what is seen asks for.
#[derive(Debug)]
pub(crate) struct AutoHint {
    /// The K at which every receive would collide.
    concurrency: f64,
    looks: f64,
    /// Share of receives that may collide.
    aim: f64,
}

impl AutoHint {
    /// For at most so many of 1,000 receives.
    pub(crate) fn new(target_permille: u32) -> Self {
        Self { concurrency: 0.0, looks: LOOKS_BEFORE, aim: AIM * f64::from(target_permille) / 1_000.0 }
    }

    pub(crate) fn k(&self) -> u32 {
        let k = (self.concurrency / self.aim).ceil();
        (k as u32).clamp(1, ORDER_HINT_MAX)
    }

    /// Of so many receives one is to be looked after.
    pub(crate) fn looks_every(&self) -> u64 {
        if self.looks < LOOKS_EAGER { 1 } else { AUTO_LOOKS_EVERY }
    }

    /// It was looked whether another receiver took the same message as a receive did.
    pub(crate) fn looked(&mut self, is_duplicate: bool) {
        let seen = if is_duplicate { f64::from(self.k()) } else { 0.0 };
        self.looks = (self.looks + 1.0).min(LOOKS);
        self.concurrency += (seen - self.concurrency) / self.looks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::random_below;

    /// Each of the others reads the index within this one's window half of the time, and takes one of K as well.
    fn collides(hint: &AutoHint, receivers: u32, random: &mut u64) -> bool {
        let k = u64::from(hint.k());
        (1..receivers).fold(false, |is_duplicate, _| {
            is_duplicate | (random_below(random, 2) == 0 && random_below(random, k) == 0)
        })
    }

    /// Lets it run where `receivers` collide as chance has it; the mean K and the rate of duplicates over the second
    /// half.
    fn settle(receivers: u32, seed: u64) -> (f64, f64) {
        let (mut hint, mut random) = (AutoHint::new(20), seed);
        let (mut sum, mut duplicates) = (0_u64, 0_u64);
        const LOOKS: u64 = 40_000;
        for look in 0..LOOKS {
            let is_duplicate = collides(&hint, receivers, &mut random);
            hint.looked(is_duplicate);
            if look >= LOOKS / 2 {
                sum += u64::from(hint.k());
                duplicates += u64::from(is_duplicate);
            }
        }
        let half = (LOOKS / 2) as f64;
        (sum as f64 / half, duplicates as f64 / half)
    }

    #[test]
    fn alone_it_keeps_the_order_and_with_others_it_finds_the_smallest_k_that_is_good_enough() {
        assert_eq!(settle(1, 1), (1.0, 0.0));
        for seed in 0..10 {
            for receivers in [2, 3, 5] {
                // By the model: duplicates at half of the others over K, so 2 % at 25 for each of them.
                let smallest = f64::from(receivers - 1) * 25.0;
                let (k, rate) = settle(receivers, seed);
                // It aims below the target: what it does not see counts, too.
                assert!(
                    (1.0..1.15 / AIM).contains(&(k / smallest)),
                    "{receivers} receivers: K {k}, not {smallest}"
                );
                assert!(rate <= 0.02, "{receivers} receivers: {rate}");
            }
        }
    }

    #[test]
    fn after_the_sixty_receives_of_a_short_queue_it_is_near_and_few_of_them_were_duplicates() {
        for seed in 1..20 {
            let (mut hint, mut random, mut duplicates) = (AutoHint::new(20), seed, 0);
            for _ in 0..60 {
                assert_eq!(hint.looks_every(), 1);
                let is_duplicate = collides(&hint, 3, &mut random);
                hint.looked(is_duplicate);
                duplicates += u32::from(is_duplicate);
            }
            // 50 is what it settles at.
            assert!(
                (10..=250).contains(&hint.k()) && duplicates <= 8,
                "K {}, {duplicates} duplicates",
                hint.k()
            );
        }
    }

    #[test]
    fn when_the_others_go_away_it_comes_back_to_order() {
        let mut hint = AutoHint::new(20);
        (0..64).for_each(|_| hint.looked(true));
        assert!(hint.k() > 4);
        (0..10_000).for_each(|_| hint.looked(false));
        assert_eq!(hint.k(), 1);
    }
}
