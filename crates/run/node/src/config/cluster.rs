//! `[cluster]`.

use serde::{Deserialize, Serialize};

/// The node among clusters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterConfig {
    /// The name of this cluster, which no other one has; empty is none: no stream is copied from here or to here.
    pub name: String,
}

impl ClusterConfig {
    /// The name, if there is one.
    pub(crate) fn given(&self) -> Option<&str> {
        Some(&*self.name).filter(|name| !name.is_empty())
    }
}
