use proptest::prelude::*;

use super::*;
use crate::ids::Position;
use crate::tails::Tail;

fn stream() -> StreamId {
    StreamId(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff))
}

#[test]
fn the_numbers_of_methods_never_change() {
    let numbers: Vec<_> = Method::ALL.iter().map(|method| (method.number(), method.name())).collect();
    let expected = [
        (1, "hello"),
        (2, "find_stream"),
        (3, "append"),
        (4, "read_durable"),
        (5, "tails"),
        (6, "segments"),
        (7, "locate"),
        (8, "init_producer"),
        (9, "delivery_delays"),
        (10, "copy_open"),
        (11, "copy_next"),
        (12, "copy_plan"),
        (13, "copy_state"),
        (14, "copy_lead"),
        (15, "copy_offsets"),
        (16, "find_cell"),
        (17, "login"),
        (18, "copy_report"),
        (19, "copy_push"),
    ];
    assert_eq!(numbers, expected);
    assert_eq!(Method::from_number(3), Some(Method::Append));
    assert_eq!(Method::from_number(0), None);
}

#[test]
fn every_error_code_has_a_number_of_its_own_and_unknown_ones_are_kept() {
    let numbers: Vec<_> = CallErrorCode::ALL.iter().map(|code| code.number()).collect();
    assert_eq!(numbers, (1..=25).collect::<Vec<u16>>());
    for code in CallErrorCode::ALL {
        assert_eq!(CallErrorCode::from_number(code.number()), *code);
    }
    assert_eq!(CallErrorCode::from_number(999), CallErrorCode::Other(999));
    assert_eq!(CallErrorCode::Other(999).number(), 999);
    let failure = CallFailure { code: 1 << 20, message: String::new() };
    assert_eq!(CallRefusal::from(failure).code, CallErrorCode::Other(u16::MAX));
}

#[test]
fn the_bytes_of_an_append_never_change() {
    let item = AppendItem { shard: 3, batches: Bytes::from_static(b"abc"), expected_term: Some(2) };
    let append = Append { stream: stream_to_wire(stream()), items: vec![item], ..Append::default() };
    let mut expected = vec![0x0a, 16];
    expected.extend_from_slice(stream().0.as_bytes());
    expected.extend_from_slice(&[0x12, 9, 0x08, 3, 0x12, 3, b'a', b'b', b'c', 0x18, 2]);
    assert_eq!(encode_call(&append), expected);
    assert_eq!(decode_call::<Append>(Bytes::from(expected)), Ok(append));
}

#[test]
fn batches_of_an_append_share_the_payloads_memory() {
    let item = AppendItem { shard: 3, batches: Bytes::from(vec![7; 1000]), expected_term: None };
    let payload =
        encode_call(&Append { stream: stream_to_wire(stream()), items: vec![item], ..Append::default() });
    let append: Append = decode_call(payload.clone()).expect("it was just encoded");
    let range = payload.as_ptr_range();
    assert!(range.contains(&append.items[0].batches.as_ptr()));
}

#[test]
fn empty_items_by_the_million_are_refused_before_they_are_decoded() {
    let payload = Bytes::from([0x12, 0].repeat(1_000_000));
    let fields_max = Append::FIELDS_MAX;
    assert_eq!(decode_call::<Append>(payload), Err(CallDecodeError::TooManyFields { fields_max }));
}

#[test]
fn a_payload_longer_than_its_message_may_be_is_refused() {
    let payload = Bytes::from(vec![0; CALL_INFO_BYTES_MAX + 1]);
    assert!(matches!(decode_call::<Locate>(payload), Err(CallDecodeError::TooLong { .. })));
}

#[test]
fn a_field_that_is_not_known_is_ignored() {
    let mut payload = FindStream { name: "lines".into() }.encode_to_vec();
    payload.extend_from_slice(&[0x78, 1, 0x7a, 2, 0, 0]);
    assert_eq!(decode_call(Bytes::from(payload)), Ok(FindStream { name: "lines".into() }));
}

#[test]
fn a_tail_survives_the_way_and_an_impossible_one_is_refused() {
    let tail = Tail {
        segment: SegmentNumber(5),
        term: Term(2),
        base_offset: Offset(1000),
        cached: Position(4096),
        durable: Position(8192),
        next_offset: Offset(1100),
        sealed: true,
        previous: Some((SegmentNumber(4), Term(1), Position(65_536))),
        chunk_bytes: 4096,
        cells: true,
        log_start: Offset(10),
    };
    let reply = TailsReply { tails: vec![ShardTail::new(ShardNumber(9), &tail)], deleted: false };
    let reply: TailsReply = decode_call(encode_call(&reply)).expect("it was just encoded");
    assert_eq!(reply.tails[0].tail(), Ok(tail));
    let impossible = ShardTail { chunk_bytes: 0, ..reply.tails[0].clone() };
    assert_eq!(impossible.tail(), Err(CallDecodeError::OutOfRange { field: "tail" }));
}

