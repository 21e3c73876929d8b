//! How the node speaks Kafka's protocol, and every limit that a client could run into.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::groups::GroupsConfig;
use crate::replicas::BOOKIES_FROM;

/// Requests of more than this share room with their like only.
pub const COMMON_FRAME_BYTES_MAX: usize = 4 << 20;

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
    /// Whether connections to `listen` are encrypted; if not said, as `[tls]` has it. A broker is told of each one.
    pub tls: Option<bool>,
    /// Whether clients of `listen` have to log in as one of the node's users.
    pub login: bool,
    /// Where they connect besides, each with what its clients are told: a network's own, and the host's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<Listener>,
    /// The number of this node among brokers (`node.id`).
    pub broker_id: i32,
    /// Whether a topic that somebody writes to or asks for is created (`auto.create.topics.enable`).
    pub auto_create_topics: bool,
    /// Partitions of a topic that is created without saying how many (`num.partitions`).
    pub default_partitions: u32,
    /// Connections at the same time (`max.connections`), to all listeners together.
    pub connections_max: usize,
    /// Bytes of one request (`socket.request.max.bytes`).
    pub frame_bytes_max: usize,
    /// Items of all arrays of one request, each of which takes some 200 bytes of memory.
    pub items_max: usize,
    /// Bytes of all requests at the same time (`queued.max.request.bytes`); beyond it connections are not read. If
    /// larger ones than [`COMMON_FRAME_BYTES_MAX`] are allowed, half of it is theirs, or a largest one.
    pub requests_bytes_max: usize,
    /// Bytes of one answer to a Fetch (`fetch.max.bytes`); a larger batch still goes out alone.
    pub fetch_bytes_max: usize,
    /// Bytes of all answers to Fetch that were read and not sent; beyond it an answer has one batch. As many for others
    /// of more than 64 KiB; beyond it one closes its connection.
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

/// One of `[[kafka.listeners]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// The `host:port` that they are told to connect to; empty is the address at which they reached the node.
    #[serde(default)]
    pub advertised: String,
    /// Whether connections to it are encrypted; if not said, as `[tls]` has it.
    #[serde(default)]
    pub tls: Option<bool>,
    /// Whether its clients have to log in as one of the node's users.
    #[serde(default)]
    pub login: bool,
}

impl Default for KafkaConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 9092)),
            advertised: String::new(),
            tls: None,
            login: false,
            listeners: Vec::new(),
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
    /// Everywhere that clients connect: at `listen` first.
    pub fn all_listeners(&self) -> Vec<Listener> {
        let Self { listen, tls, login, .. } = *self;
        let first = Listener { listen, advertised: self.advertised.clone(), tls, login };
        [vec![first], self.listeners.clone()].concat()
    }

    /// What of `requests_bytes_max` is for frames of more than [`COMMON_FRAME_BYTES_MAX`].
    pub(crate) fn huge_bytes(&self) -> usize {
        match self.frame_bytes_max > COMMON_FRAME_BYTES_MAX {
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
        let common = if self.frame_bytes_max > COMMON_FRAME_BYTES_MAX { COMMON_FRAME_BYTES_MAX } else { 0 };
        let least = (self.frame_bytes_max + common) as u64;
        within("requests_bytes_max", self.requests_bytes_max as u64, least, 1 << 40)?;
        within("fetch_bytes_max", self.fetch_bytes_max as u64, 1 << 10, 1 << 30)?;
        within("answers_bytes_max", self.answers_bytes_max as u64, 1 << 20, 1 << 40)?;
        within("idle_ms", self.idle_ms, 100, u64::MAX >> 1)?;
        within("stalled_ms", self.stalled_ms, 100, u64::MAX >> 1)?;
        if self.broker_id < 0 {
            return Err(format!("[kafka] broker_id = {} is negative", self.broker_id));
        }
        if self.broker_id >= BOOKIES_FROM {
            return Err(format!(
                "[kafka] broker_id = {} is a bookie's number: use one below {BOOKIES_FROM}",
                self.broker_id
            ));
        }
        self.groups.check()?;
        self.check_listeners()
    }

    fn check_listeners(&self) -> Result<(), String> {
        let all = self.all_listeners();
        for (index, Listener { listen, advertised, .. }) in all.iter().enumerate() {
            let section = section_of(index);
            if let Some(why) = refusal(advertised) {
                return Err(format!(
                    "{section} advertised = {advertised:?} {why}: use what clients reach this node at, as in \
                     kafka.example:9092"
                ));
            }
            if index > 0 && advertised.is_empty() && listen.ip().is_unspecified() {
                return Err(format!(
                    "{section} listen = \"{listen}\" is all addresses of this host, and nothing says which one its \
                     clients are to be told: set its `advertised` to the host:port that they reach this node at, as in \
                     kafka.example:{}",
                    listen.port()
                ));
            }
            if let Some(before) = all[..index].iter().position(|other| overlap(other.listen, *listen)) {
                return Err(format!(
                    "{section} listen = \"{listen}\" is where {} listen = \"{}\" listens: give each listener an address \
                     or a port of its own, or leave one of them out",
                    section_of(before),
                    all[before].listen
                ));
            }
        }
        Ok(())
    }
}

