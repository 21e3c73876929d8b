//! What every durable source has to keep to, checked against what is known to be stored.

use bytes::Bytes;
use tailwater_format::{Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};

use crate::{DurableSource, SourceError, SourceSegment};

/// What a shard is known to hold: its segments, oldest first, each with all of its durable bytes. To mean anything
/// there are several, of some entries each, and only the last one is not sealed.
pub struct Stored {
    /// The shard.
    pub shard: ShardId,
    /// Its segments.
    pub segments: Vec<(SourceSegment, Bytes)>,
}

/// Checks that `source` answers for `stored` as [`DurableSource`] says. Nothing may be appended meanwhile.
///
/// # Panics
/// If it does not.
pub async fn check_durable_source(source: &dyn DurableSource, stored: &Stored) {
    segments_are_listed_from_any_number_on(source, stored).await;
    for (info, bytes) in &stored.segments {
        let id = SegmentId { shard: stored.shard, number: info.number, term: info.term };
        every_read_is_a_part_of_what_is_stored(source, id, bytes).await;
        nothing_is_read_past_the_end_or_of_another_term(source, id, bytes).await;
    }
    tails_are_those_of_the_newest_segments(source, stored).await;
    an_unknown_stream_is_said_to_be_none(source, stored.shard).await;
}

async fn segments_are_listed_from_any_number_on(source: &dyn DurableSource, stored: &Stored) {
    let infos: Vec<SourceSegment> = stored.segments.iter().map(|(info, _)| *info).collect();
    let newest = infos.last().expect("something is stored").number;
    for from in 0..=newest.0 {
        let listed = source.segments(stored.shard, SegmentNumber(from)).await.expect("the shard is there");
        let expected: Vec<_> = infos.iter().filter(|info| info.number.0 >= from).copied().collect();
        assert!(!listed.is_empty() && expected.starts_with(&listed), "from {from}: {listed:?}");
    }
}

async fn every_read_is_a_part_of_what_is_stored(source: &dyn DurableSource, id: SegmentId, bytes: &Bytes) {
    let mut at = 0;
    let mut len = 1;
    while at < bytes.len() {
        let read = source.read(id, Position(at as u64), len as u32).await.expect("it is durable");
        assert!((1..=len).contains(&read.len()), "{} bytes for {len}", read.len());
        assert_eq!(read, bytes[at..at + read.len()], "{id} at {at}");
        at += read.len();
        len = len * 3 + 1;
    }
    let all = source.read(id, Position(0), u32::MAX).await.expect("it is durable");
    assert!(!all.is_empty() && bytes.starts_with(&all), "{id} from its beginning");
}

async fn nothing_is_read_past_the_end_or_of_another_term(
    source: &dyn DurableSource,
    id: SegmentId,
    bytes: &Bytes,
) {
    let end = Position(bytes.len() as u64);
    for from in [end, Position(end.0 + 1), Position(u64::MAX / 4)] {
        let read = source.read(id, from, 100).await;
        assert!(matches!(read, Err(SourceError::Unavailable(_))), "{id} at {from}: {read:?}");
    }
    let other = SegmentId { term: Term(id.term.0 + 1_000), ..id };
    let read = source.read(other, Position(0), 100).await;
    assert!(read.is_err(), "{other}: {read:?}");
}

async fn tails_are_those_of_the_newest_segments(source: &dyn DurableSource, stored: &Stored) {
    let shard = stored.shard;
    let tails = source.tails(shard.stream, &[shard.shard]).await.expect("the stream is there");
    let [Some(tail)] = tails[..] else { panic!("one tail, not {tails:?}") };
    let (newest, _) = stored.segments.last().expect("something is stored");
    assert_eq!((tail.segment, tail.term), (newest.number, newest.term));
    assert_eq!((tail.durable, tail.sealed), (newest.length, newest.sealed));
    assert_eq!(tail.base_offset, newest.base_offset);
    if let [.., (previous, _), _] = &stored.segments[..] {
        assert_eq!(tail.previous, Some((previous.number, previous.term, previous.length)));
    }
    assert!(tail.is_possible(), "{tail:?}");
}

async fn an_unknown_stream_is_said_to_be_none(source: &dyn DurableSource, shard: ShardId) {
    let mut uuid = *shard.stream.0.as_bytes();
    uuid[15] ^= 0xff;
    let stream = StreamId(uuid::Uuid::from_bytes(uuid));
    let tails = source.tails(stream, &[ShardNumber(0)]).await;
    assert_eq!(tails, Err(SourceError::NoStream));
    let listed = source.segments(ShardId { stream, shard: ShardNumber(0) }, SegmentNumber(0)).await;
    assert_eq!(listed, Err(SourceError::NoStream));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MemoryLog;

    #[test]
    fn the_log_in_memory_is_a_durable_source() {
        let shard = ShardId { stream: StreamId(uuid::Uuid::from_u128(7)), shard: ShardNumber(3) };
        let log = MemoryLog::new(4096);
        for segment in 0..3 {
            for entry in 0..5 {
                log.append(shard, &[b"one", &[segment; 300], &[entry; 20]]);
            }
            if segment < 2 {
                log.roll_with_new_term(shard);
            }
        }
        let infos = log.list(shard, SegmentNumber(0)).expect("it is there");
        let segments = infos
            .into_iter()
            .map(|info| {
                let id = SegmentId { shard, number: info.number, term: info.term };
                (info, log.bytes(id, Position(0), Position(u64::MAX)))
            })
            .collect();
        futures::executor::block_on(check_durable_source(&log, &Stored { shard, segments }));
    }
}
