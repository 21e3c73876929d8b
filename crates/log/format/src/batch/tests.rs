use proptest::prelude::*;

use super::*;
use crate::limits::BATCH_BYTES_MAX;

const LIMIT: usize = 1 << 20;

type OwnedHeader = (String, Option<Vec<u8>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnedRecord {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<OwnedHeader>,
    timestamp_ms: i64,
}

fn owned(record: &Record<'_>) -> OwnedRecord {
    let headers = record.headers.iter().map(|header| {
        let header = header.expect("headers were built whole");
        (header.key.to_owned(), header.value.map(<[u8]>::to_vec))
    });
    OwnedRecord {
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.map(<[u8]>::to_vec),
        headers: headers.collect(),
        timestamp_ms: record.timestamp_ms,
    }
}

fn append(builder: &mut BatchBuilder, record: &OwnedRecord) -> usize {
    let headers: Vec<_> =
        record.headers.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
    builder
        .append(record.key.as_deref(), record.value.as_deref(), &headers, record.timestamp_ms)
        .expect("the record is short")
}

fn build(records: &[OwnedRecord], codec: Codec) -> Bytes {
    let mut builder = BatchBuilder::new();
    for record in records {
        append(&mut builder, record);
    }
    builder.finish(codec)
}

fn lines(count: usize) -> Vec<OwnedRecord> {
    let line = |number: usize| OwnedRecord {
        key: (!number.is_multiple_of(3)).then(|| format!("key {number}").into_bytes()),
        value: (!number.is_multiple_of(5)).then(|| format!("the line with number {number}").into_bytes()),
        headers: (0..number % 4).map(|header| (format!("h{header}"), None)).collect(),
        timestamp_ms: 1_700_000_000_000 + number as i64,
    };
    (0..count).map(line).collect()
}

fn read(bytes: &[u8]) -> Vec<OwnedRecord> {
    let batch = Batch::validate(bytes, BATCH_BYTES_MAX).expect("the batch is whole");
    let mut decompressor = Decompressor::new();
    let records = batch.records(&mut decompressor, LIMIT).expect("the records are whole");
    records.map(|record| owned(&record.expect("every record is whole"))).collect()
}

/// The checksum that fits whatever was done to the bytes.
fn resealed(mut batch: Vec<u8>) -> Vec<u8> {
    let crc = crc_of(&batch);
    put_u32_be(&mut batch, AT_CRC, crc);
    batch
}

#[test]
fn the_bytes_of_a_batch_never_change() {
    let mut builder = BatchBuilder::new();
    builder.set_producer(Producer { id: 0x0102, epoch: 3, base_sequence: 4 });
    builder.append(Some(b"k"), Some(b"v1"), &[("h", Some(b"x"))], 1000).expect("short");
    builder.append(None, None, &[("n", None)], 999).expect("short");
    let expected = [
        &[0, 0, 0, 0, 0, 0, 0, 0][..],
        &[0, 0, 0, 73, 0xff, 0xff, 0xff, 0xff, 2],
        GOLDEN_CRC,
        &[0, 0, 0, 0, 0, 1],
        &[0, 0, 0, 0, 0, 0, 0x03, 0xe8, 0, 0, 0, 0, 0, 0, 0x03, 0xe8],
        &[0, 0, 0, 0, 0, 0, 1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 2],
        &[26, 0, 0, 0, 2, b'k', 4, b'v', b'1', 2, 2, b'h', 2, b'x'],
        &[18, 0, 1, 2, 1, 1, 2, 2, b'n', 1],
    ]
    .concat();
    let batch = builder.finish(Codec::None);
    assert_eq!(batch[..], expected[..], "crc {:02x?}", &batch[17..21]);
}

const GOLDEN_CRC: &[u8] = &[0x0b, 0xdd, 0x14, 0x48];

#[test]
fn every_codec_gives_back_what_was_appended() {
    let records = lines(500);
    for codec in Codec::ALL {
        let batch = build(&records, codec);
        assert_eq!(read(&batch), records, "{codec}");
        let header = BatchHeader::parse(&batch).expect("the batch is whole");
        assert_eq!((header.codec, header.record_count), (codec, 500));
        assert_eq!(header.max_timestamp_ms, 1_700_000_000_499);
        let mut decompressor = Decompressor::new();
        let batch = Batch::parse(&batch).expect("the batch is whole");
        let found = batch.check_records(&mut decompressor, LIMIT).expect("sound");
        assert_eq!(found.max_timestamp_ms, 1_700_000_000_499, "{codec}");
        let stored = &batch.bytes()[BATCH_HEADER_BYTES..];
        let decompressed = decompressor.decompress(codec, stored, LIMIT).expect("sound");
        assert_eq!(found.bytes, decompressed.len(), "{codec}");
    }
}

#[test]
fn kept_records_share_the_batches_memory_unless_they_were_compressed() {
    let records = lines(10);
    for codec in Codec::ALL {
        let batch = build(&records, codec);
        let mut decompressor = Decompressor::new();
        let kept = RecordsOfBatch::open(&batch, &mut decompressor, LIMIT).expect("the batch is whole");
        let read: Vec<_> = kept.iter().map(|record| owned(&record.expect("whole"))).collect();
        assert_eq!(read, records, "{codec}");
        let shared = batch.as_ptr_range().contains(&kept.records.as_ptr());
        assert_eq!(shared, codec == Codec::None, "{codec}");
    }
}

#[test]
fn a_batch_gets_its_place_without_a_change_to_its_checksum() {
    let mut batch = build(&lines(10), Codec::Lz4).to_vec();
    assign(&mut batch, Offset(1 << 40), Term(7));
    let batch = Batch::validate(&batch, BATCH_BYTES_MAX).expect("still valid");
    assert_eq!(batch.header().base_offset, Offset(1 << 40));
    assert_eq!(batch.header().last_offset(), Offset((1 << 40) + 9));
    assert_eq!(batch.header().leader_epoch, 7);
    let mut decompressor = Decompressor::new();
    let records = batch.records(&mut decompressor, LIMIT).expect("whole");
    let offsets: Vec<_> = records.map(|record| record.expect("whole").offset.0 - (1 << 40)).collect();
    assert_eq!(offsets, (0..10).collect::<Vec<_>>());
}

#[test]
fn append_time_replaces_every_timestamp() {
    let mut batch = build(&lines(10), Codec::Zstd).to_vec();
    set_append_time(&mut batch, 42);
    let records = read(&batch);
    assert!(records.iter().all(|record| record.timestamp_ms == 42));
    let header = BatchHeader::parse(&batch).expect("whole");
    assert!(header.is_append_time());
    assert_eq!((header.max_timestamp_ms, header.codec), (42, Codec::Zstd));
}

#[test]
fn records_below_an_offset_are_skipped() {
    let mut batch = build(&lines(10), Codec::None).to_vec();
    assign(&mut batch, Offset(100), Term(0));
    let batch = Batch::parse(&batch).expect("whole");
    let mut decompressor = Decompressor::new();
    for (below, first) in [(0, Some(100)), (100, Some(100)), (105, Some(105)), (110, None), (u64::MAX, None)]
    {
        let mut records = batch.records(&mut decompressor, LIMIT).expect("whole");
        records.skip_below(Offset(below)).expect("whole");
        assert_eq!(records.next().map(|record| record.expect("whole").offset.0), first, "{below}");
    }
}

#[test]
fn several_batches_in_one_buffer_are_walked_and_a_cut_one_is_told() {
    let buffer = [build(&lines(3), Codec::None), build(&lines(5), Codec::Gzip)].concat();
    let counts: Vec<_> = batches(&buffer).map(|batch| batch.expect("whole").header().record_count).collect();
    assert_eq!(counts, [3, 5]);

    let cut = &buffer[..buffer.len() - 1];
    let mut walk = batches(cut);
    assert!(walk.next().is_some_and(|batch| batch.is_ok()));
    assert!(matches!(walk.next(), Some(Err(BatchError::Incomplete { .. }))));
    assert!(walk.next().is_none());
}

#[test]
fn every_flipped_bit_behind_the_checksum_is_noticed() {
    let batch = build(&lines(3), Codec::None);
    for bit in AT_MAGIC * 8..batch.len() * 8 {
        let mut flipped = batch.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Batch::validate(&flipped, BATCH_BYTES_MAX).is_err(), "bit {bit}");
    }
}

