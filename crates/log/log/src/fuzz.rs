//! What a fuzzer runs: what of streams is in the metadata. What is read was written so.

use tailwater_cold::ColdCopy;
use tailwater_format::{Offset, Position, SegmentNumber, StreamId, Term, TransactionId};
use uuid::Uuid;

use crate::config::StreamConfig;
use crate::producer::{ProducerBatch, ProducerState};
use crate::stream::{
    ColdPlaceRecord, Key, ProducersRecord, SegmentCold, SegmentRecord, SegmentsRecord, ShardRecord,
    StreamRecord, TruncatedRecord, decode_producer_ids, encode_producer_ids,
};

/// A value of any kind, and a key.
pub fn records(data: &[u8]) {
    macro_rules! there_and_back {
        ($record:ident) => {
            if let Ok(record) = $record::decode("key", data) {
                assert_eq!($record::decode("key", &record.encode()), Ok(record));
            }
        };
    }
    there_and_back!(StreamRecord);
    there_and_back!(TruncatedRecord);
    there_and_back!(ColdPlaceRecord);
    there_and_back!(SegmentsRecord);
    there_and_back!(ShardRecord);
    there_and_back!(SegmentRecord);
    there_and_back!(ProducersRecord);
    if let Ok(next) = decode_producer_ids(data) {
        assert_eq!(decode_producer_ids(&encode_producer_ids(next)), Ok(next));
    }
    if let Ok(key) = std::str::from_utf8(data) {
        let _ = Key::parse(key);
    }
}

/// Bytes for [`records`].
pub fn seeds() -> Vec<Vec<u8>> {
    let id = StreamId(Uuid::from_u128(7));
    let config = StreamConfig { retention_ms: Some(5), ..StreamConfig::default() };
    let stream = StreamRecord {
        id,
        name: "news".to_owned(),
        created_ms: 3,
        config,
        source: Some("a".to_owned()),
        term_min: Term(0),
        numbers_from: SegmentNumber(2),
    };
    let segment = SegmentRecord {
        number: SegmentNumber(1),
        term: Term(2),
        base_offset: Offset(3),
        next_offset: Offset(4),
        length: Position(5),
        first_transaction_id: TransactionId(6),
        last_transaction_id: TransactionId(7),
        created_ms: 8,
        sealed_ms: 9,
        cold: Some(SegmentCold { copy: ColdCopy(10), is_released: true, restored_ms: Some(11) }),
    };
    let batch = ProducerBatch { epoch: 1, first: 2, last: 3, base_offset: Offset(4) };
    let producer = ProducerState { producer: 1, last_ms: 2, batches: vec![batch; 5] };
    let values = [
        stream.encode(),
        SegmentsRecord { cluster: Uuid::from_u128(9) }.encode(),
        ShardRecord::default().encode(),
        segment.encode(),
        TruncatedRecord { segment, truncated_ms: 12 }.encode(),
        ColdPlaceRecord { cluster: Uuid::from_u128(13) }.encode(),
        ProducersRecord { term: Term(2), upto: Offset(1), producers: vec![producer; 2] }.encode(),
        encode_producer_ids(1000),
    ];
    let keys = [crate::stream::stream_key(id), crate::stream::name_key("news")];
    values.iter().map(|value| value.to_vec()).chain(keys.map(String::into_bytes)).collect()
}
