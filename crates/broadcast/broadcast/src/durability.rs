//! What becomes of a stream's events when a replica's process or machine ends.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::name::Stream;

/// What a replica does with a stream's events before it counts them as held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// They are in memory only: a replica that restarts copies them from another one.
    #[default]
    Memory,
    /// They are handed to the operating system, which has them on disk some time later: they survive the end of the
    /// process, and what is older than the journal's interval that of the machine.
    Interval,
    /// They are on disk.
    Fsync,
}

/// No durability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no durability: it is memory, interval or fsync")]
pub struct BadDurability(String);

impl FromStr for Durability {
    type Err = BadDurability;

    fn from_str(text: &str) -> Result<Self, BadDurability> {
        match text {
            "memory" => Ok(Self::Memory),
            "interval" => Ok(Self::Interval),
            "fsync" => Ok(Self::Fsync),
            other => Err(BadDurability(other.to_owned())),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Interval => "interval",
            Self::Fsync => "fsync",
        })
    }
}

/// Of all streams, whichever region they belong to.
#[derive(Clone, Debug, Default)]
pub struct Durabilities {
    /// Of those that are not named.
    pub default: Durability,
    /// Of those that are.
    pub streams: BTreeMap<Stream, Durability>,
}

impl Durabilities {
    /// Of one stream.
    pub fn of(&self, stream: &Stream) -> Durability {
        self.streams.get(stream).copied().unwrap_or(self.default)
    }

    /// Whether some streams are kept on disk.
    pub fn needs_disk(&self) -> bool {
        self.default.max(self.streams.values().copied().max().unwrap_or_default()) > Durability::Memory
    }
}

impl From<Durability> for Durabilities {
    fn from(default: Durability) -> Self {
        Self { default, ..Self::default() }
    }
}
