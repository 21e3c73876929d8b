//! Whose a ledger is, as its metadata in ZooKeeper have it.
//!
//! ```text
//!  tailwater.cluster   UUID of the metadata whose streams are in it: those of a data directory, or of nodes that share
//!                      them
//!  tailwater.stream    UUID of the stream
//!  tailwater.shard     decimal
//!  tailwater.segment   decimal
//!  tailwater.term      decimal
//!  tailwater.min_regions   decimal: regions that every ack quorum is in, see [`tailwater_bookkeeper::MIN_REGIONS_KEY`]
//! ```
//!
//! The last one is not there in ledgers that were begun before streams could say it.

use std::collections::BTreeMap;
use std::str::FromStr;

use bytes::Bytes;
use tailwater_bookkeeper::{LedgerMetadata, MIN_REGIONS_KEY};
use tailwater_format::{SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};
use uuid::Uuid;

/// What ledgers are written, read and fenced with. It is no secret: whoever may read a ledger's metadata reads it
/// there.
pub(crate) const PASSWORD: &[u8] = b"tailwater";

const CLUSTER: &str = "tailwater.cluster";
const STREAM: &str = "tailwater.stream";
const SHARD: &str = "tailwater.shard";
const SEGMENT: &str = "tailwater.segment";
const TERM: &str = "tailwater.term";

/// What is kept with the ledger of a segment whose every ack quorum is to be in so many regions.
pub(crate) fn custom_of(cluster: Uuid, id: &SegmentId, min_regions: usize) -> BTreeMap<String, Bytes> {
    let values = [
        (CLUSTER, cluster.to_string()),
        (STREAM, id.shard.stream.0.to_string()),
        (SHARD, id.shard.shard.0.to_string()),
        (SEGMENT, id.number.0.to_string()),
        (TERM, id.term.0.to_string()),
        (MIN_REGIONS_KEY, min_regions.to_string()),
    ];
    values.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect()
}

/// Whose a ledger is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedgerOwner {
    /// This cluster's: the segment that it is.
    This(SegmentId),
    /// That of other metadata.
    AnotherCluster,
    /// It does not say that it is of Tailwater.
    AnotherProgram,
    /// This cluster's, but it does not say which segment it is; or it can't be read whose it is.
    Unknown,
}

/// Whose a ledger is, seen from `cluster`.
pub(crate) fn owner_of(cluster: Uuid, metadata: &LedgerMetadata) -> LedgerOwner {
    if !metadata.custom.contains_key(CLUSTER) {
        return LedgerOwner::AnotherProgram;
    }
    match value::<Uuid>(metadata, CLUSTER) {
        Some(of) if of != cluster => LedgerOwner::AnotherCluster,
        of => of.and_then(|_| named_in(metadata)).map_or(LedgerOwner::Unknown, LedgerOwner::This),
    }
}

/// The segment of `cluster` that a ledger is, if it is one.
pub(crate) fn segment_of(cluster: Uuid, metadata: &LedgerMetadata) -> Option<SegmentId> {
    match owner_of(cluster, metadata) {
        LedgerOwner::This(id) => Some(id),
        _ => None,
    }
}

fn value<T: FromStr>(metadata: &LedgerMetadata, key: &str) -> Option<T> {
    std::str::from_utf8(metadata.custom.get(key)?).ok()?.parse().ok()
}

fn named_in(metadata: &LedgerMetadata) -> Option<SegmentId> {
    let shard =
        ShardId { stream: StreamId(value(metadata, STREAM)?), shard: ShardNumber(value(metadata, SHARD)?) };
    Some(SegmentId {
        shard,
        number: SegmentNumber(value(metadata, SEGMENT)?),
        term: Term(value(metadata, TERM)?),
    })
}

#[cfg(test)]
mod tests {
    use tailwater_bookkeeper::digest::DigestKind;
    use tailwater_bookkeeper::{BookieId, Quorums};

    use super::*;

    #[test]
    fn a_ledger_is_known_by_its_metadata_and_no_other_one_is_taken_for_it() {
        let quorums = Quorums::new(1, 1, 1).expect("in order");
        let mut metadata =
            LedgerMetadata::new(quorums, vec![BookieId::new("a:1")], DigestKind::Crc32c, PASSWORD);
        let cluster = Uuid::from_u128(7);
        assert_eq!(segment_of(cluster, &metadata), None, "another program's");
        assert_eq!(owner_of(cluster, &metadata), LedgerOwner::AnotherProgram);
        let shard = ShardId { stream: StreamId(Uuid::from_u128(9)), shard: ShardNumber(3) };
        let id = SegmentId { shard, number: SegmentNumber(u64::MAX), term: Term(5) };
        metadata.custom = custom_of(cluster, &id, 2);
        assert_eq!(segment_of(cluster, &metadata), Some(id));
        assert_eq!(segment_of(Uuid::from_u128(8), &metadata), None, "another cluster's");
        assert_eq!(owner_of(Uuid::from_u128(8), &metadata), LedgerOwner::AnotherCluster);
        metadata.custom.insert(SHARD.to_owned(), Bytes::from_static(b"-1"));
        assert_eq!(segment_of(cluster, &metadata), None);
        assert_eq!(owner_of(cluster, &metadata), LedgerOwner::Unknown);
        metadata.custom.insert(CLUSTER.to_owned(), Bytes::from_static(b"?"));
        assert_eq!(owner_of(cluster, &metadata), LedgerOwner::Unknown, "nobody takes it for its own");
    }
}
