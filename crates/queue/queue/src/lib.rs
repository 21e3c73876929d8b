//! Queues whose index of messages carries order and visibility in its timestamps, after *A Scalable Cloud-based Queuing
//! Service with Improved Consistency Levels* (BDQS), in one process.
//!
//! What is guaranteed:
//! - **Nothing is lost.** A send, a delete, a change of visibility is answered when the journal has it on disk. A
//!   message is received until its delete was answered; none comes back after that.
//! - **Invisible is invisible.** Several receivers never have the same message within its visibility timeout. A receive
//!   is not synced: a crash may undo it, and then the message is received again.
//! - **Order.** With an order hint of 1 messages are received in the order of the index; in a FIFO queue those of a
//!   group always are, and nothing is that comes after an invisible one of its group.
//! - **Nothing is searched.** What a request costs does not depend on how much there is.
//! - **Bounded.** Of each message 16 to 48 bytes are in memory, and of invisible ones some more; contents are there
//!   until the tree has them, and those that will be received next ([`limits`]).
//!
//! What it is not: it does not know accounts, but names; and nothing of a protocol.
//!
//! ```text
//!  Queues --request--> owner --round--> journal --durable--> owner --answer-->
//!                        `--delta--> checkpoint --> tree (redb) --content--> reader
//! ```
//!
//! To be read in this order: `queue.rs` and `queue/` (one queue), `index.rs`, `record.rs` and `shelf.rs` (operations,
//! and what they do), `core.rs` and `core/` (requests), `owner.rs` (the loop), `checkpoint.rs` and `tree.rs`,
//! `recovery.rs` (a start); `queues.rs` is the handle.

mod checkpoint;
mod clock;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod contents;
mod contract;
mod core;
mod deduplication;
mod embedded;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod groups;
mod ids;
mod index;
pub mod limits;
mod order_hint;
mod owner;
mod pages;
mod queue;
mod queues;
mod reader;
mod record;
mod recovery;
mod request;
mod settings;
#[cfg(feature = "shared")]
pub mod shared;
mod shared_config;
mod shelf;
mod tree;
mod view;

pub use checkpoint::TAG;
pub use contract::{FrontReport, Outcomes, QueueStore, SentEach, StoreAnswer};
pub use ids::{NoReceipt, Number, QueueId, Receipt, Secret, Sequence, Token};
pub use queue::{Counts, Happened, ReceiptError};
pub use queues::{Queues, QueuesConfig};
pub use recovery::Recovery;
pub use request::{Figures, Message, QueueError, Receive, Send, Sent, VisibilityChange};
pub use settings::{
    Consistency, Fifo, MoveStatus, MoveTask, NoConsistency, NoOrderHint, OrderHint, QueueRecord, Redrive,
    Scope, Settings,
};
pub use shared_config::SharedConfig;
pub use tree::TreeError;
pub use view::QueueView;
