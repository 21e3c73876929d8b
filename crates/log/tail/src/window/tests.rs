use proptest::prelude::*;

use super::*;

fn shard() -> ShardId {
    ShardId { stream: StreamId(Uuid::from_u128(7)), shard: ShardNumber(3) }
}

fn segment() -> SegmentId {
    SegmentId { shard: shard(), number: SegmentNumber(2), term: Term(5) }
}

fn entry(base_offset: u64, batches: std::ops::Range<u32>) -> BlockEntry {
    let header = EntryHeader {
        version: 1,
        len: 200,
        stream: shard().stream,
        shard: shard().shard,
        segment: SegmentNumber(2),
        term: Term(5),
        entry_id: EntryId(base_offset),
        base_offset: Offset(base_offset),
        record_count: 2,
        transaction_id: TransactionId(9),
        checksum: 77,
    };
    BlockEntry { header, first_batch: batches.start, batch_end: batches.end }
}

fn batch(base_offset: u64, records: &'static [u8]) -> BlockBatch {
    let header = BatchHeader {
        base_offset: Offset(base_offset),
        len: 90,
        leader_epoch: -1,
        crc: 4,
        attributes: 2,
        codec: Codec::Snappy,
        base_timestamp_ms: 10,
        max_timestamp_ms: 20,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        record_count: 1,
    };
    BlockBatch { header, records: Bytes::from_static(records) }
}

fn block() -> Block {
    let entries = vec![entry(10, 0..2), entry(12, 2..3)];
    let batches = vec![batch(10, b"first"), batch(11, b""), batch(12, b"the third one")];
    Block::of_window(segment(), Position(100)..Position(500), entries, batches, 0, 0)
}

fn tail() -> Tail {
    Tail {
        segment: SegmentNumber(2),
        term: Term(5),
        base_offset: Offset(4),
        cached: Position(400),
        durable: Position(500),
        next_offset: Offset(14),
        sealed: true,
        previous: Some((SegmentNumber(1), Term(4), Position(900))),
        chunk_bytes: 4096,
        cells: true,
        log_start: Offset(1),
    }
}

/// The next message.
fn take(bytes: &mut Bytes, arena: u64) -> Result<Option<WindowMessage>, WindowMessageError> {
    let message = UndecodedMessage::take(bytes, arena)?;
    let Some(message) = message else { return Ok(None) };
    let shard = message.shard();
    let decoded = message.decode()?;
    assert_eq!(shard, Ok(decoded.shard()), "who hands it on sees it as who decodes it");
    Ok(Some(decoded))
}

/// As an arena has them.
fn arena(messages: &[WindowMessage]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        bytes.extend(message.encode().expect("short"));
        if let WindowMessage::Block(block) = message {
            records_of(block).for_each(|records| bytes.extend_from_slice(records));
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
    }
    bytes
}

fn all() -> Vec<u8> {
    arena(&[
        WindowMessage::Tail(shard(), tail()),
        WindowMessage::Block(block()),
        WindowMessage::At(segment(), Position(500)),
        WindowMessage::Lost(shard()),
        WindowMessage::Tail(shard(), Tail { previous: None, sealed: false, ..tail() }),
    ])
}

#[test]
fn messages_come_out_of_an_arena_as_they_went_in_and_a_block_borrows_its_records() {
    let whole = Bytes::from(all());
    let mut bytes = whole.clone();
    let mut next = || take(&mut bytes, 6).expect("a message");
    assert!(matches!(next(), Some(WindowMessage::Tail(of, found)) if of == shard() && found == tail()));
    let Some(WindowMessage::Block(found)) = next() else { panic!("a block") };
    let sent = block();
    assert_eq!(
        (found.segment, found.start, found.end, found.arena()),
        (segment(), sent.start, sent.end, Some(6))
    );
    assert_eq!(found.entries().len(), 2);
    for (found, sent) in found.entries().iter().zip(sent.entries()) {
        assert_eq!(found.header, sent.header);
    }
    for entries in [0..2, 0..1, 1..2] {
        let of = |block: &Block| {
            let batches = block.batches(entries.clone()).iter();
            batches.map(|batch| (batch.header, batch.records.clone())).collect::<Vec<_>>()
        };
        assert_eq!(of(&found), of(&sent));
    }
    let records = &found.batches(1..2)[0].records;
    assert!(whole.as_ptr_range().contains(&records.as_ptr()), "nothing is copied");
    assert!(matches!(next(), Some(WindowMessage::At(of, Position(500))) if of == segment()));
    assert!(matches!(next(), Some(WindowMessage::Lost(of)) if of == shard()));
    assert!(matches!(next(), Some(WindowMessage::Tail(_, Tail { previous: None, sealed: false, .. }))));
    assert!(next().is_none());
}

#[test]
fn behind_the_last_message_of_an_arena_are_zeros_and_nothing_else_is_taken() {
    let mut bytes = Bytes::from(vec![0; 64]);
    assert!(take(&mut bytes, 0).expect("the end").is_none());
    assert!(bytes.is_empty());
}

#[test]
fn what_readers_and_windows_say_comes_out_as_it_went_in() {
    for request in
        [WindowRequest::Follow(shard()), WindowRequest::Leave(shard()), WindowRequest::Took(u64::MAX)]
    {
        assert_eq!(WindowRequest::decode(&request.encode()), Ok(request));
    }
    let node = WindowFrame::node("0123456789abcdef0");
    for frame in [WindowFrame::Notice { node, from: 9 }, WindowFrame::Arena(4)] {
        assert_eq!(WindowFrame::decode(&frame.encode()), Ok(frame));
        let mut later = frame.encode();
        later[4] += 1;
        assert_eq!(WindowFrame::decode(&later), Err(WindowMessageError::Impossible("version")));
    }
    assert!(WindowRequest::decode(&[9; FRAME_BYTES]).is_err());
}

#[test]
fn a_window_s_figures_come_out_of_their_line_as_they_went_in_and_nothing_else_is_taken_for_them() {
    let stats = WindowStats { readers: 3, readers_fed: 2, shards: 1, publications: u64::MAX, bytes: 0 };
    assert_eq!(stats.to_string().parse(), Ok(stats));
    for line in ["", "1 2 3 4", "1 2 3 4 5 6", "1 2 3 4 -5", "1 2 3 4 x"] {
        assert_eq!(line.parse::<WindowStats>(), Err(WindowMessageError::Impossible("figures")), "{line}");
    }
}

proptest! {
    #[test]
    fn no_change_of_a_message_makes_a_reader_panic_or_read_outside_of_it(
        changes in prop::collection::vec((0usize..1 << 16, any::<u8>()), 1..8),
        end in 0usize..1 << 16,
    ) {
        let mut bytes = all();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(end % (bytes.len() + 1));
        let mut bytes = Bytes::from(bytes);
        while let Ok(Some(message)) = take(&mut bytes, 0) {
            let WindowMessage::Block(block) = message else { continue };
            let count = block.entries().len();
            for from in 0..count {
                for batch in block.batches(from..count) {
                    let records = tailwater_format::batch::Records::new(&batch.header, &batch.records);
                    records.take_while(Result::is_ok).for_each(drop);
                }
            }
        }
    }
}
