//! Amazon SQS's API in front of the queues: its clients work unchanged.
//!
//! ```text
//!  client --HTTP--> server --> front --> protocol (JSON or Query) --> actions --> Queues
//! ```
//!
//! What holds:
//! - Limits, error codes and checksums are Amazon's; `docs/queues.md` lists what differs.
//! - Both protocols are the same actions on the same types; what only the form of a request decides is in `protocol/`.
//! - Where there are accounts, nothing is done for a request whose signature was not verified.
//! - The authorizer is asked for each request, and for each queue that it names, before a queue's own policy is.
//! - A receive that waits takes no CPU: it is a waiting task until the queue answers it.
//! - Nothing that comes over the wire is believed: sizes are bounded before anything is read, counts before anything is
//!   made of them.
//!
//! To be read in this order: `server.rs`, `front.rs`, `protocol.rs`, `actions.rs` and `actions/`.

mod accounts;
mod actions;
mod attributes;
mod config;
pub mod content;
mod error;
mod front;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod held;
mod in_flight;
pub mod limits;
mod names;
mod policy;
mod protocol;
mod room;
mod server;
pub mod signature;
mod socket;
mod stats;

pub use accounts::{AccountBounds, AccountError, AccountInfo, Accounts, NewAccountKey};
pub use attributes::{CONSISTENCY_TAG, ORDER_HINT_TAG};
pub use config::{AccountConfig, KeyConfig, SqsConfig};
pub use error::{Code, ErrorRefusal};
pub use front::Front;
pub use protocol::JsonObject;
pub use server::Server;
pub use stats::SqsStatsRead;
