//! How the node speaks Kafka's protocol, and every limit that a client could run into.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::groups::GroupsConfig;

/// Requests of more than this share room with their like only.
pub const COMMON_FRAME_BYTES: usize = 4 << 20;

/// The `[kafka]` section. The names in parentheses are what Kafka calls the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaConfig {
    /// Whether it is spoken at all.
    pub enabled: bool,
    /// Where clients connect (`listeners`).
    pub listen: SocketAddr,
    /// The `host:port` that clients are told to connect to (`advertised.listeners`); empty is the address at which they
    /// reached the node.
    pub advertised: String,
    /// The number of this node among brokers (`node.id`).
    pub broker_id: i32,
    /// Whether a topic that somebody writes to or asks for is created (`auto.create.topics.enable`).
    pub auto_create_topics: bool,
    /// Partitions of a topic that is created without saying how many (`num.partitions`).
    pub default_partitions: u32,
    /// Connections at the same time (`max.connections`).
    pub connections_max: usize,
    /// Bytes of one request (`socket.request.max.bytes`).
    pub frame_bytes_max: usize,
    /// Items of all arrays of one request, each of which takes some 200 bytes of memory.
    pub items_max: usize,
    /// Bytes of all requests at the same time (`queued.max.request.bytes`); beyond it connections are not read. If larger
    /// ones than [`COMMON_FRAME_BYTES`] are allowed, half of it is theirs, or a largest one.
    pub requests_bytes_max: usize,
    /// Bytes of one answer to a Fetch (`fetch.max.bytes`); a larger batch still goes out alone.
    pub fetch_bytes_max: usize,
    /// Bytes of all answers to Fetch that were read and not sent; beyond it an answer has one batch. As many for others of
    /// more than 64 KiB; beyond it one closes its connection.
    pub answers_bytes_max: usize,
    /// A connection without a request for so many milliseconds is closed (`connections.max.idle.ms`).
    pub idle_ms: u64,
    /// A connection that takes nothing of its answers for so many milliseconds is closed.
    pub stalled_ms: u64,
    /// Bytes of the newest records that are kept in memory for consumers at the tail; 0 is none.
    pub hot_bytes: u64,
    /// Groups.
    pub groups: GroupsConfig,
}

impl Default for KafkaConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 9092)),
            advertised: String::new(),
            broker_id: 1,
            auto_create_topics: true,
            default_partitions: 1,
            connections_max: 10_000,
            frame_bytes_max: 100 << 20,
            items_max: tailwater_kafka_wire::wire::ITEMS_MAX,
            requests_bytes_max: 256 << 20,
            fetch_bytes_max: 55 << 20,
            answers_bytes_max: 1 << 30,
            idle_ms: 600_000,
            stalled_ms: 60_000,
            hot_bytes: 64 << 20,
            groups: GroupsConfig::default(),
        }
    }
}

impl KafkaConfig {
    /// What of `requests_bytes_max` is for frames of more than [`COMMON_FRAME_BYTES`].
    pub(crate) fn huge_bytes(&self) -> usize {
        match self.frame_bytes_max > COMMON_FRAME_BYTES {
            true => self.frame_bytes_max.max(self.requests_bytes_max / 2).min(self.requests_bytes_max),
            false => 0,
        }
    }

    /// Whether every field lies in its bounds; if not, which one does not and what to do.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, given: u64, min: u64, max: u64| match (min..=max).contains(&given) {
            true => Ok(()),
            false => Err(format!("[kafka] {name} = {given} is not between {min} and {max}")),
        };
        within(
            "default_partitions",
            self.default_partitions.into(),
            1,
            tailwater_log::limits::SHARDS_MAX.into(),
        )?;
        within("connections_max", self.connections_max as u64, 1, 1_000_000)?;
        within("frame_bytes_max", self.frame_bytes_max as u64, 64 << 10, 1 << 30)?;
        within("items_max", self.items_max as u64, 100, 10_000_000)?;
        let common = if self.frame_bytes_max > COMMON_FRAME_BYTES { COMMON_FRAME_BYTES } else { 0 };
        let least = (self.frame_bytes_max + common) as u64;
        within("requests_bytes_max", self.requests_bytes_max as u64, least, 1 << 40)?;
        within("fetch_bytes_max", self.fetch_bytes_max as u64, 1 << 10, 1 << 30)?;
        within("answers_bytes_max", self.answers_bytes_max as u64, 1 << 20, 1 << 40)?;
        within("idle_ms", self.idle_ms, 100, u64::MAX >> 1)?;
        within("stalled_ms", self.stalled_ms, 100, u64::MAX >> 1)?;
        if self.broker_id < 0 {
            return Err(format!("[kafka] broker_id = {} is negative", self.broker_id));
        }
        self.groups.check()?;
        if !self.advertised.is_empty() {
            parse_address(&self.advertised)
                .ok_or_else(|| format!("[kafka] advertised = {:?} is no host:port", self.advertised))?;
        }
        Ok(())
    }
}

/// Splits `host:port`; an IPv6 host is in brackets.
pub(crate) fn parse_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() { None } else { Some((host.to_owned(), port.parse().ok()?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_lies_within_its_own_bounds_and_what_does_not_is_named() {
        KafkaConfig::default().check().expect("in bounds");
        let config = KafkaConfig { default_partitions: 0, ..KafkaConfig::default() };
        assert!(config.check().unwrap_err().contains("default_partitions = 0"));
        let config = KafkaConfig { advertised: "kafka".to_owned(), ..KafkaConfig::default() };
        assert!(config.check().unwrap_err().contains("host:port"));
    }

    #[test]
    fn addresses_are_split_at_the_last_colon() {
        assert_eq!(parse_address("kafka.example:9092"), Some(("kafka.example".to_owned(), 9092)));
        assert_eq!(parse_address("[::1]:9092"), Some(("::1".to_owned(), 9092)));
        for bad in ["", "host", ":1", "host:x", "host:70000"] {
            assert_eq!(parse_address(bad), None, "{bad}");
        }
    }
}
