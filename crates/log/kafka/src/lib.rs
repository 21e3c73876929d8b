//! Kafka's wire protocol and group coordinator in front of the log: Kafka's clients work unchanged.
//!
//! ```text
//!  client --frames--> connection --> broker --> answers/ --> Log::submit      (Produce)
//!                                                       `--> Log::fetch_hot   (Fetch at the tail: memory)
//!                                                       `--> Log::fetch       (Fetch behind it: durable)
//! ```
//!
//! A topic is a stream, a partition a shard, a leader epoch a term; high watermark and last stable offset are what is
//! durable. What holds:
//! - Record batches are opaque: they are checked, get their offsets, and go out as they came in.
//! - Records that this protocol acknowledges are as durable as their stream promises, with acks 1 as with acks all.
//! - Nothing that comes over the wire is believed: `tailwater-kafka-wire` says how it is read, `connection.rs` what
//!   bounds it.
//! - A client holds nobody up but itself.
//!
//! To be read in this order: `server.rs`, `connection.rs`, `broker.rs`, then `answers/`. `docs/kafka.md` lists what is
//! answered, and what differs from Apache Kafka.

mod acls;
mod answers;
mod broker;
mod config;
mod connection;
mod errors;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod groups;
mod internal;
#[cfg(test)]
mod moved;
mod nodes;
mod pace;
mod replicas;
mod runtime;
mod sasl;
mod server;
mod stats;
mod topic_config;

pub use tailwater_kafka_wire::{api, messages, wire};

pub use broker::{Administered, Broker};
pub use config::{COMMON_FRAME_BYTES_MAX, KafkaConfig, Listener};
pub use errors::ErrorCode;
pub use groups::GroupsConfig;
pub use groups::admin::{GroupError, GroupInfo, MemberInfo, Reset, ShardLag};
pub use nodes::BrokerNode;
pub use server::Server;
pub use stats::{Stats, StatsRead};