#[test]
fn a_batch_that_is_not_taken_says_why() {
    let good = build(&lines(3), Codec::None).to_vec();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut batch = good.clone();
        change(&mut batch);
        Batch::validate(&resealed(batch), BATCH_BYTES_MAX).expect_err("not taken")
    };
    assert!(matches!(with(&|it| it[AT_MAGIC] = 1), BatchError::Magic { found: 1 }));
    assert!(matches!(with(&|it| put_i32_be(it, AT_LENGTH, -1)), BatchError::Length { found: -1 }));
    assert!(matches!(with(&|it| put_i32_be(it, AT_LENGTH, 48)), BatchError::Length { found: 48 }));
    assert!(matches!(with(&|it| put_i32_be(it, AT_LENGTH, i32::MAX)), BatchError::TooLarge { .. }));
    assert!(matches!(with(&|it| it[AT_ATTRIBUTES + 1] = 5), BatchError::Codec { found: 5 }));
    assert!(matches!(with(&|it| it[AT_ATTRIBUTES + 1] = 0x20), BatchError::Control));
    assert!(matches!(with(&|it| it[AT_ATTRIBUTES + 1] = 0x10), BatchError::Producer { .. }));
    assert!(matches!(with(&|it| put_i64_be(it, AT_PRODUCER_ID, 9)), BatchError::Producer { .. }));
    assert!(matches!(with(&|it| put_i64_be(it, 0, -1)), BatchError::BaseOffset { found: -1 }));
    assert!(matches!(with(&|it| put_i64_be(it, 0, i64::MAX)), BatchError::BaseOffset { .. }));
    for count in [-1, 0, 2, 4, i32::MAX] {
        let error = with(&|it| put_i32_be(it, AT_RECORD_COUNT, count));
        assert!(matches!(error, BatchError::RecordCount { .. }), "{count}");
    }
    let many = with(&|it| {
        put_i32_be(it, AT_RECORD_COUNT, 1000);
        put_i32_be(it, AT_LAST_OFFSET_DELTA, 999);
    });
    assert!(matches!(many, BatchError::RecordCount { .. }));
    let error = Batch::validate(&good, good.len() - 1).expect_err("too large");
    assert_eq!(error, BatchError::TooLarge { found: good.len(), bytes_max: good.len() - 1 });
}

