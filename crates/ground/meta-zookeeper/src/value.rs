//! What a key's node has. Little-endian.
//!
//! ```text
//!  offset width
//!       0     1   form     1 = the value is here, 2 = it is in parts
//!       1     8   mark     random, the same in all that one commit wrote: by it a commit is known again
//!  form 1:
//!       9     n   value
//!  form 2:
//!       9    16   name     of the node below ROOT/parts that has the parts as children, named 0, 1, ...
//!      25     4   length   of the value, in bytes
//!      29     4   CRC32C   of the value
//! ```

use bytes::Bytes;
use crc_fast::crc32_iscsi;
use tailwater_meta::limits::VALUE_BYTES_MAX;
use uuid::Uuid;

use crate::limits::PART_BYTES;

const WHOLE: u8 = 1;
const PARTS: u8 = 2;
const HEAD_BYTES: usize = 9;
/// Bytes of a node whose value is in parts.
pub(crate) const PARTS_NODE_BYTES: usize = HEAD_BYTES + 24;

/// What a node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredKey {
    pub(crate) mark: u64,
    pub(crate) value: StoredValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredValue {
    Whole(Bytes),
    Parts(PartsOf),
}

/// A value in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartsOf {
    pub(crate) name: Uuid,
    length: u32,
    crc: u32,
}

impl PartsOf {
    pub(crate) fn new(name: Uuid, value: &[u8]) -> Self {
        let length = u32::try_from(value.len()).expect("values are limited to 1 MiB");
        Self { name, length, crc: crc32_iscsi(value) }
    }

    /// How many there are.
    pub(crate) fn count(self) -> usize {
        (self.length as usize).div_ceil(PART_BYTES)
    }

    /// Whether these bytes are the value.
    pub(crate) fn is(self, value: &[u8]) -> bool {
        value.len() == self.length as usize && crc32_iscsi(value) == self.crc
    }
}

/// Why bytes are not what a node should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was not written by this program, or by a later version of it")]
pub(crate) struct StoredFault;

impl StoredKey {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![if matches!(self.value, StoredValue::Whole(_)) { WHOLE } else { PARTS }];
        bytes.extend_from_slice(&self.mark.to_le_bytes());
        match &self.value {
            StoredValue::Whole(value) => bytes.extend_from_slice(value),
            StoredValue::Parts(parts) => {
                bytes.extend_from_slice(parts.name.as_bytes());
                bytes.extend_from_slice(&parts.length.to_le_bytes());
                bytes.extend_from_slice(&parts.crc.to_le_bytes());
            }
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoredFault> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or(StoredFault)?;
        let mark = u64::from_le_bytes(head[1..].try_into().map_err(|_| StoredFault)?);
        let value = match head[0] {
            WHOLE if rest.len() <= VALUE_BYTES_MAX => StoredValue::Whole(Bytes::copy_from_slice(rest)),
            PARTS => {
                let rest: [u8; 24] = rest.try_into().map_err(|_| StoredFault)?;
                let number =
                    |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
                let name = Uuid::from_slice(&rest[..16]).map_err(|_| StoredFault)?;
                let (length, crc) = (number(16), number(20));
                if length as usize > VALUE_BYTES_MAX {
                    return Err(StoredFault);
                }
                StoredValue::Parts(PartsOf { name, length, crc })
            }
            _ => return Err(StoredFault),
        };
        Ok(Self { mark, value })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_stored_comes_back_as_it_was(mark: u64, name: u128, value: Vec<u8>) {
            let parts = PartsOf::new(Uuid::from_u128(name), &value);
            prop_assert!(parts.is(&value) && !parts.is(&[&value[..], b"x"].concat()));
            for value in [StoredValue::Whole(Bytes::from(value)), StoredValue::Parts(parts)] {
                let stored = StoredKey { mark, value };
                let is_short = matches!(stored.value, StoredValue::Parts(_)) && stored.encode().len() != PARTS_NODE_BYTES;
                prop_assert!(!is_short);
                prop_assert_eq!(StoredKey::decode(&stored.encode()), Ok(stored));
            }
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let _ = StoredKey::decode(&bytes);
            let _ = StoredKey::decode(&[&[PARTS; HEAD_BYTES], bytes.as_slice()].concat());
        }
    }

    #[test]
    fn the_bytes_of_a_value_stay_the_same_for_ever() {
        let stored = |value| {
            StoredKey { mark: 7, value }.encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(stored(StoredValue::Whole(Bytes::from_static(b"xy"))), "0107000000000000007879");
        let parts = PartsOf::new(Uuid::from_u128(1), b"123456789");
        assert_eq!(
            stored(StoredValue::Parts(parts)),
            "0207000000000000000000000000000000000000000000000109000000839206e3"
        );
    }
}
