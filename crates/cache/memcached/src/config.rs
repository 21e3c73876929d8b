//! How the node speaks memcached's protocol.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tailwater_cache::LookupWay;

/// The `[memcached]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemcachedConfig {
    /// Whether it is spoken at all.
    pub enabled: bool,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Whether connections are encrypted; if not said, as `[tls]` has it.
    pub tls: Option<bool>,
    /// Whether clients log in, by memcached's authentication over its text protocol, as a user of the node.
    pub login: bool,
    /// The cell. If there is none of that name, the node creates one with one backend of its own.
    pub cell: String,
    /// Memory of the backend that is created then, in bytes.
    pub capacity_bytes: u64,
    /// How gets ask the replicas of a key: `auto`, `two`, `all`, `2xr`, `scar` or `call`.
    pub lookup: String,
    /// Connections at the same time.
    pub connections_max: usize,
    /// Bytes of all values of more than 16 KiB that are being received or sent; beyond it they wait, or are refused.
    pub values_bytes_max: usize,
    /// A connection without a command for so many milliseconds is closed.
    pub idle_ms: u64,
    /// The rest of a command has to come, and an answer to go, within so many milliseconds.
    pub stalled_ms: u64,
}

impl Default for MemcachedConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            listen: SocketAddr::from(([127, 0, 0, 1], 11211)),
            tls: None,
            login: false,
            cell: "memcached".to_owned(),
            capacity_bytes: 64 << 20,
            lookup: LookupWay::Auto.name().to_owned(),
            connections_max: 1_024,
            values_bytes_max: 256 << 20,
            idle_ms: 3_600_000,
            stalled_ms: 30_000,
        }
    }
}

impl MemcachedConfig {
    /// Whether every field lies in its bounds; if not, which one does not and what to do.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, given: u64, min: u64, max: u64| match (min..=max).contains(&given) {
            true => Ok(()),
            false => Err(format!("[memcached] {name} = {given} is not between {min} and {max}")),
        };
        self.lookup.parse::<LookupWay>().map_err(|why| format!("[memcached] lookup: {why}"))?;
        within("connections_max", self.connections_max as u64, 1, 1 << 20)?;
        within("values_bytes_max", self.values_bytes_max as u64, 4 << 20, 1 << 40)?;
        within("idle_ms", self.idle_ms, 1_000, 1 << 40)?;
        within("stalled_ms", self.stalled_ms, 100, 1 << 40)?;
        within("capacity_bytes", self.capacity_bytes, 1 << 20, u64::MAX)
    }
}