#[test]
fn every_prefix_says_how_much_is_needed() {
    let batch = build(&lines(3), Codec::None);
    for len in 0..batch.len() {
        let needed = if len < BATCH_HEADER_BYTES { BATCH_HEADER_BYTES } else { batch.len() };
        assert_eq!(Batch::parse(&batch[..len]), Err(BatchError::Incomplete { found: len, needed }));
    }
}

#[test]
fn hand_made_records_are_refused_where_they_are_wrong() {
    let mut header = BatchHeader::parse(&build(&lines(1), Codec::None)).expect("whole");
    header.record_count = 1;
    let cases: [(&str, &[u8]); 12] = [
        ("no record", &[]),
        ("negative length", &[1]),
        ("length too long", &[14, 0, 0, 0, 1, 1, 0]),
        ("no attributes", &[0]),
        ("wrong offset delta", &[12, 0, 0, 2, 1, 1, 0]),
        ("key too long", &[12, 0, 0, 0, 8, 1, 0]),
        ("key length below -1", &[12, 0, 0, 0, 3, 1, 0]),
        ("value too long", &[12, 0, 0, 0, 1, 2, 0]),
        ("bytes behind the value", &[14, 0, 0, 0, 1, 1, 0, 0]),
        ("negative header count", &[12, 0, 0, 0, 1, 1, 1]),
        ("more headers than bytes", &[16, 0, 0, 0, 1, 1, 4, 0, 1]),
        ("a second record", &[12, 0, 0, 0, 1, 1, 0, 12, 0, 0, 2, 1, 1, 0]),
    ];
    for (name, bytes) in cases {
        let mut records = Records::new(&header, bytes);
        assert!(records.by_ref().any(|record| record.is_err()), "{name}");
        assert!(records.next().is_none(), "{name}: goes on");
    }
}

