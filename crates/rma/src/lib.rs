//! Memory regions and one-sided reads of them.

mod connection;
mod region;
mod service;

pub use connection::{
    CallError, Capabilities, Connection, ConnectionLost, OpError, ReadOp, RegionId, RegionInfo, ScarOp,
    ScarReply,
};
pub use region::Region;
pub use service::{Peer, REFUSED_ABANDONED, Refusal, Reply, ScarHit, Service};

/// The longest READ, in bytes.
pub const READ_BYTES_MAX: u32 = 1 << 20;
/// The longest CALL payload or answer, in bytes.
pub const CALL_BYTES_MAX: usize = 8 << 20;
