use proptest::prelude::*;

use super::*;

fn version(n: u64) -> Version {
    Version { timestamp_us: n, client_id: 3, sequence: 4 }
}

fn bucket_with(items: &[(usize, KeyHash, Version, u64)], config_id: u64, flags: u64) -> Vec<u8> {
    let mut bucket = vec![0; BUCKET_BYTES];
    bucket[..8].copy_from_slice(&config_id.to_le_bytes());
    bucket[8..16].copy_from_slice(&flags.to_le_bytes());
    for (way, hash, version, pointer) in items {
        let at = BUCKET_HEADER_BYTES + way * INDEX_ENTRY_BYTES;
        bucket[at..at + 16].copy_from_slice(&hash.0.to_le_bytes());
        bucket[at + 16..at + 32].copy_from_slice(&version.to_bytes());
        bucket[at + 32..at + 40].copy_from_slice(&pointer.to_le_bytes());
    }
    bucket
}

#[test]
fn golden_bytes_of_a_item() {
    let item = encode_item(b"key", version(0x0102), Some(b"value"));
    let hex: String = item[8..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "05000000030000000201000000000000030000000400000".to_owned() + "06b657976616c7565");
    assert_eq!(u64_at(&item, 0), Some(xxh3_64(&item[8..])));
}

#[test]
fn an_item_in_pieces_is_the_same_bytes_and_a_long_value_is_not_copied() {
    // Miri would take minutes for the longest one.
    let longest = if cfg!(miri) { APART_BYTES_MIN + 1 } else { VALUE_BYTES_MAX };
    for len in [0, 1, APART_BYTES_MIN - 1, APART_BYTES_MIN, longest] {
        let value = Bytes::from((0..len).map(|at| at as u8).collect::<Vec<_>>());
        let item = EncodedItem::new(b"key", version(9), Some(&value), ItemExtras::default());
        let pieces: Vec<&Bytes> = item.pieces().collect();
        let whole = encode_item(b"key", version(9), Some(&value));
        assert!(item.len() == whole.len() && pieces.iter().all(|piece| !piece.is_empty()));
        assert!(Vec::from_iter(pieces.iter().map(|piece| &piece[..])).concat() == whole, "{len} bytes");
        let shared = pieces.iter().any(|piece| piece.as_ptr() == value.as_ptr());
        assert_eq!(shared, len >= APART_BYTES_MIN, "{len} bytes");
    }
    let erased = EncodedItem::new(b"key", version(9), None, ItemExtras::default());
    assert_eq!(Vec::from_iter(erased.pieces()), [&encode_item(b"key", version(9), None)]);
}

#[test]
fn a_bucket_answers_for_each_of_its_ways() {
    let pointer = Pointer { offset: 640, len: 100 };
    for way in 0..WAYS {
        let hash = KeyHash::of(&way.to_le_bytes());
        let bucket = bucket_with(&[(way, hash, version(5), pointer.to_word())], 1, 0);
        assert_eq!(scan_bucket(&bucket, hash, 1), BucketView::Found { version: version(5), pointer });
        assert_eq!(scan_bucket(&bucket, KeyHash(1), 1), BucketView::Absent);
        assert_eq!(scan_bucket(&bucket, hash, 2), BucketView::OtherConfig);
    }
}

#[test]
fn an_item_without_a_pointer_is_no_item_even_if_its_hash_is_still_there() {
    let hash = KeyHash::of(b"k");
    let live = Pointer { offset: 64, len: 99 };
    let bucket = bucket_with(&[(2, hash, version(1), 0), (5, hash, version(2), live.to_word())], 1, 1);
    assert_eq!(scan_bucket(&bucket, hash, 1), BucketView::Found { version: version(2), pointer: live });
    let bucket = bucket_with(&[(2, hash, version(1), 0)], 1, FLAG_CHAINED | FLAG_ASK);
    assert_eq!(scan_bucket(&bucket, hash, 1), BucketView::Overflowed);
}

