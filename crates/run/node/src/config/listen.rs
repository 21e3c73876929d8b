//! `[listen]`: where the node listens, with how many threads, and how it stands beside other processes.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::priority::NICE;

/// More than any machine has cores for, and few enough for the system to start.
const WORKERS_MAX: usize = 1_024;
/// Processes of a shard from which on the window reads it: fewer take less than a third of a core at 240 Mbit/s, 0.035
/// each.
const WINDOW_FROM: usize = 8;

/// Listeners, as `insecure` names them: the sections that say where they listen, and `data` and `admin` of `[listen]`.
const LISTENERS: [&str; 7] = ["data", "admin", "kafka", "sqs", "memcached", "broadcast", "broadcast.http"];

/// Of which listeners something is meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum InsecureListeners {
    /// Of all of them, or of none.
    All(bool),
    /// Of these.
    Named(Vec<String>),
}

impl InsecureListeners {
    /// Whether it is of this one.
    pub(crate) fn covers(&self, listener: &str) -> bool {
        match self {
            Self::All(all) => *all,
            Self::Named(named) => named.iter().any(|name| name == listener),
        }
    }
}

/// Where the node listens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// For clients on other hosts: one-sided reads and calls over TCP.
    pub data: SocketAddr,
    /// Whether connections to `data`, and to the node's own cells over TCP, are encrypted; if not said, as `[tls]` has
    /// it.
    pub tls: Option<bool>,
    /// Whether clients have to log in on `data`, and at the node's own cells over TCP, if they have shown no
    /// certificate: as a user with a password, or with a token. Without it they may.
    pub login: bool,
    /// For clients on this host: the same through shared memory. Below the data directory if relative.
    pub unix: PathBuf,
    /// A process beside the node reads the cells once for all processes of its user on this host: the window, at a
    /// socket beside `unix`. Where there is none, each of them reads by itself.
    pub window: bool,
    /// Processes that follow a shard from which on the window reads it for them, at least 1. Fewer read by themselves,
    /// and have records up to 5 ms sooner.
    pub window_from: usize,
    /// Admin HTTP: health, metrics, `/v1`.
    pub admin: SocketAddr,
    /// The address of `data` that clients are told, if it differs (behind a proxy or NAT).
    pub advertised_data: Option<SocketAddr>,
    /// Of which listeners elsewhere than on loopback it is meant that they are not encrypted, or let in whoever
    /// connects.
    pub insecure: InsecureListeners,
    /// Connections on `data` and `unix` together.
    pub connections_max: usize,
    /// Engine threads that answer one-sided reads; 0 is one for each core but one, and at least one.
    pub engines: usize,
    /// Worker threads of the runtime, which do everything that engines don't; 0 is as with `engines`. With two cores a
    /// second one would mostly be woken for what the first does anyway: a tenth of one record's delay, a fifth of the
    /// node's time.
    pub workers: usize,
    /// Niceness of the node and of its window, from -20, which goes first, to 19; 0 leaves it as it is.
    pub nice: i32,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            data: SocketAddr::from(([127, 0, 0, 1], 7420)),
            tls: None,
            login: false,
            unix: PathBuf::from("node.sock"),
            window: true,
            window_from: WINDOW_FROM,
            admin: SocketAddr::from(([127, 0, 0, 1], 7421)),
            advertised_data: None,
            insecure: InsecureListeners::All(false),
            connections_max: 10_000,
            engines: 0,
            workers: 0,
            nice: NICE,
        }
    }
}

impl Listen {
    /// Clients are told an address of the node, and of its cells', that they can connect to.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if let Some(advertised) = self.advertised_data {
            anyhow::ensure!(
                !advertised.ip().is_unspecified() && advertised.port() != 0,
                "[listen] advertised_data = \"{advertised}\" is nothing that clients can connect to: use the address and \
                 the port that they reach this node at, as in 10.0.0.5:7420"
            );
        }
        anyhow::ensure!(
            self.advertised_data.is_some() || !self.data.ip().is_unspecified(),
            "[listen] data = \"{}\" (--listen) is all addresses of this host, and clients have to be told one of them, or \
             each would connect to itself: set advertised_data, or TAILWATER_LISTEN__ADVERTISED_DATA, to the one that they \
             reach this node at, as in 10.0.0.5:7420",
            self.data
        );
        if let InsecureListeners::Named(named) = &self.insecure
            && let Some(unknown) = named.iter().find(|name| !LISTENERS.contains(&name.as_str()))
        {
            anyhow::bail!(
                "[listen] insecure names {unknown:?}, which is no listener: use {}, or true for all of them",
                LISTENERS.join(", ")
            );
        }
        anyhow::ensure!(
            self.workers <= WORKERS_MAX,
            "[listen] workers = {}: there may be {WORKERS_MAX} at most, and 0 is one for each core but one",
            self.workers
        );
        anyhow::ensure!(
            (-20..=19).contains(&self.nice),
            "[listen] nice = {}: from -20, which goes first, to 19; 0 leaves it as it is",
            self.nice
        );
        anyhow::ensure!(
            self.window_from >= 1,
            "[listen] window_from = 0: use at least 1, or window = false for no window"
        );
        Ok(())
    }
}