/// What Kafka calls a listener whose connections are encrypted, or are not, and whose clients log in, or do not.
pub(crate) fn security_protocol(is_secured: bool, login: bool) -> &'static str {
    match (is_secured, login) {
        (true, true) => "SASL_SSL",
        (true, false) => "SSL",
        (false, true) => "SASL_PLAINTEXT",
        (false, false) => "PLAINTEXT",
    }
}

/// What a listener is called in the configuration.
fn section_of(index: usize) -> &'static str {
    if index == 0 { "[kafka]" } else { "[[kafka.listeners]]" }
}

/// Why that is nothing to tell clients, if it is not.
fn refusal(advertised: &str) -> Option<&'static str> {
    if advertised.is_empty() {
        return None;
    }
    let Some((host, port)) = parse_address(advertised) else { return Some("is no host:port") };
    let is_everywhere = host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
    (is_everywhere || port == 0).then_some("is nothing that clients can connect to")
}

/// Whether only one of these can be listened on.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (a, b) = (one.ip(), other.ip());
    // All addresses of IPv6 are those of IPv4 too.
    let covers = |all: IpAddr, one: IpAddr| all.is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    one.port() == other.port() && one.port() != 0 && (a == b || covers(a, b) || covers(b, a))
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
    }

    fn listener(listen: &str, advertised: &str) -> Listener {
        Listener {
            listen: listen.parse().expect("an address"),
            advertised: advertised.to_owned(),
            tls: None,
            login: false,
        }
    }

    #[test]
    fn what_clients_can_not_connect_to_is_not_told_to_them() {
        for bad in ["kafka", "0.0.0.0:9092", "[::]:9092", "kafka:0"] {
            let first = KafkaConfig { advertised: bad.to_owned(), ..KafkaConfig::default() };
            let further =
                KafkaConfig { listeners: vec![listener("127.0.0.1:9093", bad)], ..KafkaConfig::default() };
            for (config, section) in [(first, "[kafka]"), (further, "[[kafka.listeners]]")] {
                let why = config.check().expect_err(bad);
                assert!(why.starts_with(&format!("{section} advertised = {bad:?} ")), "{why}");
                assert!(why.contains("host:port") || why.contains("can connect to"), "{why}");
            }
        }
    }

    #[test]
    fn listeners_at_the_same_address_or_of_which_nothing_can_be_told_are_refused_with_what_to_do() {
        let check = |first: &str, further: &[(&str, &str)]| {
            let listeners = further.iter().map(|(listen, advertised)| listener(listen, advertised)).collect();
            KafkaConfig { listen: first.parse().unwrap(), listeners, ..KafkaConfig::default() }.check()
        };
        let loopback = "127.0.0.1:9092";
        for (first, further) in [
            (loopback, &[("127.0.0.1:9093", ""), ("10.0.0.5:9092", "")][..]),
            ("0.0.0.0:9092", &[("0.0.0.0:9093", "kafka:9093"), ("[::1]:9092", "")]),
            ("127.0.0.1:0", &[("127.0.0.1:0", "")]),
        ] {
            assert_eq!(check(first, further), Ok(()));
        }
        for (first, further) in [
            (loopback, &[(loopback, "kafka:9093")][..]),
            (loopback, &[("0.0.0.0:9092", "kafka:9092")]),
            (loopback, &[("127.0.0.1:9093", ""), ("127.0.0.1:9093", "kafka:9094")]),
            ("[::]:9092", &[(loopback, "")]),
            ("[::1]:9092", &[("[::]:9092", "kafka:9092")]),
        ] {
            let why = check(first, further).expect_err(first);
            assert!(why.contains("of its own") && why.contains("[[kafka.listeners]] listen = "), "{why}");
        }
        let why = check(loopback, &[("0.0.0.0:9093", "")]).expect_err("what are they told?");
        assert!(why.contains("0.0.0.0:9093") && why.contains("set its `advertised`"), "{why}");
        assert_eq!(check("0.0.0.0:9092", &[]), Ok(()), "the one at which they reached it");
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
