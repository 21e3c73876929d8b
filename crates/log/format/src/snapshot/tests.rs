use proptest::prelude::*;

use super::*;
use crate::limits::APPEND_BYTES_MAX;

type OwnedEntry = (Option<Vec<u8>>, Option<Vec<u8>>);

const STREAM: StreamId = StreamId(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));

fn manifest() -> SnapshotManifest {
    SnapshotManifest {
        id: 7,
        stream: STREAM,
        shard: ShardNumber(3),
        up_to: SnapshotUpTo { position: Offset(1_000), term: Term(5) },
        first: Offset(10),
        previous: Some(Offset(9)),
        totals: SnapshotTotals { parts: 4, entries: 5, bytes: 6, sum: SnapshotSum(8) },
        created_ms: 11,
    }
}

fn borrowed((key, value): &OwnedEntry) -> SnapshotEntry<'_> {
    (key.as_deref(), value.as_deref())
}

/// The parts of a snapshot, and what they have together.
fn parts_of(id: u64, entries: &[OwnedEntry]) -> (Vec<Bytes>, SnapshotTotals) {
    let mut cutting = SnapshotParts::new(id);
    let mut parts: Vec<Bytes> = Vec::new();
    for entry in entries {
        parts.extend(cutting.push(borrowed(entry)).expect("short").map(Bytes::from));
    }
    let (last, totals) = cutting.finish();
    parts.extend(last.map(Bytes::from));
    (parts, totals)
}

/// What a reader makes of records from offset 10 on, of a snapshot whose manifest comes behind them.
fn read(totals: SnapshotTotals, records: &[Bytes]) -> Result<(Vec<OwnedEntry>, bool), SnapshotTorn> {
    let end = Offset(10 + records.len() as u64);
    let mut assembly = SnapshotAssembly::new(end, SnapshotManifest { totals, ..manifest() });
    let mut entries = Vec::new();
    for (offset, record) in (10..).map(Offset).zip(records) {
        let part = assembly.take(offset, record)?;
        let owned = |field: Option<&[u8]>| field.map(<[u8]>::to_vec);
        entries.extend(
            part.iter().flat_map(SnapshotPart::entries).map(|(key, value)| (owned(key), owned(value))),
        );
    }
    assembly.take(end, &SnapshotManifest { totals, ..manifest() }.encode().into())?;
    Ok((entries, assembly.is_whole()))
}

fn some_entries() -> Vec<OwnedEntry> {
    let entry = |key: &[u8], value: &[u8]| (Some(key.to_vec()), Some(value.to_vec()));
    // Three parts.
    let long = vec![b'x'; SNAPSHOT_PART_BYTES / 2];
    vec![entry(b"a", &long), entry(b"b", &long), (None, None), entry(b"", b""), entry(b"c", &long)]
}

#[test]
fn the_bytes_of_a_part_never_change() {
    let (parts, totals) = parts_of(7, &[(Some(b"tea".to_vec()), Some(b"4".to_vec())), (None, None)]);
    let expected = [
        &b"TS\x01\x01"[..],
        &[0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0],
        &[3, 0, 0, 0, 1, 0, 0, 0],
        b"tea4",
        &[0xff; 8],
    ]
    .concat();
    assert_eq!(parts, std::slice::from_ref(&expected));
    let sum = SnapshotSum(XxHash3_64::oneshot(&expected));
    assert_eq!(totals, SnapshotTotals { parts: 1, entries: 2, bytes: 4, sum });
}

