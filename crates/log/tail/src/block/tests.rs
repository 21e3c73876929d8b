use proptest::prelude::*;
use tailwater_format::batch::BatchBuilder;
use tailwater_format::{
    EntryFields, EntryId, SegmentNumber, ShardId, ShardNumber, StreamId, Term, TransactionId, encode_entry,
};

use super::*;
use crate::testing::MemoryLog;

fn shard() -> ShardId {
    ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) }
}

fn segment() -> SegmentId {
    SegmentId { shard: shard(), number: SegmentNumber(1), term: Term(1) }
}

/// The values in a block, with their offsets.
fn values(block: &Block) -> Vec<(u64, Vec<u8>)> {
    let batches = block.batches(0..block.entries().len());
    let records = batches.iter().flat_map(|batch| Records::new(&batch.header, &batch.records));
    let records = records.map(|record| record.expect("it was checked"));
    records.map(|record| (record.offset.0, record.value.expect("it has one").to_vec())).collect()
}

fn whole(log: &MemoryLog) -> Bytes {
    log.bytes(segment(), Position(0), Position(u64::MAX))
}

#[test]
fn entries_of_every_codec_are_cut_and_share_memory_where_nothing_is_compressed() {
    let log = MemoryLog::new(4096);
    let codecs = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];
    for codec in codecs {
        log.append_with(shard(), &[&[codec as u8; 500], b"second"], codec);
    }
    let mut cutter = Cutter::new(segment(), Position(0));
    let bytes = whole(&log);
    let (block, result) = cutter.push(Bytes::copy_from_slice(&bytes[..]));
    assert_eq!(result, Ok(()));
    let block = block.expect("all entries are whole");
    let expected: Vec<_> =
        log.values(shard()).into_iter().map(|(offset, value)| (offset.0, value.to_vec())).collect();
    assert_eq!(values(&block), expected);
    assert_eq!((block.entries().len(), block.end), (5, Position(bytes.len() as u64)));
    assert!(block.len_bytes() > bytes.len() + 4 * 500, "decompressed records count");
    assert_eq!(block.batches(1..3).len(), 2);
    assert!(block.batches(2..2).is_empty());
}

#[test]
fn a_block_in_parts_has_the_same_records_at_the_same_places() {
    let log = MemoryLog::new(4096);
    for number in 0..40_u8 {
        let values = vec![vec![number; 100]; usize::from(number) % 5 + 1];
        log.append(shard(), &values.iter().map(|value| &value[..]).collect::<Vec<_>>());
    }
    let (block, result) = Cutter::new(segment(), Position(0)).push(whole(&log));
    assert_eq!(result, Ok(()));
    let block = Arc::new(block.expect("all entries are whole"));
    for (bytes_max, entries_max, least) in
        [(1 << 20, 1_000, 1), (1 << 20, 7, 6), (1_000, 1_000, 10), (1, 1_000, 40)]
    {
        let parts = Arc::clone(&block).parts(bytes_max, entries_max);
        assert!(parts.len() >= least, "{} parts", parts.len());
        let mut at = block.start;
        for part in &parts {
            assert_eq!((part.segment, part.start), (block.segment, at));
            assert!(part.entries().len() == 1 || part.end.0 - at.0 <= bytes_max);
            assert!(part.entries().len() <= entries_max);
            at = part.end;
        }
        assert_eq!(at, block.end);
        assert_eq!(parts.iter().flat_map(|part| values(part)).collect::<Vec<_>>(), values(&block));
    }
}

#[test]
fn a_cutter_may_begin_at_any_entry() {
    let log = MemoryLog::new(4096);
    log.append(shard(), &[b"first"]);
    let second = log.append(shard(), &[b"second"]);
    let mut cutter = Cutter::new(segment(), second.from);
    let (block, result) = cutter.push(Bytes::copy_from_slice(&second.bytes[..]));
    assert_eq!(result, Ok(()));
    assert_eq!(values(&block.expect("it is whole")), [(1, b"second".to_vec())]);
}

