//! The rows of [`tailwater_queue::shared`] in Cassandra or ScyllaDB, by CQL.
//!
//! A crate of its own, so that whoever needs queues only does not compile a driver. What is decided is decided in
//! `queue`: here are tables, statements and their consistency levels.

mod config;
mod rows;
mod schema;

pub use config::CassandraConfig;
pub use rows::CassandraRows;
