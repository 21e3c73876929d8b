//! The `[broadcast]` section.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tailwater_broadcast::name::is_region;
use tailwater_broadcast::quota::Quota;
use tailwater_broadcast::{Durabilities, Durability, Stream};

/// How the node takes part in broadcasts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BroadcastConfig {
    /// Whether it does at all.
    pub enabled: bool,
    /// Where publishers, listeners and other replicas connect.
    pub listen: SocketAddr,
    /// Whether connections to it, and to all other replicas, are encrypted; if not said, as `[tls]` has it, where that
    /// has a CA for what the node connects to.
    pub tls: Option<bool>,
    /// The `host:port` of `listen` that others are told; empty is `listen` itself.
    pub advertised: String,
    /// The region whose proxy this node is a replica of.
    pub region: String,
    /// The `host:port` of the replica that decides who is in this region's chain; empty is this node itself.
    pub configuration: String,
    /// Whether this node has the region's events; if not, it only decides who is in the chain.
    pub replica: bool,
    /// A replica of this region that says nothing for so many milliseconds is removed from the chain, as is one that
    /// does not move on for five times as many, and a proxy that says nothing is not waited for.
    pub silence_ms: u64,
    /// The chain's last member, if it keeps its events in memory only or its disk is gone, is given up for another one
    /// after so long without a sign of it, in milliseconds. For the node that decides the chain.
    pub lost_ms: u64,
    /// How often a proxy tells the others how far it is, in milliseconds.
    pub advertise_ms: u64,
    /// The paper's C, in events times seconds: a proxy is left for another one that is further by this, divided by the
    /// seconds since it was last further itself.
    pub damping: f64,
    /// Connections at a time.
    pub connections_max: usize,
    /// Streams of this region.
    pub streams_max: usize,
    /// Bytes of events that each of them may hold before publishers are refused.
    pub stream_bytes_max: u64,
    /// Bytes of events that all of them may hold together before publishers are refused; `stream_bytes_max` where that
    /// is more.
    pub region_bytes_max: u64,
    /// How long each of them holds its events at least, in milliseconds; older ones are removed, and listeners that
    /// have not got them are told. 0 is for ever.
    pub retention_ms: u64,
    /// What a replica does with events before it counts them as held, if not said otherwise of a stream: `memory`,
    /// `interval` or `fsync`.
    #[serde(with = "durability_text")]
    pub durability: Durability,
    /// How often what is `interval` is synced, in milliseconds.
    pub sync_interval_ms: u64,
    /// Bytes that the journal grows by before a checkpoint is due; as many as the last one took, if that is more.
    pub checkpoint_bytes: u64,
    /// Broadcasts over HTTP.
    pub http: BroadcastHttpConfig,
    /// How much may be published.
    pub quotas: QuotasConfig,
    /// The replicas of the other regions' proxies: region to `host:port`s.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub regions: BTreeMap<String, Vec<String>>,
    /// What is said of single streams: `REGION/NAME` to it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub streams: BTreeMap<String, BroadcastStreamConfig>,
}

/// A `[broadcast.streams."REGION/NAME"]` section.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BroadcastStreamConfig {
    /// As that of all streams.
    #[serde(with = "durability_text")]
    pub durability: Durability,
}

/// A durability by its name.
mod durability_text {
    use serde::{Deserialize, Deserializer, Serializer};
    use tailwater_broadcast::Durability;

