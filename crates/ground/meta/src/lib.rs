//! Versioned keys with atomic conditional commits, watches and leases: where the few facts live that everything
//! else hangs on.
//!
//! [`Meta`] is the contract, and `conformance` the tests that every implementation passes. [`EmbeddedMeta`]
//! keeps everything in memory and in the journal of its process: each commit is one journal record, and a
//! snapshot file beside it is the checkpoint. The crate `tailwater-meta-zookeeper` has the one in ZooKeeper.
//!
//! It is meant for thousands of keys of up to a few KiB and hundreds of commits a second, not for records.
//!
//! A commit's way, in the order of the files: `embedded.rs` takes it, `state.rs` (decisions only, no input or
//! output) holds it against the keys and against the commits that are on their way, `record.rs` encodes it for
//! the journal; when it is durable it is applied, shown to readers and to watches (`watch.rs`), and answered.
//! `snapshot.rs` and `recovery.rs` bring it over a restart.

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod contract;
mod embedded;
mod following;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod lease;
pub mod limits;
mod record;
mod recovery;
mod snapshot;
mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod watch;

pub use contract::{
    Expect, FromMeta, Meta, MetaError, Op, UNREADABLE, Versioned, check_key, check_ops, check_value,
};
pub use embedded::{EmbeddedMeta, MetaConfig, TAG};
pub use following::follow_whole;
pub use lease::Lease;
pub use recovery::{Recovery, RecoveryError};
pub use watch::{Event, Watch, WatchEnd, WatchSender, watch_channel};
