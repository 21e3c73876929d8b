//! Copy trees: over which links a stream's files would be copied from the cluster that has them to all that want them
//! (Fast ACS, 2.3). Costs go in, a plan comes out; nothing is read, sent or changed.
//!
//! What holds of every plan:
//! - **It spans.** Every destination has one way from the source, and no other cluster is in the tree.
//! - **It is bounded.** No way has more hops, and no cluster a larger fan-out, than was allowed.
//! - **What fails is a leaf.** A cluster with an outage forwards, and a link with one is used, only where no tree
//!   without that was found. A new cluster forwards never.
//! - **It is the same.** Neither order nor chance has a say: what is equal is decided by name.
//!
//! - `costs.rs`: the file, as it is written;
//! - `graph.rs`: the same, checked, with what makes links near an outage dearer;
//! - `optimizer.rs`: the tree;
//! - `plan.rs`: what is asked, and what is told of the tree;
//! - `explain.rs`: why there is none, and what would help;
//! - `draw.rs`: the tree as a picture.

mod costs;
mod draw;
mod error;
mod explain;
mod graph;
pub mod limits;
mod optimizer;
mod plan;

pub use costs::{ClusterEntry, LinkEntry, TreeCosts};
pub use draw::{dot, svg};
pub use error::PlanError;
pub use plan::{HopRole, TreeHop, TreePlan, TreeRequest, plan};
