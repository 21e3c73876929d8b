//! How groups behave, and what bounds them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{classic, consumer};

/// The `[kafka.groups]` section. The names in parentheses are what Kafka calls the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupsConfig {
    /// Groups, those included that only keep offsets; one more is refused.
    pub groups_max: usize,
    /// Members of a group (`group.max.size`).
    pub members_max: usize,
    /// Bytes that a group keeps of what its members say of themselves and of their assignments; what is counted is in
    /// `bounds.rs`.
    pub group_bytes_max: usize,
    /// Bytes of that of all groups together; beyond it nobody further is taken in.
    pub groups_bytes_max: usize,
    /// How long the first member of a group waits for others, in milliseconds (`group.initial.rebalance.delay.ms`).
    pub initial_rebalance_delay_ms: u64,
    /// Shortest session timeout that a member may ask for, in milliseconds (`group.min.session.timeout.ms`).
    pub session_timeout_min_ms: i32,
    /// Longest session timeout that a member may ask for, in milliseconds (`group.max.session.timeout.ms`).
    pub session_timeout_max_ms: i32,
    /// A member of a group of KIP-848 that is silent for so many milliseconds is out
    /// (`group.consumer.session.timeout.ms`).
    pub consumer_session_timeout_ms: u64,
    /// How often such members send heartbeats, in milliseconds (`group.consumer.heartbeat.interval.ms`).
    pub consumer_heartbeat_ms: u64,
    /// How long offsets are kept once their group is empty, in milliseconds (`offsets.retention.minutes`).
    pub offsets_retention_ms: u64,
    /// How often that is looked at, in milliseconds (`offsets.retention.check.interval.ms`).
    pub offsets_check_ms: u64,
    /// Bytes of what a client may put beside an offset (`offset.metadata.max.bytes`).
    pub offset_metadata_bytes_max: usize,
    /// Memory of all committed offsets together, in bytes; beyond it no further partitions are taken, nor longer texts
    /// beside offsets.
    pub offsets_bytes_max: usize,
}

impl Default for GroupsConfig {
    fn default() -> Self {
        Self {
            groups_max: 10_000,
            members_max: 1_000,
            group_bytes_max: 16 << 20,
            groups_bytes_max: 256 << 20,
            initial_rebalance_delay_ms: 3_000,
            session_timeout_min_ms: 6_000,
            session_timeout_max_ms: 1_800_000,
            consumer_session_timeout_ms: 45_000,
            consumer_heartbeat_ms: 5_000,
            offsets_retention_ms: 7 * 24 * 3_600_000,
            offsets_check_ms: 600_000,
            offset_metadata_bytes_max: 4_096,
            offsets_bytes_max: 256 << 20,
        }
    }
}

impl GroupsConfig {
    /// Whether every field lies in its bounds; if not, which one does not and what to do.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, given: u64, min: u64, max: u64| match (min..=max).contains(&given) {
            true => Ok(()),
            false => Err(format!("[kafka.groups] {name} = {given} is not between {min} and {max}")),
        };
        let positive = |ms: i32| u64::try_from(ms).unwrap_or(0);
        let (min, max) = (positive(self.session_timeout_min_ms), positive(self.session_timeout_max_ms));
        within("groups_max", self.groups_max as u64, 1, 1_000_000)?;
        within("members_max", self.members_max as u64, 1, 100_000)?;
        within("group_bytes_max", self.group_bytes_max as u64, 64 << 10, 1 << 30)?;
        within("groups_bytes_max", self.groups_bytes_max as u64, self.group_bytes_max as u64, 1 << 40)?;
        within("initial_rebalance_delay_ms", self.initial_rebalance_delay_ms, 0, 600_000)?;
        within("session_timeout_max_ms", max, 1, i32::MAX as u64)?;
        within("session_timeout_min_ms", min, 1, max)?;
        within("consumer_session_timeout_ms", self.consumer_session_timeout_ms, 1, 86_400_000)?;
        let session_ms = self.consumer_session_timeout_ms;
        within("consumer_heartbeat_ms", self.consumer_heartbeat_ms, 1, session_ms)?;
        within("offsets_retention_ms", self.offsets_retention_ms, 1, i64::MAX as u64)?;
        within("offsets_check_ms", self.offsets_check_ms, 10, 86_400_000)?;
        // Of 64 partitions as much as that has to fit into one value of metadata.
        within("offset_metadata_bytes_max", self.offset_metadata_bytes_max as u64, 0, 8 << 10)?;
        within("offsets_bytes_max", self.offsets_bytes_max as u64, 1 << 20, 1 << 40)
    }

    pub(crate) fn classic_limits(&self) -> classic::Limits {
        classic::Limits {
            session_ms: self.session_timeout_min_ms..=self.session_timeout_max_ms,
            initial_delay: Duration::from_millis(self.initial_rebalance_delay_ms),
            members_max: self.members_max,
            bytes_max: self.group_bytes_max,
        }
    }

    pub(crate) fn consumer_limits(&self) -> consumer::Limits {
        consumer::Limits {
            session: Duration::from_millis(self.consumer_session_timeout_ms),
            heartbeat: Duration::from_millis(self.consumer_heartbeat_ms),
            classic_session_ms: self.session_timeout_min_ms..=self.session_timeout_max_ms,
            members_max: self.members_max,
            bytes_max: self.group_bytes_max,
        }
    }
}
