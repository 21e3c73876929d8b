//! The segments of streams as ledgers of [Apache BookKeeper](https://bookkeeper.apache.org): each is one ledger,
//! and each of its entries is one entry there. It is a store as `tailwater_store::StoreContract` describes it, on
//! the client of `tailwater-bookkeeper`.
//!
//! What holds:
//! - **Durable is acknowledged.** An entry is durable when an ack quorum of bookies has it and everything before
//!   it. There is no journal, and nothing that is acknowledged earlier.
//! - **In order, over segments too.** The ledger of a shard's next segment is made when everything of the one
//!   before it is acknowledged. So what is lost never lies before what is kept.
//! - **Whoever opens it shuts the writer out.** When a store is opened, each ledger that was left open is fenced
//!   and recovered first. What was acknowledged is in it then. It gets no further entry.
//! - **One process writes.** Where others can take over, it has its right confirmed between a ledger's creation and its
//!   first entry. So whoever has taken over lists every ledger that may have acknowledged entries, and fences it.
//! - **A ledger that fails is given up.** It was fenced, or too few bookies took an entry: what is not acknowledged
//!   is lost to its appenders, the segment is sealed where it was acknowledged, and the ledger is closed. Appends
//!   go on in another.
//! - **Ledgers say whose they are** in their metadata in ZooKeeper, so none is without an owner: what no record of
//!   the log names is found when the store is opened, or by a sweep, and deleted.
//! - **Bounded.** What waits to be acknowledged by [`limits::PENDING_BYTES_MAX`], what is kept of what was read or
//!   written by [`limits::CACHE_BYTES_MAX`].
//!
//! To be read in this order: `opening.rs`, `store.rs` (the handle), `held.rs` (one segment), `writing.rs` (the task
//! of one that is written), `reading.rs` with `points.rs` and `cache.rs`, `names.rs`, `sweep.rs`.

mod cache;
mod held;
pub mod limits;
mod names;
mod opening;
mod points;
mod reading;
mod store;
mod sweep;
mod writing;

pub use opening::LedgerOpening;
pub use sweep::{LedgerSweep, SweepOutcome, SweptLedger};
