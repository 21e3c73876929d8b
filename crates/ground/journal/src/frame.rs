//! A record on disk. Little-endian; frames follow each other without padding.
//!
//! ```text
//! offset width
//!   0      4   checksum   CRC32C of bytes 4.. of the frame, xor the file's salt
//!   4      4   length     of the record in bytes
//!   8      8   position   where the frame begins
//!  16      4   unsynced   bytes before `position` that were not known to be durable when it was framed
//!  20      1   tag
//!  21      1   flags      0
//!  22      2   zero
//!  24      n   the record
//! ```
//!
//! Written by `core.rs` into a group; read by `recover.rs` only. A frame of an earlier use of a recycled file
//! is never taken for one of this use: it has another position and, by the salt, another checksum.
//!
//! `unsynced` is what tells a torn tail from damage. If a whole frame is found behind a broken one, and what
//! it calls durable reaches beyond the broken one, then the broken one was acknowledged.

use crate::limits::FRAME_BYTES;
use crate::position::{FileSequence, JournalPosition, Tag};

/// What distinguishes the checksums of one file of one journal from those of all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Salt(u32);

impl Salt {
    pub(crate) fn new(journal: &[u8; 16], sequence: FileSequence) -> Self {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(journal);
        bytes[16..].copy_from_slice(&sequence.0.to_le_bytes());
        Self(crc_fast::crc32_iscsi(&bytes))
    }
}

/// A frame's header, not yet checked against its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    checksum: u32,
    pub(crate) length: u32,
    pub(crate) position: JournalPosition,
    unsynced: u32,
    pub(crate) tag: Tag,
    flags: u8,
}

impl FrameHeader {
    pub(crate) fn read(bytes: &[u8; FRAME_BYTES]) -> Self {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Self {
            checksum: u32_at(0),
            length: u32_at(4),
            position: JournalPosition(u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"))),
            unsynced: u32_at(16),
            tag: Tag(bytes[20]),
            flags: bytes[21],
        }
    }

    /// Whether `frame`, the header included, is what was framed.
    pub(crate) fn verifies(&self, frame: &[u8], salt: Salt) -> bool {
        self.flags == 0 && crc_fast::crc32_iscsi(&frame[4..]) ^ salt.0 == self.checksum
    }

    /// Everything before this position was durable when the frame was made.
    pub(crate) fn durable(&self) -> JournalPosition {
        JournalPosition(self.position.0.saturating_sub(u64::from(self.unsynced)))
    }
}

/// Appends the frame of a record given in parts to `group`.
///
/// # Panics
/// If the record's length does not fit in 32 bits, which the callers' limits rule out.
pub(crate) fn push_frame(
    group: &mut Vec<u8>,
    tag: Tag,
    position: JournalPosition,
    durable: JournalPosition,
    parts: &[&[u8]],
    salt: Salt,
) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length).expect("records are limited to less than 4 GiB");
    let unsynced = u32::try_from(position.0.saturating_sub(durable.0)).unwrap_or(u32::MAX);
    let start = group.len();
    group.extend_from_slice(&[0; FRAME_BYTES]);
    let header = &mut group[start..];
    header[4..8].copy_from_slice(&length.to_le_bytes());
    header[8..16].copy_from_slice(&position.0.to_le_bytes());
    header[16..20].copy_from_slice(&unsynced.to_le_bytes());
    header[20] = tag.0;
    for part in parts {
        group.extend_from_slice(part);
    }
    let checksum = crc_fast::crc32_iscsi(&group[start + 4..]) ^ salt.0;
    group[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOURNAL: [u8; 16] = *b"0123456789abcdef";

    fn framed(sequence: u64) -> Vec<u8> {
        let salt = Salt::new(&JOURNAL, FileSequence(sequence));
        let mut group = Vec::new();
        let parts: [&[u8]; 2] = [b"hello ", b"world"];
        push_frame(&mut group, Tag(7), JournalPosition(1000), JournalPosition(900), &parts, salt);
        group
    }

    fn header(frame: &[u8]) -> FrameHeader {
        FrameHeader::read(frame[..FRAME_BYTES].try_into().expect("whole"))
    }

    #[test]
    fn a_frame_says_what_was_framed() {
        let frame = framed(3);
        let header = header(&frame);
        assert_eq!((header.length, header.tag, header.position.0), (11, Tag(7), 1000));
        assert_eq!(header.durable(), JournalPosition(900));
        assert_eq!(&frame[FRAME_BYTES..], b"hello world");
        assert!(header.verifies(&frame, Salt::new(&JOURNAL, FileSequence(3))));
    }

    #[test]
    fn a_frame_of_another_file_does_not_verify() {
        let frame = framed(3);
        assert!(!header(&frame).verifies(&frame, Salt::new(&JOURNAL, FileSequence(4))));
        assert!(!header(&frame).verifies(&frame, Salt::new(&[0; 16], FileSequence(3))));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let salt = Salt::new(&JOURNAL, FileSequence(3));
        for bit in 0..framed(3).len() * 8 {
            let mut frame = framed(3);
            frame[bit / 8] ^= 1 << (bit % 8);
            let header = header(&frame);
            assert!(header.length != 11 || !header.verifies(&frame, salt), "bit {bit}");
        }
    }

    #[test]
    fn the_bytes_of_a_frame_stay_the_same_for_ever() {
        let hex: String = framed(3).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&hex[8..], "0b000000e803000000000000640000000700000068656c6c6f20776f726c64");
        assert_eq!(&hex[..8], GOLDEN_CHECKSUM);
    }

    const GOLDEN_CHECKSUM: &str = "4fcf3236";
}
