//! What a fuzzer runs: what of groups is in the metadata. What is read was written so.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tailwater_format::StreamId;
use uuid::Uuid;

use crate::groups::members::{ClassicRecord, MemberRecord};
use crate::groups::records::{BlockId, Committed, GroupRecord, GroupRecordKind, decode_block, encode_block};

/// A value or a key of any kind.
pub fn group_records(data: &[u8]) {
    if let Ok(record) = GroupRecord::decode(data) {
        assert_eq!(GroupRecord::decode(&record.encode()), Ok(record));
    }
    if let Ok(block) = decode_block(data) {
        assert_eq!(decode_block(&encode_block(&block)), Ok(block));
    }
    if let Ok(record) = MemberRecord::decode(data) {
        assert_eq!(MemberRecord::decode(&record.encode()), Ok(record));
    }
    if let Ok(key) = std::str::from_utf8(data)
        && let Some((block, group)) = BlockId::parse(key)
    {
        let (first, last) = block.partitions().into_inner();
        assert!(first < last && key.ends_with(group));
    }
}

/// Bytes for [`group_records`].
pub fn seeds() -> Vec<Vec<u8>> {
    let group = |kind| GroupRecord {
        kind,
        generation: 3,
        empty_since_ms: Some(4),
        target_epoch: 3,
        protocol_type: "consumer".to_owned(),
    };
    let committed = Committed {
        offset: 1,
        leader_epoch: 2,
        committed_ms: 3,
        expires_ms: None,
        metadata: "metadata".to_owned(),
    };
    let stream = StreamId(Uuid::from_u128(7));
    let partitions = BTreeMap::from([(stream, BTreeSet::from([1, 2]))]);
    let protocols = vec![("range".to_owned(), Bytes::from_static(b"said"))];
    let member = MemberRecord {
        id: "id".to_owned(),
        instance: Some("instance".to_owned()),
        rack: None,
        client_id: "client".into(),
        client_host: "/127.0.0.1".to_owned(),
        rebalance_ms: 5,
        topics: BTreeSet::from(["news".to_owned()]),
        pattern: Some(("n.*".to_owned(), "alice".into())),
        assignor: None,
        epoch: 2,
        previous_epoch: 1,
        assigned: partitions.clone(),
        revoking: partitions,
        target: BTreeMap::new(),
        classic: Some(ClassicRecord { session_ms: 6, is_due: true, protocols }),
    };
    vec![
        group(GroupRecordKind::Classic).encode(),
        group(GroupRecordKind::Consumer).encode(),
        encode_block(&BTreeMap::from([(7, committed)])),
        member.encode(),
        BlockId::of(stream, 100).key("group").into_bytes(),
    ]
}