    pub fn serialize<S: Serializer>(durability: &Durability, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(durability)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Durability, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The `[broadcast.http]` section: broadcasts over HTTP.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BroadcastHttpConfig {
    /// Whether they can be reached so.
    pub enabled: bool,
    /// Where publishers and listeners connect.
    pub listen: SocketAddr,
    /// Whether connections are encrypted; if not said, as `[tls]` has it.
    pub tls: Option<bool>,
    /// Connections at a time, and as many WebSockets.
    pub connections_max: usize,
    /// Bytes of one request's body.
    pub body_bytes_max: usize,
    /// Bytes of the bodies of all requests under way together; one more is answered 503.
    pub bodies_bytes_max: usize,
    /// Bytes of the newest events that are kept for all listeners together; one that is further behind catches up by
    /// itself.
    pub listener_bytes_max: usize,
    /// How long a request may take to come, an event to be acknowledged, or an answer to be read, in milliseconds.
    pub timeout_ms: u64,
    /// Origins (`https://host:port`) whose pages may publish and listen from a browser.
    pub origins: Vec<String>,
}

/// The `[broadcast.quotas]` section: how much may be published in each second; 0 is no bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotasConfig {
    /// Bytes over one connection, or over HTTP from one address.
    pub publisher_bytes_per_s: u64,
    /// Events, likewise.
    pub publisher_events_per_s: u64,
    /// Bytes to this region's streams, where its head is.
    pub region_bytes_per_s: u64,
    /// Events, likewise.
    pub region_events_per_s: u64,
    /// Seconds' worth that may be published at once after a pause.
    pub burst_s: f64,
}

impl Default for QuotasConfig {
    fn default() -> Self {
        Self {
            publisher_bytes_per_s: 0,
            publisher_events_per_s: 0,
            region_bytes_per_s: 0,
            region_events_per_s: 0,
            burst_s: 1.0,
        }
    }
}

impl QuotasConfig {
    /// Of one publisher.
    pub(crate) fn publisher(&self) -> Quota {
        let (bytes_per_s, events_per_s) = (self.publisher_bytes_per_s, self.publisher_events_per_s);
        Quota { bytes_per_s, events_per_s, burst_s: self.burst_s }
    }

    /// Of the region.
    pub(crate) fn region(&self) -> Quota {
        let (bytes_per_s, events_per_s) = (self.region_bytes_per_s, self.region_events_per_s);
        Quota { bytes_per_s, events_per_s, burst_s: self.burst_s }
    }
}

impl Default for BroadcastHttpConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 9401)),
            tls: None,
            connections_max: 10_000,
            body_bytes_max: 2 << 20,
            bodies_bytes_max: 64 << 20,
            listener_bytes_max: 8 << 20,
            timeout_ms: 30_000,
            origins: Vec::new(),
        }
    }
}

impl Default for BroadcastConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 9400)),
            tls: None,
            advertised: String::new(),
            region: "local".to_owned(),
            configuration: String::new(),
            replica: true,
            silence_ms: 1_000,
            lost_ms: 60_000,
            advertise_ms: 100,
            damping: 100.0,
            connections_max: 10_000,
            streams_max: 64,
            stream_bytes_max: 2 << 30,
            region_bytes_max: 4 << 30,
            retention_ms: 0,
            durability: Durability::Interval,
            sync_interval_ms: 1_000,
            checkpoint_bytes: 64 << 20,
            http: BroadcastHttpConfig::default(),
            quotas: QuotasConfig::default(),
            regions: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }
}

impl BroadcastConfig {
    /// Where others reach this replica.
    pub fn reached_at(&self) -> String {
        if self.advertised.is_empty() { self.listen.to_string() } else { self.advertised.clone() }
    }

    /// Whether this node decides who is in the region's chain.
    pub fn decides(&self) -> bool {
        self.configuration.is_empty() || self.configuration == self.reached_at()
    }

    /// Which streams are kept on disk; the names were checked before.
    pub fn durabilities(&self) -> Durabilities {
        let named =
            |(name, of): (&String, &BroadcastStreamConfig)| Some((Stream::parse(name).ok()?, of.durability));
        Durabilities { default: self.durability, streams: self.streams.iter().filter_map(named).collect() }
    }

