//! One sequential write-ahead journal with group commit, recovery and latched failure, for everything that
//! acknowledges on a local disk.
//!
//! Several writers, told apart by their [`Tag`], append records to one sequence. A record is acknowledged when
//! the durable position has passed its end: while one group of records is being synced the next one is
//! assembled, and one fdatasync acknowledges all that is in it.
//!
//! What is guaranteed:
//! - **Order.** Records are replayed in the order in which they were appended, and nothing is replayed after a
//!   gap: if a record is found after a crash, so is every record before it that was not reported [`Lost`].
//! - **Durability.** [`WatermarkFollower::wait_for`] answers `Ok` only for what a machine crash does not take away.
//! - **No silent loss.** Damage to acknowledged records is an error of [`Journal::open`] that names file and
//!   position; only what was under way when the machine stopped is cut without a word.
//! - **Failure is latched.** After a failed write or sync nothing is retried on that file. It is sealed at its
//!   last durable position, a further file whose header says so continues, the waiters of the cut records get
//!   [`Lost`], and [`Incarnation`] grows: an append under an older one is refused, so nobody goes on without
//!   having seen the loss.
//! - **Bounded.** Memory by [`JournalConfig::backlog_bytes`], disk by [`JournalConfig::files_max`]. An append
//!   that finds no room says so at once and never blocks.
//!
//! What it is not: it has no index and can't be read while it is open. Whoever appends keeps its own copy of
//! what it still needs, and calls [`Journal::trim`] when that has gone elsewhere.
//!
//! A record's way, in the order of the files: [`Journal::append`] (`journal.rs`) frames it (`frame.rs`) into the group
//! that is being assembled (`core.rs`, the step machine with all decisions and no input or output; `reach.rs`, how far
//! it is); the thread of `writer.rs` writes and syncs the group and moves the watermarks (`watermark.rs`), which wakes
//! the waiters. `files.rs` makes, zeroes and recycles files ahead of need, `recover.rs` reads them back.

mod config;
mod core;
mod error;
mod files;
mod frame;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod header;
mod journal;
pub mod limits;
mod position;
mod reach;
mod recover;
mod stats;
mod watermark;
mod writer;

pub use config::{JournalConfig, JournalConfigError};
pub use error::{CloseError, FullReason, JournalAppendError, JournalFailure, JournalOpenError, ReplayError};
pub use journal::{Journal, JournalAppendOptions, Priority};
pub use position::{FileSequence, Incarnation, JournalPosition, Tag};
pub use stats::{JournalStats, SyncTimes};
pub use watermark::{Lost, WaitFor, WatermarkFollower};
