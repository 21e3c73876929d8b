//! The log: record batches, entries, tails, and the CALLs of a node.

use bytes::Bytes;
use tailwater_format::batch::Recompressor;
use tailwater_format::call::{self, CallMessage, ShardTail, decode_call, encode_call};
use tailwater_format::limits::BATCH_BYTES_MAX;
use tailwater_format::snapshot::{SnapshotManifest, SnapshotParts, SnapshotRecord, SnapshotUpTo};
use tailwater_format::{
    Batch, BatchBuilder, ChunkKey, Codec, Decompressor, ENTRY_HEADER_BYTES, EntryFields, EntryId,
    EntryReader, Offset, Position, Producer, RecordsOfBatch, SegmentId, SegmentNumber, ShardId, ShardNumber,
    StreamId, Tail, TailPage, Term, TransactionId, batches as batches_of, encode_entry, parse_entry_header,
};
use tailwater_kafka_wire::consumer::{Assigned, Assignment, Subscription, encode};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes that are decompressed at most: a small input may be very many.
const DECOMPRESSED_BYTES_MAX: usize = 256 << 10;
/// Where in a batch its checksum is, and what it is of.
const CRC_AT: usize = 17;
const CRC_OF: usize = 21;

const CODECS: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

/// The batches of a client, under checksums that fit. What holds for one that is taken: its records are the same after
/// they were compressed otherwise.
pub(super) fn batches(data: &[u8]) {
    let mut decompressor = Decompressor::new();
    for batch in batches_of(data) {
        let Ok(batch) = batch else { return };
        let mut bytes = batch.bytes().to_vec();
        let crc = crc_fast::crc32_iscsi(&bytes[CRC_OF..]);
        bytes[CRC_AT..CRC_OF].copy_from_slice(&crc.to_be_bytes());
        let batch = match Batch::validate(&bytes, BATCH_BYTES_MAX) {
            Ok(batch) => batch,
            Err(why) => return assert!(!why.to_string().is_empty()),
        };
        let found = match batch.check_records(&mut decompressor, DECOMPRESSED_BYTES_MAX) {
            Ok(found) => found,
            Err(why) => return assert!(!why.to_string().is_empty()),
        };
        assert!(found.bytes <= DECOMPRESSED_BYTES_MAX);
        let codec = CODECS[usize::from(bytes[7]) % CODECS.len()];
        let mut again = Vec::new();
        let recompressed =
            Recompressor::default().recompress(&batch, codec, DECOMPRESSED_BYTES_MAX, &mut again);
        recompressed.expect("its records were read");
        let [one, other] = [Bytes::from(bytes.clone()), Bytes::from(again)].map(|bytes| {
            Batch::validate(&bytes, BATCH_BYTES_MAX).expect("it was taken");
            RecordsOfBatch::open(&bytes, &mut decompressor, DECOMPRESSED_BYTES_MAX)
                .expect("its records were read")
        });
        assert!(one.iter().eq(other.iter()), "the same records by {codec}");
    }
}

pub(super) fn batch_seeds() -> Vec<Vec<u8>> {
    let batch = |(number, codec)| {
        let mut builder = BatchBuilder::new();
        builder.append(Some(b"key"), Some(b"value"), &[("name", Some(b"header"))], 1_000).expect("small");
        builder.append(None, Some(&[7; 300]), &[], 1_001).expect("small");
        builder.append(None, None, &[], -1).expect("small");
        builder.set_producer(Producer { id: 9, epoch: 1, base_sequence: 3 });
        let mut bytes = builder.finish(codec).to_vec();
        // Which codec they are compressed by next.
        bytes[7] = number;
        bytes
    };
    let each: Vec<Vec<u8>> = (1..).zip(CODECS).map(batch).collect();
    let all = each.concat();
    each.into_iter().chain([all]).collect()
}

pub(super) fn consumer_seeds() -> Vec<Vec<u8>> {
    let assigned = vec![Assigned { topic: "news".to_owned(), partitions: vec![1, 2] }];
    let user_data = Some(Bytes::from_static(b"data"));
    let said = Subscription {
        topics: vec!["news".to_owned(), "b".to_owned()],
        user_data: user_data.clone(),
        owned_partitions: assigned.clone(),
    };
    let given = Assignment { topics: assigned, user_data };
    (0..4).flat_map(|version| [encode(&said, version).to_vec(), encode(&given, version).to_vec()]).collect()
}

