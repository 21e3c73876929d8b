//! How copies are called.
//!
//! ```text
//! <data directory, UUID>/<stream, UUID>/<shard, 4 digits>/<segment, 20 digits>-<term, 10 digits>-<checksum, 16 hex>/
//!     000000, 000001, ...   its parts, each but the last one as long as the index says
//!     index                 the checksums of its blocks, and places in it
//! ```
//!
//! The checksum is that of the index.

use tailwater_format::{SegmentId, SegmentNumber, ShardId, StreamId, Term};
use uuid::Uuid;

/// A copy of a segment: the XXH3-64 of its index, which has those of everything in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ColdCopy(pub u64);

/// Of which segment of a shard a folder has a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyName {
    /// The segment's number.
    pub number: SegmentNumber,
    /// The term of its writer.
    pub term: Term,
    /// The copy.
    pub copy: ColdCopy,
}

impl CopyName {
    /// What a folder below a shard's is the copy of; `None` if it is none.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('-');
        let (number, term, copy) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || (number.len(), term.len(), copy.len()) != (20, 10, 16) {
            return None;
        }
        Some(Self {
            number: SegmentNumber(number.parse().ok()?),
            term: Term(term.parse().ok()?),
            copy: ColdCopy(u64::from_str_radix(copy, 16).ok()?),
        })
    }
}

pub(crate) fn cluster_folder(cluster: Uuid) -> String {
    cluster.to_string()
}

pub(crate) fn stream_folder(cluster: Uuid, stream: StreamId) -> String {
    format!("{cluster}/{stream}")
}

pub(crate) fn shard_folder(cluster: Uuid, shard: ShardId) -> String {
    format!("{cluster}/{}/{:04}", shard.stream, shard.shard.0)
}

pub(crate) fn copy_folder(cluster: Uuid, id: &SegmentId, copy: ColdCopy) -> String {
    let shard = shard_folder(cluster, id.shard);
    format!("{shard}/{:020}-{:010}-{:016x}", id.number.0, id.term.0, copy.0)
}

pub(crate) fn part_name(folder: &str, part: u64) -> String {
    format!("{folder}/{part:06}")
}

pub(crate) fn index_name(folder: &str) -> String {
    format!("{folder}/index")
}

#[cfg(test)]
mod tests {
    use tailwater_format::ShardNumber;

    use super::*;

    #[test]
    fn a_folder_tells_the_segment_its_term_and_its_contents_and_nothing_else_is_taken_for_one() {
        let shard = ShardId { stream: StreamId(Uuid::from_u128(9)), shard: ShardNumber(3) };
        let id = SegmentId { shard, number: SegmentNumber(u64::MAX), term: Term(5) };
        let folder = copy_folder(Uuid::from_u128(7), &id, ColdCopy(0xfe));
        let (parent, name) = folder.rsplit_once('/').expect("folders");
        assert_eq!(parent, shard_folder(Uuid::from_u128(7), shard));
        assert_eq!(
            CopyName::parse(name),
            Some(CopyName { number: id.number, term: Term(5), copy: ColdCopy(0xfe) })
        );
        for wrong in ["", "index", "1-2-3", &name[1..], &format!("{name}-"), &name.replace("fe", "xx")] {
            assert_eq!(CopyName::parse(wrong), None, "{wrong}");
        }
    }
}