#[test]
fn hand_made_headers_are_refused_where_they_are_wrong() {
    let header = BatchHeader::parse(&build(&lines(1), Codec::None)).expect("whole");
    let cases: [(&str, &[u8]); 4] = [
        ("no key", &[16, 0, 0, 0, 1, 1, 2, 1, 1]),
        ("key not UTF-8", &[18, 0, 0, 0, 1, 1, 2, 2, 0xff, 1]),
        ("bytes behind the last header", &[20, 0, 0, 0, 1, 1, 2, 2, b'a', 1, 0]),
        ("value too long", &[18, 0, 0, 0, 1, 1, 2, 2, b'a', 2]),
    ];
    for (name, bytes) in cases {
        let record =
            Records::new(&header, bytes).next().expect("a record").expect("whole but for its headers");
        let mut headers = record.headers.iter();
        assert!(headers.by_ref().any(|header| header.is_err()), "{name}");
        assert!(headers.next().is_none(), "{name}: goes on");
    }
}

#[test]
fn a_builder_is_empty_after_each_batch() {
    let mut builder = BatchBuilder::new();
    builder.set_producer(Producer { id: 1, epoch: 2, base_sequence: 3 });
    append(&mut builder, &lines(1)[0]);
    let first = BatchHeader::parse(&builder.finish(Codec::None)).expect("whole");
    assert_eq!(first.producer(), Some(Producer { id: 1, epoch: 2, base_sequence: 3 }));
    assert!(builder.is_empty());
    append(&mut builder, &lines(2)[1]);
    let second = BatchHeader::parse(&builder.finish(Codec::None)).expect("whole");
    assert_eq!(second.producer(), None);
    assert_eq!(second.base_timestamp_ms, 1_700_000_000_001);
}

#[test]
fn a_batch_that_is_a_little_longer_than_the_last_one_is_gathered_where_it_began() {
    let mut builder = BatchBuilder::new();
    let mut gather = |records: usize, value: &[u8]| {
        builder.append(None, Some(value), &[], 0).expect("small");
        let memory = builder.memory();
        for _ in 1..records {
            builder.append(None, Some(value), &[], 0).expect("small");
        }
        let is_moved = builder.memory() != memory;
        (builder.finish(Codec::None).len(), is_moved)
    };
    let (first, _) = gather(100, &[7; 100]);
    let (second, is_moved) = gather(100, &[7; 105]);
    assert!(second > first && !is_moved, "{first} and {second} bytes");
    assert!(gather(200, &[7; 105]).1, "one that is much longer grows");
}

#[test]
fn a_record_that_does_not_fit_leaves_the_batch_as_it_was() {
    let mut builder = BatchBuilder::new();
    let len = append(&mut builder, &lines(1)[0]);
    let value = vec![0; BATCH_BYTES_MAX];
    assert!(builder.append(None, Some(&value), &[], 0).is_err());
    assert_eq!((builder.len(), builder.record_count()), (len, 1));
    assert_eq!(read(&builder.finish(Codec::None)), lines(1));
}

/// What `kafka/Gen.java` put into each of the batches beside it.
fn kafkas_records() -> Vec<OwnedRecord> {
    let record = |number: i64| {
        let repeats = 1 + number as usize % 7;
        let header = |header: u8| (format!("h{header}"), (header != 1).then(|| vec![header]));
        OwnedRecord {
            key: (number % 3 != 0).then(|| format!("key {number}").into_bytes()),
            value: (number % 5 != 0)
                .then(|| format!("the line with number {number}").repeat(repeats).into_bytes()),
            headers: (0..(number % 4) as u8).map(header).collect(),
            timestamp_ms: 1_700_000_000_000 + if number % 2 == 0 { number } else { -number },
        }
    };
    (0..200).map(record).collect()
}

