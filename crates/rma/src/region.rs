//! A memory region: written by its owner only, read by anybody who was given it.

/// Memory that others read one-sidedly.
pub struct Region {
    len: u64,
}

impl Region {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
}
