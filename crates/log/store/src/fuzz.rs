//! What a fuzzer runs: what the store keeps beside the entries themselves. What is read was written so.

use bytes::Bytes;
use tailwater_format::{
    EntryFields, EntryId, Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term,
    TransactionId, encode_entry, parse_entry_header,
};
use tailwater_journal::JournalPosition;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::checkpoint::{Checkpoint, OpenSegment};
use crate::index::{IndexContents, RawHeader, SIDECAR_HEADER_BYTES, Sidecar, SparseIndex};
use crate::record::Record;

/// A record of the store in the journal.
pub fn records(data: &[u8]) {
    match Record::parse(data) {
        Ok(record) => {
            let entry = if let Record::Append(_, _, entry) = record { entry } else { &[] };
            let written = [&record.header()[..], entry].concat();
            assert_eq!(Record::parse(&written), Ok(record));
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// A checkpoint, under the checksum that fits it.
pub fn checkpoints(data: &[u8]) {
    let bytes = [data, &xxh3_64(data).to_le_bytes()[..]].concat();
    match Checkpoint::decode(&bytes) {
        Ok(checkpoint) => assert_eq!(Checkpoint::decode(&checkpoint.encode()), Ok(checkpoint)),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// The sidecar of a segment, under the checksums that fit it.
pub fn sidecars(data: &[u8]) {
    let mut bytes = data.to_vec();
    if let Some((header, points)) = bytes.split_first_chunk_mut::<SIDECAR_HEADER_BYTES>() {
        let sum = xxh3_64(points);
        header[160..168].copy_from_slice(&sum.to_le_bytes());
        let sum = xxh3_64(&header[..168]);
        header[168..].copy_from_slice(&sum.to_le_bytes());
    }
    let Ok(sidecar) = Sidecar::decode(&segment(), &bytes) else { return };
    let index = Sidecar::decode_points(&bytes);
    if let Some(index) = &index {
        for point in [Position(0), Position(1 << 20), Position(u64::MAX)] {
            let _ =
                (index.by_offset(Offset(point.0)), index.by_transaction_id(TransactionId(point.0 as i64)));
            index.clone().cut(point);
        }
        let _ = index.thinned();
    }
    let written = sidecar.encode(index.as_ref());
    assert_eq!(Sidecar::decode(&segment(), &written), Ok(sidecar));
    assert_eq!(Sidecar::decode_points(&written), index);
}

fn segment() -> SegmentId {
    let shard = ShardId { stream: StreamId(Uuid::from_u128(77)), shard: ShardNumber(3) };
    SegmentId { shard, number: SegmentNumber(4), term: Term(5) }
}

fn entry() -> Bytes {
    let fields = EntryFields {
        segment: segment(),
        entry_id: EntryId(0),
        base_offset: Offset(100),
        record_count: 2,
        transaction_id: TransactionId(9),
    };
    encode_entry(&fields, &[Bytes::from_static(&[7; 50])])
}

/// Bytes for [`records`], [`checkpoints`] and [`sidecars`].
pub fn seeds() -> [Vec<Vec<u8>>; 3] {
    let (entry, id, at) = (entry(), segment(), Position(4096));
    let records =
        [Record::Create(id), Record::Append(id, at, &entry), Record::Seal(id, at), Record::Delete(id)];
    let written = records.map(|record| match record {
        Record::Append(_, _, entry) => [&record.header()[..], entry].concat(),
        _ => record.header().to_vec(),
    });
    let header = parse_entry_header(&entry).expect("just encoded");
    let contents = IndexContents::first(&header, RawHeader::of(&entry).expect("just encoded"));
    let open = [None, Some(contents)].map(|contents| OpenSegment { id, synced: at, contents });
    let checkpoint = Checkpoint { journal: JournalPosition(50), open: open.to_vec() }.encode();
    let mut index = SparseIndex::new(64);
    index.note(Position(0), &header);
    index.note(at, &header);
    let sidecar = Sidecar { id, length: Position(8192), contents: Some(contents) };
    [
        written.to_vec(),
        vec![checkpoint[..checkpoint.len() - 8].to_vec()],
        vec![sidecar.encode(None), sidecar.encode(Some(&index))],
    ]
}
