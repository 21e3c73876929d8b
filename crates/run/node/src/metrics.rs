//! `/metrics`, in OpenMetrics' text form, which Prometheus reads: put together from the parts' own counters when
//! somebody asks. `docs/metrics.md` lists what there is.
//!
//! Labels are few: cells and methods by name, and streams and groups up to a configured number of them; never
//! clients.

mod broadcasts;
mod groups;
mod meters;
mod process;
mod queues;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tailwater_cache::{BackendStats, CellStats};
use tailwater_copy::{CrewView, WorkerView};
use tailwater_env::TimesRead;
use tailwater_format::call::{CopyHop, Method};
use tailwater_format::{ShardId, StreamId};
use tailwater_permissions::Audit;
use tailwater_tail::window::WindowStats;

use crate::NodeShared;
use broadcasts::BroadcastsRead;
use groups::GroupMetrics;
pub use meters::Meters;
use meters::times_of_syncs;
use process::ProcessMetrics;
use queues::QueuesRead;

/// What an answer with a page of metrics says that it is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One page of metrics.
pub(crate) async fn render(shared: &Arc<NodeShared>) -> String {
    let mut registry = Registry::default();
    let groups = GroupMetrics::read(shared).await;
    let queues = QueuesRead::of(shared).await;
    let broadcasts = BroadcastsRead::of(shared).await;
    let backends = shared.created.own_stats().await;
    let cells = shared.created.client_stats().await;
    let shared = Arc::clone(shared);
    registry.register_collector(Box::new(MetricParts {
        shared,
        groups,
        queues,
        broadcasts,
        backends,
        cells,
    }));
    let mut page = String::with_capacity(16 << 10);
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("a string takes everything");
    page
}

/// Reads everything when it is asked to.
struct MetricParts {
    shared: Arc<NodeShared>,
    groups: GroupMetrics,
    queues: QueuesRead,
    broadcasts: BroadcastsRead,
    /// The node's own backends of cells that were created, by their cell.
    backends: Vec<(String, BackendStats)>,
    /// What the node's client of each of them counted.
    cells: Vec<(String, CellStats)>,
}

impl fmt::Debug for MetricParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("node", &self.shared.id).finish_non_exhaustive()
    }
}

impl Collector for MetricParts {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (shared, mut page) = (&*self.shared, MetricsPage(encoder));
        node(shared, &mut page)?;
        window(shared, &mut page)?;
        process(&mut page)?;
        log(shared, &mut page)?;
        journal_and_store(shared, &mut page)?;
        ledgers(shared, &mut page)?;
        cold(shared, &mut page)?;
        tail(shared, &mut page)?;
        cells(shared, &mut page)?;
        refills(shared, &self.backends, &mut page)?;
        cell_clients(shared, &self.cells, &mut page)?;
        calls(shared, &mut page)?;
        tls(shared, &mut page)?;
        logins(shared, &mut page)?;
        access(shared, &mut page)?;
        quotas(shared, &mut page)?;
        kafka(shared, &mut page)?;
        self.groups.tell(&mut page)?;
        queues::sqs(shared, &mut page)?;
        memcached(shared, &mut page)?;
        queues::queues(&self.queues, &mut page)?;
        self.broadcasts.tell(&mut page)?;
        copies(shared, &mut page)?;
        streams(shared, &mut page)
    }
}

/// The hops that end here: there is one for each stream that is copied here, up to as many as streams are told of.
fn copies(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let sessions = "Copies that other clusters make from here.";
    page.gauge("tailwater_copy_sessions", sessions, shared.copies.sessions() as u64)?;
    let log = shared.log.stats();
    let read = "Bytes of entries that were read for copies in other clusters: in memory as they came, or from the store.";
    let bytes = [("memory", log.copied_memory_bytes), ("store", log.copied_store_bytes)];
    let bytes = bytes.into_iter().map(|(from, bytes)| (from.to_owned(), bytes));
    page.counters("tailwater_copy_read_bytes", read, "from", bytes)?;
    let mut hops = shared.copies.hops();
    hops.sort_by(|(a, _), (b, _)| a.cmp(b));
    let copying = hops.iter().filter(|(_, hop)| hop.is_copying).count() as u64;
    page.gauge("tailwater_copy_hops", "Streams that are to be copied here.", hops.len() as u64)?;
    page.gauge("tailwater_copy_hops_copying", "Those of them that are.", copying)?;
    hops.truncate(shared.streams_told_max);
    let of = |read: fn(&CopyHop) -> u64| hops.iter().map(move |(stream, hop)| (stream.clone(), read(hop)));
    let behind = "Records that the cluster above has and this one has not.";
    page.gauges("tailwater_copy_behind_records", behind, "stream", of(|hop| hop.behind_records))?;
    page.gauges("tailwater_copy_behind_bytes", "Bytes of them.", "stream", of(|hop| hop.behind_bytes))?;
    let waiting = "Shards that are not copied for now, while others of their stream are.";
    page.gauges("tailwater_copy_waiting_shards", waiting, "stream", of(|hop| hop.waiting_shards.into()))?;
    page.counters(
        "tailwater_copy_records",
        "Records that were copied here.",
        "stream",
        of(|hop| hop.records),
    )?;
    page.counters("tailwater_copy_bytes", "Bytes of their entries.", "stream", of(|hop| hop.bytes))?;
    let opened = "Sessions that were opened: one, and one more after each interruption.";
    page.counters("tailwater_copy_sessions_opened", opened, "stream", of(|hop| hop.sessions))?;
    let delay = "From the timestamp of the last record that was copied here until it was durable here.";
    let delays = hops.iter().filter_map(|(stream, hop)| Some((stream.clone(), hop.delay_ms? as f64 / 1e3)));
    page.gauges("tailwater_copy_delay_seconds", delay, "stream", delays)?;
    crew(shared, page)
}

