//! What a fuzzer runs: what a key's node in ZooKeeper has, which whoever may write there wrote.

use bytes::Bytes;
use uuid::Uuid;

use crate::value::{PartsOf, StoredKey, StoredValue};

/// A node of a key.
pub fn values(data: &[u8]) {
    match StoredKey::decode(data) {
        Ok(stored) => {
            assert_eq!(stored.encode(), data);
            if let StoredValue::Parts(parts) = stored.value {
                // Who reads them makes room for so many.
                assert!(parts.count() <= tailwater_meta::limits::VALUE_BYTES_MAX);
                parts.is(data);
            }
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// Bytes for [`values`].
pub fn seeds() -> Vec<Vec<u8>> {
    let parts = PartsOf::new(Uuid::from_u128(1), b"123456789");
    let values = [StoredValue::Whole(Bytes::from_static(b"value")), StoredValue::Parts(parts)];
    values.into_iter().map(|value| StoredKey { mark: 7, value }.encode()).collect()
}