#[test]
fn an_entry_of_another_segment_or_term_is_refused() {
    let log = MemoryLog::new(4096);
    let entry = log.append(shard(), &[b"value"]);
    for other in [
        SegmentId { term: Term(2), ..segment() },
        SegmentId { number: SegmentNumber(2), ..segment() },
        SegmentId { shard: ShardId { shard: ShardNumber(1), ..shard() }, ..segment() },
    ] {
        let mut cutter = Cutter::new(other, Position(0));
        let (block, result) = cutter.push(Bytes::copy_from_slice(&entry.bytes[..]));
        assert!(block.is_none() && matches!(result, Err(CutError::Entry(_))), "{result:?}");
        assert_eq!(cutter.end(), Position(0), "and its bytes are asked for again");
    }
}

/// An entry whose body is as given.
fn entry(body: Bytes, record_count: u32) -> Bytes {
    let fields = EntryFields {
        segment: segment(),
        entry_id: EntryId(0),
        base_offset: Offset(10),
        record_count,
        transaction_id: TransactionId(0),
    };
    encode_entry(&fields, &[body])
}

fn batch_of(values: &[&[u8]], base_offset: u64) -> BytesMut {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder.append(None, Some(value), &[], 0).expect("a short record");
    }
    let mut batch = BytesMut::from(&builder.finish(Codec::None)[..]);
    tailwater_format::batch::assign(&mut batch, Offset(base_offset), Term(1));
    batch
}

#[test]
fn what_no_consumer_could_read_is_refused_here() {
    let good = batch_of(&[b"one", b"two"], 10);
    let mut bad_record = good.clone();
    let last = bad_record.len() - 5;
    bad_record[last] = 0x7f;
    let mut two = good.clone();
    two.extend_from_slice(&batch_of(&[b"three"], 12));
    let cases: [(&str, BytesMut, u32, bool); 6] = [
        ("as it should be", good.clone(), 2, true),
        ("two batches", two, 3, true),
        ("a record that ends outside", bad_record, 2, false),
        ("fewer records than the entry says", good.clone(), 3, false),
        ("offsets that are not the entry's", batch_of(&[b"one", b"two"], 11), 2, false),
        ("half a batch", BytesMut::from(&good[..good.len() - 1]), 2, false),
    ];
    for (what, body, record_count, is_good) in cases {
        let mut cutter = Cutter::new(segment(), Position(0));
        let (block, result) = cutter.push(entry(body.freeze(), record_count));
        assert_eq!((block.is_some(), result.is_ok()), (is_good, is_good), "{what}: {result:?}");
        assert_eq!(cutter.position() > Position(0), is_good, "{what}");
    }
}

#[test]
fn an_entry_whose_batches_come_to_too_much_together_is_refused() {
    let mut builder = BatchBuilder::new();
    for _ in 0..3 {
        builder.append(None, Some(&vec![7; 2 << 20]), &[], 0).expect("short enough");
    }
    let of_6_mib = builder.finish(Codec::Zstd);
    let cut = |count: u32| {
        let mut body = BytesMut::new();
        for number in 0..count {
            let mut batch = BytesMut::from(&of_6_mib[..]);
            tailwater_format::batch::assign(&mut batch, Offset(10 + 3 * u64::from(number)), Term(1));
            body.extend_from_slice(&batch);
        }
        Cutter::new(segment(), Position(0)).push(entry(body.freeze(), 3 * count))
    };
    let (block, result) = cut(10);
    assert_eq!(result, Ok(()));
    assert!(block.expect("it is whole").len_bytes() > 60 << 20);
    let (block, result) = cut(11);
    assert!(block.is_none() && matches!(result, Err(CutError::Batch(_))), "{result:?}");
}