/// Who copies.
fn crew(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let CrewView { workers, operations, counts } = shared.copies.crew();
    let in_state = |of: &str| operations.iter().filter(|operation| operation.state == of).count() as u64;
    let states = ["flows", "moves", "waits"].map(|state| (state.to_owned(), in_state(state)));
    let told = "Operations that copy parts of streams here, by state.";
    page.gauges("tailwater_copy_operations", told, "state", states.into_iter())?;
    // The node itself has no name.
    let of = |read: fn(&WorkerView) -> u64| {
        let workers = workers.iter().filter(|worker| !worker.name.is_empty());
        workers.map(move |worker| (worker.name.clone(), read(worker)))
    };
    let told = "Operations that a worker is to run.";
    page.gauges("tailwater_copy_worker_operations", told, "worker", of(|worker| worker.operations))?;
    let told = "Bytes a second that a worker copies.";
    page.gauges("tailwater_copy_worker_bytes_per_second", told, "worker", of(|worker| worker.bytes_per_s))?;
    let told = "1 if a worker is slow beside the others, and gets nothing.";
    page.gauges(
        "tailwater_copy_worker_slow",
        told,
        "worker",
        of(|worker| u64::from(worker.state == "slow")),
    )?;
    let told = "Operations that were moved from workers that live.";
    page.counter("tailwater_copy_operations_moved", told, counts.moved)?;
    let told = "Those of them that were moved to restore balance.";
    page.counter("tailwater_copy_operations_shed", told, counts.shed)?;
    let told = "Operations that got another worker as theirs had died.";
    page.counter("tailwater_copy_operations_displaced", told, counts.displaced)?;
    page.counter("tailwater_copy_workers_dead", "Workers that were found dead.", counts.dead)?;
    page.counter("tailwater_copy_workers_slow", "Workers that were found slow.", counts.slow)
}

fn node(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    build(page)?;
    let ready = shared.log.health().is_ok();
    page.gauge("tailwater_ready", "1 if the log takes appends, as /readyz says.", u64::from(ready))?;
    let connections = shared.server.connections() as u64;
    page.gauge("tailwater_connections", "Connections of clients.", connections)
}

/// Which program runs.
pub(crate) fn build(page: &mut MetricsPage<'_>) -> fmt::Result {
    let build = [("version", env!("CARGO_PKG_VERSION"))];
    page.info("tailwater_build", "The program that runs.", &build)
}

fn memcached(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let Some(server) = &shared.memcached else { return Ok(()) };
    let stats = server.front().stats();
    let connections = "Connections of memcached's clients.";
    page.gauge("tailwater_memcached_connections", connections, stats.connections)?;
    let rejected = "Connections that found no room.";
    page.counter("tailwater_memcached_connections_refused", rejected, stats.rejected)?;
    let commands = stats.commands.iter().map(|(command, count)| ((*command).to_owned(), *count));
    page.counters("tailwater_memcached_commands", "Commands, and keys of gets.", "command", commands)?;
    let results = [("hit", stats.hits), ("miss", stats.misses), ("failed", stats.failed)];
    let results = results.into_iter().map(|(result, count)| (result.to_owned(), count));
    page.counters("tailwater_memcached_gets", "Keys that were got, by what came of it.", "result", results)?;
    let unknown = "Changes of which it is not known whether they came about.";
    page.counter("tailwater_memcached_unknown", unknown, stats.unknown)?;
    page.counter("tailwater_memcached_refused", "Commands answered with an error.", stats.refused)?;
    let failed = "Logins that failed.";
    page.counter("tailwater_memcached_logins_failed", failed, stats.logins_failed)?;
    page.counter("tailwater_memcached_received_bytes", "Bytes that came.", stats.received_bytes)?;
    page.counter("tailwater_memcached_sent_bytes", "Bytes that went.", stats.sent_bytes)
}

