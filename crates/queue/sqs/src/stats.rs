//! Counters, always on.

use std::sync::atomic::{AtomicU64, Ordering};

/// The actions that are counted, each by itself.
pub const ACTIONS: [&str; 25] = [
    "AddPermission",
    "CancelMessageMoveTask",
    "ChangeMessageVisibility",
    "ChangeMessageVisibilityBatch",
    "CreateQueue",
    "DeleteMessage",
    "DeleteMessageBatch",
    "DeleteQueue",
    "GetCallerIdentity",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "ListMessageMoveTasks",
    "ListQueueTags",
    "ListQueues",
    "PeekMessages",
    "PurgeQueue",
    "ReceiveMessage",
    "RemovePermission",
    "SendMessage",
    "SendMessageBatch",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
];

/// What came and went. Each counter stands for itself, so all accesses are relaxed.
#[derive(Debug, Default)]
pub struct Stats {
    pub(crate) connections: AtomicU64,
    requests: [AtomicU64; ACTIONS.len()],
    pub(crate) refused: AtomicU64,
    pub(crate) throttled: AtomicU64,
    pub(crate) request_bytes: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Debug)]
pub struct SqsStatsRead {
    /// Connections that are open.
    pub connections: u64,
    /// Requests by action, in the order of their names.
    pub requests: Vec<(&'static str, u64)>,
    /// Requests answered with an error.
    pub refused: u64,
    /// Of these, because an account's quota was used up.
    pub throttled: u64,
    /// Bytes of requests' bodies.
    pub request_bytes: u64,
    /// Room that large answers take at the moment, in bytes.
    pub answer_bytes: u64,
}

impl Stats {
    pub(crate) fn count(&self, action: &str) {
        if let Ok(at) = ACTIONS.binary_search(&action) {
            self.requests[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads the counters, beside what answers take at the moment.
    pub(crate) fn read(&self, answer_bytes: u64) -> SqsStatsRead {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SqsStatsRead {
            connections: load(&self.connections),
            requests: ACTIONS
                .iter()
                .zip(&self.requests)
                .map(|(action, count)| (*action, load(count)))
                .collect(),
            refused: load(&self.refused),
            throttled: load(&self.throttled),
            request_bytes: load(&self.request_bytes),
            answer_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_sorted_and_each_is_counted() {
        assert!(ACTIONS.is_sorted());
        let stats = Stats::default();
        stats.count("UntagQueue");
        stats.count("no action");
        assert_eq!(stats.read(0).requests.last(), Some(&("UntagQueue", 1)));
    }
}