#[test]
fn entries_before_a_bad_one_are_handed_out_and_the_bad_one_can_be_read_again() {
    let log = MemoryLog::new(4096);
    log.append(shard(), &[b"first"]);
    log.append(shard(), &[b"second"]);
    let bad = log.append(shard(), &[b"third"]);
    log.append(shard(), &[b"fourth"]);
    let bytes = whole(&log);
    let mut damaged = BytesMut::from(&bytes[..]);
    damaged[bad.from.0 as usize + 100] ^= 1;
    let mut cutter = Cutter::new(segment(), Position(0));
    let (block, result) = cutter.push(damaged.freeze());
    assert!(matches!(result, Err(CutError::Entry(_))), "{result:?}");
    assert_eq!(values(&block.expect("two entries are good")).len(), 2);
    assert_eq!((cutter.position(), cutter.end()), (bad.from, bad.from));
    let (block, result) = cutter.push(Bytes::copy_from_slice(&bytes[bad.from.0 as usize..]));
    assert_eq!(result, Ok(()));
    assert_eq!(values(&block.expect("the rest")).len(), 2);
}

#[test]
fn of_bytes_that_complete_an_entry_only_what_it_lacks_is_copied() {
    let log = MemoryLog::new(4096);
    for value in [&[1; 500], &[2; 500], &[3; 500]] {
        log.append(shard(), &[value]);
    }
    let bytes = whole(&log);
    let mut cutter = Cutter::new(segment(), Position(0));
    let cut = bytes.len() / 2;
    let (block, result) = cutter.push(Bytes::copy_from_slice(&bytes[..cut]));
    assert_eq!((block.map(|block| block.entries().len()), result), (Some(1), Ok(())));
    let second = Bytes::copy_from_slice(&bytes[cut..]);
    let (block, result) = cutter.push(second.clone());
    assert_eq!(result, Ok(()));
    let block = block.expect("the other two are whole");
    let is_shared = |batch: &BlockBatch| second.as_ptr_range().contains(&batch.records.as_ptr());
    let shared: Vec<bool> = block.batches(0..2).iter().map(is_shared).collect();
    assert_eq!(shared, [false, true], "the second one lay across both");
    assert_eq!(
        block.len_bytes() - bytes.len() * 2 / 3,
        size_of::<BlockEntry>() * 2 + size_of::<BlockBatch>() * 2
    );
}

proptest! {
    /// However the bytes come, the entries are the same.
    #[test]
    fn it_does_not_matter_how_the_bytes_come(
        sizes in prop::collection::vec((0_usize..4, 1_usize..200), 1..20),
        cuts in prop::collection::vec(1_usize..400, 1..20),
    ) {
        let log = MemoryLog::new(4096);
        for (records, len) in sizes {
            log.append(shard(), &vec![&vec![len as u8; len][..]; records]);
        }
        let bytes = whole(&log);
        let mut cutter = Cutter::new(segment(), Position(0));
        let (mut at, mut found) = (0, Vec::new());
        for cut in cuts.iter().cycle() {
            let to = (at + cut).min(bytes.len());
            prop_assert_eq!(cutter.end(), Position(at as u64));
            let (block, result) = cutter.push(Bytes::copy_from_slice(&bytes[at..to]));
            prop_assert_eq!(result, Ok(()));
            if let Some(block) = block {
                prop_assert_eq!(block.end, cutter.position());
                found.extend(values(&block));
            }
            at = to;
            if at == bytes.len() {
                break;
            }
        }
        let expected: Vec<_> =
            log.values(shard()).into_iter().map(|(offset, value)| (offset.0, value.to_vec())).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(cutter.position(), Position(bytes.len() as u64));
    }

    /// No bytes make it panic.
    #[test]
    fn garbage_is_an_error_or_incomplete(bytes in prop::collection::vec(any::<u8>(), 0..300), flip in any::<usize>()) {
        let mut cutter = Cutter::new(segment(), Position(0));
        drop(cutter.push(Bytes::copy_from_slice(&bytes[..])));
        let log = MemoryLog::new(4096);
        log.append(shard(), &[b"value", b"another"]);
        let mut entry = BytesMut::from(&whole(&log)[..]);
        let at = flip % entry.len();
        entry[at] ^= 1 << (flip % 8);
        let (block, _) = Cutter::new(segment(), Position(0)).push(entry.freeze());
        prop_assert!(block.is_none());
    }
}
