//! What a fuzzer runs: what lies in a place for copies, which may be anybody's.

use tailwater_format::{Offset, Position, TransactionId};

use crate::index::{ColdIndex, ColdIndexBuilder};
use crate::limits::BLOCK_BYTES;
use crate::names::{ColdCopy, CopyName};

/// An index, under the checksum and of a segment of the length that fit it.
pub fn indexes(data: &[u8]) {
    let length = data.get(8..16).and_then(|length| length.try_into().ok()).map_or(0, u64::from_le_bytes);
    match ColdIndex::decode(ColdIndex::copy_of(data), Position(length), data) {
        Ok(index) => {
            let again = index.encode();
            let again = ColdIndex::decode(ColdIndex::copy_of(&again), Position(length), &again);
            assert_eq!(again.as_ref(), Ok(&index));
            assert!(index.parts() <= length.div_ceil(BLOCK_BYTES as u64));
            for block in [0, index.parts(), u64::MAX / BLOCK_BYTES as u64] {
                assert!(
                    index.block_len(block) <= BLOCK_BYTES && !index.is_block(block, &[1; BLOCK_BYTES + 1])
                );
            }
            for at in [0, 1, i64::MAX] {
                index.position_of_offset(Offset(at.unsigned_abs()));
                index.position_of_transaction_id(TransactionId(-at));
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
    let other = ColdIndex::decode(ColdCopy(!ColdIndex::copy_of(data).0), Position(length), data);
    assert!(other.is_err(), "under another checksum nothing is taken");
}

/// A folder's name.
pub fn names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(CopyName { number, term, copy }) = CopyName::parse(text) {
        let written = format!("{:020}-{:010}-{:016x}", number.0, term.0, copy.0);
        assert_eq!(CopyName::parse(&written), CopyName::parse(text));
    }
}

/// Bytes for [`indexes`], and for [`names`].
pub fn seeds() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let index = |bytes: usize| {
        let mut builder = ColdIndexBuilder::new(Position(bytes as u64), BLOCK_BYTES as u32);
        builder.bytes(&vec![1; bytes]);
        builder.finish().encode().to_vec()
    };
    let mut with_points = index(BLOCK_BYTES + 5);
    // The count of points, and two of them.
    with_points[24] = 2;
    with_points.extend([[0; 24], [7; 24]].concat());
    let name = b"00000000000000000003-0000000002-00000000deadbeef".to_vec();
    (vec![index(5), with_points], vec![name])
}
