//! New inputs out of others, where no coverage leads: small changes, and ends of others.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Bytes that an input is at most made longer to.
const BYTES_MAX: usize = 64 << 10;
/// Changes of one input.
const CHANGES_MAX: usize = 6;
/// Bounds of numbers, which are where mistakes are.
const BOUNDS: [u64; 12] =
    [0, 1, 127, 128, 255, 256, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// Makes them, the same ones for the same seed.
#[derive(Debug)]
pub struct Mutator {
    random: StdRng,
}

impl Mutator {
    /// One of many.
    pub fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed) }
    }

    /// A new input, made of one of `inputs` and parts of others.
    ///
    /// # Panics
    /// There are none.
    pub fn next(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(CHANGES_MAX) {
            self.change(&mut input, inputs);
        }
        input.truncate(BYTES_MAX);
        input
    }

    /// A number below `bound`, or 0.
    fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { self.random.random_range(0..bound) }
    }

    /// A place in `bytes`, and how many bytes from there on: few mostly.
    fn part(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let from = self.below(bytes.len());
        let most = if self.random.random() { 8 } else { bytes.len() };
        let count = self.below(most.min(bytes.len() - from) + 1);
        from..from + count
    }

    fn change(&mut self, input: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        let at = self.below(input.len());
        match self.below(9) {
            0 if !input.is_empty() => input[at] ^= 1 << self.below(8),
            1 if !input.is_empty() => input[at] = self.random.random(),
            2 if !input.is_empty() => input[at] = input[at].wrapping_add([1, 255][self.below(2)]),
            3 => {
                let width = (1 << self.below(4)).min(input.len() - at);
                let bound = BOUNDS[self.below(BOUNDS.len())];
                let (big, little) = (bound.to_be_bytes(), bound.to_le_bytes());
                let bytes = if self.random.random() { &little[..width] } else { &big[8 - width..] };
                input[at..at + width].copy_from_slice(bytes);
            }
            4 => drop(input.drain(self.part(&input.clone()))),
            5 => {
                let part = input[self.part(&input.clone())].to_vec();
                input.splice(at..at, part);
            }
            6 => {
                let bytes: Vec<u8> = (0..self.below(16)).map(|_| self.random.random()).collect();
                input.splice(at..at, bytes);
            }
            7 => {
                let other = &inputs[self.below(inputs.len())];
                let part = other[self.part(other)].to_vec();
                input.splice(at..at, part);
            }
            _ => {
                let other = &inputs[self.below(inputs.len())];
                input.truncate(at);
                input.extend(&other[self.below(other.len())..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_inputs_again_and_nearly_all_of_them_are_new() {
        let inputs = vec![vec![], vec![1; 40], (0..200).collect::<Vec<u8>>()];
        let made = |seed| {
            let mut mutator = Mutator::new(seed);
            (0..1_000).map(|_| mutator.next(&inputs)).collect::<Vec<_>>()
        };
        let (one, again, other) = (made(1), made(1), made(2));
        assert!(one == again && one != other);
        let new = one.iter().filter(|input| !inputs.contains(input)).count();
        assert!(new > 900, "{new}");
    }
}
