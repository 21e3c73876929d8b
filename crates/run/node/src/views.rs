//! What the log knows, in the forms that it is told in: protocol messages and JSON.

use tailwater_format::call::{self, DurabilityInfo, StreamConfigInfo, stream_to_wire};
use tailwater_format::{Position, ShardId};
use tailwater_log::{
    FlushPolicy, LogStreamInfo, SegmentDescription, ShardDescription, StreamConfig, StreamDescription,
    StreamDurability,
};

use crate::api::{SegmentView, ShardView, StreamView};

/// A stream for a client.
pub fn stream_info(stream: &LogStreamInfo) -> call::StreamInfo {
    call::StreamInfo {
        stream: stream_to_wire(stream.id),
        name: stream.name.clone(),
        shards: stream.config.shards,
        config: Some(config_info(&stream.config)),
    }
}

fn config_info(config: &StreamConfig) -> StreamConfigInfo {
    let durability = match config.durability {
        StreamDurability::Fsync => DurabilityInfo::Fsync,
        StreamDurability::Interval => DurabilityInfo::Interval,
    };
    StreamConfigInfo {
        retention_ms: config.retention_ms,
        retention_bytes: config.retention_bytes,
        segment_bytes: config.segment_bytes,
        segment_ms: Some(config.segment_ms),
        chunk_bytes: config.chunk_bytes,
        flush_ms: match config.flush {
            FlushPolicy::Immediate => 0,
            FlushPolicy::EveryMs(ms) => ms,
        },
        flush_bytes: config.flush_bytes.into(),
        durability: durability.into(),
        append_bytes_max: Some(config.append_bytes_max),
    }
}

/// A segment for a client.
pub fn segment_info(segment: &SegmentDescription, chunk_bytes: u32) -> call::SegmentInfo {
    call::SegmentInfo {
        number: segment.number.0,
        term: segment.term.0,
        base_offset: segment.base_offset.0,
        next_offset: segment.sealed.then_some(segment.next_offset.0),
        len: segment.length.0,
        sealed: segment.sealed,
        first_transaction_id: segment.completed.map(|completed| completed.first_transaction_id.0),
        last_transaction_id: segment.completed.map(|completed| completed.last_transaction_id.0),
        chunk_bytes,
    }
}

/// A stream as JSON; `cached` says how far each shard is in the data cell.
pub fn stream_view(description: &StreamDescription, cached: impl Fn(ShardId) -> Position) -> StreamView {
    let LogStreamInfo { name, id, config, source, .. } = &description.stream;
    let cached = |shard: &ShardDescription| cached(ShardId { stream: *id, shard: shard.shard });
    StreamView {
        name: name.clone(),
        source: source.clone(),
        id: *id,
        config: config.clone(),
        shards: description.shards.iter().map(|shard| shard_view(shard, cached(shard))).collect(),
    }
}

fn shard_view(shard: &ShardDescription, cached: Position) -> ShardView {
    let segments: Vec<SegmentView> = shard.segments.iter().map(segment_view).collect();
    ShardView {
        shard: shard.shard.0,
        log_start: shard.tail.log_start.0,
        next_offset: shard.tail.next_offset.0,
        bytes: segments.iter().map(|segment| segment.bytes).sum(),
        segment: shard.tail.segment.0,
        term: shard.tail.term.0,
        durable: shard.tail.durable.0,
        cached: cached.0,
        segments,
        damaged: shard.damaged.as_deref().map(str::to_owned),
        elsewhere: shard.is_elsewhere,
    }
}

fn segment_view(segment: &SegmentDescription) -> SegmentView {
    SegmentView {
        number: segment.number.0,
        term: segment.term.0,
        base_offset: segment.base_offset.0,
        bytes: segment.length.0,
        sealed: segment.sealed,
        copied: segment.completed.is_some_and(|completed| completed.is_copied),
        released: segment.completed.is_some_and(|completed| completed.is_released),
    }
}