fn window(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let runs = *shared.window.lock();
    let up = "1 if the window's process runs, which reads the cells for others.";
    page.gauge("tailwater_window_up", up, u64::from(runs.is_some()))?;
    let WindowStats { readers, readers_fed, shards, publications, bytes } = runs.unwrap_or_default();
    page.gauge("tailwater_window_readers", "Processes that are connected to the window.", readers)?;
    page.gauge("tailwater_window_readers_fed", "Those of them that it reads for.", readers_fed)?;
    page.gauge("tailwater_window_shards", "Shards that the window reads for others.", shards)?;
    let woken = "Times that the window woke its readers, since its process began.";
    page.counter("tailwater_window_publications", woken, publications)?;
    page.counter("tailwater_window_bytes", "Bytes that it published, since its process began.", bytes)
}

/// What the operating system knows of this process.
pub(crate) fn process(page: &mut MetricsPage<'_>) -> fmt::Result {
    let process = ProcessMetrics::read();
    page.counter("process_cpu_seconds", "User and system CPU time.", process.cpu_seconds)?;
    page.gauge("process_resident_memory_bytes", "Resident memory, cells included.", process.resident_bytes)?;
    page.gauge("process_virtual_memory_bytes", "Address space.", process.virtual_bytes)?;
    page.gauge("process_open_fds", "File descriptors in use.", process.fds_open)?;
    if let Some(max) = process.fds_max {
        page.gauge("process_max_fds", "File descriptors allowed.", max)?;
    }
    page.gauge("process_threads", "Threads.", process.threads)?;
    page.gauge("process_start_time_seconds", "Start, since the epoch.", process.start_seconds)
}

fn log(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let log = shared.log.stats();
    page.counter("tailwater_log_appends", "Appends that were acknowledged.", log.appends)?;
    page.counter("tailwater_log_appends_failed", "Appends that were refused or lost.", log.appends_failed)?;
    page.counter("tailwater_log_appends_lost", "Appends lost with a failed sync.", log.appends_lost)?;
    page.counter("tailwater_log_records", "Records that were acknowledged.", log.records)?;
    page.counter("tailwater_log_entries", "Entries that became visible to readers.", log.entries)?;
    page.counter("tailwater_log_entry_bytes", "Bytes of those entries.", log.entry_bytes)?;
    let waiting = "Bytes of appends that wait for their answer.";
    page.gauge("tailwater_log_in_flight_bytes", waiting, log.in_flight_bytes)?;
    let hot = "Bytes of the newest entries that are kept in memory for two-sided readers.";
    page.gauge("tailwater_log_hot_bytes", hot, log.hot_bytes)?;
    let times = shared.meters.append_times.read();
    page.histogram("tailwater_append_seconds", "From an append's arrival to its acknowledgement.", &times)
}

fn journal_and_store(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let journal = shared.log.journal().stats();
    page.counter("tailwater_journal_records", "Records that the journal took.", journal.records)?;
    page.counter("tailwater_journal_bytes", "Bytes that it wrote.", journal.bytes)?;
    page.counter("tailwater_journal_groups", "Writes that carried them.", journal.groups)?;
    page.counter("tailwater_journal_failures", "Writes and syncs that failed.", journal.failures)?;
    page.gauge("tailwater_journal_files", "Files that hold records.", u64::from(journal.files))?;
    let times = times_of_syncs(&journal.sync_times);
    page.histogram("tailwater_journal_sync_seconds", "Time that a sync of the journal took.", &times)?;

    let store = shared.log.store().stats();
    let pending = "Bytes that are durable in the journal and not yet in segment files.";
    page.gauge("tailwater_store_pending_bytes", pending, store.pending_bytes)?;
    page.counter("tailwater_store_written_bytes", "Bytes written to segment files.", store.written_bytes)?;
    page.counter("tailwater_store_syncs", "Syncs of segment files.", store.syncs)?;
    let failed = "Rounds of writing and syncing segment files that failed.";
    page.counter("tailwater_store_rounds_failed", failed, store.rounds_failed)?;
    page.counter("tailwater_store_file_reads", "Reads that went to a segment file.", store.file_reads)?;
    if let Ok(free) = shared.env.disk().free_bytes(&shared.dir) {
        page.gauge("tailwater_disk_free_bytes", "Room left where the data directory is.", free)?;
    }
    Ok(())
}

