use proptest::prelude::*;

use super::*;

fn fields() -> EntryFields {
    let stream = StreamId(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
    let segment = SegmentId {
        shard: ShardId { stream, shard: ShardNumber(3) },
        number: SegmentNumber(5),
        term: Term(2),
    };
    EntryFields {
        segment,
        entry_id: EntryId(0),
        base_offset: Offset(1000),
        record_count: 4,
        transaction_id: TransactionId(1_700_000_000_000),
    }
}

fn body() -> Vec<Bytes> {
    vec![Bytes::from_static(b"first batch "), Bytes::from_static(b"second batch")]
}

fn header_of(fields: &EntryFields) -> EntryHeader {
    parse_entry(&encode_entry(fields, &body())).expect("it was just encoded").header
}

/// `fields` of the entry that follows.
fn successor(fields: &EntryFields) -> EntryFields {
    EntryFields {
        entry_id: fields.entry_id.next(),
        base_offset: Offset(fields.base_offset.0 + u64::from(fields.record_count)),
        ..*fields
    }
}

#[test]
fn the_bytes_of_an_entry_never_change() {
    let entry = encode_entry(&fields(), &body());
    let expected = [
        &b"TWen\x02\0\0\0"[..],
        &[112, 0, 0, 0, 4, 0, 0, 0],
        &[0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff],
        &[3, 0, 0, 0, 2, 0, 0, 0],
        &[5, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0, 0, 0, 0],
        &[0xe8, 3, 0, 0, 0, 0, 0, 0],
        &[0x00, 0x68, 0xe5, 0xcf, 0x8b, 0x01, 0, 0],
        GOLDEN_CHECKSUMS,
        b"first batch second batch",
    ]
    .concat();
    assert_eq!(entry, expected, "{:02x?}", &entry[72..88]);
}

/// The body's and the header's. The first was computed by another implementation, Python's `xxhash`.
const GOLDEN_CHECKSUMS: &[u8] =
    &[0x91, 0x7d, 0xc0, 0x5a, 0x76, 0xbd, 0x6e, 0xc1, 0x4c, 0xe2, 0xae, 0x57, 0x77, 0xbf, 0xe7, 0xd6];

#[test]
fn a_control_entry_is_a_header_and_nothing_else() {
    let control = EntryFields { record_count: 0, ..fields() };
    let bytes = encode_entry(&control, &[]);
    assert_eq!(bytes.len(), ENTRY_HEADER_BYTES);
    let entry = parse_entry(&bytes).expect("it was just encoded");
    assert!(entry.header.is_control());
    assert!(entry.batches.is_empty());
    assert_eq!(entry.header.next_offset(), control.base_offset);
}

#[test]
fn every_prefix_says_how_much_is_needed() {
    let bytes = encode_entry(&fields(), &body());
    for len in 0..bytes.len() {
        let needed = if len < ENTRY_HEADER_BYTES { ENTRY_HEADER_BYTES } else { bytes.len() };
        assert_eq!(parse_entry(&bytes[..len]), Err(EntryError::Incomplete { needed }), "{len} bytes");
    }
    assert!(parse_entry(&bytes).is_ok());
}

#[test]
fn every_flipped_bit_is_noticed_whatever_it_says() {
    let bytes = encode_entry(&fields(), &body());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(parse_entry(&flipped), Err(EntryError::Corrupt(_))), "bit {bit}");
    }
}

#[test]
fn a_header_with_a_right_checksum_and_impossible_numbers_is_refused() {
    let cases: [(usize, u32); 5] = [
        (AT_LEN, ENTRY_BYTES_MAX as u32 + 1),
        (AT_LEN, ENTRY_HEADER_BYTES as u32 - 1),
        (AT_LEN, ENTRY_HEADER_BYTES as u32),
        (AT_RECORD_COUNT, 0),
        (AT_TERM, TERM_MAX + 1),
    ];
    for (at, value) in cases {
        let mut bytes = encode_entry(&fields(), &body()).to_vec();
        put_u32_le(&mut bytes, at, value);
        let checksum = XxHash3_64::oneshot(&bytes[..AT_HEADER_CHECKSUM]);
        put_u64_le(&mut bytes, AT_HEADER_CHECKSUM, checksum);
        let error = parse_entry(&bytes).expect_err("impossible");
        assert!(matches!(error, EntryError::Corrupt(EntryCorrupt::Impossible { .. })), "{at}: {error}");
    }
}

