//! `[queues]`.

use serde::{Deserialize, Serialize};
use tailwater_queue::{Consistency, SharedConfig};
use tailwater_queue_cassandra::CassandraConfig;

/// What a build without the driver says to whoever wants queues in Cassandra.
pub(crate) const NO_CASSANDRA: &str = "[queues] store = \"cassandra\", but this build has no Cassandra: `make dist` makes \
    target/dist/tailwater, which has it, as has one of `cargo build --release -p tailwater --features cassandra`; or use \
    \"embedded\"";

/// The queues.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueuesSection {
    /// Owner tasks, among which the accounts are divided.
    pub owners: usize,
    /// Bytes in the journal after which they are brought into the tree, so that a start need not replay more.
    pub checkpoint_bytes: u64,
    /// Where queues are.
    pub store: QueueStoreKind,
    /// In Cassandra: how many replicas have to answer for a queue that does not say.
    pub consistency: Consistency,
    /// In Cassandra: how far the clocks of any two nodes may be apart, in milliseconds.
    pub clock_skew_ms: u64,
    /// In Cassandra: over how many partitions a new queue's messages of the same time are spread.
    pub parts: u16,
    /// In Cassandra: pause between two looks for messages that are in no index, in milliseconds.
    pub sweep_ms: u64,
    /// Whether a minute has to be between two purges of a queue, and between its deletion and its name's next use.
    pub cooldowns: bool,
    /// In Cassandra: where that is.
    pub cassandra: CassandraConfig,
}

/// Where queues are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueStoreKind {
    /// In the node's journal and a tree beside it.
    #[default]
    Embedded,
    /// In Cassandra or ScyllaDB, for all nodes that use the same keyspace.
    Cassandra,
}

impl Default for QueuesSection {
    fn default() -> Self {
        let shared = SharedConfig::default();
        Self {
            owners: 1,
            checkpoint_bytes: 64 << 20,
            store: QueueStoreKind::default(),
            consistency: shared.consistency,
            clock_skew_ms: shared.skew_ms,
            parts: shared.parts,
            sweep_ms: shared.sweep_ms,
            cooldowns: shared.cooldowns,
            cassandra: CassandraConfig::default(),
        }
    }
}

impl QueuesSection {
    /// How queues in a shared store are used.
    #[cfg(feature = "cassandra")]
    pub(crate) fn shared(&self) -> SharedConfig {
        let Self { consistency, clock_skew_ms: skew_ms, parts, sweep_ms, cooldowns, .. } = *self;
        SharedConfig { consistency, skew_ms, parts, sweep_ms, cooldowns, ..SharedConfig::default() }
    }

    /// Whether queues can be where they should be, in a build that `has_cassandra` or not.
    fn check_store(&self, has_cassandra: bool) -> anyhow::Result<()> {
        anyhow::ensure!(has_cassandra || self.store != QueueStoreKind::Cassandra, NO_CASSANDRA);
        Ok(())
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            (1..=64).contains(&self.owners),
            "[queues] owners = {} is not between 1 and 64",
            self.owners
        );
        anyhow::ensure!(
            (4 << 20..=1 << 30).contains(&self.checkpoint_bytes),
            "[queues] checkpoint_bytes = {} is not between 4194304 and 1073741824",
            self.checkpoint_bytes
        );
        let parts_max = tailwater_queue::limits::PARTS_MAX;
        anyhow::ensure!(
            (1..=parts_max).contains(&self.parts),
            "[queues] parts = {} is not between 1 and {parts_max}",
            self.parts
        );
        anyhow::ensure!(
            self.clock_skew_ms <= 60_000,
            "[queues] clock_skew_ms = {} is more than 60000: synchronize the clocks",
            self.clock_skew_ms
        );
        anyhow::ensure!(
            (1_000..=86_400_000).contains(&self.sweep_ms),
            "[queues] sweep_ms = {} is not between 1000 and 86400000",
            self.sweep_ms
        );
        self.check_store(cfg!(feature = "cassandra"))?;
        self.cassandra.check().map_err(|why| anyhow::anyhow!(why))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_in_cassandra_are_refused_by_a_build_without_it_which_says_how_to_get_it() {
        let mut queues = QueuesSection::default();
        queues.check_store(false).expect("embedded");
        queues.store = QueueStoreKind::Cassandra;
        queues.check_store(true).expect("it has it");
        let error = queues.check_store(false).expect_err("refused").to_string();
        assert!(error.contains("make dist") && error.contains("--features cassandra"), "{error}");
    }
}
