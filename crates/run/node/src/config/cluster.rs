//! `[cluster]`.

use serde::{Deserialize, Serialize};

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

impl ClusterConfig {
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