/// Of a node whose segments are in ledgers.
fn ledgers(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let Some(stats) = shared.log.replicated_stats() else { return Ok(()) };
    let pending = "Bytes of entries that bookies have not acknowledged yet.";
    page.gauge("tailwater_ledger_pending_bytes", pending, stats.pending_bytes)?;
    page.counter("tailwater_ledger_entries", "Entries that bookies acknowledged.", stats.entries)?;
    let given_up = "Segments of which entries were given up: their ledger was fenced, or got no quorum.";
    page.counter("tailwater_ledger_given_up", given_up, stats.given_up)?;
    page.counter(
        "tailwater_ledger_entries_read",
        "Entries that were read from bookies.",
        stats.entries_read,
    )?;
    let batched = "Entries that were read from bookies together with others, with one request.";
    page.counter("tailwater_ledger_entries_batched", batched, stats.entries_batched)?;
    let bookies = "Bookies that take entries.";
    page.gauge("tailwater_ledger_bookies", bookies, u64::from(shared.log.places().unwrap_or(0)))?;
    let short = "Segments that were begun with fewer copies than their stream wants, as too few bookies took entries.";
    page.counter("tailwater_ledger_begun_short", short, stats.begun_short)?;
    let short = "Segments that take entries, with fewer copies at living bookies than their stream wants.";
    page.gauge("tailwater_ledger_short", short, stats.short)?;
    let unfinished = "Segments that have ended and whose ledgers are not closed or deleted yet.";
    page.gauge("tailwater_ledger_unfinished", unfinished, stats.unfinished)?;
    let swept = "Ledgers, whoever made them, that sweeps for what no record names have looked at.";
    page.counter("tailwater_ledger_swept", swept, stats.swept)?;
    let away = "Ledgers that no record named, and that sweeps have deleted.";
    page.counter("tailwater_ledger_swept_away", away, stats.swept_away)
}

/// Of a node that has cold storage.
fn cold(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let Some(stats) = shared.log.cold_stats() else { return Ok(()) };
    let up = "1 while cold storage does what it is asked, else 0.";
    page.gauge("tailwater_cold_up", up, u64::from(stats.trouble.is_none()))?;
    let copied = "Segments that were copied, read back and compared.";
    page.counter("tailwater_cold_segments_copied", copied, stats.segments_copied)?;
    page.counter("tailwater_cold_put_bytes", "Bytes put into cold storage.", stats.bytes_put)?;
    let waiting = "Completed segments that wait to be copied.";
    page.gauge("tailwater_cold_segments_waiting", waiting, stats.segments_waiting)?;
    let damaged = "Segments that can't be copied, as their bytes are not what was written.";
    page.gauge("tailwater_cold_segments_damaged", damaged, stats.segments_damaged)?;
    let failures = "Attempts to copy a segment, to remove copies or to look for them that failed.";
    page.counter("tailwater_cold_failures", failures, stats.failures)?;
    page.counter("tailwater_cold_read_bytes", "Bytes that readers were given from it.", stats.bytes_read)?;
    let failed = "Blocks and indexes that could not be had for readers.";
    page.counter("tailwater_cold_reads_failed", failed, stats.reads_failed)?;
    let removed = "Copies that were removed, as no record names them any more.";
    page.counter("tailwater_cold_copies_removed", removed, stats.copies_removed)?;
    let swept = "Folders of copies that no record named, and that were found and removed.";
    page.counter("tailwater_cold_copies_swept", swept, stats.copies_swept)?;
    let unknown = "Folders of streams that metadata say nothing of; they are left alone.";
    page.gauge("tailwater_cold_streams_unknown", unknown, stats.streams_unknown)
}

fn tail(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let tail = shared.log.tail_writer().stats();
    page.counter("tailwater_tail_chunks_written", "Chunks written to the data cell.", tail.chunks_written)?;
    let bytes = "Bytes of those chunks.";
    page.counter("tailwater_tail_chunk_bytes_written", bytes, tail.chunk_bytes_written)?;
    let failed = "Rounds of chunks that the data cell did not acknowledge.";
    page.counter("tailwater_tail_rounds_failed", failed, tail.rounds_failed)?;
    let published = "Tail pages written to the metadata cell.";
    page.counter("tailwater_tail_pages_published", published, tail.pages_published)?;
    let failed = "Tail pages that the metadata cell did not acknowledge.";
    page.counter("tailwater_tail_publishes_failed", failed, tail.publishes_failed)?;
    page.counter("tailwater_tail_jumps", "Times that a cached stream jumped over bytes.", tail.jumps)?;
    let refilled = "Bytes of the shards' ends that were brought back into the data cell after the start.";
    page.counter("tailwater_tail_refilled_bytes", refilled, tail.refilled_bytes)?;
    let times = shared.log.tail_writer().publish_times();
    let help =
        "From when an append was accepted until readers were told of it; the oldest of each publication.";
    page.histogram("tailwater_tail_publish_seconds", help, &times)?;
    let help = "From a record's timestamp until a consumer was given it, as clients tell.";
    page.histogram("tailwater_tail_delivery_seconds", help, &shared.meters.delivery_times.read())
}

