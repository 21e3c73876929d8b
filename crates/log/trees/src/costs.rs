//! The file of costs, as it is written: clusters, and the links between them. Only its form is checked here;
//! `graph.rs` checks the rest.

use serde::{Deserialize, Serialize};

use crate::error::PlanError;

/// A file of costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeCosts {
    /// Every cluster that may have a copy.
    #[serde(rename = "cluster")]
    pub clusters: Vec<ClusterEntry>,
    /// The links between them.
    #[serde(rename = "link", default)]
    pub links: Vec<LinkEntry>,
}

/// One cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterEntry {
    /// Its name.
    pub name: String,
    /// It has an outage. It forwards nothing as long as another way leads to every cluster.
    #[serde(default)]
    pub failing: bool,
    /// It has not caught up yet. It forwards nothing, and gets its bytes at a limited rate.
    #[serde(default)]
    pub new: bool,
    /// Bytes per second that it gets while it is new, of both operations together. By default
    /// [`NEW_CLUSTER_BYTES_PER_S`](crate::limits::NEW_CLUSTER_BYTES_PER_S).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes_per_s: Option<u64>,
}

/// One link, the same in both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkEntry {
    /// Names of its two ends.
    pub between: [String; 2],
    /// What 10^9 bytes over it cost, in any currency, the same for all links. Millionths are kept.
    pub cost_per_gb: f64,
    /// From one end to the other, in milliseconds. Microseconds are kept.
    pub delay_ms: f64,
    /// Bytes per second that it carries. By default as many as come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_s: Option<u64>,
    /// It has an outage. It is used only where nothing else leads to a cluster.
    #[serde(default)]
    pub failing: bool,
}

impl TreeCosts {
    /// Reads TOML: `[[cluster]]` and `[[link]]`.
    ///
    /// # Errors
    /// [`PlanError::Format`], with the line that is wrong.
    pub fn from_toml(text: &str) -> Result<Self, PlanError> {
        toml::from_str(text).map_err(|error| PlanError::Format(error.to_string().trim_end().to_owned()))
    }

    /// Reads JSON: an object with the arrays `cluster` and `link`.
    ///
    /// # Errors
    /// [`PlanError::Format`], with the line that is wrong.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        serde_json::from_str(text).map_err(|error| PlanError::Format(error.to_string()))
    }
}
