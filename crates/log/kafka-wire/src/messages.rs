//! Every message that is spoken here, as tables: fields in the order of the wire, with the versions that have them.
//!
//! The names are those of Kafka's protocol guide, which says what they mean; `docs/kafka.md` lists which versions of
//! which APIs are answered. `wire/table.rs` says how to read a table.
#![allow(missing_docs)] // the protocol guide is their documentation

pub mod cluster;
pub mod configs;
pub mod fetch;
pub mod groups;
pub mod header;
pub mod membership;
pub mod offsets;
pub mod produce;
pub mod replicas;
pub mod security;
pub mod topics;
