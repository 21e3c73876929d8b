//! A bug on purpose in how the backend's memory is used again: the check that is there for it catches it.

use super::tests::{ID, set, start, value, version};
use super::*;
use crate::layout::{Pointer, encode_item};
use crate::limits::SLOT_REST;
use crate::testing::small;

const BYTES: usize = 1_000;

/// A reader has copied where a key's item is. The item is replaced, and another key of the same size is set by a table
/// whose clock is so much ahead. Whether the reader still finds what it looks for.
fn is_found_after_it_was_replaced(ahead: Duration) -> bool {
    let (backend, _clock) = start(small(ID));
    set(&backend, b"a", 1, BYTES);
    let hash = KeyHash::of(b"a");
    let mut bucket = [0; BUCKET_BYTES];
    backend.served().index.read(bucket_offset(hash.bucket(backend.config.buckets)), &mut bucket);
    let BucketView::Found { pointer: Pointer { offset, len }, .. } = scan_bucket(&bucket, hash, ID) else {
        panic!("it was set");
    };
    assert_eq!(set(&backend, b"a", 2, BYTES), Outcome::Applied);
    let other = encode_item(b"b", version(3), Some(&value(b"b", version(3), BYTES)));
    let other = Item::parse(&other).expect("an item");
    let now = backend.env.now() + ahead;
    assert_eq!(backend.table.lock().apply(&other, now), Outcome::Applied);
    let mut bytes = vec![0; len as usize];
    backend.served().data.read(offset, &mut bytes);
    Item::parse(&bytes).is_ok_and(|item| (item.key, item.version) == (b"a", version(1)))
}

#[test]
fn a_slot_that_is_used_again_too_early_is_caught() {
    assert!(is_found_after_it_was_replaced(Duration::ZERO), "it rests first");
    assert!(!is_found_after_it_was_replaced(SLOT_REST), "the bug is noticed");
}