#[test]
fn only_the_successor_follows() {
    let previous = header_of(&fields());
    let next = successor(&fields());
    assert!(header_of(&next).follows(&previous));
    assert!(header_of(&EntryFields { transaction_id: TransactionId(i64::MAX), ..next }).follows(&previous));

    let mut others = vec![
        fields(),
        EntryFields { entry_id: EntryId(2), ..next },
        EntryFields { base_offset: Offset(1003), ..next },
        EntryFields { base_offset: Offset(1005), ..next },
        EntryFields { transaction_id: TransactionId(1_699_999_999_999), ..next },
    ];
    for change in 0..4 {
        let mut other = next;
        match change {
            0 => other.segment.term = Term(3),
            1 => other.segment.number = SegmentNumber(6),
            2 => other.segment.shard.shard = ShardNumber(4),
            _ => other.segment.shard.stream = StreamId(Uuid::from_u128(1)),
        }
        others.push(other);
    }
    for other in others {
        assert!(!header_of(&other).follows(&previous), "{other:?}");
    }
}

#[test]
fn a_record_has_coordinates_in_its_own_entry_only() {
    let header = header_of(&fields());
    let dlsn = Dlsn { segment: SegmentNumber(5), entry: EntryId(0), slot: SlotId(3) };
    assert_eq!(header.dlsn(Offset(1003)), Some(dlsn));
    assert_eq!(header.dlsn(Offset(999)), None);
    assert_eq!(header.dlsn(Offset(1004)), None);
}

#[test]
fn a_reader_walks_a_segment_and_stops_at_what_does_not_continue() {
    let first = fields();
    let second = successor(&first);
    let stale = EntryFields { entry_id: EntryId(7), ..successor(&second) };
    let segment =
        [encode_entry(&first, &body()), encode_entry(&second, &body()), encode_entry(&stale, &body())]
            .concat();

    let mut reader = EntryReader::new(first.segment);
    let mut read = Vec::new();
    let error = loop {
        match reader.read(&segment[reader.position().0 as usize..]) {
            Ok(entry) => read.push(entry.header.entry_id),
            Err(error) => break error,
        }
    };
    assert_eq!(read, [EntryId(0), EntryId(1)]);
    assert_eq!(reader.position(), Position(224));
    let expected = Discontinuity::EntryId { found: EntryId(7), expected: EntryId(2) };
    assert_eq!(error, EntryError::Corrupt(EntryCorrupt::Discontinuity(expected)));
}

#[test]
fn a_reader_from_the_beginning_wants_entry_0_and_one_from_the_middle_takes_what_is_there() {
    let second = successor(&fields());
    let bytes = encode_entry(&second, &body());
    assert!(EntryReader::new(second.segment).read(&bytes).is_err());
    assert!(EntryReader::starting_at(second.segment, Position(112)).read(&bytes).is_ok());
    let other = SegmentId { term: Term(8), ..second.segment };
    assert!(EntryReader::starting_at(other, Position(112)).read(&bytes).is_err());
}

proptest! {
    #[test]
    fn what_is_encoded_is_parsed(
        stream in any::<u128>(), shard in any::<u32>(), number in any::<u64>(), term in 0..=TERM_MAX,
        entry_id in any::<u64>(), base_offset in 0..=OFFSET_MAX - u64::from(u32::MAX), record_count in 1u32..,
        transaction_id in any::<i64>(), body in proptest::collection::vec(any::<u8>(), 1..2000),
        behind in proptest::collection::vec(any::<u8>(), 0..50), split in any::<proptest::sample::Index>(),
    ) {
        let shard = ShardId { stream: StreamId(Uuid::from_u128(stream)), shard: ShardNumber(shard) };
        let fields = EntryFields {
            segment: SegmentId { shard, number: SegmentNumber(number), term: Term(term) },
            entry_id: EntryId(entry_id),
            base_offset: Offset(base_offset),
            record_count,
            transaction_id: TransactionId(transaction_id),
        };
        let (first, second) = body.split_at(split.index(body.len()));
        let parts = [Bytes::copy_from_slice(first), Bytes::copy_from_slice(second)];
        let mut bytes = encode_entry(&fields, &parts).to_vec();
        let len = bytes.len();
        bytes.extend_from_slice(&behind);
        let entry = parse_entry(&bytes).expect("it was just encoded");
        prop_assert_eq!(entry.batches, &body[..]);
        prop_assert_eq!(entry.header.len as usize, len);
        let parsed = EntryFields {
            segment: entry.header.segment_id(),
            entry_id: entry.header.entry_id,
            base_offset: entry.header.base_offset,
            record_count: entry.header.record_count,
            transaction_id: entry.header.transaction_id,
        };
        prop_assert_eq!(parsed, fields);
    }

    #[test]
    fn any_bytes_are_an_entry_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), magic in any::<bool>()) {
        if magic && bytes.len() >= 6 {
            bytes[..6].copy_from_slice(b"TWen\x01\0");
        }
        match parse_entry(&bytes) {
            Ok(_) => {}
            Err(EntryError::Incomplete { needed }) => {
                prop_assert!(needed > bytes.len() && needed <= ENTRY_BYTES_MAX);
            }
            Err(EntryError::Corrupt(_)) => {}
        }
    }
}