fn cells(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let views: Vec<_> = shared.cells().map(|cell| cell.view()).collect();
    let live = views.iter().map(|view| (view.name.clone(), view.live as u64));
    page.gauges("tailwater_cell_backends_live", "Backends the node is connected to.", "cell", live)?;
    let configured = views.iter().map(|view| (view.name.clone(), view.backends.len() as u64));
    page.gauges("tailwater_cell_backends", "Backends of the cell.", "cell", configured)?;
    let moves =
        shared.cells().filter_map(|cell| Some((cell.view().name, cell.own.as_ref()?.backend().moves())));
    let help = "Places in memory that the node's own backend has left.";
    page.gauges("tailwater_backend_places_left", help, "cell", moves)?;

    let own: Vec<_> = shared
        .cells()
        .filter_map(|cell| {
            let own = cell.own.as_ref()?;
            Some((cell.view().name, own.backend().stats(), own))
        })
        .collect();
    let of =
        |read: fn(&BackendStats) -> u64| own.iter().map(move |(cell, stats, _)| (cell.clone(), read(stats)));
    let connections = own.iter().map(|(cell, _, own)| (cell.clone(), own.connections() as u64));
    let connected = "Connections of readers and writers to the node's own backend, the node's among them.";
    page.gauges("tailwater_backend_connections", connected, "cell", connections)?;
    page.gauges(
        "tailwater_backend_entries",
        "Values in the node's own backend.",
        "cell",
        of(|own| own.items),
    )?;
    let overflowed = of(|own| own.overflowed);
    page.gauges("tailwater_backend_overflowed", "Values that only a CALL finds.", "cell", overflowed)?;
    page.gauges("tailwater_backend_live_bytes", "Bytes of those values.", "cell", of(|own| own.live_bytes))?;
    let capacity = of(|own| own.capacity_bytes);
    page.gauges("tailwater_backend_capacity_bytes", "Bytes there is room for.", "cell", capacity)?;
    page.counters("tailwater_backend_sets", "SETs that were applied.", "cell", of(|own| own.sets))?;
    page.counters("tailwater_backend_evictions", "Values evicted for room.", "cell", of(|own| own.evicted))?;
    page.counters("tailwater_backend_expirations", "Values that expired.", "cell", of(|own| own.expired))?;
    let wakes = own.iter().map(|(cell, _, own)| (cell.clone(), own.doorbell_stats().wakes));
    page.counters("tailwater_backend_wakes", "Times that readers who waited were woken.", "cell", wakes)?;
    let woken = own.iter().map(|(cell, _, own)| (cell.clone(), own.doorbell_stats().woken));
    page.counters("tailwater_backend_woken", "Readers' processes that were woken.", "cell", woken)
}

/// What the node did as a client of its cells.
fn cell_clients(
    shared: &NodeShared,
    created: &[(String, CellStats)],
    page: &mut MetricsPage<'_>,
) -> fmt::Result {
    let of_log = shared.cells().map(|cell| (cell.view().name, cell.cell.stats()));
    let all: Vec<(String, CellStats)> = of_log.chain(created.iter().cloned()).collect();
    type Count = fn(&CellStats) -> u64;
    let series: [(&str, &str, Count); 5] = [
        ("sets", "SETs and ERASEs that a quorum acknowledged.", |of| of.sets),
        ("set_failures", "SETs and ERASEs that no quorum acknowledged.", |of| of.set_failures),
        ("updates", "Updates that came about, or changed nothing.", |of| of.updates),
        ("update_retries", "Times that an update met another one of its key.", |of| of.update_retries),
        ("update_failures", "Updates that came to nothing, or of which nothing is known.", |of| {
            of.update_failures + of.updates_unknown
        }),
    ];
    for (name, help, read) in series {
        let values = all.iter().map(|(cell, stats)| (cell.clone(), read(stats)));
        page.counters(&format!("tailwater_cell_{name}"), help, "cell", values)?;
    }
    let lookups = all.iter().flat_map(|(cell, stats)| {
        let series = stats.lookups().into_iter();
        series
            .map(|(operation, outcome, n)| ([cell.as_str(), operation, outcome.name()].map(str::to_owned), n))
    });
    let labels = ["cell", "operation", "outcome"];
    page.counters_by("tailwater_cell_lookups", "Keys that the node looked up.", labels, lookups)?;
    let retries = all.iter().flat_map(|(cell, stats)| {
        let series = stats.retries().into_iter();
        series.map(|(cause, n)| ([cell.as_str(), cause].map(str::to_owned), n))
    });
    let help = "Times that a key was looked up again, or at one more replica.";
    page.counters_by("tailwater_cell_lookup_retries", help, ["cell", "cause"], retries)
}

