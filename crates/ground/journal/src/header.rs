//! A file's first page. Little-endian.
//!
//! ```text
//! offset width
//!   0      8   magic                  "TWJOURNL"
//!   8      4   version                1
//!  12      4   zero
//!  16     16   journal                random, the same in all files of one journal
//!  32      8   sequence               of this file, from 1
//!  40      8   incarnation
//!  48      8   base                   position of the file's first frame
//!  56      8   predecessor            sequence of the file before this one, or 0
//!  64      8   predecessor_end        where the records of that file end
//!  72      4   checksum               CRC32C of bytes 0..72
//!  76   4020   zero
//! ```
//!
//! Written once per use of a file, and synced before the file gets the name that makes it part of the journal:
//! a file of that name whose header does not verify is damaged, never unfinished.
//!
//! `predecessor_end <= base`: the positions in between belonged to records that a failure cut.

use crate::limits::PAGE_BYTES;
use crate::position::{FileSequence, Incarnation, JournalPosition};

const MAGIC: [u8; 8] = *b"TWJOURNL";
const VERSION: u32 = 1;
const CHECKED_BYTES: usize = 72;

/// Bytes of the header that are not padding.
pub(crate) const FILE_HEADER_BYTES: usize = CHECKED_BYTES + 4;

/// The largest number in a header: no journal comes near it, and what is counted on from there does not overflow.
const HEADER_NUMBER_MAX: u64 = u64::MAX >> 1;

/// The decoded first page of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) journal: [u8; 16],
    pub(crate) sequence: FileSequence,
    pub(crate) incarnation: Incarnation,
    pub(crate) base: JournalPosition,
    pub(crate) predecessor: FileSequence,
    pub(crate) predecessor_end: JournalPosition,
}

/// Why a page is not a file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("it is too short for a header")]
    Short,
    #[error("it does not begin with a journal file's magic number")]
    Magic,
    #[error("its format version is {found}, and this program knows version {VERSION}")]
    Version { found: u32 },
    #[error("its header's checksum is wrong")]
    Checksum,
    #[error("its header contradicts itself")]
    Impossible,
}

impl FileHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES as usize];
        page[0..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        page[16..32].copy_from_slice(&self.journal);
        page[32..40].copy_from_slice(&self.sequence.0.to_le_bytes());
        page[40..48].copy_from_slice(&self.incarnation.0.to_le_bytes());
        page[48..56].copy_from_slice(&self.base.0.to_le_bytes());
        page[56..64].copy_from_slice(&self.predecessor.0.to_le_bytes());
        page[64..72].copy_from_slice(&self.predecessor_end.0.to_le_bytes());
        let checksum = crc_fast::crc32_iscsi(&page[..CHECKED_BYTES]);
        page[CHECKED_BYTES..FILE_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    pub(crate) fn decode(page: &[u8]) -> Result<Self, HeaderError> {
        let page: &[u8; FILE_HEADER_BYTES] = page
            .get(..FILE_HEADER_BYTES)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(HeaderError::Short)?;
        if page[0..8] != MAGIC {
            return Err(HeaderError::Magic);
        }
        let u32_at = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
        // The version comes first: what another version keeps where is not ours to check.
        if u32_at(8) != VERSION {
            return Err(HeaderError::Version { found: u32_at(8) });
        }
        if crc_fast::crc32_iscsi(&page[..CHECKED_BYTES]) != u32_at(CHECKED_BYTES) {
            return Err(HeaderError::Checksum);
        }
        let header = Self {
            journal: page[16..32].try_into().expect("16 bytes"),
            sequence: FileSequence(u64_at(32)),
            incarnation: Incarnation(u64_at(40)),
            base: JournalPosition(u64_at(48)),
            predecessor: FileSequence(u64_at(56)),
            predecessor_end: JournalPosition(u64_at(64)),
        };
        let largest = header.sequence.0.max(header.incarnation.0).max(header.base.0);
        if header.predecessor >= header.sequence
            || header.predecessor_end > header.base
            || largest > HEADER_NUMBER_MAX
        {
            return Err(HeaderError::Impossible);
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_comes_back_as_it_was(
            journal: [u8; 16],
            sequence in 1..=HEADER_NUMBER_MAX,
            incarnation in 0..=HEADER_NUMBER_MAX,
            base in 0..=HEADER_NUMBER_MAX,
            before: u64,
            end: u64,
        ) {
            let header = FileHeader {
                journal,
                sequence: FileSequence(sequence),
                incarnation: Incarnation(incarnation),
                base: JournalPosition(base),
                predecessor: FileSequence(before % sequence),
                predecessor_end: JournalPosition(end.min(base)),
            };
            prop_assert_eq!(FileHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let _ = FileHeader::decode(&bytes);
        }
    }

    #[test]
    fn a_header_from_which_nothing_can_be_counted_on_is_refused() {
        let header = |sequence, incarnation, base| FileHeader {
            journal: [7; 16],
            sequence: FileSequence(sequence),
            incarnation: Incarnation(incarnation),
            base: JournalPosition(base),
            predecessor: FileSequence(0),
            predecessor_end: JournalPosition(0),
        };
        for header in [header(u64::MAX, 1, 1), header(1, u64::MAX, 1), header(1, 1, u64::MAX)] {
            assert_eq!(FileHeader::decode(&header.encode()), Err(HeaderError::Impossible));
        }
    }

    #[test]
    fn a_damaged_header_is_refused_whichever_bit_it_is() {
        let header = FileHeader {
            journal: [7; 16],
            sequence: FileSequence(2),
            incarnation: Incarnation(1),
            base: JournalPosition(50),
            predecessor: FileSequence(1),
            predecessor_end: JournalPosition(50),
        };
        for bit in 0..FILE_HEADER_BYTES * 8 {
            let mut page = header.encode();
            page[bit / 8] ^= 1 << (bit % 8);
            // Bytes 12..16 are covered by the checksum like the rest.
            assert!(FileHeader::decode(&page).is_err(), "bit {bit}");
        }
    }
}
