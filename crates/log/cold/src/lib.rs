//! Cold storage: copies of completed segments where bytes are cheap, in a directory or an object store.
//!
//! What holds:
//! - **Names tell contents.** A copy lies below a folder that has the segment's name, its term and a checksum of all
//!   of it. Whoever copies a segment, and how often, writes the same bytes to the same names. So two nodes that copy
//!   one segment do no harm, and a copy that was interrupted is gone on with.
//! - **Nothing is believed.** A segment is checked entry by entry before it is copied. What was put is read back and
//!   compared. What is read later is checked against the copy's index, and that against what metadata has.
//! - **Bounded.** Copying holds one part, reading [`limits::BLOCKS_MAX`] blocks and [`limits::INDEXES_MAX`] indexes.
//! - **No other's.** All names begin with the number of the data directory: several may share a place.
//!
//! What it is not: which segment is copied, when it leaves the store and when its copy goes is the log's to decide.
//!
//! To be read in this order: `objects.rs` (what is asked of a place), `names.rs`, `index.rs`, `copying.rs`, `tier.rs`
//! (reading), `store.rs` (a store with a tier behind it), `directory.rs`; with the feature `objects` also `remote.rs`
//! and `http.rs`.

mod copying;
mod directory;
#[cfg(feature = "fuzz")]
pub mod fuzz;
#[cfg(feature = "objects")]
mod http;
mod index;
pub mod limits;
mod names;
mod objects;
mod pace;
mod recent;
#[cfg(feature = "objects")]
mod remote;
mod stats;
mod store;
mod tier;

pub use copying::{SegmentCopyError, SegmentToCopy};
pub use directory::ColdDirectory;
pub use names::{ColdCopy, CopyName};
pub use objects::{ColdError, ColdObjects, FromCold};
pub use pace::CopyPace;
#[cfg(feature = "objects")]
pub use remote::{ObjectStoreObjects, StoredObject};
pub use stats::{ColdCounters, ColdStats};
pub use store::ColdStore;
pub use tier::ColdTier;
