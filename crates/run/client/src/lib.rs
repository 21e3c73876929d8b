//! What an application links: a [`Producer`], and a [`Consumer`] that reads one-sidedly.
//!
//! ```no_run
//! # async fn example() -> Result<(), tailwater_client::Error> {
//! let client = tailwater_client::Client::connect("127.0.0.1:7420").await?;
//! let producer = client.producer("news", Default::default()).await?;
//! producer.send(Some(b"key"), b"value")?.await?;          // acknowledged: on disk
//!
//! let mut consumer = client.consumer("news", Default::default()).await?;
//! while let Some(batch) = consumer.next().await? {
//!     for record in batch.records() {
//!         println!("{} {:?}", record.offset, record.value); // borrowed from the process's one copy
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! [`broadcast`] has what an application needs of broadcasts, and a cache that they keep up to date.
//!
//! [`queue`] has queues: messages that stay invisible for as long as they are worked on.
//!
//! [`Client::state`] brings what a stream's updates come to: the newest snapshot, and the updates behind it.
//!
//! `examples/produce.rs`, `examples/consume.rs`, `examples/state.rs`, `examples/cache.rs` and `examples/worker.rs` are
//! whole programs.
//!
//! Nothing in here is a database or an engine: what is not in the cells is asked of a node by CALL.

pub mod broadcast;
mod cells;
mod client;
mod connection;
mod consumer;
mod delays;
mod error;
mod group;
pub mod limits;
mod login;
mod producer;
pub mod queue;
mod snapshot;
mod source;
mod state;
mod window;

pub use client::{Client, ClientConfig, ClockOffset, Stream, Transport, WindowUse};
pub use consumer::{Batch, Consumer, ConsumerConfig, Lag};
pub use error::Error;
pub use group::{GroupConfig, GroupConsumer};
pub use login::LoginConfig;
pub use producer::{Ack, Acked, Partitioner, Producer, ProducerSettings, Trouble, shard_of_key};
pub use snapshot::{ShardSnapshot, SnapshotWriter, Snapshots, SnapshotsKept};
pub use state::{KeyedState, StateConfig, StateConsumer, StateNews};
pub use tailwater_access::SecretText;
pub use tailwater_cache::LookupWay;
pub use tailwater_format::snapshot::{SnapshotManifest, SnapshotPart, SnapshotUpTo};
pub use tailwater_format::{Start, StartError};
pub use tailwater_login::{ClientLogin, Mechanism};
pub use tailwater_tail::{ReaderConfig, ReaderConfigError, ReaderStats};
pub use tailwater_tls::{Dialer, DialerConfig, TlsError};
pub use window::sidecar_socket;
