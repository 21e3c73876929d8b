//! A lean client of Kafka's protocol, which loads a node and an Apache Kafka alike.
//!
//! It is not a client for anybody else: one broker, a topic that is there, no retries. What fails ends the run. Every
//! request has a version that both servers have, so nothing is negotiated.

pub mod admin;
mod connection;
pub mod consumer;
pub mod producer;

/// Versions, the same for all servers: topics by name, the flexible form where there is one.
mod versions {
    pub const PRODUCE: i16 = 12;
    pub const FETCH: i16 = 12;
    pub const LIST_OFFSETS: i16 = 7;
    pub const METADATA: i16 = 9;
    pub const CREATE_TOPICS: i16 = 7;
    pub const DELETE_TOPICS: i16 = 5;
    pub const INIT_PRODUCER_ID: i16 = 4;
}
