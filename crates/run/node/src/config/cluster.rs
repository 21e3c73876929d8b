//! `[cluster]`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tailwater_copy::limits::LINK_BYTES_PER_S_MIN;

/// The node among clusters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterConfig {
    /// The name of this cluster, which no other one has; empty is none: no stream is copied from here or to here.
    pub name: String,
    /// The name of this node among those that share its metadata; empty is the host's.
    pub node: String,
    /// The name of the node that has embedded queues and broadcasts, where metadata is not in the data directory: no
    /// other one serves them.
    pub local_node: String,
    /// Which nodes that share metadata are active.
    pub active: ActiveNodes,
    /// Whether a group is one and the same in all clusters that have a stream, or each cluster's own.
    pub group_offsets: GroupSharing,
    /// What may be copied from other clusters, by their names, in bytes a second. From those that are not named it is
    /// copied as fast as it goes.
    pub link_bytes_per_s: BTreeMap<String, u64>,
}

/// Which of the nodes that share metadata are active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActiveNodes {
    /// One at a time: the others stand by.
    #[default]
    One,
    /// All: each owns a part of the shards and of the groups.
    All,
}

/// What becomes of what groups of Kafka's clients commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupSharing {
    /// It is brought to all clusters that have the stream and do so, too.
    #[default]
    Shared,
    /// It stays in this cluster, and what groups commit in others does not come here.
    Own,
}

impl ClusterConfig {
    /// Whether it makes sense.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let slow = self.link_bytes_per_s.iter().find(|(_, rate)| **rate < LINK_BYTES_PER_S_MIN);
        if let Some((name, rate)) = slow {
            anyhow::bail!(
                "[cluster] link_bytes_per_s has {rate} for {name:?}: at least {LINK_BYTES_PER_S_MIN}, or leave it out"
            );
        }
        Ok(())
    }

    /// The name of this node.
    pub(crate) fn node_name(&self) -> String {
        match &*self.node {
            "" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
            node => node.to_owned(),
        }
    }

    /// Whether all nodes are active.
    pub(crate) fn is_shared(&self) -> bool {
        self.active == ActiveNodes::All
    }

    /// The name, if there is one.
    pub(crate) fn given(&self) -> Option<&str> {
        Some(&*self.name).filter(|name| !name.is_empty())
    }
}