/// How far the node's own backends, those of each cell together, hold what they should.
fn refills(
    shared: &NodeShared,
    created: &[(String, BackendStats)],
    page: &mut MetricsPage<'_>,
) -> fmt::Result {
    let of_log =
        shared.cells().filter_map(|cell| Some((cell.view().name, cell.own.as_ref()?.backend().stats())));
    let mut cells: BTreeMap<String, Vec<BackendStats>> = BTreeMap::new();
    for (cell, stats) in of_log.chain(created.iter().cloned()) {
        cells.entry(cell).or_default().push(stats);
    }
    let of = |read: fn(&BackendStats) -> u64| {
        cells.iter().map(move |(cell, stats)| (cell.clone(), stats.iter().map(read).sum::<u64>()))
    };
    let unfilled = "Backends that do not know yet what they should hold.";
    let is_unfilled = |own: &BackendStats| u64::from(own.unfilled_buckets > 0);
    page.gauges("tailwater_backend_unfilled", unfilled, "cell", of(is_unfilled))?;
    let copied = "Values that were copied from other backends.";
    page.counters("tailwater_backend_copied", copied, "cell", of(|own| own.copied))?;
    let bytes = "Bytes that they were sent with.";
    page.counters("tailwater_backend_copied_bytes", bytes, "cell", of(|own| own.copied_bytes))?;
    let dirty = "Keys of which the last comparison with others found that something had been missed.";
    page.gauges("tailwater_backend_dirty", dirty, "cell", of(|own| own.dirty))?;
    let ages = cells.iter().filter_map(|(cell, stats)| {
        let age_ms = stats.iter().filter(|own| own.evicted > 0).map(|own| own.evicted_age_ms).min()?;
        Some((cell.clone(), age_ms as f64 / 1_000.0))
    });
    let age = "How long ago the value had been set that was evicted last, in seconds.";
    page.gauges("tailwater_backend_eviction_age_seconds", age, "cell", ages)?;
    let unused = cells.iter().filter_map(|(cell, stats)| {
        let unused_ms = stats.iter().filter(|own| own.evicted > 0).map(|own| own.evicted_unused_ms).min()?;
        Some((cell.clone(), unused_ms as f64 / 1_000.0))
    });
    let idle = "How long ago the value had been set or read that was evicted last, in seconds.";
    page.gauges("tailwater_backend_eviction_unused_seconds", idle, "cell", unused)?;
    let touches = "Times that clients told of a value that they had read it.";
    page.counters("tailwater_backend_touches", touches, "cell", of(|own| own.touches))?;
    let scans = "Times that a backend was compared with the others, from end to end.";
    page.counters("tailwater_backend_scans", scans, "cell", of(|own| own.scans))
}

fn calls(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let meters = &shared.meters;
    let of = |count: fn(&meters::CallMeter) -> u64| {
        Method::ALL.into_iter().map(move |method| (method.name().to_owned(), count(meters.of(method))))
    };
    let calls = of(|meter| meter.calls.load(Ordering::Relaxed));
    page.counters("tailwater_calls", "Calls that arrived.", "method", calls)?;
    let refused = of(|meter| meter.refused.load(Ordering::Relaxed));
    page.counters("tailwater_calls_refused", "Calls answered with an error.", "method", refused)?;
    let bytes = meters.durable_read_bytes.load(Ordering::Relaxed);
    page.counter("tailwater_durable_read_bytes", "Bytes that readers did not find in the cells.", bytes)?;
    let bytes = meters.catch_up.bytes.load(Ordering::Relaxed);
    page.counter("tailwater_catch_up_bytes", "Bytes of those that are far from their shard's end.", bytes)?;
    let waiting = "Reads of them that wait for their turn.";
    page.gauge("tailwater_catch_up_waiting", waiting, shared.turns.waiting() as u64)?;
    let refused = meters.catch_up.refused.load(Ordering::Relaxed);
    page.counter("tailwater_catch_up_refused", "Reads whose turn did not come in time.", refused)?;
    let waits = meters.catch_up.waits.read();
    page.histogram("tailwater_catch_up_wait_seconds", "How long such reads waited for their turn.", &waits)
}

fn tls(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let Some(certificates) = shared.gate.certificates() else { return Ok(()) };
    let left_s = (certificates.expires_ms() - shared.env.wall_ms()) / 1_000;
    let help = "Seconds until the node's certificate expires; negative once it has.";
    page.gauge("tailwater_tls_certificate_left_seconds", help, left_s)?;
    let stats = certificates.stats();
    page.counter("tailwater_tls_handshakes", "Connections that began in TLS.", stats.handshakes)?;
    let failed = "Connections that came to nothing because TLS could not be agreed on.";
    page.counter("tailwater_tls_handshakes_failed", failed, stats.failed)?;
    let reloads = "Times that changed files of certificates were taken.";
    page.counter("tailwater_tls_reloads", reloads, stats.reloads)?;
    let failed = "Times that files of certificates had changed and could not be used.";
    page.counter("tailwater_tls_reloads_failed", failed, stats.reloads_failed)
}

