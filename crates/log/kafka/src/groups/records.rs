//! Groups and offsets as metadata keeps them. Little-endian.
//!
//! ```text
//! kafka/group/GROUP: 0  1  format        1 of a classic group, 2 of one of KIP-848
//!                    1  1  kind          1 = classic, 2 = consumer (KIP-848)
//!                    2  4  generation    the last one
//!                    6  8  empty since   wall time in ms; -1 while there are members
//!                   14  4  target epoch  of the last target; not in format 1
//!                   18     protocol type, to the end; empty if it never had members. At 14 in format 1
//!
//! kafka/offsets/STREAM/BLOCK/GROUP, a group's offsets of the 64 partitions from 64 * BLOCK on:
//!                    0  1  format        1
//!                    1     entries, to the end
//! an entry:          0  4  partition
//!                    4  8  offset
//!                                        -1 where what was committed is deleted; "committed" says when
//!                   12  4  leader epoch  of the record before; -1 if it was not given
//!                   16  8  committed     wall time in ms
//!                   24  8  expires       wall time in ms; -1 if by the broker's retention
//!                   32  2  metadata      its length, then as many bytes
//! ```
//!
//! A group's name is the last part of its keys, so it may hold anything. A block is what one commit of one partition
//! rewrites: it stays below some 2 KiB, and a thousand partitions take 16 keys. `members.rs` is the bytes of members.

use std::collections::BTreeMap;

use tailwater_format::StreamId;

/// Where groups are.
pub(crate) const GROUPS: &str = "kafka/group/";
/// Where offsets are.
pub(crate) const OFFSETS: &str = "kafka/offsets/";
/// Partitions of one block.
const BLOCK_PARTITIONS: u32 = 64;
const FORMAT: u8 = 1;
/// The format of groups of KIP-848. Before it was there, they had the other one, and no members.
const TARGETS_FORMAT: u8 = 2;

/// Which protocol the members of a group speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupRecordKind {
    Classic = 1,
    Consumer = 2,
}

impl GroupRecordKind {
    /// Kafka's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Consumer => "consumer",
        }
    }
}

/// What is kept of a group besides offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    pub kind: GroupRecordKind,
    pub generation: i32,
    pub empty_since_ms: Option<i64>,
    /// The epoch of a KIP-848 group's target; the generation of a classic one.
    pub target_epoch: i32,
    pub protocol_type: String,
}

/// The offset of a [`Committed`] that was deleted.
pub(crate) const DELETED: i64 = -1;

/// A committed offset, or that what was committed is deleted: other clusters that have the stream are to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    pub offset: i64,
    pub leader_epoch: i32,
    pub committed_ms: i64,
    pub expires_ms: Option<i64>,
    pub metadata: String,
}

impl Committed {
    /// That what was committed is deleted, at `now_ms`: later than it was committed, whatever the clock says.
    pub fn deleted(&self, now_ms: i64) -> Self {
        let committed_ms = now_ms.max(self.committed_ms.saturating_add(1));
        Self { offset: DELETED, leader_epoch: -1, committed_ms, expires_ms: None, metadata: String::new() }
    }

    /// Whether it was deleted.
    pub fn is_deleted(&self) -> bool {
        self.offset == DELETED
    }

    /// What it takes in memory, roughly, with what says since when it is there.
    pub fn bytes(&self) -> usize {
        240 + self.metadata.len()
    }
}

/// A group's offsets of some partitions that lie together.
pub(crate) type GroupRecordBlock = BTreeMap<u32, Committed>;

/// Which offsets a block holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockId {
    pub stream: StreamId,
    pub block: u32,
}

impl BlockId {
    pub fn of(stream: StreamId, partition: u32) -> Self {
        Self { stream, block: partition / BLOCK_PARTITIONS }
    }