#[test]
fn a_segments_name_survives_the_way_and_a_short_uuid_is_refused() {
    let id = SegmentId {
        shard: ShardId { stream: stream(), shard: ShardNumber(3) },
        number: SegmentNumber(u64::MAX),
        term: Term(TERM_MAX),
    };
    let wire = SegmentRef::from(id);
    assert_eq!(SegmentId::try_from(&wire), Ok(id));
    let short = SegmentRef { stream: Bytes::from_static(b"short"), ..wire.clone() };
    assert_eq!(SegmentId::try_from(&short), Err(CallDecodeError::OutOfRange { field: "stream" }));
    let term = SegmentRef { term: TERM_MAX + 1, ..wire };
    assert_eq!(SegmentId::try_from(&term), Err(CallDecodeError::OutOfRange { field: "term" }));
}

#[test]
fn every_way_to_begin_survives_the_way() {
    let dlsn = Dlsn { segment: SegmentNumber(1), entry: EntryId(2), slot: SlotId(3) };
    let ways = [
        LocateWhat::Start(()),
        LocateWhat::End(()),
        LocateWhat::Offset(0),
        LocateWhat::TimeMs(-1),
        LocateWhat::TransactionId(i64::MIN),
        LocateWhat::Dlsn(dlsn.into()),
        LocateWhat::Last(10),
    ];
    for what in ways {
        let locate = Locate { stream: stream_to_wire(stream()), shard: 1, what: Some(what) };
        assert_eq!(decode_call(encode_call(&locate)), Ok(locate));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        let _ = decode_call::<Append>(bytes.clone());
        let _ = decode_call::<Appends>(bytes.clone());
        let _ = decode_call::<NodeInfo>(bytes.clone());
        let _ = decode_call::<Locate>(bytes.clone());
        let _ = decode_call::<SegmentsReply>(bytes.clone());
        if let Ok(reply) = decode_call::<TailsReply>(bytes) {
            for tail in reply.tails {
                let _ = tail.tail();
            }
        }
    }
}

#[test]
fn an_append_in_pieces_is_the_same_bytes_and_its_batches_are_not_copied() {
    let item = |shard, batches: &'static [u8], expected_term| AppendItem {
        shard,
        batches: Bytes::from_static(batches),
        expected_term,
    };
    let items = [
        item(0, b"", None),
        item(7, b"one batch", Some(0)),
        item(300, b"another", Some(9)),
        item(1, b"x", None),
    ];
    for count in 0..=items.len() {
        for (stream, explicit_transaction_ids) in [(Bytes::new(), false), (stream_to_wire(stream()), true)] {
            let append = Append { stream, items: items[..count].to_vec(), explicit_transaction_ids };
            let pieces = append.to_pieces();
            assert_eq!(pieces.concat(), encode_call(&append), "{append:?}");
            for item in append.items.iter().filter(|item| !item.batches.is_empty()) {
                assert!(pieces.iter().any(|piece| piece.as_ptr() == item.batches.as_ptr()), "{item:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn the_batches_seen_in_an_append_are_those_that_it_is_decoded_with(
        items in proptest::collection::vec((any::<u32>(), proptest::collection::vec(any::<u8>(), 1..40)), 0..5),
        (stream, explicit_transaction_ids, cut) in (any::<bool>(), any::<bool>(), any::<prop::sample::Index>()),
        unknown in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let items = items.into_iter().map(|(shard, batches)| AppendItem {
            shard,
            batches: batches.into(),
            expected_term: (shard % 2 == 0).then_some(shard),
        });
        let stream = if stream { Bytes::from_static(&[7; 16]) } else { Bytes::new() };
        let append = Append { stream, items: items.collect(), explicit_transaction_ids };
        // A field that a later version has, of bytes, before and behind.
        let later = [&[0b1111_1010, 1, unknown.len() as u8][..], &unknown].concat();
        let payload = [&later[..], &encode_call(&append), &later].concat();
        let seen = |payload: &[u8]| {
            let mut seen = Vec::new();
            let enough = Append::any_batches(payload, |batches| {
                seen.push(batches.to_vec());
                false
            });
            assert!(!enough);
            seen
        };
        let batches: Vec<Vec<u8>> = append.items.iter().map(|item| item.batches.to_vec()).collect();
        prop_assert_eq!(seen(&payload), &batches[..]);
        let enough = batches.len() > 1 && Append::any_batches(&payload, |seen| seen == batches[1]);
        prop_assert_eq!(enough, batches.len() > 1);
        // What is cut short, or is anything else, is looked at as far as it makes sense.
        let cut = seen(&payload[..cut.index(payload.len())]);
        prop_assert!(batches.starts_with(&cut));
        seen(&unknown);
    }
}
