//! The log as the durable layer of readers: it keeps to what every durable source keeps to.

mod common;

use common::{config, create, in_world, open_with, shard, values};
use tailwater_env::Env;
use tailwater_format::{Position, SegmentId, SegmentNumber, ShardId, ShardNumber};
use tailwater_log::{Log, StreamConfig};
use tailwater_tail::testing::{Stored, check_durable_source};
use tailwater_tail::{DurableSource, SourceError, SourceSegment};

const SHARD: ShardNumber = ShardNumber(1);

/// What the store below the log holds of a shard, in all the segments that its metadata and its owner name.
async fn stored(log: &Log, id: ShardId) -> Stored {
    let mut segments = Vec::new();
    for segment in log.segments(id, SegmentNumber(0)).expect("the shard") {
        let name = SegmentId { shard: id, number: segment.number, term: segment.term };
        let length = log.store().durable_length(&name).expect("it is stored");
        assert_eq!(length, segment.length, "{name}: nothing is appended meanwhile");
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < length.0 {
            let at = Position(bytes.len() as u64);
            let piece = log.store().read(&name, at, (length.0 - at.0) as usize).await.expect("durable");
            bytes.extend_from_slice(&piece);
        }
        let info = SourceSegment {
            number: segment.number,
            term: segment.term,
            base_offset: segment.base_offset,
            length,
            sealed: segment.sealed,
        };
        segments.push((info, bytes.into()));
    }
    Stored { shard: id, segments }
}

/// Appends until the shard has at least `count` segments, the last of them open and with records.
async fn append_segments(log: &Log, id: ShardId, count: usize) {
    loop {
        log.append(id.stream, id.shard, values(&[&"x".repeat(300), "y"])).await.expect("appended");
        let segments = log.segments(id, SegmentNumber(0)).expect("the shard");
        if segments.len() >= count && segments.last().is_some_and(|last| !last.sealed) {
            return;
        }
    }
}

async fn begin(env: &Env, dir: &std::path::Path) -> (Log, ShardId) {
    let log = open_with(env, dir, config()).await;
    let stream_config = StreamConfig { shards: 3, segment_bytes: 4_096, ..StreamConfig::default() };
    let stream = create(&log, "a", stream_config).await;
    (log, shard(stream, SHARD.0))
}

#[test]
fn a_log_is_a_durable_source() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, id) = begin(&env, dir.path()).await;
        append_segments(&log, id, 4).await;
        check_durable_source(&log, &stored(&log, id).await).await;
        // From segment files too, where it came from memory before.
        log.store().flush().await.expect("a disk that works");
        check_durable_source(&log, &stored(&log, id).await).await;
    });
}

#[test]
fn a_log_that_was_killed_and_opened_again_is_a_durable_source() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, id) = begin(&env, dir.path()).await;
        append_segments(&log, id, 3).await;
        drop(log);
        let log = open_with(&env, dir.path(), config()).await;
        let before = stored(&log, id).await;
        assert!(before.segments.iter().all(|(info, _)| info.sealed), "all are of an owner that is gone");
        check_durable_source(&log, &before).await;
        // Another term beside those of before.
        append_segments(&log, id, before.segments.len() + 2).await;
        let after = stored(&log, id).await;
        let (last, _) = after.segments.last().expect("some");
        assert!(last.term > before.segments[0].0.term);
        check_durable_source(&log, &after).await;
    });
}

#[test]
fn what_was_removed_is_told_apart_from_what_never_was() {
    in_world(|env| async move {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, id) = begin(&env, dir.path()).await;
        append_segments(&log, id, 5).await;
        let all = stored(&log, id).await;
        let (third, _) = all.segments[2];
        log.truncate("a", SHARD, third.base_offset).await.expect("truncated");
        let left = stored(&log, id).await;
        assert_eq!(left.segments[0].0, third);
        check_durable_source(&log, &left).await;

        let source: &dyn DurableSource = &log;
        let (first, _) = all.segments[0];
        let gone = SegmentId { shard: id, number: first.number, term: first.term };
        let told = Err(SourceError::Truncated { log_start: third.base_offset });
        assert_eq!(source.read(gone, Position(0), 100).await, told);
        log.delete_stream("a").await.expect("deleted");
        assert_eq!(source.read(gone, Position(0), 100).await, Err(SourceError::NoStream));
        assert_eq!(source.segments(id, SegmentNumber(0)).await, Err(SourceError::NoStream));
        assert_eq!(source.tails(id.stream, &[SHARD]).await, Err(SourceError::NoStream));
    });
}
