//! Which backends hold a key.

use crate::layout::KeyHash;

/// How many replicas a cell keeps of each key, and how many have to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One replica: for a cell in one process.
    R1,
    /// Three replicas, two of which acknowledge a SET and agree in a consistent read.
    R32,
}

impl Mode {
    /// Replicas of a key.
    pub const fn replicas(self) -> usize {
        match self {
            Mode::R1 => 1,
            Mode::R32 => 3,
        }
    }

    /// Replicas that have to agree.
    pub const fn quorum(self) -> usize {
        match self {
            Mode::R1 => 1,
            Mode::R32 => 2,
        }
    }
}

/// The most replicas of a key in any mode.
pub(super) const REPLICAS_MAX: usize = 3;

/// The number of the backend that holds replica `replica` of a key: consecutive ones from the key's first.
pub(super) fn backend_of(hash: KeyHash, replica: usize, backends: usize) -> usize {
    let first = hash.backend(backends as u64) as usize;
    (first + replica) % backends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_different_backends_hold_a_key_and_all_backends_about_equally_many() {
        for backends in [3, 4, 7, 50] {
            let mut held = vec![0_usize; backends];
            for n in 0..10_000_u32 {
                let hash = KeyHash::of(&n.to_le_bytes());
                let [a, b, c] = [0, 1, 2].map(|replica| backend_of(hash, replica, backends));
                assert!(a != b && b != c && a != c);
                for backend in [a, b, c] {
                    held[backend] += 1;
                }
            }
            let mean = 30_000 / backends;
            assert!(held.iter().all(|held| held.abs_diff(mean) < mean / 3), "{held:?}");
        }
    }
}
