//! After a start the ends of the shards go back into the data cell.
//!
//! What an earlier process wrote is on the disk, and of a shard that nobody appends to it would stay there: readers who
//! are near its end would take it from the node, and not one-sidedly. So the last bytes of each shard's newest segment
//! are read once, and handed to the tail's writer, which treats them like bytes that have just become durable. The
//! cell forgets them like any others.
//!
//! Bounded for each shard and for all of them ([`tailwater_tail::WriterConfig`]). One shard is read after the other,
//! and nobody waits for it: what can't be read, or is not taken, is what readers take from the durable layer.

use std::sync::Arc;

use bytes::Bytes;
use tailwater_format::{Position, SegmentId, ShardId, Tail};
use tailwater_store::{StoreContract, StoreError};
use tailwater_tail::TailWriter;

/// Hands the ends of `shards`, whose tails are as a start found them, to `tail`.
pub(crate) async fn refill(store: Arc<dyn StoreContract>, tail: TailWriter, shards: Vec<(ShardId, Tail)>) {
    let shards: Vec<_> =
        shards.into_iter().filter(|(_, found)| found.sealed && found.durable > Position(0)).collect();
    let share = tail.refill_share(shards.len());
    for (shard, found) in shards {
        let segment = found.segment_id(shard);
        let from = first_chunk(&found, share);
        if from >= found.durable {
            continue;
        }
        match read(&*store, &segment, from, found.durable).await {
            Ok(pieces) => {
                tail.refill(segment, from, &pieces);
            }
            // Retention may have removed it; and a disk that refuses says so to whoever reads.
            Err(error) => tracing::debug!(%segment, %error, "its end does not go back into the data cell"),
        }
    }
}

/// Where the first chunk begins that ends, with those behind it, in at most `share` bytes.
fn first_chunk(found: &Tail, share: u64) -> Position {
    let chunk = u64::from(found.chunk_bytes);
    Position(found.durable.0.saturating_sub(share).div_ceil(chunk) * chunk)
}

async fn read(
    store: &dyn StoreContract,
    segment: &SegmentId,
    from: Position,
    to: Position,
) -> Result<Vec<Bytes>, StoreError> {
    let (mut at, mut pieces) = (from, Vec::new());
    while at < to {
        let bytes = store.read(segment, at, (to.0 - at.0) as usize).await?;
        if bytes.is_empty() {
            return Err(StoreError::BeyondDurable { position: to, durable: at });
        }
        at = Position(at.0 + bytes.len() as u64);
        pieces.push(bytes);
    }
    Ok(pieces)
}
