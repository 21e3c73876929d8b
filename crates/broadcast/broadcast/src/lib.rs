//! Sprinkler: reliable broadcast to every client of every region, with garbage collection.
//!
//! What holds (section 2.1 of the paper):
//! - The events of a stream are in one order, and every client gets them in that order.
//! - For every published event a client gets either the event, or a tombstone that covers it and later a
//!   garbage-collection event that matches it. Nothing is missed silently: numbers have no gaps.
//! - Garbage collection is final: a collection that could bring back what another one removed is refused.
//!
//! Everything that decides is a step function over messages and ticks, without clock, network or disk.
//!
//! Replicas and their membership are there with the feature `server` alone: an application that links a listener or a
//! publisher links none of them.

// What only replicas need of the rest.
#![cfg_attr(not(feature = "server"), allow(dead_code, unused_imports))]

pub mod batch;
pub mod checks;
pub mod client;
mod collect;
pub mod durability;
pub mod event;
pub mod frame;
pub mod history;
pub mod limits;
#[cfg(feature = "server")]
pub mod membership;
pub mod message;
pub mod name;
mod pieces;
pub mod positions;
pub mod predicate;
pub mod quota;
pub mod record;
#[cfg(feature = "server")]
pub mod recovered;
pub mod region;
#[cfg(feature = "server")]
pub mod replica;
mod varint;
pub mod wire;

pub use batch::{Batch, MalformedBatch, TooLarge, Writer};
pub use durability::{Durabilities, Durability};
pub use event::{Collect, Content, Event, Kind};
pub use history::{FinalityRefusal, Gap, History, HistoryOptions, HistoryStats};
pub use name::Stream;
pub use positions::{Heard, NoRoomForStreams, Position, Positions, TooManyStreams};
pub use predicate::Predicate;
