//! Memory regions and one-sided reads of them.
//!
//! A server owns [`Region`]s and writes to them. Clients read them without the server's application taking part: they
//! map them (over a Unix socket, where the descriptors are handed over), an engine thread answers straight from the
//! memory (over TCP, plain or in TLS), or libfabric does. [`local`] is the same contract within one process.
//!
//! | operation | what it does | who takes part at the server |
//! |---|---|---|
//! | READ  | bytes of a region | nobody (mapped, libfabric), or an engine thread |
//! | SCAR  | scans a bucket and reads what it points at | an engine thread |
//! | WATCH | completes when the doorbell moved | nobody (mapped), or one parked item |
//! | CALL  | asks the application | a worker thread |
//!
//! In TLS every byte passes through the cipher of the engine that sends it. So a region's pages do not go out from
//! where they lie, as they do over plain TCP: they are copied and encrypted, 128 KiB at a time. Descriptors are passed
//! over Unix sockets only, which are never in TLS.
//!
//! Over libfabric ([`Address::Ofi`], the feature `ofi`) a READ is an `fi_read` of memory that the server has
//! registered. All else goes over the TCP connection beside it, and so does a READ while libfabric has failed. The
//! provider is the server's to choose. One for hardware (`verbs;ofi_rxm`, `efa`) answers without the server's
//! processor; those in software (`tcp;ofi_rxm`, `shm`) have a thread of the server drive them, and are slower than the
//! two transports above. libfabric checks a key and a range, and trusts the rest that comes from a peer: it is for
//! networks where all who can connect are trusted.
//!
//! What is read is never to be trusted: it may be torn at any byte and of any age. What a peer sends is never
//! trusted either: it can cost that peer its connection, and nobody else anything.

#![deny(unsafe_op_in_unsafe_fn)]

mod address;
mod atomics;
mod client;
mod coalesce;
mod connection;
#[allow(unsafe_code)]
mod copy;
mod doorbell;
#[cfg(feature = "ofi")]
mod fabric;
mod frame;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod limits;
pub mod local;
#[allow(unsafe_code)]
mod mapping;
#[allow(unsafe_code)]
mod passing;
#[cfg_attr(test, allow(unsafe_code))] // its tests try what the seals forbid
mod region;
#[cfg(test)]
mod released_tests;
mod room;
mod server;
mod service;
mod socket;
mod table;
#[cfg(feature = "testing")]
pub mod testing;

pub use address::{Address, AddressError};
pub use client::{
    ClientDialogue, ConnectError, LoginNext, LoginWish, ServerLogin, connect, connect_as, connect_with,
};
pub use connection::{
    CallDone, CallError, Capabilities, Connection, ConnectionLost, OpError, ReadOp, ReadResults, RegionId,
    RegionInfo, ScarOp, ScarReply, ScarResults, assert_fills,
};
pub use doorbell::{Doorbell, DoorbellStats};
pub use limits::{CALL_BYTES_MAX, READ_BYTES_MAX};
pub use local::LocalDoorbell;
pub use passing::{
    ArenaReader, ArenaWriter, NoticeReader, NoticeWriter, PassingListener, PassingSocket, SameUser,
};
pub use region::{Backing, Region};
pub use server::{EngineKind, SOCKETS_OUTLIVE_PROCESS, Server, ServerConfig, ServiceAdmission};
pub use service::{
    LoginDemand, LoginDialogue, LoginTurn, REFUSED_ABANDONED, REFUSED_TOO_LARGE, Refusal, Reply, ScarHit,
    Service,
};
pub use tailwater_access::Peer;
