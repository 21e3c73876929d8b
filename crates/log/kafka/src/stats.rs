//! What is counted, always. Each counter stands for itself, so all accesses are relaxed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tailwater_env::Instant;

use crate::api::Api;

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Stats {
    requests: RequestStats,
    connections: AtomicU64,
    connections_refused: AtomicU64,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    records_appended: AtomicU64,
    bytes_appended: AtomicU64,
    appends_refused: AtomicU64,
    bytes_hot: AtomicU64,
    bytes_durable: AtomicU64,
}

/// By API.
#[derive(Debug)]
struct RequestStats([AtomicU64; Api::ALL.len()]);

impl Default for RequestStats {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::default()))
    }
}

/// The counters, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsRead {
    /// Requests by API.
    pub requests: Vec<(&'static str, u64)>,
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were closed for what came over them.
    pub connections_refused: u64,
    /// Bytes of requests.
    pub request_bytes: u64,
    /// Bytes of answers.
    pub response_bytes: u64,
    /// Records that were acknowledged.
    pub records_appended: u64,
    /// Bytes of their batches.
    pub bytes_appended: u64,
    /// Partitions' batches that were refused.
    pub appends_refused: u64,
    /// Bytes fetched from memory.
    pub bytes_hot: u64,
    /// Bytes fetched from the durable layer.
    pub bytes_durable: u64,
}

/// A request being answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApiCall {
    api: Api,
    begun: Instant,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Stats {
    pub(crate) fn request(&self, api: Api, bytes: u64, begun: Instant) -> ApiCall {
        let index = Api::ALL.iter().position(|known| *known == api).expect("it is one of all");
        add(&self.requests.0[index], 1);
        add(&self.request_bytes, bytes);
        ApiCall { api, begun }
    }

    pub(crate) fn answered(&self, call: ApiCall, now: Instant) {
        let took: Duration = now.since(call.begun);
        tracing::trace!(api = call.api.name(), ?took, "answered");
    }

    pub(crate) fn connection_opened(&self) {
        add(&self.connections, 1);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_refused(&self) {
        add(&self.connections_refused, 1);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        add(&self.response_bytes, bytes);
    }

    pub(crate) fn appended(&self, records: u64, bytes: u64) {
        add(&self.records_appended, records);
        add(&self.bytes_appended, bytes);
    }

    pub(crate) fn append_refused(&self) {
        add(&self.appends_refused, 1);
    }

    pub(crate) fn fetched(&self, hot: u64, durable: u64) {
        add(&self.bytes_hot, hot);
        add(&self.bytes_durable, durable);
    }

    /// The counters at this moment.
    pub fn read(&self) -> StatsRead {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StatsRead {
            requests: Api::ALL
                .iter()
                .zip(&self.requests.0)
                .map(|(api, count)| (api.name(), of(count)))
                .collect(),
            connections: of(&self.connections),
            connections_refused: of(&self.connections_refused),
            request_bytes: of(&self.request_bytes),
            response_bytes: of(&self.response_bytes),
            records_appended: of(&self.records_appended),
            bytes_appended: of(&self.bytes_appended),
            appends_refused: of(&self.appends_refused),
            bytes_hot: of(&self.bytes_hot),
            bytes_durable: of(&self.bytes_durable),
        }
    }
}
