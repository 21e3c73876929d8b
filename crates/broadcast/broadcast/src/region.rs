//! The region-level protocol (section 3.2): how the events that a region's proxy has reach all clients of the region.
//!
//! Clients tell a few others what they have, and fetch from them what they lack, so that the proxy sends each event
//! to a handful of them only. Who lacks nothing is fed by one other: a request of it stands with that one (ADR 9).
//! What holds:
//! - A stream's events are delivered in order, each number once, and never with a gap: what the others keep no
//!   longer is fetched from the proxy, which has everything (or tombstones for it).
//! - Who stays connected to the proxy gets everything in the end, whatever other clients do, keep or lose.
//! - A client keeps a bounded number of bytes for others, and drops the oldest. What a peer can make it hold, send or
//!   ask for is bounded, so that one that is slow or leaves hurts nobody.
//! - Without a clock, a network or randomness: time is an argument, messages are outputs, a seed is given.
//!
//! [`Peer`] is a client, [`ProxyPeer`] the proxy's side. Both are made of the same parts: a [`view`] of the others,
//! the [`notify`]ing of some of them, the [`serve`]r of their requests; a client also [`fetch`]es and keeps what it
//! [`recv`]s. `count` is always the last number that a member has, 0 before the first; `held` the number after
//! which it keeps events.

mod fetch;
pub mod message;
mod notify;
pub mod options;
mod peer;
mod proxy;
mod recv;
mod rng;
mod serve;
#[cfg(test)]
mod tests;
mod view;

pub use message::{Member, Message, MessageSeen, RegionProgress, STANDING, UNFED};
pub use options::{Begin, Options, Stats};
pub use peer::{Peer, PeerOutput};
pub use proxy::ProxyPeer;
pub use serve::ServeSource;

pub(crate) use notify::AGAIN_MS;
