//! The replica of the region's broadcast proxy.

use std::fmt;
use std::time::Duration;

use tailwater_broadcast_server::disk::DiskStats;
use tailwater_broadcast_server::{RegionSnapshot, Snapshot, StreamSnapshot};

use super::meters::times_of_syncs;
use super::{MetricsPage, TimesRead};
use crate::NodeShared;
use crate::api::BridgeView;
use crate::bridge::Bridges;

/// Name, help, and what it is.
type StreamGauge = (&'static str, &'static str, fn(&StreamSnapshot) -> u64);

/// What the replica says, asked before the page is written; nothing if there is none.
pub(super) struct BroadcastsRead {
    snapshot: Option<Snapshot>,
    /// Batches that waited for a quota, and requests that were refused for one.
    throttled: (u64, u64),
    bridges: Vec<BridgeView>,
    streams_told_max: usize,
}

impl BroadcastsRead {
    pub(super) async fn of(shared: &NodeShared) -> Self {
        let snapshot = match &shared.broadcast {
            Some(broadcast) => broadcast.snapshot().await,
            None => None,
        };
        let throttled = shared.broadcast.as_ref().map_or((0, 0), |broadcast| broadcast.throttled());
        let bridges = shared.bridges.lock().as_ref().map(Bridges::views).unwrap_or_default();
        Self { snapshot, throttled, bridges, streams_told_max: shared.streams_told_max }
    }

    pub(super) fn tell(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
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
        let place = read.place as u64;
        page.gauge(
            "tailwater_broadcast_chain_place",
            "Its place there from 1, 0 if it is no member.",
            place,
        )?;
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
        let followed = "Events that came down the chain, from the replica before this one.";
        page.counter("tailwater_broadcast_followed", followed, counters.followed)?;
        page.counter("tailwater_broadcast_remote", "Events that came from other regions.", counters.remote)?;
        let moved = "Times that a stream of another region was subscribed to at another proxy.";
        page.counter("tailwater_broadcast_moved", moved, counters.moved)?;
        let gaps = "Batches that did not continue what was there, and were left out.";
        page.counter("tailwater_broadcast_gaps", gaps, counters.gaps)?;
        let left_out = "Times that a stream was left out, as there were too many.";
        let times = counters.left_out + read.region.left_out;
        page.counter("tailwater_broadcast_streams_left_out", left_out, times)?;
        let removed = "Events that retention removed and nothing had collected.";
        page.counter("tailwater_broadcast_removed", removed, counters.removed)?;
        let held_back = "Events that publishers were answered later, as most listeners lagged.";
        page.counter("tailwater_broadcast_held_back", held_back, counters.held_back)?;
        if let Some(disk) = &read.disk {
            disk_of(disk, page)?;
        }
        let delayed = "Batches that waited for a quota of [broadcast.quotas].";
        page.counter("tailwater_broadcast_publishes_delayed", delayed, self.throttled.0)?;
        let throttled = "Requests over HTTP that were refused because their address's quota was used up.";
        page.counter("tailwater_broadcast_requests_throttled", throttled, self.throttled.1)?;
        delays(read, page)?;
        self.bridges(page)?;
        region(read.region, page)?;
        self.streams(&read.streams, page)
    }

    fn bridges(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let of = |read_one: fn(&BridgeView) -> u64| {
            self.bridges
                .iter()
                .map(move |bridge| (format!("{}>{}", bridge.from, bridge.to), read_one(bridge)))
        };
        let help = "Records or events that bridges carried.";
        page.counters("tailwater_bridge_carried", help, "bridge", of(|of| of.carried))?;
        let help = "Those of them that were too large, and of which something was left out.";
        page.counters("tailwater_bridge_omitted", help, "bridge", of(|of| of.omitted))?;
        let help = "Times that retention of a broadcast stream removed events before they were carried.";
        page.counters("tailwater_bridge_removed", help, "bridge", of(|of| of.removed))?;
        let help = "Times that a bridge could not go on.";
        page.counters("tailwater_bridge_errors", help, "bridge", of(|of| of.errors))?;
        let help = "Records or events that a bridge has before it.";
        let known = |bridge: &BridgeView| Some((format!("{}>{}", bridge.from, bridge.to), bridge.lag?));
        page.gauges("tailwater_bridge_lag", help, "bridge", self.bridges.iter().filter_map(known))
    }

