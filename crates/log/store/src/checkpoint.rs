//! The checkpoint: how far the files cover the journal.
//!
//! One small file, replaced (written, synced, renamed, directory synced) at the end of every round of the filler,
//! before the journal is trimmed. All little-endian:
//! ```text
//! offset width
//!      0     4  magic "TWck"
//!      4     2  version 1
//!      6     2  zero
//!      8     8  journal position: all of the store's records before it are covered by the files
//!     16     4  open segments
//!     20     4  zero
//!     24   152  for each: stream UUID 16, shard u32, term u32, segment number u64, synced length u64,
//!               zero 8, first offset u64, first transaction id i64, last entry's header 88 (zeros if empty)
//!      …     8  XXH3-64 of all before
//! ```
//! "Open" is every segment that has no sidecar. A file's own size is never believed: what is beyond the
//! synced length comes from the journal.

use tailwater_format::{Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};
use tailwater_journal::JournalPosition;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::index::{CONTENTS_BYTES, IndexContents};
use crate::record::field;

const MAGIC: [u8; 4] = *b"TWck";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 24;
const OPEN_BYTES: usize = 48 + CONTENTS_BYTES;
const _: () = assert!(OPEN_BYTES == 152);

/// A segment without sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSegment {
    /// Which.
    pub id: SegmentId,
    /// How far its file is synced.
    pub synced: Position,
    /// What it holds up to there.
    pub contents: Option<IndexContents>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// All of the store's records before it are covered by the files.
    pub journal: JournalPosition,
    /// All segments without sidecar.
    pub open: Vec<OpenSegment>,
}

/// Why bytes are not a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Too short, other magic or a checksum that does not fit.
    #[error("the checkpoint is damaged")]
    Damaged,
    /// Written by a later version.
    #[error("checkpoint version {0} is not known to this version (it knows 1)")]
    Version(u16),
}

impl Checkpoint {
    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.open.len() * OPEN_BYTES + 8);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.journal.0.to_le_bytes());
        let count =
            u32::try_from(self.open.len()).expect("fewer open segments than fit into memory 2^32 times");
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for segment in &self.open {
            out.extend_from_slice(segment.id.shard.stream.0.as_bytes());
            out.extend_from_slice(&segment.id.shard.shard.0.to_le_bytes());
            out.extend_from_slice(&segment.id.term.0.to_le_bytes());
            out.extend_from_slice(&segment.id.number.0.to_le_bytes());
            out.extend_from_slice(&segment.synced.0.to_le_bytes());
            out.extend_from_slice(&[0; 8]);
            out.extend_from_slice(&IndexContents::encode(segment.contents.as_ref()));
        }
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads the file's bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or(CheckpointError::Damaged)?;
        if body.len() < HEADER_BYTES || body[..4] != MAGIC || xxh3_64(body) != u64::from_le_bytes(*sum) {
            return Err(CheckpointError::Damaged);
        }
        let version = u16::from_le_bytes(field(body, 4));
        if version != VERSION {
            return Err(CheckpointError::Version(version));
        }
        let rows = &body[HEADER_BYTES..];
        let count = u32::from_le_bytes(field(body, 16)) as usize;
        if rows.len() != count.saturating_mul(OPEN_BYTES) {
            return Err(CheckpointError::Damaged);
        }
        let open = rows.chunks_exact(OPEN_BYTES).map(|row| {
            let shard = ShardId {
                stream: StreamId(Uuid::from_bytes(field(row, 0))),
                shard: ShardNumber(u32::from_le_bytes(field(row, 16))),
            };
            let number = SegmentNumber(u64::from_le_bytes(field(row, 24)));
            let id = SegmentId { shard, number, term: Term(u32::from_le_bytes(field(row, 20))) };
            let synced = Position(u64::from_le_bytes(field(row, 32)));
            let contents = IndexContents::decode(&field(row, 48)).map_err(|_| CheckpointError::Damaged)?;
            Ok(OpenSegment { id, synced, contents })
        });
        let open = open.collect::<Result<_, _>>()?;
        Ok(Self { journal: JournalPosition(u64::from_le_bytes(field(body, 8))), open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_reads_back_and_no_flipped_bit_passes() {
        let shard = ShardId { stream: StreamId(Uuid::from_u128(9)), shard: ShardNumber(2) };
        let id = SegmentId { shard, number: SegmentNumber(3), term: Term(4) };
        let open = vec![OpenSegment { id, synced: Position(5), contents: None }; 2];
        let checkpoint = Checkpoint { journal: JournalPosition(6), open };
        let bytes = checkpoint.encode();
        assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint));
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(Checkpoint::decode(&damaged).is_err(), "bit {at}");
        }
        for length in 0..bytes.len() {
            assert!(Checkpoint::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }
}
