//! The replica of the region's broadcast proxy.

use std::fmt;

use tailwater_broadcast::server::{RegionSnapshot, Snapshot, StreamSnapshot};

use super::Page;
use crate::Shared;

/// Name, help, and what it is.
type Series = (&'static str, &'static str, fn(&StreamSnapshot) -> u64);

/// What the replica says, asked before the page is written; nothing if there is none.
pub(super) struct BroadcastsRead {
    snapshot: Option<Snapshot>,
    streams_told_max: usize,
}

impl BroadcastsRead {
    pub(super) async fn of(shared: &Shared) -> Self {
        let snapshot = match &shared.broadcast {
            Some(broadcast) => broadcast.snapshot().await,
            None => None,
        };
        Self { snapshot, streams_told_max: shared.streams_told_max }
    }

    pub(super) fn tell(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some(read) = &self.snapshot else { return Ok(()) };
        page.gauge(
            "tailwater_broadcast_epoch",
            "Epoch of the chain as this replica knows it.",
            read.chain.epoch,
        )?;
        let members = read.chain.members.len() as u64;
        page.gauge("tailwater_broadcast_chain_members", "Replicas in this region's chain.", members)?;
        let joining = read.chain.joining.len() as u64;
        page.gauge("tailwater_broadcast_chain_joining", "Replicas that copy, to become members.", joining)?;
        page.gauge(
            "tailwater_broadcast_head",
            "1 if it gives events their numbers.",
            u64::from(read.is_head),
        )?;
        page.gauge("tailwater_broadcast_tail", "1 if it answers listeners.", u64::from(read.is_tail))?;
        let connections = read.connections as u64;
        page.gauge("tailwater_broadcast_connections", "Connections of clients and replicas.", connections)?;
        let counters = &read.counters;
        page.counter(
            "tailwater_broadcast_published",
            "Events published here, as the head.",
            counters.published,
        )?;
        let repeated = "Events left out because an earlier try had published them.";
        page.counter("tailwater_broadcast_repeated", repeated, counters.repeated)?;
        page.counter("tailwater_broadcast_refused", "Events that were refused.", counters.refused)?;
        page.counter("tailwater_broadcast_remote", "Events that came from other regions.", counters.remote)?;
        let moved = "Times that a stream of another region was subscribed to at another proxy.";
        page.counter("tailwater_broadcast_moved", moved, counters.moved)?;
        let gaps = "Batches that did not continue what was there, and were left out.";
        page.counter("tailwater_broadcast_gaps", gaps, counters.gaps)?;
        region(read.region, page)?;
        self.streams(&read.streams, page)
    }

    fn streams(&self, streams: &[StreamSnapshot], page: &mut Page<'_>) -> fmt::Result {
        page.gauge("tailwater_broadcast_streams", "Streams of all regions.", streams.len() as u64)?;
        let told = &streams[..streams.len().min(self.streams_told_max)];
        let of = |read_one: fn(&StreamSnapshot) -> u64| {
            told.iter().map(move |stream| (stream.stream.to_string(), read_one(stream)))
        };
        let gauges: [Series; 5] = [
            ("tailwater_broadcast_stream_last", "Number of the last event that it has.", |of| of.last),
            ("tailwater_broadcast_stream_held", "Number of the last event that all replicas hold.", |of| {
                of.held
            }),
            ("tailwater_broadcast_stream_live", "Events that are not collected.", |of| of.live),
            ("tailwater_broadcast_stream_stored", "Events in memory, some of them collected.", |of| {
                of.stored
            }),
            ("tailwater_broadcast_stream_bytes", "Bytes of those.", |of| of.bytes),
        ];
        for (name, help, read_one) in gauges {
            page.gauges(name, help, "stream", of(read_one))?;
        }
        let tombstoned = "Share of all events so far that are collected, 0 to 1.";
        let ratio = |of: &StreamSnapshot| match of.held {
            0 => 0.0,
            held => held.saturating_sub(of.live) as f64 / held as f64,
        };
        let ratios = told.iter().map(|stream| (stream.stream.to_string(), ratio(stream)));
        page.gauges("tailwater_broadcast_stream_tombstone_ratio", tombstoned, "stream", ratios)
    }
}

/// Listeners that share events with each other.
fn region(of: RegionSnapshot, page: &mut Page<'_>) -> fmt::Result {
    let members = "Listeners that share events with each other, connected here.";
    page.gauge("tailwater_broadcast_region_members", members, of.members as u64)?;
    let view = "Those of them that are told first of what is new.";
    page.gauge("tailwater_broadcast_region_view", view, of.view as u64)?;
    page.counter("tailwater_broadcast_region_requests", "Requests of such listeners.", of.requests)?;
    let dropped = "Requests left out: they waited too long, or were too many.";
    page.counter("tailwater_broadcast_region_requests_dropped", dropped, of.dropped)?;
    page.counter("tailwater_broadcast_region_events", "Events sent to such listeners.", of.events)?;
    page.counter("tailwater_broadcast_region_bytes", "Bytes of those, as messages.", of.bytes)
}