/// A segment: its entries, one behind the other, under checksums that fit.
pub(super) fn entries(data: &[u8]) {
    let mut bytes = data.to_vec();
    mend_entries(&mut bytes);
    let Ok(first) = parse_entry_header(&bytes) else { return };
    let (mut reader, mut rest) = (EntryReader::new(first.segment_id()), &bytes[..]);
    while !rest.is_empty() {
        let entry = match reader.read(rest) {
            Ok(entry) => entry,
            Err(why) => return assert!(!why.to_string().is_empty()),
        };
        let header = &entry.header;
        let fields = EntryFields {
            segment: header.segment_id(),
            entry_id: header.entry_id,
            base_offset: header.base_offset,
            record_count: header.record_count,
            transaction_id: header.transaction_id,
        };
        let body = Some(Bytes::copy_from_slice(entry.batches)).filter(|body| !body.is_empty());
        let written = encode_entry(&fields, &Vec::from_iter(body));
        assert_eq!(parse_entry_header(&written).as_ref(), Ok(header));
        let _ = (header.is_control(), header.next_offset(), header.dlsn(header.base_offset));
        rest = &rest[written.len()..];
    }
}

fn mend_entries(mut rest: &mut [u8]) {
    while rest.len() >= ENTRY_HEADER_BYTES {
        let length = u32::from_le_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        let body = xxh3_64(&rest[ENTRY_HEADER_BYTES..length.clamp(ENTRY_HEADER_BYTES, rest.len())]);
        rest[72..80].copy_from_slice(&body.to_le_bytes());
        let header = xxh3_64(&rest[..80]);
        rest[80..88].copy_from_slice(&header.to_le_bytes());
        let end = length.clamp(ENTRY_HEADER_BYTES, rest.len());
        rest = &mut std::mem::take(&mut rest)[end..];
    }
}

fn segment() -> SegmentId {
    let shard = ShardId { stream: StreamId(Uuid::from_u128(77)), shard: ShardNumber(3) };
    SegmentId { shard, number: SegmentNumber(4), term: Term(5) }
}

pub(super) fn entry_seeds() -> Vec<Vec<u8>> {
    let entry = |entry_id, base_offset, record_count| {
        let fields = EntryFields {
            segment: segment(),
            entry_id: EntryId(entry_id),
            base_offset: Offset(base_offset),
            record_count,
            transaction_id: TransactionId(9),
        };
        let body = (record_count > 0).then(|| Bytes::from_static(&[7; 50]));
        encode_entry(&fields, &Vec::from_iter(body)).to_vec()
    };
    vec![entry(0, 100, 2), [entry(0, 100, 2), entry(1, 102, 0), entry(2, 102, 1)].concat()]
}

