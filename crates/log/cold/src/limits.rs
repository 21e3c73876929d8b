//! Every bound of this crate, with its unit and its reason.

use std::time::Duration;

/// Bytes of a block, which is what is read at once and has a checksum of its own: a range of an object. Long enough
/// that a round trip of 50 ms carries 20 MB/s for each reader, with the next one under way.
pub const BLOCK_BYTES: usize = 1 << 20;
/// Bytes of an object with a part of a segment, and so what copying holds in memory. A multiple of [`BLOCK_BYTES`].
pub const PART_BYTES: usize = 8 << 20;
/// Blocks that are kept in memory for readers, over all segments.
pub const BLOCKS_MAX: usize = 64;
/// Blocks that are read ahead at the same time.
pub const AHEAD_MAX: usize = 4;
/// Indexes that are kept in memory for readers.
pub const INDEXES_MAX: usize = 64;
/// Bytes between two points of an index, at least: as in the store's own.
pub const POINT_BYTES_MIN: u64 = 64 << 10;
/// Points of an index: a longer segment has them further apart.
pub const POINTS_MAX: u64 = 4_096;
/// Bytes of an index: that of a segment of 64 GiB has 65,536 blocks' checksums and its points.
pub const INDEX_BYTES_MAX: usize = 1 << 20;
/// How long one request of a reader may take: shorter than a consumer's patience.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one request of a copy may take: a part at 1 Mbit/s.
pub const COPY_TIMEOUT: Duration = Duration::from_secs(70);
/// Folders of copies that wait to be removed. What is beyond it is swept later.
pub const REMOVALS_MAX: usize = 4_096;
/// Requests that wait for the threads of a directory.
pub const DIRECTORY_QUEUE: usize = 64;
/// Bytes of an object store's answer: a block, or a list of 1,000 names.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Connections to an object store that are kept while nothing is asked of it.
pub const IDLE_CONNECTIONS_MAX: usize = 8;

const _: () = {
    assert!(PART_BYTES.is_multiple_of(BLOCK_BYTES), "a block lies in one part");
    assert!(
        (64_u64 << 30) / BLOCK_BYTES as u64 * 8 + (POINTS_MAX + 1) * 24 + 64 < INDEX_BYTES_MAX as u64,
        "the longest segment has an index"
    );
};
