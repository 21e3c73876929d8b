use proptest::prelude::*;

use super::*;

fn tail() -> Tail {
    Tail {
        segment: SegmentNumber(5),
        term: Term(2),
        base_offset: Offset(1000),
        cached: Position(4096),
        durable: Position(8192),
        next_offset: Offset(1100),
        sealed: false,
        previous: Some((SegmentNumber(4), Term(1), Position(65_536))),
        chunk_bytes: 4096,
        cells: true,
        log_start: Offset(10),
    }
}

fn page(tails: Vec<Option<Tail>>) -> TailPage {
    let stream = StreamId(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
    TailPage { stream, page: 1, deleted: false, tails }
}

#[test]
fn the_bytes_of_a_page_never_change() {
    let expected = [
        &b"TWtp\x01\0\x01\x01"[..],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff],
        &[5, 0, 0, 0, 0, 0, 0, 0],
        &[0xe8, 3, 0, 0, 0, 0, 0, 0],
        &[0, 0x10, 0, 0, 0, 0, 0, 0],
        &[0, 0x20, 0, 0, 0, 0, 0, 0],
        &[0x4c, 4, 0, 0, 0, 0, 0, 0],
        &[10, 0, 0, 0, 0, 0, 0, 0],
        &[4, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 1, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 2, 0, 0, 0],
        &[0, 0x10, 0, 0, 7, 0, 0, 0],
    ]
    .concat();
    let page = TailPage { deleted: true, ..page(vec![Some(Tail { sealed: true, ..tail() })]) };
    assert_eq!(page.encode(), expected);
    assert_eq!(TailPage::decode(&expected), Ok(page));
}

#[test]
fn what_a_page_is_decoded_into_has_nothing_of_what_it_was() {
    let long = TailPage { deleted: true, ..page(vec![Some(tail()), None, Some(tail())]) };
    let short = TailPage { page: 7, ..page(vec![None]) };
    let mut decoded = TailPage::empty();
    for page in [&long, &short, &long] {
        assert_eq!(decoded.decode_into(&page.encode()), Ok(()));
        assert_eq!(decoded, *page);
    }
    assert!(decoded.decode_into(b"nonsense").is_err());
    assert_eq!(decoded.decode_into(&short.encode()), Ok(()));
    assert_eq!(decoded, short);
}

#[test]
fn the_bytes_of_a_key_never_change() {
    let key = tail_page_key(page(Vec::new()).stream, 0x0102);
    assert_eq!(key[..8], *b"TWtp\x02\x01\0\0");
    assert_eq!(key[8..], *page(Vec::new()).stream.0.as_bytes());
    assert_eq!(key.len(), TAIL_PAGE_KEY_BYTES);
}

#[test]
fn a_shard_is_found_in_its_page_only() {
    let page = page(vec![None, Some(tail())]);
    assert_eq!(tail_page_of(ShardNumber(65)), (1, 1));
    assert_eq!(page.tail(ShardNumber(65)), Some(&tail()));
    assert_eq!(page.tail(ShardNumber(64)), None);
    assert_eq!(page.tail(ShardNumber(66)), None);
    assert_eq!(page.tail(ShardNumber(1)), None);
}

#[test]
fn a_full_page_is_as_long_as_promised() {
    assert_eq!(page(vec![Some(tail()); 64]).encode().len(), TAIL_PAGE_BYTES_MAX);
}

#[test]
fn a_cached_length_ahead_of_the_durable_one_is_legal_outside_the_source() {
    let page = page(vec![Some(Tail { cached: Position(9000), ..tail() })]);
    assert_eq!(TailPage::decode(&page.encode()), Ok(page));
}

#[test]
fn a_tail_that_contradicts_itself_is_refused() {
    let good = page(vec![None, Some(tail())]).encode();
    let at = HEADER_BYTES + SLOT_BYTES;
    let cases: [(&str, usize, u64); 7] = [
        ("base offset behind next offset", 8, 1101),
        ("log start behind next offset", 40, 1101),
        ("previous segment not older", 48, 5),
        ("term too large", 64, 1 << 63 | 1),
        ("chunk of no bytes", 72, 0x01_0000_0000),
        ("unknown flag", 72, 0x09_0000_1000),
        ("not zero where it must be", 72, 0x0101_0000_1000),
    ];
    for (name, field, value) in cases {
        let mut bytes = good.to_vec();
        put_u64_le(&mut bytes, at + field, value);
        assert_eq!(TailPage::decode(&bytes), Err(TailPageError::Slot { slot: 1 }), "{name}");
    }
}

fn any_tail() -> impl Strategy<Value = Option<Tail>> {
    let numbers = (1..=u64::MAX, 0..=TERM_MAX, any::<u64>(), any::<u64>());
    let offsets = (0..=OFFSET_MAX, 0..=OFFSET_MAX, 0..=OFFSET_MAX);
    let previous = proptest::option::of((any::<u64>(), 0..=TERM_MAX, any::<u64>()));
    let rest = (any::<bool>(), CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX, any::<bool>());
    proptest::option::of((numbers, offsets, previous, rest).prop_map(
        |((segment, term, cached, durable), offsets, previous, (sealed, chunk_bytes, cells))| {
            let next_offset = offsets.0.max(offsets.1).max(offsets.2);
            Tail {
                segment: SegmentNumber(segment),
                term: Term(term),
                base_offset: Offset(offsets.0),
                cached: Position(if cells { cached } else { 0 }),
                durable: Position(durable),
                next_offset: Offset(next_offset),
                sealed,
                previous: previous
                    .map(|(number, term, len)| (SegmentNumber(number % segment), Term(term), Position(len))),
                chunk_bytes,
                cells,
                log_start: Offset(offsets.1),
            }
        },
    ))
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        stream in any::<u128>(), page in any::<u32>(), deleted in any::<bool>(),
        tails in proptest::collection::vec(any_tail(), 0..=64),
    ) {
        let page = TailPage { stream: StreamId(Uuid::from_u128(stream)), page, deleted, tails };
        prop_assert_eq!(TailPage::decode(&page.encode()), Ok(page));
    }

    #[test]
    fn what_is_decoded_from_damaged_bytes_has_no_other_encoding(
        tails in proptest::collection::vec(any_tail(), 0..=4),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        cut in 0usize..3,
    ) {
        let mut bytes = page(tails).encode().to_vec();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - cut);
        if let Ok(decoded) = TailPage::decode(&bytes) {
            prop_assert_eq!(&decoded.encode()[..], &bytes[..]);
        }
    }
}