/// A page of tails, as a cell has it, and a key of a chunk.
pub(super) fn tails(data: &[u8]) {
    match TailPage::decode(data) {
        Ok(page) => assert_eq!(TailPage::decode(&page.encode()), Ok(page)),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    if let Some(key) = ChunkKey::from_bytes(data) {
        assert_eq!(key.to_array()[..], *data);
        let _ = key.start();
    }
}

fn tail() -> Tail {
    Tail {
        segment: SegmentNumber(4),
        term: Term(5),
        base_offset: Offset(10),
        cached: Position(300),
        durable: Position(200),
        next_offset: Offset(20),
        sealed: false,
        previous: Some((SegmentNumber(3), Term(5), Position(4096))),
        chunk_bytes: 4096,
        cells: true,
        log_start: Offset(1),
    }
}

pub(super) fn tail_seeds() -> Vec<Vec<u8>> {
    let stream = StreamId(Uuid::from_u128(77));
    let page = TailPage { stream, page: 2, deleted: false, tails: vec![Some(tail()), None, Some(tail())] };
    let key = ChunkKey { segment: segment(), chunk_bytes: 4096, chunk: 7 };
    vec![page.encode().to_vec(), TailPage::empty().encode().to_vec(), key.to_bytes().to_vec()]
}

/// A record of a stream of snapshots.
pub(super) fn snapshots(data: &[u8]) {
    match SnapshotRecord::decode(&Bytes::copy_from_slice(data)) {
        Ok(SnapshotRecord::Part(part)) => assert_eq!(part.entries().count(), part.len()),
        Ok(SnapshotRecord::Manifest(manifest)) => assert_eq!(manifest.encode(), data),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

pub(super) fn snapshot_seeds() -> Vec<Vec<u8>> {
    let mut parts = SnapshotParts::new(77);
    for entry in [(Some(&b"tea"[..]), Some(&b"4"[..])), (None, None), (Some(b""), Some(b""))] {
        assert_eq!(parts.push(entry), Ok(None), "it is short");
    }
    let (part, totals) = parts.finish();
    let manifest = SnapshotManifest {
        id: 77,
        stream: StreamId(Uuid::from_u128(77)),
        shard: ShardNumber(3),
        up_to: SnapshotUpTo { position: Offset(20), term: Term(5) },
        first: Offset(10),
        previous: Some(Offset(9)),
        totals,
        created_ms: 9,
    };
    part.into_iter().chain([manifest.encode()]).collect()
}

macro_rules! each_call {
    ($do:ident: $($message:ident)*) => { $($do!($message);)* };
    ($do:ident) => {
        each_call!($do: Hello NodeInfo FindStream StreamInfo Append Appends ReadDurable Tails TailsReply Segments
            SegmentsReply Locate Location InitProducer ProducerInfo DeliveryDelays DelaysTaken CopyOpen CopyOpened
            CopyNext CopyEntries CopyPlan CopyPlanKept CopyState CopyHops FindCell CellInfo LoginMessage LoginAnswer)
    };
}

/// The payload of a CALL, or of its answer, behind a byte that says of which.
pub(super) fn calls(data: &[u8]) {
    let Some((wanted, payload)) = data.split_first() else { return };
    let mut number = 0;
    macro_rules! one {
        ($message:ident) => {
            if *wanted == number {
                there_and_back::<call::$message>(payload);
            }
            number += 1;
        };
    }
    each_call!(one);
    let _ = number;
    let mut seen = 0;
    call::Append::any_batches(payload, |batches| {
        seen += batches.len();
        false
    });
    assert!(seen <= payload.len());
    let Ok(reply) = decode_call::<call::TailsReply>(Bytes::copy_from_slice(payload)) else { return };
    for told in reply.tails {
        if let Ok(tail) = told.tail() {
            assert!(tail.is_possible());
            assert_eq!(ShardTail::new(ShardNumber(told.shard), &tail).tail(), Ok(tail));
        }
    }
}

fn there_and_back<M: CallMessage>(payload: &[u8]) {
    match decode_call::<M>(Bytes::copy_from_slice(payload)) {
        Ok(message) => {
            let written = encode_call(&message);
            let again = decode_call::<M>(written.clone()).expect("what was written is read");
            assert_eq!(encode_call(&again), written);
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// Each without anything, and some with something in them.
pub(super) fn call_seeds() -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    macro_rules! one {
        ($message:ident) => {
            names.push(stringify!($message));
        };
    }
    each_call!(one);
    let number = |name: &str| names.iter().position(|one| *one == name).expect("one of them") as u8;
    let with = |name: &str, payload: Bytes| [&[number(name)][..], &payload].concat();
    let stream = call::stream_to_wire(StreamId(Uuid::from_u128(77)));
    let batches = Bytes::from(batch_seeds().swap_remove(0));
    let item = call::AppendItem { shard: 3, batches, expected_term: Some(5) };
    let append =
        call::Append { stream: stream.clone(), items: vec![item; 2], explicit_transaction_ids: true };
    let tails = call::TailsReply { tails: vec![ShardTail::new(ShardNumber(3), &tail())], deleted: false };
    let asked = call::Tails { stream: stream.clone(), shards: vec![1, 2, 300] };
    let delays = call::DeliveryDelays { counts: vec![0, 1, 1 << 40], sum_ns: 9 };
    let found = call::FindStream { name: "news".to_owned() };
    let from = vec![call::CopyFrom { shard: 1, next_offset: 9 }];
    let open = call::CopyOpen { stream, cluster: "eu".to_owned(), plan: 1, from, lineage: 2, operation: 0 };
    let some = [
        with("Append", encode_call(&append)),
        with("TailsReply", encode_call(&tails)),
        with("Tails", encode_call(&asked)),
        with("DeliveryDelays", encode_call(&delays)),
        with("FindStream", encode_call(&found)),
        with("CopyOpen", encode_call(&open)),
    ];
    (0..names.len() as u8).map(|number| vec![number]).chain(some).collect()
}
