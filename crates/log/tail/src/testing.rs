//! For tests, of this crate and of others: a durable source in memory, and what every durable source has to keep
//! to.

mod conformance;
mod memory;

pub use conformance::{Stored, check_durable_source};
pub use memory::{MemoryAppended, MemoryLog};
