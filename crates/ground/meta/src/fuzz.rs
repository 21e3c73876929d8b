//! What a fuzzer runs: what of the metadata lies on disk. What is read was written so.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::contract::Versioned;
use crate::record::{CommitRecord, RecordedChange};
use crate::snapshot::Snapshot;

/// A commit as the journal has it.
pub fn commits(data: &[u8]) {
    match CommitRecord::decode(data) {
        Ok(commit) => assert_eq!(commit.encode(), data),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// A snapshot, under the checksum that fits it.
pub fn snapshots(data: &[u8]) {
    let bytes = [data, &crc_fast::crc64_nvme(data).to_le_bytes()[..]].concat();
    match Snapshot::decode(&bytes) {
        Ok(snapshot) => assert_eq!(Snapshot::decode(&snapshot.encode()), Ok(snapshot)),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// Bytes for [`commits`], and for [`snapshots`].
pub fn seeds() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let put = RecordedChange { key: "first/key".into(), value: Some(Bytes::from_static(b"value")) };
    let deleted = RecordedChange { key: "other/key".into(), value: None };
    let commit = CommitRecord { revision: 9, previous: 7, changes: vec![put, deleted] };
    let versioned = |version| Versioned { value: Bytes::from_static(b"value"), version };
    let keys = BTreeMap::from([("a".into(), versioned(2)), ("b".into(), versioned(9))]);
    let mut snapshot = Snapshot { revision: 9, keys }.encode();
    snapshot.truncate(snapshot.len() - 8);
    (vec![commit.encode()], vec![snapshot])
}
