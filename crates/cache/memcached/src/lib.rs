//! memcached's protocol over a cell: the text commands and the meta commands.
//!
//! A connection's bytes become requests ([`request`]), a request that changes a key becomes a decision about what the
//! key holds (`change`), and the cell carries it out, for all who use it at once. An item's flags, and whether it is
//! stale, are the tag beside its value. A CAS unique stands for the value's version in the cell, so it is the same at
//! every node.
//!
//! Not for values that have to be kept: a cell may forget.
//!
//! Read first: [`request`], then `change.rs`, then `connection.rs`.

mod change;
mod config;
mod connection;
mod front;
pub mod limits;
mod recent;
mod reply;
pub mod request;
mod server;
mod stats;

pub use config::MemcachedConfig;
pub use front::MemcachedFront;
pub use server::MemcachedServer;
pub use stats::{COMMANDS, MemcachedStatsRead};