    fn streams(&self, streams: &[StreamSnapshot], page: &mut MetricsPage<'_>) -> fmt::Result {
        page.gauge("tailwater_broadcast_streams", "Streams of all regions.", streams.len() as u64)?;
        let told = &streams[..streams.len().min(self.streams_told_max)];
        let of = |read_one: fn(&StreamSnapshot) -> u64| {
            told.iter().map(move |stream| (stream.stream.to_string(), read_one(stream)))
        };
        let gauges: [StreamGauge; 7] = [
            ("tailwater_broadcast_stream_last", "Number of the last event that it has.", |of| of.last),
            ("tailwater_broadcast_stream_held", "Number of the last event that all replicas hold.", |of| {
                of.held
            }),
            (
                "tailwater_broadcast_stream_held_back",
                "Events that all replicas hold and whose publishers' answers wait for listeners.",
                |of| of.held_back,
            ),
            ("tailwater_broadcast_stream_live", "Events that are not collected.", |of| of.live),
            ("tailwater_broadcast_stream_stored", "Events in memory, some of them collected.", |of| {
                of.stored
            }),
            ("tailwater_broadcast_stream_bytes", "Bytes of those.", |of| of.bytes),
            (
                "tailwater_broadcast_stream_predicates",
                "Predicates that are being applied to all events.",
                |of| of.predicates,
            ),
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

fn disk_of(disk: &DiskStats, page: &mut MetricsPage<'_>) -> fmt::Result {
    let bytes = "Bytes of the checkpoint and of the journal's files, those ready to be written included.";
    page.gauge("tailwater_broadcast_disk_bytes", bytes, disk.bytes)?;
    page.counter("tailwater_broadcast_checkpoints", "Checkpoints written.", disk.checkpoints)?;
    let failed = "Attempts at a checkpoint that failed.";
    page.counter("tailwater_broadcast_checkpoints_failed", failed, disk.checkpoints_failed)?;
    let loaded = "Events that were on disk when the node started, collected ones not counted.";
    page.gauge("tailwater_broadcast_loaded", loaded, disk.loaded)?;
    let waiting = "Records that the journal of broadcasts could not take yet.";
    page.gauge("tailwater_broadcast_journal_waiting", waiting, disk.waiting)?;
    let journal = &disk.journal;
    let records = "Records that the journal of broadcasts took.";
    page.counter("tailwater_broadcast_journal_records", records, journal.records)?;
    page.counter("tailwater_broadcast_journal_bytes", "Bytes that it wrote.", journal.bytes)?;
    page.counter("tailwater_broadcast_journal_failures", "Writes and syncs that failed.", journal.failures)?;
    let times = times_of_syncs(&journal.sync_times);
    page.histogram("tailwater_broadcast_journal_sync_seconds", "Time that a sync of it took.", &times)
}

fn delays(read: &Snapshot, page: &mut MetricsPage<'_>) -> fmt::Result {
    let of = read.delays.iter().map(|(region, delays)| {
        let seconds = |end: Option<u64>| end.map_or(f64::INFINITY, |ms| ms as f64 / 1e3);
        let buckets = delays.buckets().map(|(end, count)| (seconds(end), count)).collect();
        (region.clone(), TimesRead { buckets, sum: Duration::from_millis(delays.sum_ms()) })
    });
    let help = "From an event's time, given at its head, until it was known here that all replicas of this region hold it.";
    page.histograms("tailwater_broadcast_delay_seconds", help, "region", of)
}

/// Listeners that share events with each other.
fn region(of: RegionSnapshot, page: &mut MetricsPage<'_>) -> fmt::Result {
    let members = "Listeners that share events with each other, connected here.";
    page.gauge("tailwater_broadcast_region_members", members, of.members as u64)?;
    let view = "Those of them that are told first of what is new.";
    page.gauge("tailwater_broadcast_region_view", view, of.view as u64)?;
    let standing = "Requests of such listeners that stand: they are sent what comes.";
    page.gauge("tailwater_broadcast_region_standing", standing, of.standing as u64)?;
    page.counter("tailwater_broadcast_region_requests", "Requests of such listeners.", of.requests)?;
    let dropped = "Requests left out: they waited too long, or were too many.";
    page.counter("tailwater_broadcast_region_requests_dropped", dropped, of.dropped)?;
    page.counter("tailwater_broadcast_region_events", "Events sent to such listeners.", of.events)?;
    page.counter("tailwater_broadcast_region_bytes", "Bytes of those, as messages.", of.bytes)
}