#[test]
fn a_backend_that_is_not_refilled_says_unknown_and_readers_of_before_ask_by_a_call_or_not_at_all() {
    let hash = KeyHash::of(b"k");
    let view = |flags| scan_bucket(&bucket_with(&[], 1, flags), hash, 1);
    assert_eq!(view(FLAG_UNFILLED | FLAG_ASK), BucketView::Unknown);
    assert_eq!(view(FLAG_UNFILLED | FLAG_CHAINED | FLAG_ASK), BucketView::Overflowed);
    assert_eq!(view(FLAG_ASK), BucketView::Overflowed, "as backends of before say it");
    assert_eq!(view(0), BucketView::Absent);
    // Who knows bit 0 alone sees it with each of the others; its header has 32 bits for the ways.
    let header =
        IndexHeader { config_id: 7, buckets: 100, data_generation: 42, is_filled: true, has_moved: false };
    let ways = |header: IndexHeader| header.encode()[28..32].to_vec();
    assert_eq!(ways(header), (WAYS as u32).to_le_bytes());
    let unfilled = IndexHeader { is_filled: false, ..header };
    assert_ne!(ways(unfilled), (WAYS as u32).to_le_bytes());
    assert_eq!(IndexHeader::decode(&unfilled.encode(), index_region_bytes(100)), Some(unfilled));
}

#[test]
fn a_header_is_refused_when_any_bit_of_it_differs_or_its_buckets_do_not_fit() {
    let header =
        IndexHeader { config_id: 7, buckets: 100, data_generation: 42, is_filled: true, has_moved: false };
    let bytes = header.encode();
    let len = index_region_bytes(100);
    assert_eq!(IndexHeader::decode(&bytes, len), Some(header));
    assert_eq!(IndexHeader::decode(&bytes, len - 1), None);
    for bit in 0..HEADER_USED_BYTES * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(IndexHeader::decode(&flipped, len), None, "bit {bit}");
    }
}