    pub fn partitions(&self) -> std::ops::RangeInclusive<u32> {
        let first = self.block * BLOCK_PARTITIONS;
        first..=first + (BLOCK_PARTITIONS - 1)
    }

    pub fn key(&self, group: &str) -> String {
        format!("{OFFSETS}{}/{}/{group}", self.stream, self.block)
    }

    /// The block and group of a key.
    pub fn parse(key: &str) -> Option<(Self, &str)> {
        let mut parts = key.strip_prefix(OFFSETS)?.splitn(3, '/');
        let (stream, block, group) = (parts.next()?, parts.next()?, parts.next()?);
        // Of partitions that there can be.
        let block = block.parse().ok().filter(|block| *block <= u32::MAX / BLOCK_PARTITIONS)?;
        Some((Self { stream: StreamId(stream.parse().ok()?), block }, group))
    }
}

/// Bytes that are no record of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no record that this program knows")]
pub(crate) struct BadRecord;

impl GroupRecord {
    pub fn encode(&self) -> Vec<u8> {
        let format = if self.kind == GroupRecordKind::Consumer { TARGETS_FORMAT } else { FORMAT };
        let mut bytes = vec![format, self.kind as u8];
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.empty_since_ms.unwrap_or(-1).to_le_bytes());
        if format == TARGETS_FORMAT {
            bytes.extend(self.target_epoch.to_le_bytes());
        }
        bytes.extend(self.protocol_type.as_bytes());
        bytes
    }

    pub fn decode(mut bytes: &[u8]) -> Result<Self, BadRecord> {
        let [format, kind] = take(&mut bytes)?;
        let kind = match (format, kind) {
            (FORMAT, 1) => GroupRecordKind::Classic,
            (FORMAT | TARGETS_FORMAT, 2) => GroupRecordKind::Consumer,
            _ => return Err(BadRecord),
        };
        let generation = i32::from_le_bytes(take(&mut bytes)?);
        let empty_since_ms = not_negative(i64::from_le_bytes(take(&mut bytes)?));
        let target_epoch = match format {
            TARGETS_FORMAT => i32::from_le_bytes(take(&mut bytes)?),
            _ => generation,
        };
        let protocol_type = std::str::from_utf8(bytes).map_err(|_| BadRecord)?.to_owned();
        Ok(Self { kind, generation, empty_since_ms, target_epoch, protocol_type })
    }
}

pub(crate) fn encode_block(block: &GroupRecordBlock) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    for (partition, committed) in block {
        bytes.extend(partition.to_le_bytes());
        bytes.extend(committed.offset.to_le_bytes());
        bytes.extend(committed.leader_epoch.to_le_bytes());
        bytes.extend(committed.committed_ms.to_le_bytes());
        bytes.extend(committed.expires_ms.unwrap_or(-1).to_le_bytes());
        let len = u16::try_from(committed.metadata.len()).expect("bounded by the configuration");
        bytes.extend(len.to_le_bytes());
        bytes.extend(committed.metadata.as_bytes());
    }
    bytes
}

pub(crate) fn decode_block(mut bytes: &[u8]) -> Result<GroupRecordBlock, BadRecord> {
    if take::<1>(&mut bytes)? != [FORMAT] {
        return Err(BadRecord);
    }
    let mut block = GroupRecordBlock::new();
    while !bytes.is_empty() {
        let partition = u32::from_le_bytes(take(&mut bytes)?);
        let offset = i64::from_le_bytes(take(&mut bytes)?);
        let leader_epoch = i32::from_le_bytes(take(&mut bytes)?);
        let committed_ms = i64::from_le_bytes(take(&mut bytes)?);
        let expires_ms = not_negative(i64::from_le_bytes(take(&mut bytes)?));
        let len = u16::from_le_bytes(take(&mut bytes)?).into();
        let (metadata, rest) = bytes.split_at_checked(len).ok_or(BadRecord)?;
        bytes = rest;
        let metadata = std::str::from_utf8(metadata).map_err(|_| BadRecord)?.to_owned();
        block.insert(partition, Committed { offset, leader_epoch, committed_ms, expires_ms, metadata });
    }
    Ok(block)
}

pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], BadRecord> {
    let (taken, rest) = bytes.split_first_chunk().ok_or(BadRecord)?;
    *bytes = rest;
    Ok(*taken)
}

fn not_negative(ms: i64) -> Option<i64> {
    Some(ms).filter(|ms| *ms >= 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn committed() -> impl Strategy<Value = Committed> {
        let parts = (any::<i64>(), any::<i32>(), any::<i64>(), prop::option::of(0..i64::MAX), ".{0,40}");
        parts.prop_map(|(offset, leader_epoch, committed_ms, expires_ms, metadata)| Committed {
            offset,
            leader_epoch,
            committed_ms,
            expires_ms,
            metadata,
        })
    }

    proptest! {
        #[test]
        fn a_block_and_a_group_come_back_as_they_were(
            block in prop::collection::btree_map(any::<u32>(), committed(), 0..8),
            generation: i32,
            epoch: i32,
            empty_since_ms in prop::option::of(0..i64::MAX),
            protocol_type in ".{0,20}",
        ) {
            prop_assert_eq!(decode_block(&encode_block(&block)), Ok(block));
            for kind in [GroupRecordKind::Classic, GroupRecordKind::Consumer] {
                let protocol_type = protocol_type.clone();
                let target_epoch = if kind == GroupRecordKind::Consumer { epoch } else { generation };
                let group = GroupRecord { kind, generation, empty_since_ms, target_epoch, protocol_type };
                prop_assert_eq!(GroupRecord::decode(&group.encode()), Ok(group));
            }
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let _ = decode_block(&bytes);
            let _ = decode_block(&[&[FORMAT], bytes.as_slice()].concat());
            let _ = GroupRecord::decode(&bytes);
            let _ = GroupRecord::decode(&[&[FORMAT, 1], bytes.as_slice()].concat());
            let _ = GroupRecord::decode(&[&[TARGETS_FORMAT, 2], bytes.as_slice()].concat());
        }

        #[test]
        fn a_key_tells_block_and_group_whatever_the_group_is_called(partition: u32, group in ".{0,40}") {
            let id = BlockId::of(StreamId(uuid::Uuid::from_u128(7)), partition);
            prop_assert!(id.partitions().contains(&partition));
            let key = id.key(&group);
            prop_assert_eq!(BlockId::parse(&key), Some((id, group.as_str())));
        }
    }

    #[test]
    fn the_bytes_of_the_records_stay_the_same_for_ever() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let metadata = "hi".to_owned();
        let committed = Committed { offset: 9, leader_epoch: 1, committed_ms: 5, expires_ms: None, metadata };
        let expected = concat!(
            "01",
            "02000000",
            "0900000000000000",
            "01000000",
            "0500000000000000",
            "ffffffffffffffff",
            "02006869",
        );
        assert_eq!(hex(encode_block(&GroupRecordBlock::from([(2, committed)]))), expected);
        let protocol_type = "consumer".to_owned();
        let group = GroupRecord {
            kind: GroupRecordKind::Classic,
            generation: 3,
            empty_since_ms: Some(8),
            target_epoch: 3,
            protocol_type,
        };
        assert_eq!(hex(group.encode()), "0101030000000800000000000000636f6e73756d6572");
        let group =
            GroupRecord { kind: GroupRecordKind::Consumer, empty_since_ms: None, target_epoch: 2, ..group };
        assert_eq!(hex(group.encode()), "020203000000ffffffffffffffff02000000636f6e73756d6572");
        // As release 0.1.0 wrote it.
        let before = b"\x01\x02\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xffconsumer";
        assert_eq!(GroupRecord::decode(before), Ok(GroupRecord { target_epoch: 3, ..group }));
    }
}