    /// Whether every key lies in its bounds; if not, which one does not and what to do.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let within = |name: &str, given: u64, min: u64, max: u64| {
            anyhow::ensure!(
                (min..=max).contains(&given),
                "[broadcast] {name} = {given} is not between {min} and {max}"
            );
            Ok(())
        };
        within("lost_ms", self.lost_ms, self.silence_ms, u64::MAX)?;
        within("silence_ms", self.silence_ms, 100, 3_600_000)?;
        within("advertise_ms", self.advertise_ms, 10, self.silence_ms / 2)?;
        within("connections_max", self.connections_max as u64, 1, 1_000_000)?;
        within("streams_max", self.streams_max as u64, 1, 4_096)?;
        within("stream_bytes_max", self.stream_bytes_max, 4 << 20, 1 << 50)?;
        within("region_bytes_max", self.region_bytes_max, 4 << 20, 1 << 50)?;
        if self.retention_ms > 0 {
            within("retention_ms", self.retention_ms, 1_000, 1 << 50)?;
        }
        within("sync_interval_ms", self.sync_interval_ms, 1, 3_600_000)?;
        within("checkpoint_bytes", self.checkpoint_bytes, 1 << 20, 16 << 30)?;
        for name in self.streams.keys() {
            Stream::parse(name).map_err(|error| anyhow::anyhow!("[broadcast.streams] {error}"))?;
        }
        within("http.connections_max", self.http.connections_max as u64, 1, 1_000_000)?;
        within("http.body_bytes_max", self.http.body_bytes_max as u64, 1 << 10, 4 << 20)?;
        let body = self.http.body_bytes_max as u64;
        within("http.bodies_bytes_max", self.http.bodies_bytes_max as u64, body, 1 << 31)?;
        within("http.listener_bytes_max", self.http.listener_bytes_max as u64, 64 << 10, 1 << 30)?;
        within("http.timeout_ms", self.http.timeout_ms, 100, 3_600_000)?;
        anyhow::ensure!(
            (0.001..=3_600.0).contains(&self.quotas.burst_s),
            "[broadcast] quotas.burst_s = {} is not between 0.001 and 3600",
            self.quotas.burst_s
        );
        anyhow::ensure!(
            (0.0..=1e12).contains(&self.damping),
            "[broadcast] damping = {} is not between 0 and 1e12",
            self.damping
        );
        anyhow::ensure!(
            !self.enabled || !self.advertised.is_empty() || !self.listen.ip().is_unspecified(),
            "[broadcast] listen = \"{}\" is no address that others could be told: set `advertised` to a host:port \
             by which they reach it",
            self.listen
        );
        anyhow::ensure!(
            self.replica || self.decides(),
            "[broadcast] replica = false leaves the node nothing to do, as configuration = \"{}\" is another one: leave one of \
             them out",
            self.configuration
        );
        let mut regions = vec![&self.region];
        regions.extend(self.regions.keys());
        for region in regions {
            anyhow::ensure!(
                is_region(region),
                "[broadcast] {region:?} is no region: it wants 1 to 63 letters, digits, '.', '_' or '-'"
            );
        }
        anyhow::ensure!(
            !self.regions.contains_key(&self.region),
            "[broadcast] regions lists {0}, which is this node's own region: leave it out, replicas of {0} find each \
             other through `configuration`",
            self.region
        );
        let mut addresses = vec![&self.advertised, &self.configuration];
        addresses.retain(|address| !address.is_empty());
        addresses.extend(self.regions.values().flatten());
        for address in addresses {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            anyhow::ensure!(port.is_some(), "[broadcast] {address:?} is no host:port");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_with_the_key_s_name() {
        let refusal = |change: fn(&mut BroadcastConfig)| {
            let mut config = BroadcastConfig::default();
            change(&mut config);
            config.check().expect_err("refused").to_string()
        };
        assert!(refusal(|c| c.region = "a/b".to_owned()).contains("a/b"));
        assert!(refusal(|c| drop(c.regions.insert("local".to_owned(), vec![]))).contains("own region"));
        assert!(
            refusal(|c| drop(c.regions.insert("us".to_owned(), vec!["us".to_owned()]))).contains("\"us\"")
        );
        assert!(refusal(|c| c.listen = SocketAddr::from(([0, 0, 0, 0], 9400))).contains("advertised"));
        assert!(refusal(|c| c.advertise_ms = 900).contains("advertise_ms"));
        let decides_nothing = |c: &mut BroadcastConfig| {
            (c.replica, c.configuration) = (false, "10.0.0.1:9400".to_owned());
        };
        assert!(refusal(decides_nothing).contains("nothing to do, as configuration = \"10.0.0.1:9400\""));
        let stream = |c: &mut BroadcastConfig| {
            let of = BroadcastStreamConfig { durability: Durability::Fsync };
            c.streams.insert("no region".to_owned(), of);
        };
        assert!(refusal(stream).contains("no region"));
        assert!(BroadcastConfig::default().check().is_ok());
    }
}
