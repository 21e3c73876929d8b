//! What can be set, and what is counted.

use std::collections::BTreeSet;

use crate::name::Stream;

/// How a peer takes part. The defaults suit a region of a thousand clients and of streams of some 20,000 small events a
/// second; they are what `tailwater bench broadcast members` measures. A larger view is told of by gossip sooner, and
/// costs connections; events of more bytes a second want more of `recv_bytes`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Members of a view at most (the paper's V).
    pub view_max: usize,
    /// Members that are told of progress between two shuffles (the paper's F).
    pub fanout: usize,
    /// Members whose requests for a stream may stand with a client: it feeds them. The proxy feeds a twentieth of its
    /// region, and at least as many. With 0 no request stands: what the paper has.
    pub feeds: usize,
    /// Milliseconds between two answers of the proxy to a request that stands; a client, which passes on what comes,
    /// takes half as long at least.
    pub feed_ms: u64,
    /// Milliseconds between two exchanges of views with a neighbour, from 1. One whose view is not full takes an
    /// eighth.
    pub gossip_ms: u64,
    /// Every so many such rounds a client exchanges views with the proxy too, from 1.
    pub proxy_rounds: u64,
    /// Milliseconds after which others are told of progress.
    pub shuffle_ms: u64,
    /// Milliseconds between two messages about progress to one member at least; what happens meanwhile is told
    /// together.
    pub notify_ms: u64,
    /// Bytes of events that are asked for at once.
    pub request_bytes: usize,
    /// Milliseconds after which a peer that has not answered a request is given up; the proxy is given four times
    /// as long.
    pub request_timeout_ms: u64,
    /// Bytes of delivered events that are kept for others.
    pub recv_bytes: usize,
    /// Bytes of events that came before their turn, for each stream. Beyond it only the next events are asked for.
    pub early_bytes: usize,
    /// Bytes of events a second that are sent to all others together.
    pub upload_bytes_s: u64,
    /// Bytes of events a second that are sent to each other member.
    pub peer_bytes_s: u64,
    /// Only these streams; all if `None`.
    pub streams: Option<BTreeSet<Stream>>,
    /// Where a stream begins of which no position is given.
    pub begin: Begin,
}

/// Where a stream begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// With its first event (or a tombstone for it).
    #[default]
    First,
    /// After what the first member that tells of the stream has.
    Now,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            view_max: 12,
            fanout: 4,
            feeds: 6,
            feed_ms: 50,
            gossip_ms: 20_000,
            proxy_rounds: 10,
            shuffle_ms: 30,
            notify_ms: 10,
            request_bytes: 256 << 10,
            request_timeout_ms: 500,
            recv_bytes: 1 << 20,
            early_bytes: 4 << 20,
            upload_bytes_s: u64::MAX,
            peer_bytes_s: u64::MAX,
            streams: None,
            begin: Begin::First,
        }
    }
}

/// What a peer has counted since it began, and what it has now. Events are those with content: a tombstone counts
/// as none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events delivered.
    pub delivered: u64,
    /// Of those, fetched from the proxy.
    pub from_proxy: u64,
    /// Of those, fetched from others.
    pub from_peers: u64,
    /// Events that came a second time.
    pub duplicates: u64,
    /// Requests sent to the proxy.
    pub requests_to_proxy: u64,
    /// Requests sent to others.
    pub requests_to_peers: u64,
    /// Requests given up.
    pub timeouts: u64,
    /// Batches that were damaged, or for which there was no room.
    pub refused: u64,
    /// Events sent to others.
    pub served: u64,
    /// Requests of others that stand here now.
    pub feeds: usize,
    /// Requests of others dropped, because they waited too long or were too many.
    pub dropped: u64,
    /// Times that another member began to feed a stream.
    pub moves: u64,
    /// Streams that a member feeds now.
    pub fed: usize,
    /// Of those, through how many members the one that takes most comes from the proxy.
    pub hops: u8,
    /// Members of the view now.
    pub view: usize,
    /// Bytes of events kept for others now.
    pub recv_bytes: usize,
    /// Times that a stream was left out, as there were [`STREAMS_MAX`](crate::limits::STREAMS_MAX).
    pub left_out: u64,
}
