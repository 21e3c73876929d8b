//! Every bound of this crate, each with its unit, its reason and its relation to the others.

/// Clusters of a file of costs. Copy trees are meant for a few hundred, and a plan takes more than their square.
pub const CLUSTERS_MAX: usize = 512;

/// Bytes of a file of costs: every link of [`CLUSTERS_MAX`] clusters, with some 120 bytes for each.
pub const COSTS_BYTES_MAX: usize = 16 << 20;

/// Bytes of a cluster's name.
pub const CLUSTER_NAME_BYTES_MAX: usize = 64;

/// Cost of a link for each GB, in whatever currency. The sum over all clusters, with every factor, fits 64 bits.
pub const COST_PER_GB_MAX: f64 = 1_000_000.0;

/// Delay of a link, in milliseconds: an hour.
pub const DELAY_MS_MAX: f64 = 3_600_000.0;

/// Hops from the source to a cluster, if nothing else is said: enough for a few hundred clusters, and every hop delays.
pub const DEPTH_DEFAULT: usize = 4;

/// Clusters that one cluster sends to, if nothing else is said. With [`DEPTH_DEFAULT`] hops it reaches 4,680.
pub const FAN_OUT_DEFAULT: usize = 8;

/// Bytes per second that a new cluster gets on its way to the head, if its entry says nothing.
pub const NEW_CLUSTER_BYTES_PER_S: u64 = 16 << 20;

/// Operations of each file, of which each sends all of its bytes: the durable copy and the cache copy.
pub const OPERATIONS: u64 = 2;

/// Clusters, the source included, of which every tree is tried, and the best one is found for certain. These have
/// at most 6^6 choices of parents; beyond that the time grows too fast.
pub const ALL_TREES_CLUSTERS_MAX: usize = 7;