proptest! {
    #[test]
    fn items_round_trip_and_every_flipped_bit_is_noticed(
        key in proptest::collection::vec(any::<u8>(), 0..60),
        value in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300)),
        timestamp in any::<u64>(),
        extras in some_extras(),
        flip in any::<prop::sample::Index>(),
    ) {
        let value_bytes = value.clone().map(Bytes::from);
        let item = EncodedItem::new(&key, version(timestamp), value_bytes.as_ref(), extras);
        let bytes = Vec::from_iter(item.pieces().flatten().copied());
        let item = Item::parse(&bytes).expect("as written");
        prop_assert_eq!(item.extras, if value.is_some() { extras } else { ItemExtras::default() });
        prop_assert_eq!(item.key, &key[..]);
        prop_assert_eq!(item.value, value.as_deref().unwrap_or_default());
        prop_assert_eq!(item.version, version(timestamp));
        prop_assert_eq!(item.tombstone, value.is_none());
        prop_assert_eq!(&bytes[item.value_offset()..][..item.value.len()], item.value);

        let bit = flip.index(bytes.len() * 8);
        let mut torn = bytes.to_vec();
        torn[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Item::parse(&torn).is_err());
        for cut in 0..bytes.len() {
            prop_assert!(Item::parse(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..800), hash in any::<u128>()) {
        let _ = Item::parse(&bytes);
        let _ = scan_bucket(&bytes, KeyHash(hash), 0);
    }

    #[test]
    fn pointers_keep_offset_and_length(units in 0_u64..1 << 40, len in 32_u32..=1_000_000) {
        let pointer = Pointer { offset: units * 64, len };
        prop_assert_eq!(Pointer::from_word(pointer.to_word()), Some(pointer));
    }
}

proptest! {
    #[test]
    fn an_item_whose_head_comes_apart_proves_itself_as_the_whole_one_does(
        value_len in 0_usize..700,
        key in proptest::collection::vec(any::<u8>(), 1..60),
        extras in some_extras(),
        damaged in any::<proptest::sample::Index>(),
        mask in 0_u8..3,
        cut in 0_usize..3,
        behind in 0_usize..3,
    ) {
        let value: Vec<u8> = (0..value_len).map(|place| place as u8).collect();
        let mut bytes = encode_item_with(&key, version(9), Some(&value), extras).to_vec();
        let place = damaged.index(bytes.len());
        bytes[place] ^= mask;
        bytes.truncate(bytes.len() - cut);
        bytes.extend(vec![7; behind]);
        let (head, rest) = bytes.split_at(head_bytes(&key).min(bytes.len()));
        let whole = Item::parse(&bytes).ok().filter(|item| item.key == key && !item.tombstone);
        prop_assert_eq!(
            parse_apart(&key, head, rest, usize::MAX),
            whole.map(|Item { version, value, extras, .. }| {
                ItemApart { version, value_len: value.len(), extras }
            }),
        );
    }
}

fn apart_of(timestamp_us: u64, value_len: usize) -> ItemApart {
    ItemApart { version: version(timestamp_us), value_len, extras: ItemExtras::default() }
}

fn some_extras() -> impl Strategy<Value = ItemExtras> {
    let some = (any::<u64>(), any::<u64>(), prop_oneof![Just(0), any::<u64>()])
        .prop_map(|(expires_ms, tag, token)| ItemExtras { expires_ms, tag, token });
    prop_oneof![Just(ItemExtras::default()), some]
}

#[test]
fn an_item_with_extras_is_torn_for_whoever_does_not_know_them_and_one_with_more_flags_is_refused() {
    let extras = ItemExtras { expires_ms: 1_800_000_000_000, tag: 7, token: 0 };
    let mut bytes = encode_item_with(b"key", version(1), Some(b"value"), extras).to_vec();
    // As code reads it that knows no bit but the first: the lengths alone say where it ends.
    let end = bytes.len() - EXTRAS_BYTES;
    assert_ne!(u64_at(&bytes, 0), Some(xxh3_64(&bytes[8..end])));
    assert_eq!(Item::parse(&bytes).expect("as written").extras, extras);
    bytes[14] |= 8;
    assert_eq!(Item::parse(&bytes), Err(ItemError::Flags { flags: 10 }));
    // A token is there only where one was said.
    let with_token = ItemExtras { token: 9, ..extras };
    let bytes = encode_item_with(b"key", version(1), Some(b"value"), with_token);
    assert_eq!((bytes[14], bytes.len() - end), (6, EXTRAS_BYTES_MAX));
    assert_eq!(Item::parse(&bytes).expect("as written").extras, with_token);
    assert_eq!((with_token.token_at(version(1)), extras.token_at(version(1))), (9, version(1).token()));
    assert!(extras.is_expired(1_800_000_000_000) && !extras.is_expired(1_799_999_999_999));
    assert!(!ItemExtras { expires_ms: 0, tag: 7, token: 0 }.is_expired(i64::MAX), "it never does");
}

#[test]
fn what_is_apart_from_no_value_of_the_key_is_no_value() {
    let at = |item: &Bytes, key: &[u8]| {
        let (head, rest) = item.split_at(head_bytes(key).min(item.len()));
        parse_apart(key, head, rest, usize::MAX)
    };
    let item = encode_item(b"key", version(1), Some(b"value"));
    assert_eq!(at(&item, b"key"), Some(apart_of(1, 5)));
    for key in [&b"kex"[..], b"ke", b"keyv", b""] {
        assert_eq!(at(&item, key), None, "{key:?}");
    }
    assert_eq!(at(&encode_item(b"key", version(1), None), b"key"), None, "erased");
    for head in 0..head_bytes(b"key") {
        assert_eq!(parse_apart(b"key", &item[..head], &item[head..], usize::MAX), None, "{head}");
    }
}

#[test]
fn a_value_that_is_long_enough_not_to_be_checked_is_its_keys_and_whatever_it_is() {
    let mut item = encode_item(b"key", version(1), Some(b"value")).to_vec();
    let head = head_bytes(b"key");
    item[head] ^= 1;
    let at = |key: &[u8], unchecked_from| parse_apart(key, &item[..head], &item[head..], unchecked_from);
    assert_eq!(at(b"key", 6), None, "it is checked");
    assert_eq!(at(b"key", 5), Some(apart_of(1, 5)));
    assert_eq!(at(b"kex", 5), None);
    assert_eq!(parse_apart(b"key", &item[..head], b"valu", 0), None, "not all of it is there");
}