#[test]
fn batches_that_kafkas_own_code_wrote_are_read_in_every_codec() {
    let written: [(Codec, &[u8]); 5] = [
        (Codec::None, include_bytes!("kafka/none.batch")),
        (Codec::Gzip, include_bytes!("kafka/gzip.batch")),
        (Codec::Snappy, include_bytes!("kafka/snappy.batch")),
        (Codec::Lz4, include_bytes!("kafka/lz4.batch")),
        (Codec::Zstd, include_bytes!("kafka/zstd.batch")),
    ];
    for (codec, bytes) in written {
        assert_eq!(read(bytes), kafkas_records(), "{codec}");
        let batch = Batch::parse(bytes).expect("whole");
        assert_eq!((batch.header().codec, batch.bytes().len()), (codec, bytes.len()));
        let producer = Producer { id: 4711, epoch: 3, base_sequence: 77 };
        assert_eq!(batch.header().producer(), Some(producer));
        let max = batch.check_records(&mut Decompressor::new(), LIMIT);
        assert_eq!(max.map(|found| found.max_timestamp_ms), Ok(batch.header().max_timestamp_ms), "{codec}");
    }
}

#[test]
fn a_batch_is_built_byte_for_byte_as_kafkas_own_code_builds_it() {
    let mut builder = BatchBuilder::new();
    builder.set_producer(Producer { id: 4711, epoch: 3, base_sequence: 77 });
    for record in kafkas_records() {
        append(&mut builder, &record);
    }
    let built = builder.finish(Codec::None);
    assert!(built[..] == include_bytes!("kafka/none.batch")[..], "{:02x?}", &built[..BATCH_HEADER_BYTES]);
}

fn any_record() -> impl Strategy<Value = OwnedRecord> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200));
    let headers = proptest::collection::vec(("\\PC{0,8}", bytes()), 0..4);
    (bytes(), bytes(), headers, any::<i64>()).prop_map(|(key, value, headers, timestamp_ms)| OwnedRecord {
        key,
        value,
        headers,
        timestamp_ms,
    })
}

fn any_codec() -> impl Strategy<Value = Codec> {
    proptest::sample::select(&Codec::ALL[..])
}

proptest! {
    #[test]
    fn what_is_built_is_read(records in proptest::collection::vec(any_record(), 1..40), codec in any_codec()) {
        let mut builder = BatchBuilder::new();
        let mut estimate = 0;
        for record in &records {
            estimate = append(&mut builder, record);
        }
        let batch = builder.finish(codec);
        if codec == Codec::None {
            prop_assert_eq!(batch.len(), estimate);
        }
        prop_assert_eq!(read(&batch), records);
    }

    #[test]
    fn damaged_batches_are_read_to_an_end_whatever_is_in_them(
        records in proptest::collection::vec(any_record(), 1..10),
        codec in any_codec(),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5),
        cut in 0usize..4,
        seal in any::<bool>(),
    ) {
        let mut bytes = build(&records, codec).to_vec();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len() - cut);
        if seal {
            bytes = resealed(bytes);
        }
        let _ = Batch::validate(&bytes, BATCH_BYTES_MAX);
        let mut decompressor = Decompressor::new();
        for batch in batches(&bytes).map_while(Result::ok) {
            let _ = batch.check_records(&mut decompressor, LIMIT);
        }
    }

    #[test]
    fn any_bytes_are_records_or_an_error(
        count in 0u32..20,
        bytes in proptest::collection::vec(prop_oneof![0u8..20, any::<u8>()], 0..200),
    ) {
        let mut header = BatchHeader::parse(&build(&lines(1), Codec::None)).expect("whole");
        header.record_count = count;
        let read = Records::new(&header, &bytes).inspect(|record| {
            if let Ok(record) = record {
                assert!(record.headers.iter().count() <= bytes.len());
            }
        });
        prop_assert!(read.count() <= count as usize + 1);
    }

    #[test]
    fn any_bytes_are_batches_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if bytes.len() > AT_MAGIC {
            bytes[AT_MAGIC] = MAGIC;
            bytes[..11].fill(0);
        }
        prop_assert!(batches(&bytes).count() <= 3);
        let _ = Batch::validate(&bytes, BATCH_BYTES_MAX);
    }
}
