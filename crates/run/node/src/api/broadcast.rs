//! The JSON of `/v1/broadcast`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `GET /v1/broadcast`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BroadcastView {
    /// The region whose proxy the node is a replica of.
    pub region: String,
    /// The replica's number, in hexadecimal.
    pub replica: String,
    /// Where publishers, listeners and other replicas connect.
    pub address: String,
    /// Whether they do in TLS; so do those of all regions.
    #[serde(default)]
    pub tls: bool,
    /// `only`, `head`, `middle`, `tail`, `joining`, or `none` if it is not in the chain.
    pub role: String,
    /// Whether it answers listeners: a new tail does once it has been handed the token.
    pub answers: bool,
    /// Its place in the chain, from 1; 0 if it is no member.
    #[serde(default)]
    pub place: usize,
    /// Of the chain; grows with every change.
    pub epoch: u64,
    /// Of the chain, in hexadecimal: grows each time that the region begins anew.
    #[serde(default)]
    pub lineage: String,
    /// The region's replicas, head first, those that are joining at the end.
    pub chain: Vec<ReplicaView>,
    /// The other regions' replicas, as configured.
    pub regions: BTreeMap<String, Vec<String>>,
    /// Connections of clients and replicas.
    pub connections: usize,
    /// Streams that it has something of.
    pub streams: usize,
    /// What it has of each region, its own and those that it is configured with or has heard of.
    #[serde(default)]
    pub by_region: BTreeMap<String, RegionView>,
    /// Listeners that share events with each other, as the chain's tail sees them.
    #[serde(default)]
    pub sharing: SharingView,
    /// Events numbered here, as the head, since the start; likewise for all below.
    pub published: u64,
    /// Events that a publisher's retry brought again, and that were left out.
    pub repeated: u64,
    /// Events that were refused.
    pub refused: u64,
    /// Events that came down the chain, from the replica before it.
    #[serde(default)]
    pub followed: u64,
    /// Events that came from other regions.
    pub remote: u64,
    /// Times that a stream's subscription moved to another proxy.
    pub moved: u64,
    /// Batches that were left out because events before them were missing.
    pub gaps: u64,
    /// Times that a stream was left out, as there were too many.
    #[serde(default)]
    pub left_out: u64,
    /// Events that retention removed and nothing had collected.
    #[serde(default)]
    pub removed: u64,
    /// Batches that waited for a quota.
    #[serde(default)]
    pub delayed: u64,
    /// Requests over HTTP that were refused for one.
    #[serde(default)]
    pub throttled: u64,
    /// The node's bridges.
    #[serde(default)]
    pub bridges: Vec<BridgeView>,
}

/// What a node has of a region's streams.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RegionView {
    /// Which beginning of the region the streams' numbers count from, in hexadecimal; empty if nothing is known of it.
    pub lineage: String,
    /// The streams.
    pub streams: usize,
    /// Their events that all replicas from the node to the tail hold, collected ones included.
    pub events: u64,
    /// Those of them that are not collected.
    pub live: u64,
    /// The part of them that tombstones stand for.
    pub tombstone_ratio: f64,
    /// How long they took until the node knew that all replicas of its region hold them.
    pub delay: Option<DelayView>,
}

/// How long after an event's number the node knew that all replicas of its region hold it, the tail first. Of each
/// batch the oldest event counts, and percentiles are rounded up to a power of two; `None` is 131 s or more.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct DelayView {
    /// Batches, while the node was a member of its region's chain, since its start.
    pub batches: u64,
    /// Half of them took less than so many milliseconds.
    pub p50_ms: Option<u64>,
    /// Likewise nine in ten.
    pub p90_ms: Option<u64>,
    /// And 99 in 100.
    pub p99_ms: Option<u64>,
    /// What they took on average.
    pub mean_ms: f64,
}

/// Listeners that share events with each other. Counts are since the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SharingView {
    /// Those that are connected.
    pub members: usize,
    /// Those of them that are told first of what is new.
    pub view: usize,
    /// Requests of theirs that stand: they are sent what comes.
    pub standing: usize,
    /// Their requests.
    pub requests: u64,
    /// Of those, how many were dropped.
    pub dropped: u64,
    /// Events sent to them.
    pub events: u64,
    /// Bytes of those, as messages.
    pub bytes: u64,
}

/// A bridge between a log stream and a broadcast stream. Counts are since the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BridgeView {
    /// Where from, as configured.
    pub from: String,
    /// Where to.
    pub to: String,
    /// Records or events that it carried.
    pub carried: u64,
    /// Those of them that were too large, and of which something was left out.
    pub omitted: u64,
    /// Times that retention of the broadcast stream removed events before they were carried.
    #[serde(default)]
    pub removed: u64,
    /// Times that it could not go on.
    pub errors: u64,
    /// Records or events that it has before it; `None` until it has looked everywhere.
    pub lag: Option<u64>,
    /// Why it does not go on, if it does not.
    pub error: Option<String>,
}

/// A replica of a chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplicaView {
    /// Its number, in hexadecimal.
    pub id: String,
    /// Where it is reached.
    pub address: String,
    /// `only`, `head`, `middle`, `tail` or `joining`.
    pub role: String,
}

/// A stream, as in `GET /v1/broadcast/streams`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BroadcastStreamView {
    /// `REGION/NAME`.
    pub stream: String,
    /// If the stream is another region's and the node is the head: the region whose proxy it fetches it from.
    #[serde(default)]
    pub source: Option<String>,
    /// Which beginning of the stream's region its numbers count from, in hex: a greater one each time that it begins
    /// anew.
    #[serde(default)]
    pub lineage: String,
    /// The last number that the node has.
    pub last: u64,
    /// The last number that it knows all replicas from it to the tail to hold.
    pub held: u64,
    /// Events up to `held` that are not collected.
    pub live: u64,
    /// Events that it stores: those, and collected ones that were not dropped yet.
    pub stored: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// The part of all numbers up to `held` that tombstones stand for.
    pub tombstone_ratio: f64,
}
