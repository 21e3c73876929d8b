use proptest::prelude::*;

use super::*;

fn partitions() -> impl Strategy<Value = Partitions> {
    let numbers = prop::collection::btree_set(any::<u32>(), 0..5);
    prop::collection::btree_map(
        any::<u128>().prop_map(|id| StreamId(uuid::Uuid::from_u128(id))),
        numbers,
        0..4,
    )
}

fn classic() -> impl Strategy<Value = ClassicRecord> {
    let protocol = (".{0,10}", prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from));
    let protocols = prop::collection::vec(protocol, 0..3);
    (any::<u32>(), any::<bool>(), protocols).prop_map(|(session_ms, is_due, protocols)| ClassicRecord {
        session_ms,
        is_due,
        protocols,
    })
}

fn record() -> impl Strategy<Value = MemberRecord> {
    let assignors = prop_oneof![Just(None), Just(Some(Assignor::Uniform)), Just(Some(Assignor::Range))];
    let texts = (".{0,20}", ".{0,20}", ".{0,20}", prop::option::of(".{0,20}"), prop::option::of(".{0,20}"));
    let wants = (
        prop::collection::btree_set(".{0,20}", 0..4),
        prop::option::of((".{0,20}", ".{0,20}".prop_map(Arc::from))),
        assignors,
    );
    let has = (any::<(i32, i32, u32)>(), partitions(), partitions(), prop::option::of(partitions()));
    (texts, wants, has, prop::option::of(classic())).prop_map(|(texts, wants, has, classic)| {
        let ((id, client_id, client_host, instance, rack), (topics, pattern, assignor)) = (texts, wants);
        let ((epoch, previous_epoch, rebalance_ms), assigned, revoking, target) = has;
        MemberRecord {
            id,
            instance,
            rack,
            client_id: client_id.into(),
            client_host,
            rebalance_ms,
            topics,
            pattern,
            assignor,
            epoch,
            previous_epoch,
            target: target.unwrap_or_else(|| assigned.clone()),
            assigned,
            revoking,
            classic,
        }
    })
}

/// Writes changes as metadata does.
fn write(disk: &mut BTreeMap<MemberPart, Bytes>, changes: MemberChanges) {
    for (part, value) in changes {
        match value {
            Some(value) => _ = disk.insert(part, value),
            None => assert!(disk.remove(&part).is_some(), "only what is there is removed"),
        }
    }
}

proptest! {
    #[test]
    fn a_record_comes_back_as_it_was(record in record()) {
        prop_assert_eq!(MemberRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn no_bytes_make_decoding_panic(bytes: Vec<u8>, record in record(), at: prop::sample::Index, byte: u8) {
        let _ = MemberRecord::decode(&bytes);
        let mut changed = record.encode();
        let at = at.index(changed.len());
        changed[at] = byte;
        let _ = MemberRecord::decode(&changed);
        prop_assert_eq!(MemberRecord::decode(&record.encode()[..at]), Err(BadRecord));
        let parts = [((0, 0), Bytes::from(bytes)), ((u32::MAX, u16::MAX), Bytes::from(changed))].into();
        prop_assert!(KeptMembers::restore(&parts, &mut MemberChanges::new()).1.is_empty());
    }

    #[test]
    fn a_key_tells_the_part_and_the_group_whatever_that_is_called(part: MemberPart, group in ".{0,40}") {
        let key = member_key(part, &group);
        prop_assert_eq!(parse_member_key(&key), Some((part, group.as_str())));
    }

    #[test]
    fn what_is_kept_comes_back_after_any_changes(
        changes in prop::collection::vec((0..4_u8, prop::option::of((record(), 0..3_usize))), 0..20)
    ) {
        let (mut kept, mut disk, mut expected) = (KeptMembers::default(), BTreeMap::new(), BTreeMap::new());
        for (id, record) in changes {
            let id = id.to_string();
            let record = record.map(|(record, parts)| {
                // Longer than one part, sometimes.
                let mut topics = record.topics;
                topics.insert("x".repeat(parts * PART_BYTES_MAX));
                MemberRecord { id: id.clone(), topics, ..record }
            });
            let mut changes = MemberChanges::new();
            kept.keep(&id, record.as_ref(), &mut changes);
            prop_assert!(changes.values().flatten().all(|value| value.len() <= PART_BYTES_MAX + 11));
            write(&mut disk, changes);
            match record {
                Some(record) => _ = expected.insert(id, record),
                None => _ = expected.remove(&id),
            }
            let mut none = MemberChanges::new();
            let (restored, records) = KeptMembers::restore(&disk, &mut none);
            prop_assert_eq!((restored.bytes(), none), (kept.bytes(), MemberChanges::new()));
            let records: BTreeMap<_, _> = records.into_iter().map(|record| (record.id.clone(), record)).collect();
            prop_assert_eq!(&records, &expected);
            kept = restored;
        }
        let mut changes = MemberChanges::new();
        kept.forget_all(&mut changes);
        write(&mut disk, changes);
        prop_assert_eq!((disk.len(), kept.bytes()), (0, 0));
    }
}

fn plain(id: &str) -> MemberRecord {
    MemberRecord {
        id: id.to_owned(),
        instance: None,
        rack: None,
        client_id: "c".into(),
        client_host: "/h".to_owned(),
        rebalance_ms: 60_000,
        topics: ["t".to_owned()].into(),
        pattern: None,
        assignor: Some(Assignor::Range),
        epoch: 2,
        previous_epoch: 1,
        assigned: [(StreamId(uuid::Uuid::from_u128(7)), [3].into())].into(),
        revoking: Partitions::new(),
        target: Partitions::new(),
        classic: None,
    }
}

#[test]
fn parts_of_different_records_are_no_record_and_go() {
    let long =
        |letter: &str| MemberRecord { topics: [letter.repeat(2 * PART_BYTES_MAX)].into(), ..plain("m") };
    let (mut kept, mut before, mut after) = Default::default();
    KeptMembers::keep(&mut kept, "m", Some(&long("a")), &mut before);
    KeptMembers::keep(&mut kept, "m", Some(&long("b")), &mut after);
    assert_eq!((before.len(), after.len()), (3, 3));
    let mut disk = BTreeMap::new();
    write(&mut disk, before);
    // A part of what came next.
    write(&mut disk, after.into_iter().take(1).collect());
    let mut changes = MemberChanges::new();
    let (restored, records) = KeptMembers::restore(&disk, &mut changes);
    assert_eq!((restored.bytes(), records.len()), (0, 0));
    write(&mut disk, changes);
    assert_eq!(disk.len(), 0);
}

#[test]
fn the_bytes_of_members_never_change() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let expected = concat!(
        "0200000001000000",
        "60ea0000",
        "02",
        "010000006d",
        "0100000063",
        "020000002f68",
        "ffffffffffffffffffffffffffffffff",
        "010000000100000074",
        "01000000000000000000000000000000000000070100000003000000",
        "00000000",
        "0100000000",
        "00",
    );
    assert_eq!(hex(&plain("m").encode()), expected);
    let mut changes = MemberChanges::new();
    KeptMembers::default().keep("m", Some(&plain("m")), &mut changes);
    let value = changes.remove(&(0, 0)).flatten().expect("one part");
    assert_eq!(hex(&value[..3]), "010100");
    assert_eq!(value[3..11], xxh3_64(&value[11..]).to_le_bytes());
}
