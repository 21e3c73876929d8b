//! What the log knows, in the forms that it is told in: protocol messages and JSON.

use tailwater_format::call::{self, DurabilityInfo, StreamConfigInfo, stream_to_wire};
use tailwater_log::{Durability, Flush, SegmentInfo, StreamConfig, StreamDescription};

use crate::api::{SegmentView, ShardView, StreamView};

/// A stream for a client.
pub fn stream_info(description: &StreamDescription) -> call::StreamInfo {
    call::StreamInfo {
        stream: stream_to_wire(description.id),
        name: description.name.clone(),
        shards: description.config.shards,
        config: Some(config_info(&description.config)),
    }
}

fn config_info(config: &StreamConfig) -> StreamConfigInfo {
    let durability = match config.durability {
        Durability::Fsync => DurabilityInfo::Fsync,
        Durability::Interval => DurabilityInfo::Interval,
    };
    StreamConfigInfo {
        retention_ms: config.retention_ms,
        retention_bytes: config.retention_bytes,
        segment_bytes: config.segment_bytes,
        segment_ms: Some(config.segment_ms),
        chunk_bytes: config.chunk_bytes,
        flush_ms: match config.flush {
            Flush::Immediate => 0,
            Flush::EveryMs(ms) => ms,
        },
        flush_bytes: config.flush_bytes.into(),
        durability: durability.into(),
    }
}

/// A segment for a client.
pub fn segment_info(info: &SegmentInfo, chunk_bytes: u32) -> call::SegmentInfo {
    call::SegmentInfo {
        number: info.number.0,
        term: info.term.0,
        base_offset: info.base_offset.0,
        next_offset: info.next_offset.map(|offset| offset.0),
        len: info.length.0,
        sealed: info.sealed,
        first_transaction_id: info.first_transaction_id.map(|id| id.0),
        last_transaction_id: info.last_transaction_id.map(|id| id.0),
        chunk_bytes,
    }
}

/// A stream as JSON.
pub fn stream_view(description: &StreamDescription) -> StreamView {
    StreamView {
        name: description.name.clone(),
        id: description.id,
        config: description.config.clone(),
        shards: description.shards.iter().map(shard_view).collect(),
    }
}

fn shard_view(shard: &tailwater_log::ShardDescription) -> ShardView {
    let segments: Vec<SegmentView> = shard.segments.iter().map(segment_view).collect();
    ShardView {
        shard: shard.shard.0,
        log_start: shard.log_start.0,
        next_offset: shard.next_offset.0,
        bytes: segments.iter().map(|segment| segment.bytes).sum(),
        segment: shard.tail.map(|tail| tail.segment.0),
        term: shard.tail.map(|tail| tail.term.0),
        durable: shard.tail.map_or(0, |tail| tail.durable.0),
        cached: shard.tail.map_or(0, |tail| tail.cached.0),
        segments,
    }
}

fn segment_view(info: &SegmentInfo) -> SegmentView {
    SegmentView {
        number: info.number.0,
        term: info.term.0,
        base_offset: info.base_offset.0,
        bytes: info.length.0,
        sealed: info.sealed,
    }
}
