//! `/metrics`, in Prometheus' text form: read from the parts' own counters when somebody asks.
//!
//! Labels are few: cells by name, never streams or clients.

use std::fmt::Write;

use crate::Shared;

/// One page of metrics.
pub(crate) fn render(shared: &Shared) -> String {
    let mut page = Page(String::with_capacity(8 << 10));
    page.gauge("tailwater_info", "Version of the program.", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);

    let log = shared.log.stats();
    page.counter("tailwater_log_appends_total", "Appends that were acknowledged.", &[], log.appends);
    page.counter(
        "tailwater_log_appends_failed_total",
        "Appends that were refused or lost.",
        &[],
        log.appends_failed,
    );
    page.counter(
        "tailwater_log_appends_lost_total",
        "Appends that were lost with a failed sync.",
        &[],
        log.appends_lost,
    );
    page.counter("tailwater_log_records_total", "Records that were acknowledged.", &[], log.records);
    page.counter("tailwater_log_entries_total", "Entries that became visible to readers.", &[], log.entries);
    page.counter("tailwater_log_entry_bytes_total", "Bytes of those entries.", &[], log.entry_bytes);
    page.gauge(
        "tailwater_log_in_flight_bytes",
        "Bytes of appends that wait for their answer.",
        &[],
        log.in_flight_bytes as f64,
    );
    let streams = shared.log.list_streams();
    let shards: u32 = streams.iter().map(|stream| stream.config.shards).sum();
    page.gauge("tailwater_log_streams", "Streams.", &[], streams.len() as f64);
    page.gauge("tailwater_log_shards", "Shards of all streams.", &[], f64::from(shards));

    let journal = shared.log.journal().stats();
    page.counter("tailwater_journal_records_total", "Records that the journal took.", &[], journal.records);
    page.counter("tailwater_journal_bytes_total", "Bytes that it wrote.", &[], journal.bytes);
    page.counter("tailwater_journal_groups_total", "Writes that carried them.", &[], journal.groups);
    page.counter("tailwater_journal_failures_total", "Writes and syncs that failed.", &[], journal.failures);
    for quantile in [0.5, 0.99] {
        let label = [("quantile", if quantile == 0.5 { "0.5" } else { "0.99" })];
        let seconds = journal.sync_times.quantile(quantile).as_secs_f64();
        page.gauge("tailwater_journal_sync_seconds", "Time that a sync took.", &label, seconds);
    }

    let tail = shared.log.tail_writer().stats();
    page.counter(
        "tailwater_tail_chunks_written_total",
        "Chunks written to the data cell.",
        &[],
        tail.chunks_written,
    );
    page.counter(
        "tailwater_tail_chunk_bytes_written_total",
        "Bytes of those chunks.",
        &[],
        tail.chunk_bytes_written,
    );
    page.counter(
        "tailwater_tail_rounds_failed_total",
        "Chunk writes that the data cell did not acknowledge.",
        &[],
        tail.rounds_failed,
    );
    page.counter(
        "tailwater_tail_pages_published_total",
        "Tail pages written to the metadata cell.",
        &[],
        tail.pages_published,
    );
    page.counter(
        "tailwater_tail_publishes_failed_total",
        "Tail pages that it did not acknowledge.",
        &[],
        tail.publishes_failed,
    );
    page.counter(
        "tailwater_tail_jumps_total",
        "Times that a cached stream jumped over bytes.",
        &[],
        tail.jumps,
    );

    for cell in shared.cells() {
        let view = cell.view();
        let label = [("cell", view.name.as_str())];
        page.gauge(
            "tailwater_cell_backends_live",
            "Backends the node is connected to.",
            &label,
            view.live as f64,
        );
        if let Some(own) = &cell.own {
            let stats = own.backend().stats();
            page.gauge(
                "tailwater_backend_entries",
                "Values in the node's own backend.",
                &label,
                stats.entries as f64,
            );
            page.counter("tailwater_backend_sets_total", "SETs that were applied.", &label, stats.sets);
            page.counter(
                "tailwater_backend_evictions_total",
                "Values evicted for room.",
                &label,
                stats.evicted,
            );
            page.counter(
                "tailwater_backend_expirations_total",
                "Values that expired.",
                &label,
                stats.expired,
            );
        }
    }
    page.gauge("tailwater_connections", "Connections of clients.", &[], shared.server.connections() as f64);
    page.0
}

struct Page(String);

impl Page {
    fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.sample("counter", name, help, labels, value as f64);
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.sample("gauge", name, help, labels, value);
    }

    fn sample(&mut self, kind: &str, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        // A metric with several label values is introduced once.
        if !self.0.contains(&format!("# TYPE {name} ")) {
            let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}
