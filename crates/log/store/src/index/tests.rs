use bytes::Bytes;
use proptest::prelude::*;
use tailwater_format::{EntryFields, EntryId, encode_entry};

use super::*;

fn id() -> SegmentId {
    let shard = ShardId { stream: StreamId(Uuid::from_u128(77)), shard: ShardNumber(3) };
    SegmentId { shard, number: SegmentNumber(4), term: Term(5) }
}

fn entry(entry_id: u64, base_offset: u64, record_count: u32, transaction_id: i64) -> Bytes {
    let fields = EntryFields {
        segment: id(),
        entry_id: EntryId(entry_id),
        base_offset: Offset(base_offset),
        record_count,
        transaction_id: TransactionId(transaction_id),
    };
    let body = if record_count == 0 { vec![] } else { vec![Bytes::from(vec![7; 50])] };
    encode_entry(&fields, &body)
}

/// Entries with the given record counts and transaction id steps, and the index over them.
fn segment(step: u32, entries: &[(u32, i64)]) -> (Vec<(Position, EntryHeader)>, SparseIndex) {
    let mut index = SparseIndex::new(step);
    let (mut position, mut offset, mut transaction_id) = (0, 100, -5);
    let mut all = Vec::new();
    for (entry_id, (count, step)) in entries.iter().enumerate() {
        transaction_id += step;
        let bytes = entry(entry_id as u64, offset, *count, transaction_id);
        let header = parse_entry_header(&bytes).expect("just encoded");
        index.note(Position(position), &header);
        all.push((Position(position), header));
        position += bytes.len() as u64;
        offset += u64::from(*count);
    }
    (all, index)
}

proptest! {
    #[test]
    fn lookups_answer_an_entry_at_or_before_and_not_far_before(
        step in 0_u32..600,
        entries in prop::collection::vec((0_u32..4, 0_i64..3), 1..60),
        look in 95_u64..300,
        id in -8_i64..150,
    ) {
        let (all, index) = segment(step, &entries);
        let exact = all.iter().rfind(|(_, header)| header.base_offset.0 <= look);
        let exact = exact.map_or(Position(0), |(position, _)| *position);
        let found = index.by_offset(Offset(look));
        prop_assert!(found <= exact && exact.0 - found.0 <= u64::from(step) + 138);
        prop_assert!(all.iter().any(|(position, _)| *position == found));

        let exact = all.iter().find(|(_, header)| header.transaction_id.0 >= id);
        let found = index.by_transaction_id(TransactionId(id));
        prop_assert!(all.iter().any(|(position, _)| *position == found));
        if let Some((exact, _)) = exact {
            prop_assert!(found <= *exact && exact.0 - found.0 <= u64::from(step) + 2 * 138);
        }
    }

    #[test]
    fn a_sidecar_reads_back_and_damage_never_passes(
        entries in prop::collection::vec((0_u32..4, 0_i64..3), 0..20),
        flip in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let (all, index) = segment(100, &entries);
        let contents = all.last().map(|(_, last)| {
            let bytes = entry(last.entry_id.0, last.base_offset.0, last.record_count, last.transaction_id.0);
            let first = &all[0].1;
            IndexContents {
                first_offset: first.base_offset,
                first_transaction_id: first.transaction_id,
                last: RawHeader::of(&bytes).expect("just encoded"),
            }
        });
        let sidecar = Sidecar { id: id(), length: Position(12_345), contents };
        let bytes = sidecar.encode(Some(&index));
        prop_assert_eq!(Sidecar::decode(&id(), &bytes), Ok(sidecar.clone()));
        prop_assert_eq!(Sidecar::decode_points(&bytes), Some(index.clone()));
        prop_assert_eq!(Sidecar::decode_points(&sidecar.encode(None)), None);

        let mut damaged = bytes;
        let at = flip.index(damaged.len());
        damaged[at] ^= 1 << bit;
        match Sidecar::decode(&id(), &damaged) {
            Err(_) => prop_assert!(at < SIDECAR_HEADER_BYTES),
            Ok(read) => {
                prop_assert_eq!(read, sidecar);
                prop_assert_eq!(Sidecar::decode_points(&damaged), None);
            }
        }
    }
}

#[test]
fn a_sidecar_of_another_segment_is_refused() {
    let other = SegmentId { term: Term(6), ..id() };
    let bytes = Sidecar { id: id(), length: Position(0), contents: None }.encode(None);
    assert_eq!(Sidecar::decode(&other, &bytes), Err(SidecarError::Other(id())));
}

#[test]
fn a_cut_forgets_entries_at_and_after_it() {
    let (all, mut index) = segment(1, &[(1, 1), (1, 1), (1, 1)]);
    index.cut(all[1].0);
    assert_eq!(index.points().len(), 1);
    assert_eq!(index.by_offset(Offset(102)), Position(0));
}
