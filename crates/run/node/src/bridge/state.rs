//! How far bridges are, in the node's metadata.
//!
//! | key | value, in JSON |
//! |---|---|
//! | `bridge/FROM>TO/SHARD` | [`ShardState`], of a bridge from a log stream |
//! | `bridge/FROM>TO` | [`BridgeState`], of a bridge into a log stream |

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tailwater_format::StreamId;
use tailwater_meta::{Expect, Meta, Op};

use crate::config::BridgeConfig;

/// How far a shard of a log stream is carried into a broadcast stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardState {
    /// The log stream: one of the same name that was made later is another one.
    pub(super) stream: StreamId,
    /// As whom the shard's events are published, in hex.
    pub(super) publisher: String,
    /// The offset of the first record that may not be published yet.
    pub(super) next: u64,
    /// The publisher's number of the first event that may not be.
    pub(super) number: u64,
    /// The greatest number in the broadcast stream that an event is known to have got.
    pub(super) seq: u64,
    /// The epoch of a chain whose members hold it.
    #[serde(default)]
    pub(super) epoch: u64,
    /// The lineage of that chain; 0 in what was written by a version that did not know of it.
    #[serde(default)]
    pub(super) lineage: u64,
}

/// How far a broadcast stream is carried into a log stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BridgeState {
    /// The log stream.
    pub(super) stream: StreamId,
    /// All events up to this number are in the log.
    pub(super) seq: u64,
    /// The epoch of a chain whose members hold them.
    #[serde(default)]
    pub(super) epoch: u64,
    /// The lineage of that chain; 0 in what was written by a version that did not know of it.
    #[serde(default)]
    pub(super) lineage: u64,
    /// Each shard's end when that was so: events with greater numbers are behind it.
    pub(super) ends: Vec<u64>,
}

pub(super) fn shard_key(config: &BridgeConfig, shard: u32) -> String {
    format!("{}/{shard}", stream_key(config))
}

pub(super) fn stream_key(config: &BridgeConfig) -> String {
    format!("bridge/{}>{}", config.from, config.to)
}

pub(super) async fn load<T: DeserializeOwned>(meta: &dyn Meta, key: &str) -> anyhow::Result<Option<T>> {
    let Some(stored) = meta.get(key).await? else { return Ok(None) };
    let state = serde_json::from_slice(&stored.value);
    state.map(Some).with_context(|| format!("{key} in the metadata can't be read"))
}

pub(super) async fn save<T: Serialize>(meta: &dyn Meta, key: &str, state: &T) -> anyhow::Result<()> {
    let value = serde_json::to_vec(state)?.into();
    meta.commit(vec![Op::Put { key: key.to_owned(), value, expect: Expect::Any }]).await?;
    Ok(())
}
