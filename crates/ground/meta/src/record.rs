//! A commit as a journal record, and a key as it stands there and in a snapshot. Little-endian.
//!
//! ```text
//! commit:  offset width
//!             0      1   format     1
//!             1      8   revision   of this commit, from 1
//!             9      8   previous   revision of the commit before it; 0 if there is none
//!            17      n   changes, up to the end of the record
//!
//! change:     0      1   kind       1 = put, 2 = delete
//!             1      4   key length, then the key
//!             .      4   value length, then the value; a put only
//! ```
//!
//! The checksum is the journal's. `previous` is what shows a replay that begins too late or lacks a commit.

use std::sync::Arc;

use bytes::Bytes;

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

const FORMAT: u8 = 1;
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// What a commit does to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedChange {
    pub(crate) key: Arc<str>,
    /// `None` removes it.
    pub(crate) value: Option<Bytes>,
}

/// A commit as it is replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommitRecord {
    pub(crate) revision: u64,
    pub(crate) previous: u64,
    pub(crate) changes: Vec<RecordedChange>,
}

/// Why bytes are not a commit or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MetaRecordError {
    #[error("it ends too early")]
    Short,
    #[error("its format is {found}, and this program knows {FORMAT}")]
    Format { found: u8 },
    #[error("it contradicts itself")]
    Impossible,
}

impl CommitRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&self.revision.to_le_bytes());
        bytes.extend_from_slice(&self.previous.to_le_bytes());
        for change in &self.changes {
            match &change.value {
                Some(value) => {
                    bytes.push(PUT);
                    put_bytes(&mut bytes, change.key.as_bytes());
                    put_bytes(&mut bytes, value);
                }
                None => {
                    bytes.push(DELETE);
                    put_bytes(&mut bytes, change.key.as_bytes());
                }
            }
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MetaRecordError> {
        let mut reader = Reader { bytes };
        let found = reader.u8()?;
        if found != FORMAT {
            return Err(MetaRecordError::Format { found });
        }
        let (revision, previous) = (reader.u64()?, reader.u64()?);
        if previous >= revision {
            return Err(MetaRecordError::Impossible);
        }
        let mut changes = Vec::new();
        while !reader.bytes.is_empty() {
            let kind = reader.u8()?;
            let key = reader.key()?;
            let value = match kind {
                PUT => Some(reader.value()?),
                DELETE => None,
                _ => return Err(MetaRecordError::Impossible),
            };
            changes.push(RecordedChange { key, value });
        }
        Ok(Self { revision, previous, changes })
    }
}

pub(crate) fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("keys and values are limited to a few MiB");
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(bytes);
}

/// Takes fields off the front of some bytes.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], MetaRecordError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(MetaRecordError::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, MetaRecordError> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MetaRecordError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }

    fn limited(&mut self, length_max: usize) -> Result<&'a [u8], MetaRecordError> {
        let length = u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")) as usize;
        if length > length_max {
            return Err(MetaRecordError::Impossible);
        }
        self.take(length)
    }

    pub(crate) fn key(&mut self) -> Result<Arc<str>, MetaRecordError> {
        let bytes = self.limited(KEY_BYTES_MAX)?;
        std::str::from_utf8(bytes).map(Arc::from).map_err(|_| MetaRecordError::Impossible)
    }

    pub(crate) fn value(&mut self) -> Result<Bytes, MetaRecordError> {
        self.limited(VALUE_BYTES_MAX).map(Bytes::copy_from_slice)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn changes() -> impl Strategy<Value = Vec<RecordedChange>> {
        let change = ("[a-z/]{1,40}", proptest::option::of(proptest::collection::vec(any::<u8>(), 0..100)));
        let change =
            change.prop_map(|(key, value)| RecordedChange { key: key.into(), value: value.map(Bytes::from) });
        proptest::collection::vec(change, 0..8)
    }

    proptest! {
        #[test]
        fn a_commit_comes_back_as_it_was(changes in changes(), previous in 0..u64::MAX) {
            let commit = CommitRecord { revision: previous + 1, previous, changes };
            prop_assert_eq!(CommitRecord::decode(&commit.encode()), Ok(commit));
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let _ = CommitRecord::decode(&bytes);
            let _ = CommitRecord::decode(&[&[FORMAT; 17], bytes.as_slice()].concat());
        }
    }

    #[test]
    fn the_bytes_of_a_commit_stay_the_same_for_ever() {
        let changes = vec![
            RecordedChange { key: "a/b".into(), value: Some(Bytes::from_static(b"xy")) },
            RecordedChange { key: "c".into(), value: None },
        ];
        let encoded = CommitRecord { revision: 9, previous: 7, changes }.encode();
        let hex: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = concat!(
            "01",
            "0900000000000000",
            "0700000000000000",
            "01",
            "03000000612f62",
            "020000007879",
            "02",
            "0100000063"
        );
        assert_eq!(hex, expected);
    }
}
