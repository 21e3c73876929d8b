//! Where randomness comes from.

/// A source of random numbers.
pub trait Random: Send + Sync + 'static {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;
}