#[test]
fn the_bytes_of_a_manifest_never_change() {
    let expected = [
        &b"TS\x02\x01"[..],
        &[4, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0],
        &[0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff],
        &[3, 0, 0, 0, 5, 0, 0, 0],
        &[0xe8, 3, 0, 0, 0, 0, 0, 0],
        &[10, 0, 0, 0, 0, 0, 0, 0],
        &[9, 0, 0, 0, 0, 0, 0, 0],
        &[5, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 0, 0, 0, 0, 0, 0],
        &[11, 0, 0, 0, 0, 0, 0, 0],
        &[8, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(manifest().encode(), expected);
    assert_eq!(SnapshotRecord::decode(&expected.into()), Ok(SnapshotRecord::Manifest(manifest())));
}

#[test]
fn a_snapshot_without_entries_has_one_part() {
    let (parts, totals) = parts_of(7, &[]);
    assert_eq!((parts.len(), totals.parts, totals.entries), (1, 1, 0));
    assert_eq!(read(totals, &parts), Ok((Vec::new(), true)));
}

#[test]
fn a_part_is_no_longer_than_its_bound_but_for_one_long_entry_which_fits_a_record() {
    let longest = vec![b'x'; SNAPSHOT_ENTRY_BYTES_MAX];
    let entries = [(None, Some(b"short".to_vec())), (None, Some(longest)), (None, Some(b"short".to_vec()))];
    let (parts, totals) = parts_of(7, &entries);
    assert_eq!(parts.len(), 3);
    // What a record has beside its value, and what its batch has.
    assert!(parts.iter().all(|part| part.len() + 256 <= APPEND_BYTES_MAX));
    assert_eq!(read(totals, &parts).map(|(read, is_whole)| (read == entries, is_whole)), Ok((true, true)));

    let too_long = vec![b'x'; SNAPSHOT_ENTRY_BYTES_MAX];
    let refused = SnapshotParts::new(7).push((Some(b"k"), Some(&too_long)));
    assert_eq!(refused, Err(SnapshotEntryTooLong { bytes: SNAPSHOT_ENTRY_BYTES_MAX + 1 }));
}

#[test]
fn parts_of_others_and_parts_that_come_again_are_left_out() {
    let (parts, totals) = parts_of(7, &some_entries());
    let (others, _) = parts_of(8, &some_entries());
    assert_eq!(parts.len(), 3, "the test is of several");
    let foreign = Bytes::from_static(b"whatever somebody appends");
    let records =
        [&others[0], &parts[0], &parts[1], &foreign, &parts[0], &parts[1], &others[1], &parts[2], &others[2]];
    let records: Vec<Bytes> = records.into_iter().cloned().collect();
    assert_eq!(read(totals, &records), Ok((some_entries(), true)));
}

#[test]
fn a_snapshot_that_lacks_a_part_or_has_another_one_is_torn() {
    let (parts, totals) = parts_of(7, &some_entries());
    for missing in 0..3 {
        let mut records = parts.clone();
        records.remove(missing);
        let torn = SnapshotTorn::Missing { number: missing as u32, parts: 3 };
        assert_eq!(read(totals, &records), Err(torn), "part {missing}");
    }
    let mut changed = some_entries();
    changed[4].0 = Some(b"d".to_vec());
    let (others, _) = parts_of(7, &changed);
    let records = [parts[0].clone(), parts[1].clone(), others[2].clone()];
    assert!(matches!(read(totals, &records), Err(SnapshotTorn::Other { .. })));
}

#[test]
fn what_is_cut_off_anywhere_or_has_something_behind_it_is_none() {
    let (parts, _) = parts_of(7, &[(Some(b"tea".to_vec()), Some(b"4".to_vec())), (None, None)]);
    for whole in [parts[0].to_vec(), manifest().encode()] {
        for len in 0..whole.len() {
            assert!(SnapshotRecord::decode(&whole[..len].to_vec().into()).is_err(), "{len}");
        }
        let longer = [&whole[..], &[0]].concat();
        let refused = SnapshotRecord::decode(&longer.into());
        assert!(matches!(refused, Err(SnapshotRecordError::Impossible(_))), "{refused:?}");
    }
}

#[test]
fn a_manifest_that_no_writer_writes_and_other_versions_are_refused() {
    let without_parts = SnapshotTotals { parts: 0, ..manifest().totals };
    let high = SnapshotUpTo { position: Offset(0), term: Term(TERM_MAX + 1) };
    for manifest in [
        SnapshotManifest { totals: without_parts, ..manifest() },
        SnapshotManifest { up_to: high, ..manifest() },
        SnapshotManifest { first: Offset(OFFSET_MAX + 1), ..manifest() },
        SnapshotManifest { previous: Some(Offset(u64::MAX - 1)), ..manifest() },
    ] {
        let refused = SnapshotRecord::decode(&manifest.encode().into());
        assert!(matches!(refused, Err(SnapshotRecordError::Impossible(_))), "{refused:?}");
    }
    for (at, byte) in [(0, b'X'), (2, 3), (3, 2)] {
        let mut bytes = manifest().encode();
        bytes[at] = byte;
        let refused = SnapshotRecord::decode(&bytes.into());
        assert!(matches!(refused, Err(SnapshotRecordError::Unknown { .. })), "{refused:?}");
    }
}

fn any_entry() -> impl Strategy<Value = OwnedEntry> {
    let field = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
    (field(), field())
}

proptest! {
    #[test]
    fn entries_that_are_cut_into_parts_are_put_together_again(
        entries in proptest::collection::vec(any_entry(), 0..60),
    ) {
        let (parts, totals) = parts_of(7, &entries);
        prop_assert_eq!(read(totals, &parts), Ok((entries, true)));
    }

    #[test]
    fn a_manifest_that_decodes_encodes_to_the_same_bytes(rest in proptest::collection::vec(any::<u8>(), 92)) {
        let bytes = [&b"TS\x02\x01"[..], &rest].concat();
        if let Ok(SnapshotRecord::Manifest(manifest)) = SnapshotRecord::decode(&bytes.clone().into()) {
            prop_assert_eq!(manifest.encode(), bytes);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        kind in 0..4u8,
        small in any::<bool>(),
    ) {
        let _ = SnapshotRecord::decode(&bytes.clone().into());
        if bytes.len() > 20 {
            bytes[..4].copy_from_slice(&[b'T', b'S', kind, VERSION]);
            if small {
                // Lengths and counts that may be right.
                bytes[17..20].fill(0);
                bytes[20..].iter_mut().for_each(|byte| *byte &= 7);
            }
        }
        if let Ok(SnapshotRecord::Part(part)) = SnapshotRecord::decode(&bytes.into()) {
            prop_assert_eq!(part.entries().count(), part.len());
        }
    }
}
