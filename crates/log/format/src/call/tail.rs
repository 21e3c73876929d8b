//! Tails as CALLs tell of them. In pages they are as in [`crate::tails`].

use bytes::Bytes;
use prost::Message;

use super::CallDecodeError;
use crate::ids::{Offset, Position, SegmentNumber, ShardNumber, Term};
use crate::tails::Tail;

/// Asks for tails of shards of one stream.
#[derive(Clone, PartialEq, Message)]
pub struct Tails {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// The shards; all of them if empty.
    #[prost(uint32, repeated, tag = "2")]
    pub shards: Vec<u32>,
}

/// The tails asked for; a shard that has no segment yet, or that this node does not own, is left out.
#[derive(Clone, PartialEq, Message)]
pub struct TailsReply {
    /// The tails.
    #[prost(message, repeated, tag = "1")]
    pub tails: Vec<ShardTail>,
    /// The stream does not exist any more.
    #[prost(bool, tag = "2")]
    pub deleted: bool,
}

/// A shard's tail; see [`Tail`] for the fields.
#[derive(Clone, PartialEq, Message)]
#[allow(missing_docs)]
pub struct ShardTail {
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    #[prost(uint64, tag = "2")]
    pub segment: u64,
    #[prost(uint32, tag = "3")]
    pub term: u32,
    #[prost(uint64, tag = "4")]
    pub base_offset: u64,
    #[prost(uint64, tag = "5")]
    pub cached: u64,
    #[prost(uint64, tag = "6")]
    pub durable: u64,
    #[prost(uint64, tag = "7")]
    pub next_offset: u64,
    #[prost(bool, tag = "8")]
    pub sealed: bool,
    #[prost(message, optional, tag = "9")]
    pub previous: Option<PreviousSegment>,
    #[prost(uint32, tag = "10")]
    pub chunk_bytes: u32,
    #[prost(uint64, tag = "11")]
    pub log_start: u64,
    #[prost(bool, tag = "12")]
    pub without_cells: bool,
}

/// The segment before a shard's newest one.
#[derive(Clone, PartialEq, Message)]
pub struct PreviousSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Its term.
    #[prost(uint32, tag = "2")]
    pub term: u32,
    /// Its final length.
    #[prost(uint64, tag = "3")]
    pub len: u64,
}

impl ShardTail {
    /// A shard's tail as it is sent.
    pub fn new(shard: ShardNumber, tail: &Tail) -> Self {
        let previous = tail.previous.map(|(number, term, len)| PreviousSegment {
            number: number.0,
            term: term.0,
            len: len.0,
        });
        Self {
            shard: shard.0,
            segment: tail.segment.0,
            term: tail.term.0,
            base_offset: tail.base_offset.0,
            cached: tail.cached.0,
            durable: tail.durable.0,
            next_offset: tail.next_offset.0,
            sealed: tail.sealed,
            previous,
            chunk_bytes: tail.chunk_bytes,
            log_start: tail.log_start.0,
            without_cells: !tail.cells,
        }
    }

    /// The tail as it was received, held to what a tail page is held to.
    pub fn tail(&self) -> Result<Tail, CallDecodeError> {
        let previous =
            self.previous.as_ref().map(|it| (SegmentNumber(it.number), Term(it.term), Position(it.len)));
        let tail = Tail {
            segment: SegmentNumber(self.segment),
            term: Term(self.term),
            base_offset: Offset(self.base_offset),
            cached: Position(self.cached),
            durable: Position(self.durable),
            next_offset: Offset(self.next_offset),
            sealed: self.sealed,
            previous,
            chunk_bytes: self.chunk_bytes,
            cells: !self.without_cells,
            log_start: Offset(self.log_start),
        };
        if tail.is_possible() { Ok(tail) } else { Err(CallDecodeError::OutOfRange { field: "tail" }) }
    }
}
