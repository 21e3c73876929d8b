//! Kafka's messages: pure codecs, for the node that answers them and for our client that asks.
//!
//! - `api.rs`: which APIs there are, in which versions, and what answers which request;
//! - `messages/`: every message as a table;
//! - `wire/`: how a table becomes bytes, and bytes a message; nothing that is read there is believed;
//! - `consumer.rs`: what consumers tell each other through the coordinator, which does not look at it;
//! - `errors.rs`: error codes.

#[macro_use]
pub mod wire;

pub mod api;
pub mod consumer;
mod errors;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod messages;

pub use errors::ErrorCode;
