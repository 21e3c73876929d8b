//! Random numbers of one peer, from a seed that it is given: SplitMix64.

/// A deterministic generator.
#[derive(Clone, Debug)]
pub(crate) struct RegionRng(u64);

impl RegionRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A place in a collection of `len` elements.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Brings `count` random elements (or all that there are) to the front, each order as likely as any other.
    pub(crate) fn draw<T>(&mut self, from: &mut [T], count: usize) {
        for at in 0..count.min(from.len()) {
            let other = at + self.index(from.len() - at);
            from.swap(at, other);
        }
    }
}
