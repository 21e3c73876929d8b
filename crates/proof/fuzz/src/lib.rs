//! Everything that reads bytes of somebody else, as targets of a fuzzer: bytes of a peer before and after it has logged
//! in, and bytes of a disk.
//!
//! A target is a function of bytes that panics where something does not hold. That nothing else panics is the least of
//! it: what is read is written as it was, a refusal says why, whoever has no secret is nobody, and the memory that is
//! taken at the same time is in proportion to the bytes that came ([`FuzzTarget::check`]).
//!
//! Each target has seeds, which the code itself encodes; a corpus, which the fuzzer found to lead to further places;
//! and findings, each of which something once did wrong. `make test` runs all of them, and new inputs that are made of
//! them (`tests/corpora.rs`). `make fuzz` looks for further ones, with coverage (`.ci/fuzz`).

// It reads files of the tree, and looks at the clock how long to go on: nothing here runs in a simulated world.
#![allow(clippy::disallowed_methods)]

pub mod corpus;
pub mod mutate;
mod targets;

pub use targets::{find, targets};

/// Whose bytes a target reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBytesOf {
    /// Whoever connects.
    Anybody,
    /// A peer that is known: it has logged in, or is a server of ours.
    Known,
    /// A disk, or metadata.
    Disk,
}

/// Something that reads bytes.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// Its name, that of its files.
    pub name: &'static str,
    /// Whose bytes they are.
    pub of: ReadBytesOf,
    /// Reads them, and panics where something does not hold.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Bytes of memory that it may take at the same time however few bytes it is given.
    pub memory_bytes: usize,
    /// Bytes of memory that it may take for each byte that it is given, what checks it included.
    pub memory_per_byte: usize,
}

impl FuzzTarget {
    /// Runs it.
    ///
    /// # Panics
    /// Something does not hold, or it took more memory than it may.
    pub fn check(&self, data: &[u8]) {
        let taken = allocation_counter::measure(|| (self.run)(data)).bytes_max;
        let most = self.memory_bytes + self.memory_per_byte * data.len();
        assert!(taken <= most as u64, "{}: {taken} bytes of memory for {} given", self.name, data.len());
    }
}
