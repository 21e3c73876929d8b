//! [`Meta`](tailwater_meta::Meta) in [ZooKeeper](https://zookeeper.apache.org): what it holds outlives every
//! machine but those of ZooKeeper.
//!
//! ```text
//!  ROOT/keys/...       a node for each key, with its value
//!  ROOT/parts/NAME/0   the parts of values that are too large for that
//!  ROOT/turn, ...      who may change them
//! ```
//!
//! What holds:
//! - **A commit is one transaction of ZooKeeper's,** whose number is the version of what it wrote. A key's version
//!   is compared with what was read; ZooKeeper then checks how often the node was changed in its life. Between the
//!   two a key would have to be deleted, made again and changed as often for a commit to be deceived.
//! - **One process changes it at a time.** Each transaction checks that it is still this process's turn, so one that
//!   was suspended or cut off changes nothing once another has taken over.
//! - **Reads are behind a `sync`.** So they see what was answered before, to whomever.
//! - **ZooKeeper may be away.** A call waits [`limits::PATIENCE`] for it, and is refused then. Nothing is queued
//!   meanwhile.
//!
//! To be read in this order: `membership.rs` (whose turn it is), `store.rs` (reads), `commit.rs`, `watching.rs`,
//! `reading.rs`; beside them `session.rs`, `paths.rs`, `value.rs`, `uri.rs`.

mod commit;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod limits;
mod membership;
mod paths;
mod reading;
mod session;
mod store;
mod uri;
mod value;
mod watching;

pub use membership::{MembershipFault, NodeMembership, NodeRecord, TurnWait, nodes_at};
pub use reading::ZooKeeperReader;
pub use store::ZooKeeperMeta;
pub use uri::{MetadataUri, MetadataUriFault};