fn logins(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let stats = shared.identities.users.stats();
    page.counter("tailwater_logins", "Clients that have logged in as a user.", stats.logins)?;
    page.counter("tailwater_logins_refused", "Clients that could not log in.", stats.refused)
}

fn access(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let stats = shared.rules.stats();
    page.gauge("tailwater_access_rules", "Rules about who may do what.", stats.rules)?;
    let refused = "Requests that rules refuse, or would refuse if they were enforced.";
    page.counter("tailwater_access_refused", refused, stats.refused)?;
    let stats = shared.rules.audit().map(Audit::stats).unwrap_or_default();
    page.counter("tailwater_access_audit_events", "Events that are in the audit's file.", stats.written)?;
    let dropped = "Events that are not: too many came at once, or the disk took none.";
    page.counter("tailwater_access_audit_dropped", dropped, stats.dropped)?;
    let missed = "Events that are not in the audit's stream: too many came at once, or it took none.";
    page.counter("tailwater_access_audit_missed", missed, stats.missed)
}

fn quotas(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let stats = shared.quotas.stats();
    page.gauge("tailwater_quotas", "Quotas of users, clients and addresses.", stats.quotas)?;
    let exceeded = stats.exceeded.into_iter().map(|(bound, count)| (bound.to_owned(), count));
    let help = "Times that somebody was held, or refused, because of a quota.";
    page.counters("tailwater_quota_exceeded", help, "bound", exceeded)
}

fn kafka(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let Some(server) = &shared.kafka else { return Ok(()) };
    let stats = server.broker().stats().read();
    page.gauge("tailwater_kafka_connections", "Connections of Kafka's clients.", stats.connections)?;
    let refused = "Connections that were closed for what came over them.";
    page.counter("tailwater_kafka_connections_refused", refused, stats.connections_refused)?;
    let requests = stats.requests.iter().map(|(api, count)| ((*api).to_owned(), *count));
    page.counters("tailwater_kafka_requests", "Requests that arrived.", "api", requests)?;
    page.counter("tailwater_kafka_request_bytes", "Bytes of requests.", stats.request_bytes)?;
    page.counter("tailwater_kafka_response_bytes", "Bytes of answers.", stats.response_bytes)?;
    let appended = "Records acknowledged to Kafka's producers.";
    page.counter("tailwater_kafka_appended_records", appended, stats.records_appended)?;
    page.counter("tailwater_kafka_appended_bytes", "Bytes of their batches.", stats.bytes_appended)?;
    let refused = "Batches of Kafka's producers that were refused.";
    page.counter("tailwater_kafka_appends_refused", refused, stats.appends_refused)?;
    let fetched = [("memory".to_owned(), stats.bytes_hot), ("durable".to_owned(), stats.bytes_durable)];
    page.counters(
        "tailwater_kafka_fetched_bytes",
        "Bytes fetched, by where they were.",
        "from",
        fetched.into_iter(),
    )
}

/// What is told of one stream.
#[derive(Default)]
struct StreamFigures {
    appended_records: u64,
    appended_bytes: u64,
    records: u64,
    bytes: u64,
    uncached_bytes: u64,
    ahead_bytes: u64,
}

fn streams(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let streams = shared.log.list_streams();
    let ids: std::collections::BTreeSet<StreamId> = streams.iter().map(|stream| stream.id).collect();
    shared.meters.retain(|id| ids.contains(&id));
    let shards: u64 = streams.iter().map(|stream| u64::from(stream.config.shards)).sum();
    page.gauge("tailwater_log_streams", "Streams.", streams.len() as u64)?;
    page.gauge("tailwater_log_shards", "Shards of all streams.", shards)?;

    let damaged = "Shards that were not opened because bytes of them are missing.";
    page.gauge("tailwater_log_shards_damaged", damaged, shared.log.shards_damaged())?;

    let told = streams.len().min(shared.streams_told_max);
    let omitted = "Streams without series of their own: beyond metrics.streams_max, by name.";
    page.gauge("tailwater_streams_omitted", omitted, (streams.len() - told) as u64)?;
    let figures: Vec<(String, StreamFigures)> =
        streams.iter().take(told).map(|stream| (stream.name.clone(), figures(shared, stream))).collect();
    let of = |read: fn(&StreamFigures) -> u64| {
        figures.iter().map(move |(stream, figures)| (stream.clone(), read(figures)))
    };
    let name = "tailwater_stream_appended_records";
    page.counters(name, "Records acknowledged since the start.", "stream", of(|told| told.appended_records))?;
    let name = "tailwater_stream_appended_bytes";
    page.counters(name, "Bytes of their batches.", "stream", of(|told| told.appended_bytes))?;
    page.gauges("tailwater_stream_records", "Records that are kept.", "stream", of(|told| told.records))?;
    page.gauges("tailwater_stream_bytes", "Bytes of all segments.", "stream", of(|told| told.bytes))?;
    let name = "tailwater_stream_uncached_bytes";
    let help = "Durable bytes of the newest segments that are not in the data cell yet.";
    page.gauges(name, help, "stream", of(|told| told.uncached_bytes))?;
    let name = "tailwater_stream_ahead_bytes";
    let help = "Bytes of the newest segments of a copy that are in the data cell and not durable here yet.";
    page.gauges(name, help, "stream", of(|told| told.ahead_bytes))
}

