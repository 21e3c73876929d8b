//! The rows of [`tailwater_queue::shared`] in Cassandra or ScyllaDB, by CQL.
//!
//! A crate of its own, so that whoever needs queues only does not compile a driver; nor does who reads its
//! configuration only, without the feature `driver`. What is decided is decided in `queue`: here are tables, statements
//! and their consistency levels.

mod config;
#[cfg(feature = "driver")]
mod rows;
#[cfg(feature = "driver")]
mod schema;

pub use config::CassandraConfig;
#[cfg(feature = "driver")]
pub use rows::CassandraRows;
