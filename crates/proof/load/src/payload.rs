//! What a record of a bench holds, so that a consumer can check it by itself.
//!
//! ```text
//!  0         8          16      24      28
//!  | checksum | sequence | stamp | shard | filler or text ...
//!    XXH3-64    u64 LE     u64 LE  u32 LE
//! ```
//!
//! The checksum covers everything behind it. The sequence counts the records of one shard from 0. The stamp is
//! the producer's CLOCK_MONOTONIC in ns, read before the record was handed to the producer.

use twox_hash::XxHash3_64;

/// Bytes before the filler.
pub const HEADER_BYTES: usize = 28;

/// Writes the header of a record into the first bytes of `record`; what is behind them is the content.
///
/// # Panics
/// If `record` is shorter than [`HEADER_BYTES`].
pub fn seal(record: &mut [u8], shard: u32, sequence: u64, stamp_ns: u64) -> u64 {
    record[8..16].copy_from_slice(&sequence.to_le_bytes());
    record[16..24].copy_from_slice(&stamp_ns.to_le_bytes());
    record[24..28].copy_from_slice(&shard.to_le_bytes());
    let checksum = XxHash3_64::oneshot(&record[8..]);
    record[..8].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// A record as a consumer reads it; borrows the record.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    checksum: u64,
    sequence: u64,
    stamp_ns: u64,
    shard: u32,
    covered: &'a [u8],
}

impl<'a> Payload<'a> {
    /// The record, not checked yet; `None` if it is too short to be one.
    #[inline(always)]
    pub fn parse(record: &'a [u8]) -> Option<Self> {
        let (checksum, covered) = record.split_first_chunk::<8>()?;
        let (sequence, rest) = covered.split_first_chunk::<8>()?;
        let (stamp, rest) = rest.split_first_chunk::<8>()?;
        let (shard, _) = rest.split_first_chunk::<4>()?;
        Some(Self {
            checksum: u64::from_le_bytes(*checksum),
            sequence: u64::from_le_bytes(*sequence),
            stamp_ns: u64::from_le_bytes(*stamp),
            shard: u32::from_le_bytes(*shard),
            covered,
        })
    }

    /// Whether the content is what was written.
    #[inline(always)]
    pub fn is_intact(&self) -> bool {
        XxHash3_64::oneshot(self.covered) == self.checksum
    }

    /// Its number in its shard.
    #[inline(always)]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// When it was handed to the producer.
    #[inline(always)]
    pub fn stamp_ns(&self) -> u64 {
        self.stamp_ns
    }

    /// The shard it was written for.
    #[inline(always)]
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// The checksum that it holds.
    #[inline(always)]
    pub fn checksum(&self) -> u64 {
        self.checksum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_read_back_intact() {
        let mut record = [7; 100];
        let checksum = seal(&mut record, 3, 42, 99);
        let payload = Payload::parse(&record).expect("long enough");
        assert!(payload.is_intact());
        assert_eq!((payload.shard(), payload.sequence(), payload.stamp_ns()), (3, 42, 99));
        assert_eq!(payload.checksum(), checksum);
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let mut record = [7; 64];
        seal(&mut record, 3, 42, 99);
        for index in 0..record.len() {
            let mut changed = record;
            changed[index] ^= 1;
            assert!(!Payload::parse(&changed).expect("long enough").is_intact(), "byte {index}");
        }
    }

    #[test]
    fn a_record_without_room_for_a_header_is_none() {
        assert!(Payload::parse(&[0; HEADER_BYTES - 1]).is_none());
    }
}