fn figures(shared: &NodeShared, stream: &tailwater_log::LogStreamInfo) -> StreamFigures {
    let (appended_records, appended_bytes) = shared.meters.stream(stream.id);
    let mut figures = StreamFigures { appended_records, appended_bytes, ..StreamFigures::default() };
    // One that is deleted meanwhile has nothing.
    let Ok(description) = shared.log.describe(&stream.name) else { return figures };
    for shard in &description.shards {
        let id = ShardId { stream: description.stream.id, shard: shard.shard };
        let cached = shared.log.tail_writer().cached(id);
        figures.records += shard.tail.next_offset.0 - shard.tail.log_start.0;
        figures.bytes += shard.segments.iter().map(|segment| segment.length.0).sum::<u64>();
        figures.uncached_bytes += shard.tail.durable.0.saturating_sub(cached.0);
        figures.ahead_bytes += cached.0.saturating_sub(shard.tail.durable.0);
    }
    figures
}

/// A page that is being written.
pub(crate) struct MetricsPage<'a>(pub(crate) DescriptorEncoder<'a>);

impl MetricsPage<'_> {
    /// A counter; `_total` is put behind its name.
    pub(crate) fn counter<V>(&mut self, name: &str, help: &str, value: V) -> fmt::Result
    where
        V: prometheus_client::encoding::EncodeCounterValue,
    {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, V, f64>(&value, None)
    }

    pub(crate) fn gauge<V>(&mut self, name: &str, help: &str, value: V) -> fmt::Result
    where
        V: prometheus_client::encoding::EncodeGaugeValue,
    {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// A counter for each value of a label.
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (String, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (key, value) in values {
            let labels = [(label, key)];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, f64>(&value, None)?;
        }
        Ok(())
    }

    /// A counter for each combination of values of some labels.
    fn counters_by<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        values: impl Iterator<Item = ([String; N], u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (keys, value) in values {
            let mut keys = keys.into_iter();
            let labels = labels.map(|label| (label, keys.next().unwrap_or_default()));
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, f64>(&value, None)?;
        }
        Ok(())
    }

    /// A gauge for each value of a label.
    fn gauges<V>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (String, V)>,
    ) -> fmt::Result
    where
        V: prometheus_client::encoding::EncodeGaugeValue,
    {
        self.gauges_by(name, help, [label], values.map(|(key, value)| ([key], value)))
    }

    /// A gauge for each combination of values of some labels.
    fn gauges_by<V, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        values: impl Iterator<Item = ([String; N], V)>,
    ) -> fmt::Result
    where
        V: prometheus_client::encoding::EncodeGaugeValue,
    {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (keys, value) in values {
            let mut keys = keys.into_iter();
            let labels = labels.map(|label| (label, keys.next().unwrap_or_default()));
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A value for each set of labels.
    pub(crate) fn family(
        &mut self,
        name: &str,
        help: &str,
        is_counter: bool,
        values: impl Iterator<Item = (Vec<(&'static str, String)>, f64)>,
    ) -> fmt::Result {
        let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            let mut metric = family.encode_family(&labels)?;
            match is_counter {
                true => metric.encode_counter::<NoLabelSet, f64, f64>(&value, None)?,
                false => metric.encode_gauge(&value)?,
            }
        }
        Ok(())
    }

    /// Something that does not change, as labels of a series that is 1.
    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(&labels)
    }

    fn histogram(&mut self, name: &str, help: &str, times: &TimesRead) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let sum = times.sum.as_secs_f64();
        metric.encode_histogram::<NoLabelSet>(sum, times.count(), &times.buckets, None)
    }

    /// A histogram for each value of a label.
    fn histograms(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (String, TimesRead)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (key, times) in values {
            let (labels, sum) = ([(label, key)], times.sum.as_secs_f64());
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(sum, times.count(), &times.buckets, None)?;
        }
        Ok(())
    }
}
