//! Streams copied from cluster to cluster along copy trees (Fast ACS, 2.3 and 2.4): plans, and both ends of a hop.
//!
//! ```text
//!   source's log --> session --CALL, windowed--> operation --> copy's log --> session --CALL--> ...
//!   (cluster us)     reader.rs                   writer.rs     (cluster eu)
//! ```
//!
//! A cluster is a node here. The source's cluster keeps the plan of each of its streams, with a number, and tells all
//! clusters that it knows. Every cluster keeps the last plan that it was told, and goes on by it when it is cut off.
//!
//! What holds:
//! - **The same records.** A copy has the source's offsets, terms and record batches, byte for byte, each checked by
//!   its own checksum. An entry is appended only where the last one ended. What the source has removed is a gap that
//!   readers are told, as they are at the source.
//! - **Durable at the source.** A copy shows, and sends on, what is on the source's disk. Its own disk may follow.
//! - **Each shard by itself.** A shard that can't be copied for a while does not hold up the others of its stream.
//! - **It goes on where it was.** Where a copy ends is what its log says, so either end may die at any moment.
//! - **Plans go forward.** A plan never replaces one with a greater number. A way that leads back to the cluster itself
//!   is refused, so a cycle made of two plans carries nothing.
//! - **Bounded.** Sessions, answers under way and their bytes are ([`limits`]).
//!
//! - `plan.rs`: plans as they are stored and told; `clusters.rs`: the clusters that a cluster knows;
//! - `copies.rs`: the whole of a node: what is placed, told, begun and shown;
//! - `reader.rs`: the upper end of a hop; `follow.rs`: what its lower end makes of the answers, a step function;
//!   `writer.rs`: who carries that out, with `hop.rs`, what is told of it;
//! - `schedule.rs`: which worker of a cluster runs which operation, a step function; `crew.rs`: the node's side of it;
//!   `worker.rs`: a worker, a process of its own; `intake.rs`: what the node makes of what one pushes;
//! - `offsets.rs`: what groups have committed, brought along the trees;
//! - `pace.rs`: how fast it is copied from each cluster;
//! - `links.rs`: how other clusters are reached.

mod ask;
mod clusters;
mod copies;
mod crew;
mod draining;
mod error;
mod follow;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod hop;
mod intake;
pub mod limits;
mod links;
mod moving;
mod offsets;
mod pace;
mod plan;
mod reader;
mod schedule;
mod telling;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod worker;
mod writer;

pub use clusters::KnownCluster;
pub use copies::{Copies, PlaceRequest, TreeHopState};
pub use crew::{CrewView, OperationView, WorkerView};
pub use error::CopyError;
pub use links::{ClusterLinks, DialedLinks};
pub use moving::{ClusterEnds, SourceTaken};
pub use offsets::OffsetsKeeper;
pub use pace::LinkRates;
pub use plan::{CopyTree, Fork, TreeEdge};
pub use schedule::ScheduleCounts;
pub use worker::{CopyWorker, WorkerStats};
