//! For tests, of this crate and of others: a durable source in memory, one in front of another, and what every durable
//! source has to keep to.

mod conformance;
mod decorated;
mod memory;

pub use conformance::{Stored, check_durable_source};
pub use decorated::{DecoratedSource, SourceHooks};
pub use memory::{MemoryAppended, MemoryLog};
