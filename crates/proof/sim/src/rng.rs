//! The simulator's random numbers: xoshiro256++, seeded by SplitMix64, with independent streams by purpose.
//!
//! Each consumer (scheduler, each node, each disk, the network) draws from a stream of its own, so that one
//! more draw in one place does not shift every decision in all others: two variants of one run, such as the
//! real code and the same code with a planted bug, stay comparable for as long as they behave alike.

/// A deterministic generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of `seed` for `purpose`.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut x = xxhash_rust::xxh3::xxh3_64_with_seed(purpose.as_bytes(), seed);
        let state = std::array::from_fn(|_| split_mix(&mut x));
        Self { state }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s0.wrapping_add(s3).rotate_left(23).wrapping_add(s0);
        let mut next = [s0, s1, s2 ^ s0, s3 ^ s1];
        next[1] ^= next[2];
        next[0] ^= next[3];
        next[2] ^= s1 << 17;
        next[3] = next[3].rotate_left(45);
        self.state = next;
        result
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below 0 does not exist");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    ///
    /// # Panics
    /// If `low > high`, or if the range is all of `u64`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range has no random number");
        low + self.below(high - low + 1)
    }

    /// A place in a collection of `len` elements.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `per_million` of a million cases.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }
}

fn split_mix(x: &mut u64) -> u64 {
    *x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_by_seed_and_differ_by_purpose() {
        let draw = |seed, purpose| {
            let mut rng = Rng::new(seed, purpose);
            std::array::from_fn::<u64, 8, _>(|_| rng.next_u64())
        };
        assert_eq!(draw(1, "disk"), draw(1, "disk"));
        assert_ne!(draw(1, "disk"), draw(2, "disk"));
        assert_ne!(draw(1, "disk"), draw(1, "net"));
    }

    #[test]
    fn bounded_draws_reach_both_ends_and_nothing_else() {
        let mut rng = Rng::new(7, "test");
        let mut seen = [0u32; 5];
        for _ in 0..1_000 {
            seen[rng.between(3, 7) as usize - 3] += 1;
        }
        assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
    }
}
