//! `[data_cell]` and `[metadata_cell]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tailwater_cache::EvictionPolicy;
use tailwater_tls::TlsConfig;

use crate::backend::CellKind;

/// How many copies a cell keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CellModeSetting {
    /// One copy.
    #[serde(rename = "R1")]
    R1,
    /// Three copies, of which two make a quorum.
    #[serde(rename = "R3.2")]
    R32,
    /// Two copies of what is loaded as a whole.
    #[serde(rename = "R2/Immutable")]
    R2Immutable,
}

/// Which values a backend removes when it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvictionSetting {
    /// The value written longest ago.
    #[default]
    #[serde(rename = "lrm")]
    Lrm,
    /// The value written or read longest ago.
    #[serde(rename = "lru")]
    Lru,
    /// Values that were only written go before values that were read.
    #[serde(rename = "s3-fifo")]
    S3Fifo,
}

impl EvictionSetting {
    /// The same for a backend.
    pub const fn policy(self) -> EvictionPolicy {
        match self {
            EvictionSetting::Lrm => EvictionPolicy::Lrm,
            EvictionSetting::Lru => EvictionPolicy::Lru,
            EvictionSetting::S3Fifo => EvictionPolicy::S3Fifo,
        }
    }
}

/// One cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CellSection {
    /// Copies of each value.
    pub mode: CellModeSetting,
    /// Backends that run as processes of their own: for each, its addresses (`unix:/path`, `tcp:ip:port`,
    /// `tls:ip:port`, `ofi:ip:port`), nearest first. Empty: the node runs the backend itself, with one copy.
    pub backends: Vec<Vec<String>>,
    /// The provider of libfabric's by which clients can read from a backend that the node runs itself; none if not
    /// said.
    pub ofi: Option<String>,
    /// Memory of each backend that the node runs itself, in bytes.
    pub capacity_bytes: u64,
    /// The size of the values that its index is laid out for, in bytes.
    pub value_bytes: u64,
    /// Time after which a value that was not written again is forgotten, in milliseconds.
    pub ttl_ms: u64,
    /// How often what is idle is written again, in milliseconds, or in a third of `ttl_ms` if that is sooner; clients
    /// learn it from the node.
    pub refresh_ms: u32,
    /// The part of `capacity_bytes`, in percent, from which on values are evicted.
    pub eviction_percent: u8,
    /// Which ones.
    pub eviction: EvictionSetting,
    /// The longest that one operation takes, in milliseconds; clients learn it from the node.
    pub deadline_ms: u32,
    /// After so many milliseconds a relaxed read asks another replica as well; clients learn it from the node.
    pub hedge_after_ms: u32,
}

impl Default for CellSection {
    fn default() -> Self {
        Self {
            mode: CellModeSetting::R1,
            backends: Vec::new(),
            ofi: None,
            capacity_bytes: 256 << 20,
            value_bytes: CellKind::Data.value_bytes(),
            ttl_ms: 60_000,
            refresh_ms: tailwater_tail::limits::CHUNK_REFRESH.as_millis() as u32,
            eviction_percent: 80,
            eviction: EvictionSetting::default(),
            deadline_ms: 500,
            hedge_after_ms: 30,
        }
    }
}

impl CellSection {
    /// How often what is idle is written again: well before it would be forgotten.
    pub(crate) fn refresh(&self) -> Duration {
        Duration::from_millis(self.refresh_ms.into()).min(Duration::from_millis(self.ttl_ms) / 3)
    }

    pub(super) fn check(&self, name: &str) -> anyhow::Result<()> {
        let count = self.backends.len();
        match self.mode {
            CellModeSetting::R32 => anyhow::ensure!(
                count >= 3,
                "[{name}] mode R3.2 keeps three copies in three backend processes, but `backends` lists \
                 {count}: start them with `tailwater cache serve` and list their addresses, or use mode R1"
            ),
            CellModeSetting::R2Immutable => anyhow::bail!(
                "[{name}] mode R2/Immutable is for cells that are loaded as a whole (`tailwater cell create`): the log \
                 writes its own ones all the time. Use R1 or R3.2"
            ),
            CellModeSetting::R1 => {}
        }
        self.check_sizes(name)?;
        anyhow::ensure!(
            self.ofi.is_none() || self.backends.is_empty(),
            "[{name}] ofi is for a backend that the node runs itself, and backends names others: give theirs --ofi"
        );
        anyhow::ensure!(
            (10..=60_000).contains(&self.refresh_ms),
            "[{name}] refresh_ms = {} is not between 10 and 60000",
            self.refresh_ms
        );
        anyhow::ensure!(
            (1..1_000).contains(&self.deadline_ms),
            "[{name}] deadline_ms = {} is not between 1 and 999",
            self.deadline_ms
        );
        anyhow::ensure!(
            (1..=self.deadline_ms).contains(&self.hedge_after_ms),
            "[{name}] hedge_after_ms = {} is not between 1 and deadline_ms",
            self.hedge_after_ms
        );
        Ok(())
    }

    /// Whether a backend can be as large, and be laid out, as the section says.
    pub(crate) fn check_sizes(&self, name: &str) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.capacity_bytes >= 1 << 20,
            "[{name}] capacity_bytes = {} is too small: use at least 1048576",
            self.capacity_bytes
        );
        anyhow::ensure!(
            (512..=1 << 20).contains(&self.value_bytes),
            "[{name}] value_bytes = {} is not between 512 and 1048576, which are the shortest and the longest chunks",
            self.value_bytes
        );
        anyhow::ensure!(
            self.ttl_ms >= 1_000,
            "[{name}] ttl_ms = {} is too short: use at least 1000",
            self.ttl_ms
        );
        anyhow::ensure!(
            (1..=100).contains(&self.eviction_percent),
            "[{name}] eviction_percent = {} is not between 1 and 100",
            self.eviction_percent
        );
        Ok(())
    }

    /// # Errors
    /// A backend in TLS where nothing says whose certificates are good.
    pub(super) fn check_trust(&self, name: &str, tls: &TlsConfig) -> anyhow::Result<()> {
        let secured = self.backends.iter().flatten().find(|address| address.starts_with("tls:"));
        match secured.filter(|_| tls.dialer().ca.is_none()) {
            None => Ok(()),
            Some(address) => Err(anyhow::anyhow!(
                "[{name}] backends has {address}, and nothing says whose certificates are good: write ca = \"FILE\" below \
                 [tls]"
            )),
        }
    }
}
